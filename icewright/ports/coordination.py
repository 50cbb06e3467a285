"""Coordination of the loops of many processes: claims of catalogs, leases, breakers and heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from icewright.core.breakers import Breaker
from icewright.ports.rows import CatalogRow, CatalogSettings, FleetPause, ProcessRow, StoredLimits


class CatalogSchedule(Protocol):
    """The schedule of catalog listings, with reading positions. Each change is one transaction.

    `record_*` methods may be repeated, but for `record_failure`, which counts failures in a row.
    """

    def list(self) -> Sequence[CatalogRow]:
        """Return every catalog that was ever scheduled, by name."""

    def claim(self, names: Sequence[str], holder: str, now: datetime, until: datetime) -> Sequence[CatalogRow]:
        """Claim those of the catalogs that are due for the process `holder`, until the claim expires.

        Of two processes that claim at the same time one gets each catalog. Names that are new are due at once.
        """

    def record_read(self, name: str, began: datetime, now: datetime, detect_at: datetime) -> None:
        """Record that a catalog was listed, end its claim, and schedule the next listing.

        The next listing is earlier than `detect_at` where `detect_soon` asked for that after this one `began`.
        """

    def record_failure(self, name: str, error: str, detect_at: datetime) -> None:
        """Record that a catalog could not be listed, end its claim, and schedule the next attempt."""

    def detect_soon(self, names: Sequence[str], now: datetime) -> None:
        """Make these catalogs due to be listed at once, again where a listing is under way. May be repeated."""

    def record_policy_applied(self, name: str, fingerprint: str, now: datetime) -> None:
        """Record that the catalog's tables were compared with the policy of this fingerprint."""

    def record_settings(self, name: str, settings: CatalogSettings | None, now: datetime) -> None:
        """Record what is set for the catalog in the place of its configuration; None takes it back."""

    def record_cutoff_applied(self, name: str, instant: str, now: datetime) -> None:
        """Record that vacuum has applied this instant (ISO 8601) as the catalog's cut-off."""

    def record_vacuumed(self, name: str, now: datetime) -> None:
        """Record that a vacuum of the catalog has ended. May be repeated."""

    def commit_reports_read_up_to(self, catalog: str) -> int | None:
        """Return the snapshot id up to which the catalog's table of commit reports was read, or None."""

    def record_commit_reports_read(self, catalog: str, snapshot_id: int | None, now: datetime) -> None:
        """Record the snapshot id up to which the catalog's table of commit reports was read."""


class Leases(Protocol):
    """Named leases, each of one process at a time. Each change is a compare-and-set."""

    def acquire(self, name: str, holder: str, now: datetime, until: datetime) -> str:
        """Acquire or renew a lease. Return the process that holds it now, or a blank when nobody does.

        Another holder's lease that ends later than the requested one, as the clock was set back, ends with that.
        """

    def release(self, name: str, holder: str) -> None:
        """Release a lease of this holder; another holder's is left alone. May be repeated."""


class Breakers(Protocol):
    """The circuit breakers of shared resources; one without failures since its last success has no row."""

    def list(self) -> Sequence[Breaker]:
        """Return the breakers of all resources that have failed since their last success, by resource."""

    def record(self, breaker: Breaker, last: Breaker | None) -> bool:
        """Insert or replace the breaker of a resource. Return False when it is not as it was `last` read any more.

        The failure then has to be counted again, by what the breaker is now: threads and processes fail together.
        """

    def claim_probe(self, resource: str, now: datetime, until: datetime) -> bool:
        """Claim the one probe of a resource whose `retry_at` has come. Return False when another one runs.

        A resource without a breaker needs no probe: then too the answer is False.
        """

    def close(self, resource: str) -> bool:
        """Remove the breaker of a resource, as it answers. Return False when there was none. May be repeated."""


class FleetPauses(Protocol):
    """The pause of the whole fleet, which survives restarts of all processes."""

    def get(self) -> FleetPause | None:
        """Return the pause that is in force, or None."""

    def begin(self, pause: FleetPause) -> None:
        """Pause the fleet: from now on `dequeue` returns no job and `claim` begins no operation. Replaces a pause."""

    def end(self) -> bool:
        """Let jobs begin again. Return False when the fleet was not paused. May be repeated."""


class LimitSettings(Protocol):
    """The limits that are set in the place of the configuration's. Each change is a compare-and-set."""

    def get(self) -> StoredLimits | None:
        """Return what is set, or None where nothing ever was."""

    def put(self, settings: Mapping[str, Any], author: str, now: datetime, expected: int) -> int | None:
        """Replace what is set, and return the new version; None unless the version is the expected one, at first 0."""


class ProcessRegistry(Protocol):
    """Services and workers, by the heartbeats that they record."""

    def list(self) -> Sequence[ProcessRow]:
        """Return the processes that have not deregistered, also those whose heartbeat has stopped, oldest first."""

    def record_heartbeat(self, row: ProcessRow) -> bool:
        """Insert or update the heartbeat of a process; the start that was recorded first stays. May be repeated.

        Return whether somebody asked the process to drain.
        """

    def request_drain(self, holder: str, now: datetime) -> bool:
        """Ask a process to take no more jobs: `dequeue` gives it none from now on, and it ends when its jobs have.

        Return False when no such process is registered. May be repeated.
        """

    def deregister(self, holders: Sequence[str]) -> None:
        """Remove processes that have ended, and release the tables that they had claimed. May be repeated."""

    def release_claims(self, dead: Callable[[str], bool], now: datetime) -> None:
        """Release the catalogs and tables that `dead` processes had claimed to read. May be repeated.

        A table counts the death (see `TableState.claim_evaluations`). Heartbeats from before the clock was set back
        count as sent now, so that processes that send no more of them are missed.
        """
