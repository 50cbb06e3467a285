"""What is wrong becomes alerts, and channels are told: each alert once, and its end once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from icewright.core.alerts import (
    Alert,
    AlertChange,
    AlertRule,
    Begin,
    Raise,
    Resolve,
    RuleTerms,
    default_terms,
    notification,
)
from icewright.core.alerts import evaluate as changed
from icewright.core.conditions import AlertInputs, CatalogInputs, LoopInputs, ProcessInputs, Spending, conditions
from icewright.core.errors import RetryableError
from icewright.core.runs import later
from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import CatalogRow, Notifier, PendingDelivery, ProcessRow

TURN = timedelta(minutes=2)  # how long a process that looks after alerts keeps others from it
CLAIM = timedelta(minutes=5)  # after which another process may tell what this one has not
FIRST_RETRY, MOST_BACKOFF = timedelta(minutes=1), timedelta(hours=1)
_ABOUT_HEALTH = (AlertRule.TABLE_UNHEALTHY, AlertRule.STALE)


@dataclass(frozen=True)
class Alerting:
    """The rules, and who is told, by names that are no secrets."""

    channels: Mapping[str, Notifier] = field(default_factory=dict)
    rules: Mapping[AlertRule, RuleTerms] = field(default_factory=default_terms)
    unwritten: set[tuple[int, str, bool]] = field(default_factory=set)  # told, though the store could not write it down


def alert_due(runtime: Runtime, alerting: Alerting) -> int:
    """Raise, resolve and tell what there is; returns how much was done.

    One process at a time does it. Should it take so long that another begins, each telling is claimed, so that nobody
    is told twice.
    """
    now = runtime.clock.now()
    if not runtime.try_acquire_lease("alerts", TURN):
        return 0
    try:
        changes = judge(runtime, alerting.rules, now)
        runtime.store.alerts.record_changes(changes, sorted(alerting.channels), now)
        for kind, alert in _news(changes):
            runtime.emit(kind, alert)
        return len(changes) + _tell(runtime, alerting)
    finally:
        runtime.store.leases.release("alerts", runtime.trigger.holder)


def judge(runtime: Runtime, rules: Mapping[AlertRule, RuleTerms], now: datetime) -> tuple[AlertChange, ...]:
    """Return what changes by what the store says now."""
    rows = runtime.store.catalogs.list()
    signs = _signs(runtime, rules, rows, now)
    return changed(
        conditions(signs, rules, now),
        runtime.store.alerts.unresolved(),
        rules,
        now,
        _unknown(runtime, rules, signs, rows, now),
    )


def _signs(
    runtime: Runtime, rules: Mapping[AlertRule, RuleTerms], rows: Sequence[CatalogRow], now: datetime
) -> AlertInputs:
    catalogs = sorted(runtime.scopes)
    below = rules[AlertRule.TABLE_UNHEALTHY].parameters["below"]
    overdue = now - timedelta(hours=rules[AlertRule.STALE].parameters["hours"])
    enabled = [name for name in catalogs if runtime.scopes[name].enabled]
    tables = runtime.store.alerts.table_inputs(catalogs, enabled, below, overdue)
    waiting, processes = runtime.store.alerts.backlog(), runtime.store.processes.list()
    return AlertInputs(
        tables=[replace(table, maintained=_maintained(runtime, table.ref)) for table in tables],
        failures=runtime.store.alerts.failures(catalogs),
        unsupported={ref: why for ref, why in runtime.store.alerts.unsupported(catalogs) if _maintained(runtime, ref)},
        catalogs=[
            CatalogInputs(row.name, runtime.scopes[row.name].interval, row.detected_at, row.failures, row.error)
            for row in rows
            if row.name in runtime.scopes
        ],
        spending=_spending(runtime, now),
        queued=waiting.jobs,
        oldest_queued=waiting.oldest,
        processes=[_process(row) for row in processes],
        serving_since=_serving_since(runtime, processes),
    )


def _serving_since(runtime: Runtime, processes: Sequence[ProcessRow]) -> datetime | None:
    me = runtime.trigger.holder
    return next((row.started for row in processes if row.holder == me and row.kind == "service"), None)


def _maintained(runtime: Runtime, ref: TableRef) -> bool:
    scope = runtime.scopes[ref.catalog]
    return scope.enabled and scope.holds(ref)


def _spending(runtime: Runtime, now: datetime) -> list[Spending]:
    """Budgets of the day; without any, the runs are not summed up."""
    pools = {name: pool.gb_hours_per_day for name, pool in runtime.limits.pools.items()}
    catalogs = {name: catalog.gb_hours_per_day for name, catalog in runtime.limits.catalogs.items()}
    if not any((*pools.values(), *catalogs.values())):
        return []
    usage = runtime.store.planning.usage(now.replace(hour=0, minute=0, second=0, microsecond=0))
    kinds = (("pool", pools, usage.spent_by_pool), ("catalog", catalogs, usage.spent_by_catalog))
    return [
        Spending(f"{kind} {name}", budget, spent.get(name, 0.0))
        for kind, budgets, spent in kinds
        for name, budget in budgets.items()
        if budget
    ]


def _process(row: ProcessRow) -> ProcessInputs:
    loops: Mapping[str, Mapping[str, Any]] = row.details.get("loops", {})
    said = tuple(
        LoopInputs(name, loop["failures"], loop["error"], timedelta(seconds=loop["lag_seconds"]))
        for name, loop in loops.items()
    )
    return ProcessInputs(row.holder, row.kind, row.heartbeat, row.slots, said)


def _unknown(
    runtime: Runtime,
    rules: Mapping[AlertRule, RuleTerms],
    signs: AlertInputs,
    rows: Sequence[CatalogRow],
    now: datetime,
) -> Callable[[Alert], bool]:
    """Of which alerts this process cannot tell whether they still hold.

    Those of catalogs that other processes look after, those about the health of tables that cannot be read, and those
    about catalogs that nobody asks, until somebody has asked: no pass and no new service can tell before. Nor can who
    knows no such budget tell that it is not spent any more, until the day is over. Of a rule that is off nothing holds.
    """
    elsewhere = {row.name for row in rows if row.name not in runtime.scopes and not row.left(runtime.scopes, now)}
    unread = {table.ref for table in signs.tables if table.error is not None}
    asked_at = {c.name: c.detected_at for c in signs.catalogs if not c.failures and c.detected_at is not None}
    budgets = {spending.subject for spending in signs.spending}

    def unknown(alert: Alert) -> bool:
        on = rules[alert.rule].enabled
        if alert.rule is AlertRule.NO_DETECTION and alert.subject in asked_at:
            return on and asked_at[alert.subject] < alert.since
        if alert.rule is AlertRule.BUDGET_SPENT and alert.subject not in budgets:
            return on and alert.since.date() == now.date()
        return alert.catalog in elsewhere or (alert.rule in _ABOUT_HEALTH and alert.ref in unread)

    return unknown


def _news(changes: Sequence[AlertChange]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Changes as events for whoever listens; what is not raised is no news."""
    for change in changes:
        match change:
            case Begin(condition=about, raised=True):
                yield "alert_raised", _event(about.rule, about.subject, change.severity, about.message)
            case Raise(alert=alert):
                yield "alert_raised", _event(alert.rule, alert.subject, change.severity, change.message)
            case Resolve(alert=alert):
                yield "alert_resolved", _event(alert.rule, alert.subject, alert.severity, alert.message)


def _event(rule: AlertRule, subject: str, severity: str, message: str) -> Mapping[str, Any]:
    return {"rule": str(rule), "subject": subject, "severity": str(severity), "message": message}


def _tell(runtime: Runtime, alerting: Alerting) -> int:
    """Tell each channel what it does not know; one that does not answer is left alone for a while."""
    if not alerting.channels:
        return 0
    now = runtime.clock.now()
    until = now + CLAIM
    claimed = runtime.store.alerts.claim_deliveries(sorted(alerting.channels), now, until)
    written_late = [telling for telling in claimed if _mark(telling) in alerting.unwritten]
    runtime.store.alerts.mark_delivered(written_late, now)
    alerting.unwritten.difference_update(map(_mark, written_late))
    done = 0
    new = (telling for telling in claimed if telling not in written_late)
    for name, mine in groupby(new, key=lambda telling: telling.channel):
        done += _tell_channel(runtime, alerting, name, list(mine), until)
    return done


def _mark(telling: PendingDelivery) -> tuple[int, str, bool]:
    return telling.alert.id, telling.channel, telling.resolved


def _tell_channel(
    runtime: Runtime, alerting: Alerting, name: str, tellings: Sequence[PendingDelivery], until: datetime
) -> int:
    done = 0
    letters = _letters(tellings)
    for place, group in enumerate(letters):
        if runtime.stopping() or runtime.clock.now() >= until:
            return done  # the claim runs out, and whoever comes next tells the rest
        said = notification(group[0].alert.rule, [t.alert for t in group], resolved=group[0].resolved)
        try:
            alerting.channels[name].send(said.title, said.body, said.severity)
        except RetryableError as error:
            left = [telling for rest in letters[place:] for telling in rest]
            failures = max(telling.failures for telling in left) + 1
            now = runtime.clock.now()
            runtime.store.alerts.schedule_redelivery(left, now + later(failures, FIRST_RETRY, MOST_BACKOFF))
            runtime.emit("alert_delivery_failed", {"channel": name, "failures": failures, "error": str(error)})
            return done
        alerting.unwritten.update(map(_mark, group))
        runtime.store.alerts.mark_delivered(group, runtime.clock.now())
        alerting.unwritten.difference_update(map(_mark, group))
        done += len(group)
    return done


def _letters(tellings: Sequence[PendingDelivery]) -> list[list[PendingDelivery]]:
    """What is told together: what failed before goes last, so that one bad message does not hold up the others."""

    def together(telling: PendingDelivery) -> tuple[int, bool, str]:
        return telling.failures, telling.resolved, telling.alert.rule

    return [list(group) for _, group in groupby(sorted(tellings, key=together), key=together)]
