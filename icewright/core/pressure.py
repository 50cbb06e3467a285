"""Adaptive concurrency of a pool: fewer jobs while its Spark is saturated, more again while it is idle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

LONG_WAIT = timedelta(seconds=30)  # a job that waits so long for a place in Spark says that there are too many
BACKLOG = 4.0  # tasks that wait for each core


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


def adapted(limit: int, load: Load | None, highest: int, lowest: int = 1) -> int:
    """Return the next limit: halved when saturated, one more when idle (as TCP does), within the bounds.

    A pool that says nothing (not started, or a Connect server) keeps its highest.
    """
    if load is None:
        return highest
    if load.saturated:
        limit //= 2
    elif load.idle:
        limit += 1
    return max(lowest, min(highest, limit))
