"""Remember since when an operation is due, and let jobs that have waited too long go first.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Begin the wait of each operation with that of its table; manual jobs had a score above all others."""
    with op.batch_alter_table("verdicts") as verdicts:
        verdicts.add_column(sa.Column("since", sa.DateTime()))
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        jobs.drop_index("ix_jobs_state_score")
        jobs.create_index("ix_jobs_state_priority_score", ["state", "priority", "score"])
    op.execute("UPDATE jobs SET priority = 2 WHERE state = 'queued' AND score >= 1e12")
