"""The login page, by token or OpenID provider, logout, and problems as pages, which lead to the login."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icewright.app.tokens import digest
from icewright.app.web.app_state import AppState, app_state
from icewright.app.web.callers import Caller, any_caller
from icewright.app.web.identity import COOKIE, Access, authenticate_token
from icewright.app.web.middlewares import buffer_response
from icewright.app.web.oidc import begin_session, is_renewable, local_path
from icewright.app.web.pages.forms import Form, form
from icewright.app.web.pages.render import redirect, render_public_page
from icewright.app.web.problems import MEDIA_TYPE, Problem

router = APIRouter()

Next = Annotated[str, Query(alias="next", max_length=2000)]
_API_PATHS = ("/api/", "/healthz", "/readyz", "/metrics", "/static/")
_COPIED_HEADERS = ("retry-after", "x-request-id", "connection")
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_HELP = {
    401: "Your login has ended, and nothing was changed: log in, and send the form again.",
    403: "Ask an owner of the catalog or an admin for access; the audit log has this refusal.",
    404: "It was dropped or renamed, or you lack access to it.",
    409: "Check the current state, and try again.",
    429: "Wait a moment, and load the page again.",
    503: "Wait a moment, and load the page again.",
}


@router.get("/login")
def login(request: Request, app: Annotated[AppState, Depends(app_state)], next_path: Next = "/") -> Response:
    """Render the login form, or redirect: to the overview where `auth` is not configured, and to renew a login."""
    access: Access = request.app.state.access
    if not access.required:
        return RedirectResponse("/", 303)
    if is_renewable(request, app):
        return RedirectResponse(f"/auth/login?next={quote(local_path(next_path), safe='')}", 303)
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


class ProblemPageMiddleware:
    """The outermost middleware, which turns problems into pages for browsers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and replace a problem by a page."""
        if scope["type"] != "http" or not _accepts_html(scope):
            await self.app(scope, receive, send)
            return

        async def send_page(start: Message, body: bytes) -> None:
            await _page(scope, start, body)(scope, receive, send)

        await buffer_response(self.app, scope, receive, send, _is_problem, send_page)


def _accepts_html(scope: Scope) -> bool:
    return "text/html" in Headers(scope=scope).get("accept", "") and not scope["path"].startswith(_API_PATHS)


def _is_problem(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "") == MEDIA_TYPE


def _page(scope: Scope, start: Message, body: bytes) -> Response:
    request, status = Request(scope), int(start["status"])
    if status == _UNAUTHORIZED and scope["method"] in ("GET", "HEAD") and scope["path"] != "/login":
        query = f"?{request.url.query}" if request.url.query else ""
        back = quote(f"{request.url.path}{query}", safe="")
        return RedirectResponse(f"/login?next={back}", 303, {"cache-control": "no-store"})
    problem = json.loads(body)
    denied = status != _FORBIDDEN or "action" in problem  # else the page was too old, or of another site
    help_ = _HELP.get(status, "") if denied else ""
    answer = render_public_page(request, "problem.html", status=status, problem=problem, help=help_)
    headers = Headers(raw=start["headers"])
    for name in ("x-content-type-options", "x-frame-options", "cache-control", *_COPIED_HEADERS):
        if name in headers:
            answer.headers[name] = headers[name]
    return answer
