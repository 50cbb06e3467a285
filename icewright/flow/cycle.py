"""One pass: detect -> evaluate -> plan -> execute -> record, until nothing is left that may run now."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from icewright.core.plan import Deferred, PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import Detected, detect, look_now
from icewright.flow.evaluate import evaluate_due
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.queue import plan_now
from icewright.flow.world import World


@dataclass(frozen=True)
class CycleResult:
    """The funnel (tables that came so far), the jobs, what waits with its reason, and what could not be read."""

    tables: int
    changed: int
    due: int
    run: int
    jobs: tuple[JobResult, ...]
    deferred: tuple[Deferred, ...]
    errors: tuple[tuple[str, str], ...]


def run_cycle(world: World, catalogs: Sequence[str], *, dry_run: bool = False, force: bool = False) -> CycleResult:
    """One pass over the given catalogs."""
    world.store.event("scan_started", world.clock.now(), catalogs=list(catalogs))
    found, changed = look(world, catalogs, force=force)
    plan = plan_now(world, catalogs)
    due = {job.ref for job in plan.jobs} | {waiting.ref for waiting in plan.deferred}
    world.tell("evaluated", {"due": len(due)})
    jobs: list[JobResult] = []
    done: set[tuple[TableRef, Operation]] = set()
    while plan.jobs:
        jobs += _round(world, plan.jobs, dry_run=dry_run)
        done |= {(job.ref, op) for job in plan.jobs for op in job.operations}
        plan = plan_now(world, catalogs, started=len(jobs), without=done)
    known = [row for name in catalogs for row in world.store.tables(name) if not row.dropped]
    unreadable = [(str(row.ref), row.error) for row in known if row.error]
    result = CycleResult(
        tables=found.tables,
        changed=len(due.union(changed)),
        due=len(due),
        run=len({job.ref for job in jobs if job.dry_run or job.job_id is not None}),
        jobs=tuple(jobs),
        deferred=plan.deferred,
        errors=(*found.errors, *unreadable),
    )
    world.store.event(
        "scan_finished", world.clock.now(), tables=result.tables, changed=result.changed, due=result.due, run=result.run
    )
    return result


def look(world: World, catalogs: Sequence[str], *, force: bool = False) -> tuple[Detected, list[TableRef]]:
    """Detect, and evaluate what moved or whose time has come; `force` looks past the evaluation cooldown."""
    found = detect(world, catalogs)
    read = [name for name in catalogs if name not in dict(found.errors)]
    if force:
        look_now(world, read, world.clock.now())
    world.tell("detected", {"tables": found.tables, "changed": found.moved})
    return found, evaluate_due(world, read)


def _round(world: World, jobs: Sequence[PlannedJob], *, dry_run: bool) -> list[JobResult]:
    """The planned jobs side by side; the plan has kept to the limits."""
    requests = [Request(j.ref, j.operations, j.table_uuid, dry_run=dry_run) for j in jobs]
    with ThreadPoolExecutor(world.limits.per_worker) as pool:
        return list(pool.map(lambda request: _guarded(world, request), requests))


def _guarded(world: World, request: Request) -> JobResult:
    """A fault of ours in one job ends no other."""
    try:
        return execute(world, request)
    except Exception as error:  # noqa: BLE001
        reason = f"unexpected {type(error).__name__}: {error}"
        world.tell("job_broken", {"table": str(request.ref), "error": reason})
        return JobResult(request.ref, None, JobState.FAILED, (), request.dry_run, reason)
