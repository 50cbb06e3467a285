"""Tokens, sessions, the audit log and requests that are done once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, inserting
from icewright.adapters.store.paging import in_sight
from icewright.adapters.store.schema import AUDIT, REQUESTS, SESSIONS, TOKENS
from icewright.core.permissions import Grant, Role, VisibilityFilter
from icewright.ports.access import Answered, AuditRow, SessionRow, TokenRow

_REMEMBERED = timedelta(days=1)  # how long a key keeps a request from being done twice

_AT_MOST = timedelta(minutes=1)  # that a request takes


@dataclass
class SqlAccess:
    """The AccessStore port on a database."""

    db: Database

    def add_token(self, token: TokenRow) -> None:
        """Store a new API token; only the digest of its secret is kept."""
        values = {name: getattr(token, name) for name in TokenRow.__dataclass_fields__}
        with self.db.begin() as connection:
            connection.execute(sa.insert(TOKENS).values(**values | {"grants": _written(token.grants)}))

    def token(self, token_id: str) -> TokenRow | None:
        """Return the API token of this id, or None."""
        with self.db.reading() as connection:
            row = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == token_id)).first()
        return None if row is None else _token(row)

    def tokens(self) -> Sequence[TokenRow]:
        """Return all API tokens, revoked ones included."""
        with self.db.reading() as connection:
            rows = connection.execute(sa.select(TOKENS).order_by(TOKENS.c.created.desc(), TOKENS.c.id))
            return [_token(row) for row in rows]

    def record_token_use(self, token_id: str, now: datetime) -> None:
        """When its bearer was last here."""
        with self.db.begin() as connection:
            connection.execute(sa.update(TOKENS).where(TOKENS.c.id == token_id).values(used=now))

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        """Revoke an API token; returns False when it was revoked already."""
        going = (TOKENS.c.id == token_id) & TOKENS.c.revoked.is_(None)
        with self.db.begin() as connection:
            return connection.execute(sa.update(TOKENS).where(going).values(revoked=now)).rowcount == 1

    def add_session(self, session: SessionRow) -> None:
        """Store a new session of a browser."""
        values = {name: getattr(session, name) for name in SessionRow.__dataclass_fields__}
        with self.db.begin() as connection:
            connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.expires <= session.created))
            connection.execute(sa.insert(SESSIONS).values(**values | {"grants": _written(session.grants)}))

    def session(self, digest: str) -> SessionRow | None:
        """Return the session of this digest, or None."""
        with self.db.reading() as connection:
            row = connection.execute(sa.select(SESSIONS).where(SESSIONS.c.digest == digest)).first()
        if row is None:
            return None
        return SessionRow(**{**_plain(row), "grants": _read(row.grants)})

    def record_session_use(self, digest: str, now: datetime) -> None:
        """When it was last used."""
        with self.db.begin() as connection:
            connection.execute(sa.update(SESSIONS).where(SESSIONS.c.digest == digest).values(seen=now))

    def end_session(self, digest: str) -> None:
        """Delete the session of this digest."""
        with self.db.begin() as connection:
            connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.digest == digest))


MAX_REFUSALS = 10_000  # kept of unauthenticated clients, and as many of authenticated ones
_PRUNED_EVERY = 100  # entries, as counting them takes time


@dataclass
class SqlAudit:
    """The AuditLog port on a database."""

    db: Database

    def append(self, entry: AuditRow) -> None:
        """Append an entry to the audit log."""
        values = {name: getattr(entry, name) for name in AuditRow.__dataclass_fields__ if name not in ("id", "place")}
        if entry.place:
            catalog, *namespace = entry.place
            values |= {"catalog": catalog, "namespace": json.dumps(namespace, ensure_ascii=False)}
        values["details"] = dict(entry.details)
        with self.db.begin() as connection:
            added = connection.execute(sa.insert(AUDIT).values(**values)).inserted_primary_key
            if entry.refused and added is not None and added[0] % _PRUNED_EVERY == 0:
                # strangers cause refusals as often as they like; changes are never pruned
                same = AUDIT.c.refused & ((AUDIT.c.via == "") if entry.via == "" else (AUDIT.c.via != ""))
                newest = sa.select(AUDIT.c.id).where(same).order_by(AUDIT.c.id.desc())
                oldest_kept = newest.offset(MAX_REFUSALS - 1).limit(1).scalar_subquery()
                connection.execute(sa.delete(AUDIT).where(same, AUDIT.c.id < oldest_kept))

    def entries(
        self, sight: VisibilityFilter, before: int | None, limit: int, **equal: str | bool
    ) -> Sequence[AuditRow]:
        """Return entries of the audit log, newest first."""
        query = sa.select(AUDIT).where(*(AUDIT.c[name] == value for name, value in equal.items()))
        if before is not None:
            query = query.where(AUDIT.c.id < before)
        with self.db.reading() as connection:
            mine = in_sight(connection, sight, AUDIT)
            rows = connection.execute(query.where(mine).order_by(AUDIT.c.id.desc()).limit(limit)).all()
        return [_entry(row) for row in rows]


@dataclass
class SqlRequests:
    """The IdempotencyKeys port on a database."""

    db: Database

    def begin(self, request_id: str, body: str, now: datetime) -> Answered | None:
        """Return None when the request is the first of its key and goes on."""
        with self.db.begin() as connection:
            left = REQUESTS.c.answer.is_(None) & (REQUESTS.c.at < now - _AT_MOST)  # by a process that ended
            connection.execute(sa.delete(REQUESTS).where(left | (REQUESTS.c.at < now - _REMEMBERED)))
            new = inserting(connection, REQUESTS).values(id=request_id, body=body, at=now)
            first = new.on_conflict_do_nothing(index_elements=["id"]).returning(REQUESTS.c.id)
            if connection.execute(first).scalar() is not None:
                return None
            row = connection.execute(sa.select(REQUESTS).where(REQUESTS.c.id == request_id)).one()
            return Answered(row.body, row.answer)

    def end(self, request_id: str, answer: Mapping[str, Any] | None) -> None:
        """Store the response under its idempotency key."""
        mine = REQUESTS.c.id == request_id
        with self.db.begin() as connection:
            if answer is None:
                connection.execute(sa.delete(REQUESTS).where(mine))
            else:
                connection.execute(sa.update(REQUESTS).where(mine).values(answer=dict(answer)))


def _written(grants: Sequence[Grant]) -> list[dict[str, Any]]:
    return [{"role": str(grant.role), "scopes": [list(scope) for scope in grant.scopes]} for grant in grants]


def _read(grants: Sequence[Mapping[str, Any]]) -> tuple[Grant, ...]:
    return tuple(Grant(Role(g["role"]), tuple(tuple(scope) for scope in g["scopes"])) for g in grants)


def _plain(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a result row
    return dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name


def _token(row: Any) -> TokenRow:  # noqa: ANN401 - a result row
    return TokenRow(**{**_plain(row), "grants": _read(row.grants)})


def _entry(row: Any) -> AuditRow:  # noqa: ANN401 - a result row
    found = _plain(row)
    catalog, namespace = found.pop("catalog"), found.pop("namespace")
    return AuditRow(**found, place=None if catalog is None else (catalog, *json.loads(namespace)))
