"""The queue of jobs, and what loops of many processes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from icewright.core.plan import Deferred, PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.ports.rows import CatalogRow, JobRow, LeaseStatus, ProcessRow, TableRow, Trigger


class JobQueue(Protocol):
    """Jobs. Each change is a compare-and-set: of two processes that want a table or a job, one gets it.

    A table has one job at a time, from the moment that it is queued.
    """

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        """Queue a job for a worker; returns its id, or None when the table has a job already."""
        ...

    def record_deferred(self, deferred: Sequence[Deferred]) -> None:
        """Record the due operations that the plan did not start, with reasons and places in the queue."""
        ...

    def dequeue(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        """Start the best queued jobs, at most `limit`, as jobs of this process."""
        ...

    def claim(
        self,
        ref: TableRef,
        table_uuid: str,
        operations: Sequence[Operation],
        trigger: Trigger,
        now: datetime,
        pool: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Start a job at once; returns its id, or None when another runs on the table. A queued one gives way."""
        ...

    def heartbeat(self, job_id: str, now: datetime) -> LeaseStatus:
        """Renew the lease of a running job; returns whether it still holds its table."""
        ...

    def finish(self, job_id: str, state: JobState, summary: str, now: datetime) -> None:
        """End a job and release its table. May be repeated."""
        ...

    def end_interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """End running jobs whose lease expired or whose holder is `dead`, and release their tables; returns them."""
        ...

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        """Ask a job to stop; a queued one ends at once. Returns False when it has ended already."""
        ...

    def queued(self, catalogs: Sequence[str]) -> Sequence[JobRow]:
        """Return the queued jobs on tables of these catalogs."""
        ...

    def count_consecutive(self, ref: TableRef, state: JobState) -> int:
        """Return how many of the table's last jobs ended in this state, one after another."""
        ...


class LoopStore(Protocol):
    """The state that the loops of many processes share."""

    def claim_catalogs(self, names: Sequence[str], holder: str, now: datetime, until: datetime) -> Sequence[CatalogRow]:
        """Claim those of the catalogs that are due to be listed, for this process until then."""
        ...

    def record_catalog_read(self, name: str, began: datetime, now: datetime, detect_at: datetime) -> None:
        """Record that a catalog was listed, and when it is next; sooner, if somebody asked for that meanwhile."""
        ...

    def record_catalog_failure(self, name: str, error: str, detect_at: datetime) -> None:
        """Record that a catalog could not be listed, and when it is tried again."""
        ...

    def detect_soon(self, names: Sequence[str], now: datetime) -> None:
        """Make these catalogs due to be listed at once."""
        ...

    def record_policy_applied(self, name: str, fingerprint: str, now: datetime) -> None:
        """Record that the catalog's tables were compared with the policy of this fingerprint."""
        ...

    def record_cutoff_applied(self, name: str, instant: str, now: datetime) -> None:
        """Record that vacuum has applied this instant as the catalog's cut-off, so that it does not again."""
        ...

    def claim_evaluations(
        self, catalogs: Sequence[str], holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[TableRow]:
        """Claim tables that are due to be evaluated, for this process until then."""
        ...

    def schedule_evaluation(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        """Set when tables are evaluated next; None: not before they change."""
        ...

    def clear_due_work(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        """Delete the due operations and errors of tables, and schedule their next evaluation."""
        ...

    def acquire_lease(self, name: str, holder: str, now: datetime, until: datetime) -> str:
        """Acquire or renew a named lease; returns its holder now, or a blank when nobody has it."""
        ...

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease of this holder; another holder's is left alone. May be repeated."""
        ...

    def record_heartbeat(self, row: ProcessRow) -> None:
        """Insert or update the heartbeat of a process. May be repeated."""
        ...

    def release_claims_of_ended(self, dead: Callable[[str], bool]) -> None:
        """Release the catalogs and tables that processes which have ended had claimed."""
        ...

    def deregister(self, holders: Sequence[str]) -> None:
        """Remove processes that have ended. May be repeated."""
        ...

    def set_pool_limit(self, name: str, limit: int, now: datetime) -> None:
        """Set the concurrency limit of a pool."""
        ...
