"""Plan the most valuable work over all tables within limits; all other work is deferred with reason and position."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import log2

from icewright.core.policy import ORDERS, Operation
from icewright.core.table import TableRef
from icewright.core.windows import closed

IMPORTANCES: Mapping[str, float] = {"critical": 8.0, "high": 3.0, "normal": 1.0, "low": 0.3}
AGEING = timedelta(hours=6)  # waiting this long counts as much as the score itself, so that nothing starves
LEAST_COST = 1e-6


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of a pool: jobs at the same time, and GB-hours a day."""

    max_concurrent: int
    gb_hours_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """The limits of a catalog's tables: jobs at the same time, and GB-hours a day."""

    max_concurrent: int | None = None
    gb_hours_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may run at the same time, and how much one pass may start."""

    total: int = 4
    per_operation: Mapping[Operation, int] = field(default_factory=dict)
    max_jobs: int = 100
    per_worker: int = 4  # jobs that one process runs at the same time
    pools: Mapping[str, PoolLimits] = field(default_factory=dict)  # of a pool that is not named: no limit of its own
    catalogs: Mapping[str, CatalogLimits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DueOperation:
    """A due operation as the queue sees it."""

    benefit: float
    cost: float
    why: str
    on_pool: bool = False  # Spark does it; else the service itself
    cooled: datetime | None = None  # when the cooldown after its last run is over
    blocked: str | None = None  # why it may not start: a resource that it needs does not answer


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table with something due."""

    ref: TableRef
    table_uuid: str
    wishes: Mapping[Operation, DueOperation]
    due_since: datetime
    importance: str = "normal"
    order: str = "canonical"
    windows: str | None = None
    heat: float = 1.0
    pool: str = "default"
    blocked: str | None = None  # paused, held by another job, catalog disabled: why nothing may start


@dataclass(frozen=True, slots=True)
class Active:
    """A job that waits for a worker or runs."""

    ref: TableRef
    pool: str
    operations: tuple[Operation, ...]
    on_pool: bool
    cost: float = 0.0  # GB-hours, as predicted


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of the limits: unfinished jobs, GB-hours spent today, and jobs that this pass has started."""

    active: tuple[Active, ...] = ()
    spent_by_pool: Mapping[str, float] = field(default_factory=dict)
    spent_by_catalog: Mapping[str, float] = field(default_factory=dict)
    started: int = 0


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
    pool: str = "default"
    on_pool: bool = False


@dataclass(frozen=True, slots=True)
class Deferred:
    """Due, but not now. `position` is the place in the queue, None when no place is being waited for."""

    ref: TableRef
    operation: Operation
    reason: str
    score: float
    position: int | None = None


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """Jobs to start now, the best first, and the deferred operations."""

    jobs: tuple[PlannedJob, ...]
    deferred: tuple[Deferred, ...]


def score(wish: DueOperation, importance: str, waited: timedelta, heat: float = 1.0) -> float:
    """Return benefit per cost, weighted by importance and heat, growing with the time waited.

    Not relative to the other candidates: one alone scores as it would among many. Failures do not enter.
    """
    ageing = 1.0 + max(timedelta(0), waited) / AGEING
    return wish.benefit * IMPORTANCES[importance] * heat * ageing / max(wish.cost, LEAST_COST)


def heat_factor(queries_per_day: float) -> float:
    """Return the weight of a table that has so many queries a day: 1 for none, 2 for one, 5 for 15."""
    return 1.0 + log2(1.0 + max(0.0, queries_per_day))


def make_plan(
    candidates: Sequence[Candidate], limits: Limits, now: datetime, usage: Usage | None = None
) -> MaintenancePlan:
    """Admit the best candidates; all others are deferred, each with its reason and its position in the queue."""
    deferred: list[Deferred] = []
    waiting: list[tuple[float, Candidate, dict[Operation, float]]] = []
    for candidate in candidates:
        scores: dict[Operation, float] = {}
        shut = candidate.blocked or closed(candidate.windows, now)
        for operation, wish in candidate.wishes.items():
            points = score(wish, candidate.importance, now - candidate.due_since, candidate.heat)
            reason = candidate.blocked or wish.blocked or _cooling(wish, now) or shut
            if reason is None:
                scores[operation] = points
            else:
                deferred.append(Deferred(candidate.ref, operation, reason, points))
        if scores:
            waiting.append((max(scores.values()), candidate, scores))
    waiting.sort(key=lambda item: (-item[0], item[1].ref.catalog, item[1].ref.namespace, item[1].ref.name))
    jobs, queued = _admit(waiting, _Room(limits, usage or Usage()))
    return MaintenancePlan(jobs, (*queued, *deferred))


def _cooling(wish: DueOperation, now: datetime) -> str | None:
    if wish.cooled is None or now >= wish.cooled:
        return None
    return f"cooling down until {wish.cooled:%Y-%m-%d %H:%M} UTC"


def _admit(
    waiting: Sequence[tuple[float, Candidate, Mapping[Operation, float]]], room: _Room
) -> tuple[tuple[PlannedJob, ...], list[Deferred]]:
    jobs: list[PlannedJob] = []
    queued: list[Deferred] = []
    position = 0
    for best, candidate, scores in waiting:
        operations = tuple(op for op in ORDERS[candidate.order] if op in scores)
        admitted, reason = room.admit(candidate, operations)
        if admitted:
            jobs.append(_job(candidate, admitted, best))
        if reason is not None:
            position += 1
            queued += [Deferred(candidate.ref, op, reason, scores[op], position) for op in operations[len(admitted) :]]
    return tuple(jobs), queued


class _Room:
    """The remaining capacity within the limits; each admitted job reduces it."""

    def __init__(self, limits: Limits, usage: Usage) -> None:
        self._limits = limits
        self._jobs, self._started = len(usage.active), usage.started
        self._operations = Counter(op for job in usage.active for op in job.operations)
        self._in_catalog = Counter(job.ref.catalog for job in usage.active)
        self._in_pool = Counter(job.pool for job in usage.active if job.on_pool)
        self._by_pool = defaultdict(float, usage.spent_by_pool)
        self._by_catalog = defaultdict(float, usage.spent_by_catalog)
        for job in usage.active:
            self._by_catalog[job.ref.catalog] += job.cost
            self._by_pool[job.pool] += job.cost if job.on_pool else 0.0

    def admit(self, candidate: Candidate, operations: Sequence[Operation]) -> tuple[tuple[Operation, ...], str | None]:
        """Return the leading operations that fit the limits, and why the next does not: their order is kept."""
        reason = self._job_refused(candidate)
        admitted: list[Operation] = []
        on_pool = False
        for operation in operations if reason is None else ():
            wish = candidate.wishes[operation]
            reason = self._refused(candidate, operation, wish, new_on_pool=wish.on_pool and not on_pool)
            if reason is not None:
                break
            on_pool |= wish.on_pool
            self._operations[operation] += 1
            self._by_catalog[candidate.ref.catalog] += wish.cost
            self._by_pool[candidate.pool] += wish.cost if wish.on_pool else 0.0
            admitted.append(operation)
        if admitted:
            self._jobs += 1
            self._started += 1
            self._in_catalog[candidate.ref.catalog] += 1
            self._in_pool[candidate.pool] += on_pool
        return tuple(admitted), reason

    def _job_refused(self, candidate: Candidate) -> str | None:
        limits, catalog = self._limits, candidate.ref.catalog
        if self._started >= limits.max_jobs:
            return f"limit max_jobs_per_detection ({limits.max_jobs}) reached"
        if self._jobs >= limits.total:
            return f"global limit ({limits.total}) reached"
        most = limits.catalogs.get(catalog, CatalogLimits()).max_concurrent
        if most is not None and self._in_catalog[catalog] >= most:
            return f"limit of catalog {catalog} ({most}) reached"
        return None

    def _refused(
        self, candidate: Candidate, operation: Operation, wish: DueOperation, *, new_on_pool: bool
    ) -> str | None:
        limits, catalog = self._limits, candidate.ref.catalog
        most = limits.per_operation.get(operation, limits.total)
        if self._operations[operation] >= most:
            return f"limit per_operation.{operation} ({most}) reached"
        pool = limits.pools.get(candidate.pool)
        if new_on_pool and pool is not None and self._in_pool[candidate.pool] >= pool.max_concurrent:
            return f"limit of pool {candidate.pool} ({pool.max_concurrent}) reached"
        budget = limits.catalogs.get(catalog, CatalogLimits()).gb_hours_per_day
        if _too_much(budget, self._by_catalog[catalog], wish.cost):
            return f"the budget of catalog {catalog} ({budget:g} GB-hours a day) has no room until 00:00 UTC"
        budget = pool.gb_hours_per_day if pool is not None and wish.on_pool else None
        if _too_much(budget, self._by_pool[candidate.pool], wish.cost):
            return f"the budget of pool {candidate.pool} ({budget:g} GB-hours a day) has no room until 00:00 UTC"
        return None


def _too_much(budget: float | None, spent: float, cost: float) -> bool:
    """Return whether the budget is exceeded; work above a day's budget runs first of a day, or it never would."""
    return budget is not None and spent > 0 and spent + cost > budget


def _job(candidate: Candidate, operations: tuple[Operation, ...], best: float) -> PlannedJob:
    chosen = [candidate.wishes[op] for op in operations]
    return PlannedJob(
        candidate.ref,
        candidate.table_uuid,
        operations,
        best,
        sum(w.benefit for w in chosen),
        sum(w.cost for w in chosen),
        "; ".join(f"{op}: {w.why}" for op, w in zip(operations, chosen, strict=True)),
        candidate.pool,
        any(w.on_pool for w in chosen),
    )
