"""Add circuit breakers of catalogs, storage places and pools, and the fault of failed jobs.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Count failures of earlier releases as faults of their tables, as before."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("fault", sa.Text()))
    with op.batch_alter_table("tables") as tables:
        tables.add_column(sa.Column("counted_after", sa.DateTime()))
    op.create_table(
        "breakers",
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.Column("retry_at", sa.DateTime(), nullable=False),
        sa.Column("probe_until", sa.DateTime()),
        sa.PrimaryKeyConstraint("resource", name="pk_breakers"),
    )
