"""Whatever the candidates and limits: no limit is passed, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icewright.core.capacity import Active, Candidate, CatalogLimits, DueOperation, Limits, PoolLimits, Usage
from icewright.core.plan import PlannedJob, make_plan
from icewright.core.policy import ORDERS, Operation
from icewright.core.table import TableRef
from icewright.testing import NOW
from tests.examples import examples

OPERATIONS = st.sampled_from(Operation)
SOME = st.sets(OPERATIONS, min_size=1, max_size=3)
HOUR = timedelta(hours=1)
HOURS = st.integers(0, 12).map(lambda h: h * HOUR)
CATALOGS, POOLS = st.sampled_from(["lake", "pond"]), st.sampled_from(["small", "large"])


@st.composite
def _candidates(draw: st.DrawFn) -> list[Candidate]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        cooled = st.sampled_from([None, None, NOW - HOUR, NOW + HOUR])
        since = NOW - draw(HOURS)
        found = {
            op: DueOperation(
                draw(st.integers(0, 9)), draw(st.integers(0, 9)), "due", since, draw(st.booleans()), draw(cooled)
            )
            for op in draw(SOME)
        }
        blocked = draw(st.sampled_from([None, None, None, "paused"]))
        ref = TableRef(draw(CATALOGS), (draw(st.sampled_from("nm")),), f"t{number}")
        windows = draw(st.sampled_from([None, None, "sat", "mon"]))
        more: dict[str, Any] = {"windows": windows, "pool": draw(POOLS), "blocked": blocked}
        made.append(Candidate(ref, f"u{number}", found, **more))
    return made


BUDGETS = st.none() | st.integers(1, 12)
LIMITS = st.builds(
    Limits,
    st.integers(0, 6),
    st.dictionaries(OPERATIONS, st.integers(0, 3)),
    st.integers(0, 6),
    pools=st.dictionaries(POOLS, st.builds(PoolLimits, st.integers(0, 3), BUDGETS)),
    catalogs=st.dictionaries(CATALOGS, st.builds(CatalogLimits, st.none() | st.integers(0, 3), BUDGETS)),
    namespaces=st.dictionaries(
        st.tuples(CATALOGS, st.sampled_from("nm*")), st.builds(CatalogLimits, st.none() | st.integers(0, 3), BUDGETS)
    ),
)
ACTIVE = st.builds(
    Active,
    st.builds(TableRef, CATALOGS, st.just(("n",)), st.just("running")),
    POOLS,
    SOME.map(tuple),
    st.booleans(),
    st.integers(0, 3),
)
SPENT = st.integers(0, 9)
USAGE = st.builds(
    Usage,
    st.lists(ACTIVE, max_size=3).map(tuple),
    st.dictionaries(POOLS, SPENT),
    st.dictionaries(CATALOGS, SPENT),
    st.dictionaries(st.tuples(CATALOGS, st.sampled_from("nm")), SPENT),
    st.integers(0, 4),
)


@examples(100)
@given(_candidates(), LIMITS, USAGE)
def test_no_limit_is_ever_passed(candidates: list[Candidate], limits: Limits, usage: Usage) -> None:
    """New jobs fit beside those that run: in all, by operation, pool and catalog, and in this pass."""
    jobs = make_plan(candidates, limits, NOW, usage).jobs
    assert len(jobs) <= max(0, limits.total - len(usage.active))
    assert len(jobs) <= max(0, limits.max_jobs - usage.started)
    new = Counter(op for job in jobs for op in job.operations)
    old = Counter(op for job in usage.active for op in job.operations)
    assert all(new[op] <= max(0, limit - old[op]) for op, limit in limits.per_operation.items())
    for name, pool in limits.pools.items():
        running = sum(job.on_pool and job.pool == name for job in usage.active)
        assert sum(job.on_pool and job.pool == name for job in jobs) <= max(0, pool.max_concurrent - running)
    for name, catalog in limits.catalogs.items():
        running = sum(job.ref.catalog == name for job in usage.active)
        most = catalog.max_concurrent
        assert most is None or sum(job.ref.catalog == name for job in jobs) <= max(0, most - running)


@examples(100)
@given(_candidates(), LIMITS, USAGE)
def test_no_budget_is_ever_passed(candidates: list[Candidate], limits: Limits, usage: Usage) -> None:
    """What was spent, what runs and what is admitted stay within a day's budget, but for the first work of a day."""
    jobs = make_plan(candidates, limits, NOW, usage).jobs
    for name, catalog in limits.catalogs.items():
        costs = [c.cost for job in jobs if job.ref.catalog == name for c in _wishes(candidates, job)]
        taken = usage.spent_by_catalog.get(name, 0) + sum(j.cost for j in usage.active if j.ref.catalog == name)
        _within(catalog.gb_hours_per_day, taken, costs)
    for name, pool in limits.pools.items():
        costs = [c.cost for job in jobs if job.pool == name for c in _wishes(candidates, job) if c.on_pool]
        active = sum(job.cost for job in usage.active if job.pool == name and job.on_pool)
        _within(pool.gb_hours_per_day, usage.spent_by_pool.get(name, 0) + active, costs)


def _wishes(candidates: list[Candidate], job: PlannedJob) -> list[DueOperation]:
    (found,) = (c for c in candidates if c.ref == job.ref)
    return [found.due_operations[op] for op in job.operations]


def _within(budget: float | None, taken: float, costs: list[float]) -> None:
    if budget is None:
        return
    for cost in costs:
        assert not cost or taken == 0 or taken + cost <= budget
        taken += cost


@examples(100)
@given(_candidates(), LIMITS, USAGE)
def test_everything_due_starts_or_waits_with_a_reason(
    candidates: list[Candidate], limits: Limits, usage: Usage
) -> None:
    """Each due operation is planned or deferred, exactly once; a table has one job at the most."""
    plan = make_plan(candidates, limits, NOW, usage)
    planned = [(job.ref, op) for job in plan.jobs for op in job.operations]
    deferred = [(d.ref, d.operation) for d in plan.deferred]
    assert Counter(planned + deferred) == Counter((c.ref, op) for c in candidates for op in c.due_operations)
    assert max(Counter(job.ref for job in plan.jobs).values(), default=1) == 1
    assert all(d.reason for d in plan.deferred)
    positions = {d.ref: d.position for d in plan.deferred if d.position is not None}
    assert sorted(positions.values()) == list(range(1, len(positions) + 1))


@examples(50)
@given(_candidates(), LIMITS)
def test_the_order_of_candidates_does_not_matter(candidates: list[Candidate], limits: Limits) -> None:
    """A plan is made from what is due, not from the order in which it was found."""
    shuffled = list(reversed(candidates))
    one, other = make_plan(candidates, limits, NOW), make_plan(shuffled, limits, NOW)
    assert one.jobs == other.jobs
    assert {(d.ref, d.operation, d.reason, d.position) for d in one.deferred} == {
        (d.ref, d.operation, d.reason, d.position) for d in other.deferred
    }


def test_jobs_that_borrow_a_share_come_in_order_of_their_score_too() -> None:
    """A job that runs on a lent share is planned last and stands where its score puts it."""
    due = {benefit: {Operation.COMPACT: DueOperation(benefit, 1, "due", NOW, False, None)} for benefit in (1, 9)}
    own, borrower = (
        Candidate(TableRef("lake", (space,), "t"), space, due[benefit]) for space, benefit in (("m", 1), ("n", 9))
    )
    plan = make_plan([own, borrower], Limits(2, {}, 2, namespaces={("lake", "n"): CatalogLimits(0, None)}), NOW)
    assert [job.ref for job in plan.jobs] == [borrower.ref, own.ref]


@examples(50)
@given(_candidates(), LIMITS)
def test_jobs_come_best_first_in_canonical_order(candidates: list[Candidate], limits: Limits) -> None:
    """Scores fall from job to job, and each job's operations stand in the canonical order."""
    jobs = make_plan(candidates, limits, NOW).jobs
    assert [job.score for job in jobs] == sorted((job.score for job in jobs), reverse=True)
    order = ORDERS["canonical"]
    assert all(list(job.operations) == sorted(job.operations, key=order.index) for job in jobs)
