"""Route that starts jobs manually, once per idempotency key."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Header, Response

from icewright.app.documents import job_document
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.errors import IcewrightError
from icewright.core.layering import parse_settings
from icewright.core.permissions import Action, place_of, required_actions
from icewright.core.table import TableRef
from icewright.flow.bulk import queue_manual_job, would_do
from icewright.ports import TableRow

router = api_router("jobs", prefix="/tables")
LISTED = 1000  # files of a dry run in the response

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="a repeated request with the same key starts no second job",
    ),
]


@router.post(
    "/{name:segment}/jobs",
    summary="Start operations on a table",
    status_code=202,
    responses={200: {"model": models.Started, "description": "A dry run"}, **documented(404, 409)},
)
def start(
    name: str,
    body: models.JobRequest,
    response: Response,
    caller: Annotated[Caller, needs(Action.JOBS_DRY_RUN)],
    key: Key = None,
) -> models.Started:
    """Start a job, ignoring cooldowns, windows and scores but not guardrails; deleting needs an owner or admin."""
    actions = required_actions(body.operations, body.set, dry_run=body.dry_run)
    row, runtime = caller.table(name, *actions), caller.runtime
    knobs = parse_settings("set", body.set, runtime.policy().guardrails)
    require_startable(caller, row, dry_run=body.dry_run)
    if row.paused and not body.force and not body.dry_run:
        raise Problem(409, f"{row.ref} is paused ({row.paused}): resume it, or ask with force")
    if body.dry_run:
        response.status_code = 200
        return _dry_run(caller, row, body, knobs)
    if key is None:
        return _start(caller, row, body, knobs, actions)
    return _once(caller, key, f"{row.ref} {body.model_dump_json()}", lambda: _start(caller, row, body, knobs, actions))


def require_startable(caller: Caller, row: TableRow, *, dry_run: bool) -> None:
    """Raise `Problem` 409 when no job can begin on the table now, whether or not it is paused."""
    if row.dropped:
        raise Problem(409, f"{row.ref} was dropped")
    if row.table_uuid is None and not dry_run:
        raise Problem(409, f"{row.ref} has not been evaluated yet: try again in a moment")
    if not dry_run and (pause := caller.runtime.store.fleet.get()) is not None:
        raise Problem(409, f"{pause}; no job begins until the fleet is resumed")
    if row.ref.catalog not in caller.runtime.scopes:
        raise Problem(409, f"{row.ref}: the configuration has no catalog {row.ref.catalog} any more")


def require_queued(caller: Caller, row: TableRow, job_id: str | None) -> str:
    """Return the id of a job that was queued. Raises `Problem` 409 for None, as the table has a job then."""
    if job_id is None:
        raise Problem(409, f"{row.ref} has a job already: {_active_job_id(caller, row.ref) or 'it has just begun'}")
    return job_id


def started(row: TableRow, job_id: str, summary: str, *, dry_run: bool) -> models.Started:
    """Return the answer to the request of a job that waits for a worker."""
    return models.Started(
        table=str(row.ref), job_id=job_id, state="queued", dry_run=dry_run, operations=[], summary=summary
    )


def _start(
    caller: Caller, row: TableRow, body: models.JobRequest, knobs: dict[str, Any], actions: tuple[Action, ...]
) -> models.Started:
    queued = queue_manual_job(caller.runtime, row, body.operations, knobs, force=body.force)
    job_id = require_queued(caller, row, queued)
    details = {"operations": [str(op) for op in body.operations], "set": knobs, "force": body.force}
    caller.audit(str(row.ref), place_of(row.ref), actions[-1], job_id=job_id, **details)
    return started(row, job_id, "it waits for a worker", dry_run=False)


def _active_job_id(caller: Caller, ref: TableRef) -> str | None:
    row = caller.runtime.store.tables.get(ref)
    return row.job_id if row is not None else None


def _dry_run(caller: Caller, row: TableRow, body: models.JobRequest, knobs: dict[str, Any]) -> models.Started:
    with caller.heavy():
        document = job_document(would_do(caller.runtime, row, body.operations, knobs))
    for operation in document["operations"]:
        files = operation.get("files", [])
        operation["files_total"], operation["files"] = len(files), files[:LISTED]
    return models.Started(**document)


def _once(caller: Caller, key: str, request_text: str, start_it: Callable[[], models.Started]) -> models.Started:
    """Run `start_it` for the first request with a key; return its stored response for later ones."""
    store, client = caller.runtime.store, f"{caller.principal.via} {caller.principal.name}"
    request_id, digest = (
        sha256(text.encode("utf-8", "replace")).hexdigest() for text in (f"{client} {key}", request_text)
    )
    earlier = store.requests.begin(request_id, digest, caller.runtime.clock.now())
    if earlier is None:
        try:
            started = start_it()
        except (Problem, IcewrightError):
            store.requests.end(request_id, None)
            raise
        store.requests.end(request_id, started.model_dump(mode="json"))
        return started
    if earlier.body != digest:
        raise Problem(422, "this Idempotency-Key came with another request before; take a new one")
    if earlier.answer is None:
        raise Problem(409, "the first request with this Idempotency-Key is being answered; try again")
    return models.Started.model_validate(earlier.answer)
