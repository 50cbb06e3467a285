"""The one place where files of a table are deleted: planned in the ledger, proved unreached, deleted, settled.

Files are deleted in batches. Before each batch everything is proved anew, and each file is looked at: one that was
written anew under its old name since it was planned stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import polars as pl

from icewright.core.errors import Cancelled, IcewrightError, LeaseLost, RetryableError
from icewright.core.runs import FileAction, backoff
from icewright.core.table import TableRef
from icewright.ports import Clock, DeletionLedger, FileStat, LedgerState, TableFiles

# Lists lead to manifests, manifests to data: what is deleted last can still tell what is left after a crash.
_ORDER = (
    "data",
    "position deletes",
    "equality deletes",
    "deletion vectors",
    "statistics",
    "partition statistics",
    "manifest",
    "manifest list",
    "metadata",
)

_SHOWN = 20  # failures told one by one
_ATTEMPTS = 3
BATCH = 5_000  # files that one proof is good for


@dataclass(frozen=True, slots=True)
class Proved:
    """Which files may be deleted now, and why the others stay."""

    free: frozenset[str]
    stays: Mapping[str, str]  # the reason by path


class Proof(Protocol):
    """What must hold right before files are deleted."""

    def prove(self, planned: Sequence[FileAction]) -> Proved:
        """Ask catalogs, store and metadata as they are now. Raises when nothing at all may be deleted."""
        ...


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """What is gone, what could not be deleted, what waits, and notes: which these are, and where the ledger is."""

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
        said = {"files_deleted": len(self.files), "files_failed": self.failed, "bytes_deleted": size}
        return {**said, **(waiting if self.waiting else {})}


@dataclass
class _Done:
    """What the batches so far came to."""

    gone: list[FileAction] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)  # an attempt at these has begun: if they are gone, it deleted them


@dataclass(frozen=True)
class Deletion:
    """Planned files of one job, and what deleting them takes."""

    files: TableFiles
    ledger: DeletionLedger
    clock: Clock

    def planned(self, ref: TableRef) -> pl.DataFrame:
        """Return the `path` of each file of the table that some job is still to delete."""
        return pl.DataFrame({"path": self.ledger.waiting_paths(ref)}, schema={"path": pl.String})

    def looked_at(self, planned: Sequence[FileAction], concurrency: int) -> tuple[FileAction, ...]:
        """Return the files with the size and time that storage says; those that are not there are left out."""
        seen = self.files.stat([f.path for f in planned], concurrency)
        stats = ((file, seen.get(file.path)) for file in planned)
        return tuple(
            replace(file, bytes=stat.bytes, modified=stat.modified) for file, stat in stats if stat is not None
        )

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
        """Delete the planned files that `proof` lets go, or leave them in the ledger when there is a delay.

        What must stay is kept, and the ledger says why. The plan stands, so a fault is no end: it is tried again, and
        what cannot be done now waits in the ledger for the next settling. Raises `LeaseLost` and `Cancelled` alone.

        `owed`: a commit has let go of the files, so that the plan outlives a job that is cancelled. Without one,
        whoever stops the job before its first deletion stops the plan.
        """
        if delay:
            return DeletionResult((), waiting=tuple(planned), until=self.clock.now() + delay)
        done = _Done()
        for batch in _batches(planned):
            try:
                problem = self._tried(job_id, batch, proof, concurrency, done)
            except Cancelled:
                if not owed and not done.gone:
                    kept = dict.fromkeys((f.path for f in planned), LedgerState.KEPT)
                    self.ledger.record(job_id, kept, self.clock.now(), dict.fromkeys(kept, "the job was cancelled"))
                raise
            if problem:
                left = [f for f in planned if f.path not in done.stays and f not in done.gone]
                waiting = f"{len(left)} planned deletion(s) wait for the next start, though some may be done: {problem}"
                notes = (waiting, *(f"waits: {f.path}" for f in left[:_SHOWN]), *self._notes(job_id, location, done))
                return DeletionResult(tuple(done.gone), len(left), notes=notes)
        return DeletionResult(tuple(done.gone), len(done.failures), notes=tuple(self._notes(job_id, location, done)))

    def finish(
        self, job_id: str, location: str, planned: Sequence[FileAction], proof: Proof, concurrency: int
    ) -> DeletionResult:
        """Return the same at once, and raise what goes wrong."""
        done = _Done(tried={file.path for file in planned})
        for batch in _batches(planned):
            self._batch(job_id, batch, proof, concurrency, done)
        return DeletionResult(tuple(done.gone), len(done.failures), notes=tuple(self._notes(job_id, location, done)))

    def _tried(self, job_id: str, batch: Sequence[FileAction], proof: Proof, concurrency: int, done: _Done) -> str:
        """Delete a batch, again after a fault that may pass; what is still wrong in the end, blank for nothing."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._batch(job_id, batch, proof, concurrency, done)
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

    def _batch(self, job_id: str, batch: Sequence[FileAction], proof: Proof, concurrency: int, done: _Done) -> None:
        """Prove a batch, claim it, look at each file once more, delete, and write down what became of it."""
        proved = proof.prove(batch)
        claimed = self.ledger.claim(job_id, [f.path for f in batch if f.path in proved.free])
        mine = [f for f in batch if f.path in claimed]
        seen = self.files.stat([f.path for f in mine], concurrency)
        stays = dict(proved.stays) | {f.path: why for f in mine if (why := _other_file(f, seen.get(f.path)))}
        there = [f for f in mine if seen.get(f.path) is not None and f.path not in stays]
        gone = [f for f in mine if f.path in done.tried and seen.get(f.path) is None]
        done.tried.update(f.path for f in there)
        report = self.files.delete([f.path for f in there], concurrency)
        failures = dict(report.failures)
        states = dict.fromkeys(stays, LedgerState.KEPT) | dict.fromkeys(failures, LedgerState.FAILED)
        states |= {f.path: LedgerState.DELETED for f in mine if f.path not in states}  # also what was gone already
        self.ledger.record(job_id, states, self.clock.now(), stays | failures)
        done.gone += gone + [f for f in there if f.path not in failures]
        done.failures |= failures
        done.stays |= stays

    def _notes(self, job_id: str, location: str, done: _Done) -> Iterator[str]:
        """Yield what did not go and why, and where the ledger is."""
        failed = sorted(done.failures.items())
        yield from (f"{path} could not be deleted and is tried again: {why}" for path, why in failed[:_SHOWN])
        if len(failed) > _SHOWN:
            yield f"{len(failed) - _SHOWN} more could not be deleted; `icewright show {job_id}` has them"
        by_reason: dict[str, list[str]] = {}
        for path, why in done.stays.items():
            by_reason.setdefault(why, []).append(path)
        for why, paths in by_reason.items():
            yield f"{len(paths)} planned file(s) stay: {why}: {', '.join(sorted(paths)[:3])}"
        try:
            self.files.tidy([f.path for f in done.gone], location)
        except IcewrightError as error:  # empty folders are no harm
            yield f"empty folders are left: {error}"
        yield self.ledger.export(job_id)


def _other_file(planned: FileAction, seen: FileStat | None) -> str:
    """Return why what bears the planned file's name now is another file; blank when it is the same, or gone."""
    if seen is None:
        return ""
    if planned.bytes is not None and seen.bytes != planned.bytes:
        return "another file bears the name since it was planned (its size differs)"
    if planned.modified is not None and seen.modified != planned.modified:
        return "another file bears the name since it was planned (it was written anew)"
    return ""


def _batches(planned: Sequence[FileAction]) -> Iterator[Sequence[FileAction]]:
    ordered = sorted(planned, key=lambda f: _ORDER.index(f.kind))
    return (ordered[i : i + BATCH] for i in range(0, len(ordered), BATCH))
