"""Expiry: when it is due, why not, and what it asks for. Which snapshots go is retention's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from icewright.core.operations import expire_snapshots
from icewright.core.policy import Knobs, Operation
from icewright.core.steps import Blocked, Due, ExpireSnapshots, NotDue, Verdict
from icewright.core.table import Ref, RefKind, TableMetadata
from icewright.testing import NOW, facts, knobs, metadata

WEEK = 168
MANY = [WEEK + 10 - i for i in range(10)]


def _verdict(table: TableMetadata, found: Knobs | None = None) -> Verdict:
    return expire_snapshots.evaluate(facts(of=table), found or Knobs(), None, NOW)


def _step(verdict: Verdict) -> ExpireSnapshots:
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, ExpireSnapshots)
    return step


def test_old_snapshots_beyond_the_count_are_due() -> None:
    """Ten old snapshots of which five are kept: five go, in-service, by the default retention."""
    verdict = _verdict(metadata(MANY))
    step = _step(verdict)
    assert step.snapshot_ids == (1, 2, 3, 4, 5)
    assert (step.older_than, step.retain_last) == (NOW - timedelta(hours=WEEK), 5)
    assert (step.delete_files, step.max_concurrent_deletes, step.by_spark) == (True, 16, False)
    assert isinstance(verdict, Due)
    assert verdict.work.operation is Operation.EXPIRE_SNAPSHOTS
    assert verdict.benefit > 0 < verdict.cost
    assert verdict.why == "5 of 10 snapshots are beyond the 5 newest and older than 168 h"


@pytest.mark.cases(18)
def test_no_snapshot() -> None:
    """A table that nobody has written to has nothing to expire."""
    assert _verdict(metadata([])) == NotDue("no current snapshot")


@pytest.mark.parametrize("ages", [[WEEK + 5] * 5, [5, 4, 3, 2, 1, 0]])
@pytest.mark.cases(15, 17, 93)
def test_nothing_to_expire(ages: list[float]) -> None:
    """Old ones within the count, or many that are young, are not due."""
    verdict = _verdict(metadata(ages))
    assert isinstance(verdict, NotDue)
    assert verdict.reason == "no snapshots to expire"


def test_when_to_look_again() -> None:
    """When time alone lets the next snapshot go, the verdict says when."""
    verdict = _verdict(metadata([WEEK - 2, *range(6, 0, -1)]))
    assert isinstance(verdict, NotDue)
    assert verdict.revisit is not None
    assert timedelta(0) < verdict.revisit - (NOW + timedelta(hours=2)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("value", "blocked"), [("false", True), ("FALSE", True), ("true", False)], ids=["false", "upper", "true"]
)
@pytest.mark.cases(72)
def test_gc_disabled(value: str, blocked: bool) -> None:
    """A table that forbids garbage collection is left alone, whatever the policy says."""
    verdict = _verdict(metadata(MANY, properties={"gc.enabled": value}))
    assert isinstance(verdict, Blocked) is blocked
    assert isinstance(verdict, Due) is not blocked


def test_knobs_reach_the_step() -> None:
    """Retention, counts, concurrency and engine are the policy's."""
    found = knobs(
        {
            "expire_snapshots.retention_hours": 2,
            "expire_snapshots.min_snapshots_to_keep": 1,
            "expire_snapshots.delete_files": False,
            "expire_snapshots.max_concurrent_deletes": 3,
            "expire_snapshots.engine": "spark",
        }
    )
    step = _step(_verdict(metadata([4, 3, 1, 0.5]), found))
    assert step.snapshot_ids == (1, 2)
    assert (step.older_than, step.retain_last) == (NOW - timedelta(hours=2), 1)
    assert (step.delete_files, step.max_concurrent_deletes, step.by_spark) == (False, 3, True)


@pytest.mark.cases(4)
def test_an_outlived_ref_alone_is_due() -> None:
    """A tag past its age is work though no snapshot goes, and is worth something, or it would wait for ever."""
    table = metadata([50, 1], refs=[Ref("old", RefKind.TAG, 1)])
    verdict = _verdict(table, knobs({"expire_snapshots.max_ref_age_hours": 24}))
    assert _step(verdict).remove_refs == ("old",)
    assert isinstance(verdict, Due)
    assert "1 refs outlived" in verdict.why
    assert verdict.benefit > 0
