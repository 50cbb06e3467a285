"""Receive events about tables from authenticated senders: POST /api/v1/events."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from icewright.app.web.app_state import AppState, app_state
from icewright.app.web.identity import is_local_request
from icewright.app.web.problems import Problem, documented
from icewright.core.errors import BadEvent
from icewright.core.events.model import decoded
from icewright.core.events.parse import JSON, MEDIA_TYPES, messages
from icewright.flow.events import receive_events

SIGNATURE = "x-icewright-signature"
_SCHEME = "sha256="
router = APIRouter(prefix="/api/v1", tags=["events"])
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {kind: {"schema": {"type": "object"}} for kind in MEDIA_TYPES}}
}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class EventSenders:
    """Tokens and signing secrets that authenticate senders of events."""

    tokens: Sequence[str] = field(default=(), repr=False)
    secrets: Sequence[str] = field(default=(), repr=False)

    @property
    def configured(self) -> bool:
        """Return whether any token or secret is configured."""
        return bool(self.tokens or self.secrets)

    def has_token(self, header: str) -> bool:
        """Return whether an `Authorization` header carries a configured bearer token."""
        scheme, _, received = header.partition(" ")
        received_digest = sha256(received.strip().encode("latin-1", "replace")).digest()
        # every token is compared in constant time
        matches = [hmac.compare_digest(received_digest, sha256(token.encode()).digest()) for token in self.tokens]
        return scheme.lower() == "bearer" and any(matches)

    def has_signature(self, header: str, body: bytes) -> bool:
        """Return whether a signature is the HMAC-SHA256 of the body under a configured secret."""
        received = header.removeprefix(_SCHEME).strip().lower().encode("latin-1", "replace")
        expected = [hmac.new(secret.encode(), body, sha256).hexdigest().encode() for secret in self.secrets]
        matches = [hmac.compare_digest(received, signature) for signature in expected]
        return header.startswith(_SCHEME) and any(matches)


async def require_event_sender(request: Request) -> None:
    """Let authenticated senders of events pass. Raises `Problem` 401 or 403."""
    senders: EventSenders = request.app.state.senders
    if not senders.configured:
        _require_local(request)
        return
    if (header := request.headers.get("authorization")) is not None:
        if not senders.has_token(header):
            raise _unauthenticated("the token is not one of events.tokens")
        return
    if (signature := request.headers.get(SIGNATURE)) is None:
        raise _unauthenticated(f"send a token as `Authorization: Bearer ...`, or a signature as {SIGNATURE}")
    if not senders.has_signature(signature, await request.body()):
        raise _unauthenticated(
            f"the signature is not that of the body; send {_SCHEME} and the HMAC-SHA256 of it in hexadecimal"
        )
    if "ce-specversion" in request.headers:
        raise Problem(403, "the signature covers the body alone; send the event in structured mode, or with a token")


def _unauthenticated(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="icewright"'})


def _require_local(request: Request) -> None:
    """Refuse requests that are not from this machine, when no token or secret is configured."""
    if not is_local_request(request):
        raise Problem(403, "only this machine may push events; to let others, set events.tokens or events.secrets")


class Accepted(BaseModel):
    """The receipt of a request that pushed events."""

    received: int = Field(description="events that were new")
    duplicates: int = Field(description="events that were received before; they change nothing")
    tables: list[str] = Field(description="tables that the new events speak of")
    unknown: list[str] = Field(description="tables that no catalog has listed yet; the catalog is listed soon")
    ignored: list[str] = Field(description="events about no table of the configured catalogs")


@router.post(
    "/events",
    status_code=202,
    summary="Push events about tables that changed or were read",
    dependencies=[Depends(require_event_sender)],
    responses=documented(400, 401, 403, 413, 415, 422, 429, 503),
    openapi_extra=_BODY,
)
async def push(request: Request, app: Annotated[AppState, Depends(app_state)]) -> Accepted:
    """Accept CloudEvents, Iceberg metrics reports, Trino query events and object store notifications."""
    attributes = _attributes(request)
    kind = _media_type(request, binary=bool(attributes))
    body = await request.body()
    return await run_in_threadpool(_accept_events, app, body, kind, attributes)


def _accept_events(app: AppState, body: bytes, kind: str, attributes: Mapping[str, str]) -> Accepted:
    try:
        document = decoded(body) if body or not attributes else None
    except BadEvent as error:
        raise Problem(400, str(error)) from error
    accepted = receive_events(app.runtime, app.directory, messages(document, kind, attributes, app.runtime.clock.now()))
    receipt = accepted.receipt
    return Accepted(
        received=receipt.received,
        duplicates=receipt.duplicates,
        tables=[str(ref) for ref in receipt.tables],
        unknown=list(receipt.unknown),
        ignored=list(accepted.ignored),
    )


def _attributes(request: Request) -> dict[str, str]:
    """Return the attributes of a CloudEvent in binary mode; none for other requests."""
    if "ce-specversion" not in request.headers:
        return {}
    return {
        name.removeprefix("ce-"): _unescaped(value) for name, value in request.headers.items() if name.startswith("ce-")
    }


def _unescaped(value: str) -> str:
    """Decode a header by the HTTP binding of CloudEvents: optional quotes, then percent-encoding.

    An invalid encoding is returned unchanged.
    """
    if (quoted := _QUOTED.fullmatch(value)) is not None:
        value = re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        return value


def _media_type(request: Request, *, binary: bool) -> str:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    supported = (JSON,) if binary else MEDIA_TYPES
    if media_type not in supported:
        detail = f"the body is sent as {media_type or 'nothing that is named'}; send {' or '.join(supported)}"
        raise Problem(415, detail, headers={"Accept-Post": ", ".join(supported)})
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "the body is compressed; send it as it is", headers={"Accept-Encoding": "identity"})
    return media_type
