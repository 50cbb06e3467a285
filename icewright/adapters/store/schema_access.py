"""Tables of the API: tokens, sessions, the audit log and idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa

from icewright.adapters.store.schema_base import SCHEMA, Moment, row_id

TOKENS = sa.Table(
    "tokens",
    SCHEMA,
    sa.Column("id", sa.Text, primary_key=True),  # part of the token, not secret
    sa.Column("digest", sa.Text, nullable=False),  # of the whole token, which is stored nowhere
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("grants", sa.JSON, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.Column("expires", Moment),
    sa.Column("revoked", Moment),
    sa.Column("used", Moment),
)

SESSIONS = sa.Table(
    "sessions",
    SCHEMA,
    sa.Column("digest", sa.Text, primary_key=True),  # of the browser's cookie
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("grants", sa.JSON, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.Column("seen", Moment, nullable=False),
    sa.Column("expires", Moment, nullable=False),
    sa.Column("token_id", sa.Text),  # the token of the login; NULL: the OpenID provider
    sa.Index("ix_sessions_expires", "expires"),
)

AUDIT = sa.Table(
    "audit",
    SCHEMA,
    row_id(),
    sa.Column("at", Moment, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("catalog", sa.Text),  # of the target; NULL: no single catalog
    sa.Column("namespace", sa.Text),
    sa.Column("refused", sa.Boolean, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    sa.Index("ix_audit_at", "at"),
)

REQUESTS = sa.Table(  # with an Idempotency-Key: each is carried out once
    "requests",
    SCHEMA,
    sa.Column("id", sa.Text, primary_key=True),  # digest of caller and key
    sa.Column("body", sa.Text, nullable=False),  # digest
    sa.Column("answer", sa.JSON(none_as_null=True)),  # NULL while the first request runs
    sa.Column("at", Moment, nullable=False),
    sa.Index("ix_requests_at", "at"),
)
