"""What runs, and what waits with which reason."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, pager
from icewright.app.web.pages.live import Fragment, follow
from icewright.app.web.pages.render import page, part
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/queue"
_EVERY = 2.0  # seconds

Reader = Annotated[Caller, needs(Action.PLAN_READ)]


@router.get(PATH)
def queue(caller: Reader) -> Response:
    """Jobs, then due operations by their place."""
    live = "/live/queue" if "cursor" not in caller.request.query_params else ""  # later pages stay as they are
    return page(caller, "queue.html", live=live, **_shown(caller))


@router.get("/live/queue")
def live(caller: Reader) -> Response:
    """The same as it changes."""
    return follow(caller.request, lambda: Fragment(part(caller, "_queue.html", **_shown(caller))), _EVERY)


def _shown(caller: Caller) -> dict[str, Any]:
    asked = ListParams(caller.request.query_params)
    found = api.jobs.queue(caller, limit=PAGE, cursor=asked.text("cursor"))
    return {"queue": found, "pager": pager(PATH, {}, asked, len(found.waiting), found.next, found.total)}
