"""The runs of jobs, the history of each table by them, and the activity log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.schema import EVENTS, JOBS, RUNS, TABLES, VERDICTS
from icewright.adapters.store.statements import NAME, NAMED, SAME_TABLE, add_totals, name_columns, of_table, table_row
from icewright.core.cost import RUNS_LEARNED
from icewright.core.partitions import PartitionKey, partition_values
from icewright.core.policy import Operation
from icewright.core.runs import History, LastRun, OperationState, Outcome
from icewright.core.table import TableRef
from icewright.core.tally import of_run, of_work
from icewright.ports import ActivityLog, RunHistory, RunRow

_INSERT_EVENT = sa.insert(EVENTS).values(table_id=sa.select(TABLES.c.id).where(*NAMED).scalar_subquery())

_RECENT_COMPACTIONS = 20  # compactions whose partitions the history has
_READ = ("table_id", "operation", "finished", "state", "metadata_location", "reason", "metrics", "policy")


@dataclass
class SqlRuns(RunHistory):
    """The RunHistory port on a database."""

    db: Database

    def record(self, run: RunRow, ref: TableRef) -> None:
        outcome = run.outcome
        this_run = (RUNS.c.job_id == run.job_id, RUNS.c.operation == outcome.operation, RUNS.c.finished == run.finished)
        with self.db.begin() as connection:
            if connection.execute(sa.select(RUNS.c.id).where(*this_run)).first() is not None:
                return  # reported again, as the answer was lost
            row = table_row(connection, ref)
            connection.execute(
                sa.insert(RUNS).values(
                    job_id=run.job_id,
                    table_id=row.id if row is not None else None,
                    operation=outcome.operation,
                    state=outcome.state,
                    reason=outcome.reason,
                    summary=outcome.summary,
                    metrics=dict(outcome.metrics),
                    statements=list(outcome.statements),
                    notes=list(outcome.notes),
                    started=run.started,
                    finished=run.finished,
                    metadata_location=run.metadata_location,
                    policy=run.policy,
                    before=dict(run.before),
                    after=dict(run.after),
                    partitions=[asdict(change) for change in outcome.partitions],
                    gb_hours=outcome.metrics.get("gb_hours", 0.0),
                    tried=outcome.tried,
                )
            )
            add_totals(connection, of_run(ref.catalog, outcome, (run.finished - run.started).total_seconds()))
            if row is not None:
                same = (VERDICTS.c.table_id == row.id) & (VERDICTS.c.operation == outcome.operation)
                connection.execute(sa.update(VERDICTS).where(same).values(since=run.finished))
            if outcome.state is OperationState.COMMITTED:
                update = sa.update(TABLES).where(*of_table(ref)).values(succeeded_at=run.finished)
                connection.execute(update)

    def record_resumed(self, catalog: str, outcome: Outcome) -> None:
        with self.db.begin() as connection:
            add_totals(connection, of_work(catalog, outcome))

    def list(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        query = sa.select(RUNS).where(RUNS.c.job_id == job_id).order_by(RUNS.c.id)
        return [row._asdict() for row in self.db.rows(query)]

    def history(self, ref: TableRef, table_uuid: str) -> History:
        with self.db.reading() as connection:
            return last_runs(connection, (*of_table(ref), JOBS.c.table_uuid == table_uuid))

    def work_done(
        self, catalogs: Sequence[str], since: datetime, tables: int, each: int
    ) -> Sequence[tuple[Operation, Mapping[str, float]]]:
        runs: list[tuple[Operation, Mapping[str, float]]] = []
        place = _place(RUNS.c.table_id).label("place")
        newest = sa.func.max(RUNS.c.id).desc()
        with self.db.reading() as connection:
            for operation in Operation:
                committed = (
                    RUNS.c.state == OperationState.COMMITTED,
                    RUNS.c.finished >= since,
                    RUNS.c.operation == operation,
                )
                of_pool = sa.select(RUNS.c.table_id).join_from(RUNS, TABLES, RUNS.c.table_id == TABLES.c.id)
                of_pool = of_pool.where(TABLES.c.catalog.in_(catalogs), *committed)
                last = of_pool.group_by(RUNS.c.table_id).order_by(newest).limit(tables).subquery()
                placed = sa.select(RUNS.c.id, place).join(last, last.c.table_id == RUNS.c.table_id)
                placed_runs = placed.where(*committed).subquery()
                query = sa.select(RUNS.c.metrics).join(placed_runs, placed_runs.c.id == RUNS.c.id)
                query = query.where(placed_runs.c.place <= each).order_by(RUNS.c.id.desc())
                runs += [(operation, metrics) for (metrics,) in connection.execute(query)]
        return runs


@dataclass
class SqlActivity(ActivityLog):
    """The ActivityLog port on a database."""

    db: Database

    def record(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:
        with self.db.begin() as connection:
            table_name = dict.fromkeys(column.name for column in NAME) if ref is None else name_columns(ref)
            values = {"at": now, "kind": kind, "job_id": details.pop("job_id", None), "details": details}
            connection.execute(_INSERT_EVENT, values | table_name)

    def list(self, job_id: str | None = None, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        columns = [EVENTS.c[name] for name in ("at", "kind", "details", "job_id")]
        query = sa.select(*columns).order_by(EVENTS.c.id.desc()).limit(limit)
        if job_id is not None:
            query = sa.select(*columns).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.id)
        return [row._asdict() for row in self.db.rows(query)]


def last_runs(connection: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]]) -> History:
    """Return the last run of each operation on the tables and jobs of the conditions.

    With it come the metrics of the last runs that committed.
    """
    runs = RUNS.join(TABLES, RUNS.c.table_id == TABLES.c.id).join(JOBS, RUNS.c.job_id == JOBS.c.job_id)
    last = _place(RUNS.c.operation)
    worked = _place(RUNS.c.operation, RUNS.c.state)
    places = sa.select(RUNS.c.id, last.label("last"), worked.label("worked"))
    placed = places.select_from(runs).where(RUNS.c.tried, *conditions).subquery()
    learned = (RUNS.c.state == OperationState.COMMITTED) & (placed.c.worked <= RUNS_LEARNED)
    columns = [RUNS.c[name] for name in _READ]
    query = sa.select(*columns).join(placed, placed.c.id == RUNS.c.id).where((placed.c.last == 1) | learned)
    by_operation: dict[str, list[Any]] = {}
    for row in connection.execute(query.order_by(RUNS.c.id.desc())):
        by_operation.setdefault(row.operation, []).append(row)
    return {Operation(name): _last_run(connection, rows) for name, rows in by_operation.items()}


def _place(*columns: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return the place of a run among those that have the same columns, the newest first."""
    return sa.func.row_number().over(partition_by=columns, order_by=RUNS.c.id.desc())


def _last_run(connection: sa.Connection, rows: Sequence[Any]) -> LastRun:
    """Return the first of the rows as the last run of its operation; others may be those that committed before it."""
    last, worked = rows[0], [row for row in rows if row.state == OperationState.COMMITTED]
    rewritten = _rewritten(connection, last) if last.operation == Operation.COMPACT else {}
    return LastRun(
        Operation(last.operation),
        last.finished,
        OperationState(last.state),
        last.metadata_location,
        last.reason,
        last.metrics,
        last.policy,
        rewritten.pop("", {}),
        rewritten,
        worked[0].finished if worked else None,
        [row.metrics for row in worked],
    )


def read_runs() -> sa.CompoundSelect[tuple[int]]:
    """Return the ids of the runs that the store still reads, which the archive leaves.

    `last_runs` reads the last run of each operation, the last that committed, and recent compactions; alerts read the
    last that ended. Earlier ones that committed refine predictions only as long as they are young.
    """
    joined = RUNS.join(TABLES, RUNS.c.table_id == TABLES.c.id).join(JOBS, RUNS.c.job_id == JOBS.c.job_id)
    newest = sa.select(sa.func.max(RUNS.c.id)).select_from(joined).where(SAME_TABLE)
    newest = newest.group_by(RUNS.c.table_id, JOBS.c.table_uuid, RUNS.c.operation)
    tried = newest.where(RUNS.c.tried)
    ended = newest.where(RUNS.c.state != OperationState.DEFERRED)
    compactions = (RUNS.c.operation == Operation.COMPACT, RUNS.c.state == OperationState.COMMITTED)
    place = _place(RUNS.c.table_id, RUNS.c.policy).label("place")
    placed = sa.select(RUNS.c.id, RUNS.c.table_id, RUNS.c.policy, place).where(*compactions).subquery()
    last = sa.select(RUNS.c.table_id, RUNS.c.policy).where(RUNS.c.operation == Operation.COMPACT, RUNS.c.id.in_(tried))
    same_policy = sa.tuple_(placed.c.table_id, placed.c.policy).in_(last)
    recent = sa.select(placed.c.id).where(placed.c.place <= _RECENT_COMPACTIONS, same_policy)
    return sa.union_all(tried, ended, newest.where(RUNS.c.state == OperationState.COMMITTED), recent)


def _rewritten(connection: sa.Connection, last: Any) -> dict[str, dict[PartitionKey, datetime]]:  # noqa: ANN401 - a row
    """Return when recent compactions of the same policy rewrote partitions for size or order, by branch; main is blank.

    A compaction that left files behind counts for none.
    """
    recent = (
        sa.select(RUNS.c.finished, RUNS.c.metrics, RUNS.c.partitions)
        .where(
            RUNS.c.table_id == last.table_id,
            RUNS.c.operation == Operation.COMPACT,
            RUNS.c.state == OperationState.COMMITTED,
            RUNS.c.policy == last.policy,
        )
        .order_by(RUNS.c.id.desc())
        .limit(_RECENT_COMPACTIONS)
    )
    rewritten: dict[str, dict[PartitionKey, datetime]] = {}
    for finished, metrics, partitions in reversed(connection.execute(recent).all()):
        if not metrics.get("files_left"):
            changed = [p for p in partitions or () if p["files_in"] and p["files_out"] and not p["by_deletes"]]
            for p in changed:
                rewritten.setdefault(p.get("branch") or "", {})[_key(p["key"])] = finished
    return rewritten


def _key(text: str) -> PartitionKey:
    spec_id, _, values = text.partition(" ")
    return int(spec_id), partition_values(values)
