"""Manual requests, for one table or many at once: run, pause, resume and cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from icewright.core.capacity import Priority
from icewright.core.errors import UsageError
from icewright.core.operation import in_order
from icewright.core.plan import PlannedJob
from icewright.core.policy import ON_POOL, Operation
from icewright.core.selection import TableSelection
from icewright.core.table import TableRef
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, FleetPause, ProcessRow, TableRow
from icewright.ports.views import JobQuery

_PAGE = 500


def queue_manual_job(
    runtime: Runtime, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any], *, force: bool = False
) -> str | None:
    """Queue a job past cooldowns, windows and scores; return its id, or None when the table has a job already."""
    return queue_requested(runtime, row, {"set": dict(knobs), "force": force}, operations)


def queue_requested(
    runtime: Runtime,
    row: TableRow,
    options: Mapping[str, Any],
    operations: Sequence[Operation] = (),
    *,
    on_pool: bool = False,
) -> str | None:
    """Queue operations, or what the options name (`flow.requested`); return the job's id, or None as above.

    `on_pool`: that is Spark's work.
    """
    ordered = in_order(operations)
    job = PlannedJob(
        ref=row.ref,
        table_uuid=row.table_uuid or "",
        operations=ordered,
        score=0.0,
        benefit=0.0,
        cost=0.0,
        why="requested manually",
        pool=runtime.scopes[row.ref.catalog].pool,
        on_pool=on_pool or any(op in ON_POOL for op in ordered),
        priority=Priority.MANUAL,
    )
    return runtime.store.jobs.enqueue(job, replace(runtime.trigger, kind=MANUAL), runtime.clock.now(), options)


def would_do(runtime: Runtime, row: TableRow, operations: Sequence[Operation], knobs: Mapping[str, Any]) -> JobResult:
    """Return the result of a dry run of the operations."""
    request = Request(row.ref, in_order(operations), manual=True, dry_run=True)
    return execute(runtime.with_settings(knobs), request)


def selected_tables(
    runtime: Runtime, selection: TableSelection, visible: Callable[[TableRef], bool] = lambda _: True
) -> list[TableRow]:
    """Return the tables of a selection that the store knows and the caller may change, dropped ones left out.

    Raises `UsageError` for a name or pattern that selects none of them.
    """
    rows = [row for row in runtime.store.tables.list() if not row.dropped and selection.contains(row.ref)]
    rows = [row for row in rows if visible(row.ref)]
    if unmatched := selection.without_match([row.ref for row in rows]):
        raise UsageError(f"{unmatched[0]}: no such table is known here; `icewright tables` lists them")
    return rows


def pause_tables(runtime: Runtime, rows: Sequence[TableRow], reason: str | None) -> None:
    """Pause tables with a reason, or resume them with None, some hundreds in each transaction."""
    refs = [row.ref for row in rows]
    for start in range(0, len(refs), _PAGE):
        page = refs[start : start + _PAGE]
        runtime.retry_idempotent(partial(runtime.store.tables.pause_many, page, reason))  # a deadlock ends one of two


def cancel_jobs(runtime: Runtime, rows: Sequence[TableRow]) -> list[str]:
    """Cancel the queued jobs of tables, and ask running ones to stop; return the ids of those jobs."""
    now = runtime.clock.now()
    open_ids = [row.job_id for row in rows if row.job_id is not None]
    return [job_id for job_id in open_ids if runtime.store.jobs.request_cancel(job_id, now)]


def queue_jobs(
    runtime: Runtime,
    rows: Sequence[TableRow],
    operations: Sequence[Operation],
    knobs: Mapping[str, Any],
    *,
    force: bool,
) -> tuple[list[str], dict[str, str]]:
    """Queue a manual job on each table; return the job ids, and the reason for each table that got none."""
    job_ids: list[str] = []
    refused: dict[str, str] = {}
    for row in rows:
        if row.ref.catalog not in runtime.scopes:
            refused[str(row.ref)] = f"the configuration has no catalog {row.ref.catalog}"
        elif row.table_uuid is None:
            refused[str(row.ref)] = "it has not been evaluated yet"
        elif row.paused and not force:
            refused[str(row.ref)] = f"it is paused: {row.paused}"
        elif (job_id := queue_manual_job(runtime, row, operations, knobs, force=force)) is None:
            refused[str(row.ref)] = "it has a job already"
        else:
            job_ids.append(job_id)
    return job_ids, refused


def pause_fleet(runtime: Runtime, reason: str, *, cancel_running: bool) -> list[str]:
    """Pause the whole fleet; with `cancel_running` ask running jobs to stop, and return their ids."""
    now = runtime.clock.now()
    runtime.store.fleet.begin(FleetPause(reason, runtime.trigger.actor, now))
    if not cancel_running:
        return []
    running, after = [], None
    while True:
        page = runtime.store.views.list_jobs(JobQuery(states=("running",)), None, after, _PAGE)
        running += [item.job.job_id for item in page.items]
        if (after := page.after) is None:
            return [job_id for job_id in running if runtime.store.jobs.request_cancel(job_id, now)]


def drain_process(runtime: Runtime, name: str) -> ProcessRow:
    """Ask the process of this id, or of this unique prefix of one, to take no more jobs and to end after its jobs."""
    rows = runtime.store.processes.list() if name else ()
    matching = [row for row in rows if row.holder == name] or [row for row in rows if row.holder.startswith(name)]
    if len(matching) != 1 or not runtime.store.processes.request_drain(matching[0].holder, runtime.clock.now()):
        raise UsageError(f"no process, or more than one, begins with {name!r}; `icewright status` lists them")
    return matching[0]
