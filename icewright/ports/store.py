"""What is known of tables, jobs and deletions."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from icewright.core.layering import PolicyRule
from icewright.core.plan import Candidate, Usage
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, History, Outcome
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation
from icewright.ports.access import AccessStore
from icewright.ports.alerts import AlertReader, AlertStore
from icewright.ports.engine import Intent, Unfinished
from icewright.ports.events import EventStore
from icewright.ports.lake import Pointer
from icewright.ports.measures import MeasureReader
from icewright.ports.queue import JobQueue, LoopStore
from icewright.ports.rows import (
    CatalogRow,
    JobRow,
    ProcessRow,
    Registration,
    Removal,
    RunRow,
    SnapshotPin,
    TableRow,
    WaitingDeletions,
)
from icewright.ports.views import Views


class DeletionLedger(Protocol):
    """The ledger of deletions: each file is recorded durably before anything deletes it."""

    def plan_deletions(
        self,
        job_id: str,
        ref: TableRef,
        files: Iterable[FileAction],
        state: str,
        now: datetime,
        delete_after: datetime | None = None,
        operation: Operation | None = None,
    ) -> None:
        """Record files that an operation plans to delete; durable when the call returns.

        `delete_after`: none of them is deleted before then.
        """
        ...

    def claim_deletions(self, job_id: str, paths: Sequence[str]) -> frozenset[str]:
        """Claim waiting files of a job for an attempt to delete them; returns those that may be deleted.

        One transaction: a file that somebody undoes, or gives up, at the same time is either claimed here or theirs.
        """
        ...

    def record_deletions(
        self, job_id: str, paths: Mapping[str, str], now: datetime, reasons: Mapping[str, str] | None = None
    ) -> None:
        """Set the state of waiting files by path, and why they are still there.

        A failed one waits for its next attempt, longer after each failure.
        """
        ...

    def found_orphans(self, ref: TableRef, table_uuid: str) -> Mapping[str, datetime]:
        """Return orphans that scans of this table uuid found and did not delete: path and first time."""
        ...

    def forget_orphans(self, ref: TableRef, paths: Iterable[str]) -> None:
        """Delete findings that a later scan did not repeat. May be repeated."""
        ...

    def export_deletions(self, job_id: str) -> str:
        """Export the ledger of a job as a Parquet file; says where it is, or why there is none."""
        ...

    def set_commit_intent(self, job_id: str, intent: Intent | None) -> None:
        """Record a commit that must be checked afterwards, or None when it was; durable when the call returns."""
        ...

    def commit_intent(self, job_id: str) -> Intent | None:
        """Return the commit of a job that nobody has checked yet, or None."""
        ...

    def unfinished(self, now: datetime) -> Sequence[Unfinished]:
        """Return due deletions of jobs that have ended, and commits of theirs that nobody has checked."""
        ...

    def pending_deletions(self, ref: TableRef | None = None) -> Sequence[WaitingDeletions]:
        """Return files that wait to be deleted, summed by job, oldest first."""
        ...

    def later_deletions(self, job_id: str, since: datetime) -> Mapping[str, Mapping[str, str]]:
        """Return files of the table that other jobs planned since then: state by path, by job."""
        ...

    def waiting_paths(self, ref: TableRef) -> Sequence[str]:
        """Return the paths of a table that some job is still to delete, or that an undo is restoring."""
        ...

    def abandon_deletions(self, job_id: str, now: datetime) -> int:
        """Give up the waiting deletions of a job for good; returns how many files stay."""
        ...

    def begin_undo(self, job_id: str) -> Mapping[str, int]:
        """Take the waiting files of a job from whoever would delete them; returns the number of files by state.

        One transaction. When any file of the job is deleted, or an attempt has begun, nothing changes.
        """
        ...

    def end_undo(self, job_id: str, now: datetime, *, undone: bool, in_use: Collection[str] = ()) -> None:
        """Settle the files that `begin_undo` took: undone for good, or waiting as before. May be repeated.

        `in_use` are paths of those that something else needs: they stay for good, whoever proved otherwise before.
        """
        ...

    def unfinished_undos(self) -> Sequence[str]:
        """Return the jobs whose undo has begun and has not ended."""
        ...

    def record_removal(self, removal: Removal) -> None:
        """Record what a commit is about to remove from a table's metadata; durable when the call returns."""
        ...

    def removals(self, job_id: str) -> Sequence[Removal]:
        """Return what the commits of a job removed, in their order."""
        ...

    def close_removal(self, removal: Removal, undone_at: datetime | None) -> None:
        """Record that a removal was undone, or with None that its commit never landed."""
        ...


class Registrations(Protocol):
    """Every table that any catalog was ever seen to name, with its places."""

    def registrations(self) -> Sequence[Registration]:
        """Return all registrations: those of now and former ones."""
        ...

    def registration(self, ref: TableRef, table_uuid: str) -> Registration | None:
        """Return one registration; None when the table was never read under this name."""
        ...

    def register(self, registrations: Sequence[Registration], now: datetime) -> None:
        """Record tables as they were read. Places and folders that were known before stay known. May be repeated."""
        ...

    def adopted(self, table_uuid: str) -> frozenset[str]:
        """Return what a person declared to be this table's own: uuids, places, metadata files."""
        ...

    def adopt(self, table_uuid: str, what: Iterable[str], author: str, now: datetime) -> None:
        """Record what a person declared to be this table's own. May be repeated."""
        ...


class StoreReader(AlertReader, MeasureReader, Views, Protocol):
    """Read access to all state; the planner gets this and cannot write."""

    def tables(self, catalog: str | None = None) -> Sequence[TableRow]:
        """Return every table, or those of one catalog; dropped ones too."""
        ...

    def table(self, ref: TableRef) -> TableRow | None:
        """Return the row of a table, or None when it is unknown."""
        ...

    def history(self, ref: TableRef, table_uuid: str) -> History:
        """Return the last run of each operation on the table of this uuid; an earlier table's do not count."""
        ...

    def work_done(self, since: datetime, most: int) -> Sequence[tuple[Operation, Mapping[str, float]]]:
        """Return metrics of the newest runs that did work: at most so many of each operation, one a table."""
        ...

    def evaluation(self, ref: TableRef) -> Mapping[str, Any] | None:
        """Return the last evaluation as JSON, or None."""
        ...

    def jobs(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Return jobs, of one table or of all, newest first."""
        ...

    def job(self, job_id: str) -> JobRow | None:
        """Return a job by its id or a unique prefix of it, or None."""
        ...

    def runs(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the operations of a job with metrics, statements, before and after."""
        ...

    def deleted_files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the files of a job in the ledger, with their states."""
        ...

    def pins(self, ref: TableRef, table_uuid: str) -> Sequence[SnapshotPin]:
        """Return the pinned snapshots of the table of this uuid, expired pins too."""
        ...

    def events(self, job_id: str | None = None, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Return events, newest first; of one job all of them, in their order."""
        ...

    def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
        """Return tables with due operations, by their last evaluation; the flow adds what configuration says."""
        ...

    def planned_from(self) -> Hashable:
        """Return a value that changes with everything that candidates, usage and pool limits are read from."""
        ...

    def usage(self, day: datetime) -> Usage:
        """Return what is queued or runs, and the GB-hours spent since the day began."""
        ...

    def catalogs(self) -> Sequence[CatalogRow]:
        """Return every catalog that was ever listed."""
        ...

    def processes(self) -> Sequence[ProcessRow]:
        """Return services and workers, also those whose heartbeat has stopped."""
        ...

    def pool_limits(self) -> Mapping[str, int]:
        """Return the concurrency limit of each pool whose limit was adapted."""
        ...

    def rules(self) -> Sequence[PolicyRule]:
        """Return the policy rules that were set through the command line or API."""
        ...


class Store(
    StoreReader, DeletionLedger, Registrations, JobQueue, LoopStore, EventStore, AlertStore, AccessStore, Protocol
):
    """The state store: every port that keeps state, over one database."""

    def record_catalog_listing(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        """Record what a catalog lists: new, moved and dropped tables. Returns how many are new or moved."""
        ...

    def record_evaluation(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        """Record an evaluation that began `now`, and the fingerprint of the policy, without table properties.

        One that began later and was done sooner stays.
        """
        ...

    def record_unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        """Record that the evaluation of a table failed as a whole, with the reason."""
        ...

    def record_run(self, run: RunRow, ref: TableRef) -> None:
        """Record the outcome of one operation of a job. May be repeated."""
        ...

    def record_work(self, catalog: str, outcome: Outcome) -> None:
        """Count what a later process finished of an interrupted run."""
        ...

    def pause(self, ref: TableRef, reason: str | None) -> bool:
        """Pause a table with a reason, or resume it with None; returns False when the table is unknown."""
        ...

    def pin(self, ref: TableRef, table_uuid: str, pin: SnapshotPin, *, job_id: str | None = None) -> bool:
        """Pin a snapshot for a reader; an earlier pin of the reader moves.

        False when the table is unknown, or another job than `job_id` works on it: an expiry may be about to commit.
        """
        ...

    def unpin(self, ref: TableRef, reader: str) -> bool:
        """Release a reader's pin; returns False when there is none."""
        ...

    def record_event(self, kind: str, now: datetime, ref: TableRef | None = None, **details: Any) -> None:  # noqa: ANN401
        """Append an event to the activity log."""
        ...

    def set_rule(self, rule: PolicyRule, author: str, now: datetime) -> None:
        """Store a policy rule; earlier versions are kept."""
        ...

    def put_rule(
        self, match: tuple[str, ...], settings: Mapping[str, Any], author: str, now: datetime, expected: int | None
    ) -> int | None:
        """Store a new version of a rule, or its end; None when the newest is not the one `expected`."""
        ...
