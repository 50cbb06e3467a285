"""Routes of recovery points and registrations, and of jobs of workers: restores, repairs, erasures, copies, layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Response

from icewright.app.documents import points_document, restore_document
from icewright.app.environment import erasure_key
from icewright.app.web.api import models
from icewright.app.web.api.tables import metadata_of
from icewright.app.web.api.triggers import require_queued, require_startable, started
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.errors import UsageError
from icewright.core.layout import MEASURED_ON
from icewright.core.permissions import Action, place_of
from icewright.core.repair import files_named
from icewright.core.table import TableRef
from icewright.flow.bulk import queue_requested
from icewright.flow.copy import COPY, copy_table
from icewright.flow.erase import ERASE, job_options
from icewright.flow.erase import certificate as signed
from icewright.flow.layout import FILTERS, LAYOUTS, PREDICT_ONLY
from icewright.flow.register import register as register_table
from icewright.flow.repair import APPROVED_ROWS, PLAN_ONLY, REPAIR
from icewright.flow.repair import repair as repair_table
from icewright.flow.restore import RESTORE, RESTORE_FROM, point_costs
from icewright.flow.restore import restore as restore_tables
from icewright.ports import JobRow, TableRow

_FOOTERS_IN_A_REQUEST = 10_000  # some 20 seconds of an object store

router = api_router("recovery", prefix="/tables")
catalogs = api_router("recovery", prefix="/catalogs")
jobs = api_router("recovery", prefix="/jobs")


@router.get("/{name:segment}/points", summary="Recovery points", responses=documented(404, 409))
def points(
    name: str,
    caller: Annotated[Caller, needs(Action.TABLES_READ)],
    costs: Annotated[
        bool, Query(description="include the bytes that stay for the points, which reads all manifests")
    ] = False,
) -> models.Points:
    """Return the recovery points that the table's metadata has now."""
    row, runtime = caller.table(name), caller.runtime
    metadata = metadata_of(runtime, row)
    if not costs:
        return models.Points(**points_document(metadata, runtime.limits()))
    with caller.heavy():
        return models.Points(**points_document(metadata, runtime.limits(), point_costs(runtime, metadata)))


@router.post(
    "/{name:segment}/restore",
    summary="Return a table to an earlier state",
    status_code=202,
    responses={200: {"model": models.Restore, "description": "A dry run, or nothing to do"}, **documented(404, 409)},
)
def restore(
    name: str, body: models.RestoreRequest, response: Response, caller: Annotated[Caller, needs(Action.TABLES_RESTORE)]
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
    name: str, body: models.RepairRequest, response: Response, caller: Annotated[Caller, needs(Action.TABLES_RESTORE)]
) -> models.Started | models.Repair:
    """Queue a job that checks the table to its footers and repairs what is provably right."""
    row, runtime = caller.table(name), caller.runtime
    require_startable(caller, row, dry_run=body.dry_run)
    files = files_named(metadata_of(runtime, row)) if body.dry_run else 0
    if body.dry_run and files <= _FOOTERS_IN_A_REQUEST:
        response.status_code = 200
        with caller.heavy():
            result = repair_table(runtime, row.ref, drop_lost=body.drop_lost, dry_run=True)
        return models.Repair(**result.document)
    options = {REPAIR: str(body.drop_lost).lower(), APPROVED_ROWS: body.approved_rows, PLAN_ONLY: body.dry_run}
    return _queued(caller, row, options, dry_run=body.dry_run)


@router.post("/{name:segment}/erase", summary="Erase rows", status_code=202, responses=documented(404, 409))
def erase(
    name: str, body: models.EraseRequest, caller: Annotated[Caller, needs(Action.TABLES_ERASE)]
) -> models.Started:
    """Queue a job that finds rows in every file that keeps them, and runs the operations that remove them."""
    row = caller.table(name)
    if row.paused and not body.dry_run:
        raise Problem(409, f"{row.ref} is paused ({row.paused}): resume the table before rows are erased")
    return _queued(caller, row, job_options(caller.runtime, body.where, dry_run=body.dry_run), dry_run=body.dry_run)


@router.post(
    "/{name:segment}/copy",
    summary="Copy a table to another place",
    status_code=202,
    responses={200: {"model": models.Copy, "description": "A dry run"}, **documented(404, 409)},
)
def copy(
    name: str, body: models.CopyRequest, response: Response, caller: Annotated[Caller, needs(Action.TABLES_COPY)]
) -> models.Started | models.Copy:
    """Queue a job that copies what the place lacks, and checks the copy."""
    row = caller.table(name)
    if body.dry_run:
        require_startable(caller, row, dry_run=True)
        response.status_code = 200
        with caller.heavy():
            return models.Copy(**copy_table(caller.runtime, row.ref, body.to, dry_run=True).document)
    return _queued(caller, row, {COPY: body.to}, dry_run=False)


@router.post("/{name:segment}/layouts", summary="Try layouts", status_code=202, responses=documented(404, 409))
def layouts(
    name: str, body: models.LayoutsRequest, caller: Annotated[Caller, needs(Action.JOBS_RUN)]
) -> models.Started:
    """Queue a job that predicts what filters would read in each layout, and lets Spark measure the best on a branch."""
    options = {LAYOUTS: MEASURED_ON, FILTERS: body.filters, PREDICT_ONLY: body.dry_run}
    return _queued(caller, caller.table(name), options, dry_run=body.dry_run, on_pool=not body.dry_run)


@catalogs.post("/{catalog:segment}/register", summary="Register a table from its files", responses=documented(404, 409))
def register(
    catalog: str, body: models.RegisterRequest, caller: Annotated[Caller, needs(Action.TABLES_COPY)]
) -> models.Registered:
    """Register a table by the newest metadata file of a place. Refused where the newest one is not certain."""
    ref = TableRef.parse(f"{catalog}.{body.name}")
    caller.require(place_of(ref), str(ref))
    caller.require_catalog(catalog)
    how = {"dry_run": body.dry_run, "replace_lost": body.replace_lost}
    with caller.heavy():
        document = register_table(caller.runtime, ref, body.place, **how).document
    if not body.dry_run:
        details = {"metadata_location": document["metadata_location"], "replaced": document["replaced"]}
        caller.audit(str(ref), place_of(ref), what="register", **details)
    return models.Registered(**document)


@jobs.get("/{job_id:segment}/result", summary="What a job found or made", responses=documented(404))
def result(job_id: str, caller: Annotated[Caller, needs(Action.JOBS_READ)]) -> models.Result:
    """Return the result of a job without operations, as its command prints it; of an erasure only to who may erase."""
    job, document = _result(caller, job_id)
    if ERASE in job.options:
        caller.require(place_of(job.ref), f"job {job.job_id} of {job.ref}", Action.TABLES_ERASE)
    certificate = document.pop("certificate", None)
    return models.Result(job_id=job.job_id, work=job.work or "", document=document, certified=certificate is not None)


@jobs.get("/{job_id:segment}/certificate", summary="The certificate of an erasure", responses=documented(404, 409))
def certificate(job_id: str, caller: Annotated[Caller, needs(Action.TABLES_ERASE)]) -> dict[str, Any]:
    """Return the certificate that no file holds a matching row, signed by the service's ICEWRIGHT_ERASURE_KEY."""
    job, document = _result(caller, job_id)
    if document.get("certificate") is None:
        raise Problem(409, f"job {job.job_id} has no certificate: a file holds a matching row, or was not read")
    try:
        key = erasure_key()
    except UsageError as error:
        raise Problem(409, f"{error}; the service needs it") from error
    return signed(document["certificate"], key.encode())


def _result(caller: Caller, job_id: str) -> tuple[JobRow, dict[str, Any]]:
    job = caller.job(job_id)
    document = caller.runtime.store.jobs.result(job.job_id)
    if document is None:
        raise Problem(404, f"job {job.job_id} has no result")
    return job, dict(document)


def _queued(
    caller: Caller, row: TableRow, options: Mapping[str, Any], *, dry_run: bool, on_pool: bool = False
) -> models.Started:
    """Queue the work that the options name (`flow.requested`), and record who asked for it."""
    require_startable(caller, row, dry_run=False)
    job_id = require_queued(caller, row, queue_requested(caller.runtime, row, options, on_pool=on_pool))
    caller.audit(str(row.ref), place_of(row.ref), what=next(iter(options)), job_id=job_id, **options)
    return started(row, job_id, f"queued job {job_id}", dry_run=dry_run)
