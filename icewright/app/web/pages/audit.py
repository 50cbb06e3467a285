"""The page of the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.web import api
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.listing import PAGE, ListParams, pager
from icewright.app.web.pages.render import render_page
from icewright.app.web.problems import Problem
from icewright.core.permissions import Action

router = APIRouter()
PATH = "/audit"
_OUTCOMES = {"": None, "done": False, "refused": True}


@router.get(PATH)
def audit(caller: Annotated[Caller, needs(Action.AUDIT_READ)]) -> Response:
    """Render a page of audit entries, newest first."""
    params = ListParams(caller.request.query_params)
    query: dict[str, Any] = {name: params.text(name) for name in ("actor", "action", "outcome")}
    outcome = query["outcome"] or ""
    if outcome not in _OUTCOMES:
        raise Problem(422, f"outcome: there is no {outcome}; there is: done, refused")
    entries = api.access.audit(
        caller,
        actor=query["actor"],
        action=query["action"],
        refused=_OUTCOMES[outcome],
        limit=PAGE,
        cursor=params.text("cursor"),
    )
    return render_page(
        caller,
        "audit.html",
        query=query,
        entries=entries.items,
        filtered=any(query.values()),
        actions=list(Action),
        pager=pager(PATH, query, params, len(entries.items), entries.next, None),
    )
