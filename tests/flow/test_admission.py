"""What a pass starts, in which order, and what waits with its reason."""

from __future__ import annotations

import pytest

from icewright.core.capacity import Limits
from icewright.core.layering import PolicyRule
from icewright.core.runs import JobState
from icewright.flow.queue import plan_now
from tests.flow.bench import COMPACT, EXPIRE, MANIFESTS, ORPHANS, Bench


def test_limits_and_places(bench: Bench) -> None:
    """Jobs start best first within the limits of one moment; the pass goes on until nothing is left to start."""
    for number in range(5):
        bench.table(f"t{number}")
    bench.limits = Limits(total=2, per_operation={EXPIRE: 1})
    made = bench.plan()
    assert len(made.jobs) == 1
    assert {d.reason for d in made.deferred} == {"limit per_operation.expire_snapshots (1) reached"}
    assert [d.position for d in made.deferred] == [1, 2, 3, 4]
    assert bench.asked == []
    result = bench.cycle()
    assert (result.run, result.deferred) == (5, ())
    assert [ref for ref, _ in bench.asked] == [f"t{number}" for number in range(5)]


def test_importance_comes_first(bench: Bench) -> None:
    """Of two tables alike the more important one starts first."""
    bench.table("a")
    bench.table("b")
    bench.rules = [PolicyRule(("lake", "sales", "b"), {"importance": "high"})]
    bench.limits = Limits(total=1)
    bench.cycle()
    assert [ref for ref, _ in bench.asked] == ["b", "a"]


@pytest.mark.cases("T7")
def test_a_due_operation_runs_alone(bench: Bench) -> None:
    """A due expiry drags neither compaction nor any other operation along."""
    bench.table()
    bench.cycle()
    assert bench.asked == [("orders", EXPIRE)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("canonical", [COMPACT, MANIFESTS, EXPIRE, ORPHANS]), ("seaweedfs", [COMPACT, EXPIRE, ORPHANS, MANIFESTS])],
)
def test_the_order_of_operations(bench: Bench, order: str, expected: list[str]) -> None:
    """The canonical order, or that of the preset `seaweedfs`."""
    bench.rot(bench.table())
    bench.settings = {"order": order}
    bench.cycle()
    assert [operation for _, operation in bench.asked] == expected


def test_cooldowns(bench: Bench) -> None:
    """An operation does not run again on a table before its cooldown is over, and says until when."""
    ref = bench.table()
    bench.cycle()
    bench.table()
    bench.clock.advance(minutes=30)
    (waits,) = bench.cycle().deferred
    assert (waits.operation, waits.reason) == (EXPIRE, "cooling down until 2026-11-21 13:00 UTC")
    bench.clock.advance(minutes=30)
    assert [job.ref for job in bench.cycle().jobs] == [ref]


def test_a_paused_table_waits(bench: Bench) -> None:
    """It is still detected and evaluated, and its work is deferred with the reason until it is resumed."""
    ref = bench.table()
    bench.plan()
    bench.store.tables.pause(ref, "somebody looks at it")
    result = bench.cycle()
    assert [d.reason for d in result.deferred] == ["paused: somebody looks at it"]
    assert bench.asked == []
    bench.store.tables.pause(ref, None)
    assert bench.cycle().run == 1


def test_an_operation_that_is_switched_off(bench: Bench) -> None:
    """It does not run by itself, but by hand."""
    bench.table()
    bench.settings |= {"expire_snapshots.enabled": False}
    assert bench.cycle().due == 0
    assert bench.run(EXPIRE).state is JobState.SUCCEEDED


def test_a_full_operation_does_not_hold_the_others(bench: Bench) -> None:
    """Where one of two due operations has no room, the other one runs: the fleet does not queue behind one scan."""
    for name in ("a", "b", "c"):
        bench.table(name)
    bench.settings = {}
    bench.limits = Limits(total=4, per_operation={ORPHANS: 1, EXPIRE: 4})
    made = bench.plan()
    assert [job.operations for job in made.jobs] == [(EXPIRE, ORPHANS), (EXPIRE,), (EXPIRE,)]
    assert {d.operation for d in made.deferred} == {ORPHANS}


def test_one_job_of_a_table_at_a_time(bench: Bench) -> None:
    """What found no room waits for the table's first job, though that has not begun, and then has its try."""
    for name in ("a", "b", "c"):
        bench.table(name)
    bench.settings = {}
    bench.limits = Limits(total=4, per_worker=2, per_operation={ORPHANS: 1, EXPIRE: 4})
    first, second, _ = bench.plan().jobs
    made = plan_now(bench.runtime(), ["lake"], 3, {(first.ref, EXPIRE), (first.ref, ORPHANS)}, (second,))
    assert [job.ref.name for job in made.jobs] == ["c"]
    assert "held by another job of this pass" in {d.reason for d in made.deferred if d.ref == second.ref}
    result = bench.cycle()
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    assert sorted(bench.asked) == sorted((name, operation) for name in "abc" for operation in (EXPIRE, ORPHANS))
