"""The queue: what comes first, what waits, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.plan import AGEING, Candidate, Limits, make_plan, score
from icewright.core.policy import COOLDOWN, Knobs, Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import Due, Work
from icewright.core.table import TableRef
from icewright.testing import NOW, knobs

COMPACT, MANIFESTS, EXPIRE = Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS
HOUR = timedelta(hours=1)


def due(operation: Operation = COMPACT, benefit: float = 10, cost: float = 1) -> Due:
    """Something worth doing."""
    return Due(Work(operation, ()), benefit, cost, f"{operation} is due")


def candidate(name: str = "orders", *operations: Operation, benefit: float = 10, **more: Any) -> Candidate:
    """A table with operations due, by default a compaction, since now."""
    found = {op: due(op, benefit) for op in operations or (COMPACT,)}
    made = Candidate(TableRef("lake", ("sales",), name), f"uuid-{name}", found, Knobs(), {}, NOW)
    return replace(made, **more)


def _ran(hours: float, state: OperationState = OperationState.COMMITTED, op: Operation = COMPACT) -> Any:
    return {op: LastRun(op, NOW - hours * HOUR, state)}


def test_score_is_benefit_per_cost() -> None:
    """Twice the benefit or half the cost is twice the score; work that costs next to nothing is bounded."""
    zero = timedelta(0)
    assert score(due(benefit=20), Knobs(), zero) == 2 * score(due(), Knobs(), zero)
    assert score(due(cost=0.5), Knobs(), zero) == 2 * score(due(), Knobs(), zero)
    assert score(due(), Knobs(), zero, heat=3) == pytest.approx(3 * score(due(), Knobs(), zero))
    assert score(due(cost=0), Knobs(), zero) < float("inf")


def test_importance_weighs() -> None:
    """Critical beats high beats normal beats low."""
    scores = [score(due(), knobs({"importance": i}), timedelta(0)) for i in ("critical", "high", "normal", "low")]
    assert scores == sorted(set(scores), reverse=True)


def test_waiting_raises_a_score() -> None:
    """Time waited counts for the table; a clock that runs backwards counts for nothing."""
    scores = [score(due(), Knobs(), hours * HOUR) for hours in (-5, 0, 6, 600)]
    assert scores[0] == scores[1] < scores[2] < scores[3]
    assert scores[2] == pytest.approx(2 * scores[1])
    assert timedelta(hours=6) == AGEING


@pytest.mark.parametrize("others", [0, 1, 50])
def test_a_lone_candidate_scores_as_among_many(others: int) -> None:
    """A score does not depend on the other candidates."""
    crowd = [candidate(f"t{i}", benefit=i) for i in range(others)]
    plan = make_plan([*crowd, candidate()], Limits(100), NOW)
    assert next(job.score for job in plan.jobs if job.ref.name == "orders") == score(due(), Knobs(), timedelta(0)) > 0


@pytest.mark.parametrize("state", OperationState)
def test_failures_never_raise_a_score(state: OperationState) -> None:
    """Whatever became of the last run, the score is the same."""
    (job,) = make_plan([candidate(history=_ran(100, state))], Limits(), NOW).jobs
    assert job.score == score(due(), Knobs(), timedelta(0))


def test_the_best_come_first() -> None:
    """By score, and by name where scores are equal."""
    crowd = [candidate("b"), candidate("a"), candidate("c", benefit=20), candidate("d", due_since=NOW - 3 * HOUR)]
    assert [job.ref.name for job in make_plan(crowd, Limits(), NOW).jobs] == ["c", "d", "a", "b"]


@pytest.mark.cases(91)
def test_nothing_starves() -> None:
    """Though a table worth five times as much comes in with every pass, the small one's turn comes."""
    small = candidate("small", benefit=10)
    for hours in range(100):
        fresh = candidate(f"big{hours}", benefit=50, due_since=NOW + hours * HOUR)
        (job,) = make_plan([small, fresh], Limits(total=1), NOW + hours * HOUR).jobs
        if job.ref == small.ref:
            break
    assert 0 < hours < 48


@pytest.mark.parametrize("operation", Operation)
def test_cooldowns(operation: Operation) -> None:
    """Until the cooldown is over the operation is deferred, without a place in the queue; then it runs."""
    minutes = Knobs()[COOLDOWN[operation]]
    for past, runs in ((minutes - 1, False), (minutes, True)):
        plan = make_plan([candidate("t", operation, history=_ran(past / 60, op=operation))], Limits(), NOW)
        assert bool(plan.jobs) is runs
        assert [(d.operation, d.position) for d in plan.deferred] == ([] if runs else [(operation, None)])
        assert all(d.reason.startswith("cooling down until 2026-11-21 12:01") for d in plan.deferred)


def test_one_operation_cools_another_runs() -> None:
    """A due operation runs alone: it neither waits for one that cools down nor drags it along."""
    (job,) = (plan := make_plan([candidate("t", COMPACT, EXPIRE, history=_ran(0.5))], Limits(), NOW)).jobs
    assert job.operations == (EXPIRE,)
    assert [d.operation for d in plan.deferred] == [COMPACT]


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
    plan = make_plan([candidate(name) for name in "abc"], limits, NOW, running, started)
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
    ("settings", "operations"),
    [({}, (COMPACT, MANIFESTS, EXPIRE)), ({"order": "seaweedfs"}, (COMPACT, EXPIRE, MANIFESTS))],
)
@pytest.mark.cases(81)
def test_one_job_for_a_table(settings: Mapping[str, object], operations: tuple[Operation, ...]) -> None:
    """The operations of one table run in one job, in the order of its policy, whatever order they come in."""
    (job,) = make_plan([candidate("t", EXPIRE, MANIFESTS, COMPACT, knobs=knobs(settings))], Limits(), NOW).jobs
    assert job.operations == operations
    assert (job.benefit, job.cost, job.table_uuid) == (30, 3, "uuid-t")
    assert job.why == "; ".join(f"{op}: {op} is due" for op in operations)


def test_nothing_due_is_nothing_planned() -> None:
    """No candidates, or one without anything due, make an empty plan."""
    assert make_plan([], Limits(), NOW) == make_plan([candidate(due={})], Limits(), NOW)
    assert make_plan([], Limits(), NOW).jobs == ()
