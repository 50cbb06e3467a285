"""A state store that knows thousands of tables and what became of them, written by SQL in seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from benchmarks.kit.lake import CATALOG
from icewright.adapters.store.schema import JOBS, RUNS, TABLES, VERDICTS
from icewright.adapters.store.statements import name_columns
from icewright.core.policy import Operation
from icewright.core.table import TableRef

DUE = (Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS)
_DAYS = 90  # over which the history goes
_FAILS = 20  # every so many


def fill(engine: sa.Engine, names: Sequence[tuple[str, str]], jobs: int, now: datetime) -> None:
    """Tables of these namespaces and names, evaluated: nothing is due; and ended jobs of theirs, a run each."""
    with engine.begin() as connection:
        _insert(connection, TABLES, [_table(i, *name, now) for i, name in enumerate(names, 1)])
        _insert(connection, VERDICTS, [_verdict(i, op, now) for i in range(1, len(names) + 1) for op in Operation])
        _insert(connection, JOBS, [_job(i, jobs, len(names), now) for i in range(jobs)])
        _insert(connection, RUNS, [_run(i, jobs, len(names), now) for i in range(jobs)])
    _tidy(engine)


def scanned(engine: sa.Engine, uuids: Mapping[str, str], now: datetime) -> None:
    """Let these tables (names and uuids), known already, have been scanned for orphans; nothing was found."""
    with engine.begin() as connection:
        known = connection.execute(sa.select(TABLES.c.id, TABLES.c.name)).all()
        count, jobs, runs = len(known), [], []
        for row, name in known:
            job = {**_job(row, count, count, now), "table_id": row, "table_uuid": uuids[name], "state": "succeeded"}
            jobs.append({**job, "operations": [Operation.REMOVE_ORPHANS]})
            run = {**_run(row, count, count, now), "table_id": row, "operation": Operation.REMOVE_ORPHANS}
            runs.append({**run, "state": "committed", "metrics": {}, "finished": now})
        _insert(connection, JOBS, jobs)
        _insert(connection, RUNS, runs)


def make_due(engine: sa.Engine, tables: int, now: datetime) -> None:
    """Let so many of the tables, and no others, be due for two operations; no job of theirs waits or runs."""
    chosen, ops = VERDICTS.c.table_id <= tables, VERDICTS.c.operation.in_(DUE)
    with engine.begin() as connection:
        connection.execute(sa.delete(JOBS).where(JOBS.c.state.in_(("queued", "running"))))
        connection.execute(sa.update(TABLES).where(TABLES.c.held_by.is_not(None)).values(held_by=None))
        quiet = {"verdict": "not_due", "benefit": None, "cost": None, "waits": None, "position": None, "score": None}
        connection.execute(sa.update(VERDICTS).where(VERDICTS.c.verdict == "due").values(**quiet))
        benefit = sa.cast(VERDICTS.c.table_id % 97 + 1, sa.Float)
        connection.execute(sa.update(VERDICTS).where(chosen, ops).values(verdict="due", benefit=benefit, cost=0.01))
        since = now - timedelta(hours=1)
        connection.execute(sa.update(TABLES).where(TABLES.c.id <= tables).values(due_since=since))


def queue(engine: sa.Engine, count: int, now: datetime) -> Sequence[str]:
    """Let a job of each of the first tables wait for a worker, and no others; their ids."""
    jobs = [
        {
            **_job(number, count, count, now),
            "job_id": f"{now:%Y%m%d-%H%M%S}-{number:08x}",
            "state": "queued",
            "holder": "",
            "created": now,
            "started": None,
            "finished": None,
            "summary": "",
            "score": float(number * 7919 % 1009),
        }
        for number in range(count)
    ]
    with engine.begin() as connection:
        connection.execute(sa.delete(JOBS).where(JOBS.c.state.in_(("queued", "running"))))
        _insert(connection, JOBS, jobs)
        mine = sa.select(JOBS.c.job_id).where(JOBS.c.table_id == TABLES.c.id, JOBS.c.state == "queued")
        touched = TABLES.c.held_by.is_not(None) | (TABLES.c.id <= count)
        connection.execute(sa.update(TABLES).where(touched).values(held_by=mine.scalar_subquery()))
    _tidy(engine, JOBS, TABLES)
    return [job["job_id"] for job in jobs]


def _tidy(engine: sa.Engine, *tables: sa.Table) -> None:
    """What a server does by itself when it has time, to all tables or to these."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"vacuum analyze {', '.join(table.name for table in tables)}")


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """By the driver's own quickest way: a hundred thousand rows take seconds."""
    columns = list(rows[0])
    values = ([_plain(row[name]) for name in columns] for row in rows)
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        with driver.cursor() as cursor, cursor.copy(f"copy {table.name} ({', '.join(columns)}) from stdin") as copy:
            for row in values:
                copy.write_row(row)
    else:
        marks = ", ".join("?" * len(columns))
        driver.executemany(f"insert into {table.name} ({', '.join(columns)}) values ({marks})", values)  # noqa: S608


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any column
    """As the database's own text has it."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return json.dumps(value) if isinstance(value, list | dict) else value


def _table(number: int, namespace: str, name: str, now: datetime) -> Mapping[str, Any]:
    location = f"s3://lake/{namespace}/{name}"
    metadata = f"{location}/metadata/00030-{number:032x}.metadata.json"
    return {
        **name_columns(TableRef(CATALOG, (namespace,), name)),
        "table_uuid": f"{number:032x}",
        "location": location,
        "write_paths": [],
        "metadata_location": metadata,
        "evaluated_location": metadata,
        "evaluated_at": now,
        "first_seen": now,
        "health": 100 - number % 60,
        "dropped": False,
    }


def _verdict(table: int, operation: Operation, now: datetime) -> Mapping[str, Any]:
    reason = "no files eligible for compaction"
    return {"table_id": table, "operation": str(operation), "verdict": "not_due", "reason": reason, "at": now}


def _job(number: int, jobs: int, tables: int, now: datetime) -> Mapping[str, Any]:
    began = now - timedelta(days=_DAYS) * (jobs - number) / jobs
    ended = began + timedelta(seconds=20)
    return {
        "job_id": f"{began:%Y%m%d-%H%M%S}-{number:08x}",
        "table_id": number % tables + 1,
        "table_uuid": f"{number % tables + 1:032x}",
        "operations": ["compact"],
        "state": "succeeded" if number % _FAILS else "failed",
        "trigger": "service",
        "actor": "icewright",
        "holder": "host:1:1",
        "heartbeat": ended,
        "cancel_requested": False,
        "created": began,
        "started": began,
        "finished": ended,
        "summary": "compact: compacted 15 files into 3 (across 3 bins)",
    }


def _run(number: int, jobs: int, tables: int, now: datetime) -> Mapping[str, Any]:
    job = _job(number, jobs, tables, now)
    facts = {"data_files": 15, "data_bytes": 15_000_000, "manifests": 4, "snapshots": 30}
    return {
        **{name: job[name] for name in ("job_id", "table_id", "summary", "started", "finished")},
        "operation": "compact",
        "state": "committed" if number % _FAILS else "failed",
        "reason": "",
        "metrics": {"files_merged": 15, "files_written": 3, "bins": 3, "gb_hours": 0.01},
        "statements": ["CALL lake.system.rewrite_data_files(...)"],
        "notes": [],
        "metadata_location": f"s3://lake/metadata/{number:032x}.metadata.json",
        "policy": "0123456789abcdef",
        "before": facts,
        "after": facts | {"data_files": 3},
        "partitions": [],
        "gb_hours": 0.01,
        "tried": True,
    }
