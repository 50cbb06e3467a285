"""The one place where files of a table are deleted: planned in the ledger, proved unreached, deleted, settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from icewright.adapters.engines.service.reachable import files_frame, without
from icewright.core.runs import FileFate
from icewright.core.table import TableMetadata
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


def delete_unreached(
    files: Files,
    ledger: Ledger,
    clock: Clock,
    job_id: str,
    base: TableMetadata,
    planned: Sequence[FileFate],
    proof: pl.DataFrame,
    concurrency: int,
) -> tuple[tuple[FileFate, ...], Mapping[str, str]]:
    """Delete the planned files that `proof` (everything reachable now) does not hold.

    Returns what is gone, and failures by path. What is reached again is kept, and the ledger says so.
    """
    safe = set(without(files_frame((f.path, f.bytes, f.kind) for f in planned), proof)["path"])
    ledger.settle(job_id, {f.path: LedgerState.KEPT for f in planned if f.path not in safe}, clock.now())
    ordered = sorted((f for f in planned if f.path in safe), key=lambda f: _ORDER.index(f.kind))
    report = files.delete([f.path for f in ordered], concurrency)
    states = dict.fromkeys(report.deleted, LedgerState.DELETED) | dict.fromkeys(report.failures, LedgerState.FAILED)
    ledger.settle(job_id, states, clock.now())
    files.tidy(report.deleted, base.location)
    gone = set(report.deleted)
    return tuple(f for f in ordered if f.path in gone), report.failures
