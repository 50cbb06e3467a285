"""The deletion ledger: files are written down, durably, before any of them is deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from icewright.adapters.store.database import READS, begun
from icewright.adapters.store.export import write_ledger
from icewright.adapters.store.schema import DELETIONS, INTENDED, JOBS, TABLES
from icewright.core.policy import Operation
from icewright.core.runs import FileFate, JobState
from icewright.core.table import TableRef
from icewright.ports import Intent, LedgerState, Unfinished

_CHUNK = 500
NAMED = tuple(TABLES.c[name] == sa.bindparam(name) for name in ("catalog", "namespace", "name"))  # given by `named`
SAME_TABLE = TABLES.c.table_uuid.is_(None) | (TABLES.c.table_uuid == JOBS.c.table_uuid)  # a job's, and of now
_BY_NAME = sa.select(TABLES).where(*NAMED)  # made once, as what is asked of every table: making costs as much as asking
_LOCKED = _BY_NAME.with_for_update(key_share=True)  # beside who refers to the table
_Item = TypeVar("_Item")


@dataclass
class SqlLedger:
    """The Ledger port on one SQLAlchemy engine."""

    engine: sa.Engine
    exports: Path | None = None  # folder of the Parquet files

    def plan(self, job_id: str, ref: TableRef, files: Iterable[FileFate], state: str, now: datetime) -> None:
        """Write files down; committed when the call returns."""
        with self._begin() as connection:
            table = self._row(connection, ref)
            rows = [
                {
                    "job_id": job_id,
                    "table_id": table.id if table is not None else None,
                    "path": f.path,
                    "bytes": f.bytes,
                    "kind": f.kind,
                    "state": state,
                    "planned_at": now,
                }
                for f in files
            ]
            if rows:
                connection.execute(sa.insert(DELETIONS), rows)

    def settle(self, job_id: str, paths: Mapping[str, str], now: datetime) -> None:
        """Set the state of planned files; a deleted file is no finding any more, whoever found it."""
        table = sa.select(JOBS.c.table_id).where(JOBS.c.job_id == job_id).scalar_subquery()
        by_state: dict[str, list[str]] = {}
        for path, state in paths.items():
            by_state.setdefault(state, []).append(path)
        with self._begin() as connection:
            waiting = connection.execute(
                sa.select(sa.exists().where(DELETIONS.c.table_id == table, DELETIONS.c.state == LedgerState.FOUND))
            ).scalar()
            for state, group in by_state.items():
                for chunk in chunks(group):
                    planned = (DELETIONS.c.job_id == job_id) & (DELETIONS.c.state == LedgerState.PLANNED)
                    connection.execute(
                        sa.update(DELETIONS)
                        .where(planned, DELETIONS.c.path.in_(chunk))
                        .values(state=state, settled_at=now)
                    )
                    if state == LedgerState.DELETED and waiting:
                        found = (DELETIONS.c.table_id == table) & (DELETIONS.c.state == LedgerState.FOUND)
                        connection.execute(sa.delete(DELETIONS).where(found, DELETIONS.c.path.in_(chunk)))

    def found(self, ref: TableRef, table_uuid: str) -> Mapping[str, datetime]:
        """Findings that wait, with the time of the first."""
        with self._begin() as connection:
            table = self._row(connection, ref)
            if table is None:
                return {}
            mine = (DELETIONS.c.table_id == table.id) & (DELETIONS.c.state == LedgerState.FOUND)
            query = sa.select(DELETIONS.c.path, DELETIONS.c.planned_at).join(JOBS)
            rows = connection.execute(query.where(mine, JOBS.c.table_uuid == table_uuid)).all()
            return {row.path: row.planned_at for row in rows}

    def forget(self, ref: TableRef, paths: Iterable[str]) -> None:
        """Findings that a later scan did not repeat."""
        with self._begin() as connection:
            table = self._row(connection, ref)
            for chunk in chunks(list(paths)) if table is not None else ():
                mine = (DELETIONS.c.table_id == table.id) & (DELETIONS.c.state == LedgerState.FOUND)
                connection.execute(sa.delete(DELETIONS).where(mine, DELETIONS.c.path.in_(chunk)))

    def export(self, job_id: str) -> str:
        """Write the job's rows as a Parquet file and say where it is, or why there is none."""
        if self.exports is None:
            return "the ledger is in the state store alone"
        columns = [DELETIONS.c[n] for n in ("job_id", "path", "bytes", "kind", "state", "planned_at", "settled_at")]
        query = sa.select(*columns, TABLES.c.catalog, TABLES.c.namespace, TABLES.c.name).join(TABLES)
        query = query.where(DELETIONS.c.job_id == job_id).order_by(DELETIONS.c.id)
        with self._begin() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name
        for row in rows:
            row["table"] = str(TableRef(row["catalog"], namespace_of(row["namespace"]), row["name"]))
        try:
            return f"ledger: {write_ledger(self.exports, job_id, rows)}"
        except OSError as error:
            return f"the ledger could not be exported to {self.exports}: {error.strerror or error}"

    def intend(self, job_id: str, intent: Intent | None) -> None:
        """Write down a commit that must be looked after, or that it was."""
        said = None
        if intent is not None:
            ids, refs = sorted(intent.snapshot_ids), sorted(intent.refs)
            said = {"metadata_location": intent.metadata_location, "snapshot_ids": ids, "refs": refs}
        with self._begin() as connection:
            connection.execute(sa.update(JOBS).where(JOBS.c.job_id == job_id).values(intent=said))

    def intent(self, job_id: str) -> Intent | None:
        """The commit of a job that nobody has looked after."""
        with self._begin() as connection:
            return _intent(connection.execute(sa.select(JOBS.c.intent).where(JOBS.c.job_id == job_id)).scalar())

    def unfinished(self) -> Sequence[Unfinished]:
        """Planned deletions of jobs that do not run any more, and commits of theirs that nobody has looked after."""
        planned_by = sa.select(DELETIONS.c.job_id).where(DELETIONS.c.state == LedgerState.PLANNED)
        jobs = (
            sa.select(JOBS, TABLES.c.catalog, TABLES.c.namespace, TABLES.c.name)
            .join(TABLES)
            .where(JOBS.c.state != JobState.RUNNING)
            .where(JOBS.c.job_id.in_(planned_by.union_all(sa.select(JOBS.c.job_id).where(INTENDED))))
            .order_by(JOBS.c.created, TABLES.c.id)
        )
        found = []
        with self._begin() as connection:
            for job in connection.execute(jobs).all():
                planned = sa.select(DELETIONS.c.path, DELETIONS.c.bytes, DELETIONS.c.kind).where(
                    DELETIONS.c.job_id == job.job_id, DELETIONS.c.state == LedgerState.PLANNED
                )
                ref = TableRef(job.catalog, namespace_of(job.namespace), job.name)
                operations = tuple(Operation(op) for op in job.operations)
                files = tuple(FileFate(*row) for row in connection.execute(planned))
                found.append(Unfinished(job.job_id, ref, job.table_uuid, operations, files, _intent(job.intent)))
        return found

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        return begun(self.engine)

    def _reading(self) -> AbstractContextManager[sa.Connection]:
        """One state of the store, read without waiting for those who write."""
        return begun(self.engine.execution_options(**{READS: True}))

    @staticmethod
    def _row(connection: sa.Connection, ref: TableRef, *, locked: bool = False) -> Any:  # noqa: ANN401 - a result row
        return connection.execute(_LOCKED if locked else _BY_NAME, named(ref)).first()


def _intent(said: Mapping[str, Any] | None) -> Intent | None:
    if said is None:
        return None
    return Intent(said["metadata_location"], frozenset(said["snapshot_ids"]), frozenset(said["refs"]))


def named(ref: TableRef) -> dict[str, str]:
    """The columns of TABLES that say a name."""
    return {"catalog": ref.catalog, "namespace": namespace_text(ref.namespace), "name": ref.name}


@lru_cache(maxsize=4096)  # thousands of tables have few namespaces
def namespace_text(namespace: tuple[str, ...]) -> str:
    """A namespace as its column has it: a JSON list, so that a dot in a name stays one."""
    return json.dumps(namespace, ensure_ascii=False)


@lru_cache(maxsize=4096)
def namespace_of(text: str) -> tuple[str, ...]:
    """A namespace out of its column."""
    return tuple(json.loads(text))


def of_table(ref: TableRef) -> tuple[sa.ColumnElement[bool], ...]:
    """The row of TABLES that has the name."""
    return tuple(TABLES.c[column] == value for column, value in named(ref).items())


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """As many at a time as one statement may name."""
    return (items[i : i + _CHUNK] for i in range(0, len(items), _CHUNK))
