"""Settings: catalogs, pools, limits and processes as they are; tokens for those who give them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import Response

import icewright
from icewright.app.web import api
from icewright.app.web.api import models
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages.forms import Submission, submitted
from icewright.app.web.pages.render import go, page
from icewright.app.web.problems import Problem
from icewright.core.errors import UsageError
from icewright.core.permissions import Action, Role

router = APIRouter()
PATH = "/settings"
_DAYS = {"name": "", "role": Role.VIEWER.value, "scope": "", "days": "90"}  # of a form that nobody has filled in
_WRONG, _MISSING = 422, 404


@router.get(PATH)
def settings(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> Response:
    """All of it; nothing here is a secret."""
    return _page(caller)


@router.post("/do/token/create")
def create(submission: Annotated[Submission, submitted(Action.TOKENS_MANAGE)]) -> Response:
    """Make a token; the answer alone shows it."""
    filled = {name: submission.form.one(name).strip() for name in _DAYS}
    try:
        asked = _asked(filled)
        made = api.access.create(asked, submission.caller)
    except ValidationError as error:
        faults = {str(item["loc"][0]): _said(item["msg"]) for item in error.errors()}
        return _page(submission.caller, filled=filled, faults=faults, status=_WRONG)
    except UsageError as error:
        return _page(submission.caller, filled=filled, faults={"scope": str(error)}, status=_WRONG)
    return _page(submission.caller, made=made)


@router.post("/do/token/revoke")
def revoke(submission: Annotated[Submission, submitted(Action.TOKENS_MANAGE)]) -> Response:
    """End a token at once."""
    try:
        api.access.revoke(submission.form.one("token"), submission.caller)
    except Problem as problem:
        if problem.status != _MISSING:
            raise
        return go(PATH, f"{problem.detail[:1].upper()}{problem.detail[1:]}.", "bad")
    return go(PATH, "The token is revoked: it opens nothing any more.")


def _page(
    caller: Caller,
    *,
    made: models.NewToken | None = None,
    filled: dict[str, str] | None = None,
    faults: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    reading = replace(caller, action=Action.SYSTEM_READ)
    manages = caller.principal.may(Action.TOKENS_MANAGE)
    return page(
        caller,
        "settings.html",
        status=status,
        catalogs=api.system.catalogs(reading),
        pools=api.system.pools(reading),
        limits=api.system.limits(reading),
        processes=api.system.processes(reading),
        permissions=api.access.permissions(caller),
        person=api.access.me(caller),
        roles=list(Role),
        tokens=api.access.tokens(replace(caller, action=Action.TOKENS_MANAGE)).items if manages else None,
        made=made,
        filled=filled or _DAYS,
        faults=faults or {},
        version=icewright.__version__,
    )


def _asked(filled: dict[str, str]) -> models.TokenRequest:
    scope = [one.strip() for one in filled["scope"].split(",") if one.strip()]
    more = {"role": filled["role"], "scope": scope, "days": filled["days"] or None}
    return models.TokenRequest.model_validate({"name": filled["name"], **more})


def _said(message: str) -> str:
    return message[:1].lower() + message[1:]
