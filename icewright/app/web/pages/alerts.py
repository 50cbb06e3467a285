"""The page of open and past alerts."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.forms import Submission, submitted
from icewright.app.web.pages.render import redirect, render_page, stream_template
from icewright.app.web.pages.urls import PAGE, ListParams, TimeRange, pager, since, with_query
from icewright.app.web.problems import Problem
from icewright.core.alerts import Severity
from icewright.core.permissions import Action, place_of
from icewright.core.table import TableRef
from icewright.ports import AlertQuery

router = APIRouter()
PATH = "/alerts"
_SHOWS = (("", "Open"), ("past", "Past"))
_MOST = 500
_DIGITS = 18  # of an id, which a database can count
_EVERY = 3.0  # seconds
_SILENCES = ((1, "1 hour"), (8, "8 hours"), (24, "a day"), (168, "a week"))

Reader = Annotated[Caller, needs(Action.ALERTS_READ)]


@router.get(PATH)
def alerts(caller: Reader) -> Response:
    """Render open or past alerts."""
    context = _context(caller)
    query = context["query"]
    shows = [(key, title, with_query(PATH, {**query, "show": key})) for key, title in _SHOWS]
    live = "" if context["show"] else ListParams(caller.request.query_params).live("/live/alerts", query)
    may_test = caller.principal.may(Action.ALERTS_TEST)
    return render_page(
        caller,
        "alerts.html",
        live=live,
        shows=shows,
        severities=list(Severity),
        all=list(TimeRange),
        may_test=may_test,
        **context,
    )


@router.get("/live/alerts")
def live(caller: Reader) -> Response:
    """Stream the open alerts as they change."""
    return stream_template(caller, "_alerts.html", lambda: _context(caller), _EVERY)


@router.post("/do/alerts/test")
def test(submission: Annotated[Submission, submitted(Action.ALERTS_TEST)]) -> Response:
    """Send a test message to every channel, and report failures."""
    results = api.system.test(submission.caller)
    if not results:
        return redirect(PATH, "No channel is configured; alerts are shown only here.", "warn")
    failed = [f"{result.channel}: {result.error}" for result in results if not result.ok]
    if failed:
        return redirect(PATH, f"{len(failed)} of {len(results)} channels failed: {'; '.join(failed)}", "bad")
    return redirect(PATH, f"Sent to {', '.join(result.channel for result in results)}.")


@router.post("/do/alerts/acknowledge")
def acknowledge(submission: Annotated[Submission, submitted(Action.ALERTS_ACKNOWLEDGE)]) -> Response:
    """Acknowledge an alert, silence it for a time, or withdraw both."""
    form = submission.form
    if not (text := form.one("alert")[:_DIGITS]).isdecimal():
        raise Problem(404, "there is no such alert")
    alert_id = int(text)
    try:
        if form.one("how") == "withdraw":
            api.system.withdraw(alert_id, submission.caller)
            return redirect(PATH, "Withdrawn: channels are told about it again.")
        hours = form.one("silent_hours")
        body = api.system.AcknowledgementRequest.model_validate(
            {"note": form.one("note"), "silent_hours": hours or None}
        )
        alert = api.system.acknowledge(alert_id, body, submission.caller)
    except ValidationError:
        return redirect(PATH, "The note is too long, or the silence is.", "bad")
    except Problem as problem:
        if problem.status != HTTPStatus.NOT_FOUND:
            raise
        return redirect(PATH, "That alert has ended.", "warn")
    silent = f" and silenced for {hours} h" if hours else ""
    return redirect(PATH, f"Acknowledged{silent}: {alert.rule.replace('_', ' ')} of {alert.subject}.")


def _context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    show = params.text("show") or ""
    if show not in dict(_SHOWS):
        raise Problem(404, f"there are no alerts of the kind {show}")
    severity, chosen, search = params.one("severity", Severity), params.one("range", TimeRange), params.text("search")
    beginning = since(chosen, caller.runtime.clock.now())
    newest = api.system.listed(caller, AlertQuery(bool(show), severity, beginning, search=search), _MOST + 1)
    first = params.number("from", 1, _MOST) or 1
    rows = newest[:_MOST][first - 1 : first - 1 + PAGE]
    after = str(first + PAGE) if len(newest[:_MOST]) >= first + PAGE else None
    query = {"search": search, "severity": severity, "range": chosen}
    return {
        "alerts": rows,
        "pager": pager(PATH, {**query, "show": show}, params, len(rows), after, min(len(newest), _MOST)),
        "most": _MOST if len(newest) > _MOST else None,
        "show": show,
        "query": query,
        "filtered": any(query.values()),
        "own": {alert.id for alert in rows if alert.resolved_at is None and _may_acknowledge(caller, alert)},
        "silences": _SILENCES,
    }


def _may_acknowledge(caller: Caller, alert: api.system.AlertModel) -> bool:
    place = place_of(TableRef.parse(alert.table)) if alert.table else ()
    return caller.principal.may(Action.ALERTS_ACKNOWLEDGE, place)
