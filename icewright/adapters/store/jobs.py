"""Jobs: queued by the plan, claimed by workers, held by a lease. Each change is a compare-and-set.

A table's row names the job that holds it, from the moment the job is queued: so there is one job a table at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.schema import JOBS, TABLES, Moment
from icewright.adapters.store.statements import (
    SAME_TABLE,
    add_totals,
    of_table,
    ref_of,
    table_row,
)
from icewright.core.errors import FaultOwner
from icewright.core.plan import PlannedJob
from icewright.core.policy import ON_POOL, Operation
from icewright.core.runs import TRANSITIONS, JobState
from icewright.core.table import TableRef
from icewright.core.tally import of_job
from icewright.ports import JOB_LEASE, MANUAL, JobRow, LeaseStatus, Trigger

# Statements that are executed for every table of a fleet, or between its jobs: making one costs as much as executing it
_ALIVE = (
    sa.update(JOBS)
    .where(JOBS.c.job_id == sa.bindparam("job"), JOBS.c.state == JobState.RUNNING)
    .values(heartbeat=sa.bindparam("at", type_=Moment))
    .returning(JOBS.c.cancel_requested)
)


@dataclass
class SqlJobs:
    """The JobQueue port on a database."""

    db: Database

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        """Return a job that waits for a worker; None when the table has one already."""
        with self.db.begin() as connection:
            row = table_row(connection, planned.ref)
            if row is None or row.dropped:
                return None
            values = {"pool": planned.pool, "on_pool": planned.on_pool, "cost": planned.cost, "score": planned.score}
            return self._made(
                connection, row, planned.table_uuid, planned.operations, trigger, now, options=options, **values
            )

    def dequeue(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        """Return the best of the queued jobs, this worker's from now on."""
        given = {"me": holder, "catalogs": catalogs, "at": now, "most": limit}
        with self.db.begin() as connection:
            rows = connection.execute(_TAKING, given).all()
        return [job_of(row) for row in sorted(rows, key=lambda row: (-row.score, row.created))]

    def claim(
        self,
        ref: TableRef,
        table_uuid: str,
        operations: Sequence[Operation],
        trigger: Trigger,
        now: datetime,
        pool: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> str | None:
        """A job that runs at once and holds the table, or None when another runs on it. One that waits gives way."""
        with self.db.begin() as connection:
            row = table_row(connection, ref)
            if row is None:
                return None
            if row.held_by is not None:
                waits = (JOBS.c.job_id == row.held_by) & (JOBS.c.state == JobState.QUEUED)
                if trigger.kind != MANUAL:  # what a person asked for gives way to no other
                    waits &= JOBS.c.trigger != MANUAL
                gone = {"state": JobState.CANCELLED, "finished": now, "summary": "gave way to a job that began at once"}
                if connection.execute(sa.update(JOBS).where(waits).values(**gone)).rowcount != 1:
                    return None
                add_totals(connection, of_job(JobState.CANCELLED))
                freed = sa.update(TABLES).where(TABLES.c.id == row.id, TABLES.c.held_by == row.held_by)
                connection.execute(freed.values(held_by=None))
            on_pool = any(op in ON_POOL for op in operations)
            running = {"state": JobState.RUNNING, "holder": trigger.holder, "started": now, "pool": pool}
            return self._made(
                connection, row, table_uuid, operations, trigger, now, on_pool=on_pool, options=options, **running
            )

    def heartbeat(self, job_id: str, now: datetime) -> LeaseStatus:
        """Renew the lease of a running job."""
        with self.db.begin() as connection:
            asked = connection.execute(_ALIVE, {"job": job_id, "at": now}).scalar()
        return LeaseStatus.LOST if asked is None else LeaseStatus.CANCELLED if asked else LeaseStatus.HELD

    def finish(
        self, job_id: str, state: JobState, summary: str, now: datetime, fault: FaultOwner | None = None
    ) -> None:
        """End a running job and free its table; a job that ended already stays as it is."""
        with self.db.begin() as connection:
            self._end(connection, job_id, state, summary, now, fault)

    def end_interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """Running jobs whose lease ran out or whose holder is dead, ended here; their tables are looked at again."""
        with self.db.begin() as connection:
            running = connection.execute(_jobs().where(JOBS.c.state == JobState.RUNNING)).all()
            lost = [row for row in running if now - row.heartbeat > JOB_LEASE or dead(row.holder)]
            said = "its process ended before the job did"
            ended = [r for r in lost if self._end(connection, r.job_id, JobState.INTERRUPTED, said, now)]
            ids = [row.table_id for row in ended]
            connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(ids)).values(evaluate_at=now))
            return [job_of(row) for row in ended]

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        """Ask a running job to stop; one that waits ends at once."""
        with self.db.begin() as connection:
            queued = (JOBS.c.job_id == job_id) & (JOBS.c.state == JobState.QUEUED)
            gone = {"state": JobState.CANCELLED, "finished": now, "summary": "cancelled before it began"}
            if connection.execute(sa.update(JOBS).where(queued).values(**gone)).rowcount == 1:
                connection.execute(_freed(job_id))
                add_totals(connection, of_job(JobState.CANCELLED))
                return True
            running = (JOBS.c.job_id == job_id) & (JOBS.c.state == JobState.RUNNING)
            return connection.execute(sa.update(JOBS).where(running).values(cancel_requested=True)).rowcount == 1

    def queued(self, catalogs: Sequence[str]) -> Sequence[JobRow]:
        """Return jobs on tables of these catalogs that wait for a worker."""
        waiting = _jobs().where(JOBS.c.state == JobState.QUEUED, TABLES.c.catalog.in_(catalogs))
        with self.db.reading() as connection:
            return [job_of(row) for row in connection.execute(waiting.order_by(JOBS.c.created))]

    def count_consecutive(self, ref: TableRef, state: JobState) -> int:
        """Return how many of the table's newest jobs ended in this state in a row.

        Cancelled jobs, jobs that met a fault of something else than the table, jobs before the last resume and jobs on
        an earlier table of the name do not count.
        """
        ended = [str(s) for s in JobState if not TRANSITIONS[s] and s is not JobState.CANCELLED]
        own_fault = JOBS.c.fault.is_(None) | (JOBS.c.fault == FaultOwner.TABLE)
        counted = TABLES.c.counted_after.is_(None) | (JOBS.c.created > TABLES.c.counted_after)
        with self.db.begin() as connection:
            query = _jobs().where(*of_table(ref), SAME_TABLE, JOBS.c.state.in_(ended), own_fault, counted)
            query = query.order_by(JOBS.c.created.desc()).limit(50)
            states = [row.state for row in connection.execute(query)]
        return next((i for i, found in enumerate(states) if found != state), len(states))

    def list(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Return jobs, of one table or of all, newest first."""
        query = _jobs().order_by(JOBS.c.created.desc(), JOBS.c.job_id.desc()).limit(limit)
        with self.db.reading() as connection:
            return [job_of(row) for row in connection.execute(query if ref is None else query.where(*of_table(ref)))]

    def get(self, job_id: str) -> JobRow | None:
        """Return a job by its id or a unique prefix of it, or None."""
        begins = sa.select(JOBS.c.job_id).where(JOBS.c.job_id.startswith(job_id, autoescape=True)).limit(2)
        with self.db.reading() as connection:
            rows = connection.execute(_jobs().where(JOBS.c.job_id == job_id)).all()
            rows = rows or connection.execute(_jobs().where(JOBS.c.job_id.in_(begins))).all()
        return job_of(rows[0]) if len(rows) == 1 else None

    @staticmethod
    def _made(
        connection: sa.Connection,
        row: Any,  # noqa: ANN401 - a result row
        table_uuid: str,
        operations: Sequence[Operation],
        trigger: Trigger,
        now: datetime,
        **values: Any,  # noqa: ANN401 - columns
    ) -> str | None:
        job_id = f"{now:%Y%m%d-%H%M%S}-{uuid4().hex[:8]}"
        free = sa.update(TABLES).where(TABLES.c.id == row.id, TABLES.c.held_by.is_(None)).values(held_by=job_id)
        if connection.execute(free).rowcount != 1:
            return None
        said = {"trigger": trigger.kind, "actor": trigger.actor, "operations": [str(op) for op in operations]}
        times = {"heartbeat": now, "created": now}
        given = {"state": JobState.QUEUED, "holder": "", **said, **times, **values}
        connection.execute(sa.insert(JOBS).values(job_id=job_id, table_id=row.id, table_uuid=table_uuid, **given))
        return job_id

    def _end(
        self,
        connection: sa.Connection,
        job_id: str,
        state: JobState,
        summary: str,
        now: datetime,
        fault: FaultOwner | None = None,
    ) -> bool:
        sources = [source for source, targets in TRANSITIONS.items() if state in targets]
        ended = connection.execute(
            sa.update(JOBS)
            .where(JOBS.c.job_id == job_id, JOBS.c.state.in_(sources))
            .values(state=state, summary=summary, finished=now, fault=fault)
        )
        connection.execute(_freed(job_id))
        if ended.rowcount == 1:
            add_totals(connection, of_job(state))
        return ended.rowcount == 1


def _freed(job_id: str) -> sa.Update:
    """Let the table go that the job holds: found by the job, as no index leads from a holder to a table."""
    mine = sa.select(JOBS.c.table_id).where(JOBS.c.job_id == job_id).scalar_subquery()
    return sa.update(TABLES).where(TABLES.c.id == mine, TABLES.c.held_by == job_id).values(held_by=None)


def _taking() -> sa.Executable:
    """The statement by which a worker takes the best of the queued jobs: made once, for making it costs as much again.

    It locks the jobs and the rows of their tables, and leaves for later what another has locked: so no job is taken
    twice, and of a job that begins and a snapshot that somebody pins, one sees the other.
    """
    best = (
        sa.select(JOBS.c.job_id)
        .join_from(JOBS, TABLES)
        .where(JOBS.c.state == JobState.QUEUED, TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True)))
        .order_by(JOBS.c.score.desc(), JOBS.c.created)
        .limit(sa.bindparam("most", type_=sa.Integer))
        .with_for_update(skip_locked=True, key_share=True, of=[JOBS, TABLES])
        .cte("best")
    )
    at = sa.bindparam("at", type_=Moment)
    began = {"state": JobState.RUNNING, "holder": sa.bindparam("me"), "started": at, "heartbeat": at}
    of_job = TABLES.c.id == JOBS.c.table_id
    columns = (TABLES.c[name] for name in ("catalog", "namespace", "name"))
    named = [sa.select(column).where(of_job).scalar_subquery().label(column.name) for column in columns]
    taken = sa.update(JOBS).where(JOBS.c.job_id.in_(sa.select(best.c.job_id))).values(began)
    return taken.returning(JOBS, *named)


_TAKING = _taking()


def _jobs() -> sa.Select[Any]:
    return sa.select(JOBS, TABLES.c.catalog, TABLES.c.namespace, TABLES.c.name).join(TABLES)


def job_of(row: Any) -> JobRow:  # noqa: ANN401 - a result row
    """Return what a row says of a job."""
    return JobRow(
        job_id=row.job_id,
        ref=ref_of(row),
        table_uuid=row.table_uuid,
        operations=tuple(Operation(op) for op in row.operations),
        state=JobState(row.state),
        trigger=row.trigger,
        actor=row.actor,
        created=row.created,
        started=row.started,
        finished=row.finished,
        summary=row.summary,
        cancel_requested=row.cancel_requested,
        options=row.options or {},
        holder=row.holder,
    )
