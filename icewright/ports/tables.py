"""Tables in the store: their evaluations, pinned snapshots, and all places that they ever had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from icewright.core.table import SnapshotHold, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation
from icewright.ports.lake import Pointer
from icewright.ports.rows import Registration, SnapshotPin, TableRow


class TableState(Protocol):
    """Tables of all catalogs: what the catalogs list, and what evaluations found.

    Each change is one transaction, but for `clear_due_work`, which has one for each table. All methods raise
    `StoreUnavailable` while the store does not answer.
    """

    def get(self, ref: TableRef) -> TableRow | None:
        """Return the row of a table, or None when no catalog ever listed it."""

    def list(self, catalog: str | None = None) -> Sequence[TableRow]:
        """Return the tables of one catalog or of all, dropped ones too, in the order in which they were first seen."""

    def known(self, catalog: str | None = None) -> Sequence[TableRef]:
        """Return the tables of one catalog or of all that are not dropped, in the same order."""
        return [row.ref for row in self.list(catalog) if not row.dropped]

    def record_listing(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        """Record the complete listing of a catalog. Return how many tables are new or have moved.

        New and moved tables become due for evaluation, moved ones after their evaluation cooldown. Tables that the
        listing lacks become dropped, and nothing of them is due. May be repeated.
        """

    def claim_evaluations(
        self,
        catalogs: Sequence[str],
        holder: str,
        now: datetime,
        until: datetime,
        limit: int,
        dead: Callable[[str], bool] = lambda _: False,
    ) -> Sequence[TableRow]:
        """Claim tables that are due to be evaluated for the process `holder` until then, the longest due first.

        Tables that have a running job, or that another process has claimed, are skipped. A table whose claim a `dead`
        process left behind counts the death. Until its next evaluation ends it is claimed alone, after all others; from
        the second death on it is unreadable and retried after 5 minutes, then after twice as long each time.
        """

    def schedule_evaluation(self, refs: Sequence[TableRef], at: datetime | None, *, release: bool = False) -> None:
        """Set when tables are evaluated next; with None, not before their metadata moves. May be repeated.

        `release` ends the claims of tables that are not being read.
        """

    def sharing(self, ref: TableRef, location: str) -> Sequence[TableRef]:
        """Return the other tables whose last known location is this one, lies in it or holds it."""

    def deadly(self) -> Mapping[TableRef, str]:
        """Return the tables whose last evaluation ended a process instead of ending itself, each with the reason."""

    def record_evaluation(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        """Replace the evaluation of a table by one that began at `now`, and end its claim. May be repeated.

        `policy` is the fingerprint of the policy, without table properties. An evaluation that began later stays. A
        table of another uuid begins anew: its findings and due time are dropped.
        """

    def record_unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        """Record that the evaluation which began at `now` failed as a whole: no operation may run on the table.

        It is retried after 30 seconds, then after twice as long as since the try before, up to an hour.
        """

    def clear_due_work(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        """Delete the due operations and errors of tables, and schedule their next evaluation. May be repeated."""

    def evaluation(self, ref: TableRef) -> Mapping[str, Any] | None:
        """Return the last evaluation as the JSON document of `core.describe.evaluation_document`, or None."""

    def pause(self, ref: TableRef, reason: str | None) -> bool:
        """Pause a table with a reason, or resume it with None. Return False when the table is unknown."""

    def pause_many(self, refs: Sequence[TableRef], reason: str | None) -> None:
        """Pause or resume tables in one transaction; unknown ones are left out. May be repeated."""


class SnapshotPins(Protocol):
    """Snapshots that a reader continues from, or that a running rewrite began on: no expiry removes them."""

    def list(self, ref: TableRef, table_uuid: str) -> Sequence[SnapshotPin]:
        """Return the pinned snapshots of the table of this uuid, expired pins and those of its earlier names too."""

    def holds(self, metadata: TableMetadata) -> tuple[SnapshotHold, ...]:
        """Return the snapshots that pins of the table retain."""
        return tuple(pin.hold() for pin in self.list(metadata.ref, metadata.table_uuid))

    def add(self, ref: TableRef, table_uuid: str, pin: SnapshotPin, *, job_id: str | None = None) -> bool:
        """Pin a snapshot for a reader; an earlier pin of the reader moves. Durable when the call returns.

        Return False when the table is unknown, or when a job works on the table, as an expiry may be about to commit.
        With `job_id` the pin is that job's own: then it must be the one that has the table. The pin of a rewrite
        (`SnapshotPin.rewriter`) goes with the end of its job, whoever ends it.
        """

    def remove(self, ref: TableRef, reader: str) -> bool:
        """Release the pin of a reader. Return False when there is none."""

    def reads(self, ref: TableRef) -> Mapping[int, datetime]:
        """Return when snapshots of the table were last read, as engines reported (`EventInbox`), by their ids."""


class Registrations(Protocol):
    """Registrations of every table that any catalog ever named, with its places and adoptions."""

    def list(self) -> Sequence[Registration]:
        """Return all registrations, also those of tables that no catalog names any more."""

    def get(self, ref: TableRef, table_uuid: str) -> Registration | None:
        """Return one registration, or None when the table was never read under this name."""

    def record(self, registrations: Sequence[Registration], now: datetime) -> None:
        """Record tables as they were read; known places and folders are never removed. May be repeated."""

    def adopted(self, table_uuid: str) -> frozenset[str]:
        """Return the uuids, places and metadata files that a person declared to be this table's own."""

    def adopt(self, table_uuid: str, what: Iterable[str], author: str, now: datetime) -> None:
        """Record what a person declared to be this table's own. May be repeated."""
