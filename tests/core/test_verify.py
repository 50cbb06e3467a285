"""Invariants of commits: each is broken once, and named."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from icewright.core.table import MAIN, PartitionFacts, RefKind, Snapshot, SnapshotRef, TableMetadata
from icewright.core.verify import (
    expiry_violations,
    identity_violations,
    ref_violations,
    restored_as_it_was,
    rewrite_violations,
    snapshot_of,
    total_violations,
)
from icewright.testing import NOW, facts, metadata, partition, snapshot, spec

TAG = SnapshotRef("v1", RefKind.TAG, 2)
OLD = SnapshotRef("old", RefKind.TAG, 1)
BEFORE = metadata([40, 30, 20], refs=[TAG, OLD])
PLANNED = (1,), ("old",)  # snapshots and refs
AFTER = replace(
    BEFORE,
    snapshots=BEFORE.snapshots[1:],
    refs=tuple(r for r in BEFORE.refs if r != OLD),
    metadata_log=(BEFORE.metadata_location,),
)

IDENTITY = [
    ({"table_uuid": "other"}, "table uuid changed from"),
    ({"location": "s3://elsewhere"}, "location changed from"),
    ({"schema": {"fields": []}}, "the current schema changed"),
    ({"specs": (spec(1, id="identity"),)}, "a partition spec is gone"),
]


@pytest.mark.parametrize(("change", "fault"), IDENTITY)
def test_identity(change: dict[str, Any], fault: str) -> None:
    """No maintenance changes uuid, location, schema or specs."""
    (broken,) = identity_violations(BEFORE, replace(BEFORE, **change))
    assert broken.startswith(fault)


def test_what_may_change() -> None:
    """A spec more, a property more and a later commit are no faults."""
    later = replace(BEFORE, specs=(*BEFORE.specs, spec(1, id="identity")), properties={"a": "b"}, last_updated=NOW)
    assert identity_violations(BEFORE, later) == []


def test_specs_that_nothing_uses_may_go() -> None:
    """A spec that the caller names as unused may be gone; any other may not, an expiry's commit included."""
    unused = spec(1, id="identity")
    before = replace(BEFORE, specs=(*BEFORE.specs, unused))
    assert identity_violations(before, BEFORE, {1}) == expiry_violations(before, AFTER, *PLANNED, {1}) == []
    assert (
        identity_violations(before, BEFORE, {0})
        == expiry_violations(before, AFTER, *PLANNED, {0})
        == ["a partition spec is gone"]
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        *IDENTITY,
        ({"current_snapshot_id": 2}, "the current snapshot changed"),
        ({"refs": tuple(r for r in AFTER.refs if r != TAG)}, "ref v1 changed"),
        ({"refs": (AFTER.refs[0], replace(TAG, snapshot_id=3))}, "ref v1 changed"),
        ({"refs": (replace(AFTER.refs[0], min_snapshots_to_keep=1), TAG)}, "ref main changed"),
        ({"snapshots": AFTER.snapshots[1:]}, "snapshot 2 is gone though not planned"),
        ({"snapshots": BEFORE.snapshots}, "snapshot 1 is still there"),
        ({"metadata_log": ("s3://other.json",)}, "the commit replaced s3://other.json, not "),
        ({"metadata_log": ()}, "the commit replaced nothing known, not "),
    ],
)
@pytest.mark.cases(6, 11)
def test_expiry(change: dict[str, Any], fault: str) -> None:
    """An expiry takes the planned snapshots and refs, all of them, and nothing else."""
    (broken,) = expiry_violations(BEFORE, replace(AFTER, **change), *PLANNED)
    assert broken.startswith(fault)


def test_an_expiry_as_planned() -> None:
    """What was planned breaks nothing, nor does a ref that somebody else made meanwhile."""
    assert expiry_violations(BEFORE, AFTER, *PLANNED) == []
    assert (
        expiry_violations(BEFORE, replace(AFTER, refs=(*AFTER.refs, SnapshotRef("new", RefKind.TAG, 3))), *PLANNED)
        == []
    )


@pytest.mark.cases(83)
def test_refs_of_a_rewrite() -> None:
    """A rewrite of main moves main; a tag that moves or goes is named."""
    moved = replace(BEFORE, refs=tuple(replace(r, snapshot_id=9) if r.name == MAIN else r for r in BEFORE.refs))
    assert ref_violations(BEFORE, moved, [MAIN]) == []
    assert ref_violations(BEFORE, moved, []) == ["ref main changed"]
    assert ref_violations(BEFORE, replace(moved, refs=()), [MAIN]) == ["ref old changed", "ref v1 changed"]


TOTALS = {
    "total-records": "10",
    "total-data-files": "2",
    "total-delete-files": "1",
    "total-position-deletes": "3",
    "total-equality-deletes": "0",
}


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.cases(84)
def test_totals(name: str) -> None:
    """A manifest rewrite changes no total."""
    before = snapshot(1, summary=TOTALS)
    assert total_violations(before, snapshot(2, summary={**TOTALS, "manifests-created": "1"})) == []
    broken = total_violations(before, snapshot(2, summary={**TOTALS, name: "9"}))
    assert broken == [f"{name} changed from {TOTALS[name]} to 9"]


def test_totals_that_one_side_leaves_out() -> None:
    """Only what both snapshots state can be compared."""
    assert total_violations(snapshot(1, summary=TOTALS), snapshot(2, summary={})) == []
    assert total_violations(snapshot(1, summary={}), snapshot(2, summary=TOTALS)) == []


def _rewritten(*rewrites: tuple[int, int], deletes: int | str = 0) -> TableMetadata:
    """The default table, after a writer's commit and rewrites that each took and wrote so many records."""
    base = metadata()
    summary = {"operation": "delete", "added-delete-files": str(deletes)}
    made = [snapshot(3, age=1, parent_id=2, operation="delete", summary=summary)]
    for number, (removed, added) in enumerate(rewrites, 4):
        counts = {"deleted-records": str(removed), "added-records": str(added)}
        made.append(snapshot(number, parent_id=number - 1, operation="replace", summary=counts))
    return replace(base, snapshots=(*base.snapshots, *made), current_snapshot_id=made[-1].snapshot_id)


PLAIN = partition()
POSITIONS = partition(position_delete_files=1, deleted_rows=10)
EQUALITY = partition(equality_delete_files=1, deleted_rows=10)
DANGLING_EQUALITY = partition(dangling_equality_deletes=1)


@pytest.mark.parametrize(
    ("partition_before", "after", "fault"),
    [
        (PLAIN, _rewritten((100, 100)), None),
        (PLAIN, _rewritten((0, 0)), None),
        (PLAIN, _rewritten((100, 101)), "wrote 101 records for 100"),
        (PLAIN, _rewritten((100, 99)), "lost 1 of 100 records"),
        (PLAIN, _rewritten((100, 99), deletes=1), None),
        (PLAIN, _rewritten((100, 99), deletes="many"), None),
        (PLAIN, _rewritten((100, 99), deletes="9" * 5_000), None),
        (POSITIONS, _rewritten((100, 90)), None),
        (POSITIONS, _rewritten((100, 89)), "lost 11 records, deletes name 10"),
        (POSITIONS, _rewritten((100, 101)), "wrote 101 records for 100"),
        (POSITIONS, _rewritten((100, 89), deletes=1), None),
        (POSITIONS, _rewritten((100, 95), (100, 95)), None),
        (POSITIONS, _rewritten((100, 94), (100, 94)), "lost"),
        (EQUALITY, _rewritten((100, 5)), None),
        (DANGLING_EQUALITY, _rewritten((100, 5)), None),
    ],
)
@pytest.mark.cases(20, 32)
def test_records_of_rewrites(partition_before: PartitionFacts, after: TableMetadata, fault: str | None) -> None:
    """Rewrites keep every record but those that deletes name, over all their commits together."""
    broken = rewrite_violations(facts(partition_before), after)
    assert len(broken) == (fault is not None)
    assert all(fault in said for said in broken if fault)


def test_what_writers_add_and_remove_is_theirs() -> None:
    """Appends and overwrites beside a rewrite are no part of it, whatever their summaries count."""
    append = snapshot(9, parent_id=4, summary={"operation": "append", "added-records": "5"})
    overwrite = snapshot(10, parent_id=9, operation="overwrite", summary={"deleted-records": "7"})
    for written, faults in ((100, 0), (99, 1)):
        rewritten = _rewritten((100, written))
        after = replace(rewritten, snapshots=(*rewritten.snapshots, append, overwrite), current_snapshot_id=10)
        assert len(rewrite_violations(facts(PLAIN), after)) == faults


@pytest.mark.parametrize(("branch", "faults"), [(None, 1), (MAIN, 0), ("dev", 1)])
def test_a_branch_is_judged_by_its_own_rewrites(branch: str | None, faults: int) -> None:
    """Facts of a branch say nothing of rewrites beside it; facts of all branches speak of each."""
    table, lost = metadata(), {"deleted-records": "100", "added-records": "99"}
    beside = snapshot(3, parent_id=2, operation="replace", summary=lost)
    refs = (SnapshotRef(MAIN, RefKind.BRANCH, 2), SnapshotRef("dev", RefKind.BRANCH, 3))
    after = replace(table, snapshots=(*table.snapshots, beside), refs=refs)
    assert len(rewrite_violations(facts(PLAIN), after, branch)) == faults


def test_delete_files_that_a_rewrite_wrote_excuse_nothing() -> None:
    """Only a writer's own deletes may explain records that are missing."""
    table = metadata()
    summary = {"deleted-records": "100", "added-records": "99", "added-delete-files": "1"}
    rewrite = snapshot(3, parent_id=2, operation="replace", summary=summary)
    after = replace(table, snapshots=(*table.snapshots, rewrite), current_snapshot_id=3)
    assert rewrite_violations(facts(PLAIN), after) == ["snapshot 3 lost 1 of 100 records"]


def test_earlier_rewrites_are_not_judged() -> None:
    """Only snapshots since the facts were read count."""
    after = _rewritten((100, 5))
    assert rewrite_violations(facts(PLAIN, of=after), after) == []


@pytest.mark.cases(32)
def test_deletes_that_were_known_excuse_nothing() -> None:
    """Only deletes committed since the facts were read may explain a loss that they do not."""
    earlier = snapshot(2, age=2, parent_id=1, summary={"operation": "delete", "added-delete-files": "3"})
    table = metadata(snapshots=(snapshot(1, age=5), earlier))
    rewrite = snapshot(3, operation="replace", summary={"deleted-records": "100", "added-records": "5"})
    after = replace(table, snapshots=(*table.snapshots, rewrite), current_snapshot_id=3)
    assert len(rewrite_violations(facts(PLAIN, of=table), after)) == 1


RAW: dict[str, Any] = {
    "snapshot-id": 7,
    "parent-snapshot-id": 6,
    "sequence-number": 5,
    "timestamp-ms": 1_000_500,
    "manifest-list": "s3://a/snap-7.avro",
    "manifests": ["s3://a/m0.avro"],
    "summary": {"operation": "append", "added-records": 3},
    "schema-id": 2,
}


def test_a_snapshot_is_read_from_the_json_of_the_spec() -> None:
    """Every field is kept, and what a writer may leave out is blank."""
    read = snapshot_of(RAW)
    assert read == Snapshot(
        7,
        6,
        5,
        datetime(1970, 1, 1, 0, 16, 40, 500_000, UTC),
        "s3://a/snap-7.avro",
        ("s3://a/m0.avro",),
        "append",
        {"operation": "append", "added-records": "3"},
        2,
    )
    bare = snapshot_of({"snapshot-id": 7, "timestamp-ms": 0, "summary": None, "manifests": None})
    assert bare == Snapshot(7, None, 0, datetime(1970, 1, 1, tzinfo=UTC), None)


RESTORED = [
    ({"parent_id": 3}, "parent id"),
    ({"timestamp": NOW}, "timestamp"),
    ({"manifest_list": "s3://a/other.avro"}, "manifest list"),
    ({"manifests": ()}, "manifests"),
    ({"operation": "delete"}, "operation"),
    ({"schema_id": 1}, "schema id"),
    ({"summary": {"operation": "append", "added-records": "4"}}, "summary"),
]


@pytest.mark.parametrize(("change", "name"), RESTORED)
def test_a_snapshot_that_returned_as_another_one(change: dict[str, Any], name: str) -> None:
    """Each field that differs is named, beside a snapshot that is missing and one that is as it was."""
    before, missing, same = snapshot_of(RAW), snapshot_of(RAW | {"snapshot-id": 8}), snapshot(9)
    after = metadata(snapshots=(replace(before, **change), same))
    assert restored_as_it_was(after, [missing, before, same], {}) == [
        "snapshot 8 is not there",
        f"the {name} of snapshot 7 is another one",
    ]


def test_what_returned_as_it_was() -> None:
    """Nothing is named, also when the catalog has dropped a key of the summary."""
    before = snapshot_of(RAW)
    after = metadata(snapshots=(replace(before, summary={"operation": "append"}),), refs=[TAG])
    assert restored_as_it_was(after, [before], {"v1": 2}) == []


def test_a_ref_that_did_not_return() -> None:
    """Whether it is missing or leads elsewhere, it is named; a branch may lead on, as its writer came right after."""
    after = metadata([40, 30, 20], refs=[TAG, OLD, SnapshotRef("audit", RefKind.BRANCH, 3)])
    assert restored_as_it_was(after, [], {"gone": 1, "v1": 1, "old": 3, "audit": 2}) == [
        "ref gone does not lead to snapshot 1",
        "ref v1 does not lead to snapshot 1",
        "ref old does not lead to snapshot 3",
    ]
    assert restored_as_it_was(after, [], {"audit": 4}) == ["ref audit does not lead to snapshot 4"]
