"""Count the processes that ended while they evaluated a table.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Begin with no table suspected."""
    with op.batch_alter_table("tables") as tables:
        tables.add_column(sa.Column("evaluation_deaths", sa.Integer(), nullable=False, server_default="0"))
