"""The input of the planner: due operations, usage, pool limits and the operations that it deferred."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.schema import FLEET_PAUSE, JOBS, POOLS, RUNS, TABLES, VERDICTS, Moment
from icewright.adapters.store.statements import DUE_SINCE, NAME, name_columns, namespace_of, ref_of, values_table
from icewright.core.capacity import Active, Candidate, DueOperation, Priority, Usage
from icewright.core.plan import Deferred, heat_factor
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.ports import PlanningState

_OPEN = (JobState.QUEUED, JobState.RUNNING)

_OPERATIONS = {str(operation): operation for operation in Operation}


def _columns_of(table: sa.Table, names: str) -> Sequence[sa.Column[Any]]:
    return [table.c[name] for name in names.split()]


_ACTIVE = (
    sa.select(
        *_columns_of(TABLES, "catalog namespace name"), *_columns_of(JOBS, "pool operations on_pool cost priority")
    )
    .join_from(JOBS, TABLES)
    .where(JOBS.c.state.in_(_OPEN))
)

_DAY = sa.bindparam("day", type_=Moment)
_BY_PLACE = (*_columns_of(TABLES, "catalog namespace"), *_columns_of(JOBS, "pool on_pool"))
_SPENT = (  # by runs of operations, and by other work, all of which is Spark's
    sa.select(*_BY_PLACE, sa.func.sum(RUNS.c.gb_hours).label("spent"))
    .select_from(RUNS.join(JOBS).join(TABLES, TABLES.c.id == RUNS.c.table_id))
    .where(RUNS.c.finished >= _DAY, RUNS.c.gb_hours > 0)
    .group_by(*_BY_PLACE)
    .union_all(
        sa.select(*_BY_PLACE[:3], sa.true(), JOBS.c.spent)
        .join_from(JOBS, TABLES)
        .where(JOBS.c.finished.is_(None) | (JOBS.c.finished >= _DAY), JOBS.c.spent > 0)
    )
)

_DUE = VERDICTS.c.verdict == "due"

_DUE_OPERATIONS = (
    sa.select(*_columns_of(VERDICTS, "table_id operation benefit cost reason"), DUE_SINCE.label("since"))
    .add_columns(*_columns_of(VERDICTS, "on_pool cooled"))
    .where(_DUE)
)

_DUE_TABLES = (
    sa.select(*_columns_of(TABLES, "id catalog namespace name table_uuid importance run_order windows"))
    .add_columns(*_columns_of(TABLES, "queries_per_day paused held_by"))
    .where(TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True)), ~TABLES.c.dropped)
    .where(TABLES.c.id.in_(sa.select(VERDICTS.c.table_id).where(_DUE)))
    .order_by(TABLES.c.id)
)

# An evaluation that is recorded after one that began later leaves the newest time as it is, but ends its claim.
_MARKS = [sa.case((mark.is_not(None), TABLES.c.id)) for mark in _columns_of(TABLES, "paused held_by evaluating_by")]

_PLANNED_FROM = (
    sa.select(sa.func.count(), *map(sa.func.sum, _MARKS), sa.func.max(TABLES.c.evaluated_at)).where(~TABLES.c.dropped),
    sa.select(JOBS.c.job_id).where(JOBS.c.state.in_(_OPEN)).order_by(JOBS.c.job_id),
    sa.select(POOLS.c.name, POOLS.c.max_concurrent).order_by(POOLS.c.name),
    sa.select(FLEET_PAUSE.c.reason, FLEET_PAUSE.c.author),
)


@dataclass
class SqlPlanning(PlanningState):
    """The PlanningState port on a database."""

    db: Database

    def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
        due: dict[int, dict[Operation, DueOperation]] = {}
        with self.db.reading() as connection:
            for table, operation, *columns in connection.execute(_DUE_OPERATIONS).all():
                due.setdefault(table, {})[_OPERATIONS[operation]] = DueOperation(*columns)
            rows = connection.execute(_DUE_TABLES, {"catalogs": catalogs}).all()
            return [_candidate(row, due[row.id]) for row in rows if row.id in due]

    def change_token(self) -> Hashable:
        with self.db.reading() as connection:
            return tuple(tuple(connection.execute(statement)) for statement in _PLANNED_FROM)

    def usage(self, day: datetime) -> Usage:
        by_pool: dict[str, float] = {}
        by_catalog: dict[str, float] = {}
        by_namespace: dict[tuple[str, ...], float] = {}
        with self.db.reading() as connection:
            jobs = tuple(
                Active(
                    ref_of(row),
                    row.pool,
                    tuple(Operation(op) for op in row.operations),
                    row.on_pool,
                    row.cost,
                    Priority(row.priority),
                )
                for row in connection.execute(_ACTIVE)
            )
            for row in connection.execute(_SPENT, {"day": day}):
                namespace = (row.catalog, *namespace_of(row.namespace))
                by_namespace[namespace] = by_namespace.get(namespace, 0.0) + row.spent
                by_catalog[row.catalog] = by_catalog.get(row.catalog, 0.0) + row.spent
                by_pool[row.pool] = by_pool.get(row.pool, 0.0) + (row.spent if row.on_pool else 0.0)
        return Usage(jobs, by_pool, by_catalog, by_namespace)

    def record_deferred(self, deferred: Sequence[Deferred]) -> None:
        """Replace the deferred operations, writing only differences from the last plan, as most of the queue stays."""
        by_key = {(*name_columns(d.ref).values(), str(d.operation)): d for d in deferred}
        columns = _columns_of(VERDICTS, "operation table_id waits position")
        query = sa.select(*NAME, *columns).join(VERDICTS).where(VERDICTS.c.verdict == "due")
        changes = []
        with self.db.begin() as connection:
            for *key, table, reason, position in connection.execute(query).all():
                entry = by_key.get(tuple(key))
                current = (entry.reason, entry.position, entry.score) if entry else (None, None, None)
                if (reason, position) != current[:2]:
                    changes.append((table, key[-1], *current))
            if changes:
                kinds = {"table_id": sa.Integer, "operation": sa.Text}
                kinds |= {"waits": sa.Text, "position": sa.Integer, "score": sa.Float}
                changed = values_table(connection, changes, **kinds)
                same_verdict = (VERDICTS.c.table_id == changed.c.table_id) & (
                    VERDICTS.c.operation == changed.c.operation
                )
                values = {name: changed.c[name] for name in ("waits", "position", "score")}
                connection.execute(sa.update(VERDICTS).where(same_verdict).values(values))

    def pool_limits(self) -> Mapping[str, int]:
        with self.db.reading() as connection:
            rows = connection.execute(sa.select(POOLS.c.name, POOLS.c.max_concurrent)).all()
            return {row.name: row.max_concurrent for row in rows}

    def set_pool_limit(self, name: str, limit: int, now: datetime) -> None:
        values = {"max_concurrent": limit, "changed": now}
        with self.db.begin() as connection:
            insert = dialect_insert(connection, POOLS).values(name=name, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))


def _candidate(row: Any, due: Mapping[Operation, DueOperation]) -> Candidate:  # noqa: ANN401 - a result row
    blocked = f"paused: {row.paused}" if row.paused else f"held by job {row.held_by}" if row.held_by else None
    return Candidate(
        ref=ref_of(row),
        table_uuid=row.table_uuid,
        due_operations=due,
        importance=row.importance,
        order=row.run_order,
        windows=row.windows,
        heat=heat_factor(row.queries_per_day),
        blocked=blocked,
    )
