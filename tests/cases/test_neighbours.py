"""Neighbours in further shapes: places that a writer grabs, places that a table has left, versions that come late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
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
from icewright.core.table import Snapshot, TableMetadata
from icewright.flow.adopt import adopt
from icewright.flow.cycle import detect_and_evaluate
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.undo import undo
from icewright.ports import LedgerState
from icewright.ports.work import progress
from tests.cases.test_open_world import ROWS, elsewhere, later, pin, quickly_located, reads
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


def test_a_log_that_names_what_cannot_be_listed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that came from a cluster that is gone is expired as any other; a bare name is looked for on no disk."""
    workspace.table()
    left = [
        {"metadata-file": f"{folder}00000-x.metadata.json", "timestamp-ms": 1}
        for folder in ("hdfs://gone/wh/orders/metadata/", "")
    ]
    edit(workspace.metadata_file(), lambda document: document.update({"metadata-log": left}))
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("all disks are listed") if path == "/" else real(path))
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
    workspace.refused(ORPHANS, "which no catalog names any more", "lets this one have the place", "[shared_location]")


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


def test_a_statistics_file_that_is_live_by_other_means_stays(workspace: Workspace) -> None:
    """A file that an expired snapshot has as statistics may be a retained one's data: whoever reads it keeps it."""
    workspace.table()
    (live,) = workspace.icebergs["lake"].load_table(NAME).inspect.files()["file_path"].to_pylist()
    names = {"snapshot-id": workspace.metadata().snapshots[0].snapshot_id, "statistics-path": live}
    sizes = {"file-size-in-bytes": Path(local_path(live) or "").stat().st_size, "file-footer-size-in-bytes": 1}
    statistics = [{**names, **sizes, "blob-metadata": []}]
    edit(workspace.metadata_file(), lambda document: document.update(statistics=statistics))
    assert workspace.run(EXPIRE).metrics["snapshots_expired"] == 3
    assert workspace.read()


@pytest.mark.cases(99)
def test_a_borrower_that_went_on_before_it_was_dropped(workspace: Workspace) -> None:
    """A version newer than the last known one lies there: what it took in since is in no catalog, and stays."""
    catalog = workspace.icebergs["lake"]
    source, other = (catalog.create_table(name, ROWS.schema) for name in ("sales.source", "sales.borrower"))
    source.append(ROWS)
    source.append(ROWS)
    lent = source.inspect.files()["file_path"].to_pylist()
    other.add_files(lent[:1])
    workspace.run(ORPHANS, name="sales.source", dry_run=True)
    other.add_files(lent[1:])
    workspace.unregister("sales.borrower")
    source.overwrite(ROWS)
    later(workspace)
    done = workspace.run(EXPIRE, name="sales.source")
    assert any("is a newer version of lake.sales.borrower" in note for note in done.notes), done
    assert len(reads(other, registered=False)) == 3


@pytest.mark.cases(99)
def test_what_a_dropped_borrower_had_let_go_is_deleted(workspace: Workspace) -> None:
    """No version of it follows the last known one, and that one does not read the file any more."""
    catalog = workspace.icebergs["lake"]
    source, other = (catalog.create_table(name, ROWS.schema) for name in ("sales.source", "sales.borrower"))
    source.append(ROWS)
    (lent,) = source.inspect.files()["file_path"].to_pylist()
    other.add_files([lent])
    workspace.run(ORPHANS, name="sales.source", dry_run=True)
    other.overwrite(ROWS)
    other.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in other.snapshots()[:-1]]).commit()
    source.overwrite(ROWS)
    workspace.run(ORPHANS, name="sales.source", dry_run=True)
    workspace.unregister("sales.borrower")
    later(workspace)
    workspace.run(EXPIRE, name="sales.source")
    assert not Path(local_path(lent) or "").exists()


@pytest.mark.cases(99)
def test_a_borrower_of_many_files_is_waited_for(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a table takes as long as it takes, while file after file is read: only one that hangs is given up."""
    catalog = workspace.icebergs["lake"]
    source, other = (catalog.create_table(name, ROWS.schema) for name in ("sales.source", "sales.borrower"))
    source.append(ROWS)
    other.add_files(source.inspect.files()["file_path"].to_pylist())
    source.overwrite(ROWS)
    later(workspace)
    real = IcebergFiles.outside

    def slowly(files: IcebergFiles, metadata: TableMetadata, snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
        for _ in range(22 if metadata.ref.name == "borrower" else 0):
            time.sleep(0.05)
            progress()
        return real(files, metadata, snapshots)

    monkeypatch.setattr(IcebergFiles, "outside", slowly)
    monkeypatch.setattr("icewright.adapters.engines.service.registry._READ_LIMIT", timedelta(seconds=1))
    workspace.run(EXPIRE, name="sales.source")
    assert reads(other)


def forked(workspace: Workspace, commits: int) -> tuple[Table, Table]:
    """A table that keeps two former versions, and its fork in an unseen catalog, whose first version is forgotten."""
    properties = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema, properties=properties)
    table.append(ROWS)
    fork = workspace.icebergs["pond"].register_table("sales.moved", table.metadata_location)
    with fork.transaction() as transaction:
        transaction.remove_properties("write.metadata.delete-after-commit.enabled")
    for _ in range(commits):
        table.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    return table, fork


@pytest.mark.cases(95)
def test_a_fork_whose_numbers_are_far_behind(workspace: Workspace) -> None:
    """It commits between our last two versions: its file is older than our newest one, and its number long gone."""
    table, fork = forked(workspace, 5)
    location = fork.metadata_location
    workspace.icebergs["pond"].register_table("sales.moved", location).append(ROWS)
    fork = workspace.icebergs["pond"].load_table("sales.moved")
    workspace.unregister("sales.moved", "pond")
    table.overwrite(ROWS)
    workspace.clock.advance(days=9)
    workspace.refused(EXPIRE, "[successor]")
    assert reads(fork, registered=False)


@pytest.mark.cases(95)
def test_a_fork_that_is_older_than_the_log(workspace: Workspace) -> None:
    """It ended before the oldest version that our log names: its numbers, which our own old files bear too, tell."""
    properties = {"write.metadata.previous-versions-max": "1"}
    table = workspace.icebergs["lake"].create_table(NAME, ROWS.schema, properties=properties)
    table.append(ROWS)
    fork = elsewhere(workspace)
    for _ in range(2):  # one alone could be a commit that lost a race
        fork.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    for _ in range(4):
        table.overwrite(ROWS)
    workspace.clock.advance(days=9)
    workspace.refused(EXPIRE, "[successor]")
    assert reads(fork, registered=False)


@pytest.mark.cases(95)
@pytest.mark.parametrize("how", ["location", "write.metadata.path"])
def test_a_fork_in_a_metadata_folder_that_the_table_has_left(workspace: Workspace, how: str) -> None:
    """An unseen catalog commits where the table's metadata lay before it moved, which no log leads to any more."""
    lake, pond, left = *workspace.icebergs.values(), f"file://{workspace.home}/left"
    places: dict[str, Any] = {"location": left} if how == "location" else {"properties": {how: left}}
    table = lake.create_table(NAME, ROWS.schema, **places)
    table.append(ROWS)
    detect_and_evaluate(workspace.app.runtime, ["lake"], force=True)
    fork = elsewhere(workspace)
    workspace.unregister("sales.moved", "pond")
    quickly_located(table, workspace.home / "warehouse" / "there")
    with table.transaction() as transaction:
        transaction.remove_properties(*table.properties)
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    for _ in range(2):
        table.overwrite(ROWS)
    workspace.register("sales.moved", fork.metadata_location, "pond")
    fork = pond.load_table("sales.moved")
    for _ in range(2):  # one alone could be a commit that lost a race
        fork.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    later(workspace)
    for operation in (EXPIRE, ORPHANS):
        workspace.refused(operation, "[successor]", left, "icewright adopt")
    assert reads(fork, registered=False)
    adopt(workspace.app.runtime, ref(NAME))
    assert workspace.run(EXPIRE).state is OperationState.COMMITTED


@pytest.mark.cases(95)
def test_a_fork_that_counts_its_versions_anew(workspace: Workspace) -> None:
    """A catalog may number versions as it likes: one that is as new as those of our log is looked at."""
    table, _ = forked(workspace, 5)
    fork = workspace.icebergs["pond"].register_table("sales.anew", table.metadata_location)
    fork.append(ROWS)
    path = Path(local_path(fork.metadata_location) or "")
    edit(path, lambda document: document.update({"last-updated-ms": document["last-updated-ms"] - 3_600_000}))
    path.rename(path.with_name("00000-anew.metadata.json"))
    workspace.unregister("sales.anew", "pond")
    table.overwrite(ROWS)
    table.append(ROWS)
    for left in path.parent.glob("0000[0-4]-*.metadata.json"):
        if "anew" not in left.name:
            left.unlink()
    workspace.clock.advance(days=9)
    workspace.refused(EXPIRE, "00000-anew", "[successor]")


@pytest.mark.cases(95)
def test_a_successor_that_spells_the_uuid_in_other_case(workspace: Workspace) -> None:
    """Some writers spell uuids in upper case, others anew in lower case: both are one table."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200, 100])
    workspace.publish(craft, lambda document: document.update({"table-uuid": document["table-uuid"].upper()}))
    successor = elsewhere(workspace)
    successor.append(ROWS)
    successor.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    workspace.grow_old(workspace.home)
    workspace.refused(EXPIRE, "[successor]")


@pytest.mark.cases(106)
def test_an_adoption_holds_for_what_was_shown(workspace: Workspace) -> None:
    """Another catalog commits while a person reads the list: its version is not taken over, and stops deletions."""
    folder = workspace.table()
    workspace.plant(folder, "metadata/00099-x.metadata.json", content=b"\x28\xb5\x2f\xfd zstd", days=1)
    shown = adopt(workspace.app.runtime, ref(NAME), dry_run=True)
    successor = elsewhere(workspace)
    successor.append(ROWS)
    successor.append(ROWS)
    workspace.unregister("sales.moved", "pond")
    assert adopt(workspace.app.runtime, ref(NAME), shown=shown) == shown
    workspace.grow_old(workspace.home)
    workspace.refused(EXPIRE, "[successor]")


@pytest.mark.cases(106)
def test_a_table_made_anew_under_the_names_of_its_old_files(workspace: Workspace) -> None:
    """Some catalogs count versions (`v1.metadata.json`): the new table is read, and not the one that had the name."""
    location = "file://{}/metadata/v1.metadata.json"
    for salt in ("old", "new"):
        craft = workspace.craft(salt=salt)
        workspace.commits(craft, [400, 300], replacing=False)
        path = craft.publish(register=False)
        path.rename(path.with_name("v1.metadata.json"))
        workspace.grow_old(craft.folder, days=40 if salt == "old" else 30)
        workspace.unregister(NAME)
        workspace.register(NAME, location.format(craft.folder))
        before = workspace.read()
        left = workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1)
        assert left.state is OperationState.COMMITTED, left
        assert workspace.read() == before
        if salt == "old":
            for old in workspace.files(craft.folder):
                old.unlink()


@pytest.mark.cases(63)
@pytest.mark.parametrize("version", ["first", "last"])
def test_tables_without_a_uuid_are_told_apart_by_their_history(workspace: Workspace, version: str) -> None:
    """Format v1 may leave the uuid out: old versions of the table itself are orphans, and another table's are not."""
    location = f"file://{workspace.home}/warehouse/sales/orders"
    own, others = list[Path](), list[Path]()
    for name, paths in ((NAME, own), ("sales.other", others)):
        table = workspace.icebergs["lake"].create_table(name, ROWS.schema, location, properties={"format-version": "1"})
        for _ in range(4):
            paths.append(Path(local_path(table.metadata_location) or ""))
            table.append(ROWS)
        paths.append(Path(local_path(table.metadata_location) or ""))
        for path in paths:
            edit(path, lambda document: document.pop("table-uuid"))
        edit(paths[-1], lambda document: document.update({"metadata-log": document["metadata-log"][-1:]}))
    workspace.unregister("sales.other")
    left = others.pop(0 if version == "first" else -1)
    for path in others:
        path.unlink()
    workspace.grow_old(workspace.home)
    workspace.refused(ORPHANS, left.name, "[foreign_metadata]", remove_orphans__max_delete_ratio=1)
    left.unlink()
    assert workspace.run(ORPHANS, remove_orphans__max_delete_ratio=1).state is OperationState.COMMITTED
    assert [path.exists() for path in own] == [False, False, False, True, True]
    assert reads(workspace.icebergs["lake"].load_table(NAME))
