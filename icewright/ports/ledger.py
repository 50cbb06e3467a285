"""The deletion ledger: each file is recorded durably before anything deletes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from icewright.core.policy import Operation
from icewright.core.runs import FileAction
from icewright.core.table import TableRef
from icewright.ports.engine import Intent, Unfinished
from icewright.ports.rows import Removal, WaitingDeletions


class DeletionLedger(Protocol):
    """Files that jobs plan to delete, and commits that let go of them.

    Each change is one transaction, durable when the call returns. The states are those of `LedgerState`; a *waiting*
    file is one that is planned, being deleted or failed. All methods raise `StoreUnavailable` while the store does
    not answer; then the change may have been made.
    """

    def plan(
        self,
        job_id: str,
        ref: TableRef,
        files: Iterable[FileAction],
        state: str,
        now: datetime,
        delete_after: datetime | None = None,
        operation: Operation | None = None,
    ) -> None:
        """Record files that an operation of a job plans to delete, not before `delete_after`.

        May be repeated: files that wait already, from an attempt at the same commit, stay as they are.
        """

    def claim(self, job_id: str, paths: Sequence[str]) -> frozenset[str]:
        """Claim waiting files of a job for an attempt to delete them. Return the paths that may be deleted.

        A file that is undone or given up at the same time is either claimed here or there. May be repeated.
        """

    def record(
        self, job_id: str, paths: Mapping[str, str], now: datetime, reasons: Mapping[str, str] | None = None
    ) -> None:
        """Set the state of waiting files by path, and the reasons why files are still there. May be repeated.

        A failed file waits for its next attempt, longer after each failure in a row, for a day at most. A file that
        was given up while an attempt at it was under way may be deleted all the same: then its state says so.
        """

    def found_orphans(self, ref: TableRef, table_uuid: str) -> Mapping[str, datetime]:
        """Return the orphans that scans of this table uuid found and did not delete: first time found, by path."""

    def forget_orphans(self, ref: TableRef, paths: Iterable[str]) -> None:
        """Delete findings that a later scan did not confirm. May be repeated."""

    def export(self, job_id: str) -> str:
        """Export the files of a job as Parquet. Return a sentence: where the export is, or why there is none."""

    def files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the files of a job with path, bytes, kind, state, modified, delete_after and reason, by path."""

    def set_commit_intent(self, job_id: str, intent: Intent | None) -> None:
        """Record the commit that a job is about to make, or None once its result is known. May be repeated."""

    def commit_intent(self, job_id: str) -> Intent | None:
        """Return the commit of a job whose result nobody has checked yet, or None."""

    def unfinished(self, now: datetime) -> Sequence[Unfinished]:
        """Return what jobs that no longer run left behind: due deletions by operation, and unchecked commits."""

    def pending(self, ref: TableRef | None = None) -> Sequence[WaitingDeletions]:
        """Return waiting files of one table or of all, summed by job and operation, oldest job first."""

    def later_deletions(self, job_id: str, since: datetime) -> Mapping[str, Mapping[str, str]]:
        """Return files of the job's table that other jobs planned since then: state by path, by id of the job.

        Those of the table's other names count too.
        """

    def waiting_paths(self, ref: TableRef, table_uuid: str = "") -> Sequence[str]:
        """Return the paths of a table that a job is still to delete, or that an undo is restoring.

        With its uuid, those of earlier names too.
        """

    def abandon(self, job_id: str, now: datetime) -> int:
        """Give up the waiting deletions of a job for good. Return how many files stay."""

    def begin_undo(self, job_id: str) -> Mapping[str, int]:
        """Take the waiting files of a job from deletion. Return the number of files by state, as it was before.

        Nothing changes when a file of the job is deleted or an attempt at one has begun. May be repeated.
        """

    def end_undo(self, job_id: str, now: datetime, *, undone: bool, in_use: Collection[str] = ()) -> None:
        """Give the files that `begin_undo` took their final state, or let them wait as before. May be repeated.

        `in_use` are paths that restored snapshots need: those files are never deleted.
        """

    def unfinished_undos(self) -> Sequence[str]:
        """Return the ids of jobs whose undo has begun and has not ended."""

    def record_removal(self, removal: Removal) -> None:
        """Record what a commit is about to remove from a table's metadata. May be repeated, before the same commit."""

    def removals(self, job_id: str) -> Sequence[Removal]:
        """Return what the commits of a job removed from metadata, in their order."""

    def close_removal(self, removal: Removal, undone_at: datetime | None) -> None:
        """Record that a removal was undone, or delete it with None, as its commit never landed. May be repeated."""
