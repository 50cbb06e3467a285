"""The tables of the state store. Every change of them is a migration too; a test holds both equal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa


class Moment(sa.TypeDecorator[datetime]):
    """A time in UTC; SQLite keeps no zone, so it is taken off on the way in and put on on the way out."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Into the database."""
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ANN401, ARG002
        """Out of the database."""
        return None if value is None else value.replace(tzinfo=UTC)


def _id() -> sa.Column[int]:
    wide = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up in INTEGER columns alone
    return sa.Column("id", wide, primary_key=True, autoincrement=True)


SCHEMA = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

TABLES = sa.Table(
    "tables",
    SCHEMA,
    _id(),
    sa.Column("catalog", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),  # JSON list, so that a dot in a name stays one
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("table_uuid", sa.Text),
    sa.Column("location", sa.Text),
    sa.Column("write_paths", sa.JSON),  # where writers put files outside the location
    sa.Column("metadata_location", sa.Text, nullable=False),
    sa.Column("evaluated_location", sa.Text),
    sa.Column("evaluated_at", Moment),
    sa.Column("revisit_at", Moment),
    sa.Column("due_since", Moment),
    sa.Column("health", sa.Integer),
    sa.Column("error", sa.Text),
    sa.Column("paused", sa.Text),
    sa.Column("dropped", sa.Boolean, nullable=False, default=False),
    sa.Column("held_by", sa.Text),
    sa.Column("policy", sa.Text),
    sa.Column("first_seen", Moment, nullable=False),
    sa.UniqueConstraint("catalog", "namespace", "name"),
)

FACTS = sa.Table(
    "facts",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("at", Moment, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
)

VERDICTS = sa.Table(
    "verdicts",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("operation", sa.Text, primary_key=True),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("benefit", sa.Float),
    sa.Column("cost", sa.Float),
    sa.Column("at", Moment, nullable=False),
)

JOBS = sa.Table(
    "jobs",
    SCHEMA,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("operations", sa.JSON, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("heartbeat", Moment, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.Column("started", Moment),
    sa.Column("finished", Moment),
    sa.Column("summary", sa.Text, nullable=False, default=""),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Index("ix_jobs_table_id_created", "table_id", "created"),
    sa.Index("ix_jobs_state", "state"),
)

RUNS = sa.Table(
    "runs",
    SCHEMA,
    _id(),
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("statements", sa.JSON, nullable=False),
    sa.Column("notes", sa.JSON, nullable=False),
    sa.Column("started", Moment, nullable=False),
    sa.Column("finished", Moment, nullable=False),
    sa.Column("metadata_location", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("before", sa.JSON, nullable=False),
    sa.Column("after", sa.JSON, nullable=False),
    sa.Column("partitions", sa.JSON),
    sa.Index("ix_runs_job_id", "job_id"),
    sa.Index("ix_runs_table_id_operation_finished", "table_id", "operation", "finished"),
)

DELETIONS = sa.Table(
    "deletions",
    SCHEMA,
    _id(),
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("planned_at", Moment, nullable=False),
    sa.Column("settled_at", Moment),
    sa.Index("ix_deletions_job_id_path", "job_id", "path"),
    sa.Index("ix_deletions_state_table_id", "state", "table_id"),
)

PINS = sa.Table(
    "pins",
    SCHEMA,
    _id(),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("reader", sa.Text, nullable=False),
    sa.Column("snapshot_id", sa.BigInteger, nullable=False),
    sa.Column("pinned_at", Moment, nullable=False),
    sa.Column("until", Moment, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.UniqueConstraint("table_id", "reader"),
)

EVENTS = sa.Table(
    "events",
    SCHEMA,
    _id(),
    sa.Column("at", Moment, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id")),
    sa.Column("details", sa.JSON, nullable=False),
    sa.Index("ix_events_at", "at"),
)

POLICIES = sa.Table(
    "policies",
    SCHEMA,
    _id(),
    sa.Column("scope", sa.JSON, nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("at", Moment, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
)
