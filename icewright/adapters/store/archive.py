"""Batches of old history: recorded first, then copied to the archive, then deleted from the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.history import read_runs
from icewright.adapters.store.schema import (
    ALERTS,
    ARCHIVES,
    DELETIONS,
    EVENTS,
    JOBS,
    REMOVALS,
    RESULTS,
    RUNS,
    TABLES,
    Moment,
)
from icewright.adapters.store.schema_base import Sentence
from icewright.adapters.store.statements import NAME, SAME_TABLE, chunks, ref_of
from icewright.core.errors import LeaseLost
from icewright.core.runs import JobState
from icewright.ports import WAITING, Batch, LedgerState, OldHistory
from icewright.ports.archive import BATCH, SOURCES

_PLANNED, _WRITTEN, _PRUNED = "planned", "written", "pruned"
_OPEN = (JobState.QUEUED, JobState.RUNNING)
_ENDED_WELL = (JobState.SUCCEEDED, JobState.PARTIAL, JobState.SKIPPED)
_OPEN_DELETIONS = (*WAITING, LedgerState.FOUND, LedgerState.UNDOING)
_Wheres = tuple[sa.ColumnElement[bool], ...]


@dataclass(frozen=True)
class SqlOldHistory(OldHistory):
    """The OldHistory port on a database. A batch is limited by rows and by characters of JSON."""

    db: Database
    most_rows: int = 20_000
    most_characters: int = 32_000_000

    def waiting(self, before: datetime) -> Mapping[str, int]:
        """Count rows that are old; those of a job count with it, though they are archived first."""
        jobs = sa.select(JOBS.c.job_id).where(*_old_jobs(before))
        conditions = {
            "deletions": (DELETIONS.c.job_id.in_(jobs),),
            "runs": (RUNS.c.job_id.in_(jobs),),
            "jobs": _old_jobs(before),
        }
        with self.db.begin() as connection:
            return {
                source: connection.execute(
                    sa.select(sa.func.count()).select_from(table).where(*conditions.get(source, _OLD[source](before)))
                ).scalar_one()
                for source, table in _TABLES.items()
            }

    def unfinished(self) -> Sequence[Batch]:
        query = sa.select(ARCHIVES).where(ARCHIVES.c.state != _PRUNED).order_by(ARCHIVES.c.id)
        with self.db.begin() as connection:
            return [
                Batch(row.batch, row.source, len(row.rows), row.at, row.state == _WRITTEN)
                for row in connection.execute(query)
            ]

    def plan(self, source: str, before: datetime, now: datetime) -> Batch | None:
        table, key = _TABLES[source], _key(source)
        weight = sum((sa.func.length(sa.cast(c, sa.Text)) for c in _json_columns(table)), sa.literal(0))
        oldest_first = (JOBS.c.created, key) if source == "jobs" else (key,)
        old = sa.select(key, sa.func.coalesce(weight, 0)).where(*_OLD[source](before)).order_by(*oldest_first)
        unfinished = sa.exists().where(ARCHIVES.c.source == source, ARCHIVES.c.state != _PRUNED)
        with self.db.begin() as connection:
            if connection.execute(sa.select(unfinished)).scalar():
                raise LeaseLost(f"another process archives {source}: its batch is not finished")
            keys = _up_to_weight(self.most_characters, connection.execute(old.limit(self.most_rows)).all())
            if not keys:
                return None
            batch_id = f"{now:%Y%m%dT%H%M%S.%f}-{source}-{uuid4().hex[:12]}"
            values = {"batch": batch_id, "source": source, "before": before, "rows": keys, "at": now}
            connection.execute(sa.insert(ARCHIVES).values(state=_PLANNED, **values))
        return Batch(batch_id, source, len(keys), now, written=False)

    def rows(self, batch: Batch) -> pa.Table:
        table, key = _TABLES[batch.source], _key(batch.source)
        columns = [c for c in table.columns if c.name != "table_id"]
        joined = table.outerjoin(TABLES, table.c.table_id == TABLES.c.id)
        query = sa.select(*columns, *NAME).select_from(joined).order_by(key)
        schema = pa.schema([(BATCH, pa.string()), ("table_name", pa.string()), *((c.name, _arrow(c)) for c in columns)])
        texts = [c.name for c in _json_columns(table)]
        parts = []
        with self.db.begin() as connection:
            keys = connection.execute(sa.select(ARCHIVES.c.rows).where(ARCHIVES.c.batch == batch.batch_id)).scalar_one()
            for chunk in chunks(keys):
                records = []
                for row in connection.execute(query.where(key.in_(chunk))):
                    table_name = None if row.catalog is None else str(ref_of(row))
                    values = {BATCH: batch.batch_id, "table_name": table_name, **row._asdict()}
                    values |= {n: json.dumps(values[n], ensure_ascii=False) for n in texts if values[n] is not None}
                    records.append(values)
                parts.append(pa.Table.from_pylist(records, schema))
        return pa.concat_tables(parts)

    def written(self, batch: Batch) -> None:
        planned = (ARCHIVES.c.batch == batch.batch_id) & (ARCHIVES.c.state == _PLANNED)
        self.db.write(sa.update(ARCHIVES).where(planned).values(state=_WRITTEN))

    def prune(self, batch: Batch) -> None:
        table, key = _TABLES[batch.source], _key(batch.source)
        this_batch = (ARCHIVES.c.batch == batch.batch_id) & (ARCHIVES.c.state == _WRITTEN)
        with self.db.begin() as connection:
            keys = connection.execute(sa.select(ARCHIVES.c.rows).where(this_batch).with_for_update()).scalar()
            for chunk in chunks(keys or ()):
                if table is JOBS:
                    for of_job in (REMOVALS, RESULTS):
                        connection.execute(sa.delete(of_job).where(of_job.c.job_id.in_(chunk)))
                connection.execute(sa.delete(table).where(key.in_(chunk)))
            connection.execute(sa.update(ARCHIVES).where(this_batch).values(state=_PRUNED, rows=[]))


# -- the conditions of old rows


def _old_jobs(before: datetime) -> _Wheres:
    """Return the conditions of jobs that ended before the time and that the store no longer works with."""
    later = JOBS.alias()
    of_job = DELETIONS.c.job_id == JOBS.c.job_id
    return (
        JOBS.c.state.not_in(_OPEN),
        JOBS.c.finished < before,
        # files that are still to be deleted, and orphans that a second scan must confirm
        ~sa.exists().where(of_job, DELETIONS.c.state.in_(_OPEN_DELETIONS)),
        JOBS.c.job_id.not_in(sa.select(RUNS.c.job_id).where(RUNS.c.id.in_(read_runs()))),
        JOBS.c.job_id.not_in(sa.select(TABLES.c.held_by).where(TABLES.c.held_by.is_not(None))),
        # the last successful job of the table and those since stay, as the circuit breaker counts failures from there;
        # jobs of an earlier table of the name do not count
        sa.or_(
            ~sa.exists().where(TABLES.c.id == JOBS.c.table_id, SAME_TABLE),
            sa.exists().where(
                later.c.table_id == JOBS.c.table_id,
                later.c.table_uuid == JOBS.c.table_uuid,
                later.c.created > JOBS.c.created,
                later.c.state.in_(_ENDED_WELL),
            ),
        ),
    )


def _old_deletions(before: datetime) -> _Wheres:
    return (DELETIONS.c.job_id.in_(sa.select(JOBS.c.job_id).where(*_old_jobs(before))),)


def _old_runs(before: datetime) -> _Wheres:
    jobs = sa.select(JOBS.c.job_id).where(*_old_jobs(before))
    return (RUNS.c.job_id.in_(jobs), ~sa.exists().where(DELETIONS.c.job_id == RUNS.c.job_id))


def _bare_jobs(before: datetime) -> _Wheres:
    without_children = (~sa.exists().where(table.c.job_id == JOBS.c.job_id) for table in (RUNS, DELETIONS))
    return (*_old_jobs(before), *without_children)


_TABLES: Mapping[str, sa.Table] = {
    source: {"deletions": DELETIONS, "runs": RUNS, "jobs": JOBS, "events": EVENTS, "alerts": ALERTS}[source]
    for source in SOURCES
}
_OLD: Mapping[str, Callable[[datetime], _Wheres]] = {
    "deletions": _old_deletions,
    "runs": _old_runs,
    "jobs": _bare_jobs,
    "events": lambda before: (EVENTS.c.at < before,),
    "alerts": lambda before: (ALERTS.c.resolved_at < before,),
}


# -- columns of the archive


def _key(source: str) -> sa.Column[Any]:
    return next(iter(_TABLES[source].primary_key.columns))


def _json_columns(table: sa.Table) -> list[sa.Column[Any]]:
    return [c for c in table.columns if isinstance(c.type, sa.JSON)]


def _arrow(column: sa.Column[Any]) -> pa.DataType:
    match column.type:
        case Moment():
            return pa.timestamp("us", "UTC")
        case sa.Text() | Sentence() | sa.JSON():
            return pa.string()
        case sa.Boolean():
            return pa.bool_()
        case sa.Float():
            return pa.float64()
        case sa.Integer():
            return pa.int64()
    raise TypeError(f"{column}: there is no archive column of the type {column.type}")


def _up_to_weight(limit: int, weighted: Sequence[Any]) -> list[Any]:
    """Return the first keys whose weights add up to the limit, and always at least one."""
    keys: list[Any] = []
    total = 0
    for key, weight in weighted:
        keys.append(key)
        total += weight
        if total >= limit:
            break
    return keys
