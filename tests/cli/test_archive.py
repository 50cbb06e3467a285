"""`icewright archive`, and the archiving of whole days by `icewright cycle`."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app.bootstrap import application, pyiceberg_catalog_properties, read_config
from icewright.app.demo.tables import ledger
from icewright.app.service import Service
from icewright.ports.archive import SOURCES
from tests.cli.workspace import Workspace
from tests.flow.history import JobSpec, keys, seed

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

JOBS = [JobSpec(deletions=("deleted",)), JobSpec(days=29), JobSpec(days=1)]
OLD = {"deletions": 1, "runs": 1, "jobs": 1, "events": 2, "alerts": 1}
NOTHING = dict.fromkeys(SOURCES, 0)


@pytest.fixture
def lived(workspace: Workspace) -> Workspace:
    """A house with an archive, a table of which nothing is due, and a history of forty days."""
    workspace.make(partial(ledger, commits=2, rows_per_file=2))
    workspace.write("archive: {catalog: lake, namespace: ops.history}\n")
    store = workspace.store()
    seed(store.engine, JOBS, [40.0, 33.0, 1.0], [40.0, None], now=datetime.now(UTC))
    store.engine.dispose()
    return workspace


def in_the_archive(workspace: Workspace) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table."""
    properties = pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"])
    with closing(SqlCatalog("lake", **properties)) as catalog:
        if not catalog.namespace_exists("ops.history"):
            return {}
        names = [name for _, _, name in catalog.list_tables("ops.history")]
        return {name: catalog.load_table(("ops", "history", name)).scan().to_arrow().to_pylist() for name in names}


def test_archive(lived: Workspace) -> None:
    """The dry run counts what then goes; a second time nothing is left; the tables are maintained like any other."""
    dry = lived("archive", "--dry-run", "--json")
    assert (dry.code, dry.json["dry_run"], dry.json["archive"]) == (0, True, "lake.ops.history")
    assert dry.json["rows"] == OLD
    assert in_the_archive(lived) == {}
    went = lived("archive", "--json")
    assert (went.code, went.json["rows"]) == (0, OLD)
    assert went.err.count('"event": "archived"') == len(SOURCES)
    assert {name: len(rows) for name, rows in in_the_archive(lived).items()} == OLD
    assert lived("archive", "--json").json["rows"] == NOTHING
    assert lived("show", "job-0").code == 2
    assert len(lived("history", "--json").json["jobs"]) == 2
    assert {t["table"] for t in lived("tables", "--json").json["tables"]} >= {f"lake.ops.history.{s}" for s in SOURCES}
    assert lived("health", "lake.ops.history.runs").code == 0


def test_archive_for_people(lived: Workspace) -> None:
    """Without --json the rows and the tables of the archive are printed."""
    dry, went = lived("archive", "--dry-run"), lived("archive")
    assert "rows to move" in dry.out
    assert "lake.ops.history.events" in went.out


def test_a_cycle_archives_whole_days(lived: Workspace) -> None:
    """What was old at midnight goes at the end of a pass; a dry run moves nothing."""
    assert lived("cycle", "--dry-run").code == 0
    assert in_the_archive(lived) == {}
    assert lived("cycle").code == 0
    assert {name: len(rows) for name, rows in in_the_archive(lived).items()} == OLD


def test_a_cycle_whose_archive_fails(lived: Workspace) -> None:
    """The pass is partial, the error is told, and every row stays."""
    store = lived.store()
    before = keys(store.engine) - {("alerts", 2)}  # never raised: a pass forgets it, as there is no cause any more
    lived.write("archive: {catalog: pond}\n")
    path, sealed = lived.path, lived.home / "sealed"
    sealed.write_text("no folder", encoding="utf-8")
    pond = f'\n  pond: {{type: sql, properties: {{uri: "sqlite:///{sealed}/c.db", warehouse: "file://{sealed}"}}}}\n'
    text = path.read_text(encoding="utf-8").replace("\ncache:", f"{pond}cache:", 1)
    path.write_text(text, encoding="utf-8")
    said = lived("cycle", "--catalog", "lake")
    assert said.code == 3
    assert "archive table pond.icewright.deletions cannot be archived to" in said.err
    assert before <= keys(store.engine)
    store.engine.dispose()


def test_the_service_archives(lived: Workspace) -> None:
    """A loop of its own, where there is an archive; a batch a round."""
    with application(read_config(lived.path), kind="service") as app:
        service = Service(app, kind="service", slots=0)
        (loop,) = [loop for loop in service.loops.loops if loop.name == "archive"]
        assert [loop.body() for _ in range(6)] == [1, 1, 1, 2, 1, 0]
    lived.write("")
    with application(read_config(lived.path), kind="service") as app:
        assert "archive" not in {loop.name for loop in Service(app, kind="service", slots=0).loops.loops}


def test_no_archive(workspace: Workspace) -> None:
    """Without the section the command says what to write."""
    result = workspace("archive")
    assert (result.code, result.out) == (2, "")
    assert "archive: {catalog: NAME}" in result.err
