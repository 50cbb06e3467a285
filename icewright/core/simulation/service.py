"""The simulated service: it detects, evaluates, plans and runs as the real one, by a policy and its limits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from icewright.core.capacity import Active, Candidate, DueOperation, Limits, Usage
from icewright.core.cost import service_cost
from icewright.core.effective import Knobs
from icewright.core.layering import Policy
from icewright.core.plan import PlannedJob, make_plan, score
from icewright.core.policy import ORDERS, Operation
from icewright.core.runs import LastRun
from icewright.core.simulation.work import Begun, Done, SimulatedRun, begin, last_run
from icewright.core.simulation.world import World
from icewright.core.steps import Due, Step, on_pool
from icewright.core.table import Thresholds
from icewright.core.verdicts import Evaluation, due, evaluate, thresholds
from icewright.core.windows import opens

_PACE = timedelta(seconds=3)  # the plan is made at most so often, as in the service


class SimulatedQueue:
    """Waiting tables in groups that the limits treat alike; the best of each group are planned.

    A budget tells even those apart, by their cost, and so do shares of namespaces: then all that wait are looked at.
    """

    def __init__(self, limits: Limits) -> None:
        budgets = [place.gb_hours_per_day for place in limits.pools.values()]
        budgets += [place.gb_hours_per_day for place in limits.catalogs.values()]
        self._all = bool(limits.namespaces) or any(budget is not None for budget in budgets)
        self._limits = limits
        self._alike: dict[tuple[str, str, Operation, object], list[tuple[float, int]]] = {}
        self._overdue_at: list[tuple[datetime, int]] = []
        self._places: dict[int, list[tuple[list[Any], Any]]] = {}  # of tables: the lists with their entries

    @property
    def waiting(self) -> bool:
        """Return whether any table might begin a job."""
        return any(self._alike.values())

    def clear(self) -> None:
        """Remove all tables from the queue."""
        self._alike.clear()
        self._overdue_at.clear()
        self._places.clear()

    def add(self, number: int, candidate: Candidate, now: datetime) -> datetime | None:
        """Add a table unless its window is closed, or all its operations are in cooldown: until when is returned then.

        What becomes overdue before its window opens is put before the plan all the same, as budgets are left to it.
        """
        due_operations = {op: w for op, w in candidate.due_operations.items() if w.cooled is None or now >= w.cooled}
        if not due_operations:
            return min(w.cooled for w in candidate.due_operations.values() if w.cooled is not None)
        self.remove(number)
        longest = max(w.waited(now) for w in due_operations.values())
        self._put(number, self._overdue_at, (now - longest + self._limits.max_wait[candidate.importance], number))
        if opens(candidate.windows, now) is not None:
            return None
        points = max(score(w, candidate.importance, w.waited(now), candidate.heat) for w in due_operations.values())
        first = next(op for op in ORDERS[candidate.order] if op in due_operations)
        wanted = (candidate.order, *((op, w.on_pool) for op, w in due_operations.items()))
        key = (candidate.ref.catalog, candidate.pool, first, wanted)
        self._put(number, self._alike.setdefault(key, []), (points, -number))
        return None

    def _put(self, number: int, entries: list[Any], entry: Any) -> None:  # noqa: ANN401 - by time or by points
        insort(entries, entry)
        self._places.setdefault(number, []).append((entries, entry))

    def best(self, free: int, busy: Mapping[Operation, int], now: datetime) -> Collection[int]:
        """Return enough waiting tables for the plan to choose as it would among all."""
        if free <= 0:
            return ()
        overdue = self._overdue_at[: bisect_right(self._overdue_at, now, key=itemgetter(0))]
        numbers = {number for _, number in overdue}
        limits = self._limits.per_operation
        for (_, _, first, _), waiting in self._alike.items():
            if busy.get(first, 0) >= limits.get(first, self._limits.total):
                continue  # the order in a table is kept: nothing of it may begin
            numbers.update(-number for _, number in (waiting if self._all else waiting[-free:]))
        return numbers

    def remove(self, number: int) -> None:
        """Remove a table from the queue, if it is there."""
        for entries, entry in self._places.pop(number, ()):
            del entries[bisect_left(entries, entry)]


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A finished job, for listeners."""

    number: int  # of the table
    operations: tuple[Operation, ...]
    begun: datetime
    ended: datetime
    gb_hours: float


@dataclass(slots=True)
class _Known:
    """The service's knowledge of a table between two evaluations."""

    knobs: Knobs
    sizes: Thresholds
    pool: str
    history: dict[Operation, LastRun] = field(default_factory=dict)
    dues: Mapping[Operation, Due] = field(default_factory=dict)
    since: dict[Operation, datetime] = field(default_factory=dict)  # of what is due
    look_at: datetime | None = None
    rests_until: datetime | None = None
    running: bool = False


@dataclass(slots=True)
class _Running:
    """A simulated job that is in progress."""

    number: int
    operations: tuple[Operation, ...]
    begun: datetime
    steps: Iterator[tuple[Operation, Step, bool]]  # the last step of an operation says so
    gb_hours: float = 0.0
    done: list[Done] = field(default_factory=list)  # of the operation that runs
    cost: float = 0.0  # likewise


class SimulatedService:
    """Evaluate changed tables at an interval, and begin jobs as soon as the limits allow."""

    def __init__(
        self,
        world: World,
        policy: Policy,
        limits: Limits,
        *,
        every: timedelta,
        pools: Mapping[str, str] | None = None,
        on_job: Callable[[SimulatedJob], None] = lambda _: None,
    ) -> None:
        self._world, self._limits, self._every, self._on_job = world, limits, every, on_job
        pools = pools or {}
        shared: dict[str, tuple[Knobs, Thresholds]] = {}
        self._known: list[_Known] = []
        for table in world.tables:
            knobs = policy.knobs_for(table.ref, None)
            same = shared.setdefault(knobs.fingerprint, (knobs, thresholds(knobs)))
            self._known.append(_Known(*same, pools.get(table.ref.catalog, "default")))
        self._dirty = set(range(len(world.tables)))
        self._later: list[tuple[datetime, int]] = []
        self._due: dict[int, Candidate] = {}
        self._queue = SimulatedQueue(limits)
        self._active: dict[int, Active] = {}
        self._spent = _Spent()
        self._passes_at = world.now
        self._planned: datetime | None = None
        self._plan_waits = False

    def begin(self) -> None:
        """Schedule the first detection of changes."""
        self._world.at(self._world.now, self._pass)

    def written(self, number: int) -> None:
        """Mark the table as changed for the next detection."""
        self._dirty.add(number)

    @property
    def waiting(self) -> int:
        """Return the number of tables with due work that has not begun."""
        return len(self._due)

    def _pass(self) -> None:
        """Evaluate changed tables and those whose time has come, then begin jobs within the limits."""
        world = self._world
        looked = self._dirty
        self._dirty = set()
        while self._later and self._later[0][0] <= world.now:
            when, number = heappop(self._later)
            if self._known[number].look_at == when:
                looked.add(number)
        for number in sorted(looked):
            known = self._known[number]
            if known.running or (known.rests_until is not None and world.now < known.rests_until):
                self._dirty.add(number)
            else:
                self._look(number, known)
        self._passes_at = world.now + self._every
        world.at(self._passes_at, self._pass)
        self._queue.clear()
        for number in self._due:
            self._enqueue(number)
        self._plan()

    def _look(self, number: int, known: _Known) -> None:
        world = self._world
        facts = world.tables[number].facts(known.sizes)
        evaluation = evaluate(facts, known.knobs, known.history, world.now)
        world.meter.looked(service_cost(facts.manifest_count))
        known.rests_until = world.now + evaluation.terms.rest
        known.look_at = evaluation.revisit
        heappush(self._later, (evaluation.revisit, number))
        known.dues = due(evaluation)
        known.since = {op: known.since.get(op, world.now) for op in known.dues}
        if known.dues:
            self._due[number] = _candidate(evaluation, known, number)
        else:
            self._due.pop(number, None)

    def _enqueue(self, number: int) -> None:
        """Put a table with due work into the queue; one in cooldown joins when that ends."""
        candidate = self._due[number]
        cools = self._queue.add(number, candidate, self._world.now)
        if cools is not None and cools < self._passes_at:
            self._world.at(cools, partial(self._end_cooldown, number, candidate))

    def _end_cooldown(self, number: int, candidate: Candidate) -> None:
        if self._due.get(number) is candidate:
            self._enqueue(number)
            self._plan_soon()

    def _plan(self) -> None:
        """Begin the best of the waiting jobs."""
        world = self._world
        self._planned, self._plan_waits = world.now, False
        busy = Counter(op for active in self._active.values() for op in active.operations)
        shortlist = self._queue.best(self._limits.total - len(self._active), busy, world.now)
        if not shortlist:
            return
        spent = self._spent.on(world.now.date())
        usage = Usage(tuple(self._active.values()), spent.pools, spent.catalogs, spent.namespaces)
        for job in make_plan([self._due[n] for n in shortlist], self._limits, world.now, usage).jobs:
            self._start(int(job.table_uuid), job)

    def _plan_soon(self) -> None:
        if not self._plan_waits and self._queue.waiting:
            self._plan_waits = True
            earliest = self._world.now if self._planned is None else self._planned + _PACE
            self._world.at(max(self._world.now, earliest), self._plan)

    def _start(self, number: int, job: PlannedJob) -> None:
        known = self._known[number]
        known.running = True
        self._due.pop(number)
        self._queue.remove(number)
        self._active[number] = job.active()
        steps = _steps((op, known.dues[op]) for op in job.operations)
        self._next(_Running(number, job.operations, self._world.now, steps))

    def _next(self, job: _Running) -> None:
        """Begin the next step of the job, or end the job."""
        world = self._world
        next_step = next(job.steps, None)
        if next_step is None:
            self._end(job)
            return
        operation, step, last = next_step
        begun = begin(world.tables[job.number], step, world.now)
        ended = partial(self._end_step, job, operation, step, begun, last=last)
        world.after(begun.seconds, ended)

    def _end_step(self, job: _Running, operation: Operation, step: Step, begun: Begun, *, last: bool) -> None:
        world = self._world
        done = begun.end(world.now)
        world.changed(job.number)
        known = self._known[job.number]
        spent = self._spent.on(world.now.date())
        ref = world.tables[job.number].ref
        spent.catalogs[ref.catalog] += begun.gb_hours
        spent.namespaces[ref.parts[:-1]] += begun.gb_hours
        spent.pools[known.pool] += begun.gb_hours if on_pool(step) else 0.0
        job.gb_hours += begun.gb_hours
        job.cost += begun.gb_hours
        job.done.append(done)
        world.meter.spent(operation, begun.gb_hours, done.deleted)
        if last:
            world.meter.runs[operation] += 1
            ran = SimulatedRun(known.dues[operation], tuple(job.done), job.cost, world.now)
            before = known.history.get(operation)
            known.history[operation] = last_run(operation, world.tables[job.number], known.knobs, ran, before)
            known.since[operation] = world.now
            job.done, job.cost = [], 0.0
        self._next(job)

    def _end(self, job: _Running) -> None:
        """End the job; the table is evaluated at once, so that our own commits count as no change."""
        number, known = job.number, self._known[job.number]
        known.running = False
        del self._active[number]
        self._dirty.discard(number)
        self._look(number, known)
        if number in self._due:
            self._enqueue(number)
        self._on_job(SimulatedJob(number, job.operations, job.begun, self._world.now, job.gb_hours))
        self._plan_soon()


def _candidate(evaluation: Evaluation, known: _Known, number: int) -> Candidate:
    """Return the table as a candidate of the plan; its number stands for its uuid."""
    terms = evaluation.terms
    due_operations = {
        op: DueOperation(
            d.benefit, d.cost, d.why, known.since[op], any(map(on_pool, d.work.steps)), terms.cooled.get(op)
        )
        for op, d in known.dues.items()
    }
    return Candidate(
        evaluation.facts.ref,
        str(number),
        due_operations,
        importance=terms.importance,
        order=terms.order,
        windows=terms.windows,
        pool=known.pool,
    )


def _steps(dues: Iterable[tuple[Operation, Due]]) -> Iterator[tuple[Operation, Step, bool]]:
    for operation, verdict in dues:
        steps = verdict.work.steps
        for step in steps:
            yield operation, step, step is steps[-1]


class _Spent:
    """GB-hours of the day, by pool, by catalog and by namespace."""

    def __init__(self) -> None:
        self._day: date | None = None
        self.pools: defaultdict[str, float] = defaultdict(float)
        self.catalogs: defaultdict[str, float] = defaultdict(float)
        self.namespaces: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def on(self, day: date) -> _Spent:
        """Return the sums of this day."""
        if self._day != day:
            self._day = day
            self.pools.clear()
            self.catalogs.clear()
            self.namespaces.clear()
        return self
