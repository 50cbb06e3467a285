"""Every knob once: name, kind, default, unit, bounds and help. Everything that shows a knob is made from here.

Those of operations that write files anew are in `rewriting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from icewright.core import rewriting
from icewright.core.cadence import Cadence
from icewright.core.knob import MAX_HOURS, Knob, SettingRegistry, ValueKind, check_names, checked_probe
from icewright.core.operation import ON_POOL as ON_POOL  # noqa: PLC0414 - settings and operations are imported together
from icewright.core.operation import ORDERS as ORDERS  # noqa: PLC0414
from icewright.core.operation import Operation as Operation  # noqa: PLC0414
from icewright.core.vacuum import check_cutoff
from icewright.core.windows import parse_windows

T = TypeVar("T")

MEGABYTE = 1024 * 1024

_DECLARED = SettingRegistry()
_knob, _integer, _number_knob = _DECLARED.knob, _DECLARED.integer, _DECLARED.number
_flag, _choice, _text, _mapping = _DECLARED.flag, _DECLARED.choice, _DECLARED.text, _DECLARED.mapping

PRESET = _choice("preset", "iceberg", ("iceberg", "seaweedfs", "streaming", "compliance"), "named set of defaults")
ORDER = _choice("order", "canonical", tuple(ORDERS), "order in which the operations of one job run")
IMPORTANCE = _choice("importance", "normal", ("critical", "high", "normal", "low"), "weight of the table in the queue")
WINDOWS = _text(
    "windows",
    "days and hours in which work may start automatically, in UTC or a named time zone, such as"
    " mon-fri 22:00-06:00 Europe/Berlin; sat,sun",
    check=parse_windows,
)
WINDOWS_END = _choice(
    "windows_end",
    "finish",
    ("finish", "cancel"),
    "whether work that a window's end finds running finishes, or is cancelled before its next step",
)
EVALUATE_COOLDOWN = _integer(
    "evaluate.cooldown_minutes", 10, "a changed table is evaluated at most this often", unit="minutes", minimum=0
)
EVALUATE_TIMEOUT = _integer(
    "evaluate.timeout_seconds",
    900,
    "a table whose evaluation takes longer is unreadable, and tried later",
    unit="seconds",
)
TIMEOUT = _integer("execute.timeout_seconds", 3600, "a job that runs longer is cancelled", unit="seconds")
STALL = _integer(
    "execute.stall_seconds",
    1800,
    "a job that makes no progress for longer (no file read, written or deleted, no Spark task at work) loses its table",
    unit="seconds",
)
RETRIES = _integer("execute.retry_limit", 1, "how often a failed operation is tried again", minimum=0, maximum=10)
COMMIT_RETRIES = _integer(
    "execute.max_commit_retries", 5, "how often a lost commit is planned again", minimum=0, maximum=20
)
CHECK_TOTALS = _flag(
    "execute.check_totals",
    "stop when a manifest list names fewer files than its snapshot's summary counts: it may have been cut short",
)
PUBLISH_HOURS = _integer(
    "execute.publish_hours",
    24,
    "nothing is committed to main for so long after the first commit to a branch, of the table or of a Nessie catalog, "
    "that leads on from main's head, or after an overwrite was staged on it: neither could be published any more "
    "(write-audit-publish); 0: no such wait",
    unit="hours",
    minimum=0,
    maximum=24 * 366,
)
BREAKER = _integer("execute.pause_after_failures", 3, "failed jobs in a row after which the table is paused")

ENABLED: Mapping[Operation, Knob[bool]] = {
    op: _flag(
        f"{op}.enabled",
        f"whether {op} runs automatically; manual runs are always possible",
        default=op not in (Operation.EXPIRE_ROWS, Operation.COMPUTE_STATISTICS, Operation.CHECK),
    )
    for op in Operation
}
_COOLDOWNS = {
    Operation.EXPIRE_ROWS: 1440,
    Operation.COMPACT: 60,
    Operation.REWRITE_DELETES: 60,
    Operation.REWRITE_MANIFESTS: 360,
    Operation.COMPUTE_STATISTICS: 360,
    Operation.RECOVERY_POINTS: 15,
    Operation.EXPIRE_SNAPSHOTS: 60,
    Operation.REMOVE_ORPHANS: 60,
    Operation.CHECK: 60,
}
COOLDOWN: Mapping[Operation, Knob[int]] = {
    op: _integer(
        f"{op}.cooldown_minutes", minutes, f"time between two runs of {op} on one table", unit="minutes", minimum=0
    )
    for op, minutes in _COOLDOWNS.items()
}

ROWS_COLUMN = _text("expire_rows.column", "column (a date or a timestamp) that says how old a row is")
ROWS_DAYS: Knob[int | None] = _knob(
    "expire_rows.days",
    ValueKind.INTEGER,
    None,
    "rows older than this by the column are deleted, counted in whole days (UTC)",
    unit="days",
    minimum=1,
    maximum=MAX_HOURS // 24,
)

_DECLARED.knobs.update(rewriting.DECLARED.knobs)  # in the order in which people read them

STATISTICS = _choice(
    "compute_statistics.kinds",
    "both",
    ("both", "columns", "partitions"),
    "what is computed: distinct values of columns (theta sketches), files and rows of partitions, or both",
)
STATISTICS_COLUMNS = _text(
    "compute_statistics.columns",
    "top-level columns whose distinct values are counted, separated by commas; unset: all of simple types",
)
STATISTICS_CHANGE = _number_knob(
    "compute_statistics.min_change",
    0.1,
    "share of the rows that must have changed before statistics are computed again; after rewrites, which change no "
    "row, the new snapshot gets them at once",
    maximum=1,
)
STATISTICS_READ = _integer(
    "compute_statistics.max_read_gb", 50, "statistics for which more data would be read are not computed", unit="GB"
)

POINTS: Mapping[Cadence, Knob[int]] = {
    cadence: _integer(
        f"recovery_points.{cadence}",
        0,
        f"how many times back the {cadence} states of the table have a tag to return to; 0: none",
        minimum=0,
        maximum=1000,
    )
    for cadence in Cadence
}

RETENTION = _number_knob(
    "expire_snapshots.retention_hours",
    168,
    "snapshots younger than this are kept",
    unit="hours",
    minimum=1,
    maximum=MAX_HOURS,
)
MIN_SNAPSHOTS = _integer(
    "expire_snapshots.min_snapshots_to_keep", 5, "snapshots kept whatever their age", maximum=10**9
)
MAX_REF_AGE: Knob[float | None] = _knob(
    "expire_snapshots.max_ref_age_hours",
    ValueKind.NUMBER,
    None,
    "tags and branches older than this are removed; unset: kept",
    unit="hours",
    minimum=1,
    maximum=MAX_HOURS,
)
READER_PINS = _mapping(
    "expire_snapshots.reader_pins",
    {},
    "snapshots that streaming readers go on from, by reader: they and all later ones stay",
    numbers=True,
)
MAX_PIN_AGE = _integer("expire_snapshots.max_pin_age_hours", 720, "how long a reader's pin lasts", unit="hours")
MIN_EXPIRY_SHARE = _number_knob(
    "expire_snapshots.min_share",
    0.15,
    "share of the snapshots that must have expired before they are removed; after a day any number is",
    maximum=1,
)
WRITER_STATE_DAYS = _integer(
    "expire_snapshots.writer_state_days",
    30,
    "how long after its commit the newest snapshot stays in which a streaming writer recorded its progress "
    "(Flink, Spark, Kafka Connect), with all newer ones of the branch and files that it may still commit; "
    "0: no longer than others",
    unit="days",
    minimum=0,
    maximum=36_500,
)
WRITER_STATE_KEYS = _text(
    "expire_snapshots.writer_state_keys",
    "summary keys in which other writers record their progress: names and wildcards, separated by commas",
)
CLEAN_METADATA = _flag(
    "expire_snapshots.clean_expired_metadata",
    "whether unused partition specs and schemas go too, also when no snapshot does",
    default=False,
)
DELETE_FILES = _flag("expire_snapshots.delete_files", "delete what only expired snapshots reached")
EXPIRE_CONCURRENCY = _integer("expire_snapshots.max_concurrent_deletes", 16, "deletions at the same time", maximum=256)
EXPIRE_ENGINE = _choice("expire_snapshots.engine", "service", ("service", "spark"), "who expires snapshots")
OUTSIDE = _choice(
    "expire_snapshots.outside_location",
    "keep",
    ("keep", "delete"),
    "what expiry does with files outside the table's own location and write paths; "
    "in another table's place they stay anyway",
)

DELETION_DELAY = _number_knob(
    "deletion.delay_hours",
    24,
    "time between the commit of an expiry, or the scan of an orphan removal, and the deletion of its files, "
    "in which `icewright undo` takes it back",
    unit="hours",
    maximum=24 * 366,
)

ORPHAN_EVERY: Knob[int | str] = _knob(
    "remove_orphans.every_hours",
    ValueKind.INTEGER,
    168,
    "time between two scans; auto: 1 to 90 days, by what the scans find",
    unit="hours",
    minimum=1,
    maximum=MAX_HOURS,
    also="auto",
    also_range=(24, 90 * 24),
)
_YOUNG = "younger files are kept: a writer may be about to commit them"
ORPHAN_AGE = _integer("remove_orphans.older_than_hours", 72, _YOUNG, unit="hours", minimum=24, maximum=MAX_HOURS)
ORPHAN_MODE = _choice(
    "remove_orphans.mode",
    "report",
    ("report", "confirm", "delete"),
    "report: list only; confirm: delete what two scans found; delete: delete at once",
)
CONFIRM_HOURS = _integer(
    "remove_orphans.confirm_hours", 24, "least time between the two scans of confirm", unit="hours"
)
EQUAL_SCHEMES = _mapping("remove_orphans.equal_schemes", {"s3a": "s3", "s3n": "s3"}, "path schemes that mean the same")
EQUAL_AUTHORITIES = _mapping(
    "remove_orphans.equal_authorities", {}, "path authorities (hosts, buckets) that mean the same"
)
PREFIX_MISMATCH = _choice(
    "remove_orphans.prefix_mismatch",
    "error",
    ("error", "ignore"),
    "a path that is listed under one scheme or bucket and named by the table under another: error: stop the scan; "
    "ignore: keep such files",
)
MAX_DELETE_RATIO = _number_knob(
    "remove_orphans.max_delete_ratio", 0.5, "a scan that calls a larger share of the files orphans stops", maximum=1
)
MAX_ORPHANS = _integer(
    "remove_orphans.max_files", 1_000_000, "orphans handled by one run; the rest waits", maximum=10**8
)
INVENTORY = _text(
    "remove_orphans.inventory",
    "inventory of the object store (Parquet or CSV with key, size, last-modified) read in place of listing it",
)
ORPHAN_CONCURRENCY = _integer("remove_orphans.max_concurrent_deletes", 16, "deletions at the same time", maximum=256)

CHECK_LEVEL = _choice(
    "check.level",
    "footers",
    ("exists", "entries", "footers", "rows"),
    "how deep a table's files are checked; each level includes those before it",
)
CHECK_EVERY = _number_knob(
    "check.every_hours", 24, "time between two checks", unit="hours", minimum=1, maximum=MAX_HOURS
)
CHECK_FULL = _integer(
    "check.full_days",
    30,
    "days after which a check reads all manifests, footers and rows again; until then it reads those that are new, and "
    "looks whether all files are there; 0: each check reads all",
    unit="days",
    minimum=0,
    maximum=MAX_HOURS // 24,
)
CHECK_ENGINE = _choice(
    "check.engine",
    "auto",
    ("auto", "service", "spark"),
    "who reads rows at level rows; auto: the service up to 10 GB, else Spark",
)

PLANNING = _flag("impact.planning", "measure before and after each rewrite how long planning a full scan takes")
MAX_PLANNING = _integer(
    "impact.max_planning_mb", 64, "planning is not measured where manifests are larger", unit="MB", maximum=10**6
)
PROBE = _text("impact.probe", "a SELECT over `{table}`, timed around rewrites on the pool", check=checked_probe)
PROBE_TIMEOUT = _integer("impact.probe_timeout_seconds", 60, "a probe that runs longer is cancelled", unit="seconds")
VACUUM_CUTOFF = _text(
    "vacuum.cutoff",
    "age at which a Nessie catalog's history may go if Nessie has no policy: PT48H, an instant or NONE; unset: 5 days",
    check=check_cutoff,
)
_GRACE = "younger files stay in the vacuum of a Nessie catalog that has no newFilesGracePeriod"
VACUUM_GRACE = _integer("vacuum.grace_hours", 24, _GRACE, unit="hours", minimum=24, maximum=MAX_HOURS)
VACUUM_ENABLED = _flag("vacuum.enabled", "whether vacuum of a catalog may touch the table at all")
PROPERTIES_ALLOW = _text(
    "properties.allow",
    "knobs that the table's own properties may set beside the harmless ones: names and wildcards, such as importance, "
    "impact.*; no property sets this one",
    check=partial(check_names, (*_DECLARED.knobs, "compact.kernel")),
)

KNOBS: Mapping[str, Knob[Any]] = _DECLARED.knobs
RENAMED: Mapping[str, str] = {"compact.kernel": "compact.engine"}  # earlier names, accepted for one more release


def find_knob(name: str) -> Knob[Any] | None:
    """Return the knob of this name, or of this earlier name; None when there is none."""
    return KNOBS.get(RENAMED.get(name, name))
