"""The queue: what comes first, what waits, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.core.capacity import Active, Candidate, CatalogLimits, DueOperation, Limits, PoolLimits, Usage
from icewright.core.plan import AGEING, heat_factor, make_plan, score
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.testing import NOW

COMPACT, MANIFESTS, EXPIRE = Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS
HOUR = timedelta(hours=1)
RUNNING = TableRef("lake", ("sales",), "running")


def due(operation: Operation = COMPACT, benefit: float = 10, cost: float = 1, **more: Any) -> DueOperation:
    """Something worth doing."""
    return DueOperation(benefit, cost, f"{operation} is due", **{"since": NOW, **more})


def candidate(
    name: str = "orders", *operations: Operation, benefit: float = 10, since: datetime = NOW, **more: Any
) -> Candidate:
    """A table with operations due, by default a compaction, since now."""
    found = {op: due(op, benefit, since=since) for op in operations or (COMPACT,)}
    made = Candidate(TableRef("lake", ("sales",), name), f"uuid-{name}", found)
    return replace(made, **more)


def test_score_is_benefit_per_cost() -> None:
    """Twice the benefit or half the cost is twice the score; work that costs next to nothing is bounded."""
    zero = timedelta(0)
    assert score(due(benefit=20), "normal", zero) == 2 * score(due(), "normal", zero)
    assert score(due(cost=0.5), "normal", zero) == 2 * score(due(), "normal", zero)
    assert score(due(), "normal", zero, heat=3) == pytest.approx(3 * score(due(), "normal", zero))
    assert score(due(cost=0), "normal", zero) < float("inf")


def test_importance_weighs() -> None:
    """Critical beats high beats normal beats low."""
    scores = [score(due(), i, timedelta(0)) for i in ("critical", "high", "normal", "low")]
    assert scores == sorted(set(scores), reverse=True)


def test_waiting_raises_a_score() -> None:
    """Time waited counts for the table; a clock that runs backwards counts for nothing."""
    scores = [score(due(), "normal", hours * HOUR) for hours in (-5, 0, 6, 600)]
    assert scores[0] == scores[1] < scores[2] < scores[3]
    assert scores[2] == pytest.approx(2 * scores[1])
    assert timedelta(hours=6) == AGEING


@pytest.mark.parametrize("others", [0, 1, 50])
def test_a_lone_candidate_scores_as_among_many(others: int) -> None:
    """A score does not depend on the other candidates."""
    crowd = [candidate(f"t{i}", benefit=i) for i in range(others)]
    plan = make_plan([*crowd, candidate()], Limits(100), NOW)
    assert next(job.score for job in plan.jobs if job.ref.name == "orders") == score(due(), "normal", timedelta(0)) > 0


def test_the_best_come_first() -> None:
    """By score, and by name where scores are equal."""
    crowd = [candidate("b"), candidate("a"), candidate("c", benefit=20), candidate("d", since=NOW - 3 * HOUR)]
    assert [job.ref.name for job in make_plan(crowd, Limits(), NOW).jobs] == ["c", "d", "a", "b"]


@pytest.mark.cases(91)
def test_nothing_starves() -> None:
    """Though a table worth five times as much comes in with every pass, the small one's turn comes."""
    small = candidate("small", benefit=10)
    for hours in range(100):
        fresh = candidate(f"big{hours}", benefit=50, since=NOW + hours * HOUR)
        (job,) = make_plan([small, fresh], Limits(total=1), NOW + hours * HOUR).jobs
        if job.ref == small.ref:
            break
    assert 0 < hours < 48


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize(("minutes", "runs"), [(1, False), (0, True), (-1, True)])
def test_cooldowns(operation: Operation, minutes: int, runs: bool) -> None:
    """Until the cooldown is over the operation is deferred, without a place in the queue; then it runs."""
    due_operation = due(operation, cooled=NOW + timedelta(minutes=minutes))
    plan = make_plan([candidate("t", due_operations={operation: due_operation})], Limits(), NOW)
    assert bool(plan.jobs) is runs
    assert [(d.operation, d.position) for d in plan.deferred] == ([] if runs else [(operation, None)])
    assert all(d.reason == "cooling down until 2026-11-21 12:01 UTC" for d in plan.deferred)


def test_one_operation_cools_another_runs() -> None:
    """A due operation runs alone: it neither waits for one that cools down nor drags it along."""
    due_operations = {COMPACT: due(cooled=NOW + HOUR), EXPIRE: due(EXPIRE)}
    (job,) = (plan := make_plan([candidate("t", due_operations=due_operations)], Limits(), NOW)).jobs
    assert job.operations == (EXPIRE,)
    assert [d.operation for d in plan.deferred] == [COMPACT]


@pytest.mark.parametrize(
    ("windows", "runs"), [(None, True), ("sat 11:00-13:00", True), ("mon-fri; sat 13:00-14:00", False)]
)
def test_windows(windows: str | None, runs: bool) -> None:
    """Outside of its windows a table waits, without a place in the queue, and the reason says until when."""
    plan = make_plan([candidate("t", windows=windows)], Limits(), NOW)
    assert bool(plan.jobs) is runs
    said = "outside of its maintenance window, which opens 2026-11-21 13:00 UTC"
    assert [(d.reason, d.position) for d in plan.deferred] == ([] if runs else [(said, None)])


def test_windows_of_a_zone_that_this_machine_does_not_know() -> None:
    """They hold up no other table, and stay closed: another service, whose time zones are newer, has stored them."""
    plan = make_plan([candidate("a", windows="sat Europe/Atlantis"), candidate("b")], Limits(), NOW)
    assert [job.ref.name for job in plan.jobs] == ["b"]
    said = "when its maintenance window opens is not known here: 'Europe/Atlantis' is no time zone"
    assert [d.reason.partition(";")[0] for d in plan.deferred] == [said]


def test_heat() -> None:
    """A table that is read counts for more than one that is not, and twice the reading for less than twice as much."""
    factors = [heat_factor(queries) for queries in (-1, 0, 1, 15, 30)]
    assert factors[:4] == [1, 1, 2, 5]
    assert 5 < factors[4] < 10
    plan = make_plan([candidate("cold"), candidate("hot", heat=heat_factor(10))], Limits(), NOW)
    assert [job.ref.name for job in plan.jobs] == ["hot", "cold"]


POOLED = {COMPACT: DueOperation(10, 1, "small files", NOW, on_pool=True)}


def test_limits_of_pools() -> None:
    """A pool takes so many jobs; what needs no pool does not count, nor wait."""
    active = Active(RUNNING, "default", (COMPACT,), on_pool=True)
    limits = Limits(9, pools={"default": PoolLimits(2)})
    crowd = [candidate("a", due_operations=POOLED), candidate("b", due_operations=POOLED), candidate("c", EXPIRE)]
    plan = make_plan(crowd, limits, NOW, Usage((active,)))
    assert [job.ref.name for job in plan.jobs] == ["a", "c"]
    assert [(d.ref.name, d.reason, d.position) for d in plan.deferred] == [
        ("b", "limit of pool default (2) reached", 1)
    ]


def test_limits_of_catalogs() -> None:
    """A catalog's tables take so many jobs, whatever runs for others."""
    limits = Limits(9, catalogs={"lake": CatalogLimits(1)})
    plan = make_plan(
        [candidate("a"), candidate("b")],
        limits,
        NOW,
        Usage((Active(replace(RUNNING, catalog="pond"), "default", (COMPACT,), True),)),
    )
    assert [job.ref.name for job in plan.jobs] == ["a"]
    assert [d.reason for d in plan.deferred] == ["limit of catalog lake (1) reached"]


@pytest.mark.parametrize(
    ("pool", "catalog", "spent", "active", "admitted"),
    [
        (None, None, 100, 0, 2),
        (2, None, 0, 0, 2),  # each costs 1
        (2, None, 0.5, 0, 1),
        (2, None, 0, 1.5, 0),
        (2, None, 2, 0, 0),
        (None, 1.5, 0, 0, 1),
        (0.5, None, 0, 0, 1),  # larger than the whole budget: the first of the day
        (0.5, None, 0.1, 0, 0),
    ],
)
def test_budgets(pool: float | None, catalog: float | None, spent: float, active: float, admitted: int) -> None:
    """GB-hours of a day: what was spent, what runs and what is admitted stay within."""
    limits = Limits(9, {}, 9, 9, {"default": PoolLimits(9, pool)}, {"lake": CatalogLimits(None, catalog)})
    jobs = (Active(RUNNING, "default", (COMPACT,), on_pool=True, cost=active),)
    usage = Usage(jobs, {"default": spent}, {"lake": spent})
    plan = make_plan([candidate("a", due_operations=POOLED), candidate("b", due_operations=POOLED)], limits, NOW, usage)
    assert len(plan.jobs) == admitted
    said = "GB-hours a day) has no room until 00:00 UTC"
    assert all(d.reason.endswith(said) for d in plan.deferred)


@pytest.mark.parametrize(
    ("on_pool", "budget", "admitted"),
    [
        ((COMPACT,), 4, (COMPACT,)),  # of 3, and what follows of 3 is paid by the pool, too
        ((COMPACT,), 7, (COMPACT, MANIFESTS)),
        ((MANIFESTS,), 4, (COMPACT,)),  # what came before it would be paid by the pool
        ((), 1, (COMPACT, MANIFESTS)),
    ],
)
def test_a_budget_of_a_pool_pays_whole_jobs(
    on_pool: tuple[Operation, ...], budget: float, admitted: tuple[Operation, ...]
) -> None:
    """As what was spent is reckoned: else jobs would take what is put aside for others that wait for their window."""
    found = {op: due(op, cost=3, on_pool=op in on_pool) for op in (COMPACT, MANIFESTS)}
    limits = Limits(9, {}, 9, pools={"default": PoolLimits(9, budget)})
    plan = make_plan([candidate(due_operations=found)], limits, NOW, Usage((), {"default": 0.5}))
    assert [job.operations for job in plan.jobs] == [admitted]


def test_blocked_tables_wait_with_their_reason() -> None:
    """A paused or leased table starts nothing, whatever it is worth, and takes no place from others."""
    plan = make_plan([candidate("p", benefit=1e9, blocked="paused: too many failures"), candidate("t")], Limits(1), NOW)
    assert [job.ref.name for job in plan.jobs] == ["t"]
    assert [(d.ref.name, d.reason, d.position) for d in plan.deferred] == [("p", "paused: too many failures", None)]
    assert plan.deferred[0].score > 0


@pytest.mark.parametrize(
    ("limits", "running", "started", "reasons"),
    [
        (Limits(total=1), [], 0, ["", "global limit (1) reached", "global limit (1) reached"]),
        (Limits(total=2), [(EXPIRE,)], 0, ["", "global limit (2) reached", "global limit (2) reached"]),
        (Limits(total=0), [], 0, ["global limit (0) reached"] * 3),
        (Limits(9, {COMPACT: 2}), [], 0, ["", "", "limit per_operation.compact (2) reached"]),
        (Limits(9, {COMPACT: 2}), [(COMPACT, EXPIRE)], 0, ["", *["limit per_operation.compact (2) reached"] * 2]),
        (Limits(9, {COMPACT: 0}), [], 0, ["limit per_operation.compact (0) reached"] * 3),
        (Limits(9, max_jobs=1), [], 0, ["", *["limit max_jobs_per_detection (1) reached"] * 2]),
        (Limits(9, max_jobs=5), [], 4, ["", *["limit max_jobs_per_detection (5) reached"] * 2]),
    ],
)
def test_limits(limits: Limits, running: Sequence[Sequence[Operation]], started: int, reasons: Sequence[str]) -> None:
    """What no limit holds back starts; the rest waits with the limit as its reason, and its place."""
    usage = Usage(tuple(Active(RUNNING, "default", tuple(ops), on_pool=True) for ops in running), started=started)
    plan = make_plan([candidate(name) for name in "abc"], limits, NOW, usage)
    assert [job.ref.name for job in plan.jobs] == [n for n, r in zip("abc", reasons, strict=True) if not r]
    waiting = [(n, r) for n, r in zip("abc", reasons, strict=True) if r]
    assert [(d.ref.name, d.reason) for d in plan.deferred] == waiting
    assert [d.position for d in plan.deferred] == list(range(1, len(waiting) + 1))


def test_places_are_of_tables() -> None:
    """The operations of one table wait in one place."""
    plan = make_plan([candidate("a", COMPACT, EXPIRE), candidate("b", EXPIRE)], Limits(0), NOW)
    assert sorted((d.ref.name, d.position) for d in plan.deferred) == [("a", 1), ("a", 1), ("b", 2)]


def test_a_full_operation_does_not_stop_others() -> None:
    """Further down the queue, whatever another operation's limit leaves room for still starts."""
    plan = make_plan([candidate("a"), candidate("b"), candidate("c", EXPIRE)], Limits(9, {COMPACT: 1}), NOW)
    assert [job.ref.name for job in plan.jobs] == ["a", "c"]


@pytest.mark.parametrize(
    ("order", "operations"), [("canonical", (COMPACT, MANIFESTS, EXPIRE)), ("seaweedfs", (COMPACT, EXPIRE, MANIFESTS))]
)
@pytest.mark.cases(81)
def test_one_job_for_a_table(order: str, operations: tuple[Operation, ...]) -> None:
    """The operations of one table run in one job, in the order of its policy, whatever order they come in."""
    (job,) = make_plan([candidate("t", EXPIRE, MANIFESTS, COMPACT, order=order)], Limits(), NOW).jobs
    assert job.operations == operations
    assert (job.benefit, job.cost, job.table_uuid) == (30, 3, "uuid-t")
    assert job.why == "; ".join(f"{op}: {op} is due" for op in operations)


def test_nothing_due_is_nothing_planned() -> None:
    """No candidates, or one without anything due, make an empty plan."""
    assert make_plan([], Limits(), NOW) == make_plan([candidate(due_operations={})], Limits(), NOW)
    assert make_plan([], Limits(), NOW).jobs == ()
