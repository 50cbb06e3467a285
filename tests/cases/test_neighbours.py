"""Neighbours in further shapes: places that a writer grabs, places that a table has left, versions that come late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from icewright.adapters.engines.service.expire_snapshots import ExpireInService, PlannedExpiry
from icewright.adapters.files.tables import IcebergFiles
from icewright.core.errors import Refused
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.flow.adopt import adopt
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.undo import undo
from icewright.ports import LedgerState
from tests.cases.test_open_world import ROWS, later, pin, quickly_located, reads
from tests.cases.test_undo import expired, history, settled, states
from tests.cases.workspace import EXPIRE, KNOBS_OF, NAME, ORPHANS, Workspace, edit, ref


def automatic_expiry(workspace: Workspace, name: str = NAME) -> Outcome:
    """An expiry that nobody asked for."""
    workspace.detect()
    (outcome,) = execute(workspace.runtime(KNOBS_OF[EXPIRE]), Request(ref(name), (EXPIRE,))).outcomes
    return outcome


def grabbed(workspace: Workspace, how: str, name: str = NAME) -> tuple[Table, Path]:
    """A table whose writer declares somebody's folder its own, takes a file there in, and replaces it."""
    landing = workspace.home / "warehouse" / "landing"
    landing.mkdir(parents=True)
    pq.write_table(ROWS, landing / "monday.parquet")
    catalog = workspace.icebergs["lake"]
    table = catalog.create_table(NAME, ROWS.schema)
    table.append(ROWS)
    automatic_expiry(workspace)
    if how == "write.data.path":
        with table.transaction() as transaction:
            transaction.set_properties({how: f"file://{landing}"})
    else:
        quickly_located(table, landing)
    if name != NAME:
        catalog.rename_table(NAME, name)
    table = catalog.load_table(name)
    table.add_files([f"file://{landing}/monday.parquet"])
    table.overwrite(ROWS)
    later(workspace)
    return table, landing / "monday.parquet"


@pytest.mark.cases(151)
@pytest.mark.parametrize("name", [NAME, "sales.renamed"])
@pytest.mark.parametrize("how", ["location", "write.data.path"])
def test_an_automatic_expiry_leaves_a_place_that_the_table_moved_to(workspace: Workspace, how: str, name: str) -> None:
    """Files in a place that the table came to later, under whatever name, stay until a person confirms the place."""
    table, victim = grabbed(workspace, how, name)
    outcome = automatic_expiry(workspace, name)
    assert outcome.state is OperationState.COMMITTED, outcome
    assert victim.exists()
    assert any("icewright adopt" in note for note in outcome.notes), outcome
    adopt(workspace.app.runtime, ref(name))
    table.add_files([f"file://{victim}"])
    table.overwrite(ROWS)
    later(workspace)
    assert automatic_expiry(workspace, name).state is OperationState.COMMITTED
    assert not victim.exists()


@pytest.mark.cases(109)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_metadata_file_that_cannot_be_read_refuses_and_can_be_adopted(
    workspace: Workspace, operation: Operation
) -> None:
    """It may be another table's, so nothing goes before a person says that it is nobody's; no job fails by it."""
    folder = workspace.table()
    workspace.plant(folder, "metadata/00099-x.metadata.json", content=b"\x28\xb5\x2f\xfd zstd", days=1)
    workspace.refused(operation, "[foreign_metadata]", "icewright adopt")
    adopt(workspace.app.runtime, ref(NAME))
    assert workspace.run(operation).state is OperationState.COMMITTED


def test_a_log_that_names_a_place_of_storage_that_cannot_be_listed(workspace: Workspace) -> None:
    """A table that came from a cluster that is gone is expired as any other."""
    workspace.table()
    left = {"metadata-file": "hdfs://gone/wh/orders/metadata/00000-x.metadata.json", "timestamp-ms": 1}
    edit(workspace.metadata_file(), lambda document: document.update({"metadata-log": [left]}))
    assert workspace.run(EXPIRE).state is OperationState.COMMITTED


@pytest.mark.cases(95, 103)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
def test_a_version_of_an_unseen_catalog_that_comes_while_files_wait(workspace: Workspace, operation: Operation) -> None:
    """Somebody restores the table elsewhere and writes it before the delay is over: what waits is not deleted."""
    folder = workspace.table()
    workspace.plant(folder, "data/orphan.parquet")
    version = workspace.metadata().metadata_location
    job = workspace.job(operation, deletion__delay_hours=24).job_id or ""
    files = workspace.files()
    workspace.icebergs["pond"].register_table("sales.moved", version).append(ROWS)
    workspace.unregister("sales.moved", "pond")
    assert any("[successor]" in line for line in settled(workspace, hours=30))
    assert files <= workspace.files()
    assert states(workspace, job) >= {LedgerState.PLANNED}


@pytest.mark.cases(106)
def test_a_dropped_table_whose_metadata_lies_elsewhere_still_has_its_place(workspace: Workspace) -> None:
    """An unseen catalog may name it: its metadata is there, although the place itself does not tell of it."""
    catalog, place = workspace.icebergs["lake"], f"file://{workspace.home}/warehouse/sales/orders"
    properties = {"write.metadata.path": f"file://{workspace.home}/elsewhere"}
    catalog.create_table("sales.gone", ROWS.schema, location=place, properties=properties).append(ROWS)
    workspace.run(ORPHANS, name="sales.gone", dry_run=True)
    workspace.unregister("sales.gone")
    catalog.create_table(NAME, ROWS.schema, location=place).append(ROWS)
    workspace.plant(Path(local_path(place) or ""), "data/orphan.parquet")
    later(workspace)
    workspace.refused(ORPHANS, "which no catalog names any more", "[shared_location]")


@pytest.mark.cases(103)
def test_a_table_that_comes_to_lie_in_the_place_while_orphans_wait(workspace: Workspace) -> None:
    """What was an orphan when it was planned may be the new table's: the whole deletion waits for a person."""
    folder = workspace.table()
    orphans = workspace.plant(folder, "data/orphan.parquet")
    workspace.job(ORPHANS, deletion__delay_hours=24)
    workspace.table("in.ner", place="warehouse/sales/orders")
    assert any("[shared_location]" in line for line in settled(workspace, hours=30))
    assert all(path.exists() for path in orphans)


@pytest.mark.cases(103)
def test_a_reader_that_pins_a_snapshot_before_the_commit_keeps_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pins are read once more right before the commit, and the expiry is planned anew around the pinned one."""
    workspace.table()
    real, oldest = ExpireInService.planned, workspace.metadata().snapshots[0].snapshot_id
    pinned: list[int] = []

    def planned(expiry: ExpireInService, *arguments: Any, **options: Any) -> PlannedExpiry:
        found = real(expiry, *arguments, **options)
        if not pinned:
            pinned.append(oldest)
            pin(workspace, oldest)
        return found

    monkeypatch.setattr(ExpireInService, "planned", planned)
    workspace.run(EXPIRE)
    assert oldest in workspace.metadata().by_id
    assert str(oldest) in workspace.read()
    assert pinned


@pytest.mark.cases(67)
def test_a_file_that_is_committed_during_the_listing_is_found_by_no_dry_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is read after its folder was listed, so that what came in between counts as reached."""
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    table.append(ROWS)
    stray = Path(local_path(table.location()) or "") / "data" / "stray.parquet"
    pq.write_table(ROWS, stray)
    later(workspace)
    workspace.finds([stray])
    real = IcebergFiles.listing

    def listing(files: IcebergFiles, *arguments: Any) -> Iterator[pa.RecordBatch]:
        batches = list(real(files, *arguments))
        table.add_files([f"file://{stray}"])
        return iter(batches)

    monkeypatch.setattr(IcebergFiles, "listing", listing)
    workspace.finds(())


@pytest.mark.cases(95)
def test_an_older_version_that_was_registered_anew_is_adopted(workspace: Workspace) -> None:
    """The table was rolled back by registering an old version: refused, and after a person's word the rest goes."""
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    table.append(ROWS)
    old = table.metadata_location
    table.append(ROWS)
    table.append(ROWS)
    workspace.icebergs["lake"].drop_table(NAME)
    table = workspace.icebergs["lake"].register_table(NAME, old)
    table.append(ROWS)
    later(workspace)
    workspace.refused(ORPHANS, "[successor]", "icewright adopt")
    adopt(workspace.app.runtime, ref(NAME))
    done = workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert (done.state, len(done.files)) == (OperationState.COMMITTED, 8), done
    assert len(reads(table)) == 1 + 2


def test_an_undo_misses_a_file_that_the_expiry_had_left(workspace: Workspace) -> None:
    """Another tool has deleted what the returning snapshot shared with later ones: it would not be readable."""
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    later(workspace)
    job = expired(workspace)
    table = workspace.icebergs["lake"].load_table(NAME)
    shared = [Path(local_path(path) or "") for path in table.inspect.files()["file_path"].to_pylist()]
    table.overwrite(ROWS)
    gone = [s.snapshot_id for s in table.snapshots()[:-1]]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    for path in shared:
        path.unlink()
    before = workspace.metadata()
    with pytest.raises(Refused, match=r"cannot be undone.*cannot be read"):
        undo(workspace.app.runtime, job)
    assert workspace.metadata() == before


def test_deletions_of_a_table_that_is_never_read_again_end_after_a_week(workspace: Workspace) -> None:
    """The table was renamed and nobody reads it: its deletions wait for seven days more, and then its files stay."""
    history(workspace)
    job = expired(workspace)
    workspace.icebergs["lake"].rename_table(NAME, "sales.renamed")
    files = workspace.files()
    settled(workspace, hours=7 * 24 + 23)
    assert states(workspace, job) == {LedgerState.PLANNED}
    settled(workspace, hours=1)
    assert states(workspace, job) == {LedgerState.KEPT}
    assert files <= workspace.files()
    assert reads(workspace.icebergs["lake"].load_table("sales.renamed"))


def test_deletions_of_a_dropped_table_end_with_the_next_listing(workspace: Workspace) -> None:
    """Every table of the catalog was read, and none is the one of the job: its files stay."""
    history(workspace)
    job = expired(workspace)
    workspace.unregister(NAME)
    workspace.detect()
    settled(workspace, hours=30)
    assert states(workspace, job) == {LedgerState.KEPT}
