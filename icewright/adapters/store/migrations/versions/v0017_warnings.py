"""An index of the verdicts that warn, for which each round of the alerts looks.

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the index, of the rows with a warning alone."""
    warned = sa.text("warning IS NOT NULL")
    op.create_index("ix_verdicts_warning", "verdicts", ["table_id"], sqlite_where=warned, postgresql_where=warned)
