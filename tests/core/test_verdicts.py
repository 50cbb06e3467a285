"""All operations over one table: every one has a verdict with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.effective import Knobs
from icewright.core.policy import ENABLED, MEGABYTE, Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import VERDICT_NAMES, Blocked, Due, NotDue, Unsupported, Verdict, Work, why
from icewright.core.table import MAIN, RefKind, SnapshotRef, TableFacts, TableMetadata
from icewright.core.verdicts import EVALUATE, REVISIT, due, evaluate, thresholds, verdict
from icewright.testing import NOW, facts, knobs, manifests, metadata, partition

OLD = metadata([200 - i for i in range(10)])
ROTTEN = facts(
    partition(position_delete_files=6, mergeable_deletes=6, deleted_rows=100), of=OLD, manifests_of=[manifests(12)]
)
# which a policy must ask for
BY_POLICY = (Operation.EXPIRE_ROWS, Operation.COMPUTE_STATISTICS, Operation.RECOVERY_POINTS, Operation.CHECK)
ASKED_OF_ALL = [op for op in Operation if op not in BY_POLICY]
HEALTHY = facts(partition(files=1), of=metadata([1]))
SCANNED = LastRun(
    Operation.REMOVE_ORPHANS,
    NOW - timedelta(hours=1),
    OperationState.COMMITTED,
    worked=NOW - timedelta(hours=1),
    recent=({"files_scanned": 100, "orphans_found": 30, "orphans_removed": 10},),
)


def test_a_rotten_table_is_due_for_everything() -> None:
    """Each operation has its verdict, in the canonical order, and health says how bad it is."""
    found = evaluate(ROTTEN, Knobs(), {}, NOW)
    assert list(found.verdicts) == list(Operation)
    assert list(due(found)) == ASKED_OF_ALL
    assert found.health is not None
    assert found.health < 50
    assert found.facts is ROTTEN
    assert set(EVALUATE) == set(Operation)


def test_a_healthy_table_is_due_for_nothing() -> None:
    """After a scan for orphans a healthy table has five reasons to be left alone."""
    found = evaluate(HEALTHY, Knobs(), {Operation.REMOVE_ORPHANS: SCANNED}, NOW)
    assert due(found) == {}
    assert all(isinstance(found.verdicts[op], NotDue) for op in ASKED_OF_ALL)
    assert found.verdicts[Operation.EXPIRE_ROWS] == NotDue("expire_rows is off unless a policy asks for it")
    assert found.parts["orphans"].score == 80
    assert found.health == 98


@pytest.mark.parametrize("operation", ASKED_OF_ALL)
@pytest.mark.cases(87)
def test_disabled_is_blocked_unless_by_hand(operation: Operation) -> None:
    """A disabled operation says so; whoever asks for it by hand gets its verdict."""
    off = knobs({ENABLED[operation].name: False})
    assert verdict(operation, ROTTEN, off, {}, NOW) == Blocked(f"{operation}.enabled is false")
    assert isinstance(verdict(operation, ROTTEN, off, {}, NOW, manual=True), Due)
    others = [
        v for op, v in evaluate(ROTTEN, off, {}, NOW).verdicts.items() if op in ASKED_OF_ALL and op is not operation
    ]
    assert all(isinstance(v, Due) for v in others)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (metadata(format_version=4), "format version 4 is newer than 3"),
        (metadata(properties={"encryption.key-id": "k"}), "the table is encrypted"),
    ],
)
def test_unsupported_tables(table: TableMetadata, reason: str) -> None:
    """A table that cannot be maintained says why, for each operation."""
    assert set(evaluate(facts(of=table), Knobs(), {}, NOW).verdicts.values()) == {Unsupported(reason)}


BAD_SPEC = facts(partition(spec_id=99, last_write=NOW), of=OLD)
ENDLESS = metadata(
    [200 - i for i in range(10)], refs=[SnapshotRef(MAIN, RefKind.BRANCH, 10, max_snapshot_age=timedelta.max)]
)


@pytest.mark.cases(90)
def test_a_fault_in_one_operation_hides_no_other() -> None:
    """A partition of a spec that the metadata does not have blocks compaction alone, with the reason."""
    found = evaluate(BAD_SPEC, Knobs(), {}, NOW).verdicts
    blocked = found[Operation.COMPACT]
    assert isinstance(blocked, Blocked)
    assert blocked.reason.startswith("evaluation failed: ")
    assert isinstance(found[Operation.EXPIRE_SNAPSHOTS], Due)


@pytest.mark.cases(89, 90)
def test_an_endless_age_stops_nothing() -> None:
    """A branch that keeps its snapshots for ever leaves the other verdicts and the health as they are."""
    found = evaluate(facts(partition(), of=ENDLESS), Knobs(), {}, NOW)
    assert isinstance(found.verdicts[Operation.COMPACT], Due)
    assert found.health is not None


@pytest.mark.parametrize(
    ("history", "score"),
    [
        ({}, None),
        ({Operation.REMOVE_ORPHANS: SCANNED}, 80),
        ({Operation.REMOVE_ORPHANS: LastRun(Operation.REMOVE_ORPHANS, NOW, OperationState.FAILED)}, None),
        ({Operation.REMOVE_ORPHANS: replace(SCANNED, state=OperationState.FAILED, finished=NOW)}, 80),
    ],
)
def test_orphans_in_health(history: Mapping[Operation, LastRun], score: int | None) -> None:
    """What the last scan left counts; without a scan that counted files the part is unknown."""
    assert evaluate(HEALTHY, Knobs(), history, NOW).parts["orphans"].score == score


@pytest.mark.parametrize(
    ("table", "history", "hours"),
    [
        (HEALTHY, {}, 24),
        (facts(of=metadata([167, 6, 5, 4, 3, 2, 1])), {}, 1),
        (facts(of=metadata([100, 6, 5, 4, 3, 2, 1])), {}, 24),
    ],
)
def test_when_to_look_again(table: TableFacts, history: Mapping[Operation, LastRun], hours: float) -> None:
    """When time alone changes a verdict, and at the latest after a day."""
    wait = evaluate(table, Knobs(), history, NOW).revisit - NOW
    assert timedelta(0) <= wait - timedelta(hours=hours) < timedelta(minutes=1)
    assert wait <= REVISIT


def test_thresholds() -> None:
    """Sizes follow from the knobs: 75 % and 180 % of the target by default."""
    sizes = thresholds(knobs({"compact.target_file_size_mb": 100, "rewrite_manifests.target_manifest_mb": 4}))
    assert (sizes.target_bytes, sizes.min_bytes) == (100 * MEGABYTE, 75 * MEGABYTE)
    assert (sizes.max_bytes, sizes.manifest_target_bytes) == (180 * MEGABYTE, 4 * MEGABYTE)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (Due(Work(Operation.COMPACT, ()), 1, 1, "a reason"), "due"),
        (NotDue("a reason"), "not_due"),
        (Blocked("a reason"), "blocked"),
        (Unsupported("a reason"), "unsupported"),
    ],
)
def test_every_verdict_says_why(found: Verdict, name: str) -> None:
    """Whatever the verdict, its reason is read in one way, and its kind has a name."""
    assert why(found) == "a reason"
    assert VERDICT_NAMES[type(found)] == name
