"""Alert rules, and the changes that follow when conditions begin, last and end: raised once, resolved once."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from icewright.core.table import TableRef
from icewright.core.words import in_shell, one_line

MAX_LISTED = 10  # alerts that one message names
MAX_MESSAGE = 500  # characters of the message of one condition
_MENTION = re.compile(r"@(?=everyone|here|all|channel)|<(?=[@!#])", re.IGNORECASE)  # of Discord, Mattermost and others


class Severity(enum.StrEnum):
    """The urgency of an alert."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class AlertRule(enum.StrEnum):
    """The rules by which alerts are raised."""

    JOB_FAILED = "job_failed"
    CHECK_FAILED = "check_failed"
    TABLE_PAUSED = "table_paused"
    VERIFICATION_FAILED = "verification_failed"
    TABLE_UNHEALTHY = "table_unhealthy"
    STALE = "stale"
    UNMAINTAINABLE = "unmaintainable"
    TABLE_BLOCKED = "table_blocked"
    READER_UNPINNED = "reader_unpinned"
    BUDGET_SPENT = "budget_spent"
    CATALOG_UNREACHABLE = "catalog_unreachable"
    NO_DETECTION = "no_detection"
    QUEUE_STUCK = "queue_stuck"
    LOOP_FAILING = "loop_failing"
    JOB_STALLED = "job_stalled"
    WORKER_LOST = "worker_lost"
    RESOURCE_UNAVAILABLE = "resource_unavailable"
    CONFIG_DIFFERS = "config_differs"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A numeric parameter of an alert rule, with bounds."""

    name: str
    default: int
    help: str
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RuleKind:
    """An alert rule with its defaults; `delay_minutes` is how long a condition must hold before the alert is raised."""

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
    AlertRule.CHECK_FAILED: RuleKind(
        Severity.CRITICAL,
        "the last check of a table found files that are missing, or are not what their entries say",
        "`icewright show RUN` lists all faults, and `icewright repair TABLE --dry-run` says what can be repaired; a "
        "check that finds none resolves it",
    ),
    AlertRule.TABLE_PAUSED: RuleKind(
        Severity.WARNING,
        "a table is paused, by the circuit breaker or manually: nothing maintains it",
        "`icewright resume TABLE` when the cause is fixed",
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
        parameters=(Parameter("below", 50, "points of health", most=100), Parameter("hours", 6, "how long", least=0)),
    ),
    AlertRule.STALE: RuleKind(
        Severity.WARNING,
        "something is due on a table, and nothing succeeded on it for so many hours in which it was allowed to run",
        "`icewright explain TABLE` says what waits and why",
        parameters=(Parameter("hours", 24, "without a success; where windows are open for less in a week, all of it"),),
    ),
    AlertRule.UNMAINTAINABLE: RuleKind(
        Severity.WARNING,
        "a table cannot be read, or no operation supports it; the delay lets several tries pass",
        "fix what the reason names; the table is retried automatically, at least once an hour",
        delay_minutes=75,
    ),
    AlertRule.TABLE_BLOCKED: RuleKind(
        Severity.WARNING,
        "an operation on a table is blocked by a safety rule or by settings that contradict each other",
        "do what the reason asks for; a code in brackets is explained in the page on safety",
    ),
    AlertRule.READER_UNPINNED: RuleKind(
        Severity.WARNING,
        "queries read a snapshot after newer ones had come, nobody pinned it, and snapshot expiry will take it",
        "`icewright pin TABLE SNAPSHOT --reader NAME` keeps it; two weeks after the last read the alert ends by itself",
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
        "`icewright doctor` checks the catalog and says how to fix it",
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
        parameters=(Parameter("failures", 3, "in a row"), Parameter("minutes", 30, "without a round")),
    ),
    AlertRule.JOB_STALLED: RuleKind(
        Severity.WARNING,
        "a job or an evaluation made no progress for so many minutes, or was given up and its thread still hangs",
        "fix the mount, store or server behind the call that the message names; `execute.stall_seconds` and "
        "`evaluate.timeout_seconds` end such work, and a restart of the process frees its threads",
        parameters=(Parameter("minutes", 10, "without progress"),),
    ),
    AlertRule.WORKER_LOST: RuleKind(
        Severity.WARNING,
        "services or workers sent no heartbeat for so many minutes, did not deregister, and nothing replaces them",
        "the other processes reconcile their jobs; start as many again, if they are missed",
        parameters=(Parameter("minutes", 5, "of silence"),),
    ),
    AlertRule.RESOURCE_UNAVAILABLE: RuleKind(
        Severity.CRITICAL,
        "a storage place, a pool or a catalog failed for several tables in a row; work that needs it is deferred",
        "fix what the message names; it is retried automatically, and the work goes on when it answers",
    ),
    AlertRule.CONFIG_DIFFERS: RuleKind(
        Severity.WARNING,
        "processes that share the state store run with different policies, catalogs or limits",
        "give all processes the same configuration and restart those that have another; `icewright status` lists them",
        delay_minutes=10,
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
    """Return the default terms of every alert rule."""
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
    """A bad state that holds now; `lasting` is added to the rule's delay before an alert is raised."""

    rule: AlertRule
    subject: str  # the table, catalog or loop, as people write it
    message: str
    ref: TableRef | None = None
    lasting: timedelta = timedelta(0)

    @property
    def key(self) -> str:
        """Return the key under which at most one alert is open at a time."""
        return f"{self.rule} {self.subject}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The state of delivering an alert to one channel."""

    channel: str
    resolved: bool  # True for the message that the alert is over, False for the one that raises it
    failures: int
    told_at: datetime | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A person's acknowledgement of an alert; channels do not hear of it, or of its successor, until `silent_until`."""

    author: str
    at: datetime
    note: str = ""
    silent_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as stored; without `raised_at` the condition has not lasted long enough yet."""

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
    deliveries: tuple[Delivery, ...] = ()
    acknowledgement: Acknowledgement | None = None

    @property
    def catalog(self) -> str | None:
        """Return the catalog that the alert concerns; None for alerts about the service itself."""
        if self.ref is not None:
            return self.ref.catalog
        if self.rule is AlertRule.RESOURCE_UNAVAILABLE:
            kind, _, name = self.subject.partition(" ")
            return name if kind == "catalog" else None
        return self.subject if self.rule in (AlertRule.CATALOG_UNREACHABLE, AlertRule.NO_DETECTION) else None


@dataclass(frozen=True, slots=True)
class Begin:
    """A new condition; its alert is raised at once where the rule has no delay."""

    condition: Condition
    severity: Severity
    raised: bool


@dataclass(frozen=True, slots=True)
class Raise:
    """A condition has lasted long enough: its alert is raised."""

    alert: Alert
    message: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class Resolve:
    """A raised alert is over, as its condition has ended."""

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
    """Return the changes to the open alerts; those for which `unknown` is true cannot be judged now and stay."""
    present: dict[str, Condition] = {}
    for condition in conditions:
        present.setdefault(condition.key, condition)
    changes: list[AlertChange] = []
    for alert in open_alerts:
        lasting = present.pop(alert.key, None)
        if lasting is not None:
            terms = rules[lasting.rule]
            if alert.raised_at is None and now - alert.since >= terms.delay + lasting.lasting:
                changes.append(Raise(alert, _truncate(lasting.message), terms.severity))
        elif not unknown(alert):
            changes.append(Forget(alert) if alert.raised_at is None else Resolve(alert))
    for new_condition in present.values():
        terms = rules[new_condition.rule]
        raised = terms.delay + new_condition.lasting <= timedelta(0)
        changes.append(Begin(replace(new_condition, message=_truncate(new_condition.message)), terms.severity, raised))
    return tuple(changes)


@dataclass(frozen=True, slots=True)
class Notification:
    """A message for a notification channel."""

    title: str
    body: str
    severity: Severity


def notification(rule: AlertRule, alerts: Sequence[Alert], *, resolved: bool) -> Notification:
    """Return one message for all alerts of a rule that are sent together, so that an alert storm is one message."""
    first, kind = alerts[0], RULES[rule]
    severity = "resolved" if resolved else str(first.severity)
    grouped = len(alerts) > 1
    title = f"[{severity}] {rule}: {f'{len(alerts)} alerts' if grouped else one_line(first.subject)}"
    lines = [_line(alert, resolved=resolved, with_subject=grouped) for alert in alerts[:MAX_LISTED]]
    if len(alerts) > MAX_LISTED:
        lines.append(f"and {len(alerts) - MAX_LISTED} more: `icewright alerts`")
    if not resolved:
        table = None if grouped or first.ref is None else one_line(in_shell(first.ref))
        remedy = kind.remedy.replace("TABLE", table) if table else kind.remedy
        lines.append(f"What to do: {remedy}")
    severity_now = Severity.INFO if resolved else first.severity
    return Notification(_without_mentions(title), _without_mentions("\n".join(lines)), severity_now)


def _without_mentions(text: str) -> str:
    """Return text that calls nobody: a table named `@everyone` would, on Discord. A blank without width parts it."""
    return _MENTION.sub("\\g<0>\u200b", text)


def _line(alert: Alert, *, resolved: bool, with_subject: bool) -> str:
    """Return an alert on one line, whatever its table's name and error hold: a line of theirs could pass as ours."""
    subject = f"{one_line(alert.subject)}: " if with_subject else ""
    ended = f", over since {_minute(alert.resolved_at)}" if resolved and alert.resolved_at else ""
    return f"{subject}{one_line(' '.join(alert.message.split()))} (since {_minute(alert.since)}{ended} UTC)"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."
