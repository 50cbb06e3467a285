"""Alerts: a closed set of rules, and what changes when conditions begin, last and end. Raised once, resolved once."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from icewright.core.table import TableRef

MOST_LISTED = 10  # alerts that one message names
MOST_SAID = 500  # characters of what one condition says


class Severity(enum.StrEnum):
    """How urgent an alert is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class AlertRule(enum.StrEnum):
    """The rules by which alerts are raised."""

    JOB_FAILED = "job_failed"
    TABLE_PAUSED = "table_paused"
    VERIFICATION_FAILED = "verification_failed"
    TABLE_UNHEALTHY = "table_unhealthy"
    STALE = "stale"
    UNMAINTAINABLE = "unmaintainable"
    BUDGET_SPENT = "budget_spent"
    CATALOG_UNREACHABLE = "catalog_unreachable"
    NO_DETECTION = "no_detection"
    QUEUE_STUCK = "queue_stuck"
    LOOP_FAILING = "loop_failing"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a rule takes."""

    name: str
    default: int
    help: str
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A rule as it is where the configuration says nothing. `delay_minutes` is how long a condition must hold."""

    severity: Severity
    help: str
    remedy: str
    delay_minutes: int = 0
    parameters: tuple[Parameter, ...] = ()


RULES: Mapping[AlertRule, RuleKind] = {
    AlertRule.JOB_FAILED: RuleKind(
        Severity.WARNING,
        "the last run of an operation on a table failed",
        "`icewright history TABLE` and `icewright show RUN` say what went wrong; a later run that succeeds resolves it",
    ),
    AlertRule.TABLE_PAUSED: RuleKind(
        Severity.WARNING,
        "a table is paused, by the circuit breaker or by hand: nothing maintains it",
        "`icewright resume TABLE` when the cause is mended",
    ),
    AlertRule.VERIFICATION_FAILED: RuleKind(
        Severity.CRITICAL,
        "a commit did not keep what it had to keep, and the table is paused",
        "look at the table's snapshots and roll back if need be, then `icewright resume TABLE`",
    ),
    AlertRule.TABLE_UNHEALTHY: RuleKind(
        Severity.WARNING,
        "a table's health is below so many points for so many hours",
        "`icewright explain TABLE` says what waits and why; more room for jobs, or a higher importance, brings it on",
        parameters=(
            Parameter("below", 50, "points of health", most=100),
            Parameter("hours", 6, "how long", least=0),
        ),
    ),
    AlertRule.STALE: RuleKind(
        Severity.WARNING,
        "something is due on a table, and nothing succeeded on it for so many hours in which it was allowed to run",
        "`icewright explain TABLE` says what waits and why",
        parameters=(Parameter("hours", 24, "without a success; where windows are open for less in a week, all of it"),),
    ),
    AlertRule.UNMAINTAINABLE: RuleKind(
        Severity.WARNING,
        "a table cannot be read, or no operation supports it; the delay lets one more try pass, which is an hour later",
        "mend what the reason names; the table is tried again by itself every hour",
        delay_minutes=75,
    ),
    AlertRule.BUDGET_SPENT: RuleKind(
        Severity.WARNING,
        "a catalog or a pool has spent so much of its GB-hours of the day",
        "what has no room waits until 00:00 UTC; `gb_hours_per_day` gives more",
        parameters=(Parameter("percent", 95, "of the budget", most=100),),
    ),
    AlertRule.CATALOG_UNREACHABLE: RuleKind(
        Severity.CRITICAL,
        "a catalog cannot be read",
        "`icewright doctor` checks the catalog and says how to mend it",
        delay_minutes=5,
    ),
    AlertRule.NO_DETECTION: RuleKind(
        Severity.CRITICAL,
        "a catalog was not asked for so many of its intervals, while a service was up",
        "the service's log says what the loop `detect` does",
        parameters=(Parameter("intervals", 10, "of `detect_interval_seconds`"),),
    ),
    AlertRule.QUEUE_STUCK: RuleKind(
        Severity.CRITICAL,
        "a job waits in the queue for so many minutes: no worker takes it",
        "start a worker (`icewright worker`), or give the workers more slots",
        parameters=(Parameter("minutes", 30, "in the queue"),),
    ),
    AlertRule.LOOP_FAILING: RuleKind(
        Severity.CRITICAL,
        "a loop of the service failed so many times in a row, or did not come round for so many minutes",
        "the service's log has the errors of the loop",
        parameters=(
            Parameter("failures", 3, "in a row"),
            Parameter("minutes", 30, "without a round"),
        ),
    ),
    AlertRule.WORKER_LOST: RuleKind(
        Severity.WARNING,
        "a service or worker has said nothing for so many minutes, without having said goodbye",
        "its jobs are settled and tried again by the others; start it again if it is missed",
        parameters=(Parameter("minutes", 5, "of silence"),),
    ),
}


@dataclass(frozen=True, slots=True)
class RuleTerms:
    """An alert rule with its configured parameters."""

    enabled: bool
    severity: Severity
    delay: timedelta
    parameters: Mapping[str, int] = field(default_factory=dict)


def default_terms() -> Mapping[AlertRule, RuleTerms]:
    """Return the terms where the configuration says nothing."""
    return {
        rule: RuleTerms(
            enabled=True,
            severity=kind.severity,
            delay=timedelta(minutes=kind.delay_minutes),
            parameters={p.name: p.default for p in kind.parameters},
        )
        for rule, kind in RULES.items()
    }


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is so now and should not be. `lasting` is how long it must be so, on top of the rule's delay."""

    rule: AlertRule
    subject: str  # what it is about, for people: a table, a catalog, a loop
    message: str
    ref: TableRef | None = None
    lasting: timedelta = timedelta(0)

    @property
    def key(self) -> str:
        """Return what is alerted on once at a time."""
        return f"{self.rule} {self.subject}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of telling one channel."""

    channel: str
    resolved: bool  # that the alert is over; else that it is raised
    failures: int
    told_at: datetime | None


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as the store has it. One that is not raised yet is a condition that has not lasted long enough."""

    id: int
    key: str
    rule: AlertRule
    subject: str
    message: str
    severity: Severity
    since: datetime
    raised_at: datetime | None = None
    resolved_at: datetime | None = None
    ref: TableRef | None = None
    tellings: tuple[Delivery, ...] = ()

    @property
    def catalog(self) -> str | None:
        """Whose it is; None where it is about the service."""
        if self.ref is not None:
            return self.ref.catalog
        return self.subject if self.rule in (AlertRule.CATALOG_UNREACHABLE, AlertRule.NO_DETECTION) else None


@dataclass(frozen=True, slots=True)
class Begin:
    """A condition that was not there before; raised at once where its rule has no delay."""

    condition: Condition
    severity: Severity
    raised: bool


@dataclass(frozen=True, slots=True)
class Raise:
    """A condition that has lasted long enough."""

    alert: Alert
    message: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class Resolve:
    """What was raised is over."""

    alert: Alert


@dataclass(frozen=True, slots=True)
class Forget:
    """A condition that went away before it was raised."""

    alert: Alert


AlertChange = Begin | Raise | Resolve | Forget


def evaluate(
    conditions: Iterable[Condition],
    open_alerts: Sequence[Alert],
    rules: Mapping[AlertRule, RuleTerms],
    now: datetime,
    unknown: Callable[[Alert], bool] = lambda _: False,
) -> tuple[AlertChange, ...]:
    """Return what changes. `unknown` says of which alerts nobody can tell now whether they still hold: those stay."""
    present: dict[str, Condition] = {}
    for condition in conditions:
        present.setdefault(condition.key, condition)
    changes: list[AlertChange] = []
    for alert in open_alerts:
        found = present.pop(alert.key, None)
        if found is not None:
            terms = rules[found.rule]
            if alert.raised_at is None and now - alert.since >= terms.delay + found.lasting:
                changes.append(Raise(alert, _cut(found.message), terms.severity))
        elif not unknown(alert):
            changes.append(Forget(alert) if alert.raised_at is None else Resolve(alert))
    for new in present.values():
        terms = rules[new.rule]
        at_once = terms.delay + new.lasting <= timedelta(0)
        changes.append(Begin(replace(new, message=_cut(new.message)), terms.severity, at_once))
    return tuple(changes)


@dataclass(frozen=True, slots=True)
class Notification:
    """What a channel is told."""

    title: str
    body: str
    severity: Severity


def notification(rule: AlertRule, alerts: Sequence[Alert], *, resolved: bool) -> Notification:
    """One message for all alerts of a rule that are told at the same time, so that a storm is one message too."""
    first, kind = alerts[0], RULES[rule]
    what = "resolved" if resolved else str(first.severity)
    many = len(alerts) > 1
    title = f"[{what}] {rule}: {f'{len(alerts)} alerts' if many else first.subject}"
    lines = [_line(alert, resolved=resolved, named=many) for alert in alerts[:MOST_LISTED]]
    if len(alerts) > MOST_LISTED:
        lines.append(f"and {len(alerts) - MOST_LISTED} more: `icewright alerts`")
    if not resolved:
        remedy = kind.remedy if many or first.ref is None else kind.remedy.replace("TABLE", str(first.ref))
        lines.append(f"What to do: {remedy}")
    return Notification(title, "\n".join(lines), Severity.INFO if resolved else first.severity)


def _line(alert: Alert, *, resolved: bool, named: bool) -> str:
    subject = f"{alert.subject}: " if named else ""
    ended = f", over since {_minute(alert.resolved_at)}" if resolved and alert.resolved_at else ""
    return f"{subject}{alert.message} (since {_minute(alert.since)}{ended} UTC)"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SAID else f"{text[: MOST_SAID - 3]}..."
