"""Remember when each catalog was vacuumed last.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the time; a catalog without one is due."""
    with op.batch_alter_table("catalogs") as catalogs:
        catalogs.add_column(sa.Column("vacuumed_at", sa.DateTime()))
