"""Jobs: queued by the planner, dequeued by workers, kept by leases. Each change is a compare-and-set.

A row of TABLES names the job that holds the table from the moment the job is queued, so a table has one open job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.schema import FLEET_PAUSE, JOBS, PINS, PROCESSES, RESULTS, TABLES, Moment
from icewright.adapters.store.statements import NAME, SAME_TABLE, add_totals, of_table, ref_of, table_row
from icewright.core.breakers import CLOCK_WENT_BACK
from icewright.core.capacity import Priority
from icewright.core.errors import FaultOwner
from icewright.core.plan import PlannedJob
from icewright.core.policy import ON_POOL, Operation
from icewright.core.runs import TRANSITIONS, JobState
from icewright.core.table import TableRef
from icewright.core.tally import of_job
from icewright.ports import JOB_LEASE, MANUAL, JobQueue, JobRow, LeaseStatus, SnapshotPin, Trigger

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import ReturningUpdate

# Statements of every job are built once: building one costs as much as executing it
_RENEW_LEASE = (
    sa.update(JOBS)
    .where(JOBS.c.job_id == sa.bindparam("job"), JOBS.c.state == JobState.RUNNING)
    .values(heartbeat=sa.bindparam("at", type_=Moment))
    .returning(JOBS.c.cancel_requested)
)


@dataclass
class SqlJobs(JobQueue):
    """The JobQueue port on a database."""

    db: Database

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        with self.db.claiming() as connection:
            row = table_row(connection, planned.ref)
            if row is None or row.dropped:
                return None
            values = {"pool": planned.pool, "on_pool": planned.on_pool, "cost": planned.cost}
            values |= {"score": planned.score, "priority": planned.priority}
            return self._insert(
                connection, row, planned.table_uuid, planned.operations, trigger, now, options=options, **values
            )

    def dequeue(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        parameters = {"me": holder, "catalogs": catalogs, "at": now, "most": limit}
        rows = self.db.claim(_DEQUEUE, parameters)
        return [job_of(row) for row in sorted(rows, key=lambda row: (-row.priority, -row.score, row.created))]

    def promote(self, queued_before: datetime) -> None:
        lingering = (JOBS.c.state == JobState.QUEUED) & (JOBS.c.priority == Priority.VALUE)
        update = sa.update(JOBS).where(lingering, JOBS.c.created <= queued_before)
        self.db.write(update.values(priority=Priority.OVERDUE))

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
        with self.db.claiming() as connection:
            row = table_row(connection, ref)
            if row is None or (operations and connection.execute(sa.select(FLEET_PAUSE.c.id)).first()):
                return None  # an undo, which has no operations, may begin while the fleet is paused
            if row.held_by is not None:
                queued = (JOBS.c.job_id == row.held_by) & (JOBS.c.state == JobState.QUEUED)
                if trigger.kind != MANUAL:  # only a manual job replaces a queued manual job
                    queued &= JOBS.c.trigger != MANUAL
                cancelled = {
                    "state": JobState.CANCELLED,
                    "finished": now,
                    "summary": "gave way to a job that began at once",
                }
                if connection.execute(sa.update(JOBS).where(queued).values(**cancelled)).rowcount != 1:
                    return None
                add_totals(connection, of_job(JobState.CANCELLED))
                release = sa.update(TABLES).where(TABLES.c.id == row.id, TABLES.c.held_by == row.held_by)
                connection.execute(release.values(held_by=None))
            on_pool = any(op in ON_POOL for op in operations)
            running = {"state": JobState.RUNNING, "holder": trigger.holder, "started": now, "pool": pool}
            return self._insert(
                connection, row, table_uuid, operations, trigger, now, on_pool=on_pool, options=options, **running
            )

    def heartbeat(self, job_id: str, now: datetime) -> LeaseStatus:
        with self.db.begin() as connection:
            cancel_requested = connection.execute(_RENEW_LEASE, {"job": job_id, "at": now}).scalar()
        return (
            LeaseStatus.LOST
            if cancel_requested is None
            else LeaseStatus.CANCELLED
            if cancel_requested
            else LeaseStatus.HELD
        )

    def finish(
        self, job_id: str, state: JobState, summary: str, now: datetime, fault: FaultOwner | None = None
    ) -> None:
        with self.db.begin() as connection:
            self._end(connection, job_id, state, summary, now, fault)

    def charge(self, job_id: str, gb_hours: float) -> None:
        self.db.write(sa.update(JOBS).where(JOBS.c.job_id == job_id).values(spent=gb_hours))

    def record_result(self, job_id: str, document: Mapping[str, Any]) -> None:
        plain = json.loads(json.dumps(document, default=datetime.isoformat))
        with self.db.begin() as connection:
            insert = dialect_insert(connection, RESULTS).values(job_id=job_id, document=plain)
            connection.execute(
                insert.on_conflict_do_update(index_elements=["job_id"], set_={"document": insert.excluded.document})
            )

    def result(self, job_id: str) -> Mapping[str, Any] | None:
        with self.db.reading() as connection:
            document: Mapping[str, Any] | None = connection.execute(
                sa.select(RESULTS.c.document).where(RESULTS.c.job_id == job_id)
            ).scalar()
        return document

    def end_interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        running, ended = _jobs().where(JOBS.c.state == JobState.RUNNING), list[JobRow]()
        for job in self.db.rows(running):
            if not dead(job.holder):
                if job.heartbeat - now > CLOCK_WENT_BACK:  # who lives renews it soon, by the clock that was set back
                    self.db.write(sa.update(JOBS).where(_with_heartbeat(job)).values(heartbeat=now))
                if now - job.heartbeat <= JOB_LEASE:
                    continue
            with self.db.begin() as connection:  # one transaction each, against deadlocks with jobs that end themselves
                if connection.execute(running.where(_with_heartbeat(job)).with_for_update(of=JOBS)).first() is not None:
                    self._end(connection, job.job_id, JobState.INTERRUPTED, "its process ended before the job did", now)
                    connection.execute(sa.update(TABLES).where(TABLES.c.id == job.table_id).values(evaluate_at=now))
                    ended.append(job_of(job))
        return ended

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        with self.db.begin() as connection:
            queued = (JOBS.c.job_id == job_id) & (JOBS.c.state == JobState.QUEUED)
            cancelled = {"state": JobState.CANCELLED, "finished": now, "summary": "cancelled before it began"}
            if connection.execute(sa.update(JOBS).where(queued).values(**cancelled)).rowcount == 1:
                connection.execute(_release_table(job_id))
                add_totals(connection, of_job(JobState.CANCELLED))
                return True
            running = (JOBS.c.job_id == job_id) & (JOBS.c.state == JobState.RUNNING)
            return connection.execute(sa.update(JOBS).where(running).values(cancel_requested=True)).rowcount == 1

    def queued(self, catalogs: Sequence[str]) -> Sequence[JobRow]:
        waiting = _jobs().where(JOBS.c.state == JobState.QUEUED, TABLES.c.catalog.in_(catalogs))
        return [job_of(row) for row in self.db.rows(waiting.order_by(JOBS.c.created))]

    def count_consecutive(self, ref: TableRef, state: JobState) -> int:
        ended = [str(s) for s in JobState if not TRANSITIONS[s] and s is not JobState.CANCELLED]
        own_fault = JOBS.c.fault.is_(None) | (JOBS.c.fault == FaultOwner.TABLE)
        counted = TABLES.c.counted_after.is_(None) | (JOBS.c.created > TABLES.c.counted_after)
        with self.db.begin() as connection:
            query = _jobs().where(*of_table(ref), SAME_TABLE, JOBS.c.state.in_(ended), own_fault, counted)
            query = query.order_by(JOBS.c.created.desc()).limit(50)
            states = [row.state for row in connection.execute(query)]
        return next((i for i, ended_as in enumerate(states) if ended_as != state), len(states))

    def list(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        query = _jobs().order_by(JOBS.c.created.desc(), JOBS.c.job_id.desc()).limit(limit)
        return [job_of(row) for row in self.db.rows(query if ref is None else query.where(*of_table(ref)))]

    def get(self, job_id: str) -> JobRow | None:
        if not job_id:  # every id begins with it, and where there is one job it would be meant
            return None
        begins = sa.select(JOBS.c.job_id).where(JOBS.c.job_id.startswith(job_id, autoescape=True)).limit(2)
        with self.db.reading() as connection:
            rows = connection.execute(_jobs().where(JOBS.c.job_id == job_id)).all()
            rows = rows or connection.execute(_jobs().where(JOBS.c.job_id.in_(begins))).all()
            rows = (
                rows or connection.execute(_jobs().where(JOBS.c.job_id.endswith(f"-{job_id}", autoescape=True))).all()
            )
        return job_of(rows[0]) if len(rows) == 1 else None

    @staticmethod
    def _insert(
        connection: sa.Connection,
        row: Any,  # noqa: ANN401 - a result row
        table_uuid: str,
        operations: Sequence[Operation],
        trigger: Trigger,
        now: datetime,
        **values: Any,
    ) -> str | None:
        job_id = f"{now:%Y%m%d-%H%M%S}-{uuid4().hex[:8]}"
        take_table = sa.update(TABLES).where(TABLES.c.id == row.id, TABLES.c.held_by.is_(None)).values(held_by=job_id)
        if connection.execute(take_table).rowcount != 1:
            return None
        origin = {"trigger": trigger.kind, "actor": trigger.actor, "operations": [str(op) for op in operations]}
        times = {"heartbeat": now, "created": now}
        columns = {"state": JobState.QUEUED, "holder": "", **origin, **times, **values}
        connection.execute(sa.insert(JOBS).values(job_id=job_id, table_id=row.id, table_uuid=table_uuid, **columns))
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
        connection.execute(_release_table(job_id))
        own = (PINS.c.table_id == _table_of(job_id)) & (PINS.c.reader == SnapshotPin.rewriter(job_id))
        connection.execute(sa.delete(PINS).where(own))
        if ended.rowcount == 1:
            add_totals(connection, of_job(state))
        return ended.rowcount == 1


def _release_table(job_id: str) -> sa.Update:
    """Return the update that releases the table of a job."""
    return sa.update(TABLES).where(TABLES.c.id == _table_of(job_id), TABLES.c.held_by == job_id).values(held_by=None)


def _table_of(job_id: str) -> sa.ScalarSelect[int]:
    """Return the id of a job's table: no index leads from a job to what names it."""
    return sa.select(JOBS.c.table_id).where(JOBS.c.job_id == job_id).scalar_subquery()


def _dequeue_statement() -> ReturningUpdate[Any]:
    """Return the statement by which a worker takes the best of the queued jobs.

    The statement locks the jobs and the rows of their tables and skips those that another process has locked: no job is
    dequeued twice, and of a starting job and a concurrent pin of a snapshot, one sees the other. While the fleet is
    paused nobody gets a job, and a process that is to drain gets none.
    """
    draining = sa.select(PROCESSES.c.holder).where(
        PROCESSES.c.holder == sa.bindparam("me"), PROCESSES.c.drain_since.is_not(None)
    )
    best = (
        sa.select(JOBS.c.job_id)
        .join_from(JOBS, TABLES)
        .where(JOBS.c.state == JobState.QUEUED, TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True)))
        .where(~sa.exists(sa.select(FLEET_PAUSE.c.id)), ~sa.exists(draining))
        .order_by(JOBS.c.priority.desc(), JOBS.c.score.desc(), JOBS.c.created)
        .limit(sa.bindparam("most", type_=sa.Integer))
        .with_for_update(skip_locked=True, key_share=True, of=[JOBS, TABLES])
        .cte("best")
    )
    at = sa.bindparam("at", type_=Moment)
    started = {"state": JobState.RUNNING, "holder": sa.bindparam("me"), "started": at, "heartbeat": at}
    of_job = TABLES.c.id == JOBS.c.table_id
    names = [sa.select(column).where(of_job).scalar_subquery().label(column.name) for column in NAME]
    update = sa.update(JOBS).where(JOBS.c.job_id.in_(sa.select(best.c.job_id))).values(started)
    return update.returning(JOBS, *names)


_DEQUEUE = _dequeue_statement()


def _with_heartbeat(job: Any) -> sa.ColumnElement[bool]:  # noqa: ANN401 - a result row
    """Return the condition that a job has sent no heartbeat since it was read."""
    return sa.and_(JOBS.c.job_id == job.job_id, JOBS.c.heartbeat == job.heartbeat)


def _jobs() -> sa.Select[Any]:
    return sa.select(JOBS, *NAME).join(TABLES)


def job_of(row: Any) -> JobRow:  # noqa: ANN401 - a result row
    """Return the job of a result row."""
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
