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
    """Deletions, written down before they happen."""

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
        """Write down files that an operation plans to delete; durable when the call returns.

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
        """Orphans that scans of the table of this uuid have found and not deleted, with the time of the first."""
        ...

    def forget_orphans(self, ref: TableRef, paths: Iterable[str]) -> None:
        """Findings that a later scan did not repeat."""
        ...

    def export_deletions(self, job_id: str) -> str:
        """Write what the ledger says of a job as a Parquet file; says where it is, or why there is none."""
        ...

    def set_commit_intent(self, job_id: str, intent: Intent | None) -> None:
        """Write down a commit that must be looked after, or with None that it was; durable when the call returns."""
        ...

    def commit_intent(self, job_id: str) -> Intent | None:
        """The commit of a job that nobody has looked after."""
        ...

    def unfinished(self, now: datetime) -> Sequence[Unfinished]:
        """Deletions that are due of jobs that do not run any more, and commits of theirs that nobody looked after."""
        ...

    def pending_deletions(self, ref: TableRef | None = None) -> Sequence[WaitingDeletions]:
        """Files that are still to be deleted, job by job, the oldest first."""
        ...

    def later_deletions(self, job_id: str, since: datetime) -> Mapping[str, Mapping[str, str]]:
        """Files of the table that other jobs planned since then and did not leave alone: path and state by job."""
        ...

    def waiting_paths(self, ref: TableRef) -> Sequence[str]:
        """The paths of a table's files that some job is still to delete, or that an undo is about to take back."""
        ...

    def abandon_deletions(self, job_id: str, now: datetime) -> int:
        """Leave the waiting files of a job where they are, for good; returns how many."""
        ...

    def begin_undo(self, job_id: str) -> Mapping[str, int]:
        """Take the waiting files of a job from whoever would delete them; returns how many of each state there were.

        One transaction. When any file of the job is deleted, or an attempt has begun, nothing changes.
        """
        ...

    def end_undo(self, job_id: str, now: datetime, *, undone: bool, in_use: Collection[str] = ()) -> None:
        """Settle the files that `begin_undo` took: undone for good, or waiting as before.

        `in_use` are paths of those that something else needs: they stay for good, whoever proved otherwise before.
        """
        ...

    def unfinished_undos(self) -> Sequence[str]:
        """The jobs whose undo has begun and has not ended."""
        ...

    def record_removal(self, removal: Removal) -> None:
        """Write down what a commit is about to remove from a table's metadata; durable when the call returns."""
        ...

    def removals(self, job_id: str) -> Sequence[Removal]:
        """What the commits of a job removed, in their order."""
        ...

    def close_removal(self, removal: Removal, undone_at: datetime | None) -> None:
        """Write down that a removal was undone, or with None that its commit came to nothing."""
        ...


class Registrations(Protocol):
    """Every table that any catalog was ever seen to name."""

    def registrations(self) -> Sequence[Registration]:
        """All of them: those of now and former ones."""
        ...

    def registration(self, ref: TableRef, table_uuid: str) -> Registration | None:
        """One of them; None when the table was never read under this name."""
        ...

    def register(self, registrations: Sequence[Registration], now: datetime) -> None:
        """Write down tables as they were read. Places and folders that were known before stay known."""
        ...

    def adopted(self, table_uuid: str) -> frozenset[str]:
        """What a person has said to be this table's own: uuids of earlier tables, places, metadata files."""
        ...

    def adopt(self, table_uuid: str, what: Iterable[str], author: str, now: datetime) -> None:
        """Write down what a person said to be this table's own."""
        ...


class StoreReader(AlertReader, MeasureReader, Views, Protocol):
    """What is known; the planner gets this and cannot write."""

    def tables(self, catalog: str | None = None) -> Sequence[TableRow]:
        """Every table, or those of one catalog; dropped ones too."""
        ...

    def table(self, ref: TableRef) -> TableRow | None:
        """Return the row of a table, or None when it is unknown."""
        ...

    def history(self, ref: TableRef, table_uuid: str) -> History:
        """The last run of each operation on the table of this uuid; of an earlier one of the name nothing counts."""
        ...

    def work_done(self, since: datetime, most: int) -> Sequence[tuple[Operation, Mapping[str, float]]]:
        """Metrics of the newest runs that did their work, so many of each operation, and one of them for each table."""
        ...

    def evaluation(self, ref: TableRef) -> Mapping[str, Any] | None:
        """The last evaluation as JSON, for people."""
        ...

    def jobs(self, ref: TableRef | None = None, limit: int = 50) -> Sequence[JobRow]:
        """Return jobs, of one table or of all, newest first."""
        ...

    def job(self, job_id: str) -> JobRow | None:
        """One job by its id or a unique beginning of it."""
        ...

    def runs(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """The operations of a job with metrics, statements, before and after."""
        ...

    def deleted_files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """What the ledger says of a job."""
        ...

    def pins(self, ref: TableRef, table_uuid: str) -> Sequence[SnapshotPin]:
        """Held snapshots of the table of this uuid, aged-out pins too."""
        ...

    def events(self, job_id: str | None = None, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Activities, newest first; of one job all of them, in their order."""
        ...

    def candidates(self, catalogs: Sequence[str]) -> Sequence[Candidate]:
        """Tables with something due, by their last evaluation; the flow adds what only configuration knows."""
        ...

    def planned_from(self) -> Hashable:
        """Changes with all that candidates, usage and pools' limits are read from; cheap to ask."""
        ...

    def usage(self, day: datetime) -> Usage:
        """What is queued or runs, and the GB-hours spent since the day began."""
        ...

    def catalogs(self) -> Sequence[CatalogRow]:
        """Every catalog that was ever asked."""
        ...

    def processes(self) -> Sequence[ProcessRow]:
        """Services and workers, those too whose heartbeat has stopped."""
        ...

    def pool_limits(self) -> Mapping[str, int]:
        """How many jobs each pool is given now, where that was adapted."""
        ...

    def rules(self) -> Sequence[PolicyRule]:
        """Policy rules that were set through the command line or API."""
        ...


class Store(
    StoreReader, DeletionLedger, Registrations, JobQueue, LoopStore, EventStore, AlertStore, AccessStore, Protocol
):
    """The state store: every port that keeps state, over one database."""

    def record_catalog_listing(self, catalog: str, pointers: Sequence[Pointer], now: datetime) -> int:
        """Write down what a catalog lists: new, moved and dropped tables. Returns how many moved or are new."""
        ...

    def record_evaluation(self, evaluation: Evaluation, now: datetime, policy: str = "") -> None:
        """Write down an evaluation that began `now`, and the fingerprint of the policy, without table properties.

        One that began later and was done sooner stays.
        """
        ...

    def record_unreadable(self, ref: TableRef, error: str, now: datetime) -> None:
        """A table whose evaluation failed whole, with the reason."""
        ...

    def record_run(self, run: RunRow, ref: TableRef) -> None:
        """Write down one operation's outcome."""
        ...

    def record_work(self, catalog: str, outcome: Outcome) -> None:
        """Count what somebody finished of a run that had ended without a word."""
        ...

    def pause(self, ref: TableRef, reason: str | None) -> bool:
        """Pause a table with a reason, or resume it with None; False when the table is unknown."""
        ...

    def pin(self, ref: TableRef, table_uuid: str, pin: SnapshotPin, *, job_id: str | None = None) -> bool:
        """Hold a snapshot; a reader's earlier pin moves.

        False when the table is unknown, or another job than `job_id` works on it: an expiry may be about to commit.
        """
        ...

    def unpin(self, ref: TableRef, reader: str) -> bool:
        """Release a reader's pin; False when it has none."""
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
        """A new version of a rule; nothing set takes it back. None when the newest is not the one `expected`."""
        ...
