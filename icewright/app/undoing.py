"""Undone jobs, what expiries removed and deletions that wait, as documents: for `--json`, the API and the pages."""

from __future__ import annotations

from typing import Any

from icewright.core.table import Snapshot
from icewright.flow.undo import UndoResult
from icewright.flow.undoable import removed_snapshots
from icewright.ports import Removal, RestoreSnapshots, WaitingDeletions


def undo_document(done: UndoResult) -> dict[str, Any]:
    """Return what an undo brought back, or would bring back."""
    back = done.back
    return {
        "job_id": done.job.job_id,
        "table": str(done.job.ref),
        "dry_run": done.dry_run,
        "already": back.already,
        "undone_by": done.undone_by,
        "snapshots": [snapshot_document(snapshot) for snapshot in back.snapshots],
        "refs": list(back.refs),
        "files": back.files,
        "bytes": back.bytes,
        "not_restored": list(back.not_restored),
        "notes": list(back.notes),
        "summary": done.summary,
    }


def removal_document(removal: Removal) -> dict[str, Any]:
    """Return what one commit of an expiry removed."""
    refs = RestoreSnapshots.from_json(removal.document).refs
    return {
        "at": removal.at,
        "undone_at": removal.undone_at,
        "metadata_location": removal.metadata_location,
        "snapshots": [snapshot_document(snapshot) for snapshot in removed_snapshots(removal)],
        "refs": [
            {"name": name, "type": ref.get("type"), "snapshot_id": ref["snapshot-id"]} for name, ref in refs.items()
        ],
    }


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot that an expiry removed."""
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_id,
        "at": snapshot.timestamp,
        "operation": snapshot.operation,
        "summary": {name: value for name, value in snapshot.summary.items() if name != "operation"},
    }


def waiting_document(waiting: WaitingDeletions) -> dict[str, Any]:
    """Return files that are still to be deleted."""
    same = ("job_id", "files", "bytes", "failed", "planned_at", "delete_after", "reason")
    document = {name: getattr(waiting, name) for name in same}
    return document | {"table": str(waiting.ref), "operations": [str(op) for op in waiting.operations]}
