"""Catalogs that answer wrongly: a list without one of their tables, an older version. What is read never goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.engines.service import deletion
from icewright.adapters.engines.service.deletion import JobDeletion
from icewright.adapters.engines.service.registry import TableRegistry
from icewright.adapters.engines.service.surroundings import OtherTable
from icewright.app.bootstrap import application, read_config
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, OperationState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.ports import Pointer
from tests.adapters.test_replies import Server, plain
from tests.cases.test_gone_catalogs import SHORT_LOG, SOURCE, source
from tests.cases.test_open_world import ROWS, later, reads
from tests.cases.workspace import EXPIRE, ORPHANS, Workspace, edit


@pytest.mark.cases(98)
@pytest.mark.parametrize("catalog", ["lake", "pond"])
def test_a_second_entry_that_its_catalog_does_not_list(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, catalog: str
) -> None:
    """A server that loses a page of its list still loads the entry: it is no earlier name of the table."""
    table = source(workspace)
    table.overwrite(ROWS)
    twin = workspace.icebergs[catalog].register_table("sales.twin", table.metadata_location)
    workspace.run(ORPHANS, name=SOURCE, dry_run=True)
    later(workspace)
    before, real = reads(twin), SqlCatalog.pointers
    monkeypatch.setattr(SqlCatalog, "pointers", lambda self: [p for p in real(self) if p.ref.name != "twin"])
    workspace.refused(EXPIRE, f"{catalog}.sales.twin", "[registered_twice]", name=SOURCE)
    assert reads(twin) == before


@pytest.mark.cases(99)
def test_a_borrower_of_which_its_catalog_names_an_older_version(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took files in since then, as was seen, and a cache in front of the catalog has forgotten that."""
    lender = source(workspace)
    borrower = workspace.icebergs["pond"].create_table("sales.borrower", ROWS.schema)
    older = borrower.metadata_location
    borrower.add_files(lender.inspect.files()["file_path"].to_pylist())
    workspace.run(ORPHANS, name=SOURCE, dry_run=True)
    lender.overwrite(ROWS)
    later(workspace)
    before, listed, located = reads(borrower), SqlCatalog.pointers, SqlCatalog._location

    def pointers(catalog: SqlCatalog) -> Sequence[Pointer]:
        return [replace(p, metadata_location=older) if p.ref.name == "borrower" else p for p in listed(catalog)]

    def location(catalog: SqlCatalog, ref: TableRef) -> str:
        return older if ref.name == "borrower" else located(catalog, ref)

    with monkeypatch.context() as cached:
        cached.setattr(SqlCatalog, "pointers", pointers)
        cached.setattr(SqlCatalog, "_location", location)
        done = workspace.run(EXPIRE, name=SOURCE)
    assert any("is a newer version of pond.sales.borrower, and may read them" in note for note in done.notes), done
    assert reads(borrower) == before


@pytest.mark.cases(99)
def test_a_borrower_that_commits_while_it_is_looked_at(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest version decides: what it has let go is deleted."""
    lender = source(workspace)
    lent = Path(local_path(lender.inspect.files()["file_path"][0].as_py()) or "")
    borrower = workspace.icebergs["pond"].create_table("sales.borrower", ROWS.schema, properties=SHORT_LOG)
    borrower.add_files([f"file://{lent}"])
    workspace.run(ORPHANS, name=SOURCE, dry_run=True)
    borrower.overwrite(ROWS)
    lender.overwrite(ROWS)
    later(workspace)
    workspace.run(EXPIRE, name="sales.borrower", catalog="pond")
    real, commits = TableRegistry.metadata_of, iter([1, 2])

    def loaded(registry: TableRegistry, other: OtherTable) -> TableMetadata:
        found = real(registry, other)
        for _ in range(next(commits, 0) % 2):
            workspace.icebergs["pond"].load_table("sales.borrower").append(ROWS)
        return found

    monkeypatch.setattr(TableRegistry, "metadata_of", loaded)
    assert workspace.run(EXPIRE, name=SOURCE).state is OperationState.COMMITTED
    assert not lent.exists()
    assert reads(borrower)


def test_a_server_that_keeps_the_name_of_the_metadata_file(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is proved by what the metadata says then: snapshots that come back keep the files of later batches."""
    workspace.table()
    snapshots = json.loads(workspace.metadata_file().read_bytes())["snapshots"]
    real, batches = JobDeletion.delete, []

    def meanwhile(self: JobDeletion, batch: Sequence[FileAction]) -> None:
        batches.append(batch)
        if len(batches) == 2:
            edit(workspace.metadata_file(), lambda document: document.update(snapshots=snapshots))
        real(self, batch)

    monkeypatch.setattr(deletion, "BATCH", 1)
    monkeypatch.setattr(JobDeletion, "delete", meanwhile)
    done = workspace.run(EXPIRE)
    assert [file.path for file in done.files] == [batches[0][0].path]
    assert len(batches) > len(done.files)


SERVED = """\
state: sqlite:///{home}/served.db
catalogs:
  lake: {{type: rest, enabled: true, allowed_locations: ["file://{home}"], properties: {{uri: "{address}"}}}}
cache: {{folder: "{home}/cache"}}
policy: [{{set: {{expire_snapshots.retention_hours: 24, expire_snapshots.min_snapshots_to_keep: 1}}}}]
"""


@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize(
    ("reply", "lacking"),
    [
        (lambda whole: whole["snapshots"].reverse(), ""),
        (lambda whole: whole["snapshots"].pop(1), "has snapshot "),
        (lambda whole: whole["refs"].pop("audit"), "has tag audit at snapshot "),
        (lambda whole: whole["statistics"].clear(), "has statistics "),
        (lambda whole: whole["metadata-log"].clear(), "has former version "),
        (lambda whole: whole.update({"table-uuid": str(UUID(int=1))}), "has uuid "),
    ],
)
def test_a_reply_that_lacks_what_the_metadata_file_has(
    workspace: Workspace, operation: Operation, reply: Callable[[dict[str, Any]], object], lacking: str
) -> None:
    """A REST server's word alone makes no file unreached: the metadata file that it names decides."""
    folder = workspace.table(hours=(400, 300, 200, 100, 90))
    path = workspace.metadata_file()
    document = json.loads(path.read_bytes())
    first, place = document["snapshots"][0]["snapshot-id"], f"{document['location']}/metadata"
    about = {"snapshot-id": first, "statistics-path": f"{place}/x.stats", "file-size-in-bytes": 1}
    document |= {"snapshot-log": [], "statistics": [about | {"file-footer-size-in-bytes": 1, "blob-metadata": []}]}
    document |= {"metadata-log": [{"metadata-file": f"{place}/0.metadata.json", "timestamp-ms": 1}]}
    document["refs"] |= {"audit": {"snapshot-id": first, "type": "tag"}}
    path.write_text(json.dumps(document))
    workspace.plant(folder, "data/lost.parquet")
    reply(document)
    server, file = Server(), workspace.home / "served.yaml"
    server.table = plain({"metadata-location": f"file://{path}", "metadata": document})
    file.write_text(SERVED.format(home=workspace.home, address=server.address))
    with application(read_config(file), kind="manual", clock=workspace.clock) as app:
        request = Request(TableRef("lake", ("sales",), "orders"), (operation,), manual=True, dry_run=True)
        (outcome,) = execute(app.runtime, request).outcomes
    server.http.shutdown()
    server.http.server_close()
    assert lacking in outcome.reason, outcome
    assert outcome.reason.endswith("[reply_differs]") == bool(lacking)
    assert bool(outcome.files) != bool(lacking)
