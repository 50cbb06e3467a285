"""What others say of tables: events that are pushed, and tables of commit reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from icewright.core.events.model import Message
from icewright.core.table import TableRef


@dataclass(frozen=True, slots=True)
class Receipt:
    """How many messages of a request were new, and which tables they name."""

    received: int  # of them, new ones
    duplicates: int
    tables: tuple[TableRef, ...]  # which the new ones speak of
    unknown: tuple[str, ...]  # what they name that no catalog has listed yet


class EventStore(Protocol):
    """Events that other systems push. Messages name catalogs as the configuration does."""

    def receive(self, messages: Sequence[Message], now: datetime, *, ask: bool = True) -> Receipt:
        """Apply messages in one transaction; one whose id came in the last day changes nothing.

        A table that changed is evaluated now, or once its evaluation cooldown is over, however many messages say so.
        Its catalog is asked soon too, if `ask`; that of a table that is not known always. Scans are added up by day,
        and are what a table's queries per day are made of.
        """
        ...

    def decay_query_rates(self, now: datetime) -> None:
        """Lower the queries per day of tables that nobody reads any more; call it about once an hour."""
        ...

    def commit_reports_read_up_to(self, catalog: str) -> int | None:
        """Return the snapshot up to which the catalog's table of commit reports was read."""
        ...

    def record_commit_reports_read(self, catalog: str, snapshot_id: int | None, now: datetime) -> None:
        """Record up to which snapshot commit reports were read. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class NewReports:
    """The commit reports since the table was last read."""

    snapshot_id: int | None  # its current one; nothing while it is empty
    tables: tuple[str, ...] = ()  # as they were reported
    gap: bool = False  # nothing was read before, or where that ended is not known any more: reports may be missing


class CommitReports(Protocol):
    """A table to which engines write commit reports."""

    def since(self, snapshot_id: int | None) -> NewReports:
        """Return the reports of the snapshots after this one.

        Raises `TableNotFound`, `CatalogUnavailable` and `MetadataUnreadable`.
        """
        ...

    def close(self) -> None:
        """Close the connections to the source of reports."""
        ...
