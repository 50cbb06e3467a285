"""Keep which snapshots were read, and what verdicts warn of.

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the table and the column; no read of earlier releases is known."""
    op.create_table(
        "snapshot_reads",
        sa.Column("table_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name="fk_snapshot_reads_table_id"),
        sa.PrimaryKeyConstraint("table_id", "snapshot_id", name="pk_snapshot_reads"),
    )
    with op.batch_alter_table("verdicts") as verdicts:
        verdicts.add_column(sa.Column("warning", sa.Text()))
