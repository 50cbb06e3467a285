"""What a person or a program asks for: into the queue before everything that is planned, or answered at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from icewright.core.plan import PlannedJob
from icewright.core.policy import ON_POOL, Operation
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, TableRow

FIRST = 1e12  # the score of a job that somebody waits for: no planned one reaches it


def queue_manual_job(
    runtime: Runtime, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any], *, force: bool = False
) -> str | None:
    """Queue a job past cooldowns, windows and scores: its id, or None when the table has a job already."""
    wanted = tuple(op for op in Operation if op in operations)
    job = PlannedJob(
        ref=row.ref,
        table_uuid=row.table_uuid or "",
        operations=wanted,
        score=FIRST,
        benefit=0.0,
        cost=0.0,
        why="asked for by hand",
        pool=runtime.scopes[row.ref.catalog].pool,
        on_pool=any(op in ON_POOL for op in wanted),
    )
    options = {"set": dict(knobs), "force": force}
    return runtime.store.jobs.enqueue(job, replace(runtime.trigger, kind=MANUAL), runtime.clock.now(), options)


def would_do(runtime: Runtime, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any]) -> JobResult:
    """Return what the operations would do now. Nothing is changed."""
    policy = runtime.policy
    told = replace(runtime, policy=lambda: replace(policy(), command=dict(knobs)))
    wanted = tuple(op for op in Operation if op in operations)
    return execute(told, Request(row.ref, wanted, manual=True, dry_run=True))
