"""Routes of jobs, runs, files and events; of the queue and the plan; of planned deletions and of undoing jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query

from icewright.app.documents import deferred_documents, removal_document, undo_document, waiting_document
from icewright.app.web.api import models
from icewright.app.web.api.paging import Cursor, Limit, decoded, encoded
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.permissions import Action, place_of, sees
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.flow.erase import ERASE
from icewright.flow.layout import FILTERS
from icewright.flow.queue import plan_now
from icewright.flow.undo import give_up as give_up_deletions
from icewright.flow.undo import undo as undo_job
from icewright.ports import JobRow
from icewright.ports.views import After, DeletionQuery, JobItem, JobQuery, RunQuery, WaitingItem, WaitingQuery

router = api_router("jobs")

OfTable = Annotated[models.Text | None, Query(description="catalog.namespace.table")]
Search = Annotated[models.Text | None, Query(description="part of the table's name, in any case")]
Since = Annotated[models.Instant | None, Query(description="created then or later")]
OfCatalog = Annotated[models.Text | None, Query(description="only this catalog")]


@router.get("/jobs", summary="List jobs", responses=documented(404))
def jobs(  # noqa: PLR0913, PLR0917 - query parameters, given by their names
    caller: Annotated[Caller, needs(Action.JOBS_READ)],
    table: OfTable = None,
    catalog: OfCatalog = None,
    state: Annotated[list[JobState] | None, Query(description="one of these")] = None,
    operation: Annotated[Operation | None, Query()] = None,
    trigger: Annotated[models.Text | None, Query(description="cycle, service or manual")] = None,
    search: Search = None,
    since: Since = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.Jobs:
    """Return a page of jobs, newest first."""
    ref = caller.table(table).ref if table is not None else None
    query = JobQuery(None, ref, catalog, tuple(map(str, state or ())), operation, trigger, search, since)
    after = decoded(cursor)
    return caller.cached_until_change("jobs", query, after, limit, work=lambda: _listed(caller, query, after, limit))


@router.get("/jobs/{job_id:segment}", summary="One job", responses=documented(404))
def job(job_id: str, caller: Annotated[Caller, needs(Action.JOBS_READ)]) -> models.JobDetail:
    """Return a job with its runs, the snapshots that it removed, and its planned deletions.

    A unique prefix of the id is accepted, and the letters after its last dash.
    """
    row, store = caller.job(job_id), caller.runtime.store
    removals = store.ledger.removals(row.job_id)
    undone = any(removal.undone_at is not None for removal in removals)
    runs = [
        _run({**run, "ref": row.ref, "undone": undone and run["operation"] == Operation.EXPIRE_SNAPSHOTS})
        for run in store.runs.list(row.job_id)
    ]
    (item,) = store.views.list_jobs(JobQuery(job_id=row.job_id), None, None, 1).items
    reads = store.pins.reads(row.ref) if removals else {}
    waiting = store.views.list_deletions(DeletionQuery(job_id=row.job_id), None, None, len(Operation)).items
    return models.JobDetail(
        **_job(item).model_dump(),
        options=_options(row, caller),
        has_result=row.work is not None and store.jobs.result(row.job_id) is not None,
        runs=runs,
        removed=[models.Removed(**removal_document(removal, reads)) for removal in removals],
        waiting=[models.WaitingFiles(**waiting_document(item)) for item in waiting],
    )


@router.get("/jobs/{job_id:segment}/files", summary="What a job deleted, found or kept", responses=documented(404))
def files(
    job_id: str, caller: Annotated[Caller, needs(Action.JOBS_READ)], limit: Limit = 100, cursor: Cursor = None
) -> models.Files:
    """Return the job's files in the deletion ledger."""
    page = caller.runtime.store.views.list_files(caller.job(job_id).job_id, decoded(cursor), limit)
    return models.Files(items=[models.File(**item) for item in page.items], next=encoded(page.after))


@router.get("/jobs/{job_id:segment}/events", summary="What a job said", responses=documented(404))
def events(
    job_id: str, caller: Annotated[Caller, needs(Action.JOBS_READ)], limit: Limit = 100, cursor: Cursor = None
) -> models.Events:
    """Return the job's events in order; poll with the last `next` for new ones."""
    page = caller.runtime.store.views.list_events(caller.job(job_id).job_id, decoded(cursor), limit)
    return models.Events(items=[models.Event(**item) for item in page.items], next=encoded(page.after))


@router.post(
    "/jobs/{job_id:segment}/cancel", summary="Ask a job to stop", status_code=202, responses=documented(404, 409)
)
def cancel(job_id: str, caller: Annotated[Caller, needs(Action.JOBS_CANCEL)]) -> models.Job:
    """Cancel a queued job at once, a running one before its next step."""
    row, store = caller.job(job_id), caller.runtime.store
    if not store.jobs.request_cancel(row.job_id, caller.runtime.clock.now()):
        raise Problem(409, f"job {row.job_id} does not run: it is {row.state}")
    caller.audit(f"job {row.job_id} of {row.ref}", place_of(row.ref))
    return models.Job.model_validate(job(row.job_id, caller).model_dump())


@router.get("/runs", summary="List runs", responses=documented(404))
def runs(
    caller: Annotated[Caller, needs(Action.JOBS_READ)],
    table: OfTable = None,
    catalog: OfCatalog = None,
    operation: Annotated[Operation | None, Query()] = None,
    state: Annotated[list[OperationState] | None, Query(description="one of these")] = None,
    since: Annotated[models.Instant | None, Query(description="finished then or later")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.Runs:
    """Return operations of jobs, newest first, each with the table before and after."""
    ref = caller.table(table).ref if table is not None else None
    query = RunQuery(ref, catalog, operation, tuple(map(str, state or ())), since)
    page = caller.runtime.store.views.list_runs(query, caller.visibility, decoded(cursor), limit)
    return models.Runs(items=[_run(item) for item in page.items], next=encoded(page.after))


@router.get("/queue", summary="What runs, and what waits with which reason")
def queue(
    caller: Annotated[Caller, needs(Action.PLAN_READ)],
    catalog: OfCatalog = None,
    operation: Annotated[Operation | None, Query()] = None,
    search: Search = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> models.Queue:
    """Return open jobs, then a page of due operations in the order of the last plan."""
    views, visibility = caller.runtime.store.views, caller.visibility
    query = WaitingQuery(None, catalog, operation, search)
    after = decoded(cursor)
    page = caller.cached_briefly(
        "waiting", query, after, limit, work=lambda: views.list_waiting(query, visibility, after, limit)
    )
    jobs = views.list_queue(JobQuery(catalog=catalog, operation=operation, search=search), visibility, limit)
    return models.Queue(
        jobs=[_job(item) for item in jobs],
        waiting=[_waiting(item) for item in page.items],
        total=page.total or 0,
        next=encoded(page.after),
    )


@router.get("/plan", summary="What would start now")
def plan(
    caller: Annotated[Caller, needs(Action.PLAN_READ)], catalog: OfCatalog = None, limit: Limit = 100
) -> models.Plan:
    """Return the plan that the service would make now, without starting jobs."""
    runtime, visibility = caller.runtime, caller.visibility
    names = [name for name in sorted(runtime.scopes) if catalog in (None, name)]
    with caller.heavy():
        new_plan = plan_now(runtime, names)
    planned = [job for job in new_plan.jobs if sees(visibility, place_of(job.ref))]
    deferred = [operation for operation in new_plan.deferred if sees(visibility, place_of(operation.ref))]
    return models.Plan(
        jobs=[
            models.Planned(
                table=str(job.ref),
                operations=list(job.operations),
                score=job.score,
                benefit_mb=job.benefit,
                cost_gb_hours=job.cost,
                why=job.why,
                pool=job.pool,
            )
            for job in planned[:limit]
        ],
        deferred=deferred_documents(deferred[:limit]),
        deferred_total=len(deferred),
    )


def _options(row: JobRow, caller: Caller) -> dict[str, Any]:
    """Return a job's options; predicates, which may name a person, for those alone who may ask by them."""
    hidden = {ERASE: (Action.TABLES_ERASE, ""), FILTERS: (Action.JOBS_RUN, [])}
    return {
        name: hidden[name][1]
        if name in hidden and not caller.principal.may(hidden[name][0], place_of(row.ref))
        else value
        for name, value in row.options.items()
    }


def _listed(caller: Caller, query: JobQuery, after: After | None, limit: int) -> models.Jobs:
    page = caller.runtime.store.views.list_jobs(query, caller.visibility, after, limit)
    return models.Jobs(items=[_job(item) for item in page.items], next=encoded(page.after))


def _job(item: JobItem) -> models.Job:
    row: JobRow = item.job
    names = ("job_id", "state", "operations", "work", "trigger", "actor", "created", "started", "finished", "summary")
    costs = ("score", "cost", "gb_hours", "gb_hours_driver", "money")
    return models.Job(
        **{name: getattr(row, name) for name in names},
        table=str(row.ref),
        cancel_requested=row.cancel_requested,
        pool=item.pool,
        on_pool=item.on_pool,
        **{name: getattr(item, name) for name in costs},
    )


def _run(row: Mapping[str, Any]) -> models.Run:
    return models.Run(**{name: row[name] for name in models.Run.model_fields if name != "table"}, table=str(row["ref"]))


def _waiting(item: WaitingItem) -> models.Waiting:
    names = ("operation", "why", "reason", "position", "score", "due_since")
    return models.Waiting(
        **{name: getattr(item, name) for name in names},
        table=str(item.ref),
        benefit_mb=item.benefit,
        cost_gb_hours=item.cost,
    )


@router.get("/deletions", summary="Deletions that wait", responses=documented(404))
def deletions(
    caller: Annotated[Caller, needs(Action.JOBS_READ)],
    table: OfTable = None,
    catalog: OfCatalog = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.Deletions:
    """Return files that jobs still have to delete, by job and operation, oldest job first."""
    query = DeletionQuery(ref=caller.table(table).ref if table is not None else None, catalog=catalog)
    page = caller.runtime.store.views.list_deletions(query, caller.visibility, decoded(cursor), limit)
    items = [models.WaitingFiles(**waiting_document(waiting)) for waiting in page.items]
    return models.Deletions(items=items, next=encoded(page.after))


@router.post("/jobs/{job_id:segment}/undo", summary="Undo a job", responses=documented(404, 409))
def undo(job_id: str, body: models.UndoRequest, caller: Annotated[Caller, needs(Action.JOBS_UNDO)]) -> models.Undone:
    """Restore a job's expired snapshots and refs and drop its planned deletions; repeating it changes nothing."""
    job = caller.job(job_id)
    document = undo_document(undo_job(caller.runtime, job.job_id, dry_run=body.dry_run))
    if not body.dry_run:
        counts = {name: document[name] for name in ("undone_by", "already", "refs", "files")}
        details = {**counts, "snapshots": len(document["snapshots"])}
        caller.audit(f"job {job.job_id} of {job.ref}", place_of(job.ref), what="undo", **details)
    return models.Undone(**document)


@router.post("/jobs/{job_id:segment}/give-up", summary="Give the deletions of a job up", responses=documented(404, 409))
def give_up(job_id: str, caller: Annotated[Caller, needs(Action.JOBS_UNDO)]) -> models.GivenUp:
    """Drop a job's planned deletions for good; the files stay."""
    job = caller.job(job_id)
    dropped_files = give_up_deletions(caller.runtime, job.job_id)
    caller.audit(f"job {job.job_id} of {job.ref}", place_of(job.ref), what="give-up", files=dropped_files)
    return models.GivenUp(job_id=job.job_id, table=str(job.ref), files=dropped_files)
