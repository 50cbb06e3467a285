"""What is disturbed: one operation by hand, a restore, or the settling at a start."""

from __future__ import annotations

import enum
from dataclasses import replace
from datetime import timedelta

from icewright.app.worker import Worker
from icewright.core.policy import Operation
from icewright.core.runs import Outcome
from icewright.core.table import TableRef
from icewright.flow.bulk import queue_requested
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.restore import RESTORE, RESTORE_FROM, restore
from icewright.flow.runtime import Runtime
from tests.faults.lakehouse import NAME

REF = TableRef.parse(f"lake.{NAME}")


class FaultOperation(enum.StrEnum):
    """Everything in-service that deletes files, or commits."""

    EXPIRE = Operation.EXPIRE_SNAPSHOTS.value
    ORPHANS = Operation.REMOVE_ORPHANS.value
    STATISTICS = Operation.COMPUTE_STATISTICS.value
    POINTS = Operation.RECOVERY_POINTS.value
    REWRITE = Operation.REWRITE_MANIFESTS.value
    RESTORE = "restore"  # to tag v1
    QUEUED = "queued restore"  # the same, asked for by API and carried out by a worker
    SETTLE = "settle"  # the deletions that an expiry planned and did not come to


class Done:
    """What a deed said: an outcome when an operation ran, words in any case."""

    def __init__(self, said: str, outcome: Outcome | None) -> None:
        self.said, self.outcome = said, outcome


def do(runtime: Runtime, action: FaultOperation) -> Done:
    """Do it once."""
    if action is FaultOperation.SETTLE:
        return Done("; ".join(reconcile_interrupted(replace(runtime, process_has_ended=lambda _: True))), None)
    if action is FaultOperation.QUEUED:
        (planned,) = restore(runtime, [REF], "v1", dry_run=True)
        row = runtime.store.tables.get(REF)
        if row is not None and not planned.plan.already:
            ids = planned.plan.target.snapshot_id, planned.plan.head.snapshot_id
            known = replace(row, table_uuid=planned.plan.metadata.table_uuid)  # as an evaluation records it
            queue_requested(runtime, known, dict(zip((RESTORE, RESTORE_FROM), map(str, ids), strict=True)))
        worker = Worker(runtime, 1, lambda: None)
        worker.start_queued()
        worker.wait(timedelta(minutes=1))
        return Done("; ".join(job.summary for job in runtime.store.jobs.list(limit=1)), None)
    if action is FaultOperation.RESTORE:
        return Done("; ".join(each.summary for each in restore(runtime, [REF], "v1")), None)
    result = execute(runtime, Request(REF, (Operation(action.value),), manual=True))
    return Done(f"{result.state}: {result.summary}", result.outcomes[0] if result.outcomes else None)


def open_ends(runtime: Runtime) -> list[str]:
    """Plans that nobody finished, and tables that nobody freed."""
    wrong = [
        f"{len(u.files)} deletions of job {u.job_id} are still planned"
        for u in runtime.store.ledger.unfinished(runtime.clock.now())
    ]
    return wrong + [f"{row.ref} is held by {row.job_id}" for row in runtime.store.tables.list() if row.job_id]
