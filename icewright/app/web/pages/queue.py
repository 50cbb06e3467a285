"""What runs, and what waits with which reason."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListQuery, pager
from icewright.app.web.pages.live import Shot, follow
from icewright.app.web.pages.render import page, part
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/queue"
_EVERY = 2.0  # seconds

Reader = Annotated[Caller, needs(Action.PLAN_READ)]


@router.get(PATH)
def queue(by: Reader) -> Response:
    """Jobs, then due operations by their place."""
    live = "/live/queue" if "cursor" not in by.request.query_params else ""  # later pages stay as they are
    return page(by, "queue.html", live=live, **_shown(by))


@router.get("/live/queue")
def live(by: Reader) -> Response:
    """The same as it changes."""
    return follow(by.request, lambda: Shot(part(by, "_queue.html", **_shown(by))), _EVERY)


def _shown(by: Caller) -> dict[str, Any]:
    asked = ListQuery(by.request.query_params)
    found = api.jobs.queue(by, limit=PAGE, cursor=asked.text("cursor"))
    return {"queue": found, "pager": pager(PATH, {}, asked, len(found.waiting), found.next, found.total)}
