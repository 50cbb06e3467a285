"""The one place where files of a table are deleted: planned in the ledger, proved unreached, deleted, settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from icewright.adapters.engines.service.reachable import files_frame, unreached
from icewright.core.runs import FileFate
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


@dataclass(frozen=True, slots=True)
class Deleted:
    """What is gone, how many files could not be deleted, and notes: which these are, and where the ledger is."""

    files: tuple[FileFate, ...]
    failed: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deletion:
    """Planned files of one job, and what deleting them takes."""

    files: Files
    ledger: Ledger
    clock: Clock

    def carry_out(
        self, job_id: str, location: str, planned: Sequence[FileFate], proof: Iterable[pl.DataFrame], concurrency: int
    ) -> Deleted:
        """Delete the planned files that `proof` (chunks of everything reachable now) does not hold.

        What is reached again is kept, and the ledger says so.
        """
        safe = set(
            unreached(files_frame((f.path, f.bytes, f.kind) for f in planned), proof, self.files.canonical)["path"]
        )
        ordered = sorted((f for f in planned if f.path in safe), key=lambda f: _ORDER.index(f.kind))
        report = self.files.delete([f.path for f in ordered], concurrency)
        states = {f.path: LedgerState.KEPT for f in planned if f.path not in safe}
        states |= dict.fromkeys(report.deleted, LedgerState.DELETED) | dict.fromkeys(
            report.failures, LedgerState.FAILED
        )
        self.ledger.settle(job_id, states, self.clock.now())
        self.files.tidy(report.deleted, location)
        gone = set(report.deleted)
        notes = [f"{path} could not be deleted: {why}" for path, why in sorted(report.failures.items())[:_SHOWN]]
        if len(report.failures) > _SHOWN:
            notes.append(
                f"{len(report.failures) - _SHOWN} more could not be deleted; `icewright show {job_id}` has them"
            )
        notes += [self.ledger.export(job_id)] if planned else []
        return Deleted(tuple(f for f in ordered if f.path in gone), len(report.failures), tuple(notes))
