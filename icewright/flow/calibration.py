"""Calibration of cost predictions: factors learned from the runs of all tables, for tables that have no runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from icewright.core.cost import typical_factors
from icewright.core.policy import Operation
from icewright.core.steps import Factors
from icewright.ports import Clock, RunHistory

ANEW = timedelta(minutes=10)  # after which the run history is read again
SINCE, MOST = timedelta(days=30), 300  # runs of an operation that are read


@dataclass
class Calibration:
    """The typical factors, read from the run history now and then."""

    runs: RunHistory
    clock: Clock
    _factors: Mapping[Operation, Factors] = field(default_factory=dict, init=False)
    _until: datetime = field(default=datetime.min.replace(tzinfo=UTC), init=False)

    def __call__(self) -> Mapping[Operation, Factors]:
        """By operation."""
        now = self.clock.now()
        if now >= self._until:
            self._factors = typical_factors(self.runs.work_done(now - SINCE, MOST))
            self._until = now + ANEW
        return self._factors
