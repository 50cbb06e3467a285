"""The one place where files of a table are deleted: planned in the ledger, proved unreachable, deleted, recorded.

Files are deleted in batches. Before each batch the proof is repeated, and each file is checked with `stat`: a file that
was written again under its old name since the plan stays. A proof that took too long is repeated too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import polars as pl

from icewright.core.errors import (
    Cancelled,
    IcewrightError,
    LeaseLost,
    RetryableError,
    StorageUnavailable,
    StoreUnavailable,
)
from icewright.core.runs import FileAction, backoff
from icewright.core.table import TableRef
from icewright.core.words import count
from icewright.ports import Clock, DeletionLedger, FileStat, LedgerState, TableFiles

# Data first, manifest lists last: after a crash the remaining lists and manifests still name the remaining files.
_ORDER = (
    "data", "position deletes", "equality deletes", "deletion vectors", "statistics", "partition statistics",
    "manifest", "manifest list", "metadata",
)  # fmt: skip
_CONTENT = _ORDER[:4]  # whose sizes manifests record

_SHOWN = 20  # failures that notes list one by one
_ATTEMPTS = 3
BATCH = 5_000  # files that one proof is good for
PROOF_LASTS = timedelta(minutes=15)
_FIRST = 1_000  # files of a batch that show how quick storage is
_QUICK = timedelta(minutes=1)  # in which storage deletes so many that all others can go at once


@dataclass(frozen=True, slots=True)
class Proved:
    """The files that may be deleted now, and the reason why each of the others stays."""

    free: frozenset[str]
    stays: Mapping[str, str]  # the reason by path


class Proof(Protocol):
    """Proves right before each batch that its files may be deleted."""

    def prove(self, planned: Sequence[FileAction]) -> Proved:
        """Check the files against catalogs, store and metadata as they are now; raise when none may be deleted."""


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """The files that were deleted, failed or wait for the end of the delay, with notes for the run record."""

    files: tuple[FileAction, ...]
    failed: int = 0
    waiting: tuple[FileAction, ...] = ()  # for the end of `deletion.delay_hours`
    until: datetime | None = None
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the metrics for the run record."""
        size = sum(file.bytes or 0 for file in self.files)
        waiting = {"files_waiting": len(self.waiting), "bytes_waiting": sum(f.bytes or 0 for f in self.waiting)}
        deleted = {"files_deleted": len(self.files), "files_failed": self.failed, "bytes_deleted": size}
        return {**deleted, **(waiting if self.waiting else {})}


@dataclass
class _Progress:
    """The results of the batches so far, by file."""

    deleted: list[FileAction] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)  # files with a begun attempt: a missing one was deleted by it


@dataclass(frozen=True)
class Deletion:
    """Deletes planned files of jobs, through storage and ledger."""

    files: TableFiles
    ledger: DeletionLedger
    clock: Clock

    def planned(self, ref: TableRef, table_uuid: str) -> pl.DataFrame:
        """Return the `path` of each file of the table, under any of its names, that some job is still to delete."""
        return pl.DataFrame({"path": self.ledger.waiting_paths(ref, table_uuid)}, schema={"path": pl.String})

    def existing(
        self, planned: Sequence[FileAction], concurrency: int
    ) -> tuple[tuple[FileAction, ...], Mapping[str, str]]:
        """Return the files that exist, with their size and time in storage, and why each of the others stays.

        A writer may have reused the name of a data file that the table has let go: the size tells, if it differs.
        What has no time is no file but a link to it.
        """
        stats = self.files.stat([f.path for f in planned], concurrency)
        dated = [f for f in planned if f.kind in _CONTENT and (s := stats.get(f.path)) is not None and s.modified]
        stays = {f.path: why for f in dated if (why := _replaced_reason(f, stats[f.path]))}
        stays |= {f.path: "its storage cannot be asked for such a path" for f in planned if f.path not in stats}
        pairs = ((file, stats[file.path]) for file in planned if file.path not in stays)
        present = (replace(file, bytes=stat.bytes, modified=stat.modified) for file, stat in pairs if stat is not None)
        return tuple(present), stays

    def carry_out(
        self,
        job_id: str,
        location: str,
        planned: Sequence[FileAction],
        proof: Proof,
        concurrency: int,
        *,
        owed: bool,
        delay: timedelta = timedelta(0),
    ) -> DeletionResult:
        """Delete the planned files that `proof` allows, or leave them in the ledger when there is a delay.

        The ledger records why a file stays. After a transient fault a batch is tried again; files that cannot be
        deleted now wait in the ledger for the next reconciliation. Raises only `LeaseLost` and `Cancelled`.

        `owed`: a commit has removed the files from the table, so the plan outlives a cancelled job. Without it, a job
        that is stopped before its first deletion drops the plan.
        """
        if delay:
            return DeletionResult((), waiting=tuple(planned), until=self.clock.now() + delay)
        progress = _Progress()
        for batch in _batches(planned):
            try:
                problem = self._delete_with_retries(job_id, batch, proof, concurrency, progress)
            except Cancelled:
                if not owed and not progress.deleted:
                    states = dict.fromkeys((f.path for f in planned), LedgerState.KEPT)
                    self.ledger.record(job_id, states, self.clock.now(), dict.fromkeys(states, "the job was cancelled"))
                raise
            if problem:
                remaining = [f for f in planned if f.path not in progress.stays and f not in progress.deleted]
                waiting = f"{count(len(remaining), 'planned deletion')} left to the next start: {problem}"
                notes = (
                    waiting,
                    *(f"waits: {f.path}" for f in remaining[:_SHOWN]),
                    *self._notes(job_id, location, progress),
                )
                return DeletionResult(tuple(progress.deleted), len(remaining), notes=notes)
        return DeletionResult(
            tuple(progress.deleted), len(progress.failures), notes=tuple(self._notes(job_id, location, progress))
        )

    def finish(
        self, job_id: str, location: str, planned: Sequence[FileAction], proof: Proof, concurrency: int
    ) -> DeletionResult:
        """Delete the planned files of a run that is over, without delay and retries; errors are passed on."""
        progress = _Progress(tried={file.path for file in planned})
        for batch in _batches(planned):
            self._delete_batch(job_id, batch, proof, concurrency, progress)
        return DeletionResult(
            tuple(progress.deleted), len(progress.failures), notes=tuple(self._notes(job_id, location, progress))
        )

    def _delete_with_retries(
        self, job_id: str, batch: Sequence[FileAction], proof: Proof, concurrency: int, progress: _Progress
    ) -> str:
        """Delete a batch, with retries after transient errors; return the last error message, or a blank."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._delete_batch(job_id, batch, proof, concurrency, progress)
            except (LeaseLost, Cancelled):
                raise
            except RetryableError as error:
                problem = str(error)
                if attempt < _ATTEMPTS:
                    self.clock.sleep(backoff(attempt).total_seconds())
            except IcewrightError as error:
                return str(error)
            else:
                return ""
        return problem

    def _delete_batch(
        self, job_id: str, batch: Sequence[FileAction], proof: Proof, concurrency: int, progress: _Progress
    ) -> None:
        """Prove a batch, claim it in the ledger, stat each file once more, delete, and record the results.

        Where storage is slow, what is left by the time that the proof is too old is proved anew.
        """
        began, proved, claimed_files, stats = self._proved(job_id, batch, proof, concurrency)
        stays = dict(proved.stays) | {
            f.path: why for f in claimed_files if (why := _replaced_reason(f, stats.get(f.path)))
        }
        present = [f for f in claimed_files if stats.get(f.path) is not None and f.path not in stays]
        deleted_before = [f for f in claimed_files if f.path in progress.tried and stats.get(f.path) is None]
        left, size, failures = present, _FIRST, dict[str, str]()
        while left:
            started = self.clock.now()
            some, left = left[:size], left[size:]
            progress.tried.update(f.path for f in some)
            failures |= self.files.delete([f.path for f in some], concurrency, stats).failures
            if (now := self.clock.now()) - began > PROOF_LASTS:
                break
            size = BATCH if now - started <= _QUICK else _FIRST
        present, late = present[: len(present) - len(left)], {f.path for f in left}
        states = dict.fromkeys(stays, LedgerState.KEPT) | dict.fromkeys(failures, LedgerState.FAILED)
        # also files that did not exist any more
        settled = states.keys() | late
        states |= {f.path: LedgerState.DELETED for f in claimed_files if f.path not in settled}
        self.ledger.record(job_id, states, self.clock.now(), stays | failures)
        progress.deleted += deleted_before + [f for f in present if f.path not in failures]
        progress.failures |= failures
        progress.stays |= stays
        if left:
            self._delete_batch(job_id, left, proof, concurrency, progress)

    def _proved(
        self, job_id: str, batch: Sequence[FileAction], proof: Proof, concurrency: int
    ) -> tuple[datetime, Proved, list[FileAction], Mapping[str, FileStat | None]]:
        """Return the proof of a batch, when it began, and the files that it frees and that are claimed, with stats.

        Storage may hang, or the machine sleep, and a writer take in a file meanwhile: an old proof is made anew.
        """
        for _ in range(_ATTEMPTS):
            began = self.clock.now()
            proved = proof.prove(batch)
            claimed = self.ledger.claim(job_id, [f.path for f in batch if f.path in proved.free])
            claimed_files = [f for f in batch if f.path in claimed]
            stats = self.files.stat([f.path for f in claimed_files], concurrency)
            if self.clock.now() - began <= PROOF_LASTS:
                return began, proved, claimed_files, stats
        raise StorageUnavailable(f"{count(len(batch), 'file')} could not be proved and looked at within {PROOF_LASTS}")

    def _notes(self, job_id: str, location: str, progress: _Progress) -> Iterator[str]:
        """Yield which files were not deleted and why, and where the exported ledger is."""
        failed = sorted(progress.failures.items())
        yield from (f"{path} could not be deleted and is tried again: {why}" for path, why in failed[:_SHOWN])
        if len(failed) > _SHOWN:
            yield f"{len(failed) - _SHOWN} more could not be deleted; `icewright show {job_id}` has them"
        by_reason: dict[str, list[str]] = {}
        for path, why in progress.stays.items():
            by_reason.setdefault(why, []).append(path)
        for why, paths in by_reason.items():
            yield f"{count(len(paths), 'planned file')} kept: {why}: {', '.join(sorted(paths)[:3])}"
        try:
            self.files.tidy([f.path for f in progress.deleted], location)
        except IcewrightError as error:  # empty folders are no harm
            yield f"empty folders are left: {error}"
        try:
            yield self.ledger.export(job_id)
        except StoreUnavailable as error:  # the deletions are recorded, and no reason to begin again
            yield f"the ledger is not exported: {error}"


def _replaced_reason(planned: FileAction, stat: FileStat | None) -> str:
    """Return why the file under this path is not the planned one any more; blank when it is, or does not exist."""
    if stat is None:
        return ""
    if planned.bytes is not None and stat.bytes != planned.bytes:
        return "another file bears the name now (its size differs)"
    if planned.modified is not None and stat.modified != planned.modified:
        return "another file bears the name now (it was written anew)"
    return ""


def _batches(planned: Sequence[FileAction]) -> Iterator[Sequence[FileAction]]:
    ordered = sorted(planned, key=lambda f: _ORDER.index(f.kind))
    return (ordered[i : i + BATCH] for i in range(0, len(ordered), BATCH))
