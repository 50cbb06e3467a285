"""Tables about deletions: planned files, what expiries removed, and who else may read a file."""

from __future__ import annotations

import sqlalchemy as sa

from icewright.adapters.store.schema_base import SCHEMA, Moment, Sentence, row_id

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
    sa.Column("modified", Moment),  # of the file when it was planned; a newer file of the name stays
    sa.Column("delete_after", Moment),  # not deleted before then; NULL: at once
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),  # failed attempts in a row
    sa.Column("reason", Sentence),  # why it is still there
    sa.Column("operation", sa.Text),  # that planned it; NULL: recorded by an earlier release
    sa.Index("ix_deletions_job_id_path", "job_id", "path"),
    sa.Index("ix_deletions_state_table_id", "state", "table_id"),
    sqlite_autoincrement=True,  # ids are never reused, as the archive keeps them
)

REMOVALS = sa.Table(  # what commits of expiries removed from metadata, for undo
    "removals",
    SCHEMA,
    row_id(),
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("metadata_location", sa.Text, nullable=False),  # of the table before the commit
    sa.Column("at", Moment, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),  # snapshots, refs and statistics, as JSON of the metadata
    sa.Column("undone_at", Moment),
    sa.Index("ix_removals_job_id", "job_id"),
)

REGISTRATIONS = sa.Table(  # every table that any catalog ever named, with its places
    "registrations",
    SCHEMA,
    sa.Column("catalog", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("metadata_location", sa.Text, nullable=False),  # as last read
    sa.Column("places", sa.JSON, nullable=False),  # locations and write paths, former ones too
    sa.Column("first_places", sa.JSON, nullable=False),  # the places of the version that was seen first
    sa.Column("folders", sa.JSON, nullable=False),  # outside of the places, with files that are or were live
    sa.Column("seen", Moment, nullable=False),
)

ADOPTIONS = sa.Table(  # what people declared to be a table's own: uuids, places, metadata files
    "adoptions",
    SCHEMA,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("what", sa.Text, primary_key=True),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("at", Moment, nullable=False),
)
