"""Activity: what Icewright does, as it does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web.api.paging import decoded, encoded
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, pager
from icewright.app.web.pages.live import Fragment, follow
from icewright.app.web.pages.render import page, part
from icewright.app.web.pages.urls import with_query
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/activity"
_EVERY = 1.0  # seconds
_KINDS = (
    "scan_started",
    "scan_finished",
    "job_started",
    "operation_started",
    "progress",
    "operation_finished",
    "job_finished",
    "paused",
    "reconciled",
    "settled",  # by an earlier release
    "vacuumed",
    "archived",
    "catalog_failed",
    "reports_failed",
)
_OWN = ("operation", "state", "summary")  # that stand in columns of their own
_BAD = ("catalog_failed", "reports_failed", "paused")

Reader = Annotated[Caller, needs(Action.JOBS_READ)]


@router.get(PATH)
def activity(caller: Reader) -> Response:
    """The latest, or a page of what was before."""
    shown = _shown(caller)
    live = "" if "cursor" in caller.request.query_params else with_query("/live/activity", shown["query"])
    return page(caller, "activity.html", live=live, kinds=_KINDS, **shown)


@router.get("/live/activity")
def live(caller: Reader) -> Response:
    """The latest as they come."""
    return follow(caller.request, lambda: Fragment(part(caller, "_activity.html", **_shown(caller))), _EVERY)


def _shown(caller: Caller) -> dict[str, Any]:
    asked = ListParams(caller.request.query_params)
    query = {"kind": asked.text("kind")}
    found = caller.runtime.store.views.list_activity(
        query["kind"], caller.visibility, decoded(asked.text("cursor")), PAGE
    )
    pages = pager(PATH, query, asked, len(found.items), encoded(found.after), None)
    return {"events": [_event(item) for item in found.items], "query": query, "pager": pages}


def _event(item: Mapping[str, Any]) -> dict[str, Any]:
    said = item["details"]
    more = {name: one for name, one in said.items() if name not in _OWN and one not in (None, "", [], {})}
    state = said.get("state") or ("failed" if item["kind"] in _BAD else "")
    return {**item, "operation": said.get("operation"), "state": state, "summary": said.get("summary"), "more": more}
