"""The one place where files of a table are deleted: planned in the ledger, proved unreachable, deleted, recorded.

Files are deleted in batches. Before each batch the proof is repeated, and each file is checked with `stat`: a file that
was written again under its old name since the plan stays. A proof that took too long is repeated too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import polars as pl

from icewright.adapters.engines.service.guard import Judgement
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

    @classmethod
    def of(cls, judgement: Judgement, planned: Sequence[FileAction], reached: str) -> Proved:
        """Return what may be deleted by the judgement on planned files; `reached` says why others are not judged."""
        free = frozenset(judgement.files["path"])
        return cls(free, {f.path: judgement.stays.get(f.path, reached) for f in planned if f.path not in free})


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


@dataclass(frozen=True)
class Deletion:
    """What deletes files: storage, by the ledger."""

    files: TableFiles
    ledger: DeletionLedger
    clock: Clock
    writing_together: Callable[[], AbstractContextManager[None]] = nullcontext  # one transaction for several writes

    def planned(self, ref: TableRef, table_uuid: str) -> pl.DataFrame:
        """Return the `path` of each file of the table, under any of its names, that some job is still to delete."""
        return pl.DataFrame({"path": self.ledger.waiting_paths(ref, table_uuid)}, schema={"path": pl.String})

    def keep(self, job_id: str, planned: Sequence[FileAction], reason: str) -> None:
        """Record that the planned files of a job stay, and why."""
        reasons = dict.fromkeys((file.path for file in planned), reason)
        self.ledger.record(job_id, dict.fromkeys(reasons, LedgerState.KEPT), self.clock.now(), reasons)

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


@dataclass
class JobDeletion:
    """Deletes batches of one job's planned files, and collects the results by file."""

    deletion: Deletion
    job_id: str
    location: str
    proof: Proof
    concurrency: int
    check: Callable[[], object] = lambda: None  # raises `LeaseLost` or `Cancelled`
    deleted: list[FileAction] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)  # files with a begun attempt: a missing one was deleted by it

    def carry_out(
        self, planned: Sequence[FileAction], *, owed: bool, delay: timedelta = timedelta(0)
    ) -> DeletionResult:
        """Delete the planned files that the proof allows, or leave them in the ledger when there is a delay.

        The ledger records why a file stays. After a transient fault a batch is tried again; files that cannot be
        deleted now wait in the ledger for the next reconciliation. Raises only `LeaseLost` and `Cancelled`.

        `owed`: a commit has removed the files from the table, so the plan outlives a cancelled job. Without it, a job
        that is stopped before its first deletion drops the plan.
        """
        if delay:
            return DeletionResult((), waiting=tuple(planned), until=self.deletion.clock.now() + delay)
        for batch in _batches(planned):
            try:
                problem = self._delete_with_retries(batch)
            except Cancelled:
                if not owed and not self.deleted:
                    self.deletion.keep(self.job_id, planned, "the job was cancelled")
                raise
            if problem:
                return self._unfinished_result(planned, problem)
        return self._result()

    def finish(self, planned: Sequence[FileAction]) -> DeletionResult:
        """Delete the planned files of a run that is over, without delay and retries; errors are passed on."""
        self.tried.update(file.path for file in planned)
        for batch in _batches(planned):
            self.delete(batch)
        return self._result()

    def _delete_with_retries(self, batch: Sequence[FileAction]) -> str:
        """Delete a batch, with retries after transient errors; return the last error message, or a blank."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.delete(batch)
            except (LeaseLost, Cancelled):
                raise
            except RetryableError as error:
                problem = str(error)
                if attempt < _ATTEMPTS:
                    self.deletion.clock.sleep(backoff(attempt).total_seconds())
            except IcewrightError as error:
                return str(error)
            else:
                return ""
        return problem

    def delete(self, batch: Sequence[FileAction]) -> None:
        """Delete a batch under one proof; where storage is slow, under a new one for the files that are left."""
        while batch:
            batch = self._delete_while_proved(batch)

    def _delete_while_proved(self, batch: Sequence[FileAction]) -> Sequence[FileAction]:
        """Prove files, claim them in the ledger, stat each once more, delete, and record the results.

        Return the files that are left once the proof is too old.
        """
        began, proved, claimed, stats = self._prove_and_claim(batch)
        stays = dict(proved.stays) | {f.path: why for f in claimed if (why := _replaced_reason(f, stats.get(f.path)))}
        missing = [f for f in claimed if stats.get(f.path) is None]
        left = [f for f in claimed if stats.get(f.path) is not None and f.path not in stays]
        attempted, size, failures = list[FileAction](), _FIRST, dict[str, str]()
        while left and (started := self.deletion.clock.now()) - began <= PROOF_LASTS:
            some, left = left[:size], left[size:]
            self.tried.update(f.path for f in some)
            failures |= self.deletion.files.delete([f.path for f in some], self.concurrency, stats).failures
            attempted += some
            size = BATCH if self.deletion.clock.now() - started <= _QUICK else _FIRST
        states = dict.fromkeys((f.path for f in missing + attempted), LedgerState.DELETED)
        states |= dict.fromkeys(stays, LedgerState.KEPT) | dict.fromkeys(failures, LedgerState.FAILED)
        self.deletion.ledger.record(self.job_id, states, self.deletion.clock.now(), stays | failures)
        self.deleted += [f for f in missing if f.path in self.tried]
        self.deleted += [f for f in attempted if f.path not in failures]
        self.failures = {path: why for path, why in self.failures.items() if path not in states} | failures
        self.stays |= stays
        return left

    def _prove_and_claim(
        self, batch: Sequence[FileAction]
    ) -> tuple[datetime, Proved, list[FileAction], Mapping[str, FileStat | None]]:
        """Return when the proof of a batch began, the proof, and the files that are claimed by it, with their stats.

        Storage may hang, or the machine sleep, and a writer take in a file meanwhile: an old proof is made anew.
        """
        for _ in range(_ATTEMPTS):
            began = self.deletion.clock.now()
            proved = self.proof.prove(batch)
            with self.deletion.writing_together():  # a job that lost its table while the proof was made claims nothing
                self.check()
                claimed_paths = self.deletion.ledger.claim(
                    self.job_id, [f.path for f in batch if f.path in proved.free]
                )
            claimed = [f for f in batch if f.path in claimed_paths]
            stats = self.deletion.files.stat([f.path for f in claimed], self.concurrency)
            if self.deletion.clock.now() - began <= PROOF_LASTS:
                return began, proved, claimed, stats
        raise StorageUnavailable(f"{count(len(batch), 'file')} could not be proved and looked at within {PROOF_LASTS}")

    def _result(self) -> DeletionResult:
        """Return the result after the last batch."""
        return DeletionResult(tuple(self.deleted), len(self.failures), notes=tuple(self._notes()))

    def _unfinished_result(self, planned: Sequence[FileAction], problem: str) -> DeletionResult:
        """Return the result where a problem leaves the remaining planned files to the next start."""
        settled = self.stays.keys() | {f.path for f in self.deleted}
        remaining = [f.path for f in planned if f.path not in settled]
        waiting = f"{count(len(remaining), 'planned deletion')} left to the next start: {problem}"
        notes = (waiting, *(f"waits: {path}" for path in remaining[:_SHOWN]), *self._notes())
        return DeletionResult(tuple(self.deleted), len(remaining), notes=notes)

    def _notes(self) -> Iterator[str]:
        """Yield which files were not deleted and why, and where the exported ledger is."""
        failed = sorted(self.failures.items())
        yield from (f"{path} could not be deleted and is tried again: {why}" for path, why in failed[:_SHOWN])
        if len(failed) > _SHOWN:
            yield f"{len(failed) - _SHOWN} more could not be deleted; `icewright show {self.job_id}` has them"
        by_reason: dict[str, list[str]] = {}
        for path, why in self.stays.items():
            by_reason.setdefault(why, []).append(path)
        for why, paths in by_reason.items():
            yield f"{count(len(paths), 'planned file')} kept: {why}: {', '.join(sorted(paths)[:3])}"
        try:
            self.deletion.files.tidy([f.path for f in self.deleted], self.location)
        except IcewrightError as error:  # empty folders are no harm
            yield f"empty folders are left: {error}"
        try:
            yield self.deletion.ledger.export(self.job_id)
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
