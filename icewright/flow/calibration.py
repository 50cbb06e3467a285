"""Calibration of cost predictions by the runs of all tables of a pool, for tables that have few runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from icewright.core.cost import LEAST_RUNS, Experience, experience
from icewright.core.policy import Operation
from icewright.ports import Clock, RunHistory

REFRESH_AFTER = timedelta(minutes=10)  # after which the runs are read from the store again
HISTORY, MAX_TABLES = timedelta(days=30), 60  # age of the runs that are read, and number of tables of each operation


@dataclass
class Calibration:
    """Calibrations by the runs on each pool, refreshed from the run history every ten minutes; pools are by catalog."""

    runs: RunHistory
    clock: Clock
    pools: Mapping[str, str]
    _learned: dict[str, tuple[datetime, Mapping[Operation, Experience]]] = field(default_factory=dict, init=False)

    def __call__(self, catalog: str) -> Mapping[Operation, Experience]:
        """Return what the runs on the catalog's pool have shown, by operation."""
        now, pool = self.clock.now(), self.pools.get(catalog, "")
        read_at, learned = self._learned.get(pool, (None, {}))
        if read_at is None or now >= read_at + REFRESH_AFTER:
            catalogs = [name for name, its_pool in self.pools.items() if its_pool == pool]
            learned = experience(self.runs.work_done(catalogs, now - HISTORY, MAX_TABLES, LEAST_RUNS))
            self._learned[pool] = now, learned
        return learned
