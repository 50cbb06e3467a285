"""One maintenance cycle: detect, evaluate, plan and execute, until nothing is left that may run now."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from icewright.core.errors import explained
from icewright.core.plan import Deferred, MaintenancePlan, PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import Detected, detect, schedule_changed
from icewright.flow.evaluator import evaluate_due
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.queue import plan_now
from icewright.flow.runtime import Runtime
from icewright.flow.vacuum import vacuum_due
from icewright.ports.work import WorkerThreads


@dataclass(frozen=True)
class CycleResult:
    """Counts of tables by stage, the jobs, the deferred operations with reasons, and what could not be read."""

    tables: int
    changed: int
    due: int
    run: int
    jobs: tuple[JobResult, ...]
    deferred: tuple[Deferred, ...]
    errors: tuple[tuple[str, str], ...]


def run_cycle(
    runtime: Runtime,
    catalogs: Sequence[str],
    *,
    dry_run: bool = False,
    force: bool = False,
    asking: AbstractContextManager[None] | None = None,
) -> CycleResult:
    """Run one maintenance cycle over the given catalogs and return its result; they are read within `asking`."""
    runtime.store.activity.record("scan_started", runtime.clock.now(), catalogs=list(catalogs))
    with asking or nullcontext():
        detected, changed = detect_and_evaluate(runtime, catalogs, force=force)
    plan = plan_now(runtime, catalogs)
    due = {job.ref for job in plan.jobs} | {waiting.ref for waiting in plan.deferred}
    runtime.emit("evaluated", {"due": len(due)})
    jobs, plan = _run_plans(runtime, catalogs, plan, dry_run=dry_run)
    vacuums = vacuum_due(runtime, [name for name in catalogs if name not in dict(detected.errors)], dry_run=dry_run)
    jobs += [job for result in vacuums for job in result.jobs]
    rows = [row for name in catalogs for row in runtime.store.tables.list(name) if not row.dropped]
    unreadable = [(str(row.ref), row.error) for row in rows if row.error]
    result = CycleResult(
        tables=detected.tables,
        changed=len(due.union(changed)),
        due=len(due),
        run=len({job.ref for job in jobs if job.dry_run or job.job_id is not None}),
        jobs=tuple(jobs),
        deferred=plan.deferred,
        errors=(*detected.errors, *unreadable, *(error for result in vacuums for error in result.errors)),
    )
    runtime.store.activity.record(
        "scan_finished",
        runtime.clock.now(),
        tables=result.tables,
        changed=result.changed,
        due=result.due,
        run=result.run,
    )
    return result


def detect_and_evaluate(
    runtime: Runtime, catalogs: Sequence[str], *, force: bool = False
) -> tuple[Detected, list[TableRef]]:
    """Detect, then evaluate the tables that changed or are scheduled; `force` ignores the evaluation cooldown."""
    detected = detect(runtime, catalogs)
    readable = [name for name in catalogs if name not in dict(detected.errors)]
    if force:
        schedule_changed(runtime, readable, runtime.clock.now())
    runtime.emit("detected", {"tables": detected.tables, "changed": detected.changed})
    return detected, evaluate_due(runtime, readable)


def _run_plans(
    runtime: Runtime, catalogs: Sequence[str], plan: MaintenancePlan, *, dry_run: bool
) -> tuple[list[JobResult], MaintenancePlan]:
    """Run the jobs of the plan, planning again when jobs end; return the results and the last plan.

    Each operation runs at most once per table in a cycle; every plan keeps to the limits.
    """
    futures: list[Future[JobResult]] = []
    running: dict[Future[JobResult], PlannedJob] = {}
    attempted: set[tuple[TableRef, Operation]] = set()
    with WorkerThreads(runtime.limits().per_worker) as pool:
        while plan.jobs or running:
            for job in plan.jobs:
                request = Request(job.ref, job.operations, job.table_uuid, dry_run=dry_run)
                futures.append(pool.submit(_execute_safely, runtime, request))
                running[futures[-1]] = job
                attempted |= {(job.ref, operation) for operation in job.operations}
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
            plan = plan_now(runtime, catalogs, len(futures), attempted, tuple(running.values()))
    return [job.result() for job in futures], plan


def _execute_safely(runtime: Runtime, request: Request) -> JobResult:
    """Run one job; an unexpected exception becomes its result, so that the other jobs go on."""
    try:
        return execute(runtime, request)
    except Exception as error:  # noqa: BLE001
        reason = explained(error)
        runtime.emit("job_crashed", {"table": str(request.ref), "error": reason})
        return JobResult(request.ref, None, JobState.FAILED, (), request.dry_run, reason)
