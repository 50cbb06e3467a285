"""A table for limits that are set in the place of the configuration's.

Revision ID: 0020
Revises: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the table; without a row the limits of the configuration apply."""
    op.create_table(
        "limits",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_limits"),
    )
