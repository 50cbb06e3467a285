"""Alerts in the store: what rules look at, one open alert for each key, and what each channel is to be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, inserting
from icewright.adapters.store.schema import ALERTS, JOBS, RUNS, TABLES, TELLINGS, VERDICTS
from icewright.adapters.store.statements import (
    SAME_TABLE,
    chunks,
    named,
    namespace_of,
    ref_of,
)
from icewright.core.alerts import Alert, AlertChange, AlertRule, Begin, Delivery, Forget, Raise, Resolve, Severity
from icewright.core.conditions import Failure, TableInputs
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.ports import PendingDelivery, QueueBacklog

_NAME = (TABLES.c.catalog, TABLES.c.namespace, TABLES.c.name)

_OPEN = ALERTS.c.resolved_at.is_(None)

_RAISED = ALERTS.c.raised_at.is_not(None)

# Statements that are executed every few seconds: making one takes as long as executing it
_MINE = (TABLES.c.catalog.in_(sa.bindparam("catalogs", expanding=True)), ~TABLES.c.dropped)


def _failed_runs() -> sa.Select[Any]:
    newer = RUNS.alias("newer")
    run_after = sa.exists().where(
        newer.c.table_id == RUNS.c.table_id,
        newer.c.operation == RUNS.c.operation,
        newer.c.finished >= RUNS.c.finished,
        newer.c.id > RUNS.c.id,
        newer.c.state.in_((OperationState.COMMITTED, OperationState.SKIPPED, OperationState.FAILED)),
    )
    query = sa.select(*_NAME, RUNS.c.operation, RUNS.c.reason).join_from(RUNS, JOBS)
    query = query.join(TABLES, TABLES.c.id == RUNS.c.table_id).order_by(RUNS.c.id)
    return query.where(RUNS.c.state == OperationState.FAILED, ~run_after, *_MINE, SAME_TABLE)


def _failed_jobs() -> sa.Select[Any]:
    later = JOBS.alias("later")
    ended = (JobState.SUCCEEDED, JobState.PARTIAL, JobState.SKIPPED, JobState.FAILED)
    job_after = sa.exists().where(
        later.c.table_id == JOBS.c.table_id, later.c.created > JOBS.c.created, later.c.state.in_(ended)
    )
    has_run = sa.exists().where(RUNS.c.job_id == JOBS.c.job_id)
    query = sa.select(*_NAME, sa.null().label("operation"), JOBS.c.summary.label("reason"))
    query = query.join_from(JOBS, TABLES).order_by(JOBS.c.created)
    return query.where(JOBS.c.state == JobState.FAILED, ~has_run, ~job_after, *_MINE, SAME_TABLE)


def _unsupported() -> sa.Select[Any]:
    other = VERDICTS.alias("other")
    able = sa.exists().where(other.c.table_id == VERDICTS.c.table_id, other.c.verdict.in_(("due", "not_due")))
    query = sa.select(*_NAME, sa.func.min(VERDICTS.c.reason).label("reason")).join_from(VERDICTS, TABLES)
    return query.where(VERDICTS.c.verdict == "unsupported", *_MINE, ~able).group_by(*_NAME)


_FAILED_RUNS, _FAILED_JOBS, _UNSUPPORTED = _failed_runs(), _failed_jobs(), _unsupported()


@dataclass
class SqlAlerts:
    """The AlertStore port on a database."""

    db: Database

    def table_inputs(
        self, catalogs: Sequence[str], enabled: Sequence[str], below: int, overdue: datetime
    ) -> Sequence[TableInputs]:
        """Tables with which something may be wrong, by one pass: what no rule asks of tables that rest is left out."""
        late = TABLES.c.succeeded_at.is_(None) | (TABLES.c.succeeded_at <= overdue)
        wrong = sa.or_(
            TABLES.c.paused.is_not(None),
            TABLES.c.error.is_not(None),
            TABLES.c.catalog.in_(enabled) & ((TABLES.c.health < below) | ((TABLES.c.due_since <= overdue) & late)),
        )
        names = ("paused", "error", "health", "due_since", "succeeded_at", "windows")
        query = sa.select(*_NAME, *(TABLES.c[name] for name in names))
        with self.db.reading() as connection:
            rows = connection.execute(query.where(TABLES.c.catalog.in_(catalogs), ~TABLES.c.dropped, wrong)).all()
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
        """Runs that failed and are the last of their operation, and jobs that failed before they came to a run."""
        with self.db.reading() as connection:
            mine = {"catalogs": catalogs}
            rows = [*connection.execute(_FAILED_RUNS, mine), *connection.execute(_FAILED_JOBS, mine)]
        return [Failure(ref_of(r), Operation(r.operation) if r.operation else None, r.reason) for r in rows]

    def unsupported(self, catalogs: Sequence[str]) -> Sequence[tuple[TableRef, str]]:
        """Return tables of which some operation says so, and no other is due or not due."""
        with self.db.reading() as connection:
            return [(ref_of(row), row.reason) for row in connection.execute(_UNSUPPORTED, {"catalogs": catalogs})]

    def backlog(self) -> QueueBacklog:
        """Return how many jobs are queued, and since when the oldest waits."""
        query = sa.select(sa.func.count(), sa.func.min(JOBS.c.created)).where(JOBS.c.state == JobState.QUEUED)
        with self.db.reading() as connection:
            count, oldest = connection.execute(query).one()
        return QueueBacklog(count, oldest)

    def unresolved(self) -> Sequence[Alert]:
        """Return what is not resolved, raised or not yet."""
        with self.db.reading() as connection:
            return [_alert(row) for row in connection.execute(_alerts().where(_OPEN).order_by(ALERTS.c.id))]

    def list(self, *, resolved: bool = False, limit: int = 1000) -> Sequence[Alert]:
        """Return what was raised, newest first."""
        query = _alerts().where(_RAISED).order_by(ALERTS.c.raised_at.desc(), ALERTS.c.id.desc()).limit(limit)
        with self.db.reading() as connection:
            rows = connection.execute(query if resolved else query.where(_OPEN)).all()
            told: dict[int, list[Delivery]] = {row.id: [] for row in rows}
            for some in chunks(list(told)):
                mine = sa.select(TELLINGS).where(TELLINGS.c.alert_id.in_(some))
                for row in connection.execute(mine.order_by(TELLINGS.c.channel, TELLINGS.c.resolved)):
                    told[row.alert_id].append(Delivery(row.channel, row.resolved, row.failures, row.told_at))
        return [_alert(row, told[row.id]) for row in rows]

    def record_changes(self, changes: Sequence[AlertChange], channels: Sequence[str], now: datetime) -> None:
        """Alerts and what is to be told of them, in one transaction: a process that dies loses nothing."""
        with self.db.begin() as connection:
            _begun(connection, [c for c in changes if isinstance(c, Begin)], now)
            mine = ALERTS.c.id == sa.bindparam("alert")
            raised = [
                {"alert": c.alert.id, "said": c.message, "how": c.severity} for c in changes if isinstance(c, Raise)
            ]
            if raised:
                change = {"raised_at": now, "message": sa.bindparam("said"), "severity": sa.bindparam("how")}
                connection.execute(sa.update(ALERTS).where(mine, _OPEN, ~_RAISED).values(**change), raised)
            forgotten = [{"alert": c.alert.id} for c in changes if isinstance(c, Forget)]
            if forgotten:
                connection.execute(sa.delete(ALERTS).where(mine, _OPEN, ~_RAISED), forgotten)
            _resolve(connection, [c.alert.id for c in changes if isinstance(c, Resolve)], now)
            _tell_open(connection, channels, now)

    def claim_deliveries(self, channels: Sequence[str], now: datetime, until: datetime) -> Sequence[PendingDelivery]:
        """Return what waits and nobody is at."""
        ripe = (TELLINGS.c.told_at.is_(None), TELLINGS.c.try_at <= now, TELLINGS.c.channel.in_(channels))
        claimed = sa.update(TELLINGS).where(*ripe, ~_something_before()).values(try_at=until)
        columns = (TELLINGS.c.alert_id, TELLINGS.c.channel, TELLINGS.c.resolved, TELLINGS.c.failures)
        with self.db.begin() as connection:
            rows = connection.execute(claimed.returning(*columns)).all()
            alerts: dict[int, Alert] = {}
            for some in chunks(sorted({row.alert_id for row in rows})):
                alerts |= {row.id: _alert(row) for row in connection.execute(_alerts().where(ALERTS.c.id.in_(some)))}
        found = [PendingDelivery(alerts[row.alert_id], row.channel, row.resolved, row.failures) for row in rows]
        return sorted(found, key=lambda telling: (telling.channel, telling.resolved, telling.alert.id))

    def mark_delivered(self, deliveries: Sequence[PendingDelivery], now: datetime) -> None:
        """Mark notifications as delivered to their channel."""
        self._settled(deliveries, {"told_at": now})

    def schedule_redelivery(self, deliveries: Sequence[PendingDelivery], try_at: datetime) -> None:
        """Schedule the redelivery of notifications that failed."""
        self._settled(deliveries, {"failures": TELLINGS.c.failures + 1, "try_at": try_at})

    def _settled(self, deliveries: Sequence[PendingDelivery], change: dict[str, Any]) -> None:
        rows = [{"alert": t.alert.id, "name": t.channel, "over": t.resolved} for t in deliveries]
        mine = (
            TELLINGS.c.alert_id == sa.bindparam("alert"),
            TELLINGS.c.channel == sa.bindparam("name"),
            TELLINGS.c.resolved == sa.bindparam("over"),
        )
        if rows:
            with self.db.begin() as connection:
                untold = TELLINGS.c.told_at.is_(None)
                connection.execute(sa.update(TELLINGS).where(*mine, untold).values(**change), rows)


def _something_before() -> sa.ColumnElement[bool]:
    """Whether the channel does not know yet what came before: the alert's beginning, an earlier alert of the key."""
    mine, alert, telling = ALERTS.alias("mine"), ALERTS.alias("earlier"), TELLINGS.alias("before")
    joined = mine.join(alert, (alert.c.key == mine.c.key) & (alert.c.id <= mine.c.id))
    earlier = (alert.c.id < mine.c.id) | (~telling.c.resolved & TELLINGS.c.resolved)
    untold = (telling.c.channel == TELLINGS.c.channel) & telling.c.told_at.is_(None) & earlier
    found = sa.select(1).select_from(joined.join(telling, telling.c.alert_id == alert.c.id))
    return sa.exists(found.where(mine.c.id == TELLINGS.c.alert_id, untold).correlate(TELLINGS))


def _begun(connection: sa.Connection, changes: Iterable[Begin], now: datetime) -> None:
    """New rows; a key that another process has just begun is left to it."""
    rows = []
    for change in sorted(changes, key=lambda change: change.condition.key):  # so that no two wait for each other
        about = change.condition
        where = {f"of_{name}": value for name, value in named(about.ref).items()} if about.ref else _NOWHERE
        said = {"key": about.key, "rule": about.rule, "subject": about.subject, "message": about.message}
        raised = now if change.raised else None
        rows.append({**where, **said, "severity": change.severity, "since": now, "raised_at": raised})
    if not rows:
        return
    table = sa.select(TABLES.c.id).where(*(column == sa.bindparam(f"of_{column.name}") for column in _NAME))
    insert = inserting(connection, ALERTS).values(table_id=table.scalar_subquery())
    connection.execute(insert.on_conflict_do_nothing(index_elements=["key"], index_where=_OPEN), rows)


_NOWHERE = {f"of_{column.name}": None for column in _NAME}


def _tell_open(connection: sa.Connection, channels: Sequence[str], now: datetime) -> None:
    """Every channel is to hear of every open alert."""
    for channel in channels:
        known = sa.exists().where(TELLINGS.c.alert_id == ALERTS.c.id, TELLINGS.c.channel == channel)
        columns = {"alert_id": ALERTS.c.id, **_new_telling(channel, resolved=False, now=now)}
        missing = sa.select(*columns.values()).where(_OPEN, _RAISED, ~known)
        connection.execute(sa.insert(TELLINGS).from_select(list(columns), missing))


def _resolve(connection: sa.Connection, ids: Sequence[int], now: datetime) -> None:
    """End alerts; whoever was to hear of them hears of the end too."""
    for some in chunks(ids):
        ended = sa.update(ALERTS).where(ALERTS.c.id.in_(some), _OPEN, _RAISED).values(resolved_at=now)
        mine = connection.execute(ended.returning(ALERTS.c.id)).scalars().all()
        begun = TELLINGS.alias("begun")
        columns = {"alert_id": begun.c.alert_id, **_new_telling(begun.c.channel, resolved=True, now=now)}
        ends = sa.select(*columns.values()).where(begun.c.alert_id.in_(mine), ~begun.c.resolved)
        connection.execute(sa.insert(TELLINGS).from_select(list(columns), ends))


def _new_telling(channel: str | sa.ColumnElement[str], *, resolved: bool, now: datetime) -> dict[str, Any]:
    named_so = sa.literal(channel) if isinstance(channel, str) else channel
    return {
        "channel": named_so,
        "resolved": sa.literal(resolved),
        "failures": sa.literal(0),
        "try_at": sa.literal(now, TELLINGS.c.try_at.type),
    }


def _overdue_since(row: Any) -> datetime | None:  # noqa: ANN401 - a result row
    """Since when something is due and nothing succeeded; a table that cannot be read has an alert of its own."""
    if row.due_since is None or row.error is not None:
        return None
    since: datetime = max(row.due_since, row.succeeded_at or row.due_since)
    return since


def _alerts() -> sa.Select[Any]:
    return sa.select(ALERTS, *_NAME).join_from(ALERTS, TABLES, isouter=True)


def _alert(row: Any, tellings: Sequence[Delivery] = ()) -> Alert:  # noqa: ANN401 - a result row
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
        ref=TableRef(row.catalog, namespace_of(row.namespace), row.name) if row.catalog is not None else None,
        tellings=tuple(tellings),
    )
