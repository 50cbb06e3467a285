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
    """Jobs. Each change is a compare-and-set: of two that want a table or a job, one gets it.

    A table has one job at a time, from the moment that it is queued.
    """

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        """Let a job wait for a worker: its id, or None when the table has a job already."""
        ...

    def record_deferred(self, deferred: Sequence[Deferred]) -> None:
        """Write down what the plan did not start, with reasons and places."""
        ...

    def dequeue(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        """The best jobs that wait, begun by this process."""
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
        """Start a job at once: its id, or None when another runs on the table. One that waits there gives way."""
        ...

    def heartbeat(self, job_id: str, now: datetime) -> LeaseStatus:
        """Renew the lease of a running job; returns whether it still holds its table."""
        ...

    def finish(self, job_id: str, state: JobState, summary: str, now: datetime) -> None:
        """End a job and free its table."""
        ...

    def end_interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """Running jobs whose lease ran out, or whose holder is `dead`: ended, their tables freed, for settling."""
        ...

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        """Ask a job to stop; one that waits ends at once. False when it has ended already."""
        ...

    def queued(self, catalogs: Sequence[str]) -> Sequence[JobRow]:
        """Jobs on tables of these catalogs that wait for a worker."""
        ...

    def count_consecutive(self, ref: TableRef, state: JobState) -> int:
        """How many of the table's last jobs ended so, up to now."""
        ...


class LoopStore(Protocol):
    """What loops of many processes share."""

    def claim_catalogs(self, names: Sequence[str], holder: str, now: datetime, until: datetime) -> Sequence[CatalogRow]:
        """Those of the catalogs whose turn it is to be asked, for this process until then."""
        ...

    def record_catalog_read(self, name: str, began: datetime, now: datetime, detect_at: datetime) -> None:
        """The catalog answered, and is asked again then; sooner, if somebody asked for that since it was begun."""
        ...

    def record_catalog_failure(self, name: str, error: str, detect_at: datetime) -> None:
        """The catalog could not be read, and is tried again then."""
        ...

    def detect_soon(self, names: Sequence[str], now: datetime) -> None:
        """Ask these catalogs at the next opportunity."""
        ...

    def record_policy_applied(self, name: str, fingerprint: str, now: datetime) -> None:
        """The catalog's tables have been held against the policy of this fingerprint."""
        ...

    def record_cutoff_applied(self, name: str, instant: str, now: datetime) -> None:
        """Vacuum has acted on this instant as the catalog's cut-off, and will not again."""
        ...

    def claim_evaluations(
        self, catalogs: Sequence[str], holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[TableRow]:
        """Tables that are to be evaluated now, for this process until then."""
        ...

    def schedule_evaluation(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        """When tables are to be evaluated next; None: not before they move."""
        ...

    def clear_due_work(self, refs: Sequence[TableRef], at: datetime | None) -> None:
        """Nothing is known to be due of tables, or wrong with them; when they are evaluated next is as `look_again`."""
        ...

    def acquire_lease(self, name: str, holder: str, now: datetime, until: datetime) -> str:
        """Take or renew what one process alone does at a time; says who holds it now, blank: nobody any more."""
        ...

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease of this holder; another holder's is left alone. May be repeated."""
        ...

    def record_heartbeat(self, row: ProcessRow) -> None:
        """Insert or update the heartbeat of a process. May be repeated."""
        ...

    def release_claims_of_ended(self, dead: Callable[[str], bool]) -> None:
        """Free the catalogs and tables that ended processes had claimed to read."""
        ...

    def deregister(self, holders: Sequence[str]) -> None:
        """Remove processes that have ended. May be repeated."""
        ...

    def set_pool_limit(self, name: str, limit: int, now: datetime) -> None:
        """Adapt how many jobs a pool is given."""
        ...
