"""Tables about deletions: planned files, what expiries removed, and who else may read a file."""

from __future__ import annotations

import sqlalchemy as sa

from icewright.adapters.store.schema_base import SCHEMA, Moment, row_id

DELETIONS = sa.Table(
    "deletions",
    SCHEMA,
    row_id(),
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("planned_at", Moment, nullable=False),
    sa.Column("settled_at", Moment),
    sa.Column("modified", Moment),  # of the file when it was chosen: one written anew since then stays
    sa.Column("delete_after", Moment),  # not deleted before then; empty: at once
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),  # attempts to delete it in a row
    sa.Column("reason", sa.Text),  # why it is still there
    sa.Column("operation", sa.Text),  # that planned it; empty: an earlier release did
    sa.Index("ix_deletions_job_id_path", "job_id", "path"),
    sa.Index("ix_deletions_state_table_id", "state", "table_id"),
    sqlite_autoincrement=True,  # no id is given twice: the archive keeps them for ever
)

REMOVALS = sa.Table(  # what an expiry takes out of a table's metadata, so that it can be put back
    "removals",
    SCHEMA,
    row_id(),
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("metadata_location", sa.Text, nullable=False),  # of the table before the commit
    sa.Column("at", Moment, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),  # snapshots, refs and statistics as they stood in the metadata
    sa.Column("undone_at", Moment),
    sa.Index("ix_removals_job_id", "job_id"),
)

REGISTRATIONS = sa.Table(  # every table that any catalog was ever seen to name, and where its files may lie
    "registrations",
    SCHEMA,
    sa.Column("catalog", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("metadata_location", sa.Text, nullable=False),  # as last read
    sa.Column("places", sa.JSON, nullable=False),  # its location and write paths, former ones too
    sa.Column("first_places", sa.JSON, nullable=False),  # those of them that it had when it was first seen
    sa.Column("folders", sa.JSON, nullable=False),  # outside of these, in which live files of it lie or lay
    sa.Column("seen", Moment, nullable=False),
)

ADOPTIONS = sa.Table(  # what a person has said to be the table's own: the uuid of an earlier table, or a place
    "adoptions",
    SCHEMA,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("what", sa.Text, primary_key=True),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("at", Moment, nullable=False),
)
