"""Catalogs that answer wrongly: a list without one of their tables, an older version. What is read never goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.engines.service import deletion
from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.registry import Other, TableRegistry
from icewright.core.paths import local_path
from icewright.core.runs import FileAction, OperationState
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Pointer
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

    def loaded(registry: TableRegistry, other: Other) -> TableMetadata:
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
    real, batches = Deletion._delete_batch, []

    def meanwhile(self: Deletion, job_id: str, batch: Sequence[FileAction], *more: object) -> None:
        batches.append(batch)
        if len(batches) == 2:
            edit(workspace.metadata_file(), lambda document: document.update(snapshots=snapshots))
        real(self, job_id, batch, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(deletion, "BATCH", 1)
    monkeypatch.setattr(Deletion, "_delete_batch", meanwhile)
    done = workspace.run(EXPIRE)
    assert [file.path for file in done.files] == [batches[0][0].path]
    assert len(batches) > len(done.files)
