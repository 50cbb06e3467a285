"""A table for the filters that scan reports tell of.

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the table; scans that were reported before left no filter."""
    op.create_table(
        "scan_filters",
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("filter", sa.Text, nullable=False),
        sa.Column("queries", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name="fk_scan_filters_table_id"),
        sa.PrimaryKeyConstraint("table_id", "day", "filter", name="pk_scan_filters"),
    )
