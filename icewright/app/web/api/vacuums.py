"""Routes that vacuum a catalog, and that return what its last vacuum did."""

from __future__ import annotations

import threading
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, Field

from icewright.app.documents import vacuum_document
from icewright.app.web.api.models.requests import RequestBody
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.errors import IcewrightError
from icewright.core.permissions import Action
from icewright.flow.runtime import Runtime
from icewright.flow.vacuum import vacuum

router = api_router("system")
_EVENT = "vacuumed"
_SEARCHED_EVENTS = 1000  # the newest vacuums of all catalogs


class VacuumRequest(RequestBody):
    """A request for a vacuum, or for a dry run of it."""

    dry_run: bool = Field(default=False, description="true: answer with what a vacuum would do")


class VacuumAnswer(BaseModel):
    """The answer of a vacuum, as `icewright vacuum --json` prints it."""

    catalog: str
    state: str = Field(description="started: it goes on in the service, and the answer can be read when it has ended")
    dry_run: bool = False
    reason: str = Field(default="", description="why nothing was done")
    cutoff: str = Field(default="", description="the cut-off with its source; blank: each table has its own")
    deleted_files_count: int = 0
    deleted_files_total_size_mb: int = 0
    deleted_bytes: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)
    jobs: list[dict[str, Any]] = Field(default_factory=list, description="of a dry run; else see the jobs themselves")
    errors: list[dict[str, str]] = Field(default_factory=list, description="subject and error")


@router.post("/catalogs/{catalog:segment}/vacuum", summary="Vacuum a catalog", responses=documented(404, 409))
def start(
    catalog: str, body: VacuumRequest, caller: Annotated[Caller, needs(Action.CATALOGS_VACUUM)], response: Response
) -> VacuumAnswer:
    """Answer 200 with what would be done, or 202 when a vacuum has started; its jobs are listed as others are."""
    _require(caller, catalog)
    if body.dry_run:
        with caller.heavy():
            return VacuumAnswer(**vacuum_document(vacuum(caller.runtime, catalog, dry_run=True)))
    if (paused := caller.runtime.store.fleet.get()) is not None:
        raise Problem(409, str(paused))
    if caller.runtime.vacuum_locks[catalog].locked():
        raise Problem(409, f"catalog {catalog} is being vacuumed: let that end")
    caller.audit(f"catalog {catalog}", (catalog,))
    # daemon: when the process ends, its job is reconciled as after a crash
    threading.Thread(target=_vacuum, args=(caller.runtime, catalog), name=f"vacuum {catalog}", daemon=True).start()
    response.status_code = 202
    return VacuumAnswer(catalog=catalog, state="started")


@router.get("/catalogs/{catalog:segment}/vacuum", summary="The last vacuum", responses=documented(404))
def last(catalog: str, caller: Annotated[Caller, needs(Action.CATALOGS_VACUUM)]) -> VacuumAnswer:
    """Return the answer of the catalog's last vacuum, whoever started it. 404 when there is none."""
    _require(caller, catalog)
    page = caller.runtime.store.views.list_activity(_EVENT, None, None, _SEARCHED_EVENTS)
    for event in page.items:
        if event["details"].get("catalog") == catalog:
            return VacuumAnswer(**{k: v for k, v in event["details"].items() if k in VacuumAnswer.model_fields})
    raise Problem(404, f"catalog {catalog} was never vacuumed, or so long ago that its event is gone")


def _require(caller: Caller, catalog: str) -> None:
    caller.require((catalog,), f"catalog {catalog}")
    caller.require_catalog(catalog)


def _vacuum(runtime: Runtime, catalog: str) -> None:
    try:
        vacuum(runtime, catalog)
    except IcewrightError as error:
        runtime.store.activity.record(
            _EVENT, runtime.clock.now(), None, catalog=catalog, state="failed", reason=str(error)
        )
