"""The page of open jobs and deferred operations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, pager
from icewright.app.web.pages.live import Fragment, stream_fragments
from icewright.app.web.pages.render import render_fragment, render_page
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/queue"
_REFRESH_SECONDS = 2.0

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
    return {"queue": queue, "pager": pager(PATH, {}, params, len(queue.waiting), queue.next, queue.total)}
