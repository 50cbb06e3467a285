"""Job states and their transitions, outcomes of operations, and the waits between attempts."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from icewright.core.effective import Knobs
from icewright.core.errors import FaultOwner
from icewright.core.partitions import PartitionKey
from icewright.core.policy import Operation
from icewright.core.steps import RetainedSnapshot
from icewright.core.table import TableMetadata


class JobState(enum.StrEnum):
    """The state of a job, from queued to ended."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # its process died; the reconciler ends the job


_ENDED = frozenset(JobState) - {JobState.QUEUED, JobState.RUNNING}
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: _ENDED,
    **dict.fromkeys(_ENDED, frozenset()),
}


class OperationState(enum.StrEnum):
    """The final state of one operation of a job."""

    COMMITTED = "committed"
    SKIPPED = "skipped"
    FAILED = "failed"
    DEFERRED = "deferred"


JOB_ID = "icewright.job-id"  # in the summary of snapshots that a job made
REFUSED = "refused"  # prefix of the reason when a safety rule stopped an operation
VERIFICATION_FAILED = "verification failed"  # prefix of the reason when a table is paused because rows were lost


@dataclass(frozen=True, slots=True)
class FileAction:
    """A file that an operation rewrites or deletes; `kind` is its content, such as data or manifest."""

    path: str
    bytes: int | None
    kind: str
    modified: datetime | None = None  # last-modified time in storage when the file was chosen


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The data files that a rewrite took out of a partition and put into it."""

    partition: str  # as people know it: `day=2026-01-01/region=eu`
    key: str  # spec id and canonical text of the tuple: `0 ["eu"]`
    files_in: int
    bytes_in: int
    files_out: int
    bytes_out: int
    # rewritten to apply deletes: its sizes were not what was to be mended
    by_deletes: bool = field(default=False, kw_only=True)
    branch: str | None = field(default=None, kw_only=True)  # None: main


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one operation; `METRICS` lists the keys of `metrics` for each operation."""

    operation: Operation
    state: OperationState
    reason: str = ""  # why nothing was done, or what went wrong
    summary: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: tuple[FileAction, ...] = ()
    statements: tuple[str, ...] = ()  # SQL that was run, for the record
    notes: tuple[str, ...] = ()
    retained: tuple[RetainedSnapshot, ...] = ()  # old snapshots that stay, each with what retains it
    partitions: tuple[PartitionChange, ...] = ()
    tried: bool = True  # False: the verdict was not due, so nothing ran
    fault: FaultOwner | None = None  # whose fault a failure or deferral was


def committed(
    operation: Operation, summary: str, metrics: Mapping[str, float], files: tuple[FileAction, ...] = (), **more: Any
) -> Outcome:
    """Return the outcome of an operation that committed its work."""
    return Outcome(operation, OperationState.COMMITTED, summary=summary, metrics=metrics, files=files, **more)


def skipped(operation: Operation, reason: str, **more: Any) -> Outcome:
    """Return the outcome of an operation that found nothing to do, for a typed reason."""
    return Outcome(operation, OperationState.SKIPPED, reason=reason, summary=reason, **more)


def failed(operation: Operation, reason: str, **more: Any) -> Outcome:
    """Return the outcome of an operation that did not do its work."""
    return Outcome(operation, OperationState.FAILED, reason=reason, summary=f"failed: {reason}", **more)


def deferred(operation: Operation, reason: str, fault: FaultOwner | None = None) -> Outcome:
    """Return the outcome of an operation that gave way and is tried again later."""
    return Outcome(operation, OperationState.DEFERRED, reason=reason, summary=f"deferred: {reason}", fault=fault)


TIME_AND_COST = {
    "duration_ms": "wall time",
    "gb_hours": "memory reserved over the time: Spark's is that of driver and executors, shared among jobs of one time",
    "gb_hours_driver": "of these what Spark's driver reserved; the rest is that of executors and of the service",
    "gb_hours_used": "of these what Spark's tasks used: their run time times the memory of a core",
    "money": "these GB-hours at `pools.*.gb_hour_price` or `limits.gb_hour_price`, where a price is configured",
    "gb_hours_predicted": "as the plan predicted",
    "cost_factor": "by which earlier runs had corrected the prediction",
}
_SAVED = {
    "files_predicted": "files that the plan predicted to save",
    "benefit_factor": "by which earlier runs had corrected that prediction",
}


def job_state(outcomes: tuple[Outcome, ...]) -> JobState:
    """Return the state of a whole job: partial when an operation, a deletion or a check of files failed."""
    states = {o.state for o in outcomes}
    worked = OperationState.COMMITTED in states or any(o.metrics.keys() - TIME_AND_COST.keys() for o in outcomes)
    if states == {OperationState.FAILED} and not worked:
        return JobState.FAILED
    incomplete = any(o.metrics.get("files_failed") or o.metrics.get("faults_found") for o in outcomes)
    if OperationState.FAILED in states or incomplete or (OperationState.DEFERRED in states and worked):
        return JobState.PARTIAL
    return JobState.SUCCEEDED if OperationState.COMMITTED in states else JobState.SKIPPED


def job_fault(outcomes: tuple[Outcome, ...]) -> FaultOwner | None:
    """Return whose fault the failures and deferrals of a job were, the table's before all others."""
    faults = [outcome.fault for outcome in outcomes if outcome.fault is not None]
    return FaultOwner.TABLE if FaultOwner.TABLE in faults else next(iter(faults), None)


def job_summary(outcomes: tuple[Outcome, ...]) -> str:
    """Return the operations' summaries in the order in which they ran."""
    return "; ".join(f"{o.operation}: {o.summary}" for o in outcomes)


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of one operation on one table, as recorded."""

    operation: Operation
    finished: datetime
    state: OperationState
    metadata_location: str = ""  # of the table as the run left it
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    policy: str = ""  # fingerprint of the settings of the run; blank: not known
    rewritten: Mapping[PartitionKey, datetime] = field(default_factory=dict)  # when a run last rewrote it on main
    rewritten_on: Mapping[str, Mapping[PartitionKey, datetime]] = field(default_factory=dict)  # by other branch
    worked: datetime | None = None  # when this or an earlier run last did work
    recent: Sequence[Mapping[str, float]] = ()  # metrics of the last that did work, newest first; failures erase none

    @property
    def learned(self) -> Mapping[str, float]:
        """Return the metrics of the last run that did work."""
        return self.recent[0] if self.recent else {}

    def leaves_nothing(self, metadata: TableMetadata, knobs: Knobs) -> bool:
        """Return whether another run would find nothing: it was complete, and policy and table are unchanged.

        A run that left files behind, because the commit of a file group was lost, is not complete.
        """
        complete = self.state in (OperationState.COMMITTED, OperationState.SKIPPED)
        complete = complete and not self.metrics.get("files_left")
        same_policy = self.policy in ("", knobs.fingerprint)
        return complete and same_policy and self.metadata_location == metadata.metadata_location

    def on_branch(self, branch: str) -> LastRun:
        """Return the run as one of a branch other than main."""
        return replace(self, rewritten=self.rewritten_on.get(branch, {}))

    def for_manual_request(self) -> LastRun:
        """Return the run for a manual request: the learned metrics stay, the cooldown does not count."""
        return LastRun(self.operation, self.finished, self.state, recent=self.recent)


History = Mapping[Operation, LastRun]

METRICS: Mapping[Operation, Mapping[str, str]] = {
    Operation.EXPIRE_ROWS: {
        "rows_deleted": "rows deleted",
        "files_deleted": "data files that went whole",
        "files_rewritten": "data files that were rewritten without their old rows",
        **TIME_AND_COST,
    },
    Operation.COMPACT: {
        "files_merged": "data files rewritten",
        "files_written": "data files written",
        "bins": "file groups",
        "bins_by_spark": "file groups that the Arrow engine left to Spark's own",
        "files_left": "files that were planned and not rewritten, as their commit was lost or a filter left them out",
        "bytes_rewritten": "bytes of the rewritten files",
        "delete_files_removed": "delete files that apply to nothing any more and are gone",
        **TIME_AND_COST,
        **_SAVED,
    },
    Operation.REWRITE_DELETES: {
        "files_rewritten": "position and equality delete files rewritten",
        "files_written": "position delete files and deletion vectors written",
        "rows_marked": "rows that equality deletes named, and vectors or position deletes name instead",
        "bytes_written": "bytes of vectors and position deletes in the place of equality deletes",
        **TIME_AND_COST,
        **_SAVED,
    },
    Operation.REWRITE_MANIFESTS: {
        "manifests_rewritten": "manifests rewritten",
        "manifests_written": "manifests written",
        "entries_total": "entries in the written manifests",
        **TIME_AND_COST,
        **_SAVED,
    },
    Operation.COMPUTE_STATISTICS: {
        "columns_counted": "columns whose distinct values were counted",
        "partitions_counted": "partitions whose files and rows were counted",
        "files_read": "data files read: only new ones where nothing was deleted since the last statistics",
        "bytes_read": "bytes of the read files, of all columns",
        "rows_read": "rows in the read files, deleted ones included",
        "bytes_written": "bytes of the statistics files",
        **TIME_AND_COST,
    },
    Operation.RECOVERY_POINTS: {
        "points_made": "tags made on states of the table",
        "points_retired": "tags retired, whose times are past or covered by others",
        **TIME_AND_COST,
    },
    Operation.EXPIRE_SNAPSHOTS: {
        "snapshots_expired": "snapshots removed from the metadata",
        "refs_removed": "tags and branches that outlived their age",
        "files_deleted": "files deleted, of every kind",
        "files_failed": "files that could not be deleted: the job is partial",
        "bytes_deleted": "bytes of the deleted files",
        "files_waiting": "files that wait for the end of `deletion.delay_hours`",
        "bytes_waiting": "bytes of the waiting files",
        **TIME_AND_COST,
        **_SAVED,
    },
    Operation.REMOVE_ORPHANS: {
        "orphans_found": "old files that nothing of the table reaches",
        "orphans_removed": "orphans deleted",
        "files_failed": "orphans that could not be deleted: the job is partial",
        "bytes_deleted": "bytes of the deleted files",
        "files_waiting": "orphans that wait for the end of `deletion.delay_hours`",
        "bytes_waiting": "bytes of the waiting orphans",
        "files_scanned": "files listed",
        "every_hours": "time between two scans by which this one ran",
        **TIME_AND_COST,
    },
    Operation.CHECK: {
        "faults_found": "files at fault: the job is partial, and the alert `check_failed` is raised",
        "files_checked": "files looked at, of every kind",
        "snapshots_checked": "snapshots whose files these are",
        "files_read": "data and delete files whose footers, or rows, were read",
        "bytes_read": "bytes of the files whose rows were read",
        "files_unread": "data and delete files that could not be read as deep as the level asks",
        "level": "how deep: 0 exists, 1 entries, 2 footers, 3 rows",
        "sequence_number": "the table's last sequence number then, from which the next check goes on",
        "full_hours": "how old the last check was that read all; 0: this one did",
        **TIME_AND_COST,
    },
}


def backoff(attempt: int) -> timedelta:
    """Return how long to wait before the attempt of this number (from 1): 50 ms, 100 ms, 200 ms ... at most 5 s."""
    return timedelta(milliseconds=min(5000, 50 * 2 ** (attempt - 1)))


def retry_delay(failures: int, interval: timedelta, most: timedelta) -> timedelta:
    """Return how long to wait after so many failures in a row: the interval, doubled with each, at most `most`."""
    doubled: timedelta = interval * 2 ** min(failures - 1, 20)
    return max(interval, min(most, doubled))
