"""Authenticate senders of events by token or signature, or by the local machine where neither is configured."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from fastapi import Request

from icewright.app.web.identity import is_local_request
from icewright.app.web.problems import Problem

SIGNATURE = "x-icewright-signature"
_SCHEME = "sha256="


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
