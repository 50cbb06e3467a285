"""Add pins of readers, write paths of tables, and an index of deletions by path.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the table and the column; the indexes serve jobs that settle a million files."""
    op.add_column("tables", sa.Column("write_paths", sa.JSON(), nullable=True))
    op.create_table(
        "pins",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("table_uuid", sa.Text(), nullable=False),
        sa.Column("reader", sa.Text(), nullable=False),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=False),
        sa.Column("pinned_at", sa.DateTime(), nullable=False),
        sa.Column("until", sa.DateTime(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name=op.f("fk_pins_table_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pins")),
        sa.UniqueConstraint("table_id", "reader", name=op.f("uq_pins_table_id")),
    )
    op.drop_index("ix_deletions_job_id_state", "deletions")
    op.drop_index("ix_deletions_table_id_state", "deletions")
    op.create_index("ix_deletions_job_id_path", "deletions", ["job_id", "path"], unique=False)
    op.create_index("ix_deletions_state_table_id", "deletions", ["state", "table_id"], unique=False)
