"""Starting jobs by hand; the same request sent twice starts one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from icewright.app.documents import job_document
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs, x_permission
from icewright.app.web.problems import Problem, documented
from icewright.app.web.threads import SingleThreadRoute
from icewright.core.errors import IcewrightError
from icewright.core.layering import parse_settings
from icewright.core.permissions import Action, needed, place_of
from icewright.core.table import TableRef
from icewright.flow.manual import queue_manual_job, would_do
from icewright.ports import TableRow

router = APIRouter(
    prefix="/tables",
    tags=["jobs"],
    responses=documented(400, 401, 403, 408, 413, 422, 429, 503),
    route_class=SingleThreadRoute,
)
LISTED = 1000  # files of a dry run
_DRY_RUNS = threading.BoundedSemaphore(2)  # each reads a whole table

Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="the same one starts the same job once"),
]


@router.post(
    "/{name:segment}/jobs",
    summary="Start operations on a table",
    status_code=202,
    openapi_extra=x_permission(Action.JOBS_DRY_RUN),
    responses={200: {"model": models.Started, "description": "A dry run"}, **documented(404, 409)},
)
def start(
    name: str,
    asked: models.JobRequest,
    response: Response,
    caller: Annotated[Caller, needs(Action.JOBS_DRY_RUN)],
    key: Key = None,
) -> models.Started:
    """Past cooldowns, windows and scores, never past guardrails. Operations that delete are for owners and admins."""
    actions = needed(asked.operations, asked.set, dry_run=asked.dry_run)
    row, runtime = caller.table(name, *actions), caller.runtime
    knobs = parse_settings("set", asked.set, runtime.policy().guardrails)
    _fit(row, asked)
    if row.ref.catalog not in runtime.scopes:
        raise Problem(409, f"{row.ref}: the configuration has no catalog {row.ref.catalog} any more")
    if asked.dry_run:
        response.status_code = 200
        return _dry_run(caller, row, asked, knobs)
    if key is None:
        return _start(caller, row, asked, knobs, actions)
    return _once(
        caller, key, f"{row.ref} {asked.model_dump_json()}", lambda: _start(caller, row, asked, knobs, actions)
    )


def _fit(row: TableRow, asked: models.JobRequest) -> None:
    if row.dropped:
        raise Problem(409, f"{row.ref} was dropped")
    if row.table_uuid is None and not asked.dry_run:
        raise Problem(409, f"{row.ref} has not been evaluated yet: try again in a moment")
    if row.paused and not asked.force and not asked.dry_run:
        raise Problem(409, f"{row.ref} is paused ({row.paused}): resume it, or ask with force")


def _start(
    caller: Caller, row: TableRow, asked: models.JobRequest, knobs: dict[str, Any], actions: tuple[Action, ...]
) -> models.Started:
    job_id = queue_manual_job(caller.runtime, row, asked.operations, knobs, force=asked.force)
    if job_id is None:
        raise Problem(409, f"{row.ref} has a job already: {_held(caller, row.ref) or 'it has just begun'}")
    details = {"operations": [str(op) for op in asked.operations], "set": knobs, "force": asked.force}
    caller.audit(str(row.ref), place_of(row.ref), actions[-1], job_id=job_id, **details)
    summary = "it waits for a worker"
    return models.Started(
        table=str(row.ref), job_id=job_id, state="queued", dry_run=False, operations=[], summary=summary
    )


def _held(caller: Caller, ref: TableRef) -> str | None:
    row = caller.runtime.store.tables.get(ref)
    return row.held_by if row is not None else None


def _dry_run(caller: Caller, row: TableRow, asked: models.JobRequest, knobs: dict[str, Any]) -> models.Started:
    if not _DRY_RUNS.acquire(blocking=False):
        raise Problem(503, "two dry runs are being answered; try again", headers={"Retry-After": "2"})
    try:
        document = job_document(would_do(caller.runtime, row, asked.operations, knobs))
    finally:
        _DRY_RUNS.release()
    for operation in document["operations"]:
        files = operation.get("files", [])
        operation["files_total"], operation["files"] = len(files), files[:LISTED]
    return models.Started(**document)


def _once(caller: Caller, key: str, body: str, start_it: Callable[[], models.Started]) -> models.Started:
    """Start it the first time; later, say what became of that."""
    store, said_by = caller.runtime.store, f"{caller.principal.via} {caller.principal.name}"
    request_id, digest = (sha256(text.encode("utf-8", "replace")).hexdigest() for text in (f"{said_by} {key}", body))
    before = store.requests.begin(request_id, digest, caller.runtime.clock.now())
    if before is None:
        try:
            started = start_it()
        except (Problem, IcewrightError):
            store.requests.end(request_id, None)
            raise
        store.requests.end(request_id, started.model_dump(mode="json"))
        return started
    if before.body != digest:
        raise Problem(422, "this Idempotency-Key came with another request before; take a new one")
    if before.answer is None:
        raise Problem(409, "the first request with this Idempotency-Key is being answered; try again")
    return models.Started.model_validate(before.answer)
