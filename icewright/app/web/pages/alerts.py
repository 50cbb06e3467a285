"""Alerts: those that are open as they come and go, and those that are over."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.forms import Submission, submitted
from icewright.app.web.pages.listing import ListParams
from icewright.app.web.pages.live import Fragment, follow
from icewright.app.web.pages.render import go, page, part
from icewright.app.web.pages.urls import with_query
from icewright.app.web.problems import Problem
from icewright.core.alerts import Severity
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/alerts"
_SHOWS = (("", "Open"), ("past", "Past"))
_MOST = 500
_EVERY = 3.0  # seconds

Reader = Annotated[Caller, needs(Action.ALERTS_READ)]


@router.get(PATH)
def alerts(caller: Reader) -> Response:
    """Those that are open, or those that are over."""
    shown = _shown(caller)
    query = {"severity": shown["severity"]}
    shows = [(key, title, with_query(PATH, {**query, "show": key})) for key, title in _SHOWS]
    live = with_query("/live/alerts", query) if not shown["show"] else ""
    may_test = caller.principal.may(Action.ALERTS_TEST)
    return page(caller, "alerts.html", live=live, shows=shows, severities=list(Severity), may_test=may_test, **shown)


@router.get("/live/alerts")
def live(caller: Reader) -> Response:
    """The open ones as they come and go."""
    return follow(caller.request, lambda: Fragment(part(caller, "_alerts.html", **_shown(caller))), _EVERY)


@router.post("/do/alerts/test")
def test(submission: Annotated[Submission, submitted(Action.ALERTS_TEST)]) -> Response:
    """Send a test message to every channel, and say which took it."""
    found = api.system.test(submission.caller)
    if not found:
        return go(PATH, "No channel is configured: alerts are shown here alone.", "warn")
    failed = [f"{one.channel}: {one.error}" for one in found if not one.ok]
    if failed:
        return go(PATH, f"{len(failed)} of {len(found)} channels did not take it: {'; '.join(failed)}", "bad")
    return go(PATH, f"Sent to {', '.join(one.channel for one in found)}.")


def _shown(caller: Caller) -> dict[str, Any]:
    asked = ListParams(caller.request.query_params)
    show = asked.text("show") or ""
    if show not in dict(_SHOWS):
        raise Problem(404, f"there are no alerts of the kind {show}")
    severity = asked.one("severity", Severity)
    found = api.system.alerts(caller, resolved=bool(show), limit=_MOST)
    mine = [a for a in found if (a.resolved_at is not None) == bool(show) and severity in (None, a.severity)]
    return {"alerts": mine, "show": show, "severity": severity, "most": _MOST}
