"""Routes that change many tables at once, pause everything, and drain processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from icewright.app.web.api import models
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.errors import UsageError
from icewright.core.layering import parse_settings
from icewright.core.permissions import Action, place_of, required_actions
from icewright.flow.bulk import cancel_jobs, drain_process, pause_fleet, pause_tables, queue_jobs, selected_tables
from icewright.ports import TableRow

router = api_router("fleet")
_EVERYTHING = "the whole fleet"


@router.post("/tables/pause", summary="Pause many tables", responses=documented(409))
def pause(body: models.BulkPauseRequest, caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]) -> models.Bulk:
    """Pause the selected tables of the caller; without `expected` only count them."""
    rows = _selected(caller, body, Action.TABLES_PAUSE)
    if body.expected is None:
        return _bulk(rows)
    pause_tables(caller.runtime, rows, body.reason)
    caller.audit_tables([row.ref for row in rows], selection=str(body.selection()), reason=body.reason)
    return _bulk(rows, changed=True)


@router.post("/tables/resume", summary="Resume many tables", responses=documented(409))
def resume(body: models.BulkRequest, caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]) -> models.Bulk:
    """Resume the selected tables of the caller; without `expected` only count them."""
    rows = _selected(caller, body, Action.TABLES_PAUSE)
    if body.expected is None:
        return _bulk(rows)
    pause_tables(caller.runtime, rows, None)
    caller.audit_tables([row.ref for row in rows], selection=str(body.selection()), resumed=True)
    return _bulk(rows, changed=True)


@router.post("/tables/cancel", summary="Cancel the jobs of many tables", responses=documented(409))
def cancel(body: models.BulkRequest, caller: Annotated[Caller, needs(Action.JOBS_CANCEL)]) -> models.Bulk:
    """Cancel queued jobs of the selected tables, and ask running ones to stop; without `expected` only count them."""
    rows = _selected(caller, body, Action.JOBS_CANCEL, with_job=True)
    if body.expected is None:
        return _bulk(rows)
    job_ids = cancel_jobs(caller.runtime, rows)
    cancelled = [row.ref for row in rows if row.job_id in job_ids]
    caller.audit_tables(cancelled, selection=str(body.selection()))
    return _bulk(rows, changed=True, jobs=job_ids)


@router.post("/tables/run", summary="Start operations on many tables", responses=documented(409))
def run(body: models.BulkRunRequest, caller: Annotated[Caller, needs(Action.JOBS_RUN)]) -> models.Bulk:
    """Queue a manual job on each selected table that the caller may run it on; without `expected` only count them."""
    knobs = parse_settings("set", body.set, caller.runtime.policy().guardrails)
    actions = required_actions(body.operations, body.set)
    rows = _selected(caller, body, *actions)
    if body.expected is None:
        return _bulk(rows)
    if (paused := caller.runtime.store.fleet.get()) is not None:
        raise Problem(409, str(paused))
    job_ids, refused = queue_jobs(caller.runtime, rows, body.operations, knobs, force=body.force)
    operations = [str(operation) for operation in body.operations]
    queued = [row.ref for row in rows if str(row.ref) not in refused]
    caller.audit_tables(queued, actions[-1], selection=str(body.selection()), operations=operations, set=knobs)
    return _bulk(rows, changed=True, jobs=job_ids, refused=refused)


@router.get("/fleet", summary="Whether everything is paused")
def fleet(caller: Annotated[Caller, needs(Action.PLAN_READ)]) -> models.Fleet:
    """Return the pause of the whole fleet, or null."""
    return _fleet(caller)


@router.post("/fleet/pause", summary="Pause everything")
def pause_everything(
    body: models.FleetPauseRequest, caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]
) -> models.Fleet:
    """Let no job begin on any table until the fleet is resumed, also after a restart of all processes."""
    caller.require((), _EVERYTHING)
    cancelled = pause_fleet(caller.runtime, body.reason, cancel_running=body.cancel_running)
    caller.audit(_EVERYTHING, (), reason=body.reason, cancelled=len(cancelled))
    return _fleet(caller, cancelled)


@router.post("/fleet/resume", summary="Let jobs begin again")
def resume_everything(caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]) -> models.Fleet:
    """End the pause of the whole fleet; tables that are paused one by one stay so."""
    caller.require((), _EVERYTHING)
    if caller.runtime.store.fleet.end():
        caller.audit(_EVERYTHING, (), resumed=True)
    return _fleet(caller)


@router.post(
    "/processes/{process:segment}/drain",
    summary="Let a process end after its jobs",
    status_code=202,
    responses=documented(404),
)
def drain(process: str, caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]) -> dict[str, str]:
    """Ask a service or worker to take no more jobs; it ends when its jobs have."""
    caller.require((), f"process {process}")
    try:
        row = drain_process(caller.runtime, process)
    except UsageError as error:
        raise Problem(404, str(error)) from error
    caller.audit(f"process {row.holder}", (), drain=True)
    return {"process": row.holder}


def _selected(caller: Caller, body: models.BulkRequest, *actions: Action, with_job: bool = False) -> list[TableRow]:
    """Return the selected tables on which the caller may do all the actions. Raises `Problem` 409 and 422.

    The count must be the expected one, as tables may have come or gone since it was shown.
    """
    principal = caller.principal
    try:
        rows = selected_tables(
            caller.runtime,
            body.selection(),
            lambda ref: all(principal.may(action, place_of(ref)) for action in (Action.TABLES_READ, *actions)),
        )
    except UsageError as error:
        raise Problem(422, str(error)) from error
    rows = [row for row in rows if row.job_id is not None or not with_job]
    if body.expected not in (None, len(rows)):
        raise Problem(409, f"{len(rows)} tables are selected by now, not {body.expected}: look at them again")
    return rows


def _bulk(
    rows: Sequence[TableRow], *, changed: bool = False, jobs: Sequence[str] = (), refused: dict[str, str] | None = None
) -> models.Bulk:
    names = sorted(str(row.ref) for row in rows)
    return models.Bulk(count=len(rows), changed=changed, tables=names, jobs=list(jobs), refused=refused or {})


def _fleet(caller: Caller, cancelled: Sequence[str] = ()) -> models.Fleet:
    paused = caller.runtime.store.fleet.get()
    document: dict[str, Any] | None = None if paused is None else asdict(paused)
    return models.Fleet(paused=document, cancelled=list(cancelled))  # type: ignore[arg-type]
