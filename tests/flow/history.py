"""Histories for the archive: rows of every kind and age, and an archive in memory that crashes where it is told to."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from icewright.adapters.store.schema import ALERTS, DELETIONS, EVENTS, JOBS, RUNS, TABLES
from icewright.adapters.store.sql import SqlStore
from icewright.core.errors import CommitConflict, CommitStateUnknown
from icewright.core.runs import JobState
from icewright.ports import Batch
from icewright.ports.archive import SOURCES
from icewright.testing import NOW

TABLE_OF = {"deletions": DELETIONS, "runs": RUNS, "jobs": JOBS, "events": EVENTS, "alerts": ALERTS}
assert set(TABLE_OF) == set(SOURCES)
Key = tuple[str, Any]  # source and primary key


class Crashed(Exception):
    """The process is gone."""


@dataclass(frozen=True)
class JobSpec:
    """A job that ended some days ago (None: it runs), with its runs and deletions."""

    table: int = 0
    days: float | None = 40
    state: str = "succeeded"
    runs: tuple[tuple[str, str, str], ...] = (
        ("expire_snapshots", "committed", "p1"),
    )  # operation, state or untried, policy
    deletions: tuple[str, ...] = ()
    uuid: str = "u1"


def seed(
    engine: sa.Engine,
    jobs: Sequence[JobSpec] = (),
    events: Sequence[float] = (),
    alerts: Sequence[float | None] = (),
    tables: int = 2,
    first: int = 0,
    now: datetime = NOW,
) -> None:
    """Insert a history: events and resolved alerts by their ages in days; an open alert has none."""
    with engine.begin() as connection:
        if connection.execute(sa.select(TABLES.c.id)).first() is None:
            names = [{"catalog": "lake", "namespace": '["sales"]', "name": f"t{n}"} for n in range(tables)]
            more = {"metadata_location": "m", "first_seen": now, "table_uuid": "u1", "dropped": False}
            connection.execute(sa.insert(TABLES), [{**name, **more} for name in names])
        for number, job in enumerate(jobs, first):
            _job(connection, number, job, now)
        for days in events:
            at = now - timedelta(days=days)
            connection.execute(sa.insert(EVENTS).values(at=at, kind="looked", details={"said": f"{days} ☃"}))
        for place, age in enumerate(alerts):
            resolved = None if age is None else now - timedelta(days=age)
            said = {"key": f"k{place}", "rule": "job_failed", "subject": "s", "message": "m", "severity": "info"}
            connection.execute(sa.insert(ALERTS).values(since=now, resolved_at=resolved, **said))


def _job(connection: sa.Connection, number: int, job: JobSpec, now: datetime) -> None:
    job_id = f"job-{number}"
    ended = None if job.days is None else now - timedelta(days=job.days)
    began = ended or now
    of = {"job_id": job_id, "table_id": job.table + 1}
    who = {"trigger": "cycle", "actor": "me", "holder": "host:1:1", "heartbeat": began, "summary": "", "operations": []}
    # the same time for two jobs would leave open which came first
    created = began + timedelta(microseconds=number)
    times = {"created": created, "started": began, "finished": ended, "cancel_requested": False}
    values = {**of, **who, **times, "table_uuid": job.uuid, "state": job.state}
    connection.execute(sa.insert(JOBS).values(**values))
    for operation, state, policy in job.runs:
        said = {"reason": "", "summary": "", "metrics": {}, "statements": ["CALL 'ü'"], "notes": []}
        when = {"started": began, "finished": ended or now, "metadata_location": "m"}
        facts = {"before": {"files": 2}, "after": {"files": 1}, "partitions": [], "gb_hours": 0.5}
        how = {"state": "skipped", "tried": False} if state == "untried" else {"state": state}
        run = {**of, **said, **when, **facts, **how, "operation": operation, "policy": policy}
        connection.execute(sa.insert(RUNS).values(**run))
    for place, fate in enumerate(job.deletions):
        file = {"path": f"s3://b/{job_id}/{place}", "bytes": place, "kind": "data"}
        connection.execute(sa.insert(DELETIONS).values(**of, **file, state=fate, planned_at=began))


def keys(engine: sa.Engine) -> set[Key]:
    """Every row of the store that could be archived, but for the events that archiving itself writes."""
    found: set[Key] = set()
    with engine.begin() as connection:
        for source, table in TABLE_OF.items():
            key = next(iter(table.primary_key.columns))
            query = sa.select(key).where(EVENTS.c.kind != "archived") if table is EVENTS else sa.select(key)
            found |= {(source, value) for value in connection.execute(query).scalars()}
    return found


@dataclass
class MemoryArchive:
    """An archive that keeps what the port promises; `weather` says of each write what goes wrong."""

    weather: list[str] = field(default_factory=list)  # "fine", "conflict", "landed" or "lost" in place of the reply
    batches: dict[str, tuple[str, pa.Table]] = field(default_factory=dict)

    def write(self, batch: Batch, rows: pa.Table) -> None:
        """Add the rows unless they are there."""
        if batch.batch_id in self.batches:
            return
        match self.weather.pop(0) if self.weather else "fine":
            case "conflict":
                raise CommitConflict("another writer committed")
            case "lost":
                raise CommitStateUnknown("no reply")
            case "landed":
                self.batches[batch.batch_id] = (batch.source, rows)
                raise CommitStateUnknown("no reply")
            case _:
                self.batches[batch.batch_id] = (batch.source, rows)

    def close(self) -> None:
        """Nothing is open."""

    def counted(self) -> Counter[Key]:
        """How often each row is there."""
        found: Counter[Key] = Counter()
        for source, rows in self.batches.values():
            key = next(iter(TABLE_OF[source].primary_key.columns)).name
            found.update((source, value) for value in rows[key].to_pylist())
        return found


@dataclass
class Crashing:
    """A port whose calls are counted over all ports; the one of the given number crashes, before or after its work."""

    port: Any
    counter: itertools.count[int]
    at: int
    after: bool

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Any] = getattr(self.port, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            mine = next(self.counter) == self.at
            if mine and not self.after:
                raise Crashed
            answer = call(*arguments, **named)
            if mine:
                raise Crashed
            return answer

        return counted


def readings(store: SqlStore, now: datetime) -> list[Any]:
    """What decisions and alerts are made from: last runs, failures, findings, deletions to finish, what was spent."""
    found: list[Any] = [
        store.ledger.unfinished(now),
        store.planning.usage(now - timedelta(hours=12)),
        store.alerts.failures(["lake"]),
    ]
    for row in store.tables.list():
        found += [
            store.runs.history(row.ref, "u1"),
            store.ledger.found_orphans(row.ref, "u1"),
            store.ledger.found_orphans(row.ref, "u2"),
        ]
        found += [store.jobs.count_consecutive(row.ref, state) for state in (JobState.FAILED, JobState.INTERRUPTED)]
    return found
