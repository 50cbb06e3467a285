"""A commit whose reply was lost: what the table shows of it, and the deletions that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from icewright.core.errors import IcewrightError
from icewright.core.runs import JOB_ID, FileAction, Outcome
from icewright.core.steps import ComputeStatistics, ExpireSnapshots, Step, TagRecoveryPoints
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count
from icewright.flow.lease import Lease
from icewright.flow.runtime import Runtime
from icewright.ports import LedgerState, Unfinished


def landed_metrics(
    step: Step | None, current: TableMetadata, job_id: str, base_snapshots: frozenset[int]
) -> Mapping[str, float] | None:
    """Return the metrics of a step whose commit landed, as the table shows; None where it does not show that.

    `base_snapshots` are those that the table had when the step began.
    """
    if any(s.summary.get(JOB_ID) == job_id and s.snapshot_id not in base_snapshots for s in current.snapshots):
        return {}
    match step:
        case TagRecoveryPoints() if {point.tag for point in step.make} <= set(current.refs):
            return {"points_made": len(step.make)}
        case ComputeStatistics():  # the table had none of the snapshot when the step was planned
            files = current.statistics if step.columns else current.partition_statistics
            return {} if any(file.snapshot_id == step.snapshot_id for file in files) else None
        case ExpireSnapshots(snapshot_ids=ids, remove_refs=refs) if ids or refs:
            left = (current.by_id.keys() & set(ids), {ref.name for ref in current.refs} & set(refs))
            return None if any(left) else {"snapshots_expired": len(ids), "refs_removed": len(refs)}
    return None


def finish_deletions(runtime: Runtime, lease: Lease, ref: TableRef, table_uuid: str, expired: Outcome) -> Outcome:
    """Execute the deletions that an expiry had planned; return its outcome with their results."""
    ledger, job_id = runtime.store.ledger, lease.job_id
    planned = [row for row in ledger.files(job_id) if row["state"] == LedgerState.PLANNED]
    files = tuple(
        FileAction(row["path"], row["bytes"], row["kind"], row["modified"])
        for row in planned
        if row["delete_after"] is None
    )
    intent, since = ledger.commit_intent(job_id), runtime.clock.now()
    if not files and intent is None:
        return expired
    unfinished = Unfinished(job_id, ref, table_uuid, (expired.operation,), files, since, intent)
    try:
        lease.check()  # waiting for the reply may have outlasted the lease: readers pin, another job deletes
        deleted = runtime.engine.resume(unfinished)
    except IcewrightError as error:
        waiting = f"{count(len(files), 'planned deletion')} waiting for the next start: {error}"
        metrics = {**expired.metrics, "files_failed": len(files)}
        return replace(expired, metrics=metrics, notes=(*expired.notes, waiting))
    return replace(
        expired,
        summary=f"{expired.summary}; {deleted.summary}",
        metrics={**expired.metrics, **deleted.metrics},
        files=deleted.files,
        notes=(*expired.notes, *deleted.notes),
    )
