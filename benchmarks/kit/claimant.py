"""A worker that claims jobs and does nothing with them: `python -m benchmarks.kit.claimant STATE CATALOG HOLDER`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from benchmarks.kit.child import Answer, serve
from icewright.adapters.store.database import open_database
from icewright.adapters.store.schema import JOBS
from icewright.adapters.store.sql import SqlStore


class Job:
    """A row of the queue as an object."""

    job_id: str
    state: str
    holder: str
    started: datetime | None


class Claimant:
    """Claims until nothing waits."""

    def __init__(self, state: str, catalog: str, holder: str) -> None:
        self.catalog, self.holder = catalog, holder
        self.store = SqlStore(open_database(state))
        orm.registry().map_imperatively(Job, JOBS)
        self.columns: Any = Job

    def ours(self, limit: int) -> Answer:
        """As Icewright's workers do."""
        return self._until_empty(lambda: self._taken(limit))

    def naive(self) -> Answer:
        """As one would write it at first: the best row is locked, changed and saved; whoever comes next waits."""
        return self._until_empty(self._locked)

    def _taken(self, limit: int) -> Sequence[str]:
        return [job.job_id for job in self.store.jobs.dequeue(self.holder, [self.catalog], datetime.now(UTC), limit)]

    def _locked(self) -> Sequence[str]:
        best = sa.select(Job).where(self.columns.state == "queued")
        best = best.order_by(self.columns.score.desc(), self.columns.created).limit(1).with_for_update()
        with orm.Session(self.store.engine) as session:
            job = session.scalars(best).first()
            if job is None:
                return []
            job.state, job.holder, job.started = "running", self.holder, datetime.now(UTC)
            taken = job.job_id
            session.commit()
        return [taken]

    @staticmethod
    def _until_empty(claim: Callable[[], Sequence[str]]) -> Answer:
        ids: list[str] = []
        seconds: list[float] = []
        while True:
            started = time.perf_counter()
            found = claim()
            seconds.append(time.perf_counter() - started)
            if not found:
                return {"rows": ids, "seconds": seconds}
            ids += found


if __name__ == "__main__":
    claimant = Claimant(*sys.argv[1:])
    serve({"ours": claimant.ours, "naive": claimant.naive})
