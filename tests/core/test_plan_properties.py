"""Whatever the candidates and limits: no limit is passed, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from icewright.core.plan import Candidate, Limits, make_plan
from icewright.core.policy import ORDERS, Knobs, Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import Due, Work
from icewright.core.table import TableRef
from icewright.testing import NOW

OPERATIONS = st.sampled_from(Operation)
SOME = st.sets(OPERATIONS, min_size=1, max_size=3)
HOURS = st.integers(0, 12).map(lambda h: timedelta(hours=h))


@st.composite
def _candidates(draw: st.DrawFn) -> list[Candidate]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        found = {
            op: Due(Work(op, ()), benefit=draw(st.integers(0, 9)), cost=draw(st.integers(0, 9)), why="due")
            for op in draw(SOME)
        }
        ended = NOW - draw(HOURS)
        history = {op: LastRun(op, ended, OperationState.COMMITTED) for op in draw(SOME)}
        blocked = draw(st.sampled_from([None, None, None, "paused"]))
        ref = TableRef("lake", ("n",), f"t{number}")
        made.append(Candidate(ref, f"u{number}", found, Knobs(), history, NOW - draw(HOURS), blocked))
    return made


LIMITS = st.builds(Limits, st.integers(0, 6), st.dictionaries(OPERATIONS, st.integers(0, 3)), st.integers(0, 6))
RUNNING = st.lists(SOME.map(tuple), max_size=3)


@settings(max_examples=100, deadline=None)
@given(_candidates(), LIMITS, RUNNING, st.integers(0, 4))
def test_no_limit_is_ever_passed(
    candidates: list[Candidate], limits: Limits, running: list[tuple[Operation, ...]], started: int
) -> None:
    """New jobs fit beside those that run: in all, by operation, and in this pass."""
    jobs = make_plan(candidates, limits, NOW, running, started).jobs
    assert len(jobs) <= max(0, limits.total - len(running))
    assert len(jobs) <= max(0, limits.max_jobs - started)
    new = Counter(op for job in jobs for op in job.operations)
    old = Counter(op for operations in running for op in operations)
    assert all(new[op] <= max(0, limit - old[op]) for op, limit in limits.per_operation.items())


@settings(max_examples=100, deadline=None)
@given(_candidates(), LIMITS, RUNNING)
def test_everything_due_starts_or_waits_with_a_reason(
    candidates: list[Candidate], limits: Limits, running: list[tuple[Operation, ...]]
) -> None:
    """Each due operation is planned or deferred, exactly once; a table has one job at the most."""
    plan = make_plan(candidates, limits, NOW, running)
    planned = [(job.ref, op) for job in plan.jobs for op in job.operations]
    deferred = [(d.ref, d.operation) for d in plan.deferred]
    assert Counter(planned + deferred) == Counter((c.ref, op) for c in candidates for op in c.due)
    assert max(Counter(job.ref for job in plan.jobs).values(), default=1) == 1
    assert all(d.reason for d in plan.deferred)
    positions = {d.ref: d.position for d in plan.deferred if d.position is not None}
    assert sorted(positions.values()) == list(range(1, len(positions) + 1))


@settings(max_examples=50, deadline=None)
@given(_candidates(), LIMITS)
def test_the_order_of_candidates_does_not_matter(candidates: list[Candidate], limits: Limits) -> None:
    """A plan is made from what is due, not from the order in which it was found."""
    shuffled = list(reversed(candidates))
    one, other = make_plan(candidates, limits, NOW), make_plan(shuffled, limits, NOW)
    assert one.jobs == other.jobs
    assert {(d.ref, d.operation, d.reason, d.position) for d in one.deferred} == {
        (d.ref, d.operation, d.reason, d.position) for d in other.deferred
    }


@settings(max_examples=50, deadline=None)
@given(_candidates(), LIMITS)
def test_jobs_come_best_first_in_canonical_order(candidates: list[Candidate], limits: Limits) -> None:
    """Scores fall from job to job, and each job's operations stand in the canonical order."""
    jobs = make_plan(candidates, limits, NOW).jobs
    assert [job.score for job in jobs] == sorted((job.score for job in jobs), reverse=True)
    order = ORDERS["canonical"]
    assert all(list(job.operations) == sorted(job.operations, key=order.index) for job in jobs)
