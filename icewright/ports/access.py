"""What is kept of access: tokens and sessions by their digests, the audit log, requests that are done once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from icewright.core.permissions import Grant, Place, Sight


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token, without what only its bearer knows."""

    id: str
    digest: str = field(repr=False)
    name: str
    grants: tuple[Grant, ...]
    author: str
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    used: datetime | None = None  # to the minute

    def holds(self, now: datetime) -> bool:
        """Whether it still opens anything."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Somebody who logged in by a browser."""

    digest: str = field(repr=False)
    name: str
    grants: tuple[Grant, ...]
    created: datetime
    seen: datetime
    expires: datetime
    token_id: str | None = None  # by which they logged in: it ends with the token


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A change, or a refusal: who, what, of what, from where, when."""

    at: datetime
    actor: str
    via: str
    action: str
    target: str
    place: Place | None  # of the target; None: it is about all
    refused: bool
    source: str  # the address that it came from, or the command line
    details: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0  # given by the store


@dataclass(frozen=True, slots=True)
class Answered:
    """What is known of a request with an Idempotency-Key."""

    body: str  # digest
    answer: Mapping[str, Any] | None  # None while the first is at it


class AccessStore(Protocol):
    """Who may, and who did."""

    def stamp(self) -> Hashable | None:
        """Another one after each change of the store by anybody: what was read since is what there is.

        Cheap to ask; None where it is not known.
        """
        ...

    def add_token(self, token: TokenRow) -> None:
        """Write down a new token."""
        ...

    def token(self, token_id: str) -> TokenRow | None:
        """Return the API token of this id, or None."""
        ...

    def tokens(self) -> Sequence[TokenRow]:
        """All tokens, those too that are over; newest first."""
        ...

    def token_used(self, token_id: str, now: datetime) -> None:
        """Record when an API token was last used."""
        ...

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        """End a token; False when there is none that goes on."""
        ...

    def add_session(self, session: SessionRow) -> None:
        """Somebody logged in; sessions that are over are forgotten."""
        ...

    def session(self, digest: str) -> SessionRow | None:
        """Return the session of this digest, or None."""
        ...

    def session_seen(self, digest: str, now: datetime) -> None:
        """Record when a session was last used."""
        ...

    def end_session(self, digest: str) -> None:
        """Delete a session, as its user logged out."""
        ...

    def audit(self, entry: AuditRow) -> None:
        """Write down a change or a refusal."""
        ...

    def audited(self, sight: Sight, before: int | None, limit: int, **equal: str | bool) -> Sequence[AuditRow]:
        """Entries of the log, newest first, of smaller ids than `before`, whose columns are equal to these."""
        ...

    def begin_request(self, request_id: str, body: str, now: datetime) -> Answered | None:
        """Keep a request from being done twice: None when this is the first, else what became of that."""
        ...

    def end_request(self, request_id: str, answer: Mapping[str, Any] | None) -> None:
        """What it was answered; None: it was refused, and may be sent anew."""
        ...
