"""What a person or a program asks for: into the queue before everything that is planned, or answered at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from icewright.core.plan import PlannedJob
from icewright.core.policy import ON_POOL, Operation
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.world import World
from icewright.ports import BY_HAND, TableRow

FIRST = 1e12  # the score of a job that somebody waits for: no planned one reaches it


def queue_by_hand(
    world: World, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any], *, force: bool = False
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
        pool=world.scopes[row.ref.catalog].pool,
        on_pool=any(op in ON_POOL for op in wanted),
    )
    options = {"set": dict(knobs), "force": force}
    return world.store.enqueue(job, replace(world.trigger, kind=BY_HAND), world.clock.now(), options)


def would_do(world: World, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any]) -> JobResult:
    """What the operations would do now. Nothing is changed."""
    policy = world.policy
    told = replace(world, policy=lambda: replace(policy(), command=dict(knobs)))
    wanted = tuple(op for op in Operation if op in operations)
    return execute(told, Request(row.ref, wanted, by_hand=True, dry_run=True))
