"""Counts and sums of the overview, by the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.measures import STATE
from icewright.adapters.store.paging import visible
from icewright.adapters.store.schema import JOBS, RUNS, TABLES, VERDICTS
from icewright.adapters.store.statements import UNDONE_JOBS
from icewright.core.permissions import VisibilityFilter
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.ports.views import FleetOverview, Savings, Spend, TrendPoint, TrendStep

_TENS = 10
_WRITTEN: Mapping[TrendStep, int] = {  # characters of a written time up to its day, hour or minute
    TrendStep.DAY: 10,
    TrendStep.HOUR: 13,
    TrendStep.MINUTE: 16,
}


def overview(connection: sa.Connection, sight: VisibilityFilter, since: datetime) -> FleetOverview:
    """Return the overview of the tables in sight; what was spent and saved counts from `since` on."""
    in_view = visible(connection, sight) & ~TABLES.c.dropped
    states, health, unknown, funnel = _tables(connection, in_view)
    jobs = sa.select(JOBS.c.state, sa.func.count()).join_from(JOBS, TABLES)
    jobs = jobs.where(in_view, JOBS.c.state.in_((JobState.QUEUED, JobState.RUNNING))).group_by(JOBS.c.state)
    jobs_by_state = {row.state: row[1] for row in connection.execute(jobs)}
    kinds = (VERDICTS.c.operation, VERDICTS.c.verdict)
    hidden = VERDICTS.c.table_id.in_(
        sa.select(TABLES.c.id).where(~in_view)
    )  # few rows, where a join would visit each verdict
    verdicts = sa.select(*kinds, sa.func.count()).where(~hidden).group_by(*kinds)
    verdict_counts = {(operation, verdict): count for operation, verdict, count in connection.execute(verdicts)}
    return FleetOverview(
        tables=sum(states.values()),
        changed=funnel[0],
        due=funnel[1],
        running=min(jobs_by_state.get(JobState.RUNNING, 0), funnel[1]),
        states=states,
        health=health,
        unknown=unknown,
        verdicts=verdict_counts,
        jobs=jobs_by_state,
        spend=_spend(connection, visible(connection, sight), since),
        saved=_saved(connection, visible(connection, sight), since),
    )


def _tables(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> tuple[dict[str, int], list[int], int, tuple[int, int]]:
    """Return counts of tables by state and by tens of health, and of tables that changed, are due or are worked on."""
    tens = sa.case((TABLES.c.health >= _TENS * (_TENS - 1), _TENS - 1), else_=TABLES.c.health // _TENS)
    due_or_held = (TABLES.c.due_since.is_not(None) & TABLES.c.error.is_(None)) | TABLES.c.held_by.is_not(None)
    changed_since = TABLES.c.metadata_location.is_distinct_from(TABLES.c.evaluated_location)
    parts = [sa.func.sum(sa.case((condition, 1), else_=0)) for condition in (due_or_held | changed_since, due_or_held)]
    query = sa.select(STATE.label("state"), tens.label("tens"), sa.func.count(), *parts)
    states: dict[str, int] = {}
    health, unknown, changed, due = [0] * _TENS, 0, 0, 0
    for state, ten, count, some_changed, some_due in connection.execute(
        query.where(condition).group_by(sa.text("state"), sa.text("tens"))
    ):
        states[state] = states.get(state, 0) + count
        changed, due = changed + int(some_changed), due + int(some_due)
        if ten is None:
            unknown += count
        else:
            health[ten] += count
    return states, health, unknown, (changed, due)


def _spend(connection: sa.Connection, condition: sa.ColumnElement[bool], since: datetime) -> list[Spend]:
    """Return the GB-hours of runs by day, catalog and pool."""
    day = sa.func.date(RUNS.c.finished)
    by = (day, TABLES.c.catalog, JOBS.c.pool)
    runs = RUNS.join(JOBS, RUNS.c.job_id == JOBS.c.job_id).join(TABLES, TABLES.c.id == RUNS.c.table_id)
    query = sa.select(*by, sa.func.sum(RUNS.c.gb_hours), sa.func.count()).select_from(runs)
    rows = connection.execute(
        query.where(condition, RUNS.c.finished >= since, RUNS.c.tried).group_by(*by).order_by(*by)
    )
    return [Spend(_day(on), catalog, pool, float(spent or 0), count) for on, catalog, pool, spent, count in rows]


def _saved(connection: sa.Connection, condition: sa.ColumnElement[bool], since: datetime) -> Savings:
    """Return the sums of the metrics that runs recorded, without the snapshots that an undo put back."""
    runs = RUNS.join(TABLES, TABLES.c.id == RUNS.c.table_id)
    query = sa.select(*_sums()).select_from(runs)
    return _savings(connection.execute(query.where(condition, RUNS.c.finished >= since, RUNS.c.tried)).one())


def trend(
    connection: sa.Connection, condition: sa.ColumnElement[bool], since: datetime, step: TrendStep
) -> list[TrendPoint]:
    """Return the sums of runs by step and pool, oldest first."""
    at = sa.func.substr(sa.cast(RUNS.c.finished, sa.Text), 1, _WRITTEN[step])
    by = (at.label("at"), JOBS.c.pool.label("pool"))
    runs = RUNS.join(JOBS, RUNS.c.job_id == JOBS.c.job_id).join(TABLES, TABLES.c.id == RUNS.c.table_id)
    query = sa.select(*by, *_sums()).select_from(runs)
    query = query.where(condition, RUNS.c.finished >= since, RUNS.c.tried)
    rows = connection.execute(query.group_by(*by).order_by(*by))
    return [TrendPoint(_moment(row.at), row.pool or "", _savings(row)) for row in rows]


def _sums() -> list[sa.ColumnElement[Any]]:
    """Return the columns of `_savings`."""

    def total(*names: str, of: Operation | None = None) -> sa.ColumnElement[Any]:
        values = [sa.func.coalesce(RUNS.c.metrics[name].as_float(), 0.0) for name in names]
        number = values[0] if len(values) == 1 else values[0] - values[1]
        return sa.func.sum(number if of is None else sa.case((RUNS.c.operation == of, number), else_=0.0))

    expired = sa.func.coalesce(RUNS.c.metrics["snapshots_expired"].as_float(), 0.0)
    sums = {
        "gb_hours": sa.func.sum(RUNS.c.gb_hours),
        "data_files": total("files_merged", "files_written", of=Operation.COMPACT),
        "manifests": total("manifests_rewritten", "manifests_written"),
        "snapshots": sa.func.sum(sa.case((RUNS.c.job_id.in_(UNDONE_JOBS), 0.0), else_=expired)),
        "deleted": total("files_deleted", of=Operation.EXPIRE_SNAPSHOTS),
        "orphans": total("orphans_removed"),
        "deleted_bytes": total("bytes_deleted"),
    }
    return [sa.func.count().label("runs"), *(sums[name].label(name) for name in sums)]


def _savings(row: sa.Row[Any]) -> Savings:
    rounded = {
        name: round(getattr(row, name) or 0) for name in ("data_files", "manifests", "snapshots", "deleted_bytes")
    }
    deleted = round((row.deleted or 0) + (row.orphans or 0))
    return Savings(runs=row.runs, gb_hours=float(row.gb_hours or 0), deleted_files=deleted, **rounded)


def _moment(text: str) -> datetime:
    """Return the beginning of a step from the first characters of a time."""
    return datetime.fromisoformat(f"{text}:00" if len(text) == _WRITTEN[TrendStep.HOUR] else text).replace(tzinfo=UTC)


def _day(value: Any) -> date:  # noqa: ANN401 - text from SQLite, a date from PostgreSQL
    return date.fromisoformat(value) if isinstance(value, str) else value
