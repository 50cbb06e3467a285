"""The library for programs and notebooks, over a small lakehouse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import icewright
from icewright import Icewright
from icewright.app.demo.tables import events, metrics
from icewright.core.errors import ConfigError, UsageError
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
    assert table.check().faults == ()
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
    assert "&lt;b&gt;" in icewright.library.Rows([icewright.library.HealthComponent("<b>", None, "")])._repr_html_()
    assert "health" in opened.table(METRICS).health()._repr_html_()


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


def test_the_package_loads_no_more_than_is_used() -> None:
    """Importing the package alone loads neither the application nor PyIceberg; an unknown name is an AttributeError."""
    code = "import sys, icewright; print([m for m in ('icewright.app', 'pyiceberg', 'sqlalchemy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    with pytest.raises(AttributeError):
        icewright.nothing  # noqa: B018
