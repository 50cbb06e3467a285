"""The queue of the simulated service: a shortlist, so that a plan need not rank all waiting tables each time."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping
from datetime import datetime
from operator import itemgetter

from icewright.core.capacity import Candidate, Limits
from icewright.core.plan import score
from icewright.core.policy import ORDERS, Operation
from icewright.core.windows import opens


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
        self._gone: set[int] = set()

    @property
    def waiting(self) -> bool:
        """Return whether any table might begin a job."""
        return any(self._alike.values())

    def fill(self, due: Mapping[int, Candidate], now: datetime) -> list[tuple[int, datetime]]:
        """Rebuild the queue from what is due; return the tables in cooldown, each with the end of its cooldown."""
        self._alike.clear()
        self._overdue_at.clear()
        self._gone.clear()
        cooling = []
        for number, candidate in due.items():
            if not self.add(number, candidate, now):
                cools = [w.cooled for w in candidate.due_operations.values() if w.cooled is not None and w.cooled > now]
                cooling += [(number, min(cools))] if len(cools) == len(candidate.due_operations) else []
        return cooling

    def add(self, number: int, candidate: Candidate, now: datetime) -> bool:
        """Add a table unless all its operations are in cooldown or its window is closed.

        Return whether it was added.
        """
        due_operations = {op: w for op, w in candidate.due_operations.items() if w.cooled is None or now >= w.cooled}
        if not due_operations or opens(candidate.windows, now) is not None:
            return False
        points = max(score(w, candidate.importance, w.waited(now), candidate.heat) for w in due_operations.values())
        longest = max(w.waited(now) for w in due_operations.values())
        insort(self._overdue_at, (now - longest + self._limits.max_wait[candidate.importance], number))
        first = next(op for op in ORDERS[candidate.order] if op in due_operations)
        wanted = (candidate.order, *((op, w.on_pool) for op, w in due_operations.items()))
        key = (candidate.ref.catalog, candidate.pool, first, wanted)
        insort(self._alike.setdefault(key, []), (points, -number))
        return True

    def best(self, free: int, busy: Mapping[Operation, int], now: datetime) -> Collection[int]:
        """Return enough waiting tables for the plan to choose as it would among all."""
        if free <= 0:
            return ()
        overdue = self._overdue_at[: bisect_right(self._overdue_at, now, key=itemgetter(0))]
        found = {number for _, number in overdue if number not in self._gone}
        limits = self._limits.per_operation
        for (_, _, first, _), waiting in self._alike.items():
            if busy.get(first, 0) >= limits.get(first, self._limits.total):
                continue  # the order in a table is kept: nothing of it may begin
            while waiting and -waiting[-1][1] in self._gone:
                waiting.pop()
            alive = waiting if self._all else waiting[-free:]
            found.update(-number for _, number in alive if -number not in self._gone)
        return found

    def started(self, number: int) -> None:
        """Remove a table from the queue, as its job began."""
        self._gone.add(number)
