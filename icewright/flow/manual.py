"""Manual requests: queue a job ahead of all planned ones, or answer with a dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from icewright.core.capacity import Priority
from icewright.core.plan import PlannedJob
from icewright.core.policy import ON_POOL, Operation
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, TableRow


def queue_manual_job(
    runtime: Runtime, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any], *, force: bool = False
) -> str | None:
    """Queue a job past cooldowns, windows and scores; return its id, or None when the table has a job already."""
    ordered = tuple(op for op in Operation if op in operations)
    job = PlannedJob(
        ref=row.ref,
        table_uuid=row.table_uuid or "",
        operations=ordered,
        score=0.0,
        benefit=0.0,
        cost=0.0,
        why="asked for by hand",
        pool=runtime.scopes[row.ref.catalog].pool,
        on_pool=any(op in ON_POOL for op in ordered),
        priority=Priority.MANUAL,
    )
    options = {"set": dict(knobs), "force": force}
    return runtime.store.jobs.enqueue(job, replace(runtime.trigger, kind=MANUAL), runtime.clock.now(), options)


def would_do(runtime: Runtime, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any]) -> JobResult:
    """Return the result of a dry run of the operations."""
    policy = runtime.policy
    configured = replace(runtime, policy=lambda: replace(policy(), command=dict(knobs)))
    ordered = tuple(op for op in Operation if op in operations)
    return execute(configured, Request(row.ref, ordered, manual=True, dry_run=True))
