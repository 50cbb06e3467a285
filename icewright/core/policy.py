"""Every knob once: name, kind, default, unit, bounds and help. Everything that shows a knob is made from here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from icewright.core.cadence import Cadence
from icewright.core.knob import Knob, SettingRegistry, ValueKind, check_names
from icewright.core.operation import ON_POOL as ON_POOL  # noqa: PLC0414 - settings and operations are imported together
from icewright.core.operation import ORDERS as ORDERS  # noqa: PLC0414
from icewright.core.operation import Operation as Operation  # noqa: PLC0414
from icewright.core.probes import checked_probe
from icewright.core.vacuum import check_cutoff
from icewright.core.windows import parse_windows

T = TypeVar("T")

MEGABYTE = 1024 * 1024
YEARS_HOURS = 24 * 366 * 20  # the longest time that a knob may say: far beyond it arithmetic on times would overflow

_DECLARED = SettingRegistry(YEARS_HOURS)
_knob, _integer, _number_knob = _DECLARED.knob, _DECLARED.integer, _DECLARED.number
_flag, _choice = _DECLARED.flag, _DECLARED.choice

PRESET = _choice("preset", "iceberg", ("iceberg", "seaweedfs", "streaming", "compliance"), "named set of defaults")
ORDER = _choice("order", "canonical", tuple(ORDERS), "order in which the operations of one job run")
IMPORTANCE = _choice("importance", "normal", ("critical", "high", "normal", "low"), "weight of the table in the queue")
WINDOWS: Knob[str | None] = _knob(
    "windows",
    ValueKind.TEXT,
    None,
    "days and hours in which work may start by itself, in UTC or a named time zone, such as"
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
BREAKER = _integer("execute.pause_after_failures", 3, "failed jobs in a row after which the table is paused")

ENABLED: Mapping[Operation, Knob[bool]] = {
    op: _flag(
        f"{op}.enabled",
        f"whether {op} runs by itself; a table may always be run by hand",
        default=op is not Operation.EXPIRE_ROWS,
    )
    for op in Operation
}
_COOLDOWNS = {
    Operation.EXPIRE_ROWS: 1440,
    Operation.COMPACT: 60,
    Operation.REWRITE_DELETES: 60,
    Operation.REWRITE_MANIFESTS: 360,
    Operation.RECOVERY_POINTS: 15,
    Operation.EXPIRE_SNAPSHOTS: 60,
    Operation.REMOVE_ORPHANS: 60,
}
COOLDOWN: Mapping[Operation, Knob[int]] = {
    op: _integer(
        f"{op}.cooldown_minutes", minutes, f"time between two runs of {op} on one table", unit="minutes", minimum=0
    )
    for op, minutes in _COOLDOWNS.items()
}

ROWS_COLUMN: Knob[str | None] = _knob(
    "expire_rows.column", ValueKind.TEXT, None, "column (a date or a timestamp) that says how old a row is"
)
ROWS_DAYS: Knob[int | None] = _knob(
    "expire_rows.days",
    ValueKind.INTEGER,
    None,
    "rows older than this by the column are deleted, counted in whole days (UTC)",
    unit="days",
    minimum=1,
    maximum=YEARS_HOURS // 24,
)

TARGET_FILE_SIZE: Knob[float | str] = _knob(
    "compact.target_file_size_mb",
    ValueKind.NUMBER,
    512.0,
    "size that rewritten data files aim at; auto: 128 to 1024 by the size of the partition",
    unit="MB",
    minimum=0.001,
    maximum=1_000_000,
    also="auto",
    also_range=(128, 1024),
)
MIN_FILE_SIZE_RATIO = _number_knob(
    "compact.min_file_size_ratio", 0.75, "a file below this share of the target is a candidate", maximum=1
)
MAX_FILE_SIZE_RATIO = _number_knob(
    "compact.max_file_size_ratio", 1.8, "a file above this share of the target is a candidate", minimum=1, maximum=100
)
MIN_INPUT_FILES = _integer("compact.min_input_files", 5, "candidates that make a partition worth rewriting", minimum=2)
MAX_GROUP_SIZE = _integer(
    "compact.max_file_group_size_mb", 10240, "bytes rewritten by one Spark job", unit="MB", maximum=10**9
)
MAX_CONCURRENT_GROUPS = _integer(
    "compact.max_concurrent_file_group_rewrites", 5, "file groups of one table rewritten at the same time", maximum=1000
)
GROWTH = _number_knob(
    "compact.growth",
    4,
    "files are merged into files this many times as large as the largest of them (twice in settled partitions): each "
    "byte is rewritten at most log(target / arriving size) times to this base",
    minimum=2,
    maximum=100,
)
STRATEGY = _choice("compact.strategy", "binpack", ("binpack", "sort", "zorder"), "how rows are laid out")
KERNEL = _choice(
    "compact.engine",
    "auto",
    ("auto", "arrow", "spark"),
    "who rewrites rows: Arrow in tasks of Spark, or Spark's own path; auto: Arrow wherever its result is the same",
)
_TASK_MEMORY = "memory of a task that rewrites as Arrow; what needs more is left to Spark's own path"
TASK_MEMORY = _integer("compact.task_memory_mb", 512, _TASK_MEMORY, unit="MB", minimum=256, maximum=10**6)
SORT_ORDER: Knob[str | None] = _knob(
    "compact.sort_order", ValueKind.TEXT, None, "columns to sort or z-order by; unset: the table's sort order"
)
APPLY_DELETES = _flag("compact.apply_deletes", "whether tables with delete files are compacted, the deletes applied")
DELETE_FILE_THRESHOLD = _integer(
    "compact.delete_file_threshold", 10, "delete files on one data file that make its partition worth rewriting"
)
DELETE_RATIO_THRESHOLD = _number_knob(
    "compact.delete_ratio_threshold", 0.3, "share of deleted rows that makes a partition worth rewriting", maximum=1
)
REMOVE_DANGLING = _flag("compact.remove_dangling_deletes", "drop delete files that apply to nothing any more")
PARTIAL_PROGRESS = _flag(
    "compact.partial_progress", "commit file groups as they finish, so that a failure keeps the rest"
)
PARTIAL_FROM = _integer(
    "compact.partial_progress_from_mb",
    1024,
    "calls that rewrite less commit once: they are done sooner than Iceberg's commits between groups",
    unit="MB",
    minimum=0,
    maximum=10**9,
)
MAX_COMMITS = _integer("compact.max_commits", 10, "commits of one compaction with partial progress", maximum=1000)
MAX_FAILED_COMMITS = _integer("compact.max_failed_commits", 3, "failed commits that end a compaction", minimum=0)
WHERE: Knob[str | None] = _knob(
    "compact.where", ValueKind.TEXT, None, "predicate that the rewritten rows must match (SQL)"
)
HOT_PARTITIONS = _choice(
    "compact.hot_partitions", "skip", ("skip", "include"), "what to do with partitions being written"
)
HOT_MINUTES = _integer(
    "compact.hot_minutes",
    60,
    "a partition written within this time, or within two beats of its own rhythm, is hot",
    unit="minutes",
    minimum=0,
)
HOT_MAX_HOURS = _integer(
    "compact.hot_max_hours",
    24,
    "a partition that has been written for longer is not hot: it would never cool",
    unit="hours",
)
MAX_OVERLAP = _number_knob(
    "compact.max_overlap",
    0.5,
    "share of overlapping pairs of files that makes a partition worth sorting anew (strategies sort and zorder)",
    maximum=1,
)
MAX_CALL_SIZE = _integer(
    "compact.max_call_size_mb", 102_400, "bytes of the partitions of one call to Spark", unit="MB", maximum=10**9
)

READS_PER_DAY = _number_knob(
    "value.reads_per_day", 3, "whole reads of a table a day by which the value of a merge is reckoned", maximum=10**6
)
PAYBACK = _number_knob(
    "value.payback_days", 30, "time within which a merge of settled files must pay", unit="days", maximum=3660
)
MIN_RETURN = _number_knob("value.min_return", 4, "least value of a merge as a multiple of its cost", maximum=1000)
GB_HOUR_PRICE = _number_knob("value.gb_hour_price", 0.02, "price of a GB-hour of memory", maximum=10**6)
REQUEST_PRICE = _number_knob("value.request_price", 4e-7, "price of a read request to the storage", maximum=1000)

MIN_DELETE_FILES = _integer("rewrite_deletes.min_delete_files", 5, "position delete files that make a partition due")
MIN_EQUALITY_DELETES = _integer(
    "rewrite_deletes.min_equality_delete_files",
    20,
    "equality delete files that make a partition due: they become deletion vectors (v3) or position deletes (v2)",
)
DANGLING = _flag("rewrite_deletes.dangling", "whether delete files that apply to nothing make a table due")

MIN_MANIFESTS = _integer("rewrite_manifests.min_manifests", 5, "manifests that make a table due", minimum=2)
TARGET_MANIFEST = _number_knob(
    "rewrite_manifests.target_manifest_mb", 8, "size that manifests aim at", unit="MB", minimum=0.001, maximum=10_000
)
_SORT = "partition fields, separated by commas, that order the entries; unset: all, in the order of the spec"
MANIFEST_SORT: Knob[str | None] = _knob("rewrite_manifests.sort_by", ValueKind.TEXT, None, _SORT)
MANIFEST_SPEC: Knob[int | None] = _knob(
    "rewrite_manifests.spec_id", ValueKind.INTEGER, None, "rewrite the manifests of this spec alone", minimum=0
)
MANIFEST_CACHING = _flag("rewrite_manifests.use_caching", "Spark's option of the same name", default=False)
MANIFEST_ENGINE = _choice(
    "rewrite_manifests.engine",
    "auto",
    ("auto", "service", "spark"),
    "auto: in-service for format v1 and v2, else Spark",
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
    maximum=YEARS_HOURS,
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
    maximum=YEARS_HOURS,
)
READER_PINS: Knob[Mapping[str, str]] = _knob(
    "expire_snapshots.reader_pins",
    ValueKind.MAPPING,
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
    "(Flink, Spark, Kafka Connect), with all newer ones of the branch; 0: no longer than others",
    unit="days",
    minimum=0,
    maximum=36_500,
)
WRITER_STATE_KEYS: Knob[str | None] = _knob(
    "expire_snapshots.writer_state_keys",
    ValueKind.TEXT,
    None,
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
    maximum=YEARS_HOURS,
    also="auto",
    also_range=(24, 90 * 24),
)
_YOUNG = "younger files are kept: a writer may be about to commit them"
ORPHAN_AGE = _integer("remove_orphans.older_than_hours", 72, _YOUNG, unit="hours", minimum=24, maximum=YEARS_HOURS)
ORPHAN_MODE = _choice(
    "remove_orphans.mode",
    "report",
    ("report", "confirm", "delete"),
    "report: list only; confirm: delete what two scans found; delete: delete at once",
)
CONFIRM_HOURS = _integer(
    "remove_orphans.confirm_hours", 24, "least time between the two scans of confirm", unit="hours"
)
EQUAL_SCHEMES: Knob[Mapping[str, str]] = _knob(
    "remove_orphans.equal_schemes", ValueKind.MAPPING, {"s3a": "s3", "s3n": "s3"}, "path schemes that mean the same"
)
EQUAL_AUTHORITIES: Knob[Mapping[str, str]] = _knob(
    "remove_orphans.equal_authorities", ValueKind.MAPPING, {}, "path authorities (hosts, buckets) that mean the same"
)
MAX_DELETE_RATIO = _number_knob(
    "remove_orphans.max_delete_ratio", 0.5, "a scan that calls a larger share of the files orphans stops", maximum=1
)
MAX_ORPHANS = _integer(
    "remove_orphans.max_files", 1_000_000, "orphans handled by one run; the rest waits", maximum=10**8
)
INVENTORY: Knob[str | None] = _knob(
    "remove_orphans.inventory",
    ValueKind.TEXT,
    None,
    "inventory of the object store (Parquet or CSV with key, size, last-modified) read in place of listing it",
)
ORPHAN_CONCURRENCY = _integer("remove_orphans.max_concurrent_deletes", 16, "deletions at the same time", maximum=256)

PLANNING = _flag("impact.planning", "measure before and after each rewrite how long planning a full scan takes")
MAX_PLANNING = _integer(
    "impact.max_planning_mb", 64, "planning is not measured where manifests are larger", unit="MB", maximum=10**6
)
PROBE: Knob[str | None] = _knob(
    "impact.probe",
    ValueKind.TEXT,
    None,
    "a SELECT over `{table}`, timed around rewrites on the pool",
    check=checked_probe,
)
PROBE_TIMEOUT = _integer("impact.probe_timeout_seconds", 60, "a probe that runs longer is cancelled", unit="seconds")
VACUUM_CUTOFF: Knob[str | None] = _knob(
    "vacuum.cutoff",
    ValueKind.TEXT,
    None,
    "age at which a Nessie catalog's history may go if Nessie has no policy: PT48H, an instant or NONE; unset: 5 days",
    check=check_cutoff,
)
_GRACE = "younger files stay in the vacuum of a Nessie catalog that has no newFilesGracePeriod"
VACUUM_GRACE = _integer("vacuum.grace_hours", 24, _GRACE, unit="hours", minimum=24, maximum=YEARS_HOURS)
VACUUM_ENABLED = _flag("vacuum.enabled", "whether vacuum of a Nessie catalog may touch the table at all")
PROPERTIES_ALLOW: Knob[str | None] = _knob(
    "properties.allow",
    ValueKind.TEXT,
    None,
    "knobs that the table's own properties may set beside the harmless ones: names and wildcards, such as importance, "
    "impact.*; no property sets this one",
    check=partial(check_names, (*_DECLARED.knobs, "compact.kernel")),
)

KNOBS: Mapping[str, Knob[Any]] = _DECLARED.knobs
RENAMED: Mapping[str, str] = {"compact.kernel": "compact.engine"}  # earlier names, accepted for one more release


def find_knob(name: str) -> Knob[Any] | None:
    """Return the knob of this name, or of this earlier name; None when there is none."""
    return KNOBS.get(RENAMED.get(name, name))
