"""The schema of the first release, from which migrations go on; an empty database gets the newest schema at once.

Revision ID: 0014
Revises:
"""

revision = "0014"
down_revision = None


def upgrade() -> None:
    """Do nothing: a store with an earlier revision than this is refused."""
