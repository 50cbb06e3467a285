"""The page of recent events of all jobs and catalogs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web.api.paging import decoded, encoded
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, TimeRange, pager
from icewright.app.web.pages.live import Fragment, stream_fragments
from icewright.app.web.pages.render import render_fragment, render_page
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
_OWN = ("operation", "state", "summary", "metrics")  # shown apart from other details, or by the API alone
_BAD = ("catalog_failed", "reports_failed", "paused")

Reader = Annotated[Caller, needs(Action.JOBS_READ)]


@router.get(PATH)
def activity(caller: Reader) -> Response:
    """Render the latest events, or an earlier page of them."""
    context = _context(caller)
    live = "" if "cursor" in caller.request.query_params else with_query("/live/activity", context["query"])
    return render_page(caller, "activity.html", live=live, kinds=_KINDS, all=list(TimeRange), **context)


@router.get("/live/activity")
def live(caller: Reader) -> Response:
    """Stream the latest events as they come."""
    return stream_fragments(
        caller, lambda: Fragment(render_fragment(caller, "_activity.html", **_context(caller))), _EVERY
    )


def _context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    chosen = params.one("range", TimeRange)
    query = {"kind": params.text("kind"), "search": params.text("search"), "range": chosen}
    events = caller.runtime.store.views.list_activity(
        query["kind"],
        caller.visibility,
        decoded(params.text("cursor")),
        PAGE,
        search=query["search"],
        since=chosen.since(caller.runtime.clock.now()) if chosen is not None else None,
    )
    pages = pager(PATH, query, params, len(events.items), encoded(events.after), None)
    return {"events": [_event(item) for item in events.items], "query": query, "pager": pages}


def _event(item: Mapping[str, Any]) -> dict[str, Any]:
    details = item["details"]
    other_details = {
        name: detail for name, detail in details.items() if name not in _OWN and detail not in (None, "", [], {})
    }
    state = details.get("state") or ("failed" if item["kind"] in _BAD else "")
    return {
        **item,
        "operation": details.get("operation"),
        "state": state,
        "summary": details.get("summary"),
        "more": other_details,
    }
