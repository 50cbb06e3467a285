"""Keep what jobs without operations found or made, such as certificates of erasure.

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the table; of earlier jobs there is the summary alone."""
    op.create_table(
        "results",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_results_job_id"),
        sa.PrimaryKeyConstraint("job_id", name="pk_results"),
    )
