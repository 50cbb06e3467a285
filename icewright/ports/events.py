"""Events of other systems, tables of commit reports, and our own log of what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from icewright.core.events.model import Message
from icewright.core.heat import ReportedReads
from icewright.core.table import TableRef


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a request: how many messages were new, and which tables they name."""

    received: int  # new messages
    duplicates: int
    tables: tuple[TableRef, ...]  # named by the new messages
    unknown: tuple[str, ...]  # names and paths of no table that a catalog has listed


class EventInbox(Protocol):
    """Events that other systems push. Messages name catalogs as the configuration does."""

    def receive(self, messages: Sequence[Message], now: datetime, *, ask: bool = True) -> Receipt:
        """Apply messages in one transaction. May be repeated: an id that came in the last day changes nothing.

        Changed tables are evaluated now, or when their evaluation cooldown ends, however many messages name them.
        Their catalogs are listed soon with `ask`, those of unknown tables always. Scans are summed by day: a table's
        queries per day are computed from those sums. The last read of each snapshot is kept for 14 days.
        """

    def filters(self, ref: TableRef, now: datetime) -> Mapping[str, float]:
        """Return the templates of the filters that scans of a table had in the last 30 days, with queries per day.

        A template is as `core.filters` makes it. Of a day, the 100 filters that queries had most often are kept.
        """

    def reported_reads(self, ref: TableRef) -> ReportedReads | None:
        """Return how often scans read a table in a day, and since when; None if none did in 30 days."""

    def decay_query_rates(self, now: datetime) -> None:
        """Recompute the queries per day of tables that were read of late; call it about once an hour."""


class ActivityLog(Protocol):
    """The activity log for people, append-only."""

    def record(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:
        """Append an event. `job_id` among the details relates it to a job. Not to be repeated: each call adds one."""

    def list(self, job_id: str | None = None, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Return the newest `limit` events, newest first, or all events of a job, oldest first."""


@dataclass(frozen=True, slots=True)
class NewReports:
    """The commit reports since the table was last read."""

    snapshot_id: int | None  # current snapshot of the table of reports; None while it is empty
    tables: tuple[str, ...] = ()  # names as reported
    gap: bool = False  # the position of the last reading is unknown or expired, so reports may be missing


class CommitReports(Protocol):
    """A table to which engines write commit reports."""

    def since(self, snapshot_id: int | None) -> NewReports:
        """Return the reports of the snapshots after this one.

        Raises `TableNotFound`, `CatalogUnavailable` and `MetadataUnreadable`.
        """

    def close(self) -> None:
        """Close the connections to the source of reports."""
