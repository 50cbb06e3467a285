"""Add the pause of the whole fleet, and requests to drain a process.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Begin with a fleet that is not paused, and no process that is to drain."""
    op.create_table(
        "fleet_pause",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_pause"),
    )
    with op.batch_alter_table("processes") as processes:
        processes.add_column(sa.Column("drain_since", sa.DateTime()))
