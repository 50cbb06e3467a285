"""Authenticate requests by token or session, or by the local machine where `auth` is not configured."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from icewright.app.addresses import is_loopback
from icewright.app.sections import AuthSection, OidcSection
from icewright.app.tokens import digest, proven, token_id
from icewright.app.web.app_state import AppState, response_cache_of
from icewright.app.web.middlewares import PROBES, TokenBuckets, network_of
from icewright.app.web.problems import Problem
from icewright.core.permissions import Grant, Principal, Role, Via
from icewright.ports.access import AuditRow, TokenRow

OPENAPI = "/api/openapi.json"
UNAUTHENTICATED = (*PROBES, "/metrics", OPENAPI)
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CSRF = "x-csrf-token"
COOKIE = "icewright_session"
TOO_OLD = "the page that this came from is too old: load it again, and send the form from there"
_MINUTE = timedelta(minutes=1)  # resolution of the time of last use
_LONGEST_HOST = 200  # characters of a refused name that the answer repeats
_FORWARDING = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
_FORWARDING_PREFIXES = ("x-forwarded-", "x-envoy-", "x-original-", "x-cluster-")
_LOCAL = Principal("local", Via.LOCAL, (Grant(Role.ADMIN),))


@dataclass(frozen=True)
class Access:
    """The ways in which the server authenticates people and programs."""

    required: bool = False  # False: local requests are by an admin, others are refused
    idle: timedelta = timedelta(hours=1)
    lifetime: timedelta = timedelta(hours=12)
    oidc: OidcSection | None = field(default=None, repr=False)
    refusals: TokenBuckets = field(default_factory=lambda: TokenBuckets(1))  # audited refusals per second and network


def access_of(auth: AuthSection | None) -> Access:
    """Return the access rules of the `auth` section."""
    if auth is None:
        return Access()
    return Access(True, timedelta(minutes=auth.idle_minutes), timedelta(hours=auth.session_hours), auth.oidc)


def csrf_of(secret: str) -> str:
    """Return the CSRF token of a session, which a page of another site cannot know."""
    return hmac.new(secret.encode(), b"csrf", sha256).hexdigest()


def is_local_request(request: Request) -> bool:
    """Return whether a request comes directly from this machine under a loopback name, which no foreign page can use.

    A proxy or the sidecar of a service mesh connects from loopback too, for anybody; forwarding headers show it, and
    HTTP/1.0, as which nginx asks without any header unless it is told otherwise.
    """
    if request.scope.get("http_version") == "1.0":
        return False
    if any(name in _FORWARDING or name.startswith(_FORWARDING_PREFIXES) for name in request.headers):
        return False
    client = request.client.host if request.client else ""
    return is_loopback(client) and _names_loopback(request.headers.get("host", ""))


def _names_loopback(host: str) -> bool:
    """Return whether a `Host` header names this machine, with or without a port."""
    return is_loopback(host.rpartition(":")[0] if re.search(r":\d*$", host) else host)


class LoopbackHostMiddleware:
    """Answers 403 on routes without authentication when a request names another host than this machine.

    A web page whose name was rebound to a loopback address could read them: metrics name tables.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, or refuse the request; a client that names no host is no browser."""
        if scope["type"] == "http" and scope["path"] in UNAUTHENTICATED:
            host = Headers(scope=scope).get("host", "")
            if host and not _names_loopback(host):
                detail = f"{host[:_LONGEST_HOST]} does not name this machine: ask 127.0.0.1 or localhost, or set auth"
                await Problem(403, detail).response(scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def client_address(request: Request) -> str:
    """Return the address of the client, blank when unknown."""
    return request.client.host if request.client else ""


def principal_of(request: Request, app: AppState) -> Principal:
    """Return the principal of a request. Raises `Problem` 401, or 403 for a request that may come from another site."""
    access: Access = request.app.state.access
    now = app.runtime.clock.now()
    if (header := request.headers.get("authorization")) is not None:
        return _bearer(request, app, header, now)
    if secret := request.cookies.get(COOKIE):
        principal = _session(request, app, secret, now)
        if principal is not None:
            return principal
    if not access.required:
        if not is_local_request(request):
            raise Problem(403, "only this machine may use this service; to let others, set auth in its configuration")
        require_same_site(request)
        return _LOCAL
    raise _unauthenticated(request, app, "send a token as `Authorization: Bearer ...`, or log in")


def _bearer(request: Request, app: AppState, header: str, now: datetime) -> Principal:
    scheme, _, text = header.partition(" ")
    row = authenticate_token(request, app, text.strip() if scheme.lower() == "bearer" else "", now)
    return Principal(row.name, Via.TOKEN, row.grants)


def authenticate_token(request: Request, app: AppState, text: str, now: datetime) -> TokenRow:
    """Return the valid token for a bearer text, and record its use. Raises `Problem` 401."""
    claimed_id = token_id(text)
    row = proven(_token(request, app, claimed_id) if claimed_id else None, text, now)
    if row is None:
        raise _unauthenticated(
            request, app, "the token is not known, is revoked, or has expired", claimed_id=claimed_id
        )
    if row.used is None or now - row.used >= _MINUTE:
        app.runtime.store.access.record_token_use(row.id, now)
    return row


def _token(request: Request, app: AppState, claimed_id: str) -> TokenRow | None:
    return response_cache_of(request).get(("token", claimed_id), lambda: app.runtime.store.access.token(claimed_id))


def _session(request: Request, app: AppState, secret: str, now: datetime) -> Principal | None:
    access: Access = request.app.state.access
    session_digest = digest(secret)
    row = response_cache_of(request).get(
        ("session", session_digest), lambda: app.runtime.store.access.session(session_digest)
    )
    if row is None or now >= row.expires or now - row.seen >= access.idle:
        return None
    if row.token_id is not None:
        token = _token(request, app, row.token_id)
        if token is None or not token.is_valid(now):
            return None
    if request.method not in SAFE_METHODS:
        require_same_site(request)
        of_form = getattr(request.state, "csrf", None)
        csrf_token = str(request.headers.get(CSRF) or of_form or "").encode("utf-8", "replace")
        if not hmac.compare_digest(csrf_token, csrf_of(secret).encode()):
            needed = f"a change in a login session needs the header {CSRF}, as /api/v1/me says it"
            raise Problem(403, needed if of_form is None else TOO_OLD)
    if now - row.seen >= _MINUTE:
        app.runtime.store.access.record_session_use(row.digest, now)
    return Principal(row.name, Via.SESSION, row.grants)


def require_same_site(request: Request) -> None:
    """Raise `Problem` 403 for a change that a page of another site sent."""
    if request.method in SAFE_METHODS:
        return
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if foreign or site not in ("same-origin", "none"):
        raise Problem(403, "a page of another site sent this; changes are made from pages of this service alone")


def _unauthenticated(request: Request, app: AppState, detail: str, claimed_id: str | None = None) -> Problem:
    """Return a 401 problem, and audit the refusal at a limited rate per client."""
    access: Access = request.app.state.access
    source = client_address(request)
    if not access.refusals.wait(network_of(source)):
        app.runtime.store.audit.append(
            AuditRow(
                at=app.runtime.clock.now(),
                actor=f"token {claimed_id}" if claimed_id else "",
                via="",
                action=f"{request.method} {request.url.path}"[:200].encode("ascii", "replace").decode(),
                target="",
                place=None,
                refused=True,
                source=source,
                details={"why": detail},
            )
        )
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="icewright"'})
