"""The contract of every catalog: it lists and loads tables, and commits to exactly the base of a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.errors import CommitConflict, Refused, TableNotFound
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotRef, TableMetadata, TableRef
from icewright.ports import AddSnapshot, Catalog, Pointer, RemoveSnapshots, RestoreSnapshots, SetRefs, SetStatistics
from icewright.testing.contracts.cases import concurrently

MakeTable = Callable[[str, int], TableMetadata]  # dotted name without the catalog's, and number of snapshots


def snapshot_json(snapshot: Snapshot, **fields: Any) -> dict[str, Any]:
    """Return a snapshot as the JSON of the spec, with other values for some fields."""
    parent = {} if snapshot.parent_id is None else {"parent-snapshot-id": snapshot.parent_id}
    return {
        "snapshot-id": snapshot.snapshot_id,
        **parent,
        "sequence-number": snapshot.sequence_number,
        "timestamp-ms": round(snapshot.timestamp.timestamp() * 1000),
        "manifest-list": snapshot.manifest_list,
        "summary": dict(snapshot.summary),
        "schema-id": 0,
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }


def addition(base: TableMetadata, snapshot_id: int = 4711) -> AddSnapshot:
    """Return the change that adds a snapshot to main which reads as the current one does."""
    current = base.current_snapshot
    assert current is not None
    summary = {**current.summary, "operation": "replace"}
    place = {"parent_snapshot_id": current.snapshot_id, "sequence_number": base.last_sequence_number + 1}
    return AddSnapshot(snapshot_json(current, snapshot_id=snapshot_id, summary=summary, **place), MAIN)


def removal(base: TableMetadata, *indexes: int) -> RemoveSnapshots:
    """Return the change that removes the snapshots at these places of the history."""
    return RemoveSnapshots(frozenset(base.snapshots[index].snapshot_id for index in indexes), frozenset())


class CatalogTests:
    """Every test of a catalog: a subclass defines the fixtures `catalog` and `make_table`."""

    removes = True  # False: snapshots are removed by vacuum alone, as in a catalog with branches

    @pytest.fixture
    def catalog(self) -> Catalog:
        """Return an empty catalog, for one test."""
        raise NotImplementedError

    @pytest.fixture
    def make_table(self) -> MakeTable:
        """Return a function that makes a table in the catalog and returns the metadata as loaded.

        Its snapshots are appends to main, each older than now, oldest first.
        """
        raise NotImplementedError

    def test_an_empty_catalog_lists_nothing(self, catalog: Catalog) -> None:
        """A catalog without tables has no pointers, and that is no error."""
        assert list(catalog.pointers()) == []

    def test_tables_are_listed_with_their_current_metadata(self, catalog: Catalog, make_table: MakeTable) -> None:
        """Each table has one pointer, and loading the table reads that metadata file."""
        tables = [make_table(name, 1) for name in ("sales.orders", "sales.payments")]
        listed = sorted(catalog.pointers(), key=lambda pointer: pointer.ref)
        assert listed == [Pointer(table.ref, table.metadata_location) for table in tables]
        assert [catalog.load(pointer.ref) for pointer in listed] == tables

    @pytest.mark.parametrize("parts", [("sales", "order"), ("sale", "orders"), ("sales", "orders", "orders")])
    def test_a_missing_table_is_not_found(
        self, catalog: Catalog, make_table: MakeTable, parts: tuple[str, ...]
    ) -> None:
        """The error names the table that was asked for."""
        make_table("sales.orders", 1)
        ref = TableRef(catalog.name, parts[:-1], parts[-1])
        with pytest.raises(TableNotFound) as caught:
            catalog.load(ref)
        assert str(ref) in str(caught.value)

    def test_an_added_snapshot_becomes_current(self, catalog: Catalog, make_table: MakeTable) -> None:
        """The commit returns what loading returns: the new head of main, on top of the same history."""
        base = make_table("sales.orders", 3)
        after = catalog.commit(base, addition(base))
        assert after.metadata_location == catalog.load(base.ref).metadata_location
        assert after.current_snapshot_id == 4711
        assert [s.snapshot_id for s in after.snapshots] == [*(s.snapshot_id for s in base.snapshots), 4711]
        assert after.last_sequence_number == base.last_sequence_number + 1

    def test_a_snapshot_of_a_branch_leaves_main_alone(self, catalog: Catalog, make_table: MakeTable) -> None:
        """The snapshot becomes the head of the branch, whose retention stays, and main does not move."""
        base = make_table("sales.orders", 2)
        branch = SnapshotRef("tried", RefKind.BRANCH, base.snapshots[0].snapshot_id, max_ref_age=timedelta(days=1))
        made = catalog.commit(base, SetRefs((branch,)))
        catalog.commit(made, replace(addition(made), branch="tried"))
        after = catalog.load(base.ref)
        assert set(after.refs) == {*base.refs, replace(branch, snapshot_id=4711)}
        assert (after.current_snapshot_id, 4711 in after.by_id) == (base.current_snapshot_id, True)

    def test_the_metadata_log_ends_with_the_replaced_file(self, catalog: Catalog, make_table: MakeTable) -> None:
        """Each commit writes a new metadata file, and logs the one that it replaced."""
        base = make_table("sales.orders", 2)
        after = catalog.commit(base, addition(base))
        assert after.metadata_location != base.metadata_location
        assert after.metadata_log[-1] == base.metadata_location

    def test_of_two_commits_to_one_base_the_second_conflicts(self, catalog: Catalog, make_table: MakeTable) -> None:
        """A commit to metadata that is not current any more is refused, and changes nothing."""
        base = make_table("sales.orders", 2)
        after = catalog.commit(base, addition(base, 4711))
        with pytest.raises(CommitConflict) as caught:
            catalog.commit(base, addition(base, 4712))
        assert str(base.ref) in str(caught.value)
        assert catalog.load(base.ref).metadata_location == after.metadata_location

    def test_one_of_concurrent_commits_lands(self, catalog: Catalog, make_table: MakeTable) -> None:
        """When several commits to one base run at the same time, one lands and the others conflict."""
        base = make_table("sales.orders", 2)

        def commit(number: int) -> TableMetadata | None:
            try:
                return catalog.commit(base, addition(base, 5000 + number))
            except CommitConflict:
                return None

        landed = [after for after in concurrently(8, commit) if after is not None]
        assert [after.metadata_location for after in landed] == [catalog.load(base.ref).metadata_location]

    def test_removed_snapshots_are_gone(self, catalog: Catalog, make_table: MakeTable) -> None:
        """The other snapshots stay as they were, and the current one stays current."""
        if not self.removes:
            pytest.skip("this catalog leaves the removal of snapshots to vacuum")
        base = make_table("sales.orders", 4)
        after = catalog.commit(base, removal(base, 0, 2))
        assert after.metadata_location == catalog.load(base.ref).metadata_location
        assert [s.snapshot_id for s in after.snapshots] == [base.snapshots[i].snapshot_id for i in (1, 3)]
        assert after.current_snapshot_id == base.current_snapshot_id

    def test_the_head_of_a_branch_is_not_removed(self, catalog: Catalog, make_table: MakeTable) -> None:
        """A removal of a snapshot that a ref names is refused with the name of the ref, and changes nothing."""
        if not self.removes:
            pytest.skip("this catalog leaves the removal of snapshots to vacuum")
        base = make_table("sales.orders", 2)
        with pytest.raises(Refused, match=MAIN):
            catalog.commit(base, removal(base, 0, 1))
        assert catalog.load(base.ref) == base

    def test_removed_snapshots_can_be_put_back_once(self, catalog: Catalog, make_table: MakeTable) -> None:
        """A restoring commit adds what is missing; repeated, it has nothing to change and returns its base."""
        if not self.removes:
            pytest.skip("this catalog leaves the removal of snapshots to vacuum")
        base = make_table("sales.orders", 3)
        undo = RestoreSnapshots(base.table_uuid, (snapshot_json(base.snapshots[0]),))
        expired = catalog.commit(base, removal(base, 0))
        assert catalog.unrestorable(expired, undo) == ""
        after = catalog.commit(expired, undo)
        assert after.by_id.keys() == base.by_id.keys()
        assert after.current_snapshot_id == base.current_snapshot_id
        assert catalog.commit(after, undo) == after
        assert catalog.load(base.ref).metadata_location == after.metadata_location

    def test_refs_are_set_and_removed_in_one_commit(self, catalog: Catalog, make_table: MakeTable) -> None:
        """Main returns to an older snapshot and the newer one gets a tag; both read back exactly, and again apart."""
        base = make_table("sales.orders", 3)
        age = timedelta(milliseconds=2**53 - 1)
        main = SnapshotRef(MAIN, RefKind.BRANCH, base.snapshots[0].snapshot_id)
        tag = SnapshotRef("before", RefKind.TAG, base.snapshots[2].snapshot_id, max_ref_age=age)
        after = catalog.commit(base, SetRefs((main, tag)))
        loaded = catalog.load(base.ref)
        assert (loaded.metadata_location, set(loaded.refs)) == (after.metadata_location, set(after.refs))
        assert (set(after.refs), after.current_snapshot_id) == ({main, tag}, main.snapshot_id)
        assert after.by_id.keys() == base.by_id.keys()
        back = catalog.commit(after, SetRefs((replace(main, snapshot_id=tag.snapshot_id),), frozenset({"before"})))
        assert (back.refs, back.current_snapshot_id) == (base.refs, base.current_snapshot_id)

    def test_refs_are_set_on_the_base_alone(self, catalog: Catalog, make_table: MakeTable) -> None:
        """After another commit the change conflicts; a snapshot that is not there, and main's removal, are refused."""
        base = make_table("sales.orders", 2)
        tag = SnapshotRef("here", RefKind.TAG, base.snapshots[0].snapshot_id)
        for refs, removed in (((replace(tag, snapshot_id=4711),), ()), ((), (MAIN,))):
            with pytest.raises(Refused):
                catalog.commit(base, SetRefs(refs, frozenset(removed)))
        assert catalog.load(base.ref) == base
        after = catalog.commit(base, addition(base))
        with pytest.raises(CommitConflict):
            catalog.commit(base, SetRefs((tag,)))
        assert catalog.load(base.ref).refs == after.refs
        tagged = catalog.commit(after, SetRefs((tag,)))
        assert catalog.commit(tagged, SetRefs((tag,), frozenset({"nowhere"}))).refs == tagged.refs

    def test_statistics_are_set_on_the_base_alone(self, catalog: Catalog, make_table: MakeTable) -> None:
        """A snapshot gets both kinds of files, then others in their place, and only on the base."""
        base = make_table("sales.orders", 2)
        old, current = (snapshot.snapshot_id for snapshot in base.snapshots)
        with pytest.raises(Refused):
            catalog.commit(base, statistics(base, 4711, "a"))
        after = catalog.commit(base, statistics(base, old, "a"))
        renewed = catalog.commit(after, statistics(base, old, "b"))
        both = catalog.commit(renewed, statistics(base, current, "c"))
        for found in (both, catalog.load(base.ref)):
            for files, ending in ((found.statistics, "stats"), (found.partition_statistics, "parquet")):
                named = {(file.snapshot_id, file.path.rpartition("/")[2], file.length) for file in files}
                assert named == {(old, f"b.{ending}", 10), (current, f"c.{ending}", 10)}
        assert (both.refs, both.snapshots) == (base.refs, base.snapshots)
        catalog.commit(both, addition(both))
        with pytest.raises(CommitConflict):
            catalog.commit(both, statistics(base, current, "d"))


def statistics(base: TableMetadata, snapshot_id: int, name: str) -> SetStatistics:
    """Return the change that gives a snapshot a file of each kind."""
    about = {"snapshot-id": snapshot_id, "file-size-in-bytes": 10}
    path = f"{base.location}/metadata/{name}"
    blob = {"type": "apache-datasketches-theta-v1", "snapshot-id": snapshot_id, "sequence-number": 1, "fields": [1]}
    sketches = {"statistics-path": f"{path}.stats", "file-footer-size-in-bytes": 5}
    return SetStatistics(
        snapshot_id,
        {**about, **sketches, "blob-metadata": [{**blob, "properties": {"ndv": "1"}}]},
        {**about, "statistics-path": f"{path}.parquet"},
    )
