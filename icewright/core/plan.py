"""What is worth doing now over all tables, within limits; everything else waits with its reason and place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from icewright.core.policy import COOLDOWN, IMPORTANCE, ORDER, ORDERS, Knobs, Operation
from icewright.core.runs import History
from icewright.core.steps import Due
from icewright.core.table import TableRef

IMPORTANCES: Mapping[str, float] = {"critical": 8.0, "high": 3.0, "normal": 1.0, "low": 0.3}
AGEING = timedelta(hours=6)  # waiting this long counts as much as the score itself, so that nothing starves
LEAST_COST = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may run at the same time, and how much one pass may start."""

    total: int = 4
    per_operation: Mapping[Operation, int] = field(default_factory=dict)
    max_jobs: int = 100
    per_worker: int = 4  # jobs that one process runs at the same time


@dataclass(frozen=True)
class Candidate:
    """A table with something due."""

    ref: TableRef
    table_uuid: str
    due: Mapping[Operation, Due]
    knobs: Knobs
    history: History
    due_since: datetime
    blocked: str | None = None  # paused, leased by another job, catalog disabled: why nothing may start


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One table, its operations in order, and why it comes at this place."""

    ref: TableRef
    table_uuid: str
    operations: tuple[Operation, ...]
    score: float
    benefit: float
    cost: float
    why: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Due, but not now. `position` is the place in the queue, None when no place is being waited for."""

    ref: TableRef
    operation: Operation
    reason: str
    score: float
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Jobs to start now, best first, and what waits."""

    jobs: tuple[PlannedJob, ...]
    deferred: tuple[Deferred, ...]


def score(due: Due, knobs: Knobs, waited: timedelta, heat: float = 1.0) -> float:
    """Benefit per cost, weighted by importance and heat, growing with the time waited.

    Not relative to the other candidates: one alone scores as it would among many. Failures do not enter.
    """
    ageing = 1.0 + max(timedelta(0), waited) / AGEING
    return due.benefit * IMPORTANCES[knobs[IMPORTANCE]] * heat * ageing / max(due.cost, LEAST_COST)


def make_plan(
    candidates: Sequence[Candidate],
    limits: Limits,
    now: datetime,
    running: Sequence[Sequence[Operation]] = (),
    started: int = 0,
) -> Plan:
    """Admit the best candidates.

    `running` has the operations of each job that runs already, `started` counts the jobs of this pass so far.
    """
    deferred: list[Deferred] = []
    waiting: list[tuple[float, Candidate, dict[Operation, float]]] = []
    for candidate in candidates:
        scores: dict[Operation, float] = {}
        for operation, due in candidate.due.items():
            points = score(due, candidate.knobs, now - candidate.due_since)
            reason = candidate.blocked or _cooling(candidate, operation, now)
            if reason is None:
                scores[operation] = points
            else:
                deferred.append(Deferred(candidate.ref, operation, reason, points))
        if scores:
            waiting.append((max(scores.values()), candidate, scores))
    waiting.sort(key=lambda item: (-item[0], item[1].ref))
    jobs, queued = _admit(waiting, limits, running, started)
    return Plan(jobs, (*queued, *deferred))


def _cooling(candidate: Candidate, operation: Operation, now: datetime) -> str | None:
    last = candidate.history.get(operation)
    if last is None:
        return None
    until = last.finished + timedelta(minutes=candidate.knobs[COOLDOWN[operation]])
    return f"cooling down until {until:%Y-%m-%d %H:%M} UTC" if now < until else None


def _admit(
    waiting: Sequence[tuple[float, Candidate, Mapping[Operation, float]]],
    limits: Limits,
    running: Sequence[Sequence[Operation]],
    started: int,
) -> tuple[tuple[PlannedJob, ...], list[Deferred]]:
    used = Counter(op for operations in running for op in operations)
    jobs: list[PlannedJob] = []
    queued: list[Deferred] = []
    position = 0
    for best, candidate, scores in waiting:
        operations = tuple(op for op in ORDERS[candidate.knobs[ORDER]] if op in scores)
        # what stands after an operation without room waits with it: the order within a table is kept
        full = next((i for i, op in enumerate(operations) if used[op] >= _room(limits, op)), len(operations))
        reason = None
        if started + len(jobs) >= limits.max_jobs:
            reason, full = f"limit max_jobs_per_detection ({limits.max_jobs}) reached", 0
        elif len(running) + len(jobs) >= limits.total:
            reason, full = f"global limit ({limits.total}) reached", 0
        elif full < len(operations):
            reason = f"limit per_operation.{operations[full]} ({_room(limits, operations[full])}) reached"
        if full:
            used.update(operations[:full])
            jobs.append(_job(candidate, operations[:full], best))
        if reason is not None:
            position += 1
            queued += [Deferred(candidate.ref, op, reason, scores[op], position) for op in operations[full:]]
    return tuple(jobs), queued


def _room(limits: Limits, operation: Operation) -> int:
    return limits.per_operation.get(operation, limits.total)


def _job(candidate: Candidate, operations: tuple[Operation, ...], best: float) -> PlannedJob:
    chosen = [candidate.due[op] for op in operations]
    return PlannedJob(
        candidate.ref,
        candidate.table_uuid,
        operations,
        best,
        sum(d.benefit for d in chosen),
        sum(d.cost for d in chosen),
        "; ".join(f"{op}: {d.why}" for op, d in zip(operations, chosen, strict=True)),
    )
