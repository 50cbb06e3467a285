"""A table for the health and size of tables, day by day.

Revision ID: 0019
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the table; of the days before nothing is known."""
    op.create_table(
        "health_days",
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("health", sa.Integer, nullable=False),
        sa.Column("files", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name="fk_health_days_table_id"),
        sa.PrimaryKeyConstraint("table_id", "day", name="pk_health_days"),
    )
