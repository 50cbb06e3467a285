"""Keep what jobs without operations took, which budgets count.

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the column and its index; earlier jobs took nothing that budgets count."""
    op.add_column("jobs", sa.Column("spent", sa.Float(), nullable=False, server_default="0"))
    spent = sa.text("spent > 0")
    op.create_index("ix_jobs_spent", "jobs", ["finished"], sqlite_where=spent, postgresql_where=spent)
