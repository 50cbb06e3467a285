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
        """Tell it. Raises `ChannelUnavailable`, which says what is wrong and never names the channel's address."""
        ...


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """What one channel is to be told of one alert: that it is raised, or that it is over."""

    alert: Alert
    channel: str
    resolved: bool
    failures: int  # in a row


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """The queue: jobs that no worker has taken, and when the oldest came."""

    jobs: int
    oldest: datetime | None


class AlertReader(Protocol):
    """What rules look at, by few queries however many tables there are; and the alerts."""

    def table_signs(
        self, catalogs: Sequence[str], enabled: Sequence[str], below: int, overdue: datetime
    ) -> Sequence[TableInputs]:
        """Tables that are paused or unreadable; of enabled catalogs, unhealthy or without a success since then too."""
        ...

    def failures(self, catalogs: Sequence[str]) -> Sequence[Failure]:
        """Operations whose last run on a table failed; of a table's earlier uuid nothing counts."""
        ...

    def unsupported(self, catalogs: Sequence[str]) -> Sequence[tuple[TableRef, str]]:
        """Tables that no operation can maintain, with a reason."""
        ...

    def waiting(self) -> QueueBacklog:
        """Return how many jobs are queued, and since when the oldest waits."""
        ...

    def open_alerts(self) -> Sequence[Alert]:
        """Alerts that are not resolved, and conditions that may become alerts."""
        ...

    def alerts(self, *, resolved: bool = False, limit: int = 1000) -> Sequence[Alert]:
        """Raised alerts, newest first, with what became of telling them; `resolved` ones too where asked for."""
        ...


class AlertStore(AlertReader, Protocol):
    """What is kept of alerts. Each change is a compare-and-set: of two processes that change one alert, one does."""

    def alerts_changed(self, changes: Sequence[AlertChange], channels: Sequence[str], now: datetime) -> None:
        """Write down what changed, and in the same transaction what these channels are to be told of it.

        A channel that is new is told what is open. One that was told of an alert is told its end.
        """
        ...

    def claim_tellings(self, channels: Sequence[str], now: datetime, until: datetime) -> Sequence[PendingDelivery]:
        """What these channels are to be told now, for this process until then.

        Of one key each channel hears in order: the end waits for the beginning, the next alert for the end.
        """
        ...

    def told(self, tellings: Sequence[PendingDelivery], now: datetime) -> None:
        """Mark deliveries as accepted by their channel."""
        ...

    def not_told(self, tellings: Sequence[PendingDelivery], try_at: datetime) -> None:
        """The channel did not take them; when it is tried again."""
        ...
