"""The login page, by token or OpenID provider, and logout."""

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
from icewright.app.web.pages.render import redirect, render_public_page
from icewright.app.web.problems import Problem

router = APIRouter()

Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
def login(request: Request, next_path: Next = "/") -> Response:
    """Render the login form; redirect to the overview when `auth` is not configured."""
    access: Access = request.app.state.access
    if not access.required:
        return RedirectResponse("/", 303)
    return _login_form(request, local_path(next_path))


@router.post("/login")
def log_in(
    request: Request, submitted: Annotated[Form, Depends(form)], app: Annotated[AppState, Depends(app_state)]
) -> Response:
    """Begin a session by a token; revoking the token ends the session."""
    page = local_path(submitted.one("next") or "/")
    try:
        token = authenticate_token(request, app, submitted.one("token").strip(), app.runtime.clock.now())
    except Problem as problem:
        return _login_form(request, page, problem.detail, problem.status)
    answer = redirect(page)
    begin_session(request, app, answer, token.name, token.grants, token)
    return answer


@router.post("/logout")
def log_out(_: Annotated[Form, Depends(form)], caller: Annotated[Caller, Depends(any_caller)]) -> Response:
    """End the session of the browser."""
    caller.runtime.store.access.end_session(digest(caller.request.cookies.get(COOKIE, "")))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _login_form(request: Request, page: str, fault: str = "", status: int = 200) -> Response:
    access: Access = request.app.state.access
    return render_public_page(
        request, "login.html", status=status, next=page, fault=fault, oidc=access.oidc is not None
    )
