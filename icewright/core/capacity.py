"""The limits on what may run at the same time or in a day, and the capacity that is left of them."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from icewright.core.layering import matches, specificity
from icewright.core.policy import Operation
from icewright.core.table import TableRef

MAX_WAIT: Mapping[str, timedelta] = {
    "critical": timedelta(hours=6),
    "high": timedelta(hours=12),
    "normal": timedelta(hours=24),
    "low": timedelta(hours=48),
}
_SHARE = "namespace "  # before the pattern: the name of limits that others may borrow from
RESERVED_SHARE = 4  # one slot of so many, and at least one, is for what has waited too long
LONG_OVERDUE = timedelta(weeks=1)  # in which each window opens
LONG_WAIT = timedelta(seconds=30)  # a job that waits so long for a place in Spark says that there are too many
BACKLOG = 4.0  # tasks that wait for each core


class Priority(enum.IntEnum):
    """The order of queued jobs; those of one priority are ordered by score."""

    VALUE = 0  # planned by score
    OVERDUE = 1  # planned or promoted because it has waited too long
    MANUAL = 2


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of a pool: jobs at the same time, and GB-hours a day."""

    max_concurrent: int
    gb_hours_per_day: float | None = None
    gb_hour_price: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """The limits of the tables of a catalog or a namespace: jobs at the same time, and GB-hours a day."""

    max_concurrent: int | None = None
    gb_hours_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what runs at the same time, and on what one pass starts."""

    total: int = 4
    per_operation: Mapping[Operation, int] = field(default_factory=dict)
    max_jobs: int = 100
    per_worker: int = 2  # jobs that one process runs at the same time
    pools: Mapping[str, PoolLimits] = field(default_factory=dict)  # of a pool that is not named: no limit of its own
    catalogs: Mapping[str, CatalogLimits] = field(default_factory=dict)
    namespaces: Mapping[tuple[str, ...], CatalogLimits] = field(default_factory=dict)  # by pattern; shares, not bounds
    max_wait: Mapping[str, timedelta] = field(default_factory=lambda: MAX_WAIT)  # by importance
    gb_hour_price: float | None = None  # in the service, and on pools that have none of their own
    gb_month_price: float | None = None  # of storage

    @property
    def reserved(self) -> int:
        """Return the number of slots for operations that have waited too long."""
        return max(1, self.total // RESERVED_SHARE)

    def goes_first_from(self, due_since: datetime | None, importance: str) -> datetime | None:
        """Return from when what is due since a time goes before all that is worth more; None where nothing is due."""
        return None if due_since is None else due_since + self.max_wait[importance]

    def money(self, gb_hours: float, pool: str | None) -> float | None:
        """Return what GB-hours cost on a pool, or in the service; None where no price is known."""
        bounds = self.pools.get(pool) if pool is not None else None
        price = self.gb_hour_price if bounds is None or bounds.gb_hour_price is None else bounds.gb_hour_price
        return None if price is None else gb_hours * price

    def storage_money(self, stored_bytes: int) -> float | None:
        """Return what it costs to store bytes for a month; None where no price is known."""
        return None if self.gb_month_price is None else stored_bytes / (1 << 30) * self.gb_month_price


@dataclass(frozen=True, slots=True)
class DueOperation:
    """A due operation as the queue sees it."""

    benefit: float
    cost: float
    why: str
    since: datetime  # when it became due, or last ran if it still is
    on_pool: bool = False  # Spark does it; else the service itself
    cooled: datetime | None = None  # when the cooldown after its last run is over
    blocked: str | None = None  # why it may not start: a resource that it needs does not answer

    def waited(self, now: datetime) -> timedelta:
        """Return how long the operation could have run, but for limits, windows and other jobs."""
        return max(timedelta(0), now - max(self.since, self.cooled or self.since))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table with something due."""

    ref: TableRef
    table_uuid: str
    due_operations: Mapping[Operation, DueOperation]
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
    priority: Priority = Priority.VALUE


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of the limits: unfinished jobs, GB-hours spent today, and jobs that this pass has started."""

    active: tuple[Active, ...] = ()
    spent_by_pool: Mapping[str, float] = field(default_factory=dict)
    spent_by_catalog: Mapping[str, float] = field(default_factory=dict)
    spent_by_namespace: Mapping[tuple[str, ...], float] = field(default_factory=dict)  # by catalog and namespace
    started: int = 0


class Room:
    """The remaining capacity within the limits; each admitted job reduces it.

    Limits of namespaces are shares: `lend` lets jobs use what is left of those of others. Where several catalogs wait,
    three quarters of the slots are the most of each, so that one whose jobs take long leaves a place to others.
    `day_share` is how much of the day is over.
    """

    def __init__(self, limits: Limits, usage: Usage, day_share: float = 0.0, *, several: bool = False) -> None:
        self._limits, self._day_share, self._lends, self._several = limits, day_share, False, several
        self._patterns = sorted(limits.namespaces, key=specificity, reverse=True)
        self._shares: dict[tuple[str, ...], str | None] = {}  # the limits of each namespace that has been met
        self._bounds: dict[str, PoolLimits | CatalogLimits] = {
            **{f"catalog {name}": bounds for name, bounds in limits.catalogs.items()},
            **{f"pool {name}": bounds for name, bounds in limits.pools.items()},
            **{_share_name(pattern): bounds for pattern, bounds in limits.namespaces.items()},
        }
        self._jobs, self._started = len(usage.active), usage.started
        self._overdue_slots = limits.reserved - sum(job.priority is Priority.OVERDUE for job in usage.active)
        self._operations = Counter(op for job in usage.active for op in job.operations)
        self._running: Counter[str] = Counter()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._spent |= {f"catalog {name}": spent for name, spent in usage.spent_by_catalog.items()}
        self._spent |= {f"pool {name}": spent for name, spent in usage.spent_by_pool.items()}
        for namespace, spent in usage.spent_by_namespace.items():
            if (share := self._share(namespace)) is not None:
                self._spent[share] += spent
        self._put_aside: set[str] = set()  # budgets of which the longest overdue operation has its part
        for job in usage.active:
            for place in self._places(job.ref, job.pool, on_pool=job.on_pool):
                self._running[place] += 1
                self._spent[place] += job.cost

    def lend(self) -> None:
        """Let jobs of a namespace use slots and GB-hours that others have left of their shares."""
        self._lends = True

    def has_share(self, ref: TableRef) -> bool:
        """Return whether the table's catalog or namespace has a share, beyond which it may use what others leave."""
        return self._several or self._share(ref.parts[:-1]) is not None

    def admit(
        self, candidate: Candidate, operations: Sequence[Operation]
    ) -> tuple[tuple[Operation, ...], Mapping[Operation, str]]:
        """Return the leading operations that fit the limits, and why the others do not: their order is kept."""
        shut = self._job_refused(candidate)
        refused: dict[Operation, str] = {}
        admitted: list[Operation] = []
        for operation in operations:
            reason = shut or next(iter(refused.values()), None) or self._refused(candidate, operation, admitted)
            if reason is None:
                self._take(candidate, operation, admitted)
            else:
                refused[operation] = reason
        if admitted:
            self._begin(candidate)
        return tuple(admitted), refused

    def admit_overdue(
        self, candidate: Candidate, operations: Mapping[Operation, timedelta]
    ) -> tuple[tuple[Operation, ...], Mapping[Operation, str]] | None:
        """Return the overdue operations that fit, and why the others do not; None when the reserved slots are taken.

        The operations come with the time by which they are overdue. None of them waits for another. What does not fit
        puts aside what it needs, so that nothing else uses it up as it becomes free: a part of each budget always, a
        slot unless it waits for a budget.
        """
        if self._overdue_slots <= 0:
            self.put_budgets_aside(candidate, operations)
            return None
        shut = self._job_refused(candidate, overdue=True)
        refused: dict[Operation, str] = {}
        admitted: list[Operation] = []
        waits_for_slot = shut is not None
        for operation, late in operations.items():
            over_budget = self._over_budget(candidate, operation, admitted, late)
            reason = shut or over_budget or self._refused(candidate, operation, admitted, late)
            if reason is None:
                self._take(candidate, operation, admitted)
                continue
            refused[operation] = reason
            self.put_budgets_aside(candidate, [operation])
            if not shut and not over_budget:
                waits_for_slot = True
                self._use_slots(candidate, operation, ())
        if admitted:
            self._begin(candidate)
        elif waits_for_slot:
            self._occupy(candidate.ref)
        self._overdue_slots -= bool(admitted) or waits_for_slot
        return tuple(admitted), refused

    def put_budgets_aside(self, candidate: Candidate, operations: Iterable[Operation]) -> None:
        """Leave a part of each budget that they need to overdue operations, unless a longer overdue one has it."""
        for operation in operations:
            for place, cost in self._costs(candidate, operation, ()).items():
                if place not in self._put_aside:
                    self._put_aside.add(place)
                    self._spent[place] += cost

    def _take(self, candidate: Candidate, operation: Operation, job: list[Operation]) -> None:
        """Add one more operation to a job, and use the limits for it."""
        for place, cost in self._costs(candidate, operation, job).items():
            self._spent[place] += cost
        self._use_slots(candidate, operation, job)
        job.append(operation)

    def _use_slots(self, candidate: Candidate, operation: Operation, before: Sequence[Operation]) -> None:
        self._operations[operation] += 1
        self._running[f"pool {candidate.pool}"] += _is_first_on_pool(candidate, operation, before)

    def _begin(self, candidate: Candidate) -> None:
        self._jobs += 1
        self._started += 1
        self._occupy(candidate.ref)

    def _occupy(self, ref: TableRef) -> None:
        for place in self._places(ref, "", on_pool=False):
            self._running[place] += 1

    def _job_refused(self, candidate: Candidate, *, overdue: bool = False) -> str | None:
        limits = self._limits
        if self._started >= limits.max_jobs:
            return f"limit max_jobs_per_detection ({limits.max_jobs}) reached"
        if self._jobs >= limits.total:
            return f"global limit ({limits.total}) reached"
        places = self._places(candidate.ref, candidate.pool, on_pool=False)
        return next((reason for place in places if (reason := self._full(place, overdue=overdue)) is not None), None)

    def _refused(
        self, candidate: Candidate, operation: Operation, before: Sequence[Operation], late: timedelta | None = None
    ) -> str | None:
        """Return why the operation does not fit into a job that has the operations `before` it."""
        most = self._limits.per_operation.get(operation, self._limits.total)
        if self._operations[operation] >= most:
            return f"limit per_operation.{operation} ({most}) reached"
        full = self._full(f"pool {candidate.pool}") if _is_first_on_pool(candidate, operation, before) else None
        return full or self._over_budget(candidate, operation, before, late)

    def _full(self, place: str, *, overdue: bool = False) -> str | None:
        bounds, most = self._bounds.get(place), max(1, self._limits.total - self._limits.reserved)
        # of the reserved slots no catalog has to leave others a part: these go by the time waited alone
        leaves_a_part = self._several and not self._lends and not overdue
        if leaves_a_part and place.startswith("catalog ") and self._running[place] >= most:
            return f"{place} has {most} of {self._limits.total} slots, and others wait"
        if bounds is None or bounds.max_concurrent is None or self._running[place] < bounds.max_concurrent:
            return None
        if self._lends and place.startswith(_SHARE):
            return None
        return f"limit of {place} ({bounds.max_concurrent}) reached"

    def _over_budget(
        self, candidate: Candidate, operation: Operation, before: Sequence[Operation], late: timedelta | None
    ) -> str | None:
        """Return the budget that has no room for an operation; `late` says by how much it is overdue, None: not.

        Work above a day's budget runs first of a day, or, if it is overdue, while any of the budget is left: it would
        never run otherwise. So does what is overdue by a week, as jobs that began on the day before its window may have
        taken a part of each budget that it could have used. Neither takes what is put aside for a longer overdue one.
        """
        for place, cost in self._costs(candidate, operation, before).items():
            bounds, spent = self._bounds.get(place), self._spent[place]
            budget = None if bounds is None else bounds.gb_hours_per_day
            if budget is None or spent <= 0:
                continue
            if self._lends and place.startswith(_SHARE) and cost <= self._borrowable:
                continue
            overdue = late is not None and (cost > budget or late >= LONG_OVERDUE)
            while_any_is_left = overdue and place not in self._put_aside  # for what is overdue longer
            if spent >= budget if while_any_is_left else spent + cost > budget:
                return f"the budget of {place} ({budget:g} GB-hours a day) has no room until 00:00 UTC"
        return None

    @property
    def _borrowable(self) -> float:
        """Return the GB-hours that all namespaces together have left of their budgets for the day up to now."""
        budgets = {name: self._bounds[name].gb_hours_per_day for name in map(_share_name, self._patterns)}
        return sum(budget * self._day_share - self._spent[name] for name, budget in budgets.items() if budget)

    def _costs(self, candidate: Candidate, operation: Operation, before: Sequence[Operation]) -> Mapping[str, float]:
        """Return what one more operation of a job uses of each budget; that of the pool has to pay the whole job."""
        due = candidate.due_operations
        costs = dict.fromkeys(self._places(candidate.ref, "", on_pool=False), due[operation].cost)
        if _is_first_on_pool(candidate, operation, before):
            costs[f"pool {candidate.pool}"] = due[operation].cost + sum(due[op].cost for op in before)
        elif any(due[op].on_pool for op in before):
            costs[f"pool {candidate.pool}"] = due[operation].cost
        return costs

    def _places(self, ref: TableRef, pool: str, *, on_pool: bool) -> Sequence[str]:
        """Return the names, as reasons show them, of the catalog and the pool whose limits apply to work on a table."""
        share = self._share(ref.parts[:-1])
        return (f"catalog {ref.catalog}", *(() if share is None else (share,)), *((f"pool {pool}",) if on_pool else ()))

    def _share(self, namespace: tuple[str, ...]) -> str | None:
        """Return the limits that a namespace or one above it has; the most specific pattern applies."""
        if self._patterns and namespace not in self._shares:
            matching = (p for p in self._patterns if matches(p, namespace[: len(p)]))
            self._shares[namespace] = next(map(_share_name, matching), None)
        return self._shares.get(namespace)


def _is_first_on_pool(candidate: Candidate, operation: Operation, before: Iterable[Operation]) -> bool:
    due = candidate.due_operations
    return due[operation].on_pool and not any(due[op].on_pool for op in before)


def _share_name(pattern: Sequence[str]) -> str:
    return _SHARE + ".".join(pattern)


@dataclass(frozen=True, slots=True)
class Load:
    """The load that a pool's Spark application reports."""

    cores: int
    active_tasks: int
    pending_tasks: int
    longest_wait: timedelta = timedelta(0)  # of a job for its turn

    @property
    def saturated(self) -> bool:
        """Return whether more jobs would only delay one another."""
        return self.pending_tasks > BACKLOG * max(1, self.cores) or self.longest_wait > LONG_WAIT

    @property
    def idle(self) -> bool:
        """Return whether cores are free."""
        return self.pending_tasks == 0 and self.active_tasks < self.cores and not self.saturated


def adapted(limit: int, load: Load | None, highest: int) -> int:
    """Return the next limit: halved when saturated, one more when idle (as TCP does), from 1 to `highest`.

    A pool that says nothing (not started, or a Connect server) keeps its highest.
    """
    if load is None:
        return highest
    if load.saturated:
        limit //= 2
    elif load.idle:
        limit += 1
    return max(1, min(highest, limit))
