"""Logging in by a token or by the OpenID provider, and out again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from icewright.app.tokens import digest
from icewright.app.web.app_state import AppState, app_state
from icewright.app.web.callers import Caller, any_caller
from icewright.app.web.identity import COOKIE, Access, authenticate_token
from icewright.app.web.oidc import begin_session, local_path
from icewright.app.web.pages.forms import Form, form
from icewright.app.web.pages.render import go, render_public_page
from icewright.app.web.problems import Problem

router = APIRouter()

Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
def login(request: Request, to: Next = "/") -> Response:
    """The ways in; where nobody logs in, the first page."""
    access: Access = request.app.state.access
    if not access.required:
        return RedirectResponse("/", 303)
    return _asked(request, local_path(to))


@router.post("/login")
def log_in(
    request: Request, given: Annotated[Form, Depends(form)], to: Annotated[AppState, Depends(app_state)]
) -> Response:
    """Begin a session by a token, with which it ends."""
    page = local_path(given.one("next") or "/")
    try:
        token = authenticate_token(request, to, given.one("token").strip(), to.runtime.clock.now())
    except Problem as problem:
        return _asked(request, page, problem.detail, problem.status)
    answer = go(page)
    begin_session(request, to, answer, token.name, token.grants, token)
    return answer


@router.post("/logout")
def log_out(_: Annotated[Form, Depends(form)], caller: Annotated[Caller, Depends(any_caller)]) -> Response:
    """End the session of the browser."""
    caller.runtime.store.access.end_session(digest(caller.request.cookies.get(COOKIE, "")))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _asked(request: Request, page: str, fault: str = "", status: int = 200) -> Response:
    access: Access = request.app.state.access
    return render_public_page(
        request, "login.html", status=status, next=page, fault=fault, oidc=access.oidc is not None
    )
