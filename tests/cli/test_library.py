"""The library for programs and notebooks, over a small lakehouse."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

import icewright
from icewright import Icewright
from icewright.app.demo.tables import events, metrics
from icewright.core.advice import Advice
from icewright.core.errors import CatalogUnavailable, ConfigError, UsageError
from icewright.library import HealthComponent, OperationResult, OperationVerdict, PastJob, TableSummary
from icewright.result_rows import Rows
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

METRICS = "lake.ops.metrics"


@pytest.fixture
def opened(workspace: Workspace) -> Iterator[Icewright]:
    """An open configuration with two tables, of which one has snapshots to expire."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2), partial(events, manifests=12, rows_per_file=5))
    with Icewright.open(workspace.path) as opened:
        yield opened


def test_a_table_is_explained_maintained_and_remembered(opened: Icewright) -> None:
    """What is due is planned by a dry run, done by a run, and part of the history afterwards."""
    assert {row.table for row in opened.tables()} == {METRICS, "lake.web.events"}
    table = opened.table(METRICS)
    health = table.health()
    assert health.facts["snapshots"] > 10
    due = {row.operation for row in table.explain() if row.verdict == "due"}
    assert "expire_snapshots" in due
    assert table.advise().to_dicts() == []
    assert table.check("entries").faults == ()
    (planned,) = table.run("expire_snapshots", dry_run=True).operations
    assert planned.state == "planned"
    done = table.run("expire_snapshots", settings={"deletion.delay_hours": "0"})
    assert (done.state, done.operations[0].state) == ("succeeded", "committed")
    assert set(done.operations[0].files) == set(planned.files) != set()
    assert table.health().facts["snapshots"] < health.facts["snapshots"]
    (job,) = table.history()
    assert (job.job_id, job.state, job.operations) == (done.job_id, "succeeded", ("expire_snapshots",))
    assert [table.repair(dry_run=dry_run).summary for dry_run in (True, False)] == ["no fault", "no fault"]


def test_rows_go_where_data_goes(opened: Icewright) -> None:
    """Rows are lists, Arrow tables, Polars frames, and tables in a notebook, whose text is escaped."""
    rows = opened.tables("lake")
    assert rows.to_arrow().column_names == rows.to_polars().columns
    assert rows.to_arrow().num_rows == len(rows) == len(rows[:2]) == 2
    assert f"<td>{METRICS}</td>" in rows._repr_html_()
    odd = Rows(HealthComponent, [HealthComponent("<b>\x1b\u202e", None, "")])._repr_html_()
    assert "<td>&lt;b&gt;\\x1b\\u202e</td>" in odd
    table = opened.table(METRICS)
    assert "health" in table.health()._repr_html_()
    assert table.history().to_polars().columns == [column.name for column in fields(PastJob)]
    assert "<th>job_id</th>" in table.history()._repr_html_()
    shown = table.run("expire_snapshots", dry_run=True)._repr_html_()
    assert ("files_deleted: " in shown, shown.count("file:///")) == (True, 3)
    assert {"Icewright", "__version__"} == set(dir(icewright))
    assert copy.deepcopy(rows) == rows != rows[:1]


def test_a_catalog_that_cannot_be_read_is_no_empty_one(opened: Icewright, workspace: Workspace) -> None:
    """It raises where it was asked for, and is a warning beside the tables of another."""
    gone = f"catalogs:\n  gone: {{type: sql, properties: {{uri: 'sqlite:///{workspace.home}/x', warehouse: /w}}}}\n"
    text = workspace.path.read_text(encoding="utf-8").replace("catalogs:\n", gone)
    workspace.path.write_text(text, encoding="utf-8")
    with Icewright.open(workspace.path) as two:
        with pytest.raises(CatalogUnavailable, match="/x"):
            two.tables("gone")
        with pytest.warns(UserWarning, match="/x"):
            assert two.tables() == opened.tables()


def test_no_row_changes_the_type_of_a_column() -> None:
    """Neither the many rows that lack a value before the first with one, nor the missing of any row."""
    new = TableSummary("lake.a.new", "new", None, (), None, None, None)
    known = TableSummary("lake.b.known", "due", 7, ("compact",), 2, 3, datetime(2026, 11, 25, tzinfo=UTC))
    rows = Rows(TableSummary, [*[new] * 150, known])
    assert rows.to_polars().row(150) == tuple({**asdict(known), "due": ["compact"]}.values())
    assert rows[:0].to_arrow().schema == rows[:1].to_arrow().schema == rows.to_arrow().schema
    assert (rows._repr_html_().count("<tr>"), "and 51 more rows" in rows._repr_html_()) == (101, True)
    assert (repr(rows).count("TableSummary("), repr(rows)[-14:]) == (3, "and 148 more])")
    for kind in (Advice, HealthComponent, OperationResult, OperationVerdict, PastJob):
        empty: Rows[object] = Rows(kind, [])
        assert empty.to_arrow().column_names == empty.to_polars().columns == [one.name for one in fields(kind)]


def test_a_forked_process_does_not_use_what_its_parent_opened(
    opened: Icewright, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on one connection break it, and Polars' threads are not in the second: it hung."""
    monkeypatch.setattr("icewright.library.os.getpid", lambda: 1)
    with pytest.raises(UsageError, match="opened before a fork: spawn the process, and open it there"):
        opened.tables()


def test_mistakes_are_named(opened: Icewright, tmp_path: Path) -> None:
    """An unknown file, catalog, table, operation or knob is an error with its remedy."""
    table = opened.table(METRICS)
    with pytest.raises(UsageError, match="there is no configuration"):
        Icewright.open(tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="there is no catalog pond"):
        opened.tables("pond")
    with pytest.raises(UsageError, match="has no such table"):
        opened.table("lake.ops.nothing")
    with pytest.raises(UsageError, match="no such operation"):
        table.run("expire")
    with pytest.raises(UsageError, match="at least one operation"):
        table.run()
    with pytest.raises(ConfigError):
        table.run("expire_snapshots", settings={"nothing": "1"})
    with pytest.raises(UsageError, match="no level deep; there is: exists, entries, footers, rows"):
        table.check("deep")
    with pytest.raises(UsageError, match="the least is 1"):
        table.history(-1)
    for where, words in (("host =", "cannot be read from 'host =' on;"), ("load = 1 and", "ends too early;")):
        with pytest.raises(UsageError, match=f"{words} write it as in email"):
            table.erase(where, dry_run=True)
    assert repr(table) == f"TableHandle(ref={table.ref!r})"
    opened.close()
    for call in (opened.tables, partial(opened.table, METRICS), table.health, table.explain, table.history):
        with pytest.raises(UsageError, match="is closed: open it again"):
            call()


def test_the_package_loads_no_more_than_is_used() -> None:
    """Importing the package alone loads neither the application nor PyIceberg; an unknown name is an AttributeError."""
    code = "import sys, icewright; print([m for m in ('icewright.app', 'pyiceberg', 'sqlalchemy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    with pytest.raises(AttributeError):
        icewright.nothing  # noqa: B018
