"""Add delays, retries and undo of deletions, the removals of expiries, and registrations of tables.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make planned deletions of earlier releases due at once; the next evaluation records registrations."""
    with op.batch_alter_table("deletions") as deletions:
        deletions.add_column(sa.Column("modified", sa.DateTime()))
        deletions.add_column(sa.Column("delete_after", sa.DateTime()))
        deletions.add_column(sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
        deletions.add_column(sa.Column("reason", sa.Text()))
        deletions.add_column(sa.Column("operation", sa.Text()))
    op.create_table(
        "removals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("table_uuid", sa.Text(), nullable=False),
        sa.Column("metadata_location", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("undone_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name="pk_removals"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name="fk_removals_job_id"),
    )
    op.create_index("ix_removals_job_id", "removals", ["job_id"])
    op.create_table(
        "registrations",
        sa.Column("catalog", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("table_uuid", sa.Text(), nullable=False),
        sa.Column("metadata_location", sa.Text(), nullable=False),
        sa.Column("places", sa.JSON(), nullable=False),
        sa.Column("first_places", sa.JSON(), nullable=False),
        sa.Column("folders", sa.JSON(), nullable=False),
        sa.Column("seen", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("catalog", "namespace", "name", "table_uuid", name="pk_registrations"),
    )
    op.create_table(
        "adoptions",
        sa.Column("table_uuid", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("table_uuid", "what", name="pk_adoptions"),
    )
