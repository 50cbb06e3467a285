"""Orphan removal: when the next scan is due, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from icewright.core.cost import service_cost, storage_benefit
from icewright.core.operations import remove_orphans
from icewright.core.policy import Operation
from icewright.core.runs import REFUSED, LastRun, OperationState
from icewright.core.steps import Blocked, Due, NotDue, RemoveOrphans, Verdict
from icewright.core.table import TableRef
from icewright.testing import NOW, facts, knobs, lineage, manifests, metadata, partition

HOUR = timedelta(hours=1)
CONFIRM = {"remove_orphans.mode": "confirm"}
AUTO = {"remove_orphans.every_hours": "auto"}


def _verdict(last: LastRun | None = None, settings: Mapping[str, object] | None = None, now: datetime = NOW) -> Verdict:
    return remove_orphans.evaluate(facts(partition()), knobs(settings or {}), last, now)


def _scan(
    hours: float, state: OperationState = OperationState.COMMITTED, reason: str = "", **metrics: float
) -> LastRun:
    finished, scanned = NOW - hours * HOUR, state is OperationState.COMMITTED
    worked = finished if scanned else None
    return LastRun(Operation.REMOVE_ORPHANS, finished, state, "m", reason, worked=worked, recent=(metrics,))


def _failed_after(scan: LastRun, hours: float = 0, reason: str = "storage away") -> LastRun:
    """The scan is known still, though a later one failed, or was refused."""
    return replace(scan, state=OperationState.FAILED, finished=NOW - hours * HOUR, reason=reason)


def test_never_scanned_is_due() -> None:
    """The first scan only reports until a policy says otherwise."""
    verdict = _verdict()
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, RemoveOrphans)
    assert step.mode == "report"
    assert (step.older_than, step.confirm_before) == (NOW - 72 * HOUR, NOW - 24 * HOUR)
    assert step.equal_schemes == {"s3a": "s3", "s3n": "s3"}
    assert (step.equal_authorities, step.max_delete_ratio, step.max_concurrent_deletes) == ({}, 0.5, 16)
    assert verdict.why == "never scanned for orphans; mode report"
    assert (verdict.benefit, verdict.cost) == (storage_benefit(1), service_cost(22))  # ten files, and a manifest


@pytest.mark.parametrize(
    ("last", "settings", "due"),
    [
        (_scan(167), {}, False),
        (_scan(168), {}, True),
        (_scan(23), {"remove_orphans.every_hours": 24}, False),
        (_scan(24), {"remove_orphans.every_hours": 24}, True),
        (_scan(23, orphans_found=5), CONFIRM, False),
        (_scan(24, orphans_found=5), CONFIRM, True),
        (_scan(24, orphans_found=1), CONFIRM, True),
        (_scan(83, files_scanned=1000, orphans_found=11), AUTO, False),
        (_scan(84, files_scanned=1000, orphans_found=11), AUTO, True),
        (_scan(24, orphans_found=5, orphans_removed=5), CONFIRM, False),
        (_scan(24), CONFIRM, False),
        (_scan(24, orphans_found=5), {}, False),
        (_scan(48, orphans_found=5), {**CONFIRM, "remove_orphans.confirm_hours": 49}, False),
        (_scan(1, OperationState.FAILED, "storage away"), {}, True),
        (_scan(1, OperationState.SKIPPED, "nothing"), {}, True),
        (_failed_after(_scan(168)), {}, True),
        (_failed_after(_scan(12)), {}, False),
        (_failed_after(_scan(24, orphans_found=5)), CONFIRM, True),
    ],
)
def test_cadence(last: LastRun, settings: Mapping[str, object], due: bool) -> None:
    """A scan is due when the last one is long ago, when findings wait for confirmation, or when it failed."""
    verdict = _verdict(last, settings)
    assert isinstance(verdict, Due if due else NotDue)


def test_when_the_next_scan_is() -> None:
    """Until then the verdict says when the last scan was and when the next is, and how many orphans it left."""
    times = "scanned at 2026-11-21 00:00 UTC, next scan at 2026-11-28 00:00 UTC"
    assert _verdict(_scan(12)) == NotDue(times, NOW + 156 * HOUR)
    reported = _verdict(_scan(12, orphans_found=5, orphans_removed=0))
    assert (reported.reason if isinstance(reported, NotDue) else "") == f"{times}; mode report leaves 5 orphan files"


def test_a_later_scan_says_when_the_last_was() -> None:
    """What past scans found counts as what the next may find."""
    few, many = _verdict(_scan(200)), _verdict(_scan(200, orphans_found=500))
    assert isinstance(few, Due)
    assert isinstance(many, Due)
    assert few.why == "the last scan was at 2026-11-13 04:00 UTC; mode report"
    assert many.benefit > few.benefit
    asked = _verdict(_scan(1, files_scanned=9).for_manual_request())
    assert isinstance(asked, Due)
    assert asked.why == "requested manually; mode report"


def test_files_that_a_stopped_streaming_writer_will_commit_are_not_old() -> None:
    """They stay from an hour before its last commit on, as long as its state is kept, and the scan says so."""
    state = {"flink.job-id": "j1", "flink.max-committed-checkpoint-id": "6"}
    for days, hours in ((4, 97), (400, 72)):
        made = metadata(snapshots=(replace(lineage([24 * days])[0], writer_properties=state),))
        verdict = remove_orphans.evaluate(facts(of=made), knobs({}), None, NOW)
        assert isinstance(verdict, Due)
        assert verdict.work.steps == (replace(remove_orphans.step(knobs({}), NOW), older_than=NOW - hours * HOUR),)
        assert [note.startswith("files written since 2026-11-17 11:00 UTC") for note in verdict.work.notes] == (
            [True] if days == 4 else []
        )


def test_a_shared_location_is_not_even_scanned() -> None:
    """Its evaluation knows the tables that share it, and names them."""
    others = tuple(TableRef("lake", ("sales",), name) for name in ("returns", "refunds"))
    verdict = remove_orphans.evaluate(facts(sharing=others), knobs({}), None, NOW)
    assert isinstance(verdict, Blocked)
    assert f"overlaps that of {others[0]}, {others[1]}; give" in verdict.reason


@pytest.mark.cases(63, 70)
def test_a_refusal_stands_for_a_while() -> None:
    """A scan that a safety rule stopped is not tried again every minute; after the cadence it is looked at anew."""
    refused = f"{REFUSED}: the location is shared with lake.sales.payments"
    verdict = _verdict(_scan(1, OperationState.SKIPPED, refused))
    assert isinstance(verdict, Blocked)
    assert verdict.reason.startswith(refused)
    assert "2026-11-28 11:00" in verdict.reason
    assert isinstance(_verdict(_scan(168, OperationState.SKIPPED, refused)), Due)


def test_a_refusal_stands_as_long_as_the_cadence_that_was_learned() -> None:
    """A table with many orphans is scanned more often, and looked at sooner."""
    refused = f"{REFUSED}: the location is shared"
    said = {"files_scanned": 1000, "orphans_found": 11}
    assert isinstance(_verdict(_scan(83, OperationState.SKIPPED, refused, **said), AUTO), Blocked)
    assert isinstance(_verdict(_scan(84, OperationState.SKIPPED, refused, **said), AUTO), Due)


@pytest.mark.cases(72)
def test_gc_disabled() -> None:
    """A table that forbids garbage collection is left alone."""
    table = facts(of=metadata(properties={"gc.enabled": "False"}))
    assert isinstance(remove_orphans.evaluate(table, knobs({}), None, NOW), Blocked)


def test_knobs_reach_the_step() -> None:
    """Age, mode, equalities and bounds are the policy's."""
    step = remove_orphans.step(
        knobs(
            {
                "remove_orphans.older_than_hours": 48,
                "remove_orphans.mode": "delete",
                "remove_orphans.confirm_hours": 36,
                "remove_orphans.equal_schemes": {"oss": "s3"},
                "remove_orphans.equal_authorities": {"old": "new"},
                "remove_orphans.max_delete_ratio": 0.1,
                "remove_orphans.max_concurrent_deletes": 2,
                "remove_orphans.inventory": "s3://lists/today/",
                "remove_orphans.max_files": 77,
                "execute.check_totals": False,
                "remove_orphans.prefix_mismatch": "ignore",
                "deletion.delay_hours": 5,
            }
        ),
        NOW,
    )
    assert step == RemoveOrphans(
        NOW - 48 * HOUR,
        "delete",
        NOW - 36 * HOUR,
        {"oss": "s3"},
        {"old": "new"},
        0.1,
        2,
        "s3://lists/today/",
        168,
        max_files=77,
        check_totals=False,
        delay=5 * HOUR,
        prefix_mismatch="ignore",
    )


def test_the_step_knows_its_cadence() -> None:
    """The next run learns from the cadence by which this one ran."""
    verdict = _verdict(_scan(200, files_scanned=1000, orphans_found=11), AUTO)
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, RemoveOrphans)
    assert step.every_hours == 84
    assert remove_orphans.step(knobs(AUTO), NOW).every_hours == 168


def test_nothing_younger_than_the_longest_write_is_an_orphan() -> None:
    """A job may run for execute.timeout_seconds: what it wrote and has not committed yet is no orphan before."""
    said = {"remove_orphans.older_than_hours": 24, "execute.timeout_seconds": 48 * 3600}
    assert remove_orphans.step(knobs(said), NOW).older_than == NOW - 48 * HOUR


@pytest.mark.parametrize(
    ("metrics", "hours"),
    [
        ({}, 168),
        ({"files_scanned": 1000, "orphans_found": 0}, 336),  # nothing found: twice as long
        ({"files_scanned": 1000}, 336),
        ({"files_scanned": 1000, "orphans_found": 10}, 168),
        ({"files_scanned": 1000, "orphans_found": 11}, 84),  # more than 1 %: half as long
        ({"files_scanned": 1000, "orphans_found": 0, "every_hours": 2000}, 90 * 24),
        ({"files_scanned": 1000, "orphans_found": 500, "every_hours": 30}, 24),
    ],
)
def test_the_cadence_learns(metrics: dict[str, float], hours: int) -> None:
    """`auto` begins with a week and goes by what scans find, from one day to ninety."""
    scan = replace(_scan(0), recent=(metrics,))
    for last in (scan, _failed_after(scan), scan.for_manual_request()):
        assert remove_orphans.cadence(knobs({"remove_orphans.every_hours": "auto"}), last) == hours
        assert remove_orphans.cadence(knobs({"remove_orphans.every_hours": 5}), last) == 5


def test_larger_tables_cost_more() -> None:
    """Data files, delete files and manifests are all listed and compared."""
    least = facts(partition(files=10))
    larger = [
        facts(partition(files=1000)),
        facts(partition(files=10, deletion_vectors=1000)),
        facts(partition(files=10), manifests_of=[manifests(1000)]),
    ]
    costs = [
        v.cost
        for v in (remove_orphans.evaluate(t, knobs({}), None, NOW) for t in (least, *larger))
        if isinstance(v, Due)
    ]
    assert len(costs) == 4
    assert 0 < costs[0] < min(costs[1:])
