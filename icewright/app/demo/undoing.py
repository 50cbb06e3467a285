"""The demo's undo: an expiry is undone while its files wait, every snapshot returns, and the table expires again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icewright.app.bootstrap import Application
from icewright.app.demo.proof import Fingerprint, fingerprint
from icewright.app.demo.serving import UNDONE
from icewright.core.policy import DELETION_DELAY, Operation
from icewright.core.runs import JobState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.undo import undo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Past:
    """A table before its expiry: metadata, and the fingerprint of its oldest snapshot."""

    ref: TableRef
    metadata: TableMetadata
    rows: Fingerprint


def remember(app: Application, spark: SparkSession) -> Past:
    """Return the table whose expiry is undone, as it is now."""
    ref = TableRef.parse(UNDONE)
    metadata = app.runtime.catalog(ref).load(ref)
    return Past(ref, metadata, fingerprint(spark, UNDONE, metadata.snapshots[0].snapshot_id))


def show_undo(app: Application, spark: SparkSession, past: Past, console: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    """Undo the expiry, compare with the past, and expire again; None where no job expired snapshots."""
    runtime, ref = app.runtime, past.ref
    job = next((job for job in runtime.store.jobs.list(ref) if runtime.store.ledger.removals(job.job_id)), None)
    if job is None:
        return None
    done = undo(runtime, job.job_id)
    console.print(
        f"[bold]Undo[/]: the expiry of {UNDONE} is undone: {len(done.back.snapshots)} snapshots return "
        f"and {done.back.files} waiting files stay. Then the table expires again, and its files are deleted at once"
    )
    now = runtime.catalog(ref).load(ref)
    restored = {s.snapshot_id for s in past.metadata.snapshots} <= now.by_id.keys() and set(past.metadata.refs) <= set(
        now.refs
    )
    restored = restored and fingerprint(spark, UNDONE, past.metadata.snapshots[0].snapshot_id) == past.rows
    runtime.store.rules.put(ref.parts, {DELETION_DELAY.name: 0}, runtime.trigger.actor, runtime.clock.now(), None)
    second_expiry = execute(runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
    return {
        "table": UNDONE,
        "job_id": job.job_id,
        "undone_by": done.undone_by,
        "snapshots": len(done.back.snapshots),
        "files": done.back.files,
        "bytes": done.back.bytes,
        "same": restored,
        "expired_again": second_expiry.state is JobState.SUCCEEDED,
    }
