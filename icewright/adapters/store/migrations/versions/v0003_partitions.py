"""Add the changes of each partition by a rewrite.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column of partitions, which is empty for earlier runs."""
    op.add_column("runs", sa.Column("partitions", sa.JSON(), nullable=True))
