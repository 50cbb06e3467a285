"""Calibration of cost predictions: factors learned from the runs of all tables, for tables that have no runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from icewright.core.cost import typical_factors
from icewright.core.policy import Operation
from icewright.core.steps import Factors
from icewright.ports import Clock, RunHistory

REFRESH_AFTER = timedelta(minutes=10)  # after which the factors are read from the store again
HISTORY, MAX_RUNS = timedelta(days=30), 300  # age and number of the runs that are read for each operation


@dataclass
class Calibration:
    """The typical cost factors, refreshed from the run history every ten minutes."""

    runs: RunHistory
    clock: Clock
    _factors: Mapping[Operation, Factors] = field(default_factory=dict, init=False)
    _until: datetime = field(default=datetime.min.replace(tzinfo=UTC), init=False)

    def __call__(self) -> Mapping[Operation, Factors]:
        """Return the cost calibration factors per operation."""
        now = self.clock.now()
        if now >= self._until:
            self._factors = typical_factors(self.runs.work_done(now - HISTORY, MAX_RUNS))
            self._until = now + REFRESH_AFTER
        return self._factors
