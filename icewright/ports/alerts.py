"""Alerts: the state that rules look at, open and past alerts, and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from icewright.core.alerts import Acknowledgement, Alert, AlertChange, AlertRule, Severity
from icewright.core.conditions import Failure, TableInputs
from icewright.core.permissions import VisibilityFilter
from icewright.core.table import TableRef


class Notifier(Protocol):
    """A channel through which alerts are delivered."""

    def send(self, title: str, body: str, severity: Severity) -> None:
        """Deliver a message. Raises `ChannelUnavailable`, which never names the channel's address."""


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A message that one channel is owed about one alert: its beginning or its end."""

    alert: Alert
    channel: str
    resolved: bool
    failures: int  # in a row


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """The number of jobs that no worker has taken, and when the oldest was queued."""

    jobs: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class AlertQuery:
    """Which alerts are listed: those that are open, unless it says otherwise."""

    resolved: bool | None = False  # True: only those that are over; None: these too
    severity: Severity | None = None
    since: datetime | None = None  # over then or later, or begun if still open
    alert_id: int | None = None
    visibility: VisibilityFilter = None
    search: str | None = None  # part of what it is about, such as a table's name, case-insensitive


OPEN_ALERTS = AlertQuery()


class AlertStore(Protocol):
    """The input of alert rules, the alerts, and their deliveries to channels.

    Each change is one transaction and a compare-and-set: of two processes that make it, one does. The queries take a
    fixed number of statements for any number of tables.
    """

    def table_inputs(
        self, catalogs: Sequence[str], enabled: Sequence[str], below: int, overdue: datetime
    ) -> Sequence[TableInputs]:
        """Return the tables of `catalogs` that are paused or unreadable, and unhealthy or late ones of `enabled`.

        Unhealthy: a health of less than `below` points. Late: due and without a success since `overdue`.
        """

    def failures(self, catalogs: Sequence[str]) -> Sequence[Failure]:
        """Return operations whose last run on a table failed; runs of an earlier uuid do not count."""

    def reported(self, rule: AlertRule, catalogs: Sequence[str]) -> Mapping[TableRef, str]:
        """Return the tables that checks and verdicts report for a rule of `conditions.REPORTED`, each with a reason.

        `check_failed`: the last check found faults. `unmaintainable`: no operation can maintain the table.
        `table_blocked`: the last evaluation blocked an operation that is not switched off. `reader_unpinned`: it warned
        of what an operation will take from others.
        """

    def backlog(self) -> QueueBacklog:
        """Return how many jobs are queued, and since when the oldest waits."""

    def unresolved(self) -> Sequence[Alert]:
        """Return alerts that are not resolved, and conditions that may become alerts, oldest first."""

    def list(self, query: AlertQuery = OPEN_ALERTS, limit: int = 1000) -> Sequence[Alert]:
        """Return raised alerts with their deliveries, newest first. One that only a newer release knows is left out."""

    def count_open(self, visibility: VisibilityFilter) -> Mapping[str, int]:
        """Return how many raised alerts are open, by severity."""

    def record_changes(self, changes: Sequence[AlertChange], channels: Sequence[str], now: datetime) -> None:
        """Record changes of alerts and, in the same transaction, the deliveries that these channels are owed.

        A new channel is owed every open alert. A channel that was owed an alert is owed its end, unless a silence kept
        the beginning from it. A new alert inherits the silence of the last one of its key. May be repeated.
        """

    def acknowledge(self, alert_id: int, acknowledgement: Acknowledgement | None) -> bool:
        """Set or withdraw the acknowledgement of an open alert; return whether there is such an alert."""

    def claim_deliveries(self, channels: Sequence[str], now: datetime, until: datetime) -> Sequence[PendingDelivery]:
        """Claim pending deliveries of these channels for this process, until the claim expires.

        Each channel gets the deliveries of one alert key in order: the end after the beginning, the next alert after
        the end. A beginning waits until the silence of its alert is over.
        """

    def mark_delivered(self, deliveries: Sequence[PendingDelivery], now: datetime) -> None:
        """Record that the channel accepted these deliveries. May be repeated."""

    def schedule_redelivery(self, deliveries: Sequence[PendingDelivery], try_at: datetime) -> None:
        """Count a failure of each delivery, and schedule its next attempt."""
