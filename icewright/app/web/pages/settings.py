"""The pages of catalogs, pools, limits, processes, permissions and tokens, and of a catalog's vacuum."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import Response

import icewright
from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.forms import Submission, going_back, submitted
from icewright.app.web.pages.render import Crumb, redirect, render_page, stream_template
from icewright.app.web.pages.urls import with_query
from icewright.app.web.problems import Problem
from icewright.core.errors import UsageError
from icewright.core.permissions import Action, Role

router = APIRouter()
PATH = "/settings"
_TOKEN_DEFAULTS = {"name": "", "role": Role.VIEWER.value, "scope": "", "days": "90"}  # defaults of the token form
_CATALOG_FIELDS = ("enabled", "namespaces", "tables", "detect_interval_seconds")
_EVERY = 3.0  # seconds
_UNPROCESSABLE, _MISSING = 422, 404


@router.get(PATH)
def settings(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> Response:
    """Render the settings, which contain no secrets."""
    return _page(caller)


@router.get("/live/settings")
def live(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> Response:
    """Stream catalogs and processes as their settings, answers and heartbeats come, or stay away."""
    return stream_template(caller, "_settings.html", lambda: _followed(caller), _EVERY)


@router.post("/do/token/create")
def create(submission: Annotated[Submission, submitted(Action.TOKENS_MANAGE)]) -> Response:
    """Create a token, which only this response shows."""
    filled = {name: submission.form.one(name).strip() for name in _TOKEN_DEFAULTS}
    try:
        params = _token_request(filled)
        new_token = api.access.create(params, submission.caller)
    except ValidationError as error:
        faults = {str(item["loc"][0]): _uncapitalised(item["msg"]) for item in error.errors()}
        return _page(submission.caller, filled=filled, faults=faults, status=_UNPROCESSABLE)
    except UsageError as error:
        return _page(submission.caller, filled=filled, faults={"scope": str(error)}, status=_UNPROCESSABLE)
    return _page(submission.caller, new_token=new_token)


@router.post("/do/token/revoke")
def revoke(submission: Annotated[Submission, submitted(Action.TOKENS_MANAGE)]) -> Response:
    """Revoke a token at once."""
    with going_back(PATH, statuses=(_MISSING,)):
        api.access.revoke(submission.form.one("token"), submission.caller)
    return redirect(PATH, "The token is revoked.")


@router.post("/do/drain")
def drain(submission: Annotated[Submission, submitted(Action.TABLES_PAUSE)]) -> Response:
    """Ask a process to take no more jobs, and to end when its jobs have."""
    with going_back(PATH, statuses=(_MISSING,)):
        process = api.bulk.drain(submission.form.one("process"), submission.caller)["process"]
    return redirect(PATH, f"{process} takes no more jobs, and ends when its jobs have.")


@router.post("/do/catalog")
def set_catalog(submission: Annotated[Submission, submitted(Action.CATALOGS_CHANGE)]) -> Response:
    """Set a catalog in the place of its configuration, or take that back."""
    form, name = submission.form, submission.form.one("catalog")
    given: dict[str, str | None] = dict.fromkeys(_CATALOG_FIELDS)
    if form.one("as") != "configured":
        given = {field: form.one(field).strip() for field in _CATALOG_FIELDS}
        given["detect_interval_seconds"] = given["detect_interval_seconds"] or None
    try:
        body = api.catalogs.CatalogRequest.model_validate(given)
        api.catalogs.put(name, body, submission.caller)
    except ValidationError as error:
        (first, *_) = error.errors()
        return redirect(PATH, f"{first['loc'][0]}: {_uncapitalised(first['msg'])}.", "bad")
    return redirect(PATH, f"Catalog {name} is set.")


@router.get("/vacuum")
def last_vacuum(caller: Annotated[Caller, needs(Action.CATALOGS_VACUUM)], catalog: str) -> Response:
    """Render what a catalog's last vacuum did."""
    live = with_query("/live/vacuum", {"catalog": catalog})
    return _vacuum_page(caller, catalog, _last_vacuum(caller, catalog), live=live)


@router.get("/live/vacuum")
def live_vacuum(caller: Annotated[Caller, needs(Action.CATALOGS_VACUUM)], catalog: str) -> Response:
    """Stream the answer of a catalog's last vacuum, which may still run."""

    def context() -> dict[str, Any]:
        return {"catalog": catalog, "vacuum": _last_vacuum(caller, catalog), "asks": False}

    return stream_template(caller, "_vacuum.html", context, _EVERY)


def _last_vacuum(caller: Caller, catalog: str) -> api.vacuums.VacuumAnswer | None:
    try:
        return api.vacuums.last(catalog, caller)
    except Problem as problem:
        if problem.status != _MISSING or catalog not in caller.runtime.catalogs:
            raise
        return None


@router.post("/do/vacuum")
def vacuum(submission: Annotated[Submission, submitted(Action.CATALOGS_VACUUM)]) -> Response:
    """Show what a vacuum of a catalog would do, or begin it once confirmed."""
    catalog, dry_run = submission.form.one("catalog"), submission.form.one("how") != "confirmed"
    back = with_query("/vacuum", {"catalog": catalog})
    with going_back(back):
        answer = api.vacuums.start(catalog, api.vacuums.VacuumRequest(dry_run=dry_run), submission.caller, Response())
    if dry_run:
        return _vacuum_page(submission.caller, catalog, answer, asks=True)
    return redirect(back, f"The vacuum of {catalog} has begun; this page will show its answer.")


def _vacuum_page(
    caller: Caller, catalog: str, answer: api.vacuums.VacuumAnswer | None, *, asks: bool = False, live: str = ""
) -> Response:
    crumbs = [Crumb("Settings", PATH)]
    return render_page(caller, "vacuum.html", catalog=catalog, vacuum=answer, asks=asks, live=live, crumbs=crumbs)


def _page(
    caller: Caller,
    *,
    new_token: models.NewToken | None = None,
    filled: dict[str, str] | None = None,
    faults: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    reading = replace(caller, action=Action.SYSTEM_READ)
    manages = caller.principal.may(Action.TOKENS_MANAGE)
    return render_page(
        caller,
        "settings.html",
        status=status,
        pools=api.system.pools(reading),
        limits=api.limits.limits(reading),
        live="/live/settings",
        **_followed(caller),
        permissions=api.access.permissions(caller),
        person=api.access.me(caller),
        roles=list(Role),
        tokens=api.access.tokens(replace(caller, action=Action.TOKENS_MANAGE)).items if manages else None,
        new_token=new_token,
        filled=filled or _TOKEN_DEFAULTS,
        faults=faults or {},
        version=icewright.__version__,
    )


def _followed(caller: Caller) -> dict[str, Any]:
    """Return what the page shows of catalogs and processes, which it follows."""
    reading = replace(caller, action=Action.SYSTEM_READ)
    catalogs, may = api.catalogs.catalogs(reading), caller.principal.may
    return {
        "catalogs": catalogs,
        "may_change": [c.name for c in catalogs if may(Action.CATALOGS_CHANGE, (c.name,))],
        "may_vacuum": [name for name in caller.runtime.catalogs if may(Action.CATALOGS_VACUUM, (name,))],
        "processes": api.system.processes(reading),
        "may_drain": may(Action.TABLES_PAUSE),
    }


def _token_request(filled: dict[str, str]) -> models.TokenRequest:
    scope = [part.strip() for part in filled["scope"].split(",") if part.strip()]
    more = {"role": filled["role"], "scope": scope, "days": filled["days"] or None}
    return models.TokenRequest.model_validate({"name": filled["name"], **more})


def _uncapitalised(message: str) -> str:
    return message[:1].lower() + message[1:]
