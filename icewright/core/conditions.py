"""Derive the conditions that alerts are raised for from the state of tables, catalogs and processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from icewright.core.alerts import MAX_LISTED, AlertRule, Condition, RuleTerms
from icewright.core.breakers import Breaker, BreakerState, is_shared_fault
from icewright.core.policy import Operation
from icewright.core.runs import VERIFICATION_FAILED
from icewright.core.table import TableRef
from icewright.core.windows import WEEK, open_time
from icewright.core.words import count, some

# the rules about tables for which checks and verdicts have the reason
REPORTED = (AlertRule.CHECK_FAILED, AlertRule.UNMAINTAINABLE, AlertRule.TABLE_BLOCKED, AlertRule.READER_UNPINNED)
_ALIVE = timedelta(minutes=2)  # since the last heartbeat of a process whose configuration counts
_MACHINE = re.compile(r"\.[0-9a-f]{6}$")  # distinguishes machines with the same name, see app.identity


@dataclass(frozen=True, slots=True)
class TableInputs:
    """The state of a table that the alert rules evaluate."""

    ref: TableRef
    paused: str | None = None
    error: str | None = None  # why it cannot be read
    health: int | None = None  # None: not known
    overdue_since: datetime | None = None  # since when something is due and nothing succeeded
    windows: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An operation whose last run on the table failed."""

    ref: TableRef
    operation: Operation | None  # None: the job failed before it came to one
    reason: str


@dataclass(frozen=True, slots=True)
class CatalogInputs:
    """The detection state of a configured catalog."""

    name: str
    interval: timedelta
    detected_at: datetime | None
    failures: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """A daily budget of GB-hours, and the amount spent today."""

    subject: str  # such as `pool default`
    budget: float
    spent: float


@dataclass(frozen=True, slots=True)
class LoopInputs:
    """The state of one loop of a process, as its last heartbeat reported."""

    name: str
    failures: int
    error: str | None
    lag: timedelta


@dataclass(frozen=True, slots=True)
class IdleWork:
    """A job or an evaluation that makes no progress."""

    name: str  # such as `job 20261125-...` or `evaluation`
    table: str
    idle: timedelta
    call: str  # the function where its thread is


@dataclass(frozen=True, slots=True)
class ProcessInputs:
    """The state of a service or worker process that the alert rules evaluate."""

    holder: str
    kind: str
    heartbeat: datetime
    slots: int
    loops: tuple[LoopInputs, ...] = ()
    started: datetime | None = None  # None: not known
    configuration: Mapping[str, str] = field(default_factory=dict)  # a hash for each key; empty: not reported
    idle: tuple[IdleWork, ...] = ()

    @property
    def host(self) -> str:
        """Return the name of the host or pod on which the process runs."""
        return _MACHINE.sub("", self.holder.rsplit(":", 2)[0])


@dataclass(frozen=True, slots=True)
class AlertInputs:
    """The complete state that the alert rules evaluate."""

    tables: Sequence[TableInputs] = ()
    failures: Sequence[Failure] = ()
    reported: Mapping[AlertRule, Mapping[TableRef, str]] = field(default_factory=dict)  # see `REPORTED`
    catalogs: Sequence[CatalogInputs] = ()
    spending: Sequence[Spending] = ()
    queued: int = 0
    oldest_queued: datetime | None = None
    processes: Sequence[ProcessInputs] = ()
    breakers: Sequence[Breaker] = ()
    serving_since: datetime | None = None  # when the evaluating service started; None: no service evaluates


def conditions(inputs: AlertInputs, rules: Mapping[AlertRule, RuleTerms], now: datetime) -> list[Condition]:
    """Return the conditions that hold now, for the rules that are enabled."""
    current: list[Condition] = []
    for rule, terms in rules.items():
        if terms.enabled:
            current += _EVALUATORS[rule](inputs, terms.parameters, now)
    return current


def _job_failed(inputs: AlertInputs, _parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    by_table: dict[TableRef, list[Failure]] = {}
    for failure in inputs.failures:
        by_table.setdefault(failure.ref, []).append(failure)
    for ref, failures in by_table.items():
        message = "; ".join(
            f"{f.operation or 'the job'} failed: {f.reason or 'no reason was recorded'}" for f in failures
        )
        yield Condition(AlertRule.JOB_FAILED, str(ref), message, ref)


def _reported(
    rule: AlertRule, inputs: AlertInputs, _parameters: Mapping[str, int], _now: datetime
) -> Iterator[Condition]:
    for ref, reason in inputs.reported.get(rule, {}).items():
        yield Condition(rule, str(ref), reason, ref)


def _paused(inputs: AlertInputs, _parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    for table in inputs.tables:
        if table.paused is not None and not table.paused.startswith(VERIFICATION_FAILED):
            yield Condition(AlertRule.TABLE_PAUSED, str(table.ref), f"the table is paused: {table.paused}", table.ref)


def _verification_failed(inputs: AlertInputs, _parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    for table in inputs.tables:
        if table.paused is not None and table.paused.startswith(VERIFICATION_FAILED):
            message = f"{table.paused}; the table is paused"
            yield Condition(AlertRule.VERIFICATION_FAILED, str(table.ref), message, table.ref)


def _unhealthy(inputs: AlertInputs, parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    below, lasting = parameters["below"], timedelta(hours=parameters["hours"])
    for table in inputs.tables:
        if table.health is not None and table.health < below:
            message = f"health is {table.health} of 100, below {below} for {parameters['hours']} h or longer"
            yield Condition(AlertRule.TABLE_UNHEALTHY, str(table.ref), message, table.ref, lasting)


def _stale(inputs: AlertInputs, parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    limit = timedelta(hours=parameters["hours"])
    for table in inputs.tables:
        since = table.overdue_since
        if since is None or table.paused is not None or now - since < limit:
            continue
        if _allowed_for(limit, table.windows, since, now):
            message = f"something is due, and nothing succeeded since {since:%Y-%m-%d %H:%M} UTC"
            yield Condition(AlertRule.STALE, str(table.ref), message, table.ref)


def _allowed_for(limit: timedelta, windows: str | None, since: datetime, now: datetime) -> bool:
    """Return whether windows were open for the limit since then, or for all their time in a week if that is less."""
    if not windows:
        return True
    try:
        possible, needed = (open_time(windows, since, end) for end in (min(now, since + WEEK), since + WEEK))
    except ValueError:  # a time zone that this machine does not know, by which no plan of it lets anything begin
        return True
    return possible >= min(limit, needed)


def _unmaintainable(inputs: AlertInputs, _parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    for table in inputs.tables:
        if table.error is not None and not is_shared_fault(table.error):
            message = f"the table cannot be read: {table.error}"
            yield Condition(AlertRule.UNMAINTAINABLE, str(table.ref), message, table.ref)
    for ref, reason in inputs.reported.get(AlertRule.UNMAINTAINABLE, {}).items():
        yield Condition(AlertRule.UNMAINTAINABLE, str(ref), f"no operation supports the table: {reason}", ref)


def _budget_spent(inputs: AlertInputs, parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    for spending in inputs.spending:
        if spending.spent >= spending.budget * parameters["percent"] / 100:
            message = f"{spending.spent:.3g} of {spending.budget:g} GB-hours of the day are spent"
            yield Condition(AlertRule.BUDGET_SPENT, spending.subject, message)


def _unreachable(inputs: AlertInputs, _parameters: Mapping[str, int], _now: datetime) -> Iterator[Condition]:
    for catalog in inputs.catalogs:
        if catalog.failures:
            yield Condition(AlertRule.CATALOG_UNREACHABLE, catalog.name, f"the catalog cannot be read: {catalog.error}")


def _no_detection(inputs: AlertInputs, parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    """Yield the catalogs that no detection has read for too long; one that cannot be read has an alert of its own.

    Only a service that has been up for the whole limit can tell: a single pass sees one moment, and may cover only
    some of the catalogs.
    """
    up = inputs.serving_since
    if up is None:
        return
    for catalog in inputs.catalogs:
        last, limit = catalog.detected_at, catalog.interval * parameters["intervals"]
        if last is not None and not catalog.failures and now - max(last, up) > limit:
            message = f"the catalog was last read {last:%Y-%m-%d %H:%M} UTC; it should be read every {catalog.interval}"
            yield Condition(AlertRule.NO_DETECTION, catalog.name, message)


def _queue_stuck(inputs: AlertInputs, parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    oldest = inputs.oldest_queued
    if oldest is not None and now - oldest > timedelta(minutes=parameters["minutes"]):
        takers = sum(process.slots > 0 for process in inputs.processes)
        message = (
            f"{count(inputs.queued, 'job')} waiting for a worker, the oldest since {oldest:%Y-%m-%d %H:%M} UTC; "
            f"{takers} of the processes take jobs"
        )
        yield Condition(AlertRule.QUEUE_STUCK, "queue", message)


def _loops_failing(inputs: AlertInputs, parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    most, longest = parameters["failures"], timedelta(minutes=parameters["minutes"])
    for process in inputs.processes:
        if now - process.heartbeat > longest:
            continue  # its loop states are outdated: `worker_lost` reports the process
        for loop in process.loops:
            if loop.failures >= most:
                message = f"failed {loop.failures} times in a row in {process.kind} {process.host}: {loop.error}"
            elif loop.lag > longest:
                minutes = loop.lag.total_seconds() / 60
                message = f"did not come round for {minutes:.0f} minutes in {process.kind} {process.host}"
            else:
                continue
            yield Condition(AlertRule.LOOP_FAILING, f"loop {loop.name}", message)


def _jobs_stalled(inputs: AlertInputs, parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    longest = timedelta(minutes=parameters["minutes"])
    for process in inputs.processes:
        if now - process.heartbeat > longest:
            continue  # what it did is outdated: `worker_lost` reports the process
        for work in process.idle:
            if work.idle >= longest:
                minutes = work.idle.total_seconds() / 60
                message = f"{work.name} made no progress for {minutes:.0f} minutes in {process.kind} {process.host}"
                yield Condition(AlertRule.JOB_STALLED, work.table, f"{message}; its thread is in {work.call}")


def _workers_lost(inputs: AlertInputs, parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    """Yield one condition for each kind of process, with those that are silent and that no later process replaces."""
    limit = timedelta(minutes=parameters["minutes"])
    for kind in sorted({process.kind for process in inputs.processes}):
        of_kind = [process for process in inputs.processes if process.kind == kind]
        lost = _not_replaced([p for p in of_kind if now - p.heartbeat > limit], of_kind)
        if lost:
            names = ", ".join(f"{p.host} (since {p.heartbeat:%Y-%m-%d %H:%M} UTC)" for p in lost)
            message = f"no heartbeat from {count(len(lost), 'process')} of kind {kind}: {names}"
            yield Condition(AlertRule.WORKER_LOST, kind, message)


def _not_replaced(silent: Sequence[ProcessInputs], processes: Sequence[ProcessInputs]) -> list[ProcessInputs]:
    """Return the silent processes for which no other process was started after their last heartbeat."""
    by_start = sorted((p.started, p.holder) for p in processes if p.started is not None)
    lost = []
    for process in sorted(silent, key=lambda p: p.heartbeat):
        successor = next((e for e in by_start if e[0] >= process.heartbeat and e[1] != process.holder), None)
        if successor is None:
            lost.append(process)
        else:
            by_start.remove(successor)  # one process replaces one other
    return lost


def _unavailable(inputs: AlertInputs, _parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    """Yield the resources whose breaker is not closed; a catalog that cannot be listed has an alert of its own."""
    unreachable = {f"catalog {catalog.name}" for catalog in inputs.catalogs if catalog.failures}
    for breaker in inputs.breakers:
        if breaker.resource not in unreachable and breaker.state(now) is not BreakerState.CLOSED:
            message = f"work that needs {breaker.resource} is deferred: {breaker.error}"
            yield Condition(AlertRule.RESOURCE_UNAVAILABLE, breaker.resource, message)


def _config_differs(inputs: AlertInputs, _parameters: Mapping[str, int], now: datetime) -> Iterator[Condition]:
    """Yield one condition with the processes of each configuration, and the keys on which they differ."""
    alive = [p for p in inputs.processes if p.configuration and now - p.heartbeat <= _ALIVE]
    keys = [key for key in sorted({key for p in alive for key in p.configuration}) if _differs(key, alive)]
    if not keys:
        return
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for process in alive:
        name = f"{process.kind} {process.host}:{process.holder.rsplit(':', 2)[1]}"
        groups.setdefault(tuple(process.configuration.get(key) for key in keys), []).append(name)
    named = " | ".join(", ".join(sorted(names)) for names in groups.values())
    message = f"processes differ in {some(keys, MAX_LISTED)}: {named}"
    yield Condition(AlertRule.CONFIG_DIFFERS, "configuration", message)


def _differs(key: str, processes: Sequence[ProcessInputs]) -> bool:
    """Return whether processes have different values of a key; one may leave out a whole catalog."""
    section, _, rest = key.partition(".")
    if section == "catalogs":
        its_type = f"catalogs.{rest.partition('.')[0]}.type"
        processes = [process for process in processes if its_type in process.configuration]
    return len({process.configuration.get(key) for process in processes}) > 1


_EVALUATORS: Mapping[AlertRule, Callable[[AlertInputs, Mapping[str, int], datetime], Iterator[Condition]]] = {
    AlertRule.JOB_FAILED: _job_failed,
    AlertRule.CHECK_FAILED: partial(_reported, AlertRule.CHECK_FAILED),
    AlertRule.TABLE_PAUSED: _paused,
    AlertRule.VERIFICATION_FAILED: _verification_failed,
    AlertRule.TABLE_UNHEALTHY: _unhealthy,
    AlertRule.STALE: _stale,
    AlertRule.UNMAINTAINABLE: _unmaintainable,
    AlertRule.TABLE_BLOCKED: partial(_reported, AlertRule.TABLE_BLOCKED),
    AlertRule.READER_UNPINNED: partial(_reported, AlertRule.READER_UNPINNED),
    AlertRule.BUDGET_SPENT: _budget_spent,
    AlertRule.CATALOG_UNREACHABLE: _unreachable,
    AlertRule.NO_DETECTION: _no_detection,
    AlertRule.QUEUE_STUCK: _queue_stuck,
    AlertRule.LOOP_FAILING: _loops_failing,
    AlertRule.JOB_STALLED: _jobs_stalled,
    AlertRule.WORKER_LOST: _workers_lost,
    AlertRule.RESOURCE_UNAVAILABLE: _unavailable,
    AlertRule.CONFIG_DIFFERS: _config_differs,
}
