"""Add the state that loops share: schedules of tables and catalogs, queued jobs, processes, scans, alerts, archives.

Revision ID: 0004
Revises: 0003
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NEW = ("archives", "totals", "tellings", "alerts", "received", "scans", "pools", "processes", "leases", "catalogs")


def upgrade() -> None:
    """Add the tables and columns; every table becomes due for evaluation, as the new columns are empty."""
    with op.batch_alter_table("tables") as tables:
        tables.alter_column("revisit_at", new_column_name="evaluate_at", existing_type=sa.DateTime())
        tables.add_column(sa.Column("rest_until", sa.DateTime()))
        tables.add_column(sa.Column("evaluating_by", sa.Text()))
        tables.add_column(sa.Column("evaluating_until", sa.DateTime()))
        tables.add_column(sa.Column("importance", sa.Text(), nullable=False, server_default="normal"))
        tables.add_column(sa.Column("run_order", sa.Text(), nullable=False, server_default="canonical"))
        tables.add_column(sa.Column("windows", sa.Text()))
        tables.add_column(sa.Column("queries_per_day", sa.Float(), nullable=False, server_default="0"))
        tables.add_column(sa.Column("succeeded_at", sa.DateTime()))
    op.create_index("ix_tables_catalog_evaluate_at", "tables", ["catalog", "evaluate_at"])
    op.execute("update tables set evaluate_at = first_seen")
    last = "select max(finished) from runs where runs.table_id = tables.id and runs.state = 'committed'"
    op.execute(f"update tables set succeeded_at = ({last})")  # noqa: S608 - the words of the line above
    with op.batch_alter_table("verdicts") as verdicts:
        verdicts.add_column(sa.Column("on_pool", sa.Boolean(), nullable=False, server_default=sa.false()))
        verdicts.add_column(sa.Column("cooled", sa.DateTime()))
        verdicts.add_column(sa.Column("waits", sa.Text()))
        verdicts.add_column(sa.Column("position", sa.Integer()))
        verdicts.add_column(sa.Column("score", sa.Float()))
    op.create_index("ix_verdicts_verdict", "verdicts", ["verdict", "operation", "table_id"])
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("score", sa.Float(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("pool", sa.Text(), nullable=False, server_default="default"))
        jobs.add_column(sa.Column("on_pool", sa.Boolean(), nullable=False, server_default=sa.false()))
        jobs.add_column(sa.Column("cost", sa.Float(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("options", sa.JSON()))
        jobs.add_column(sa.Column("intent", sa.JSON()))
    op.drop_index("ix_jobs_state", "jobs")
    op.create_index("ix_jobs_state_score", "jobs", ["state", "score"])
    op.create_index("ix_jobs_created", "jobs", ["created"])
    some = sa.text("intent IS NOT NULL")
    op.create_index("ix_jobs_intent", "jobs", ["job_id"], sqlite_where=some, postgresql_where=some)
    with op.batch_alter_table("runs", **_counting()) as runs:
        runs.add_column(sa.Column("gb_hours", sa.Float(), nullable=False, server_default="0"))
        runs.add_column(sa.Column("tried", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.create_index("ix_runs_finished", "runs", ["finished"])
    op.create_index("ix_runs_state_finished", "runs", ["state", "finished"])
    with op.batch_alter_table("deletions", **_counting()):
        pass
    with op.batch_alter_table("events", **_counting()) as events:
        events.add_column(sa.Column("job_id", sa.Text()))
    op.create_index("ix_events_job_id", "events", ["job_id"])
    _loops()
    _records()
    _alerts()


def _counting() -> dict[str, Any]:
    """Return the arguments by which SQLite, like PostgreSQL, never reuses an id, as the archive stores ids for ever."""
    if op.get_bind().dialect.name != "sqlite":
        return {}
    return {"recreate": "always", "table_kwargs": {"sqlite_autoincrement": True}}


def _loops() -> None:
    op.create_table(
        "catalogs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("detect_at", sa.DateTime(), nullable=False),
        sa.Column("detecting_by", sa.Text()),
        sa.Column("detecting_until", sa.DateTime()),
        sa.Column("detected_at", sa.DateTime()),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("policy", sa.Text()),
        sa.Column("reported", sa.BigInteger()),
        sa.Column("vacuumed", sa.Text()),
        sa.PrimaryKeyConstraint("name", name="pk_catalogs"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "processes",
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("started", sa.DateTime(), nullable=False),
        sa.Column("heartbeat", sa.DateTime(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name="pk_processes"),
    )
    op.create_table(
        "pools",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_concurrent", sa.Integer(), nullable=False),
        sa.Column("changed", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_pools"),
    )


def _records() -> None:
    wide = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "scans",
        sa.Column("table_id", wide, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("queries", sa.Integer(), nullable=False),
        sa.Column("planning_ms", sa.Float(), nullable=False),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name="fk_scans_table_id"),
        sa.PrimaryKeyConstraint("table_id", "day", name="pk_scans"),
    )
    op.create_table(
        "received",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_received"),
    )
    op.create_index("ix_received_at", "received", ["at"])
    op.create_table(
        "archives",
        sa.Column("id", wide, autoincrement=True, nullable=False),
        sa.Column("batch", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("before", sa.DateTime(), nullable=False),
        sa.Column("rows", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_archives"),
        sa.UniqueConstraint("batch", name="uq_archives_batch"),
    )
    unfinished = sa.text("state <> 'pruned'")
    op.create_index(
        "ix_archives_source",
        "archives",
        ["source"],
        unique=True,
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )


def _alerts() -> None:
    wide = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "alerts",
        sa.Column("id", wide, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("table_id", wide),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.Column("raised_at", sa.DateTime()),
        sa.Column("resolved_at", sa.DateTime()),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name="fk_alerts_table_id"),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_alerts_key_id", "alerts", ["key", "id"])
    op.create_index("ix_alerts_raised_at", "alerts", ["raised_at"])
    still = sa.text("resolved_at is null")
    op.create_index("ix_alerts_key", "alerts", ["key"], unique=True, sqlite_where=still, postgresql_where=still)
    op.create_table(
        "tellings",
        sa.Column("alert_id", wide, nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("resolved", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("try_at", sa.DateTime(), nullable=False),
        sa.Column("told_at", sa.DateTime()),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_tellings_alert_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("alert_id", "channel", "resolved", name="pk_tellings"),
    )
    untold = sa.text("told_at is null")
    op.create_index("ix_tellings_try_at", "tellings", ["try_at"], sqlite_where=untold, postgresql_where=untold)
    op.create_table(
        "totals",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("catalog", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", "catalog", "operation", "label", name="pk_totals"),
    )
