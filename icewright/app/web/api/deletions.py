"""Deletions that wait, and undoing jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from icewright.app.documents import undo_document, waiting_document
from icewright.app.web.api import models
from icewright.app.web.api.jobs import OfCatalog, OfTable
from icewright.app.web.api.paging import Cursor, Limit, decoded, encoded
from icewright.app.web.callers import Caller, needs, x_permission
from icewright.app.web.problems import documented
from icewright.app.web.threads import SingleThreadRoute
from icewright.core.permissions import Action, place_of
from icewright.flow.undo import give_up as give_up_deletions
from icewright.flow.undo import undo as undo_job
from icewright.ports.views import DeletionQuery

router = APIRouter(
    tags=["jobs"], responses=documented(400, 401, 403, 408, 413, 422, 429, 503), route_class=SingleThreadRoute
)


@router.get(
    "/deletions", summary="Deletions that wait", openapi_extra=x_permission(Action.JOBS_READ), responses=documented(404)
)
def deletions(
    caller: Annotated[Caller, needs(Action.JOBS_READ)],
    table: OfTable = None,
    catalog: OfCatalog = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.Deletions:
    """Files that jobs planned to delete and that are still there, by job and operation, the oldest job first."""
    query = DeletionQuery(ref=caller.table(table).ref if table is not None else None, catalog=catalog)
    page = caller.runtime.store.views.list_deletions(query, caller.visibility, decoded(cursor), limit)
    items = [models.WaitingFiles(**waiting_document(waiting)) for waiting in page.items]
    return models.Deletions(items=items, next=encoded(page.after))


@router.post(
    "/jobs/{job_id:segment}/undo",
    summary="Undo a job",
    openapi_extra=x_permission(Action.JOBS_UNDO),
    responses=documented(404, 409),
)
def undo(job_id: str, asked: models.UndoRequest, caller: Annotated[Caller, needs(Action.JOBS_UNDO)]) -> models.Undone:
    """Its expired snapshots and refs return, and its planned deletions are dropped; a second time changes nothing."""
    found = caller.job(job_id)
    document = undo_document(undo_job(caller.runtime, found.job_id, dry_run=asked.dry_run))
    if not asked.dry_run:
        counts = {name: document[name] for name in ("undone_by", "already", "refs", "files")}
        details = {**counts, "snapshots": len(document["snapshots"])}
        caller.audit(f"job {found.job_id} of {found.ref}", place_of(found.ref), what="undo", **details)
    return models.Undone(**document)


@router.post(
    "/jobs/{job_id:segment}/give-up",
    summary="Give the deletions of a job up",
    openapi_extra=x_permission(Action.JOBS_UNDO),
    responses=documented(404, 409),
)
def give_up(job_id: str, caller: Annotated[Caller, needs(Action.JOBS_UNDO)]) -> models.GivenUp:
    """Its files that wait to be deleted stay where they are, for good."""
    found = caller.job(job_id)
    left = give_up_deletions(caller.runtime, found.job_id)
    caller.audit(f"job {found.job_id} of {found.ref}", place_of(found.ref), what="give-up", files=left)
    return models.GivenUp(job_id=found.job_id, table=str(found.ref), files=left)
