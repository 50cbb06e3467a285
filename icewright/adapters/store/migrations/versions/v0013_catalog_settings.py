"""Keep what is set for catalogs in the place of their configuration.

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column; nothing is set for any catalog."""
    op.add_column("catalogs", sa.Column("settings", sa.JSON()))
