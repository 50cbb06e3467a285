"""The tables of the state store. Every change of them is a migration too; a test holds both equal."""

from __future__ import annotations

import sqlalchemy as sa

from icewright.adapters.store.schema_access import AUDIT, REQUESTS, SESSIONS, TOKENS
from icewright.adapters.store.schema_base import SCHEMA, Moment, Sentence, row_id
from icewright.adapters.store.schema_ledger import ADOPTIONS, DELETIONS, REGISTRATIONS, REMOVALS

TABLES = sa.Table(
    "tables",
    SCHEMA,
    row_id(),
    sa.Column("catalog", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),  # JSON list, so that a dot in a name stays one
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("table_uuid", sa.Text),
    sa.Column("location", sa.Text),
    sa.Column("write_paths", sa.JSON),  # where writers put files outside the location
    sa.Column("metadata_location", sa.Text, nullable=False),
    sa.Column("evaluated_location", sa.Text),
    sa.Column("evaluated_at", Moment),
    sa.Column("due_since", Moment),
    sa.Column("health", sa.Integer),
    sa.Column("error", Sentence),
    sa.Column("paused", Sentence),
    sa.Column("dropped", sa.Boolean, nullable=False, default=False),
    sa.Column("held_by", sa.Text),
    sa.Column("policy", sa.Text),
    sa.Column("first_seen", Moment, nullable=False),
    sa.Column("evaluate_at", Moment),  # when it is evaluated next; NULL: when its metadata moves
    sa.Column("rest_until", Moment),  # end of the evaluation cooldown
    sa.Column("evaluating_by", sa.Text),
    sa.Column("evaluating_until", Moment),
    sa.Column("importance", sa.Text, nullable=False, server_default="normal"),
    sa.Column("run_order", sa.Text, nullable=False, server_default="canonical"),
    sa.Column("windows", sa.Text),
    sa.Column("queries_per_day", sa.Float, nullable=False, server_default="0"),
    sa.Column("succeeded_at", Moment),  # when an operation last committed
    sa.Column("files", sa.BigInteger),  # of the last evaluation, to sort by
    sa.Column("bytes", sa.BigInteger),
    sa.Column("counted_after", Moment),  # jobs created until then count for no breaker: the table was resumed
    # processes that ended while they had claimed the table, since its last evaluation that ended
    sa.Column("evaluation_deaths", sa.Integer, nullable=False, server_default="0"),
    sa.UniqueConstraint("catalog", "namespace", "name"),
    sa.Index("ix_tables_catalog_evaluate_at", "catalog", "evaluate_at"),
)

FACTS = sa.Table(
    "facts",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("at", Moment, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
)

_WARNED = sa.text("warning IS NOT NULL")  # of a few verdicts at any time
VERDICTS = sa.Table(
    "verdicts",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("operation", sa.Text, primary_key=True),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("reason", Sentence, nullable=False),
    sa.Column("benefit", sa.Float),
    sa.Column("cost", sa.Float),
    sa.Column("at", Moment, nullable=False),
    sa.Column("on_pool", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("cooled", Moment),  # end of the cooldown after the last run
    sa.Column("since", Moment),  # of a due operation: when it became due, or last ran if it still is
    sa.Column("waits", Sentence),  # why the last plan deferred it
    sa.Column("position", sa.Integer),  # its position in the queue of that plan
    sa.Column("score", sa.Float),
    sa.Column("warning", Sentence),  # of what it will take from others
    sa.Index("ix_verdicts_verdict", "verdict", "operation", "table_id"),  # covers the counts of verdicts
    sa.Index("ix_verdicts_warning", "table_id", sqlite_where=_WARNED),
)

INTENDED = sa.text("intent IS NOT NULL")  # of a few jobs at any time
SPENT = sa.text("spent > 0")
JOBS = sa.Table(
    "jobs",
    SCHEMA,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("operations", sa.JSON, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("heartbeat", Moment, nullable=False),
    sa.Column("created", Moment, nullable=False),
    sa.Column("started", Moment),
    sa.Column("finished", Moment),
    sa.Column("summary", Sentence, nullable=False, default=""),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),  # the highest is taken first
    sa.Column("score", sa.Float, nullable=False, server_default="0"),  # of one priority, the highest first
    sa.Column("pool", sa.Text, nullable=False, server_default="default"),
    sa.Column("on_pool", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("cost", sa.Float, nullable=False, server_default="0"),  # GB-hours, as predicted
    sa.Column("options", sa.JSON),  # of a manual job: its own settings, and whether cooldowns are ignored
    sa.Column("intent", sa.JSON(none_as_null=True)),  # its commit whose result is not checked yet
    sa.Column("fault", sa.Text),  # whose fault a failure or deferral was; empty: the table's, or none
    sa.Column("spent", sa.Float, nullable=False, server_default="0"),  # GB-hours of work that is no operation
    sa.Index("ix_jobs_table_id_created", "table_id", "created"),
    sa.Index("ix_jobs_state_priority_score", "state", "priority", "score"),
    sa.Index("ix_jobs_created", "created"),
    sa.Index("ix_jobs_intent", "job_id", sqlite_where=INTENDED),
    sa.Index("ix_jobs_spent", "finished", sqlite_where=SPENT),
)

RESULTS = sa.Table(  # what jobs without operations found or made, as JSON
    "results",
    SCHEMA,
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)

RUNS = sa.Table(
    "runs",
    SCHEMA,
    row_id(),
    sa.Column("job_id", sa.ForeignKey("jobs.job_id"), nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", Sentence, nullable=False),
    sa.Column("summary", Sentence, nullable=False),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("statements", sa.JSON, nullable=False),
    sa.Column("notes", sa.JSON, nullable=False),
    sa.Column("started", Moment, nullable=False),
    sa.Column("finished", Moment, nullable=False),
    sa.Column("metadata_location", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("before", sa.JSON, nullable=False),
    sa.Column("after", sa.JSON, nullable=False),
    sa.Column("partitions", sa.JSON),
    sa.Column("gb_hours", sa.Float, nullable=False, server_default="0"),
    # False: the operation was not due and did not run
    sa.Column("tried", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Index("ix_runs_job_id", "job_id"),
    sa.Index("ix_runs_finished", "finished"),
    sa.Index("ix_runs_table_id_operation_finished", "table_id", "operation", "finished"),
    sa.Index("ix_runs_state_finished", "state", "finished"),
    sqlite_autoincrement=True,  # ids are never reused, as the archive keeps them
)

PINS = sa.Table(
    "pins",
    SCHEMA,
    row_id(),
    sa.Column("table_id", sa.ForeignKey("tables.id"), nullable=False),
    sa.Column("table_uuid", sa.Text, nullable=False),
    sa.Column("reader", sa.Text, nullable=False),
    sa.Column("snapshot_id", sa.BigInteger, nullable=False),
    sa.Column("pinned_at", Moment, nullable=False),
    sa.Column("until", Moment, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.UniqueConstraint("table_id", "reader"),
)

EVENTS = sa.Table(
    "events",
    SCHEMA,
    row_id(),
    sa.Column("at", Moment, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id")),
    sa.Column("details", sa.JSON, nullable=False),
    sa.Column("job_id", sa.Text),
    sa.Index("ix_events_at", "at"),
    sa.Index("ix_events_job_id", "job_id"),
    sqlite_autoincrement=True,  # ids are never reused, as the archive keeps them
)

POLICIES = sa.Table(
    "policies",
    SCHEMA,
    row_id(),
    sa.Column("scope", sa.JSON, nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("at", Moment, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
)

CATALOGS = sa.Table(
    "catalogs",
    SCHEMA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("detect_at", Moment, nullable=False),  # when it is listed next
    sa.Column("detecting_by", sa.Text),
    sa.Column("detecting_until", Moment),
    sa.Column("detected_at", Moment),  # of the last complete listing
    sa.Column("failures", sa.Integer, nullable=False, default=0),  # in a row
    sa.Column("error", Sentence),
    sa.Column("policy", sa.Text),  # fingerprint of the policy that was last applied to its tables
    sa.Column("reported", sa.BigInteger),  # the snapshot up to which its table of commit reports was read
    sa.Column("vacuumed", sa.Text),  # the cut-off instant that vacuum applied last
    sa.Column("vacuumed_at", Moment),  # the end of the last vacuum
    sa.Column("settings", sa.JSON(none_as_null=True)),  # in the place of what the configuration says
)

LEASES = sa.Table(  # rights of one process at a time, such as planning
    "leases",
    SCHEMA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("until", Moment, nullable=False),
)

PROCESSES = sa.Table(
    "processes",
    SCHEMA,
    sa.Column("holder", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),  # service or worker
    sa.Column("started", Moment, nullable=False),
    sa.Column("heartbeat", Moment, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),  # reports of its pools, loops and configuration
    sa.Column("drain_since", Moment),  # when it was asked to take no more jobs
)

FLEET_PAUSE = sa.Table(  # one row while the whole fleet is paused, else none
    "fleet_pause",
    SCHEMA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("reason", Sentence, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("since", Moment, nullable=False),
)

LIMITS = sa.Table(  # one row once limits were set in the place of the configuration's
    "limits",
    SCHEMA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("at", Moment, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
)

BREAKERS = sa.Table(  # resources that failed since their last success
    "breakers",
    SCHEMA,
    sa.Column("resource", sa.Text, primary_key=True),
    sa.Column("failures", sa.Integer, nullable=False),  # in a row
    sa.Column("subject", sa.Text, nullable=False),  # the table that failed last; blank: the resource itself
    sa.Column("error", Sentence, nullable=False),
    sa.Column("since", Moment, nullable=False),
    sa.Column("retry_at", Moment, nullable=False),
    sa.Column("probe_until", Moment),
)

POOLS = sa.Table(
    "pools",
    SCHEMA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("max_concurrent", sa.Integer, nullable=False),  # adapted to the load that Spark reports
    sa.Column("changed", Moment, nullable=False),
)

HEALTH_DAYS = sa.Table(  # what the last evaluation of each table on each day found
    "health_days",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("health", sa.Integer, nullable=False),
    sa.Column("files", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

SCANS = sa.Table(  # scans that engines report, by table and day
    "scans",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("queries", sa.Integer, nullable=False),
    sa.Column("planning_ms", sa.Float, nullable=False),
    sa.Column("duration_ms", sa.Float, nullable=False),
    sa.Column("files", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

SCAN_FILTERS = sa.Table(  # how often scans had a filter, by table, day and the filter's template
    "scan_filters",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("filter", sa.Text, primary_key=True),
    sa.Column("queries", sa.Integer, nullable=False),
)

SNAPSHOT_READS = sa.Table(  # the last read of each snapshot that engines report
    "snapshot_reads",
    SCHEMA,
    sa.Column("table_id", sa.ForeignKey("tables.id"), primary_key=True),
    sa.Column("snapshot_id", sa.BigInteger, primary_key=True),
    sa.Column("at", Moment, nullable=False),
)

RECEIVED = sa.Table(  # ids of received messages, so that a repeated one counts once
    "received",
    SCHEMA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", Moment, nullable=False),
    sa.Index("ix_received_at", "at"),
)

ALERTS = sa.Table(
    "alerts",
    SCHEMA,
    row_id(),
    sa.Column("key", sa.Text, nullable=False),  # identifies the condition
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("table_id", sa.ForeignKey("tables.id")),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("message", Sentence, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("since", Moment, nullable=False),  # when the condition was first seen
    sa.Column("raised_at", Moment),  # when it had lasted as long as its rule requires
    sa.Column("resolved_at", Moment),
    sa.Column("acknowledged_by", sa.Text),
    sa.Column("acknowledged_at", Moment),
    sa.Column("note", sa.Text),  # of who acknowledged it
    sa.Column("silent_until", Moment),
    sa.Index("ix_alerts_key_id", "key", "id"),
    sa.Index("ix_alerts_raised_at", "raised_at"),
    sqlite_autoincrement=True,  # ids are never reused, as the archive keeps them
)
_OPEN = ALERTS.c.resolved_at.is_(None)  # one open alert for each key
sa.Index("ix_alerts_key", ALERTS.c.key, unique=True, sqlite_where=_OPEN)

DELIVERIES = sa.Table(  # deliveries of alerts to channels
    "tellings",
    SCHEMA,
    sa.Column("alert_id", sa.ForeignKey("alerts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("channel", sa.Text, primary_key=True),  # name of the channel; its address is a secret
    sa.Column("resolved", sa.Boolean, primary_key=True),  # True: the end of the alert; False: its beginning
    sa.Column("failures", sa.Integer, nullable=False),  # in a row
    sa.Column("try_at", Moment, nullable=False),  # not before then: it failed, or another process has claimed it
    sa.Column("told_at", Moment),
)
_UNDELIVERED = DELIVERIES.c.told_at.is_(None)
sa.Index("ix_tellings_try_at", DELIVERIES.c.try_at, sqlite_where=_UNDELIVERED)

TOTALS = sa.Table(  # counters over all runs ever, which pruning the history does not lower
    "totals",
    SCHEMA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("catalog", sa.Text, primary_key=True),
    sa.Column("operation", sa.Text, primary_key=True),
    sa.Column("label", sa.Text, primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
)

_UNFINISHED = sa.text("state <> 'pruned'")
ARCHIVES = sa.Table(  # batches of old history on their way into Iceberg tables
    "archives",
    SCHEMA,
    row_id(),
    sa.Column("batch", sa.Text, nullable=False, unique=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("before", Moment, nullable=False),
    sa.Column("rows", sa.JSON, nullable=False),  # keys of the rows; empty once pruned
    sa.Column("state", sa.Text, nullable=False),  # planned, written, pruned
    sa.Column("at", Moment, nullable=False),
    # one unfinished batch for each source, so that no row is in two batches
    sa.Index("ix_archives_source", "source", unique=True, sqlite_where=_UNFINISHED),
)
