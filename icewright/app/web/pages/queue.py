"""The page of open jobs and deferred operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, pager
from icewright.app.web.pages.live import Fragment, stream_fragments
from icewright.app.web.pages.render import render_fragment, render_page
from icewright.core.permissions import Action
from icewright.ports.views import STATES, TableSort

router = APIRouter()
PATH = "/queue"
_REFRESH_SECONDS = 2.0
_NEXT = 10  # tables whose next evaluation is shown
_NOT_EVALUATED = ("busy", "paused", "dropped")  # as long as they are in that state

Reader = Annotated[Caller, needs(Action.PLAN_READ)]


@router.get(PATH)
def queue(caller: Reader) -> Response:
    """Render open jobs, then due operations by position."""
    live = "/live/queue" if "cursor" not in caller.request.query_params else ""  # only the first page updates live
    return render_page(caller, "queue.html", live=live, **_context(caller))


@router.get("/live/queue")
def live(caller: Reader) -> Response:
    """Stream the queue as it changes."""
    return stream_fragments(
        caller, lambda: Fragment(render_fragment(caller, "_queue.html", **_context(caller))), _REFRESH_SECONDS
    )


def _context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    queue = api.jobs.queue(caller, limit=PAGE, cursor=params.text("cursor"))
    waiting: dict[str, list[models.Waiting]] = {}
    for item in queue.waiting:
        waiting.setdefault(item.table, []).append(item)
    tables = replace(caller, action=Action.TABLES_READ)
    states: Any = [state for state in STATES if state not in _NOT_EVALUATED]
    following = api.tables.tables(tables, state=states, sort=TableSort.NEXT, limit=_NEXT).items
    return {
        "queue": queue,
        "waiting": waiting,
        "following": [table for table in following if table.evaluate_at is not None],
        "pager": pager(PATH, {}, params, len(queue.waiting), queue.next, queue.total),
    }
