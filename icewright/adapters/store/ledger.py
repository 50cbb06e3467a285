"""The deletion ledger: files are recorded durably before any of them is deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa

from icewright.adapters.private import make_private
from icewright.adapters.store.database import Database
from icewright.adapters.store.schema import DELETIONS, INTENDED, JOBS, REMOVALS, TABLES
from icewright.adapters.store.statements import NAME, chunks, columns_of, of_table, ref_of, table_row, values_of
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState, retry_delay
from icewright.core.table import TableRef
from icewright.ports import WAITING, DeletionLedger, Intent, LedgerState, Removal, Unfinished, WaitingDeletions

if TYPE_CHECKING:
    import pyarrow as pa


def _schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 - takes long to load, and only the end of a job exports its ledger

    return pa.schema(
        [
            ("job_id", pa.string()),
            ("table", pa.string()),
            ("path", pa.string()),
            ("bytes", pa.int64()),
            ("kind", pa.string()),
            ("state", pa.string()),
            ("planned_at", pa.timestamp("us", "UTC")),
            ("settled_at", pa.timestamp("us", "UTC")),
            ("delete_after", pa.timestamp("us", "UTC")),
            ("reason", pa.string()),
        ]
    )


def write_ledger(folder: Path, job_id: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write the rows to `<job id>.parquet` atomically, and return its path. Raises `OSError`."""
    from pyarrow import Table, parquet  # noqa: PLC0415

    make_private(folder)
    target, fresh = folder / f"{job_id}.parquet", folder / f".{uuid4().hex}.tmp"
    try:
        parquet.write_table(Table.from_pylist(list(rows), _schema()), fresh, compression="zstd")
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
    return target


_FILE_COLUMNS = [DELETIONS.c[name] for name in ("path", "bytes", "kind", "modified")]

_WITH_TABLES = DELETIONS.join(JOBS, DELETIONS.c.job_id == JOBS.c.job_id).join(TABLES, JOBS.c.table_id == TABLES.c.id)

_FIRST_RETRY, _LAST_RETRY = timedelta(minutes=5), timedelta(days=1)  # waits after a failed deletion

# the operation of the job that planned the deletion; blank where an earlier release did not record it
PLANNED_BY = sa.func.coalesce(DELETIONS.c.operation, "").label("planned_by")


@dataclass
class SqlLedger(DeletionLedger):
    """The deletion ledger on a database; `exports` is the folder of the Parquet files."""

    db: Database
    exports: Path | None = None

    def plan(
        self,
        job_id: str,
        ref: TableRef,
        files: Iterable[FileAction],
        state: str,
        now: datetime,
        delete_after: datetime | None = None,
        operation: Operation | None = None,
    ) -> None:
        with self.db.begin() as connection:
            table = table_row(connection, ref)
            table_id = table.id if table is not None else None
            of_job = (DELETIONS.c.job_id == job_id) & DELETIONS.c.table_id.is_not_distinct_from(table_id)
            known = sa.select(DELETIONS.c.path).where(of_job, DELETIONS.c.state.in_((*WAITING, state)))
            planned = set(connection.execute(known).scalars())
            rows = [
                {
                    "job_id": job_id,
                    "table_id": table_id,
                    "path": f.path,
                    "bytes": f.bytes,
                    "kind": f.kind,
                    "modified": f.modified,
                    "state": state,
                    "planned_at": now,
                    "delete_after": delete_after,
                    "operation": operation,
                }
                for f in files
                if f.path not in planned
            ]
            if rows:
                connection.execute(sa.insert(DELETIONS), rows)

    def claim(self, job_id: str, paths: Sequence[str]) -> frozenset[str]:
        waiting = (DELETIONS.c.job_id == job_id) & DELETIONS.c.state.in_(WAITING)
        claimed: set[str] = set()
        with self.db.claiming() as connection:
            _lock_job(connection, job_id)
            for chunk in chunks(paths):
                update = sa.update(DELETIONS).where(waiting, DELETIONS.c.path.in_(chunk))
                update = update.values(state=LedgerState.DELETING).returning(DELETIONS.c.path)
                claimed.update(connection.execute(update).scalars())
        return frozenset(claimed)

    def record(
        self, job_id: str, paths: Mapping[str, str], now: datetime, reasons: Mapping[str, str] | None = None
    ) -> None:
        table = sa.select(JOBS.c.table_id).where(JOBS.c.job_id == job_id).scalar_subquery()
        of_job = DELETIONS.c.job_id == job_id
        groups: dict[tuple[str, str | None], list[str]] = {}
        for path, state in paths.items():
            groups.setdefault((state, (reasons or {}).get(path)), []).append(path)
        with self.db.begin() as connection:
            _lock_job(connection, job_id)
            findings = (DELETIONS.c.table_id == table) & (DELETIONS.c.state == LedgerState.FOUND)
            has_findings = connection.execute(sa.select(sa.exists().where(findings))).scalar()
            for (state, reason), group in groups.items():
                before = (*WAITING, LedgerState.GIVEN_UP) if state == LedgerState.DELETED else WAITING
                for chunk in chunks(group):
                    files = (of_job, DELETIONS.c.state.in_(before), DELETIONS.c.path.in_(chunk))
                    if state == LedgerState.FAILED:
                        _schedule_retry(connection, files, reason, now)
                        continue
                    values = {"state": state, "settled_at": now, "reason": reason}
                    connection.execute(sa.update(DELETIONS).where(*files).values(**values))
                    if state == LedgerState.DELETED and has_findings:
                        connection.execute(sa.delete(DELETIONS).where(findings, DELETIONS.c.path.in_(chunk)))

    def found_orphans(self, ref: TableRef, table_uuid: str) -> Mapping[str, datetime]:
        with self.db.reading() as connection:
            table = table_row(connection, ref)
            if table is None:
                return {}
            findings = (DELETIONS.c.table_id == table.id) & (DELETIONS.c.state == LedgerState.FOUND)
            query = sa.select(DELETIONS.c.path, DELETIONS.c.planned_at).join(JOBS)
            rows = connection.execute(query.where(findings, JOBS.c.table_uuid == table_uuid)).all()
            return {row.path: row.planned_at for row in rows}

    def forget_orphans(self, ref: TableRef, paths: Iterable[str]) -> None:
        with self.db.begin() as connection:
            table = table_row(connection, ref)
            for chunk in chunks(list(paths)) if table is not None else ():
                findings = (DELETIONS.c.table_id == table.id) & (DELETIONS.c.state == LedgerState.FOUND)
                connection.execute(sa.delete(DELETIONS).where(findings, DELETIONS.c.path.in_(chunk)))

    def export(self, job_id: str) -> str:
        if self.exports is None:
            return "the ledger is in the state store alone"
        names = ("job_id", "path", "bytes", "kind", "state", "planned_at", "settled_at", "delete_after", "reason")
        columns = [DELETIONS.c[name] for name in names]
        query = sa.select(*columns, *NAME).join(TABLES)
        query = query.where(DELETIONS.c.job_id == job_id).order_by(DELETIONS.c.id)
        with self.db.reading() as connection:
            rows = [{**row._asdict(), "table": str(ref_of(row))} for row in connection.execute(query)]
        try:
            return f"ledger: {write_ledger(self.exports, job_id, rows)}"
        except OSError as error:
            return f"the ledger could not be exported to {self.exports}: {error.strerror or error}"

    def set_commit_intent(self, job_id: str, intent: Intent | None) -> None:
        document = None
        if intent is not None:
            ids, refs = sorted(intent.snapshot_ids), sorted(intent.refs)
            document = {"metadata_location": intent.metadata_location, "snapshot_ids": ids, "refs": refs}
        self.db.write(sa.update(JOBS).where(JOBS.c.job_id == job_id).values(intent=document))

    def commit_intent(self, job_id: str) -> Intent | None:
        with self.db.reading() as connection:
            return _intent(connection.execute(sa.select(JOBS.c.intent).where(JOBS.c.job_id == job_id)).scalar())

    def unfinished(self, now: datetime) -> Sequence[Unfinished]:
        delayed = DELETIONS.c.delete_after.is_not(None) & (DELETIONS.c.delete_after > now)
        due = DELETIONS.c.state.in_(WAITING) & ~delayed
        jobs = (
            sa.select(JOBS, *NAME)
            .join(TABLES)
            .where(JOBS.c.state != JobState.RUNNING)
            .where(
                JOBS.c.job_id.in_(
                    sa.select(DELETIONS.c.job_id).where(due).union_all(sa.select(JOBS.c.job_id).where(INTENDED))
                )
            )
            .order_by(JOBS.c.created, TABLES.c.id)
        )
        unfinished: list[Unfinished] = []
        with self.db.reading() as connection:
            for job in connection.execute(jobs).all():
                columns = (*_FILE_COLUMNS, DELETIONS.c.planned_at, DELETIONS.c.delete_after, DELETIONS.c.operation)
                planned = sa.select(*columns).where(DELETIONS.c.job_id == job.job_id, due)
                unfinished += _unfinished(job, connection.execute(planned).all())
        return unfinished

    def pending(self, ref: TableRef | None = None) -> Sequence[WaitingDeletions]:
        query = waiting_deletions().where(*(() if ref is None else of_table(ref)))
        with self.db.reading() as connection:
            rows = connection.execute(query.order_by(JOBS.c.created, JOBS.c.job_id, PLANNED_BY))
            return [waiting_of(row) for row in rows]

    def later_deletions(self, job_id: str, since: datetime) -> Mapping[str, Mapping[str, str]]:
        columns = (JOBS.c.table_id, JOBS.c.table_uuid, TABLES.c.catalog)
        own = sa.select(*columns).join(TABLES, JOBS.c.table_id == TABLES.c.id).where(JOBS.c.job_id == job_id).subquery()
        same_table = (JOBS.c.table_id == own.c.table_id) | _of_any_name(own.c.table_uuid, own.c.catalog)
        states = (*WAITING, LedgerState.DELETED, LedgerState.UNDOING)
        others = (DELETIONS.c.job_id != job_id, DELETIONS.c.state.in_(states), DELETIONS.c.planned_at >= since)
        query = sa.select(DELETIONS.c.job_id, DELETIONS.c.path, DELETIONS.c.state)
        query = query.select_from(_WITH_TABLES.join(own, same_table)).where(*others)
        states_by_job: dict[str, dict[str, str]] = {}
        with self.db.reading() as connection:
            for job, path, state in connection.execute(query):
                states_by_job.setdefault(job, {})[path] = state
        return states_by_job

    def waiting_paths(self, ref: TableRef, table_uuid: str = "") -> Sequence[str]:
        open_states = (*WAITING, LedgerState.UNDOING)
        same_table = sa.and_(*of_table(ref)) | _of_any_name(table_uuid, ref.catalog)
        query = sa.select(DELETIONS.c.path).select_from(_WITH_TABLES)
        query = query.where(DELETIONS.c.state.in_(open_states), same_table)
        with self.db.reading() as connection:
            return list(connection.execute(query).scalars())

    def abandon(self, job_id: str, now: datetime) -> int:
        waiting = (DELETIONS.c.job_id == job_id) & DELETIONS.c.state.in_(WAITING)
        with self.db.begin() as connection:
            _lock_job(connection, job_id)
            give_up = sa.update(DELETIONS).where(waiting).values(state=LedgerState.GIVEN_UP, settled_at=now)
            return int(connection.execute(give_up).rowcount)

    def begin_undo(self, job_id: str) -> Mapping[str, int]:
        of_job = DELETIONS.c.job_id == job_id
        untouched = of_job & DELETIONS.c.state.in_((LedgerState.PLANNED, LedgerState.FAILED))
        counted = sa.select(DELETIONS.c.state, sa.func.count()).where(of_job).group_by(DELETIONS.c.state)
        with self.db.begin() as connection:
            _lock_job(connection, job_id)
            states = {state: int(number) for state, number in connection.execute(counted)}
            if not states.keys() & {LedgerState.DELETED, LedgerState.DELETING}:
                connection.execute(sa.update(DELETIONS).where(untouched).values(state=LedgerState.UNDOING))
            return states

    def end_undo(self, job_id: str, now: datetime, *, undone: bool, in_use: Collection[str] = ()) -> None:
        undoing = (DELETIONS.c.job_id == job_id) & (DELETIONS.c.state == LedgerState.UNDOING)
        in_use_values = {
            "state": LedgerState.KEPT,
            "settled_at": now,
            "reason": "snapshots that an undo restored need it",
        }
        final_values = {"state": LedgerState.UNDONE, "settled_at": now} if undone else {"state": LedgerState.PLANNED}
        with self.db.begin() as connection:
            _lock_job(connection, job_id)
            for chunk in chunks(list(in_use)):
                connection.execute(
                    sa.update(DELETIONS).where(undoing, DELETIONS.c.path.in_(chunk)).values(**in_use_values)
                )
            connection.execute(sa.update(DELETIONS).where(undoing).values(**final_values))

    def unfinished_undos(self) -> Sequence[str]:
        with self.db.reading() as connection:
            begun_undos = sa.select(DELETIONS.c.job_id).where(DELETIONS.c.state == LedgerState.UNDOING)
            return list(connection.execute(begun_undos.distinct()).scalars())

    def record_removal(self, removal: Removal) -> None:
        if all(replace(recorded, at=removal.at) != removal for recorded in self.removals(removal.job_id)):
            self.db.write(sa.insert(REMOVALS).values(**values_of(removal)))

    def removals(self, job_id: str) -> Sequence[Removal]:
        query = sa.select(*columns_of(REMOVALS, Removal)).where(REMOVALS.c.job_id == job_id).order_by(REMOVALS.c.id)
        return [Removal(*row) for row in self.db.rows(query)]

    def close_removal(self, removal: Removal, undone_at: datetime | None) -> None:
        this_removal = (REMOVALS.c.job_id == removal.job_id) & (
            REMOVALS.c.metadata_location == removal.metadata_location
        )
        with self.db.begin() as connection:
            if undone_at is None:
                connection.execute(sa.delete(REMOVALS).where(this_removal))
            else:
                connection.execute(sa.update(REMOVALS).where(this_removal).values(undone_at=undone_at))

    def files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        columns = [
            DELETIONS.c[name] for name in ("path", "bytes", "kind", "state", "modified", "delete_after", "reason")
        ]
        query = sa.select(*columns).where(DELETIONS.c.job_id == job_id).order_by(DELETIONS.c.path)
        with self.db.reading() as connection:
            return [row._asdict() for row in connection.execute(query)]


def waiting_deletions() -> sa.Select[Any]:
    """Return the query of jobs and their operations with waiting files; `waiting_of` reads its rows."""
    failed = sa.case((DELETIONS.c.state == LedgerState.FAILED, 1), else_=0)
    at_once = sa.case((DELETIONS.c.delete_after.is_(None), 1), else_=0)
    of_job = (JOBS.c.job_id, JOBS.c.created, PLANNED_BY, *NAME)
    columns = (
        *of_job,
        JOBS.c.operations,
        sa.func.count().label("files"),
        sa.func.coalesce(sa.func.sum(DELETIONS.c.bytes), 0).label("bytes"),
        sa.func.sum(failed).label("failed"),
        sa.func.sum(at_once).label("at_once"),
        sa.func.min(DELETIONS.c.planned_at).label("planned_at"),
        sa.func.min(DELETIONS.c.delete_after).label("delete_after"),
        sa.func.coalesce(sa.func.max(DELETIONS.c.reason), "").label("reason"),
    )
    query = sa.select(*columns).select_from(_WITH_TABLES).where(DELETIONS.c.state.in_(WAITING))
    return query.group_by(*of_job)


def waiting_of(row: Any) -> WaitingDeletions:  # noqa: ANN401 - a result row
    """Return the value of a row of `waiting_deletions`."""
    return WaitingDeletions(
        row.job_id,
        ref_of(row),
        tuple(Operation(op) for op in ([row.planned_by] if row.planned_by else row.operations)),
        row.files,
        int(row.bytes),
        row.failed,
        row.planned_at,
        None if row.at_once else row.delete_after,
        row.reason,
    )


def _of_any_name(table_uuid: Any, catalog: Any) -> sa.ColumnElement[bool]:  # noqa: ANN401 - values or columns
    """Return whether a job was on a table under any name of the catalog; without a uuid nobody knows."""
    return sa.and_(JOBS.c.table_uuid == table_uuid, TABLES.c.catalog == catalog, JOBS.c.table_uuid != "")


def _lock_job(connection: sa.Connection, job_id: str) -> None:
    """Lock the states of the job's files until this transaction ends.

    Locks on the files themselves would be taken in different orders, and two transactions would wait for each other.
    """
    connection.execute(sa.select(JOBS.c.job_id).where(JOBS.c.job_id == job_id).with_for_update(key_share=True)).all()


def _unfinished(job: Any, rows: Sequence[Any]) -> Iterator[Unfinished]:  # noqa: ANN401 - result rows
    """Yield a job's unfinished deletions by the operation that planned them; earlier releases did not record it."""
    ref = ref_of(job)
    all_operations, intent = tuple(Operation(op) for op in job.operations), _intent(job.intent)
    groups: dict[str | None, list[Any]] = {} if rows else {None: []}
    for row in rows:
        groups.setdefault(row.operation, []).append(row)
    for operation, group in groups.items():
        files = tuple(FileAction(row.path, row.bytes, row.kind, row.modified) for row in group)
        since = min((row.planned_at for row in group), default=job.created)
        due_at = max((row.delete_after or row.planned_at for row in group), default=None)
        operations = all_operations if operation is None else (Operation(operation),)
        yield Unfinished(job.job_id, ref, job.table_uuid, operations, files, since, intent, due_at)
        intent = None  # checked once


def _schedule_retry(
    connection: sa.Connection, files: Sequence[sa.ColumnElement[bool]], reason: str | None, now: datetime
) -> None:
    """Schedule the next attempt of failed deletions, later after each failure in a row."""
    failures = sa.select(DELETIONS.c.failures).where(*files).distinct().order_by(DELETIONS.c.failures.desc())
    for count in connection.execute(failures).scalars().all():  # highest count first, so that no file is counted twice
        retry_at = now + retry_delay(count + 1, _FIRST_RETRY, _LAST_RETRY)
        values = {"state": LedgerState.FAILED, "failures": count + 1, "delete_after": retry_at, "reason": reason}
        connection.execute(sa.update(DELETIONS).where(*files, DELETIONS.c.failures == count).values(**values))


def _intent(document: Mapping[str, Any] | None) -> Intent | None:
    if document is None:
        return None
    return Intent(document["metadata_location"], frozenset(document["snapshot_ids"]), frozenset(document["refs"]))
