"""Log in through an OpenID provider: authorization code flow with PKCE, state and nonce."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from icewright.app.sections import OidcSection
from icewright.app.tokens import digest
from icewright.app.web.app_state import AppState, app_state
from icewright.app.web.callers import Caller, any_caller
from icewright.app.web.identity import COOKIE, Access, client_address
from icewright.app.web.middlewares import network_of
from icewright.app.web.problems import Problem, documented
from icewright.core.permissions import Grant, Via, grant
from icewright.ports.access import AuditRow, SessionRow, TokenRow

router = APIRouter(prefix="/auth", tags=["login"], responses=documented(400, 403, 404, 422, 429, 503))
PENDING = "icewright_login"
_SECONDS = 600  # until a login that was begun expires
_TIMEOUT = 10.0  # seconds to wait for the provider


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """A login that was begun; all values derive from a secret in the browser's cookie, so the server stores nothing."""

    secret: str

    def _derive(self, purpose: str) -> str:
        return hmac.new(self.secret.encode(), purpose.encode(), sha256).hexdigest()

    @property
    def state(self) -> str:
        """Return the state parameter, which ties the callback to this browser."""
        return self._derive("state")

    @property
    def nonce(self) -> str:
        """Return the nonce, which ties the ID token to this login."""
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        """Return the PKCE code verifier, which ties the code to this login."""
        return self._derive("verifier")


@router.get("/login", summary="Log in by the OpenID provider", status_code=302, response_class=RedirectResponse)
def login(
    request: Request,
    next_path: Annotated[str, Query(alias="next", max_length=2000, description="a path of this service")] = "/",
) -> Response:
    """Redirect the browser to the provider's login page."""
    oidc = _configured(request)
    attempt = LoginAttempt(secrets.token_urlsafe(32))
    metadata = _metadata(oidc)
    with _client(oidc, request) as client:
        url, _ = client.create_authorization_url(
            metadata["authorization_endpoint"], state=attempt.state, nonce=attempt.nonce, code_verifier=attempt.verifier
        )
    response = RedirectResponse(url, 302)
    set_cookie(response, request, PENDING, f"{attempt.secret}.{local_path(next_path)}", _SECONDS)
    return response


@router.get("/callback", summary="Where the provider sends browsers back", status_code=303, response_class=Response)
def callback(
    request: Request,
    app: Annotated[AppState, Depends(app_state)],
    code: Annotated[str, Query(max_length=4000)] = "",
    state: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Exchange the code, begin a session and redirect to the requested page."""
    oidc = _configured(request)
    secret, _, page = request.cookies.get(PENDING, "").partition(".")
    attempt = LoginAttempt(secret)
    if not secret or not hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
        raise Problem(400, "this is no answer to a login that this browser began; begin again at /auth/login")
    app.runtime.store.access.end_session(digest(request.cookies.get(COOKIE, "")))  # also of who is refused now
    if error or not code:
        raise _refused(request, app, "", f"the provider refused: {error or 'it sent no code'}")
    claims = _claims(oidc, request, attempt, code)
    name = _name(oidc, claims)
    grants = _grants(oidc, claims)
    if not grants:
        raise _refused(request, app, name, "none of your groups is given a role in auth.oidc.groups")
    response = RedirectResponse(local_path(page), 303)
    response.delete_cookie(PENDING, path="/")
    begin_session(request, app, response, name, grants)
    return response


@router.post("/logout", summary="Log out", status_code=204)
def logout(caller: Annotated[Caller, Depends(any_caller)]) -> Response:
    """End the session of this service; the provider's session continues."""
    caller.app.runtime.store.access.end_session(digest(caller.request.cookies.get(COOKIE, "")))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


def _configured(request: Request) -> OidcSection:
    access: Access = request.app.state.access
    if access.oidc is None:
        raise Problem(404, "nobody logs in here: auth.oidc is not configured; bring a token")
    return access.oidc


def begin_session(
    request: Request,
    app: AppState,
    response: Response,
    name: str,
    grants: tuple[Grant, ...],
    token: TokenRow | None = None,
) -> None:
    """Store a session for an authenticated user and set its cookie; a session of a token ends with the token.

    One of the provider ends soon, as the groups of its user may change; the cookie stays, so that the next login needs
    no hand (`is_renewable`).
    """
    access: Access = request.app.state.access
    secret, now, life = secrets.token_urlsafe(32), app.runtime.clock.now(), access.lifetime
    if token is None and access.oidc is not None:
        life = min(life, timedelta(minutes=access.oidc.session_minutes))
    if old := request.cookies.get(COOKIE):
        app.runtime.store.access.end_session(digest(old))
    row = SessionRow(digest(secret), name, grants, now, now, now + life, token.id if token else None)
    app.runtime.store.access.add_session(row)
    set_cookie(response, request, COOKIE, secret, int(access.lifetime.total_seconds()))
    app.runtime.store.audit.append(_audit_row(request, app, name, refused=False, roles=[str(g.role) for g in grants]))


def is_renewable(request: Request, app: AppState) -> bool:
    """Return whether the browser had a session of the provider that was in use until it ended."""
    access: Access = request.app.state.access
    secret, now = request.cookies.get(COOKIE), app.runtime.clock.now()
    row = app.runtime.store.access.session(digest(secret)) if secret and access.oidc is not None else None
    return row is not None and row.token_id is None and row.expires <= now < row.seen + access.idle


def _refused(request: Request, app: AppState, name: str, reason: str) -> Problem:
    """Return a 403 problem, and audit the refusal at a limited rate per client, as anybody may cause it."""
    access: Access = request.app.state.access
    if not access.refusals.wait(network_of(client_address(request))):
        app.runtime.store.audit.append(_audit_row(request, app, name, refused=True, reason=reason))
    return Problem(403, reason, action="login")


def _audit_row(request: Request, app: AppState, name: str, *, refused: bool, **details: Any) -> AuditRow:
    return AuditRow(
        at=app.runtime.clock.now(),
        actor=name,
        via="" if refused else str(Via.SESSION),  # who is refused has no session
        action="login",
        target="",
        place=None,
        refused=refused,
        source=client_address(request),
        details=details,
    )


def _metadata(oidc: OidcSection) -> Mapping[str, Any]:
    import httpx2  # noqa: PLC0415 - needed where people log in

    url = f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        response = httpx2.get(url, timeout=_TIMEOUT)
        response.raise_for_status()
        metadata: Mapping[str, Any] = response.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise _provider_unavailable() from error
    if str(metadata.get("issuer", "")).rstrip("/") != oidc.issuer.rstrip("/"):
        raise Problem(503, "the OpenID provider says that it is another issuer than auth.oidc.issuer")
    return metadata


def _provider_unavailable() -> Problem:
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


def _claims(oidc: OidcSection, request: Request, attempt: LoginAttempt, code: str) -> Mapping[str, Any]:
    """Return the verified claims of the ID token. Raises `Problem` 400 or 503."""
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
        offered = metadata.get("id_token_signing_alg_values_supported", ["RS256"])
        # asymmetric algorithms only: an HMAC key could be guessed or public
        algorithms = [name for name in offered if name[:2] in ("RS", "PS", "ES", "Ed")]
        registry = JWSRegistry(algorithms=algorithms, strict_check_header=False)
        decoded = jwt.decode(token["id_token"], key=keys, registry=registry)
        values = {"iss": metadata["issuer"], "aud": oidc.client_id}
        options = {claim: {"essential": True, "value": value} for claim, value in values.items()}
        options["nonce"] = {"essential": True}
        more = {"nonce": attempt.nonce, "client_id": oidc.client_id, "access_token": token.get("access_token")}
        claims = CodeIDToken(decoded.claims, decoded.header, options, more)
        claims.validate(leeway=60)
    except httpx2.HTTPError as error:
        raise _provider_unavailable() from error
    except (AuthlibBaseError, JoseError, ValueError, KeyError) as error:
        raise Problem(400, f"the login failed: {type(error).__name__}; begin again at /auth/login") from error
    return dict(claims)


def _name(oidc: OidcSection, claims: Mapping[str, Any]) -> str:
    """Return the name for the audit log; an address that the provider calls unverified may be another person's."""
    unverified = oidc.name_claim == "email" and claims.get("email_verified") is False
    return str((None if unverified else claims.get(oidc.name_claim)) or claims["sub"])


def _grants(oidc: OidcSection, claims: Mapping[str, Any]) -> tuple[Grant, ...]:
    claim = claims.get(oidc.groups_claim, [])
    groups = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return tuple(grant(g.role, g.scope) for name, g in oidc.groups.items() if name in groups)


def local_path(page: str) -> str:
    """Return the path when it lies in this service, else "/": no open redirects."""
    parts = urlsplit(page)
    foreign = parts.scheme or parts.netloc or not page.startswith("/") or page.startswith(("//", "/\\"))
    return "/" if foreign or any(ord(c) < ord(" ") or c in ";\\" for c in page) else page


def set_cookie(response: Response, request: Request, name: str, value: str, seconds: int) -> None:
    """Set an HttpOnly cookie, Secure when the service is reached over HTTPS.

    Whatever proxy says so is believed: a cookie that is Secure by mistake harms nobody else.
    """
    access: Access = request.app.state.access
    public_url = access.oidc.public_url if access.oidc is not None else None
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() == "https"
    https = forwarded or (public_url or str(request.url)).startswith("https:")
    response.set_cookie(name, value, max_age=seconds, path="/", secure=https, httponly=True, samesite="lax")
