"""Tokens, sessions, the audit log, idempotency keys, and policy rules with all their versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database, dialect_insert
from icewright.adapters.store.schema import AUDIT, POLICIES, REQUESTS, SESSIONS, TOKENS
from icewright.adapters.store.statements import values_of, visible
from icewright.core.layering import PolicyRule
from icewright.core.permissions import Grant, Role, VisibilityFilter
from icewright.core.policy import RENAMED
from icewright.ports import AccessStore, AuditLog, IdempotencyKeys, PolicyRules
from icewright.ports.access import AuditRow, ClaimedRequest, SessionRow, TokenRow
from icewright.ports.views import RuleVersion

_KEY_LIFETIME = timedelta(days=1)  # how long a key keeps a request from being done twice

_LONGEST_REQUEST = timedelta(minutes=1)  # after which an unanswered request is taken for abandoned
MAX_REFUSALS = 10_000  # kept of unauthenticated clients, and as many of authenticated ones
_PRUNED_EVERY = 100  # entries, as counting them takes time
_RULES = sa.select(POLICIES.c.scope, POLICIES.c.settings).order_by(POLICIES.c.id)


@dataclass
class SqlAccess(AccessStore):
    """The AccessStore port on a database."""

    db: Database

    def add_token(self, token: TokenRow) -> None:
        values = values_of(token) | {"grants": _grants_to_json(token.grants)}
        self.db.write(sa.insert(TOKENS).values(**values))

    def token(self, token_id: str) -> TokenRow | None:
        with self.db.reading() as connection:
            row = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == token_id)).first()
        return None if row is None else _token(row)

    def tokens(self) -> Sequence[TokenRow]:
        with self.db.reading() as connection:
            rows = connection.execute(sa.select(TOKENS).order_by(TOKENS.c.created.desc(), TOKENS.c.id))
            return [_token(row) for row in rows]

    def record_token_use(self, token_id: str, now: datetime) -> None:
        self.db.write(sa.update(TOKENS).where(TOKENS.c.id == token_id).values(used=now))

    def revoke_token(self, token_id: str, now: datetime) -> bool:
        active = (TOKENS.c.id == token_id) & TOKENS.c.revoked.is_(None)
        return self.db.write(sa.update(TOKENS).where(active).values(revoked=now)) == 1

    def add_session(self, session: SessionRow) -> None:
        values = values_of(session) | {"grants": _grants_to_json(session.grants)}
        with self.db.begin() as connection:
            connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.expires <= session.created))
            connection.execute(sa.insert(SESSIONS).values(**values))

    def session(self, digest: str) -> SessionRow | None:
        with self.db.reading() as connection:
            row = connection.execute(sa.select(SESSIONS).where(SESSIONS.c.digest == digest)).first()
        if row is None:
            return None
        return SessionRow(**{**row._asdict(), "grants": _grants_from_json(row.grants)})

    def record_session_use(self, digest: str, now: datetime) -> None:
        self.db.write(sa.update(SESSIONS).where(SESSIONS.c.digest == digest).values(seen=now))

    def end_session(self, digest: str) -> None:
        self.db.write(sa.delete(SESSIONS).where(SESSIONS.c.digest == digest))


@dataclass
class SqlAudit(AuditLog):
    """The AuditLog port on a database."""

    db: Database

    def append(self, *entries: AuditRow) -> None:
        if not entries:
            return
        with self.db.begin() as connection:
            connection.execute(sa.insert(AUDIT), [_values(entry) for entry in entries])
            last = connection.execute(sa.select(sa.func.max(AUDIT.c.id))).scalar_one()
            if entries[0].refused and last % _PRUNED_EVERY == 0:
                # strangers cause refusals as often as they like; changes are never pruned
                same = AUDIT.c.refused & ((AUDIT.c.via == "") if entries[0].via == "" else (AUDIT.c.via != ""))
                newest = sa.select(AUDIT.c.id).where(same).order_by(AUDIT.c.id.desc())
                oldest_kept = newest.offset(MAX_REFUSALS - 1).limit(1).scalar_subquery()
                connection.execute(sa.delete(AUDIT).where(same, AUDIT.c.id < oldest_kept))

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
        query = sa.select(AUDIT).where(*(AUDIT.c[name] == value for name, value in equal.items()))
        if before is not None:
            query = query.where(AUDIT.c.id < before)
        if since is not None:
            query = query.where(AUDIT.c.at >= since)
        if search is not None:
            query = query.where(AUDIT.c.target.icontains(search, autoescape=True))
        with self.db.reading() as connection:
            readable = visible(connection, visibility, AUDIT)
            rows = connection.execute(query.where(readable).order_by(AUDIT.c.id.desc()).limit(limit)).all()
        return [_entry(row) for row in rows]


@dataclass
class SqlRequests(IdempotencyKeys):
    """The IdempotencyKeys port on a database."""

    db: Database

    def begin(self, request_id: str, body: str, now: datetime) -> ClaimedRequest | None:
        with self.db.begin() as connection:
            # by a process that ended
            abandoned = REQUESTS.c.answer.is_(None) & (REQUESTS.c.at < now - _LONGEST_REQUEST)
            connection.execute(sa.delete(REQUESTS).where(abandoned | (REQUESTS.c.at < now - _KEY_LIFETIME)))
            insert = dialect_insert(connection, REQUESTS).values(id=request_id, body=body, at=now)
            claim = insert.on_conflict_do_nothing(index_elements=["id"]).returning(REQUESTS.c.id)
            if connection.execute(claim).scalar() is not None:
                return None
            row = connection.execute(sa.select(REQUESTS).where(REQUESTS.c.id == request_id)).one()
            return ClaimedRequest(row.body, row.answer)

    def end(self, request_id: str, answer: Mapping[str, Any] | None) -> None:
        this_request = REQUESTS.c.id == request_id
        with self.db.begin() as connection:
            if answer is None:
                connection.execute(sa.delete(REQUESTS).where(this_request))
            else:
                connection.execute(sa.update(REQUESTS).where(this_request).values(answer=dict(answer)))


def _grants_to_json(grants: Sequence[Grant]) -> list[dict[str, Any]]:
    return [{"role": str(grant.role), "scopes": [list(scope) for scope in grant.scopes]} for grant in grants]


def _grants_from_json(grants: Sequence[Mapping[str, Any]]) -> tuple[Grant, ...]:
    return tuple(Grant(Role(g["role"]), tuple(tuple(scope) for scope in g["scopes"])) for g in grants)


def _token(row: Any) -> TokenRow:  # noqa: ANN401 - a result row
    return TokenRow(**{**row._asdict(), "grants": _grants_from_json(row.grants)})


def _values(entry: AuditRow) -> dict[str, Any]:
    catalog, *namespace = entry.place or (None,)
    path = json.dumps(namespace, ensure_ascii=False) if entry.place else None
    details = dict(entry.details)
    return {**values_of(entry, "id", "place"), "details": details, "catalog": catalog, "namespace": path}


def _entry(row: Any) -> AuditRow:  # noqa: ANN401 - a result row
    columns = row._asdict()
    catalog, namespace = columns.pop("catalog"), columns.pop("namespace")
    return AuditRow(**columns, place=None if catalog is None else (catalog, *json.loads(namespace)))


@dataclass
class SqlRules(PolicyRules):
    """The PolicyRules port on a database."""

    db: Database

    def list(self) -> Sequence[PolicyRule]:
        newest = {tuple(scope): settings for scope, settings in self.db.rows(_RULES)}
        return [
            PolicyRule(scope, {RENAMED.get(name, name): value for name, value in settings.items()}, "store")
            for scope, settings in newest.items()
        ]

    def put(
        self, match: tuple[str, ...], settings: Mapping[str, Any], author: str, now: datetime, expected: int | None
    ) -> int | None:
        with self.db.begin() as connection:
            if connection.dialect.name == "postgresql":  # two writers would choose the same version
                connection.exec_driver_sql("LOCK TABLE policies IN EXCLUSIVE MODE")
            rows = connection.execute(sa.select(POLICIES.c.scope, POLICIES.c.version)).all()
            current = max((row.version for row in rows if tuple(row.scope) == match), default=0)
            if expected is not None and expected != current:
                return None
            values = {"scope": list(match), "settings": dict(settings), "author": author, "at": now}
            connection.execute(sa.insert(POLICIES).values(**values, version=current + 1))
        return current + 1

    def versions(self, match: tuple[str, ...] | None = None) -> Sequence[RuleVersion]:
        rows = self.db.rows(sa.select(POLICIES).order_by(POLICIES.c.id.desc()))
        versions = [RuleVersion(tuple(r.scope), r.settings, r.author, r.at, r.version) for r in rows]
        return [rule for rule in versions if match is None or rule.match == match]
