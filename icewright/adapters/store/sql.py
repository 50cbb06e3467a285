"""The Store port: runs, events and policies, on top of what tables, jobs and loops have of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store import totals
from icewright.adapters.store.history import last_runs
from icewright.adapters.store.ledger import NAMED, named, of_table
from icewright.adapters.store.overview import SqlOverview
from icewright.adapters.store.schema import DELETIONS, EVENTS, JOBS, POLICIES, RUNS, TABLES
from icewright.core.layering import PolicyRule
from icewright.core.policy import RENAMED, Operation
from icewright.core.runs import History, OperationState, Outcome
from icewright.core.table import TableRef
from icewright.core.tally import of_run, of_work
from icewright.ports import RunRow

_TOLD = sa.insert(EVENTS).values(table_id=sa.select(TABLES.c.id).where(*NAMED).scalar_subquery())
_RULES = sa.select(POLICIES.c.scope, POLICIES.c.settings).order_by(POLICIES.c.id)


class SqlStore(SqlOverview):
    """The store on one SQLAlchemy engine."""

    # -- runs

    def record_run(self, run: RunRow, ref: TableRef) -> None:
        """Record the outcome of one operation of a job."""
        outcome = run.outcome
        mine = (RUNS.c.job_id == run.job_id, RUNS.c.operation == outcome.operation, RUNS.c.finished == run.finished)
        with self._begin() as connection:
            if connection.execute(sa.select(RUNS.c.id).where(*mine)).first() is not None:
                return  # told again, as the answer was lost
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
                    gb_hours=outcome.metrics.get("gb_hours", 0.0),
                    tried=outcome.tried,
                )
            )
            totals.add(connection, of_run(ref.catalog, outcome, (run.finished - run.started).total_seconds()))
            if outcome.state is OperationState.COMMITTED:
                worked = sa.update(TABLES).where(*of_table(ref)).values(succeeded_at=run.finished)
                connection.execute(worked)

    def record_work(self, catalog: str, outcome: Outcome) -> None:
        """What was finished of an interrupted run: its sums, for the run itself is not told any more."""
        with self._begin() as connection:
            totals.add(connection, of_work(catalog, outcome))

    def runs(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the operations of a job."""
        query = sa.select(RUNS).where(RUNS.c.job_id == job_id).order_by(RUNS.c.id)
        with self._reading() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name

    def history(self, ref: TableRef, table_uuid: str) -> History:
        """Return the last run of each operation on the table of this name and uuid."""
        with self._reading() as connection:
            return last_runs(connection, (*of_table(ref), JOBS.c.table_uuid == table_uuid))

    def work_done(self, since: datetime, most: int) -> Sequence[tuple[Operation, Mapping[str, float]]]:
        """Metrics of the newest runs that did their work, so many of each operation, and one of them for each table."""
        done = (RUNS.c.state == OperationState.COMMITTED, RUNS.c.finished >= since)
        last = sa.select(sa.func.max(RUNS.c.id).label("id")).where(*done).group_by(RUNS.c.table_id)
        found: list[tuple[Operation, Mapping[str, float]]] = []
        with self._reading() as connection:
            for operation in Operation:
                mine = last.where(RUNS.c.operation == operation).subquery()
                newest = sa.select(RUNS.c.metrics).join(mine, mine.c.id == RUNS.c.id).order_by(RUNS.c.id.desc())
                found += [(operation, metrics) for (metrics,) in connection.execute(newest.limit(most))]
        return found

    def deleted_files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """Return what the ledger says of a job."""
        columns = [
            DELETIONS.c[name] for name in ("path", "bytes", "kind", "state", "modified", "delete_after", "reason")
        ]
        query = sa.select(*columns).where(DELETIONS.c.job_id == job_id).order_by(DELETIONS.c.path)
        with self._begin() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001

    # -- events and policies

    def record_event(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:  # noqa: ANN401
        """An activity; `job_id` among the details says whose."""
        with self._begin() as connection:
            table = dict.fromkeys(("catalog", "namespace", "name")) if ref is None else named(ref)
            said = {"at": now, "kind": kind, "job_id": details.pop("job_id", None), "details": details}
            connection.execute(_TOLD, said | table)

    def events(self, job_id: str | None = None, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Activities, newest first; of one job in their order."""
        columns = [EVENTS.c[name] for name in ("at", "kind", "details", "job_id")]
        query = sa.select(*columns).order_by(EVENTS.c.id.desc()).limit(limit)
        if job_id is not None:
            query = sa.select(*columns).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.id)
        with self._reading() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001

    def set_rule(self, rule: PolicyRule, author: str, now: datetime) -> None:
        """A new version of the rule of this scope; earlier ones stay for the record."""
        self.put_rule(tuple(rule.match), rule.settings, author, now, None)

    def rules(self) -> Sequence[PolicyRule]:
        """Return the newest version of each scope's rule."""
        with self._reading() as connection:
            newest = {tuple(scope): settings for scope, settings in connection.execute(_RULES)}
        return [
            PolicyRule(scope, {RENAMED.get(name, name): value for name, value in settings.items()}, "store")
            for scope, settings in newest.items()
        ]
