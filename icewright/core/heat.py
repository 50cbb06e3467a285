"""Measure how much a table is read, in queries per day, of which the last days count most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import exp, expm1, log

HALF_LIFE = timedelta(days=3)
REMEMBERED = timedelta(days=30)  # of what is older, less than a thousandth counts
_DECAY = log(2) / (HALF_LIFE / timedelta(days=1))  # per day


def queries_per_day(queries: Mapping[date, int], now: datetime) -> float:
    """Return the exponentially decayed average of the days' sums, with a half life of three days.

    A query of `t` days ago counts `ln 2 / 3 * 2^(-t / 3)`: of a table that is read at a steady rate the sum comes to
    that rate, half of it after the first three days, and it halves every three days when nobody reads any more. Only
    the sum of each UTC day is known, so its queries are taken as spread evenly over the part of it that has passed.
    """
    heat = 0.0
    for day, count in queries.items():
        begin = datetime.combine(day, time(), UTC)
        end = min(now, begin + timedelta(days=1))
        since_end, passed = (now - end) / timedelta(days=1), (end - begin) / timedelta(days=1)
        if passed > 0:
            heat += count / passed * exp(-_DECAY * since_end) * -expm1(-_DECAY * passed)
    return heat


@dataclass(frozen=True, slots=True)
class ReportedReads:
    """The number of reads of a table that engines reported, and the day since which they report."""

    per_day: float  # as `queries_per_day` averages
    since: date

    def expected(self, prior: float, now: datetime) -> float:
        """Return the reads per day with a prior one that fades as reports come: the average begins at it, not at 0."""
        known = (now - datetime.combine(self.since, time(), UTC)) / timedelta(days=1)
        return self.per_day + prior * exp(-_DECAY * max(0.0, known))
