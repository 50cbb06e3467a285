"""Alerting: conditions become alerts, and each channel receives each alert and its resolution once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from icewright.core.alerts import (
    Alert,
    AlertChange,
    AlertRule,
    Begin,
    Condition,
    Raise,
    Resolve,
    RuleTerms,
    default_terms,
    evaluate,
    notification,
)
from icewright.core.breakers import Breaker
from icewright.core.conditions import (
    REPORTED,
    AlertInputs,
    CatalogInputs,
    IdleWork,
    LoopInputs,
    ProcessInputs,
    conditions,
)
from icewright.core.errors import RetryableError
from icewright.core.runs import retry_delay
from icewright.flow.budgets import spending
from icewright.flow.runtime import Runtime
from icewright.ports import CatalogRow, Notifier, PendingDelivery, ProcessRow

LEASE = timedelta(minutes=2)  # on the alert loop, so that one process judges at a time
CLAIM = timedelta(minutes=5)  # after which another process may send what this one has not
FIRST_RETRY, MOST_BACKOFF = timedelta(minutes=1), timedelta(hours=1)
_HEALTH_RULES = (AlertRule.TABLE_UNHEALTHY, AlertRule.STALE)
_OF_MAINTAINED_TABLES = frozenset(
    {*_HEALTH_RULES, AlertRule.UNMAINTAINABLE, AlertRule.TABLE_BLOCKED, AlertRule.READER_UNPINNED}
)


@dataclass(frozen=True)
class Alerting:
    """The alert rules and the notification channels, by names that hold no secrets."""

    channels: Mapping[str, Notifier] = field(default_factory=dict)
    rules: Mapping[AlertRule, RuleTerms] = field(default_factory=default_terms)
    unwritten: set[tuple[int, str, bool]] = field(default_factory=set)  # sent, but not recorded yet


def alert_due(runtime: Runtime, alerting: Alerting) -> int:
    """Raise and resolve alerts and send notifications; return the number of changes and deliveries.

    One process at a time judges, by a lease. Each delivery is claimed, so that a process which outlives its lease sends
    nothing twice.
    """
    now = runtime.clock.now()
    if not runtime.try_acquire_lease("alerts", LEASE):
        return 0
    try:
        changes = judge(runtime, alerting.rules, now)
        runtime.store.alerts.record_changes(changes, sorted(alerting.channels), now)
        for event, alert in _notifiable_events(changes):
            runtime.emit(event, alert)
        return len(changes) + _deliver(runtime, alerting)
    finally:
        runtime.store.leases.release("alerts", runtime.trigger.holder)


def judge(runtime: Runtime, rules: Mapping[AlertRule, RuleTerms], now: datetime) -> tuple[AlertChange, ...]:
    """Return the changes to the open alerts by the present state of the store."""
    rows, open_alerts = runtime.store.catalogs.list(), runtime.store.alerts.unresolved()
    inputs, alerted = _alert_inputs(runtime, rules, rows, open_alerts, now), {alert.key for alert in open_alerts}
    return evaluate(
        (
            condition
            for condition in conditions(inputs, rules, now)
            if condition.key in alerted or _matters(runtime, condition)
        ),
        open_alerts,
        rules,
        now,
        _undecidable(runtime, rules, inputs, rows, now),
    )


def _alert_inputs(
    runtime: Runtime,
    rules: Mapping[AlertRule, RuleTerms],
    rows: Sequence[CatalogRow],
    open_alerts: Sequence[Alert],
    now: datetime,
) -> AlertInputs:
    catalogs = sorted(runtime.scopes)
    below = rules[AlertRule.TABLE_UNHEALTHY].parameters["below"]
    overdue = now - timedelta(hours=rules[AlertRule.STALE].parameters["hours"])
    alerted = {alert.catalog for alert in open_alerts if alert.rule in _HEALTH_RULES}
    judged = [name for name in catalogs if runtime.scopes[name].enabled or name in alerted]
    waiting, processes = runtime.store.alerts.backlog(), runtime.store.processes.list()
    return AlertInputs(
        tables=runtime.store.alerts.table_inputs(catalogs, judged, below, overdue),
        failures=runtime.store.alerts.failures(catalogs),
        reported={rule: runtime.store.alerts.reported(rule, catalogs) for rule in REPORTED},
        catalogs=[
            CatalogInputs(row.name, runtime.scopes[row.name].interval, row.detected_at, row.failures, row.error)
            for row in rows
            if row.name in runtime.scopes
        ],
        spending=spending(runtime, now),
        queued=waiting.jobs,
        oldest_queued=waiting.oldest,
        processes=[_process(row) for row in processes],
        breakers=[breaker for breaker in runtime.store.breakers.list() if _configured(runtime, breaker)],
        serving_since=_serving_since(runtime, processes),
    )


def _configured(runtime: Runtime, breaker: Breaker) -> bool:
    """Return whether the resource of a breaker is a catalog of this process, or no catalog."""
    kind, _, name = breaker.resource.partition(" ")
    return kind != "catalog" or name in runtime.scopes


def _serving_since(runtime: Runtime, processes: Sequence[ProcessRow]) -> datetime | None:
    me = runtime.trigger.holder
    return next((row.started for row in processes if row.holder == me and row.kind == "service"), None)


def _matters(runtime: Runtime, condition: Condition) -> bool:
    """Return whether to tell of a condition: what is wrong with a table that is not maintained begins no alert."""
    if condition.rule not in _OF_MAINTAINED_TABLES or condition.ref is None:
        return True
    scope = runtime.scopes[condition.ref.catalog]
    return scope.enabled and scope.contains(condition.ref)


def _process(row: ProcessRow) -> ProcessInputs:
    loops: Mapping[str, Mapping[str, Any]] = row.details.get("loops", {})
    loop_inputs = tuple(
        LoopInputs(name, loop["failures"], loop["error"], timedelta(seconds=loop["lag_seconds"]))
        for name, loop in loops.items()
    )
    configuration = row.details.get("configuration", {})
    idle = tuple(
        IdleWork(work["name"], work["table"], timedelta(seconds=work["idle_seconds"]), work["call"])
        for work in row.details.get("idle", ())
    )
    return ProcessInputs(row.holder, row.kind, row.heartbeat, row.slots, loop_inputs, row.started, configuration, idle)


def _undecidable(
    runtime: Runtime,
    rules: Mapping[AlertRule, RuleTerms],
    inputs: AlertInputs,
    rows: Sequence[CatalogRow],
    now: datetime,
) -> Callable[[Alert], bool]:
    """Return a predicate for the alerts of which this process cannot tell whether they still hold.

    These are alerts of catalogs that only other processes have configured, alerts about the health of unreadable
    tables, `no_detection` until the catalog was read again, and `budget_spent` of a budget that is not configured here,
    until the end of its day. An alert of a disabled rule never holds.
    """
    other_catalogs = {
        row.name for row in rows if row.name not in runtime.scopes and not row.is_abandoned(runtime.scopes, now)
    }
    unreadable = {table.ref for table in inputs.tables if table.error is not None}
    read_at = {c.name: c.detected_at for c in inputs.catalogs if not c.failures and c.detected_at is not None}
    budgets = {spending.subject for spending in inputs.spending}

    def undecidable(alert: Alert) -> bool:
        enabled = rules[alert.rule].enabled
        if alert.rule is AlertRule.NO_DETECTION and alert.subject in read_at:
            return enabled and read_at[alert.subject] < alert.since
        if alert.rule is AlertRule.BUDGET_SPENT and alert.subject not in budgets:
            return enabled and alert.since.date() == now.date()
        return alert.catalog in other_catalogs or (alert.rule in _HEALTH_RULES and alert.ref in unreadable)

    return undecidable


def _notifiable_events(changes: Sequence[AlertChange]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield an event for each alert that is raised or resolved."""
    for change in changes:
        match change:
            case Begin(condition=condition, raised=True):
                yield "alert_raised", _event(condition.rule, condition.subject, change.severity, condition.message)
            case Raise(alert=alert):
                yield "alert_raised", _event(alert.rule, alert.subject, change.severity, change.message)
            case Resolve(alert=alert):
                yield "alert_resolved", _event(alert.rule, alert.subject, alert.severity, alert.message)


def _event(rule: AlertRule, subject: str, severity: str, message: str) -> Mapping[str, Any]:
    return {"rule": str(rule), "subject": subject, "severity": str(severity), "message": message}


def _deliver(runtime: Runtime, alerting: Alerting) -> int:
    """Send each channel its pending deliveries; return how many were sent. A failing channel is retried later."""
    if not alerting.channels:
        return 0
    now = runtime.clock.now()
    until = now + CLAIM
    claimed = runtime.store.alerts.claim_deliveries(sorted(alerting.channels), now, until)
    already_sent = [delivery for delivery in claimed if _delivery_key(delivery) in alerting.unwritten]
    runtime.store.alerts.mark_delivered(already_sent, now)
    alerting.unwritten.difference_update(map(_delivery_key, already_sent))
    delivered = 0
    new = (delivery for delivery in claimed if delivery not in already_sent)
    for name, pending in groupby(new, key=lambda delivery: delivery.channel):
        delivered += _deliver_to_channel(runtime, alerting, name, list(pending), until)
    return delivered


def _delivery_key(delivery: PendingDelivery) -> tuple[int, str, bool]:
    return delivery.alert.id, delivery.channel, delivery.resolved


def _deliver_to_channel(
    runtime: Runtime, alerting: Alerting, name: str, deliveries: Sequence[PendingDelivery], until: datetime
) -> int:
    delivered = 0
    messages = _messages(deliveries)
    for position, group in enumerate(messages):
        if runtime.stopping() or runtime.clock.now() >= until:
            return delivered  # the claim expires, and the next process sends the rest
        message = notification(group[0].alert.rule, [t.alert for t in group], resolved=group[0].resolved)
        try:
            alerting.channels[name].send(message.title, message.body, message.severity)
        except RetryableError as error:
            unsent = [delivery for later_group in messages[position:] for delivery in later_group]
            failures = max(delivery.failures for delivery in unsent) + 1
            now = runtime.clock.now()
            runtime.store.alerts.schedule_redelivery(unsent, now + retry_delay(failures, FIRST_RETRY, MOST_BACKOFF))
            runtime.emit("alert_delivery_failed", {"channel": name, "failures": failures, "error": str(error)})
            return delivered
        alerting.unwritten.update(map(_delivery_key, group))
        runtime.store.alerts.mark_delivered(group, runtime.clock.now())
        alerting.unwritten.difference_update(map(_delivery_key, group))
        delivered += len(group)
    return delivered


def _messages(deliveries: Sequence[PendingDelivery]) -> list[list[PendingDelivery]]:
    """Return deliveries grouped by message; failed ones go last, so that one bad message blocks no other."""

    def grouping(delivery: PendingDelivery) -> tuple[int, bool, str]:
        return delivery.failures, delivery.resolved, delivery.alert.rule

    return [list(group) for _, group in groupby(sorted(deliveries, key=grouping), key=grouping)]
