"""Aggregates over all tables and jobs, the same for every process that reads them."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, TypeVar

from icewright.core.tally import Total

_Key = TypeVar("_Key", bound=Hashable)
_Number = TypeVar("_Number")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of tables: how many are at or below each bound, how many there are, and their sum."""

    at_most: tuple[int, ...]  # by bound, each counting those below it too
    count: int
    sum: float


@dataclass(frozen=True, slots=True)
class QueueMeasure:
    """The number of jobs that have an operation, by state."""

    queued: int = 0
    running: int = 0
    oldest_queued: datetime | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """Gauges of now, and counters since the store was made."""

    tables: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by catalog and state
    verdicts: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # by catalog, operation and verdict
    deferred: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by catalog and operation
    due_since: Mapping[tuple[str, str], datetime] = field(default_factory=dict)  # the longest, by catalog and operation
    health: Mapping[str, Distribution] = field(default_factory=dict)  # points, by catalog
    success: Mapping[str, Distribution] = field(default_factory=dict)  # seconds since the last success, by catalog
    overdue: Mapping[str, Distribution] = field(default_factory=dict)  # seconds due without a success, by catalog
    queue: Mapping[str, QueueMeasure] = field(default_factory=dict)  # by operation
    alerts: Mapping[tuple[str, str], int] = field(default_factory=dict)  # open, by rule and severity
    undelivered: Mapping[str, int] = field(default_factory=dict)  # pending deliveries, by channel
    totals: Mapping[Total, float] = field(default_factory=dict)

    def without(self, catalogs: Container[str]) -> Measures:
        """Return the gauges without these catalogs' tables; counters stay."""

        def others(counts: Mapping[_Key, _Number]) -> dict[_Key, _Number]:
            return {key: n for key, n in counts.items() if (key[0] if isinstance(key, tuple) else key) not in catalogs}

        return replace(
            self,
            tables=others(self.tables),
            verdicts=others(self.verdicts),
            deferred=others(self.deferred),
            due_since=others(self.due_since),
            health=others(self.health),
            success=others(self.success),
            overdue=others(self.overdue),
        )


class MeasureReader(Protocol):
    """Aggregates of the store, for metrics."""

    def read(self, now: datetime, points: Sequence[int], seconds: Sequence[int]) -> Measures:
        """Return all aggregates of one moment; `points` and `seconds` are the upper bounds of the histograms."""
