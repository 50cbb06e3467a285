"""Readers of old snapshots that nobody pinned: whom expiry warns of, before it takes the snapshot and when it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from icewright.core.operations import expire_snapshots
from icewright.core.readers import REMEMBERED, unpinned_reads
from icewright.core.steps import Due, ExpireSnapshots, NotDue
from icewright.core.table import MAIN, RefKind, SnapshotHold, SnapshotRef
from icewright.testing import NOW, facts, knobs, lineage, metadata

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TABLE = metadata(snapshots=tuple(lineage([24 * age for age in (9, 6, 3, 1)])))  # ids from 1
HELD = SnapshotHold(2, "reader r", NOW + DAY, NOW)


@pytest.mark.parametrize(
    ("reads", "holds", "found"),
    [
        ({1: NOW - DAY, 3: NOW}, (), [1, 3]),
        ({2: NOW - 3 * DAY + HOUR}, (), []),  # it planned when it was the head
        ({2: NOW - 3 * DAY + 2 * HOUR}, (), [2]),
        ({4: NOW, 99: NOW}, (), []),  # the head, and one that has expired
        ({1: NOW, 2: NOW, 3: NOW}, (HELD,), [1]),  # what came after the pin stays with it
        ({2: NOW}, (replace(HELD, until=NOW),), [2]),
    ],
)
def test_reads_that_nobody_pinned(
    reads: Mapping[int, datetime], holds: tuple[SnapshotHold, ...], found: list[int]
) -> None:
    """Those of snapshots that were not heads any more, and that no ref or pin keeps."""
    assert [read.snapshot.snapshot_id for read in unpinned_reads(TABLE, reads, holds, NOW)] == found


@pytest.mark.parametrize(("ago", "found"), [(REMEMBERED, []), (REMEMBERED - timedelta(seconds=1), [1])])
def test_a_read_counts_for_two_weeks(ago: timedelta, found: list[int]) -> None:
    """A reader that does not come back is no reason to warn for ever."""
    table = metadata(snapshots=tuple(lineage([24 * age for age in (30, 20, 1)])))
    assert [read.snapshot.snapshot_id for read in unpinned_reads(table, {1: NOW - ago}, (), NOW)] == found


def test_a_tag_keeps_what_is_read() -> None:
    """A reader of a tag needs no pin."""
    refs = (SnapshotRef(MAIN, RefKind.BRANCH, 4), SnapshotRef("audit", RefKind.TAG, 1))
    assert unpinned_reads(replace(TABLE, refs=refs), {1: NOW}, (), NOW) == []


def test_expiry_warns_before_a_snapshot_goes_and_when_it_does() -> None:
    """The verdict says so in both cases, the step takes the sentence along, and a pin in the policy ends it."""
    of = replace(facts(of=TABLE), reads={1: NOW - DAY, 3: NOW})
    gentle = {"expire_snapshots.retention_hours": 24 * 30}
    waits = expire_snapshots.evaluate(of, knobs(gentle), None, NOW)
    assert isinstance(waits, NotDue)
    goes_on = NOW - 9 * DAY + 30 * DAY
    assert waits.warnings[0].startswith(f"snapshot 1 may go from {goes_on:%Y-%m-%d} on: a query read it on ")
    assert [warning in waits.notes for warning in waits.warnings] == [True, True]

    due = expire_snapshots.evaluate(of, knobs({"expire_snapshots.min_snapshots_to_keep": 1}), None, NOW)
    assert isinstance(due, Due)
    (step,) = due.work.steps
    assert isinstance(step, ExpireSnapshots)
    assert 1 in step.snapshot_ids
    assert due.warnings[0].startswith("snapshot 1 goes: ")
    assert due.warnings == step.losses
    assert due.why.endswith("; ".join(due.warnings))

    pinned = knobs({"expire_snapshots.reader_pins": {"audit": "1"}, "expire_snapshots.max_pin_age_hours": 24 * 30})
    free = expire_snapshots.evaluate(of, pinned, None, NOW)
    assert isinstance(free, NotDue)
    assert free.warnings == ()


def test_an_expiry_that_waits_for_more_warns_too() -> None:
    """The reader has until then to pin its snapshot."""
    settings = {"expire_snapshots.min_snapshots_to_keep": 1, "expire_snapshots.min_share": 0.5}
    of = metadata(snapshots=lineage([7 * 24 + 3, 2, 1, 0]))
    verdict = expire_snapshots.evaluate(replace(facts(of=of), reads={1: NOW}), knobs(settings), None, NOW)
    assert isinstance(verdict, Due)
    assert verdict.postponed is not None
    (warning,) = verdict.postponed.warnings
    assert warning.startswith("snapshot 1 goes: ")
    assert verdict.postponed.notes == (warning,)


@pytest.mark.parametrize(("reads", "more"), [(8, ["5 more such snapshots"]), (4, ["1 more such snapshots"]), (3, [])])
def test_few_of_many_reads_are_named(reads: int, more: list[str]) -> None:
    """The first reads are named, and the others are counted."""
    of = metadata(snapshots=tuple(lineage([24 * age for age in range(9, 0, -1)])))
    read = replace(facts(of=of), reads=dict.fromkeys(range(1, reads + 1), NOW))
    verdict = expire_snapshots.evaluate(read, knobs({"expire_snapshots.retention_hours": 24 * 30}), None, NOW)
    assert isinstance(verdict, NotDue)
    assert list(verdict.warnings[3:]) == more
