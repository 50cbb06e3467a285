"""One pass: detect -> evaluate -> plan -> execute -> record, until nothing is left that may run now."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from icewright.core.plan import Candidate, Deferred, Plan, PlannedJob, make_plan
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation, due
from icewright.flow.detect import detect
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.world import World
from icewright.ports import TableRow


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
    now = world.clock.now()
    world.store.event("scan_started", now, catalogs=list(catalogs))
    found = detect(world, catalogs, now, force=force)
    world.tell("detected", {"tables": found.tables, "changed": len(found.changed)})
    candidates = _candidates(world, (*found.changed, *found.pending))
    due_tables = candidates.keys()
    world.tell("evaluated", {"due": len(candidates)})
    jobs: list[JobResult] = []
    left = dict(candidates)
    plan = make_plan(list(left.values()), world.limits, now)
    while plan.jobs:
        jobs += _round(world, plan.jobs, dry_run=dry_run)
        for job in plan.jobs:
            rest = {op: due for op, due in left[job.ref].due.items() if op not in job.operations}
            left[job.ref] = replace(left[job.ref], due=rest)
        plan = make_plan(list(left.values()), world.limits, world.clock.now(), started=len(jobs))
    known = [r for r in world.store.tables() if r.ref.catalog in catalogs and not r.dropped]
    unreadable = [(str(r.ref), r.error) for r in known if r.error]
    ran = len({job.ref for job in jobs if job.dry_run or job.job_id is not None})
    result = CycleResult(
        tables=found.tables,
        changed=len({r.ref for r in found.changed} | due_tables),
        due=len(due_tables),
        run=ran,
        jobs=tuple(jobs),
        deferred=plan.deferred,
        errors=(*found.errors, *unreadable),
    )
    world.store.event(
        "scan_finished", world.clock.now(), tables=result.tables, changed=result.changed, due=result.due, run=result.run
    )
    return result


def plan_now(world: World, catalogs: Sequence[str]) -> tuple[Plan, int]:
    """What the next pass would start, and what would wait; the number of tables seen. Nothing is run."""
    now = world.clock.now()
    found = detect(world, catalogs, now)
    candidates = _candidates(world, (*found.changed, *found.pending))
    return make_plan(list(candidates.values()), world.limits, now), found.tables


def _candidates(world: World, rows: Sequence[TableRow]) -> dict[TableRef, Candidate]:
    """Tables with something due, judged now: neither a verdict of yesterday nor a health of nobody starts anything."""
    now = world.clock.now()
    with ThreadPoolExecutor(4) as pool:
        evaluations = list(pool.map(lambda row: evaluate_and_record(world, row.ref, now), rows))
    known = {row.ref: row for row in world.store.tables()}
    return {
        row.ref: _candidate(world, evaluation, known[row.ref])
        for row, evaluation in zip(rows, evaluations, strict=True)
        if evaluation is not None and due(evaluation)
    }


def _candidate(world: World, evaluation: Evaluation, row: TableRow) -> Candidate:
    metadata = evaluation.facts.metadata
    blocked = f"paused: {row.paused}" if row.paused else f"held by job {row.held_by}" if row.held_by else None
    if not world.scopes[row.ref.catalog].enabled:
        blocked = f"catalog {row.ref.catalog} is not enabled: set catalogs.{row.ref.catalog}.enabled to true"
    return Candidate(
        ref=row.ref,
        table_uuid=metadata.table_uuid,
        due=due(evaluation),
        knobs=world.policy().knobs_for(row.ref, metadata),
        history=world.store.history(row.ref, metadata.table_uuid),
        due_since=row.due_since or world.clock.now(),
        blocked=blocked,
    )


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
