"""Jobs: their queue, what the planner reads, and the record of their runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from icewright.core.capacity import Candidate, Usage
from icewright.core.errors import FaultOwner
from icewright.core.plan import Deferred, PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import History, JobState, Outcome
from icewright.core.table import TableRef
from icewright.ports.rows import JobRow, LeaseStatus, RunRow, Trigger

JOB_LEASE = timedelta(seconds=120)  # a running job without a heartbeat for longer has lost its table


class JobQueue(Protocol):
    """Jobs, queued and running. A table has one open job at most, from the moment that the job is queued.

    Each change is one transaction and a compare-and-set: of two processes that want a table or a job, one gets it.
    All methods raise `StoreUnavailable` while the store does not answer; then the change may have been made.
    """

    def enqueue(
        self, planned: PlannedJob, trigger: Trigger, now: datetime, options: Mapping[str, Any] | None = None
    ) -> str | None:
        """Queue a job for a worker. Return its id, or None when the table is unknown, dropped or has an open job."""

    def dequeue(self, holder: str, catalogs: Sequence[str], now: datetime, limit: int) -> Sequence[JobRow]:
        """Start at most `limit` queued jobs of these catalogs as jobs of the process `holder`.

        The highest priority comes first; of one priority the best score.

        Jobs that another process is taking at this moment are skipped, not waited for.
        """

    def promote(self, queued_before: datetime) -> None:
        """Give jobs that were queued before then, and still are, priority over newer planned ones. May be repeated."""

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
        """Start a job at once. Return its id, or None when the table is unknown or another job has it.

        A queued job is cancelled to make room; a queued manual one only for another manual job.
        """

    def heartbeat(self, job_id: str, now: datetime) -> LeaseStatus:
        """Renew the lease of a running job. Return the lease's status. May be repeated."""

    def finish(
        self, job_id: str, state: JobState, summary: str, now: datetime, fault: FaultOwner | None = None
    ) -> None:
        """End a job and release its table; a job that has ended keeps its state. May be repeated.

        `fault` names who caused a failure or a deferral; None means the table, or nobody.
        """

    def charge(self, job_id: str, gb_hours: float) -> None:
        """Record what the work of a job without operations took so far, which budgets count. May be repeated."""

    def record_result(self, job_id: str, document: Mapping[str, Any]) -> None:
        """Record what a job found or made, as JSON, in place of what was recorded before. May be repeated."""

    def result(self, job_id: str) -> Mapping[str, Any] | None:
        """Return what `record_result` recorded; None without it, and once the job is archived."""

    def end_interrupted(self, now: datetime, dead: Callable[[str], bool]) -> Sequence[JobRow]:
        """End running jobs whose lease expired or whose holder is `dead`, and return them.

        In the same transaction their tables are released and become due for evaluation. A lease from before the clock
        was set back begins anew.
        """

    def request_cancel(self, job_id: str, now: datetime) -> bool:
        """Ask a running job to stop, or end a queued one at once. Return False when the job has ended already."""

    def queued(self, catalogs: Sequence[str]) -> Sequence[JobRow]:
        """Return the queued jobs on tables of these catalogs, oldest first."""

    def count_consecutive(self, ref: TableRef, state: JobState) -> int:
        """Return how many of the table's newest jobs ended in this state in a row, 50 at most.

        Cancelled jobs, jobs whose `fault` is not the table's, jobs before the table was last resumed, and jobs on an
        earlier table of the same name do not count.
        """

    def get(self, job_id: str) -> JobRow | None:
        """Return the job of this id, of this unique prefix of an id or of the part after its last dash, or None."""

    def list(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Return the newest jobs of one table, or of all tables, newest first."""


class PlanningState(Protocol):
    """The input of the planner, and the reasons for which the last plan left work waiting."""

    def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
        """Return the tables of these catalogs with due operations, as their last evaluation found them.

        Pool and scope are empty: they are configuration, which the store does not have.
        """

    def usage(self, day: datetime) -> Usage:
        """Return the queued and running jobs, and the GB-hours spent since `day`, by pool and by catalog."""

    def change_token(self) -> Hashable:
        """Return a value that changes with everything that `candidates`, `usage` and `pool_limits` depend on."""

    def record_deferred(self, deferred: Sequence[Deferred]) -> None:
        """Replace the reasons and queue positions of due operations that did not start. May be repeated."""

    def pool_limits(self) -> Mapping[str, int]:
        """Return the number of concurrent jobs of each pool whose limit was adapted, by name of the pool."""

    def set_pool_limit(self, name: str, limit: int, now: datetime) -> None:
        """Set the number of concurrent jobs of a pool. May be repeated."""


class RunHistory(Protocol):
    """The record of operations that jobs ran."""

    def record(self, run: RunRow, ref: TableRef) -> None:
        """Record the outcome of one operation of a job, and add its metrics to the counters, in one transaction.

        May be repeated: a run of the same job, operation and end is recorded once.
        """

    def record_resumed(self, catalog: str, outcome: Outcome) -> None:
        """Add to the counters the work that a later process finished of an interrupted run. Not to be repeated."""

    def list(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the operations of a job in their order, with metrics, statements, and the table before and after."""

    def history(self, ref: TableRef, table_uuid: str) -> History:
        """Return the last run of each operation on the table of this uuid; an earlier table's runs do not count."""

    def work_done(
        self, catalogs: Sequence[str], since: datetime, tables: int, each: int
    ) -> Sequence[tuple[Operation, Mapping[str, float]]]:
        """Return the metrics of committed runs since then in the catalogs, the newest first.

        Of each operation there are the newest runs, `each` of a table, of as many tables as last had one.
        """
