"""Access: API tokens and sessions by their digests, the audit log, and idempotency keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from icewright.core.permissions import Grant, Place, VisibilityFilter


@dataclass(frozen=True, slots=True)
class TokenRow:
    """An API token, without the secret that only its bearer knows."""

    id: str
    digest: str = field(repr=False)
    name: str
    grants: tuple[Grant, ...]
    author: str
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    used: datetime | None = None  # to the minute

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token is neither expired nor revoked."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The session of somebody who logged in by a browser."""

    digest: str = field(repr=False)
    name: str
    grants: tuple[Grant, ...]
    created: datetime
    seen: datetime
    expires: datetime
    token_id: str | None = None  # the token of the login; the session ends with it


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry of the audit log: who changed what, or was refused, from where and when."""

    at: datetime
    actor: str
    via: str
    action: str
    target: str
    place: Place | None  # of the target; None: no single place
    refused: bool
    source: str  # client address, or the command line
    details: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0  # given by the store


@dataclass(frozen=True, slots=True)
class ClaimedRequest:
    """A request that has claimed an Idempotency-Key: its body, and its response once there is one."""

    body: str  # digest
    answer: Mapping[str, Any] | None  # None while the first request runs


class AccessStore(Protocol):
    """API tokens and sessions. Of their secrets only digests are stored. Each change is one transaction."""

    def add_token(self, token: TokenRow) -> None:
        """Store a new API token. Not to be repeated: ids are unique."""

    def token(self, token_id: str) -> TokenRow | None:
        """Return the API token of this id, or None."""

    def tokens(self) -> Sequence[TokenRow]:
        """Return all API tokens, revoked and expired ones too, newest first."""

    def record_token_use(self, token_id: str, now: datetime) -> None:
        """Record when an API token was last used. May be repeated."""

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        """Revoke an API token. Return False when no token of this id is active."""

    def add_session(self, session: SessionRow) -> None:
        """Store a new session, and delete expired ones. Not to be repeated: digests are unique."""

    def session(self, digest: str) -> SessionRow | None:
        """Return the session of this digest, expired or not, or None."""

    def record_session_use(self, digest: str, now: datetime) -> None:
        """Record when a session was last used. May be repeated."""

    def end_session(self, digest: str) -> None:
        """Delete a session, as its user logged out. May be repeated."""


class AuditLog(Protocol):
    """The audit log of changes and refusals. Changes stay; old refusals are pruned, as strangers cause them at will."""

    def append(self, *entries: AuditRow) -> None:
        """Append entries, all or none; durable when the call returns. Not to be repeated: each call adds them."""

    def entries(
        self,
        visibility: VisibilityFilter,
        before: int | None,
        limit: int,
        *,
        since: datetime | None = None,
        search: str | None = None,
        **equal: str | bool,
    ) -> Sequence[AuditRow]:
        """Return entries, newest first: since a time, of ids below `before`, with the values of `equal`.

        `search` is a part of the target, case-insensitive.
        """


class IdempotencyKeys(Protocol):
    """Requests with an Idempotency-Key, each of which is carried out once. Keys are remembered for a day."""

    def begin(self, request_id: str, body: str, now: datetime) -> ClaimedRequest | None:
        """Claim a key for a request with this digest of its body: None when the caller is to carry it out.

        Otherwise returns the state of the first request with this key. A claim that was neither ended nor answered
        within a minute belongs to a dead process, and is given to the caller.
        """

    def end(self, request_id: str, answer: Mapping[str, Any] | None) -> None:
        """Store the response under the key, or with None forget the key, as the request was refused."""
