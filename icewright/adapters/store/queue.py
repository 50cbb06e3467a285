"""Jobs: queued by the plan, claimed by workers, held by a lease. Each change is a compare-and-set.

A table's row names the job that holds it, from the moment the job is queued: so there is one job a table at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from icewright.adapters.store import totals
from icewright.adapters.store.ledger import SAME_TABLE, named, of_table
from icewright.adapters.store.many import given
from icewright.adapters.store.schema import JOBS, POOLS, RUNS, TABLES, VERDICTS, Moment
from icewright.adapters.store.tables import SqlTables, ref_of
from icewright.core.plan import Active, Candidate, Deferred, DueOperation, PlannedJob, Usage, heat_factor
from icewright.core.policy import ON_POOL, Operation
from icewright.core.runs import TRANSITIONS, JobState
from icewright.core.table import TableRef
from icewright.core.tally import of_job
from icewright.ports import MANUAL, JobRow, LeaseStatus, Trigger

LEASE = timedelta(seconds=120)
_OPEN = (JobState.QUEUED, JobState.RUNNING)
_OPERATIONS = {str(operation): operation for operation in Operation}


def _of(table: sa.Table, names: str) -> Sequence[sa.Column[Any]]:
    return [table.c[name] for name in names.split()]


# Statements that are executed for every table of a fleet, or between its jobs: making one costs as much as executing it
_ALIVE = (
    sa.update(JOBS)
    .where(JOBS.c.job_id == sa.bindparam("job"), JOBS.c.state == JobState.RUNNING)
    .values(heartbeat=sa.bindparam("at", type_=Moment))
    .returning(JOBS.c.cancel_requested)
)
_ACTIVE = (
    sa.select(*_of(TABLES, "catalog namespace name"), *_of(JOBS, "pool operations on_pool cost"))
    .join_from(JOBS, TABLES)
    .where(JOBS.c.state.in_(_OPEN))
)
_SPENT = (
    sa.select(TABLES.c.catalog, JOBS.c.pool, JOBS.c.on_pool, sa.func.sum(RUNS.c.gb_hours).label("spent"))
    .select_from(RUNS.join(JOBS).join(TABLES, TABLES.c.id == RUNS.c.table_id))
    .where(RUNS.c.finished >= sa.bindparam("day", type_=Moment), RUNS.c.gb_hours > 0)
    .group_by(TABLES.c.catalog, JOBS.c.pool, JOBS.c.on_pool)
)
_DUE = VERDICTS.c.verdict == "due"
_WISHES = sa.select(*_of(VERDICTS, "table_id operation benefit cost reason on_pool cooled")).where(_DUE)
_WISHING = (
    sa.select(*_of(TABLES, "id catalog namespace name table_uuid due_since importance run_order windows"))
    .add_columns(*_of(TABLES, "queries_per_day paused held_by"))
    .where(TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True)), ~TABLES.c.dropped)
    .where(TABLES.c.id.in_(sa.select(VERDICTS.c.table_id).where(_DUE)))
    .order_by(TABLES.c.id)
)
_COUNTED = (TABLES.c.paused, TABLES.c.held_by)
_PLANNED_FROM = (
    sa.select(sa.func.count(), *map(sa.func.count, _COUNTED), sa.func.max(TABLES.c.evaluated_at)).where(
        ~TABLES.c.dropped
    ),
    sa.select(JOBS.c.job_id).where(JOBS.c.state.in_(_OPEN)).order_by(JOBS.c.job_id),
    sa.select(POOLS.c.name, POOLS.c.max_concurrent).order_by(POOLS.c.name),
)


class SqlQueue(SqlTables):
    """The jobs of the Store port."""

    # -- what the plan is made from

    def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
        """Return tables with something due. Their pool and whether their catalog is enabled, the flow knows."""
        wished: dict[int, dict[Operation, DueOperation]] = {}
        with self._reading() as connection:
            for table, operation, *wish in connection.execute(_WISHES).all():
                wished.setdefault(table, {})[_OPERATIONS[operation]] = DueOperation(*wish)
            rows = connection.execute(_WISHING, {"catalogs": catalogs}).all()
            return [_candidate(row, wished[row.id]) for row in rows if row.id in wished]

    def planned_from(self) -> Hashable:
        """Changes with all that candidates, usage and pools' limits are read from; cheap to ask."""
        with self._reading() as connection:
            return tuple(tuple(connection.execute(asked)) for asked in _PLANNED_FROM)

    def usage(self, day: datetime) -> Usage:
        """Return what is queued or runs, and what was spent since the day began."""
        by_pool: dict[str, float] = {}
        by_catalog: dict[str, float] = {}
        with self._reading() as connection:
            jobs = tuple(
                Active(ref_of(row), row.pool, tuple(Operation(op) for op in row.operations), row.on_pool, row.cost)
                for row in connection.execute(_ACTIVE)
            )
            for row in connection.execute(_SPENT, {"day": day}):
                by_catalog[row.catalog] = by_catalog.get(row.catalog, 0.0) + row.spent
                by_pool[row.pool] = by_pool.get(row.pool, 0.0) + (row.spent if row.on_pool else 0.0)
        return Usage(jobs, by_pool, by_catalog)

    def record_deferred(self, deferred: Sequence[Deferred]) -> None:
        """Write down what the plan left waiting, and why; only what changed is written."""
        told = {(*named(d.ref).values(), str(d.operation)): d for d in deferred}
        columns = [TABLES.c[n] for n in ("catalog", "namespace", "name")]
        columns += [VERDICTS.c[n] for n in ("operation", "table_id", "waits", "position")]
        query = sa.select(*columns).join(VERDICTS).where(VERDICTS.c.verdict == "due")
        changes = []
        with self._begin() as connection:
            for *key, table, reason, position in connection.execute(query).all():
                said = told.get(tuple(key))
                now = (said.reason, said.position, said.score) if said else (None, None, None)
                if (reason, position) != now[:2]:
                    changes.append((table, key[-1], *now))
            if changes:
                kinds = {"table_id": sa.Integer, "operation": sa.Text}
                kinds |= {"waits": sa.Text, "position": sa.Integer, "score": sa.Float}
                new = given(connection, changes, **kinds)
                mine = (VERDICTS.c.table_id == new.c.table_id) & (VERDICTS.c.operation == new.c.operation)
                values = {name: new.c[name] for name in ("waits", "position", "score")}
                connection.execute(sa.update(VERDICTS).where(mine).values(values))

    # -- the life of a job

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        """Return a job that waits for a worker; None when the table has one already."""
        with self._begin() as connection:
            row = self._row(connection, planned.ref)
            if row is None or row.dropped:
                return None
            values = {"pool": planned.pool, "on_pool": planned.on_pool, "cost": planned.cost, "score": planned.score}
            return self._made(
                connection, row, planned.table_uuid, planned.operations, trigger, now, options=options, **values
            )

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
        with self._begin() as connection:
            row = self._row(connection, ref)
            if row is None:
                return None
            if row.held_by is not None:
                waits = (JOBS.c.job_id == row.held_by) & (JOBS.c.state == JobState.QUEUED)
                if trigger.kind != MANUAL:  # what a person asked for gives way to no other
                    waits &= JOBS.c.trigger != MANUAL
                gone = {"state": JobState.CANCELLED, "finished": now, "summary": "gave way to a job that began at once"}
                if connection.execute(sa.update(JOBS).where(waits).values(**gone)).rowcount != 1:
                    return None
                totals.add(connection, of_job(JobState.CANCELLED))
                freed = sa.update(TABLES).where(TABLES.c.id == row.id, TABLES.c.held_by == row.held_by)
                connection.execute(freed.values(held_by=None))
            on_pool = any(op in ON_POOL for op in operations)
            running = {"state": JobState.RUNNING, "holder": trigger.holder, "started": now, "pool": pool}
            return self._made(
                connection, row, table_uuid, operations, trigger, now, on_pool=on_pool, options=options, **running
            )

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

    def dequeue(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        """Return the best of the queued jobs, this worker's from now on."""
        given = {"me": holder, "catalogs": catalogs, "at": now, "most": limit}
        with self._begin() as connection:
            rows = connection.execute(_TAKING, given).all()
        return [job_of(row) for row in sorted(rows, key=lambda row: (-row.score, row.created))]

    def heartbeat(self, job_id: str, now: datetime) -> LeaseStatus:
        """Renew the lease of a running job."""
        with self._begin() as connection:
            asked = connection.execute(_ALIVE, {"job": job_id, "at": now}).scalar()
        return LeaseStatus.LOST if asked is None else LeaseStatus.CANCELLED if asked else LeaseStatus.HELD

    def finish(self, job_id: str, state: JobState, summary: str, now: datetime) -> None:
        """End a running job and free its table; a job that ended already stays as it is."""
        with self._begin() as connection:
            self._end(connection, job_id, state, summary, now)

    def _end(self, connection: sa.Connection, job_id: str, state: JobState, summary: str, now: datetime) -> bool:
        sources = [source for source, targets in TRANSITIONS.items() if state in targets]
        ended = connection.execute(
            sa.update(JOBS)
            .where(JOBS.c.job_id == job_id, JOBS.c.state.in_(sources))
            .values(state=state, summary=summary, finished=now)
        )
        connection.execute(_freed(job_id))
        if ended.rowcount == 1:
            totals.add(connection, of_job(state))
        return ended.rowcount == 1

    def end_interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """Running jobs whose lease ran out or whose holder is dead, ended here; their tables are looked at again."""
        with self._begin() as connection:
            running = connection.execute(_jobs().where(JOBS.c.state == JobState.RUNNING)).all()
            lost = [row for row in running if now - row.heartbeat > LEASE or dead(row.holder)]
            said = "its process ended before the job did"
            ended = [r for r in lost if self._end(connection, r.job_id, JobState.INTERRUPTED, said, now)]
            ids = [row.table_id for row in ended]
            connection.execute(sa.update(TABLES).where(TABLES.c.id.in_(ids)).values(evaluate_at=now))
            return [job_of(row) for row in ended]

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        """Ask a running job to stop; one that waits ends at once."""
        with self._begin() as connection:
            queued = (JOBS.c.job_id == job_id) & (JOBS.c.state == JobState.QUEUED)
            gone = {"state": JobState.CANCELLED, "finished": now, "summary": "cancelled before it began"}
            if connection.execute(sa.update(JOBS).where(queued).values(**gone)).rowcount == 1:
                connection.execute(_freed(job_id))
                totals.add(connection, of_job(JobState.CANCELLED))
                return True
            running = (JOBS.c.job_id == job_id) & (JOBS.c.state == JobState.RUNNING)
            return connection.execute(sa.update(JOBS).where(running).values(cancel_requested=True)).rowcount == 1

    def queued(self, catalogs: Sequence[str]) -> Sequence[JobRow]:
        """Return jobs on tables of these catalogs that wait for a worker."""
        waiting = _jobs().where(JOBS.c.state == JobState.QUEUED, TABLES.c.catalog.in_(catalogs))
        with self._reading() as connection:
            return [job_of(row) for row in connection.execute(waiting.order_by(JOBS.c.created))]

    # -- what became of jobs

    def count_consecutive(self, ref: TableRef, state: JobState) -> int:
        """Return how many of the table's last jobs ended so, one after another; cancelled ones count for nothing.

        Nor do those of an earlier table of the name.
        """
        with self._begin() as connection:
            ended = [str(s) for s in JobState if not TRANSITIONS[s] and s is not JobState.CANCELLED]
            query = _jobs().where(*of_table(ref), SAME_TABLE, JOBS.c.state.in_(ended))
            query = query.order_by(JOBS.c.created.desc()).limit(50)
            states = [row.state for row in connection.execute(query)]
        return next((i for i, found in enumerate(states) if found != state), len(states))

    def jobs(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Return jobs, of one table or of all, newest first."""
        query = _jobs().order_by(JOBS.c.created.desc(), JOBS.c.job_id.desc()).limit(limit)
        with self._reading() as connection:
            return [job_of(row) for row in connection.execute(query if ref is None else query.where(*of_table(ref)))]

    def job(self, job_id: str) -> JobRow | None:
        """Return a job by its id or a unique prefix of it, or None."""
        begins = sa.select(JOBS.c.job_id).where(JOBS.c.job_id.startswith(job_id, autoescape=True)).limit(2)
        with self._reading() as connection:
            rows = connection.execute(_jobs().where(JOBS.c.job_id == job_id)).all()
            rows = rows or connection.execute(_jobs().where(JOBS.c.job_id.in_(begins))).all()
        return job_of(rows[0]) if len(rows) == 1 else None


def _freed(job_id: str) -> sa.Update:
    """Let the table go that the job holds: found by the job, as no index leads from a holder to a table."""
    mine = sa.select(JOBS.c.table_id).where(JOBS.c.job_id == job_id).scalar_subquery()
    return sa.update(TABLES).where(TABLES.c.id == mine, TABLES.c.held_by == job_id).values(held_by=None)


def _candidate(row: Any, wishes: Mapping[Operation, DueOperation]) -> Candidate:  # noqa: ANN401 - a result row
    blocked = f"paused: {row.paused}" if row.paused else f"held by job {row.held_by}" if row.held_by else None
    return Candidate(
        ref=ref_of(row),
        table_uuid=row.table_uuid,
        wishes=wishes,
        due_since=row.due_since,
        importance=row.importance,
        order=row.run_order,
        windows=row.windows,
        heat=heat_factor(row.queries_per_day),
        blocked=blocked,
    )


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
