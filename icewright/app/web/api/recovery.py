"""Routes of recovery points, and of restores and repairs, which workers carry out as jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from icewright.app.documents import points_document, repair_document, restore_document
from icewright.app.web.api import models
from icewright.app.web.api.tables import metadata_of
from icewright.app.web.api.triggers import require_queued, require_startable
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.permissions import Action, place_of
from icewright.core.repair import files_named
from icewright.flow.bulk import queue_requested
from icewright.flow.repair import APPROVED_ROWS, REPAIR
from icewright.flow.repair import repair as repair_table
from icewright.flow.restore import RESTORE, RESTORE_FROM, point_costs
from icewright.flow.restore import restore as restore_tables

_FOOTERS_IN_A_REQUEST = 10_000  # some 20 seconds of an object store

router = api_router("recovery", prefix="/tables")


@router.get("/{name:segment}/points", summary="Recovery points", responses=documented(404, 409))
def points(
    name: str,
    caller: Annotated[Caller, needs(Action.TABLES_READ)],
    costs: Annotated[bool, Query(description="say which bytes stay for the points too; reads all manifests")] = False,
) -> models.Points:
    """Return the recovery points that the table's metadata has now."""
    row, runtime = caller.table(name), caller.runtime
    metadata = metadata_of(runtime, row)
    if not costs:
        return models.Points(**points_document(metadata, runtime.limits))
    with caller.heavy():
        return models.Points(**points_document(metadata, runtime.limits, point_costs(runtime, metadata)))


@router.post(
    "/{name:segment}/restore",
    summary="Return a table to an earlier state",
    status_code=202,
    responses={200: {"model": models.Restore, "description": "A dry run, or nothing to do"}, **documented(404, 409)},
)
def restore(
    name: str,
    body: models.RestoreRequest,
    response: Response,
    caller: Annotated[Caller, needs(Action.TABLES_RESTORE)],
) -> models.Restore:
    """Queue a job that sets main back and tags the state before; a commit that comes between refuses it."""
    row, runtime = caller.table(name), caller.runtime
    require_startable(caller, row, dry_run=body.dry_run)
    with caller.heavy():
        (result,) = restore_tables(runtime, [row.ref], body.to, dry_run=True)
    document = restore_document(result) | {"dry_run": body.dry_run}
    ids = {key: str(document[key]) for key in ("from_snapshot_id", "to_snapshot_id")}
    if body.expected_snapshot_id not in (None, ids["from_snapshot_id"]):
        raise Problem(
            409, f"{row.ref}: a writer has committed snapshot {ids['from_snapshot_id']} since: look at it and ask again"
        )
    if body.dry_run or result.plan.already:
        response.status_code = 200
    else:
        options = {RESTORE: ids["to_snapshot_id"], RESTORE_FROM: ids["from_snapshot_id"]}
        document["job_id"] = require_queued(caller, row, queue_requested(runtime, row, options))
        details = {"what": "restore", "job_id": document["job_id"], "to": body.to, **ids}
        caller.audit(str(row.ref), place_of(row.ref), None, **details)
    return models.Restore(**document | ids)


@router.post(
    "/{name:segment}/repair",
    summary="Repair what a check finds",
    status_code=202,
    responses={200: {"model": models.Repair, "description": "A dry run"}, **documented(404, 409)},
)
def repair(
    name: str,
    body: models.RepairRequest,
    response: Response,
    caller: Annotated[Caller, needs(Action.TABLES_RESTORE)],
) -> models.Started | models.Repair:
    """Queue a job that checks the table to its footers and repairs what is provably right."""
    row, runtime = caller.table(name), caller.runtime
    require_startable(caller, row, dry_run=body.dry_run)
    if body.dry_run:
        response.status_code = 200
        if (files := files_named(metadata_of(runtime, row))) > _FOOTERS_IN_A_REQUEST:
            raise Problem(
                409,
                f"{row.ref}: its snapshots name {files:,} files, and a request reads the footers of at most "
                f"{_FOOTERS_IN_A_REQUEST:,}: run `icewright repair {row.ref} --dry-run` where the service runs, or let "
                "a job repair the table: with 0 approved rows main loses none, and the job says how many it would lose",
            )
        with caller.heavy():
            result = repair_table(runtime, row.ref, drop_lost=body.drop_lost, dry_run=True)
        return models.Repair(**repair_document(result))
    drop_lost, approved = str(body.drop_lost).lower(), body.approved_rows
    job_id = require_queued(caller, row, queue_requested(runtime, row, {REPAIR: drop_lost, APPROVED_ROWS: approved}))
    caller.audit(str(row.ref), place_of(row.ref), what="repair", job_id=job_id, drop_lost=drop_lost, approved=approved)
    return models.Started(
        table=str(row.ref), job_id=job_id, state="queued", dry_run=False, operations=[], summary=f"queued job {job_id}"
    )
