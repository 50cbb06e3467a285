"""What a rewrite took out of each partition and put into it.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; earlier runs have nothing in it."""
    op.add_column("runs", sa.Column("partitions", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop the column of partitions again."""
    op.drop_column("runs", "partitions")
