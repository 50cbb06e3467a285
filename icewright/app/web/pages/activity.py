"""The pages of recent events of all jobs and catalogs, and of the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.api.paging import decoded, encoded
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.render import render_page, stream_template
from icewright.app.web.pages.urls import PAGE, ListParams, TimeRange, pager, since
from icewright.app.web.problems import Problem
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/activity"
_EVERY = 1.0  # seconds
_KINDS = (
    "scan_started", "scan_finished", "job_started", "operation_started", "progress", "operation_finished",
    "job_finished", "paused", "reconciled", "settled",  # by an earlier release
    "vacuumed", "archived", "copied", "registered", "adopted", "undone", "layout_changed", "layout_measured",
    "catalog_failed", "reports_failed", "breaker_opened", "breaker_closed",
)  # fmt: skip
_OWN = ("job_id", "operation", "state", "summary", "metrics")  # shown apart from other details, or by the API alone
_BAD = ("catalog_failed", "reports_failed", "paused")

Reader = Annotated[Caller, needs(Action.JOBS_READ)]
Auditor = Annotated[Caller, needs(Action.AUDIT_READ)]
AUDIT_PATH = "/audit"
_OUTCOMES = {"": None, "done": False, "refused": True}


@router.get(PATH)
def activity(caller: Reader) -> Response:
    """Render the latest events, a line for each job, or an earlier page of them; those of one kind each by itself."""
    context = _context(caller)
    live = ListParams(caller.request.query_params).live("/live/activity", context["query"])
    return render_page(caller, "activity.html", live=live, kinds=_KINDS, all=list(TimeRange), **context)


@router.get("/live/activity")
def live(caller: Reader) -> Response:
    """Stream the latest events as they come."""
    return stream_template(caller, "_activity.html", lambda: _context(caller), _EVERY)


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
        since=since(chosen, caller.runtime.clock.now()),
        steps=query["kind"] is not None,
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


@router.get(AUDIT_PATH)
def audit(caller: Auditor) -> Response:
    """Render a page of audit entries, newest first."""
    context = _audit_context(caller)
    live = ListParams(caller.request.query_params).live("/live/audit", context["query"])
    return render_page(caller, "audit.html", live=live, actions=list(Action), all=list(TimeRange), **context)


@router.get("/live/audit")
def live_audit(caller: Auditor) -> Response:
    """Stream the newest audit entries as they come."""
    return stream_template(caller, "_audit.html", lambda: _audit_context(caller), _EVERY)


def _audit_context(caller: Caller) -> dict[str, Any]:
    params = ListParams(caller.request.query_params)
    chosen = params.one("range", TimeRange)
    query: dict[str, Any] = {name: params.text(name) for name in ("search", "actor", "action", "outcome")}
    query["range"] = chosen
    outcome = query["outcome"] or ""
    if outcome not in _OUTCOMES:
        raise Problem(422, f"outcome: there is no {outcome}; there is: done, refused")
    entries = api.access.audit(
        caller,
        actor=query["actor"],
        action=query["action"],
        refused=_OUTCOMES[outcome],
        since=since(chosen, caller.runtime.clock.now()),
        search=query["search"],
        limit=PAGE,
        cursor=params.text("cursor"),
    )
    return {
        "query": query,
        "entries": entries.items,
        "filtered": any(query.values()),
        "pager": pager(AUDIT_PATH, query, params, len(entries.items), entries.next, None),
    }
