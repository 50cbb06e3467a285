"""Aggregates for metrics and the overview, by the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import chain, islice
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.schema import ALERTS, DELIVERIES, JOBS, RUNS, TABLES, TOTALS, VERDICTS
from icewright.adapters.store.statements import DUE_SINCE, UNDONE_JOBS, visible
from icewright.core.permissions import VisibilityFilter
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.steps import SWITCHED_OFF
from icewright.core.tally import Total
from icewright.ports import Distribution, MeasureReader, Measures, QueueMeasure
from icewright.ports.views import FleetOverview, Savings, Spend, TrendPoint, TrendStep

_TENS = 10
_WRITTEN: Mapping[TrendStep, int] = {  # characters of a written time up to its day, hour or minute
    TrendStep.DAY: 10,
    TrendStep.HOUR: 13,
    TrendStep.MINUTE: 16,
}
# an operation that a safety rule or contradicting settings block; what is switched off is no fault
IS_BLOCKING = (VERDICTS.c.verdict == "blocked") & ~VERDICTS.c.reason.contains(SWITCHED_OFF, autoescape=True)
STATE = sa.case(  # the first condition that holds
    (TABLES.c.dropped, "dropped"),
    (TABLES.c.error.is_not(None), "unreadable"),
    (TABLES.c.paused.is_not(None), "paused"),
    (TABLES.c.held_by.is_not(None), "busy"),
    (TABLES.c.evaluated_at.is_(None), "new"),
    (TABLES.c.metadata_location.is_distinct_from(TABLES.c.evaluated_location), "changed"),
    (sa.exists().where(VERDICTS.c.table_id == TABLES.c.id, IS_BLOCKING).correlate(TABLES), "blocked"),
    (TABLES.c.due_since.is_not(None), "due"),
    else_="healthy",
)
_OVERDUE_SINCE = sa.case(  # since when work is due without a success
    (TABLES.c.error.is_not(None), None),  # unreadable tables are counted by their state
    (TABLES.c.succeeded_at > TABLES.c.due_since, TABLES.c.succeeded_at),
    else_=TABLES.c.due_since,
)


def overview(connection: sa.Connection, visibility: VisibilityFilter, since: datetime) -> FleetOverview:
    """Return the overview of the tables in sight; what was spent and saved counts from `since` on."""
    in_view = visible(connection, visibility) & ~TABLES.c.dropped
    states, health, unknown, funnel = _table_states(connection, in_view)
    jobs = sa.select(JOBS.c.state, sa.func.count()).join_from(JOBS, TABLES)
    jobs = jobs.where(in_view, JOBS.c.state.in_((JobState.QUEUED, JobState.RUNNING))).group_by(JOBS.c.state)
    jobs_by_state = {row.state: row[1] for row in connection.execute(jobs)}
    kinds = (VERDICTS.c.operation, VERDICTS.c.verdict)
    # few rows, where a join would visit each verdict
    hidden = VERDICTS.c.table_id.in_(sa.select(TABLES.c.id).where(~in_view))
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
        spend=_spend(connection, visible(connection, visibility), since),
        saved=_saved(connection, visible(connection, visibility), since),
    )


def _table_states(
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
    """Return the GB-hours of runs, and of work that is no operation, by day, catalog and pool."""
    place = (TABLES.c.catalog, JOBS.c.pool)
    runs = RUNS.join(JOBS, RUNS.c.job_id == JOBS.c.job_id).join(TABLES, TABLES.c.id == RUNS.c.table_id)
    of_runs = sa.select(RUNS.c.finished, *place, RUNS.c.gb_hours).select_from(runs)
    of_runs = of_runs.where(condition, RUNS.c.finished >= since, RUNS.c.tried)
    of_jobs = sa.select(JOBS.c.finished, *place, JOBS.c.spent).join_from(JOBS, TABLES)
    of_jobs = of_jobs.where(condition, JOBS.c.finished >= since, JOBS.c.spent > 0)
    each = sa.union_all(of_runs, of_jobs).subquery().c
    by = (sa.func.date(each.finished), each.catalog, each.pool)
    query = sa.select(*by, sa.func.sum(each.gb_hours), sa.func.count()).group_by(*by).order_by(*by)
    rows = connection.execute(query)
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
        "money": total("money"),
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
    spent, money = float(row.gb_hours or 0), float(row.money or 0)
    return Savings(runs=row.runs, gb_hours=spent, money=money, deleted_files=deleted, **rounded)


def _moment(text: str) -> datetime:
    """Return the beginning of a step from the first characters of a time."""
    return datetime.fromisoformat(f"{text}:00" if len(text) == _WRITTEN[TrendStep.HOUR] else text).replace(tzinfo=UTC)


def _day(value: Any) -> date:  # noqa: ANN401 - text from SQLite, a date from PostgreSQL
    return date.fromisoformat(value) if isinstance(value, str) else value


@dataclass
class SqlMeasures(MeasureReader):
    """The MeasureReader port on a database."""

    db: Database

    def read(self, now: datetime, points: Sequence[int], seconds: Sequence[int]) -> Measures:
        """Return all aggregates, read in one transaction, so that the numbers belong together."""
        with self.db.reading() as connection:
            tables = _tables(connection, now, points, seconds)
            verdicts, deferred, due_since = _verdicts(connection)
            return Measures(
                verdicts=verdicts,
                deferred=deferred,
                due_since=due_since,
                queue=_queue(connection),
                alerts=_counts(connection, _open_alerts()),
                undelivered={
                    channel: count for (channel,), count in _counts(connection, _pending_deliveries(now)).items()
                },
                totals={Total(*row[:-1]): row[-1] for row in connection.execute(sa.select(TOTALS))},
                **tables,
            )


def _tables(connection: sa.Connection, now: datetime, points: Sequence[int], seconds: Sequence[int]) -> dict[str, Any]:
    """Return tables by catalog and state, and how their numbers are distributed."""
    health, cuts = TABLES.c.health, [now - timedelta(seconds=most) for most in seconds]
    blocks = {
        "health": [sa.func.count(health), sa.func.sum(health), *(_count_if(health <= most) for most in points)],
        "success": _ages(connection, TABLES.c.succeeded_at, cuts, now),
        "overdue": _ages(connection, _OVERDUE_SINCE, cuts, now),
    }
    columns = (TABLES.c.catalog, STATE.label("state"), sa.func.count(), *chain.from_iterable(blocks.values()))
    states: dict[tuple[str, str], int] = {}
    spread: dict[str, dict[str, Distribution]] = {name: {} for name in blocks}
    for row in connection.execute(sa.select(*columns).group_by(TABLES.c.catalog, sa.text("state"))):
        catalog, state, count, *numbers = row
        states[catalog, state] = count
        rest = iter(numbers if state != "dropped" else ())
        for name, block in blocks.items():
            if part := list(islice(rest, len(block))):
                spread[name][catalog] = _add_distribution(spread[name].get(catalog), part)
    return {"tables": states, **spread}


def _add_distribution(before: Distribution | None, part: Sequence[float | None]) -> Distribution:
    """Return the distribution with the tables of one more state."""
    count, total, *at_most = (number or 0 for number in part)
    before = before or Distribution((0,) * len(at_most), 0, 0.0)
    counts = zip(before.at_most, at_most, strict=True)
    return Distribution(tuple(a + int(b) for a, b in counts), before.count + int(count), before.sum + float(total))


def _ages(
    connection: sa.Connection, at: sa.ColumnElement[Any], cuts: Sequence[datetime], now: datetime
) -> list[sa.ColumnElement[Any]]:
    """Return the number of times, the sum of their ages in seconds, and the number within each bound of age."""
    moment = sa.literal(now, TABLES.c.succeeded_at.type)
    age: sa.ColumnElement[Any]
    if connection.dialect.name == "postgresql":
        age = sa.extract("epoch", moment - at)
    else:
        age = (sa.func.julianday(moment) - sa.func.julianday(at)) * timedelta(days=1).total_seconds()
    return [sa.func.count(at), sa.func.sum(sa.cast(age, sa.Float)), *(_count_if(at >= cut) for cut in cuts)]


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _verdicts(
    connection: sa.Connection,
) -> tuple[dict[tuple[str, str, str], int], dict[tuple[str, str], int], dict[tuple[str, str], datetime]]:
    """Return verdicts by catalog, operation and kind; of due ones, how many wait, and since when the longest due."""
    columns = (TABLES.c.catalog, VERDICTS.c.operation, VERDICTS.c.verdict)
    counts = sa.func.count(), sa.func.count(VERDICTS.c.waits), sa.func.min(DUE_SINCE)
    query = sa.select(*columns, *counts).join_from(VERDICTS, TABLES)
    verdicts: dict[tuple[str, str, str], int] = {}
    deferred: dict[tuple[str, str], int] = {}
    due_since: dict[tuple[str, str], datetime] = {}
    for catalog, operation, verdict, count, waiting, since in connection.execute(query.group_by(*columns)):
        verdicts[catalog, operation, verdict] = count
        if verdict == "due":
            deferred[catalog, operation] = waiting
            due_since[catalog, operation] = since
    return verdicts, deferred, due_since


def _queue(connection: sa.Connection) -> dict[str, QueueMeasure]:
    """Return queued and running jobs by each of their operations."""
    query = sa.select(JOBS.c.state, JOBS.c.operations, JOBS.c.created)
    by_operation: dict[str, QueueMeasure] = {}
    for state, operations, created in connection.execute(
        query.where(JOBS.c.state.in_((JobState.QUEUED, JobState.RUNNING)))
    ):
        for operation in operations:
            before = by_operation.get(operation, QueueMeasure())
            if state == JobState.RUNNING:
                by_operation[operation] = QueueMeasure(before.queued, before.running + 1, before.oldest_queued)
            else:
                oldest = min(created, before.oldest_queued or created)
                by_operation[operation] = QueueMeasure(before.queued + 1, before.running, oldest)
    return by_operation


def _open_alerts() -> sa.Select[Any]:
    columns = (ALERTS.c.rule, ALERTS.c.severity)
    raised = (ALERTS.c.raised_at.is_not(None), ALERTS.c.resolved_at.is_(None))
    return sa.select(*columns, sa.func.count()).where(*raised).group_by(*columns)


def _pending_deliveries(now: datetime) -> sa.Select[Any]:
    silent = sa.select(ALERTS.c.id).where(ALERTS.c.silent_until > now)
    waiting = sa.select(DELIVERIES.c.channel, sa.func.count()).group_by(DELIVERIES.c.channel)
    return waiting.where(DELIVERIES.c.told_at.is_(None), DELIVERIES.c.resolved | DELIVERIES.c.alert_id.not_in(silent))


def _counts(connection: sa.Connection, query: sa.Select[Any]) -> Mapping[Any, int]:
    return {tuple(row[:-1]): row[-1] for row in connection.execute(query)}
