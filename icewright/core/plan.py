"""Plan the most valuable work over all tables within limits; all other work is deferred with reason and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf, log2

from icewright.core.cadence import Cadence
from icewright.core.capacity import Active, Candidate, DueOperation, Limits, Priority, Room, Usage
from icewright.core.policy import ORDERS, Operation
from icewright.core.table import TableRef
from icewright.core.windows import closed, opens

IMPORTANCES: Mapping[str, float] = {"critical": 8.0, "high": 3.0, "normal": 1.0, "low": 0.3}
AGEING = timedelta(hours=6)  # waiting this long counts as much as the score itself
LEAST_COST = 1e-6


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
    priority: Priority = Priority.VALUE

    def active(self) -> Active:
        """Return the job as it uses the limits."""
        return Active(self.ref, self.pool, self.operations, self.on_pool, self.cost, self.priority)


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


def score(due: DueOperation, importance: str, waited: timedelta, heat: float = 1.0) -> float:
    """Return benefit per cost, weighted by importance and heat, growing with the time waited.

    Not relative to the other candidates: one alone scores as it would among many. Failures do not enter.
    """
    ageing = 1.0 + max(timedelta(0), waited) / AGEING
    return due.benefit * IMPORTANCES[importance] * heat * ageing / max(due.cost, LEAST_COST)


def heat_factor(queries_per_day: float) -> float:
    """Return the weight of a table that has so many queries a day: 1 for none, 2 for one, 5 for 15."""
    return 1.0 + log2(1.0 + max(0.0, queries_per_day))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A table with operations that only the limits may hold back."""

    candidate: Candidate
    scores: Mapping[Operation, float]  # none while its window is closed
    late: Mapping[Operation, tuple[timedelta, float]]  # of what has waited too long: by how much, and its score

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Return its operations in the order of its policy."""
        return tuple(op for op in ORDERS[self.candidate.order] if op in self.scores)


def make_plan(
    candidates: Sequence[Candidate], limits: Limits, now: datetime, usage: Usage | None = None
) -> MaintenancePlan:
    """Admit the best candidates; all others are deferred, each with its reason and its position in the queue.

    Operations that have waited longer than `limits.max_wait` go first, the longest overdue of them foremost, as long as
    their jobs take no more than the reserved slots: whatever else is due, each operation has its turn. Those whose
    window opens later in the day have their part of its budgets left to them.
    """
    deferred: list[Deferred] = []
    waiting: list[_Waiting] = []
    midnight = Cadence.DAILY.start(now)
    for candidate in candidates:
        scores: dict[Operation, float] = {}
        late: dict[Operation, tuple[timedelta, float]] = {}
        shut, opening = _opening(candidate.windows, now)
        for operation, due in candidate.due_operations.items():
            points = score(due, candidate.importance, due.waited(now), candidate.heat)
            reason = candidate.blocked or due.blocked or _cooling(due, now)
            over = due.waited(now) - limits.max_wait[candidate.importance]
            if reason is None and over >= timedelta(0) and opening < midnight + timedelta(days=1):
                late[operation] = over, points
            if (reason := reason or shut) is None:
                scores[operation] = points
            else:
                deferred.append(Deferred(candidate.ref, operation, reason, points))
        if scores or late:
            waiting.append(_Waiting(candidate, scores, late))
    several = len({item.candidate.ref.catalog for item in waiting if item.scores}) > 1
    room = Room(limits, usage or Usage(), (now - midnight) / timedelta(days=1), several=several)
    admission = _Admission(room, now)
    admission.admit(waiting)
    # what borrows slots came last
    jobs = sorted(admission.jobs, key=lambda job: -job.score if job.priority is Priority.VALUE else -inf)
    return MaintenancePlan(tuple(jobs), (*admission.queued, *deferred))


def _opening(windows: str | None, now: datetime) -> tuple[str | None, datetime]:
    """Return why the windows are closed, None when one is open, and when one opens.

    Those of a time zone that this machine does not know stay closed: another one may have stored them.
    """
    try:
        return closed(windows, now), opens(windows, now) or now
    except ValueError as error:
        return f"when its maintenance window opens is not known here: {error}", datetime.max.replace(tzinfo=now.tzinfo)


def _cooling(due: DueOperation, now: datetime) -> str | None:
    if due.cooled is None or now >= due.cooled:
        return None
    return f"cooling down until {due.cooled:%Y-%m-%d %H:%M} UTC"


@dataclass
class _Admission:
    """Gives waiting tables their room, one after another, and collects the jobs and what stays in the queue."""

    room: Room
    now: datetime
    jobs: list[PlannedJob] = field(default_factory=list)
    queued: list[Deferred] = field(default_factory=list)
    _position: int = 0
    _beyond_share: list[tuple[_Waiting, Priority]] = field(default_factory=list)

    def admit(self, waiting: Sequence[_Waiting]) -> None:
        """Admit what is overdue, then what is worth most, then what is beyond the share of its namespace."""
        taking_turns: set[TableRef] = set()  # what waits for its turn does not run in parts meanwhile
        by_name = sorted((item for item in waiting if item.late), key=lambda item: item.candidate.ref)
        for item in sorted(by_name, key=lambda item: max(item.late.values()), reverse=True):  # windows are no matter
            if self._admit_overdue(item):
                taking_turns.add(item.candidate.ref)
        rest = (item for item in waiting if item.scores and item.candidate.ref not in taking_turns)
        for item in sorted(rest, key=lambda item: (-max(item.scores.values()), item.candidate.ref)):
            admitted, refused = self.room.admit(item.candidate, item.operations)
            self._add_within_share(item, admitted, refused, Priority.VALUE)
        self.room.lend()  # what nothing else could use
        for item, priority in self._beyond_share:
            self._add(item, *self.room.admit(item.candidate, item.operations), priority)

    def _admit_overdue(self, item: _Waiting) -> bool:
        """Admit the overdue operations of a table; return whether its others wait for them."""
        overdue = {op: item.late[op][0] for op in sorted(item.late, key=item.late.__getitem__, reverse=True)}
        if not item.scores:
            self.room.put_budgets_aside(item.candidate, overdue)
            return False
        if (result := self.room.admit_overdue(item.candidate, overdue)) is None:
            return False
        admitted = tuple(op for op in item.operations if op in result[0])
        refused = {op: result[1][op] for op in item.operations if op in result[1]}
        first = f"what is overdue goes first: {', '.join(overdue)}"
        refused |= {op: first for op in item.operations if op not in overdue}
        self._add_within_share(item, admitted, refused, Priority.OVERDUE)
        return True

    def _add_within_share(
        self, item: _Waiting, admitted: tuple[Operation, ...], refused: Mapping[Operation, str], priority: Priority
    ) -> None:
        if not admitted and self.room.has_share(item.candidate.ref):
            self._beyond_share.append((item, priority))
        else:
            self._add(item, admitted, refused, priority)

    def _add(
        self, item: _Waiting, admitted: tuple[Operation, ...], refused: Mapping[Operation, str], priority: Priority
    ) -> None:
        if admitted:
            self.jobs.append(_job(item, admitted, self.now, priority))
        self._position += bool(refused)
        for operation, reason in refused.items():
            why = _with_wait(reason, item, operation, self.now)
            self.queued.append(Deferred(item.candidate.ref, operation, why, item.scores[operation], self._position))


def _with_wait(reason: str, item: _Waiting, operation: Operation, now: datetime) -> str:
    """Return the reason, with how long an operation that is overdue has waited."""
    if operation not in item.late:
        return reason
    return f"{reason}; waited {item.candidate.due_operations[operation].waited(now) // timedelta(hours=1)} hours"


def _job(item: _Waiting, operations: tuple[Operation, ...], now: datetime, priority: Priority) -> PlannedJob:
    candidate = item.candidate
    chosen = [candidate.due_operations[op] for op in operations]
    return PlannedJob(
        candidate.ref,
        candidate.table_uuid,
        operations,
        max(item.scores.values()),
        sum(w.benefit for w in chosen),
        sum(w.cost for w in chosen),
        "; ".join(_with_wait(f"{op}: {w.why}", item, op, now) for op, w in zip(operations, chosen, strict=True)),
        candidate.pool,
        any(w.on_pool for w in chosen),
        priority,
    )
