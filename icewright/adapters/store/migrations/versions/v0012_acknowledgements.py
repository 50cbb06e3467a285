"""Remember who acknowledged an alert, with which note, and until when its channels are left in silence.

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the columns; no alert is acknowledged."""
    with op.batch_alter_table("alerts") as alerts:
        alerts.add_column(sa.Column("acknowledged_by", sa.Text()))
        alerts.add_column(sa.Column("acknowledged_at", sa.DateTime()))
        alerts.add_column(sa.Column("note", sa.Text()))
        alerts.add_column(sa.Column("silent_until", sa.DateTime()))
