"""Alerts in the store: one open alert for each key, the deliveries to channels, and what rules look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.measures import IS_BLOCKING
from icewright.adapters.store.schema import ALERTS, DELIVERIES, JOBS, RUNS, TABLES, VERDICTS
from icewright.adapters.store.statements import NAME, SAME_TABLE, chunks, name_columns, ref_of, visible
from icewright.core.alerts import (
    Acknowledgement,
    Alert,
    AlertChange,
    AlertRule,
    Begin,
    Delivery,
    Forget,
    Raise,
    Resolve,
    Severity,
)
from icewright.core.conditions import Failure, TableInputs
from icewright.core.permissions import VisibilityFilter
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.ports import OPEN_ALERTS, AlertQuery, AlertStore, PendingDelivery, QueueBacklog

_OPEN = ALERTS.c.resolved_at.is_(None)

_RAISED = ALERTS.c.raised_at.is_not(None)

_KNOWN = ALERTS.c.rule.in_(list(AlertRule))  # a newer release, which may share the store, has rules of its own

# Statements of every few seconds are built once: building one takes as long as executing it
_IN_CATALOGS = (TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True)), ~TABLES.c.dropped)


def _failed_runs() -> sa.Select[Any]:
    """Return failed runs that are the last of their operation on a table."""
    newer = RUNS.alias("newer")
    run_after = sa.exists().where(
        newer.c.table_id == RUNS.c.table_id,
        newer.c.operation == RUNS.c.operation,
        newer.c.finished >= RUNS.c.finished,
        newer.c.id > RUNS.c.id,
        newer.c.state.in_((OperationState.COMMITTED, OperationState.SKIPPED, OperationState.FAILED)),
    )
    query = sa.select(*NAME, RUNS.c.operation, RUNS.c.reason).join_from(RUNS, JOBS)
    query = query.join(TABLES, TABLES.c.id == RUNS.c.table_id).order_by(RUNS.c.id)
    return query.where(RUNS.c.state == OperationState.FAILED, ~run_after, *_IN_CATALOGS, SAME_TABLE)


def _faulty_checks() -> sa.Select[Any]:
    """Return checks that found faults and are the last of a table; such jobs are partial."""
    newer = RUNS.alias("newer")
    run_after = sa.exists().where(
        newer.c.table_id == RUNS.c.table_id,
        newer.c.operation == RUNS.c.operation,
        newer.c.id > RUNS.c.id,
        newer.c.state == OperationState.COMMITTED,
    )
    query = sa.select(*NAME, RUNS.c.operation, RUNS.c.summary.label("reason")).join_from(RUNS, JOBS)
    query = query.join(TABLES, TABLES.c.id == RUNS.c.table_id).order_by(RUNS.c.id)
    return query.where(
        JOBS.c.state == JobState.PARTIAL,
        RUNS.c.operation == Operation.CHECK,
        RUNS.c.metrics["faults_found"].as_float() > 0,
        ~run_after,
        *_IN_CATALOGS,
        SAME_TABLE,
    )


def _failed_jobs() -> sa.Select[Any]:
    """Return failed jobs without a run, where no later job of the table has ended."""
    later = JOBS.alias("later")
    ended = (JobState.SUCCEEDED, JobState.PARTIAL, JobState.SKIPPED, JobState.FAILED)
    job_after = sa.exists().where(
        later.c.table_id == JOBS.c.table_id, later.c.created > JOBS.c.created, later.c.state.in_(ended)
    )
    has_run = sa.exists().where(RUNS.c.job_id == JOBS.c.job_id)
    query = sa.select(*NAME, sa.null().label("operation"), JOBS.c.summary.label("reason"))
    query = query.join_from(JOBS, TABLES).order_by(JOBS.c.created)
    return query.where(JOBS.c.state == JobState.FAILED, ~has_run, ~job_after, *_IN_CATALOGS, SAME_TABLE)


def _unsupported() -> sa.Select[Any]:
    """Return tables of which no operation is due or not due, and one is unsupported."""
    other = VERDICTS.alias("other")
    able = sa.exists().where(other.c.table_id == VERDICTS.c.table_id, other.c.verdict.in_(("due", "not_due")))
    query = sa.select(*NAME, sa.func.min(VERDICTS.c.reason).label("reason")).join_from(VERDICTS, TABLES)
    return query.where(VERDICTS.c.verdict == "unsupported", *_IN_CATALOGS, ~able).group_by(*NAME)


def _blocked() -> sa.Select[Any]:
    """Return tables with a blocked operation, each with one of the reasons."""
    query = sa.select(*NAME, sa.func.min(VERDICTS.c.reason).label("reason")).join_from(VERDICTS, TABLES)
    return query.where(IS_BLOCKING, TABLES.c.error.is_(None), *_IN_CATALOGS).group_by(*NAME)


def _warned() -> sa.Select[Any]:
    """Return tables of which an operation warns, each with the warning."""
    first = sa.select(VERDICTS.c.table_id, sa.func.min(VERDICTS.c.warning).label("reason"))
    # apart, so that SQLite does not ask the index for each table
    warned = first.where(VERDICTS.c.warning.is_not(None)).group_by(VERDICTS.c.table_id).subquery()
    query = sa.select(*NAME, warned.c.reason).join_from(warned, TABLES, TABLES.c.id == warned.c.table_id)
    return query.where(*_IN_CATALOGS)


_FAILED_RUNS, _FAILED_JOBS = _failed_runs(), _failed_jobs()
_REPORTED = {
    AlertRule.CHECK_FAILED: _faulty_checks(),
    AlertRule.UNMAINTAINABLE: _unsupported(),
    AlertRule.TABLE_BLOCKED: _blocked(),
    AlertRule.READER_UNPINNED: _warned(),
}


@dataclass
class SqlAlerts(AlertStore):
    """The AlertStore port on a database."""

    db: Database

    def table_inputs(
        self, catalogs: Sequence[str], enabled: Sequence[str], below: int, overdue: datetime
    ) -> Sequence[TableInputs]:
        late = TABLES.c.succeeded_at.is_(None) | (TABLES.c.succeeded_at <= overdue)
        suspicious = sa.or_(
            TABLES.c.paused.is_not(None),
            TABLES.c.error.is_not(None),
            TABLES.c.catalog.in_(enabled) & ((TABLES.c.health < below) | ((TABLES.c.due_since <= overdue) & late)),
        )
        names = ("paused", "error", "health", "due_since", "succeeded_at", "windows")
        query = sa.select(*NAME, *(TABLES.c[name] for name in names))
        rows = self.db.rows(query.where(TABLES.c.catalog.in_(catalogs), ~TABLES.c.dropped, suspicious))
        return [
            TableInputs(
                ref=ref_of(row),
                paused=row.paused,
                error=row.error,
                health=row.health,
                overdue_since=_overdue_since(row),
                windows=row.windows,
            )
            for row in rows
        ]

    def failures(self, catalogs: Sequence[str]) -> Sequence[Failure]:
        with self.db.reading() as connection:
            parameters = {"catalogs": catalogs}
            rows = [*connection.execute(_FAILED_RUNS, parameters), *connection.execute(_FAILED_JOBS, parameters)]
        return [Failure(ref_of(r), Operation(r.operation) if r.operation else None, r.reason) for r in rows]

    def reported(self, rule: AlertRule, catalogs: Sequence[str]) -> Mapping[TableRef, str]:
        return {ref_of(row): row.reason for row in self.db.rows(_REPORTED[rule], {"catalogs": catalogs})}

    def backlog(self) -> QueueBacklog:
        query = sa.select(sa.func.count(), sa.func.min(JOBS.c.created)).where(JOBS.c.state == JobState.QUEUED)
        with self.db.reading() as connection:
            count, oldest = connection.execute(query).one()
        return QueueBacklog(count, oldest)

    def unresolved(self) -> Sequence[Alert]:
        return [_alert(row) for row in self.db.rows(_alerts().where(_OPEN).order_by(ALERTS.c.id))]

    def list(self, query: AlertQuery = OPEN_ALERTS, limit: int = 1000) -> Sequence[Alert]:
        newest = _alerts().where(_RAISED, *_matching(query)).order_by(ALERTS.c.raised_at.desc(), ALERTS.c.id.desc())
        with self.db.reading() as connection:
            condition = visible(connection, query.visibility)
            rows = connection.execute(newest.where(condition).limit(limit)).all()
            deliveries: dict[int, list[Delivery]] = {row.id: [] for row in rows}
            for chunk in chunks(list(deliveries)):
                of_alerts = sa.select(DELIVERIES).where(DELIVERIES.c.alert_id.in_(chunk))
                for row in connection.execute(of_alerts.order_by(DELIVERIES.c.channel, DELIVERIES.c.resolved)):
                    deliveries[row.alert_id].append(Delivery(row.channel, row.resolved, row.failures, row.told_at))
        return [_alert(row, deliveries[row.id]) for row in rows]

    def count_open(self, visibility: VisibilityFilter) -> Mapping[str, int]:
        count = sa.select(ALERTS.c.severity, sa.func.count().label("alerts")).join_from(ALERTS, TABLES, isouter=True)
        with self.db.reading() as connection:
            open_now = count.where(_RAISED, _OPEN, _KNOWN, visible(connection, visibility))
            return {row.severity: row.alerts for row in connection.execute(open_now.group_by(ALERTS.c.severity))}

    def record_changes(self, changes: Sequence[AlertChange], channels: Sequence[str], now: datetime) -> None:
        with self.db.begin() as connection:
            _insert_alerts(connection, [c for c in changes if isinstance(c, Begin)], now)
            this_alert = ALERTS.c.id == sa.bindparam("alert")
            raised = [
                {"alert": c.alert.id, "said": c.message, "how": c.severity} for c in changes if isinstance(c, Raise)
            ]
            if raised:
                change = {"raised_at": now, "message": sa.bindparam("said"), "severity": sa.bindparam("how")}
                connection.execute(sa.update(ALERTS).where(this_alert, _OPEN, ~_RAISED).values(**change), raised)
            forgotten = [{"alert": c.alert.id} for c in changes if isinstance(c, Forget)]
            if forgotten:
                connection.execute(sa.delete(ALERTS).where(this_alert, _OPEN, ~_RAISED), forgotten)
            _resolve(connection, [c.alert.id for c in changes if isinstance(c, Resolve)], now)
            _add_open_deliveries(connection, channels, now)

    def acknowledge(self, alert_id: int, acknowledgement: Acknowledgement | None) -> bool:
        given = acknowledgement
        values = {
            "acknowledged_by": given and given.author,
            "acknowledged_at": given and given.at,
            "note": given and given.note,
            "silent_until": given and given.silent_until,
        }
        with self.db.begin() as connection:
            change = sa.update(ALERTS).where(ALERTS.c.id == alert_id, _OPEN, _RAISED).values(**values)
            return connection.execute(change).rowcount == 1

    def claim_deliveries(self, channels: Sequence[str], now: datetime, until: datetime) -> Sequence[PendingDelivery]:
        pending = (DELIVERIES.c.told_at.is_(None), DELIVERIES.c.try_at <= now, DELIVERIES.c.channel.in_(channels))
        silent = DELIVERIES.c.alert_id.in_(sa.select(ALERTS.c.id).where(ALERTS.c.silent_until > now))
        silenced = silent & ~DELIVERIES.c.resolved
        known = sa.exists().where(ALERTS.c.id == DELIVERIES.c.alert_id, _KNOWN)
        claim = sa.update(DELIVERIES).where(*pending, known, ~silenced, ~_earlier_undelivered()).values(try_at=until)
        columns = (DELIVERIES.c.alert_id, DELIVERIES.c.channel, DELIVERIES.c.resolved, DELIVERIES.c.failures)
        with self.db.claiming() as connection:
            rows = connection.execute(claim.returning(*columns)).all()
            alerts: dict[int, Alert] = {}
            for chunk in chunks(sorted({row.alert_id for row in rows})):
                alerts |= {row.id: _alert(row) for row in connection.execute(_alerts().where(ALERTS.c.id.in_(chunk)))}
        deliveries = [PendingDelivery(alerts[row.alert_id], row.channel, row.resolved, row.failures) for row in rows]
        return sorted(deliveries, key=lambda delivery: (delivery.channel, delivery.resolved, delivery.alert.id))

    def mark_delivered(self, deliveries: Sequence[PendingDelivery], now: datetime) -> None:
        self._update_deliveries(deliveries, {"told_at": now})

    def schedule_redelivery(self, deliveries: Sequence[PendingDelivery], try_at: datetime) -> None:
        self._update_deliveries(deliveries, {"failures": DELIVERIES.c.failures + 1, "try_at": try_at})

    def _update_deliveries(self, deliveries: Sequence[PendingDelivery], change: dict[str, Any]) -> None:
        rows = [{"alert": t.alert.id, "name": t.channel, "over": t.resolved} for t in deliveries]
        this_delivery = (
            DELIVERIES.c.alert_id == sa.bindparam("alert"),
            DELIVERIES.c.channel == sa.bindparam("name"),
            DELIVERIES.c.resolved == sa.bindparam("over"),
        )
        if rows:
            with self.db.begin() as connection:
                undelivered = DELIVERIES.c.told_at.is_(None)
                connection.execute(sa.update(DELIVERIES).where(*this_delivery, undelivered).values(**change), rows)


def _earlier_undelivered() -> sa.ColumnElement[bool]:
    """Return whether the channel still waits for the alert's beginning, or for an earlier alert of the key."""
    current, alert, delivery = ALERTS.alias("current_alert"), ALERTS.alias("earlier"), DELIVERIES.alias("before")
    joined = current.join(alert, (alert.c.key == current.c.key) & (alert.c.id <= current.c.id))
    earlier = (alert.c.id < current.c.id) | (~delivery.c.resolved & DELIVERIES.c.resolved)
    undelivered = (delivery.c.channel == DELIVERIES.c.channel) & delivery.c.told_at.is_(None) & earlier
    earlier_deliveries = sa.select(1).select_from(joined.join(delivery, delivery.c.alert_id == alert.c.id))
    return sa.exists(earlier_deliveries.where(current.c.id == DELIVERIES.c.alert_id, undelivered).correlate(DELIVERIES))


def _insert_alerts(connection: sa.Connection, changes: Iterable[Begin], now: datetime) -> None:
    """Insert alerts; a key that another process has just begun is left to that process."""
    rows = []
    for change in sorted(changes, key=lambda change: change.condition.key):  # in one order, against deadlocks
        condition = change.condition
        table_name = (
            {f"of_{name}": value for name, value in name_columns(condition.ref).items()} if condition.ref else _NO_TABLE
        )
        values: dict[str, Any] = {
            "key": condition.key,
            "rule": condition.rule,
            "subject": condition.subject,
            "message": condition.message,
        }
        values |= {"severity": change.severity, "since": now, "raised_at": now if change.raised else None}
        rows.append({**table_name, **values, "of_key": condition.key})
    if not rows:
        return
    table = sa.select(TABLES.c.id).where(*(column == sa.bindparam(f"of_{column.name}") for column in NAME))
    insert = dialect_insert(connection, ALERTS).values(table_id=table.scalar_subquery(), **_inherited_silence(now))
    connection.execute(insert.on_conflict_do_nothing(index_elements=["key"], index_where=_OPEN), rows)


def _inherited_silence(now: datetime) -> Mapping[str, sa.ScalarSelect[Any]]:
    """Return the acknowledgement of the last alert of the key, while its silence lasts."""
    earlier = ALERTS.alias("before")
    of_key = sa.select(sa.func.max(earlier.c.id)).where(earlier.c.key == sa.bindparam("of_key")).scalar_subquery()
    columns = (ALERTS.c.acknowledged_by, ALERTS.c.acknowledged_at, ALERTS.c.note, ALERTS.c.silent_until)
    silent = (ALERTS.c.id == of_key, ALERTS.c.silent_until > now)
    return {column.name: sa.select(column).where(*silent).scalar_subquery() for column in columns}


_NO_TABLE = {f"of_{column.name}": None for column in NAME}


def _add_open_deliveries(connection: sa.Connection, channels: Sequence[str], now: datetime) -> None:
    """Add the deliveries of open alerts that a channel is not owed yet."""
    for channel in channels:
        has_delivery = sa.exists().where(DELIVERIES.c.alert_id == ALERTS.c.id, DELIVERIES.c.channel == channel)
        columns = {"alert_id": ALERTS.c.id, **_delivery_columns(channel, resolved=False, now=now)}
        new = sa.select(*columns.values()).where(_OPEN, _RAISED, ~has_delivery)
        connection.execute(sa.insert(DELIVERIES).from_select(list(columns), new))


def _resolve(connection: sa.Connection, ids: Sequence[int], now: datetime) -> None:
    """End alerts, and add a delivery for each channel that is owed the beginning, which no silence kept from it."""
    for chunk in chunks(ids):
        resolve = sa.update(ALERTS).where(ALERTS.c.id.in_(chunk), _OPEN, _RAISED).values(resolved_at=now)
        resolved_ids = connection.execute(resolve.returning(ALERTS.c.id)).scalars().all()
        silent = sa.select(ALERTS.c.id).where(ALERTS.c.id.in_(resolved_ids), ALERTS.c.silent_until > now)
        connection.execute(
            sa.delete(DELIVERIES).where(DELIVERIES.c.alert_id.in_(silent), DELIVERIES.c.told_at.is_(None))
        )
        owed = DELIVERIES.alias("begun")
        columns = {"alert_id": owed.c.alert_id, **_delivery_columns(owed.c.channel, resolved=True, now=now)}
        deliveries = sa.select(*columns.values()).where(owed.c.alert_id.in_(resolved_ids), ~owed.c.resolved)
        connection.execute(sa.insert(DELIVERIES).from_select(list(columns), deliveries))


def _delivery_columns(channel: str | sa.ColumnElement[str], *, resolved: bool, now: datetime) -> dict[str, Any]:
    column = sa.literal(channel) if isinstance(channel, str) else channel
    return {
        "channel": column,
        "resolved": sa.literal(resolved),
        "failures": sa.literal(0),
        "try_at": sa.literal(now, DELIVERIES.c.try_at.type),
    }


def _overdue_since(row: Any) -> datetime | None:  # noqa: ANN401 - a result row
    """Return since when work is due without a success; unreadable tables have an alert of their own."""
    if row.due_since is None or row.error is not None:
        return None
    since: datetime = max(row.due_since, row.succeeded_at or row.due_since)
    return since


def _alerts() -> sa.Select[Any]:
    return sa.select(ALERTS, *NAME).join_from(ALERTS, TABLES, isouter=True).where(_KNOWN)


def _matching(query: AlertQuery) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if query.resolved is not None:
        conditions.append(~_OPEN if query.resolved else _OPEN)
    if query.severity is not None:
        conditions.append(ALERTS.c.severity == query.severity)
    if query.since is not None:
        conditions.append(sa.func.coalesce(ALERTS.c.resolved_at, ALERTS.c.since) >= query.since)
    if query.alert_id is not None:
        conditions.append(ALERTS.c.id == query.alert_id)
    if query.search is not None:
        conditions.append(ALERTS.c.subject.icontains(query.search, autoescape=True))
    return conditions


def _alert(row: Any, deliveries: Sequence[Delivery] = ()) -> Alert:  # noqa: ANN401 - a result row
    return Alert(
        id=row.id,
        key=row.key,
        rule=AlertRule(row.rule),
        subject=row.subject,
        message=row.message,
        severity=Severity(row.severity),
        since=row.since,
        raised_at=row.raised_at,
        resolved_at=row.resolved_at,
        ref=ref_of(row) if row.catalog is not None else None,
        deliveries=tuple(deliveries),
        acknowledgement=Acknowledgement(row.acknowledged_by, row.acknowledged_at, row.note, row.silent_until)
        if row.acknowledged_at is not None
        else None,
    )
