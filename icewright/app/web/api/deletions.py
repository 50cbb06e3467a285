"""Routes of planned deletions, and of undoing jobs."""

from __future__ import annotations

from typing import Annotated

from icewright.app.documents import undo_document, waiting_document
from icewright.app.web.api import models
from icewright.app.web.api.jobs import OfCatalog, OfTable
from icewright.app.web.api.paging import Cursor, Limit, decoded, encoded
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import documented
from icewright.core.permissions import Action, place_of
from icewright.flow.undo import give_up as give_up_deletions
from icewright.flow.undo import undo as undo_job
from icewright.ports.views import DeletionQuery

router = api_router("jobs")


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
