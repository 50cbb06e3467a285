"""Who asks: the bearer of a token, who logged in, or, where nobody else gets in, whoever is on this machine."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from urllib.parse import urlsplit

from fastapi import Request

from icewright.app.addresses import is_loopback
from icewright.app.sections import AuthSection, OidcSection
from icewright.app.tokens import digest, proven, token_id
from icewright.app.web.app_state import AppState
from icewright.app.web.limits import TokenBuckets
from icewright.app.web.problems import Problem
from icewright.app.web.response_cache import response_cache_of
from icewright.core.permissions import Grant, Principal, Role, Via
from icewright.ports.access import AuditRow, TokenRow

SAFE = ("GET", "HEAD", "OPTIONS")
CSRF = "x-csrf-token"
COOKIE = "icewright_session"
_MINUTE = timedelta(minutes=1)  # how exactly it is known when a token or session was used
_LOCAL = Principal("local", Via.LOCAL, (Grant(Role.ADMIN),))


@dataclass(frozen=True)
class Access:
    """How people and programs are told apart."""

    required: bool = False  # else everybody on this machine is an admin, and nobody else gets in
    idle: timedelta = timedelta(hours=1)
    lifetime: timedelta = timedelta(hours=12)
    oidc: OidcSection | None = field(default=None, repr=False)
    refusals: TokenBuckets = field(
        default_factory=lambda: TokenBuckets(1)
    )  # what strangers may have written down a second


def access_of(auth: AuthSection | None) -> Access:
    """Build the access rules that the configuration asks for."""
    if auth is None:
        return Access()
    return Access(True, timedelta(minutes=auth.idle_minutes), timedelta(hours=auth.session_hours), auth.oidc)


def csrf_of(secret: str) -> str:
    """Return what a change must bring that a session makes: pages of other sites cannot know it."""
    return hmac.new(secret.encode(), b"csrf", sha256).hexdigest()


def is_here(request: Request) -> bool:
    """Return whether it comes from this machine, and by a name of it, which no page of another site can have."""
    client = request.client.host if request.client else ""
    asked = request.headers.get("host", "")
    name = asked.rpartition(":")[0] if re.search(r":\d*$", asked) else asked
    return is_loopback(client) and is_loopback(name)


def source_of(request: Request) -> str:
    """Return the address that it comes from."""
    return request.client.host if request.client else ""


def principal_of(request: Request, to: AppState) -> Principal:
    """Return who asks. Raises `Problem`: 401 who is not known, 403 what a page of another site may have sent."""
    access: Access = request.app.state.access
    now = to.runtime.clock.now()
    if (header := request.headers.get("authorization")) is not None:
        return _bearer(request, to, header, now)
    if secret := request.cookies.get(COOKIE):
        found = _session(request, to, secret, now)
        if found is not None:
            return found
    if not access.required:
        if not is_here(request):
            raise Problem(403, "only this machine may use this service; to let others, set auth in its configuration")
        same_site(request)
        return _LOCAL
    raise _stranger(request, to, "send a token as `Authorization: Bearer ...`, or log in")


def _bearer(request: Request, to: AppState, header: str, now: datetime) -> Principal:
    scheme, _, text = header.partition(" ")
    row = known_token(request, to, text.strip() if scheme.lower() == "bearer" else "", now)
    return Principal(row.name, Via.TOKEN, row.grants)


def known_token(request: Request, to: AppState, text: str, now: datetime) -> TokenRow:
    """Return the token that a text is. Raises `Problem`."""
    found = token_id(text)
    row = proven(_token(request, to, found) if found else None, text, now)
    if row is None:
        raise _stranger(request, to, "the token is not known, is revoked, or has expired", claimed=found)
    if row.used is None or now - row.used >= _MINUTE:
        to.runtime.store.access.record_token_use(row.id, now)
    return row


def _token(request: Request, to: AppState, found: str) -> TokenRow | None:
    return response_cache_of(request).get(("token", found), lambda: to.runtime.store.access.token(found))


def _session(request: Request, to: AppState, secret: str, now: datetime) -> Principal | None:
    access: Access = request.app.state.access
    known = digest(secret)
    row = response_cache_of(request).get(("session", known), lambda: to.runtime.store.access.session(known))
    if row is None or now >= row.expires or now - row.seen >= access.idle:
        return None
    if row.token_id is not None:
        token = _token(request, to, row.token_id)
        if token is None or not token.holds(now):
            return None
    if request.method not in SAFE:
        same_site(request)
        given = str(request.headers.get(CSRF) or getattr(request.state, "csrf", "")).encode("utf-8", "replace")
        if not hmac.compare_digest(given, csrf_of(secret).encode()):
            raise Problem(403, f"a change by somebody who logged in brings the header {CSRF}, as /api/v1/me says it")
    if now - row.seen >= _MINUTE:
        to.runtime.store.access.record_session_use(row.digest, now)
    return Principal(row.name, Via.SESSION, row.grants)


def same_site(request: Request) -> None:
    """Refuse changes that a page of another site sends."""
    if request.method in SAFE:
        return
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if foreign or site not in ("same-origin", "none"):
        raise Problem(403, "a page of another site sent this; changes are made from pages of this service alone")


def _stranger(request: Request, to: AppState, detail: str, claimed: str | None = None) -> Problem:
    """401, written down; who guesses many times a second is written down once."""
    access: Access = request.app.state.access
    source = source_of(request)
    if not access.refusals.wait(source):
        to.runtime.store.audit.append(
            AuditRow(
                at=to.runtime.clock.now(),
                actor=f"token {claimed}" if claimed else "",
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
