"""Logging in by an OpenID provider: authorization code with PKCE, state and nonce; the session is kept here."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from icewright.app.sections import OidcSection
from icewright.app.tokens import digest
from icewright.app.web.app_state import AppState, app_state
from icewright.app.web.callers import Caller, anybody
from icewright.app.web.identity import COOKIE, Access, source_of
from icewright.app.web.problems import Problem, documented
from icewright.core.permissions import Grant, Via, grant
from icewright.ports.access import AuditRow, SessionRow, TokenRow

router = APIRouter(prefix="/auth", tags=["login"], responses=documented(400, 403, 404, 422, 429, 503))
PENDING = "icewright_login"
_SECONDS = 600  # that a login may take
_TIMEOUT = 10.0  # seconds for an answer of the provider


@dataclass(frozen=True, slots=True)
class Attempt:
    """A login that was begun. All that it needs comes from what the browser's cookie says: nothing is kept here."""

    secret: str

    def _derived(self, what: str) -> str:
        return hmac.new(self.secret.encode(), what.encode(), sha256).hexdigest()

    @property
    def state(self) -> str:
        """That the answer is one to this browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """That the provider's token is one for this login."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """That who brings the code is who asked for it (PKCE)."""
        return self._derived("verifier")


@router.get("/login", summary="Log in by the OpenID provider", status_code=302, response_class=RedirectResponse)
def login(
    request: Request, to: Annotated[str, Query(alias="next", max_length=2000, description="a page here")] = "/"
) -> Response:
    """Sends the browser to the provider."""
    oidc = _configured(request)
    attempt = Attempt(secrets.token_urlsafe(32))
    metadata = _metadata(oidc)
    with _client(oidc, request) as client:
        url, _ = client.create_authorization_url(
            metadata["authorization_endpoint"],
            state=attempt.state,
            nonce=attempt.nonce,
            code_verifier=attempt.verifier,
        )
    answer = RedirectResponse(url, 302)
    set_cookie(answer, request, PENDING, f"{attempt.secret}.{here(to)}", _SECONDS)
    return answer


@router.get("/callback", summary="Where the provider sends browsers back", status_code=303, response_class=Response)
def callback(
    request: Request,
    to: Annotated[AppState, Depends(app_state)],
    code: Annotated[str, Query(max_length=4000)] = "",
    state: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Begins the session, and shows the page that was asked for."""
    oidc = _configured(request)
    secret, _, page = request.cookies.get(PENDING, "").partition(".")
    attempt = Attempt(secret)
    if not secret or not hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
        raise Problem(400, "this is no answer to a login that this browser began; begin again at /auth/login")
    if error or not code:
        raise _refused(request, to, "", f"the provider refused: {error or 'it sent no code'}")
    claims = _claims(oidc, request, attempt, code)
    name = str(claims.get(oidc.name_claim) or claims["sub"])
    grants = _grants(oidc, claims)
    if not grants:
        raise _refused(request, to, name, "none of your groups is given a role in auth.oidc.groups")
    answer = RedirectResponse(here(page), 303)
    answer.delete_cookie(PENDING, path="/")
    begin_session(request, to, answer, name, grants)
    return answer


@router.post("/logout", summary="Log out", status_code=204)
def logout(by: Annotated[Caller, Depends(anybody)]) -> Response:
    """Ends the session here; the provider's own goes on."""
    by.opened.runtime.store.access.end_session(digest(by.request.cookies.get(COOKIE, "")))
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _configured(request: Request) -> OidcSection:
    access: Access = request.app.state.access
    if access.oidc is None:
        raise Problem(404, "nobody logs in here: auth.oidc is not configured; bring a token")
    return access.oidc


def begin_session(
    request: Request,
    to: AppState,
    answer: Response,
    name: str,
    grants: tuple[Grant, ...],
    token: TokenRow | None = None,
) -> None:
    """Let the answer's cookie stand for somebody who proved who they are, by the token if there is one."""
    access: Access = request.app.state.access
    secret, now = secrets.token_urlsafe(32), to.runtime.clock.now()
    if old := request.cookies.get(COOKIE):
        to.runtime.store.access.end_session(digest(old))
    row = SessionRow(digest(secret), name, grants, now, now, now + access.lifetime, token.id if token else None)
    to.runtime.store.access.add_session(row)
    set_cookie(answer, request, COOKIE, secret, int(access.lifetime.total_seconds()))
    to.runtime.store.audit.append(_entry(request, to, name, refused=False, roles=[str(g.role) for g in grants]))


def _refused(request: Request, to: AppState, name: str, why: str) -> Problem:
    to.runtime.store.audit.append(_entry(request, to, name, refused=True, why=why))
    return Problem(403, why)


def _entry(request: Request, to: AppState, name: str, *, refused: bool, **details: Any) -> AuditRow:  # noqa: ANN401
    return AuditRow(
        at=to.runtime.clock.now(),
        actor=name,
        via=str(Via.SESSION),
        action="login",
        target="",
        place=None,
        refused=refused,
        source=source_of(request),
        details=details,
    )


def _metadata(oidc: OidcSection) -> Mapping[str, Any]:
    import httpx2  # noqa: PLC0415 - needed where people log in

    url = f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        answer = httpx2.get(url, timeout=_TIMEOUT)
        answer.raise_for_status()
        found: Mapping[str, Any] = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise _away() from error
    if str(found.get("issuer", "")).rstrip("/") != oidc.issuer.rstrip("/"):
        raise Problem(503, "the OpenID provider says that it is another issuer than auth.oidc.issuer")
    return found


def _away() -> Problem:
    return Problem(503, "the OpenID provider does not answer as it must; try again", headers={"Retry-After": "5"})


def _client(oidc: OidcSection, request: Request) -> Any:  # noqa: ANN401 - of Authlib, which has no annotations
    from authlib.integrations.httpx_client import OAuth2Client  # noqa: PLC0415 - needed where people log in

    base = oidc.public_url.rstrip("/") if oidc.public_url else str(request.base_url).rstrip("/")
    return OAuth2Client(
        oidc.client_id,
        oidc.client_secret,
        scope=" ".join(oidc.scopes),
        redirect_uri=f"{base}/auth/callback",
        code_challenge_method="S256",
        timeout=_TIMEOUT,
    )


def _claims(oidc: OidcSection, request: Request, attempt: Attempt, code: str) -> Mapping[str, Any]:
    """Return what the provider proves of who logged in. Raises `Problem`."""
    import httpx2  # noqa: PLC0415 - needed where people log in
    from authlib.common.errors import AuthlibBaseError  # noqa: PLC0415
    from authlib.oidc.core import CodeIDToken  # noqa: PLC0415
    from joserfc import jwt  # noqa: PLC0415
    from joserfc.errors import JoseError  # noqa: PLC0415
    from joserfc.jwk import KeySet  # noqa: PLC0415
    from joserfc.jws import JWSRegistry  # noqa: PLC0415

    metadata = _metadata(oidc)
    try:
        with _client(oidc, request) as client:
            token = client.fetch_token(metadata["token_endpoint"], code=code, code_verifier=attempt.verifier)
        keys = KeySet.import_key_set(httpx2.get(metadata["jwks_uri"], timeout=_TIMEOUT).json())
        said = metadata.get("id_token_signing_alg_values_supported", ["RS256"])
        algorithms = [name for name in said if name[:2] in ("RS", "PS", "ES", "Ed")]  # none that a secret makes
        registry = JWSRegistry(algorithms=algorithms, strict_check_header=False)
        found = jwt.decode(token["id_token"], key=keys, registry=registry)
        options = {"iss": {"essential": True, "value": metadata["issuer"]}, "nonce": {"essential": True}}
        more = {"nonce": attempt.nonce, "client_id": oidc.client_id, "access_token": token.get("access_token")}
        claims = CodeIDToken(found.claims, found.header, options, more)
        claims.validate(leeway=60)
    except httpx2.HTTPError as error:
        raise _away() from error
    except (AuthlibBaseError, JoseError, ValueError, KeyError) as error:
        raise Problem(400, f"the login failed: {type(error).__name__}; begin again at /auth/login") from error
    return dict(claims)


def _grants(oidc: OidcSection, claims: Mapping[str, Any]) -> tuple[Grant, ...]:
    said = claims.get(oidc.groups_claim, [])
    groups = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return tuple(grant(g.role, g.scope) for name, g in oidc.groups.items() if name in groups)


def here(page: str) -> str:
    """Return a page of this service, whatever was asked for: nobody is sent elsewhere."""
    parts = urlsplit(page)
    foreign = parts.scheme or parts.netloc or not page.startswith("/") or page.startswith(("//", "/\\"))
    return "/" if foreign or any(ord(c) < ord(" ") or c in ";\\" for c in page) else page


def set_cookie(answer: Response, request: Request, name: str, value: str, seconds: int) -> None:
    """A cookie that no script reads, over HTTPS alone where the service is reached by it."""
    access: Access = request.app.state.access
    known = access.oidc.public_url if access.oidc is not None else None
    https = (known or str(request.url)).startswith("https:")
    answer.set_cookie(name, value, max_age=seconds, path="/", secure=https, httponly=True, samesite="lax")
