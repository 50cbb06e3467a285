"""Who may push events: bearers of a token, who signs with a secret, or, where there is neither, this machine alone."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from fastapi import Request

from icewright.app.web.identity import is_here
from icewright.app.web.problems import Problem

SIGNATURE = "x-icewright-signature"
_SCHEME = "sha256="


@dataclass(frozen=True)
class Senders:
    """The tokens and secrets of those who may push events."""

    tokens: Sequence[str] = field(default=(), repr=False)
    secrets: Sequence[str] = field(default=(), repr=False)

    @property
    def known(self) -> bool:
        """Return whether senders can be told from others."""
        return bool(self.tokens or self.secrets)

    def bears(self, header: str) -> bool:
        """Return whether an `Authorization` header brings a token."""
        scheme, _, token = header.partition(" ")
        given = sha256(token.strip().encode("latin-1", "replace")).digest()
        # all of them are compared, in the same time each
        same = [hmac.compare_digest(given, sha256(known.encode()).digest()) for known in self.tokens]
        return scheme.lower() == "bearer" and any(same)

    def signed(self, header: str, body: bytes) -> bool:
        """Return whether a signature is the body's."""
        given = header.removeprefix(_SCHEME).strip().lower().encode("latin-1", "replace")
        wanted = [hmac.new(secret.encode(), body, sha256).hexdigest().encode() for secret in self.secrets]
        same = [hmac.compare_digest(given, one) for one in wanted]
        return header.startswith(_SCHEME) and any(same)


async def sender(request: Request) -> None:
    """Let those pass who may push events."""
    senders: Senders = request.app.state.senders
    if not senders.known:
        _only_here(request)
        return
    if (header := request.headers.get("authorization")) is not None:
        if not senders.bears(header):
            raise _unknown("the token is not one of events.tokens")
        return
    if (signature := request.headers.get(SIGNATURE)) is None:
        raise _unknown(f"send a token as `Authorization: Bearer ...`, or a signature as {SIGNATURE}")
    if not senders.signed(signature, await request.body()):
        raise _unknown(
            f"the signature is not that of the body; send {_SCHEME} and the HMAC-SHA256 of it in hexadecimal"
        )
    if "ce-specversion" in request.headers:
        raise Problem(403, "the signature covers the body alone; send the event in structured mode, or with a token")


def _unknown(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": 'Bearer realm="icewright"'})


def _only_here(request: Request) -> None:
    """Without tokens: from this machine, and by a name of it, which no page of another site can have."""
    if not is_here(request):
        raise Problem(403, "only this machine may push events; to let others, set events.tokens or events.secrets")
