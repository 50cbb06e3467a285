"""The one place where files of a table are deleted: planned in the ledger, proved unreached, deleted, settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from icewright.adapters.engines.service.reachable import files_frame, unreached
from icewright.core.errors import Cancelled, IcewrightError, LeaseLost, RetryableError
from icewright.core.runs import FileFate, backoff
from icewright.ports import Clock, Files, Ledger, LedgerState

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


@dataclass(frozen=True, slots=True)
class Deleted:
    """What is gone, how many files could not be deleted, and notes: which these are, and where the ledger is."""

    files: tuple[FileFate, ...]
    failed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> Mapping[str, float]:
        """As runs say it."""
        size = sum(file.bytes or 0 for file in self.files)
        return {"files_deleted": len(self.files), "files_failed": self.failed, "bytes_deleted": size}


@dataclass(frozen=True)
class Deletion:
    """Planned files of one job, and what deleting them takes."""

    files: Files
    ledger: Ledger
    clock: Clock

    def carry_out(
        self,
        job_id: str,
        location: str,
        planned: Sequence[FileFate],
        proof: Callable[[], Iterable[pl.DataFrame]],
        concurrency: int,
        *,
        owed: bool,
    ) -> Deleted:
        """Delete the planned files that `proof` (chunks of everything reachable now) does not hold.

        What is reached again is kept, and the ledger says so. The plan stands, so a fault is no end: it is tried again,
        and what cannot be done now waits in the ledger for the next start. Raises `LeaseLost` and `Cancelled` alone.

        `owed`: a commit has let go of the files, so that the plan outlives a job that is cancelled. Without one,
        whoever stops the job before its first deletion stops the plan.
        """
        begun = False
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                safe = self._unreached(planned, proof())
                begun = True
                return self._delete(job_id, location, planned, safe, concurrency)
            except LeaseLost:
                raise
            except Cancelled:
                if not owed and not begun:
                    kept = {f.path: LedgerState.KEPT for f in planned}
                    self.ledger.settle(job_id, kept, self.clock.now())
                raise
            except RetryableError as error:
                said = str(error)
                if attempt < _ATTEMPTS:
                    self.clock.sleep(backoff(attempt).total_seconds())
            except IcewrightError as error:
                said = str(error)
                break
        waiting = f"{len(planned)} planned deletion(s) wait for the next start, though some may be done: {said}"
        return Deleted((), len(planned), (waiting, *(f"waits: {f.path}" for f in planned[:_SHOWN])))

    def finish(
        self, job_id: str, location: str, planned: Sequence[FileFate], proof: Iterable[pl.DataFrame], concurrency: int
    ) -> Deleted:
        """The same, once: raises what goes wrong."""
        return self._delete(job_id, location, planned, self._unreached(planned, proof), concurrency)

    def _unreached(self, planned: Sequence[FileFate], proof: Iterable[pl.DataFrame]) -> set[str]:
        files = files_frame((f.path, f.bytes, f.kind) for f in planned)
        return set(unreached(files, proof, self.files.canonical)["path"])

    def _delete(
        self, job_id: str, location: str, planned: Sequence[FileFate], safe: set[str], concurrency: int
    ) -> Deleted:
        ordered = sorted((f for f in planned if f.path in safe), key=lambda f: _ORDER.index(f.kind))
        report = self.files.delete([f.path for f in ordered], concurrency)
        states = {f.path: LedgerState.KEPT for f in planned if f.path not in safe}
        states |= dict.fromkeys(report.deleted, LedgerState.DELETED) | dict.fromkeys(
            report.failures, LedgerState.FAILED
        )
        self.ledger.settle(job_id, states, self.clock.now())
        gone = set(report.deleted)
        notes = [f"{path} could not be deleted: {why}" for path, why in sorted(report.failures.items())[:_SHOWN]]
        if len(report.failures) > _SHOWN:
            notes.append(
                f"{len(report.failures) - _SHOWN} more could not be deleted; `icewright show {job_id}` has them"
            )
        notes += self._tidied(report.deleted, location)
        notes += [self.ledger.export(job_id)] if planned else []
        return Deleted(tuple(f for f in ordered if f.path in gone), len(report.failures), tuple(notes))

    def _tidied(self, deleted: Sequence[str], location: str) -> list[str]:
        """Empty folders are no harm: one that cannot be removed is told and no more."""
        try:
            self.files.tidy(deleted, location)
        except IcewrightError as error:
            return [f"empty folders are left: {error}"]
        return []
