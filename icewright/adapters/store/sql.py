"""The Store port: what is known, claims, history. One statement a change, compare-and-set where two could meet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from icewright.adapters.store.history import last_runs
from icewright.adapters.store.ledger import named, of_table
from icewright.adapters.store.pins import SqlPins
from icewright.adapters.store.schema import (
    DELETIONS,
    EVENTS,
    FACTS,
    JOBS,
    POLICIES,
    RUNS,
    TABLES,
    VERDICTS,
)
from icewright.core.describe import evaluation_document
from icewright.core.layering import Rule
from icewright.core.policy import Operation
from icewright.core.runs import TRANSITIONS, History, JobState
from icewright.core.steps import VERDICT_NAMES, Due, why
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation, due
from icewright.ports import JobRow, LedgerState, Pointer, RunRow, TableRow, Trigger

LEASE = timedelta(seconds=120)


class SqlStore(SqlPins):
    """The store on one SQLAlchemy engine."""

    # -- what is known of tables

    def tables(self) -> Sequence[TableRow]:
        """Every table, dropped ones too."""
        with self._begin() as connection:
            return [_table(row) for row in connection.execute(sa.select(TABLES).order_by(TABLES.c.id))]

    def table(self, ref: TableRef) -> TableRow | None:
        """One table."""
        with self._begin() as connection:
            row = self._row(connection, ref)
        return None if row is None else _table(row)

    def detected(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        """New, moved and dropped tables of one catalog; returns how many are new or moved."""
        listed = {p.ref: p.metadata_location for p in pointers}
        with self._begin() as connection:
            rows = connection.execute(sa.select(TABLES).where(TABLES.c.catalog == catalog)).all()
            known = {_ref(row): row for row in rows}
            new = [
                {**named(ref), "metadata_location": location, "first_seen": now, "dropped": False}
                for ref, location in listed.items()
                if ref not in known
            ]
            moved = [
                {"row": known[ref].id, "moved_to": location}
                for ref, location in listed.items()
                if ref in known and (known[ref].metadata_location != location or known[ref].dropped)
            ]
            gone = [{"row": row.id} for ref, row in known.items() if ref not in listed and not row.dropped]
            mine = TABLES.c.id == sa.bindparam("row")
            if new:
                connection.execute(sa.insert(TABLES), new)
            if moved:
                values = {"metadata_location": sa.bindparam("moved_to"), "dropped": False}
                connection.execute(sa.update(TABLES).where(mine).values(**values), moved)
            if gone:
                connection.execute(
                    sa.update(TABLES).where(mine).values(dropped=True, due_since=None, evaluated_location=None), gone
                )
        return len(new) + len(moved)

    def evaluated(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        """The evaluation replaces what was known; a table of another uuid begins anew."""
        metadata = evaluation.facts.metadata
        with self._begin() as connection:
            row = self._row(connection, metadata.ref)
            if row is None:
                return
            dues = due(evaluation)
            same = row.table_uuid in (None, metadata.table_uuid)
            connection.execute(
                sa.update(TABLES)
                .where(TABLES.c.id == row.id)
                .values(
                    table_uuid=metadata.table_uuid,
                    location=metadata.location,
                    write_paths=list(metadata.write_paths),
                    metadata_location=metadata.metadata_location,
                    evaluated_location=metadata.metadata_location,
                    evaluated_at=now,
                    revisit_at=evaluation.revisit,
                    due_since=((row.due_since if same else None) or now) if dues else None,
                    health=evaluation.health,
                    error=None,
                    policy=policy,
                )
            )
            if not same:
                found = (DELETIONS.c.table_id == row.id) & (DELETIONS.c.state == LedgerState.FOUND)
                connection.execute(sa.delete(DELETIONS).where(found))
            for table in (FACTS, VERDICTS):
                connection.execute(sa.delete(table).where(table.c.table_id == row.id))
            document = dict(evaluation_document(evaluation))
            connection.execute(sa.insert(FACTS).values(table_id=row.id, at=now, document=document))
            connection.execute(
                sa.insert(VERDICTS),
                [
                    {
                        "table_id": row.id,
                        "operation": operation,
                        "verdict": VERDICT_NAMES[type(verdict)],
                        "reason": why(verdict),
                        "benefit": verdict.benefit if isinstance(verdict, Due) else None,
                        "cost": verdict.cost if isinstance(verdict, Due) else None,
                        "at": now,
                    }
                    for operation, verdict in evaluation.verdicts.items()
                ],
            )

    def unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        """A table whose evaluation failed whole: nothing is due, health is unknown."""
        self._update_table(
            ref, error=error, evaluated_at=now, health=None, due_since=None, revisit_at=now + timedelta(hours=1)
        )

    def evaluation(self, ref: TableRef) -> Mapping[str, Any] | None:
        """The last evaluation as JSON."""
        query = sa.select(FACTS.c.document).join(TABLES).where(*of_table(ref))
        with self._begin() as connection:
            document: Mapping[str, Any] | None = connection.execute(query).scalar()
            return document

    def pause(self, ref: TableRef, reason: str | None) -> bool:
        """Pause with a reason, or resume with None."""
        return self._update_table(ref, paused=reason)

    # -- jobs

    def claim(
        self, ref: TableRef, table_uuid: str, operations: Sequence[Operation], trigger: Trigger, now: datetime
    ) -> str | None:
        """A job that holds the table, or None when another does."""
        job_id = f"{now:%Y%m%d-%H%M%S}-{uuid4().hex[:8]}"
        with self._begin() as connection:
            row = self._row(connection, ref)
            if row is None:
                return None
            held = connection.execute(
                sa.update(TABLES).where(TABLES.c.id == row.id, TABLES.c.held_by.is_(None)).values(held_by=job_id)
            )
            if held.rowcount != 1:
                return None
            connection.execute(
                sa.insert(JOBS).values(
                    job_id=job_id,
                    table_id=row.id,
                    table_uuid=table_uuid,
                    operations=[str(op) for op in operations],
                    state=JobState.RUNNING,
                    trigger=trigger.kind,
                    actor=trigger.actor,
                    holder=trigger.holder,
                    heartbeat=now,
                    created=now,
                    started=now,
                )
            )
        return job_id

    def heartbeat(self, job_id: str, now: datetime) -> bool:
        """Renew the lease of a running job."""
        alive = sa.update(JOBS).where(JOBS.c.job_id == job_id, JOBS.c.state == JobState.RUNNING).values(heartbeat=now)
        with self._begin() as connection:
            return connection.execute(alive).rowcount == 1

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
        connection.execute(sa.update(TABLES).where(TABLES.c.held_by == job_id).values(held_by=None))
        return ended.rowcount == 1

    def interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """Running jobs whose lease ran out or whose holder is dead, ended here."""
        with self._begin() as connection:
            running = connection.execute(_jobs().where(JOBS.c.state == JobState.RUNNING)).all()
            lost = [row for row in running if now - row.heartbeat > LEASE or dead(row.holder)]
            said = "its process ended before the job did"
            return [_job(r) for r in lost if self._end(connection, r.job_id, JobState.INTERRUPTED, said, now)]

    def request_cancel(self, job_id: str) -> bool:
        """Ask a running job to stop."""
        asked = (
            sa.update(JOBS)
            .where(JOBS.c.job_id == job_id, JOBS.c.state.in_([JobState.QUEUED, JobState.RUNNING]))
            .values(cancel_requested=True)
        )
        with self._begin() as connection:
            return connection.execute(asked).rowcount == 1

    def cancel_requested(self, job_id: str) -> bool:
        """Whether somebody asked."""
        with self._begin() as connection:
            return bool(connection.execute(sa.select(JOBS.c.cancel_requested).where(JOBS.c.job_id == job_id)).scalar())

    def failures(self, ref: TableRef) -> int:
        """Failed jobs in a row since the last that did not fail."""
        with self._begin() as connection:
            ended = [str(s) for s in JobState if not TRANSITIONS[s] and s is not JobState.CANCELLED]
            query = _jobs().where(*of_table(ref), JOBS.c.state.in_(ended)).order_by(JOBS.c.created.desc()).limit(50)
            states = [row.state for row in connection.execute(query)]
        return next((i for i, state in enumerate(states) if state != JobState.FAILED), len(states))

    def jobs(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Jobs, newest first."""
        query = _jobs().order_by(JOBS.c.created.desc(), JOBS.c.job_id.desc()).limit(limit)
        with self._begin() as connection:
            return [_job(row) for row in connection.execute(query if ref is None else query.where(*of_table(ref)))]

    def job(self, job_id: str) -> JobRow | None:
        """A job by its id or a beginning of it that no other has."""
        query = _jobs().where(JOBS.c.job_id.startswith(job_id, autoescape=True)).limit(2)
        with self._begin() as connection:
            rows = connection.execute(query).all()
        return _job(rows[0]) if len(rows) == 1 else None

    # -- runs

    def run_recorded(self, run: RunRow, ref: TableRef) -> None:
        """One operation's outcome."""
        outcome = run.outcome
        with self._begin() as connection:
            row = self._row(connection, ref)
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
                )
            )

    def runs(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """The operations of a job."""
        query = sa.select(RUNS).where(RUNS.c.job_id == job_id).order_by(RUNS.c.id)
        with self._begin() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name

    def history(self, ref: TableRef, table_uuid: str) -> History:
        """The last run of each operation on the table of this name and uuid."""
        with self._begin() as connection:
            return last_runs(connection, (*of_table(ref), JOBS.c.table_uuid == table_uuid))

    def deleted_files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """What the ledger says of a job."""
        columns = [DELETIONS.c[name] for name in ("path", "bytes", "kind", "state")]
        query = sa.select(*columns).where(DELETIONS.c.job_id == job_id).order_by(DELETIONS.c.path)
        with self._begin() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001

    # -- events and policies

    def event(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:  # noqa: ANN401
        """An activity."""
        with self._begin() as connection:
            row = self._row(connection, ref) if ref is not None else None
            values = {"at": now, "kind": kind, "table_id": row.id if row is not None else None, "details": details}
            connection.execute(sa.insert(EVENTS).values(**values))

    def set_rule(self, rule: Rule, author: str, now: datetime) -> None:
        """A new version of the rule of this scope; earlier ones stay for the record."""
        scope = list(rule.match)
        with self._begin() as connection:
            versions = connection.execute(sa.select(POLICIES.c.scope, POLICIES.c.version)).all()
            version = max((v for s, v in versions if s == scope), default=0) + 1
            connection.execute(
                sa.insert(POLICIES).values(
                    scope=scope, settings=dict(rule.settings), author=author, at=now, version=version
                )
            )

    def rules(self) -> Sequence[Rule]:
        """The newest version of each scope's rule."""
        query = sa.select(POLICIES.c.scope, POLICIES.c.settings).order_by(POLICIES.c.id)
        with self._begin() as connection:
            newest = {tuple(scope): settings for scope, settings in connection.execute(query)}
        return [Rule(scope, settings, "store") for scope, settings in newest.items()]

    def _update_table(self, ref: TableRef, **values: Any) -> bool:  # noqa: ANN401 - columns
        with self._begin() as connection:
            return connection.execute(sa.update(TABLES).where(*of_table(ref)).values(**values)).rowcount == 1


def _ref(row: Any) -> TableRef:  # noqa: ANN401 - a result row
    return TableRef(row.catalog, tuple(json.loads(row.namespace)), row.name)


def _table(row: Any) -> TableRow:  # noqa: ANN401 - a result row
    names = TableRow.__dataclass_fields__.keys() - {"ref", "write_paths"}
    paths = None if row.write_paths is None else tuple(row.write_paths)
    return TableRow(ref=_ref(row), write_paths=paths, **{name: getattr(row, name) for name in names})


def _jobs() -> sa.Select[Any]:
    return sa.select(JOBS, TABLES.c.catalog, TABLES.c.namespace, TABLES.c.name).join(TABLES)


def _job(row: Any) -> JobRow:  # noqa: ANN401 - a result row
    return JobRow(
        job_id=row.job_id,
        ref=_ref(row),
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
    )
