"""One pass: detect -> evaluate -> plan -> execute -> record, until nothing is left that may run now."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from icewright.core.plan import Deferred, MaintenancePlan, PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import Detected, detect, look_now
from icewright.flow.evaluate import evaluate_due
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.queue import plan_now
from icewright.flow.runtime import Runtime


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


def run_cycle(runtime: Runtime, catalogs: Sequence[str], *, dry_run: bool = False, force: bool = False) -> CycleResult:
    """Return one pass over the given catalogs."""
    runtime.store.activity.record("scan_started", runtime.clock.now(), catalogs=list(catalogs))
    found, changed = look(runtime, catalogs, force=force)
    plan = plan_now(runtime, catalogs)
    due = {job.ref for job in plan.jobs} | {waiting.ref for waiting in plan.deferred}
    runtime.emit("evaluated", {"due": len(due)})
    jobs, plan = _run(runtime, catalogs, plan, dry_run=dry_run)
    known = [row for name in catalogs for row in runtime.store.tables.list(name) if not row.dropped]
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
    runtime.store.activity.record(
        "scan_finished",
        runtime.clock.now(),
        tables=result.tables,
        changed=result.changed,
        due=result.due,
        run=result.run,
    )
    return result


def look(runtime: Runtime, catalogs: Sequence[str], *, force: bool = False) -> tuple[Detected, list[TableRef]]:
    """Detect, and evaluate what moved or whose time has come; `force` looks past the evaluation cooldown."""
    found = detect(runtime, catalogs)
    read = [name for name in catalogs if name not in dict(found.errors)]
    if force:
        look_now(runtime, read, runtime.clock.now())
    runtime.emit("detected", {"tables": found.tables, "changed": found.moved})
    return found, evaluate_due(runtime, read)


def _run(
    runtime: Runtime, catalogs: Sequence[str], plan: MaintenancePlan, *, dry_run: bool
) -> tuple[list[JobResult], MaintenancePlan]:
    """The jobs of the plan, and of the plans that are made when some of them have ended; and the plan at the end.

    Each table and operation has one try in a pass; the plans keep to the limits.
    """
    begun: list[Future[JobResult]] = []
    running: dict[Future[JobResult], PlannedJob] = {}
    tried: set[tuple[TableRef, Operation]] = set()
    with ThreadPoolExecutor(runtime.limits.per_worker) as threads:
        while plan.jobs or running:
            for job in plan.jobs:
                request = Request(job.ref, job.operations, job.table_uuid, dry_run=dry_run)
                begun.append(threads.submit(_guarded, runtime, request))
                running[begun[-1]] = job
                tried |= {(job.ref, operation) for operation in job.operations}
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
            plan = plan_now(runtime, catalogs, len(begun), tried, tuple(running.values()))
    return [job.result() for job in begun], plan


def _guarded(runtime: Runtime, request: Request) -> JobResult:
    """Return a fault of ours in one job ends no other."""
    try:
        return execute(runtime, request)
    except Exception as error:  # noqa: BLE001
        reason = f"unexpected {type(error).__name__}: {error}"
        runtime.emit("job_crashed", {"table": str(request.ref), "error": reason})
        return JobResult(request.ref, None, JobState.FAILED, (), request.dry_run, reason)
