"""Alerts: what rules look at, what is kept of alerts, and who is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from icewright.core.alerts import Alert, AlertChange, Severity
from icewright.core.conditions import Failure, TableInputs
from icewright.core.table import TableRef


class Notifier(Protocol):
    """A channel through which alerts are delivered."""

    def send(self, title: str, body: str, severity: Severity) -> None:
        """Deliver a message. Raises `ChannelUnavailable`, which never names the channel's address."""
        ...


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A message that one channel is owed about one alert: that it is raised, or that it is over."""

    alert: Alert
    channel: str
    resolved: bool
    failures: int  # in a row


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """The number of jobs that no worker has taken, and when the oldest was queued."""

    jobs: int
    oldest: datetime | None


class AlertReader(Protocol):
    """Read access to what alert rules look at, by few queries for any number of tables, and to alerts."""

    def table_inputs(
        self, catalogs: Sequence[str], enabled: Sequence[str], below: int, overdue: datetime
    ) -> Sequence[TableInputs]:
        """Return tables that are paused or unreadable; of enabled catalogs also unhealthy or stale ones."""
        ...

    def failures(self, catalogs: Sequence[str]) -> Sequence[Failure]:
        """Return operations whose last run on a table failed; runs of an earlier uuid do not count."""
        ...

    def unsupported(self, catalogs: Sequence[str]) -> Sequence[tuple[TableRef, str]]:
        """Return tables that no operation can maintain, each with a reason."""
        ...

    def backlog(self) -> QueueBacklog:
        """Return how many jobs are queued, and since when the oldest waits."""
        ...

    def open_alerts(self) -> Sequence[Alert]:
        """Return alerts that are not resolved, and conditions that may become alerts."""
        ...

    def alerts(self, *, resolved: bool = False, limit: int = 1000) -> Sequence[Alert]:
        """Return raised alerts with their deliveries, newest first; `resolved` ones too where asked for."""
        ...


class AlertStore(AlertReader, Protocol):
    """Alerts and their deliveries. Each change is a compare-and-set: of two processes, one makes it."""

    def record_alert_changes(self, changes: Sequence[AlertChange], channels: Sequence[str], now: datetime) -> None:
        """Record changes of alerts and, in the same transaction, the deliveries that these channels are owed.

        A channel that is new is told what is open. One that was told of an alert is told its end.
        """
        ...

    def claim_deliveries(self, channels: Sequence[str], now: datetime, until: datetime) -> Sequence[PendingDelivery]:
        """Claim undelivered messages of these channels for this process, until then.

        Of one key each channel hears in order: the end waits for the beginning, the next alert for the end.
        """
        ...

    def mark_delivered(self, tellings: Sequence[PendingDelivery], now: datetime) -> None:
        """Mark deliveries as accepted by their channel."""
        ...

    def schedule_redelivery(self, tellings: Sequence[PendingDelivery], try_at: datetime) -> None:
        """Schedule the next attempt of deliveries that failed."""
        ...
