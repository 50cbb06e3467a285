"""The settings of operations that write files anew, and of what that is worth: `compact`, `value`, `rewrite_*`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from icewright.core.knob import Knob, SettingRegistry, ValueKind, check_predicate

_COUNT = re.compile(r"[1-9]\d{0,8}")  # Iceberg reads most of them as Java's int
_POSITIVE = re.compile(r"(?=[0-9.]*[1-9])\d{1,8}(\.\d{1,8})?")
PLANNING_OPTIONS = {
    "rewrite-job-order": re.compile("none|(bytes|files)-(asc|desc)"),
    "max-files-to-rewrite": _COUNT,
    "max-file-group-input-files": _COUNT,
}
SORTING_OPTIONS = {"compression-factor": _POSITIVE, "shuffle-partitions-per-file": _COUNT}
ZORDER_OPTIONS = {"var-length-contribution": _COUNT, "max-output-size": _COUNT}
_OPTIONS = {**PLANNING_OPTIONS, **SORTING_OPTIONS, **ZORDER_OPTIONS}


def _check_options(options: Mapping[str, str]) -> None:
    """Raise `ValueError` for an option that is not passed on, or has a value that Iceberg refuses."""
    for name, value in options.items():
        if name not in _OPTIONS:
            raise ValueError(f"{name!r} is not one of {', '.join(_OPTIONS)}; other options have knobs of their own")
        if not _OPTIONS[name].fullmatch(value):
            raise ValueError(f"{value!r} is not a value of {name}")


DECLARED = SettingRegistry()
_knob, _integer, _number_knob = DECLARED.knob, DECLARED.integer, DECLARED.number
_flag, _choice, _text, _mapping = DECLARED.flag, DECLARED.choice, DECLARED.text, DECLARED.mapping

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
    "files are merged into files this many times as large as the largest of them (at most 2.4 times in settled "
    "partitions, and less once their silence or many reads pay for it): each byte is rewritten at most "
    "log(target / arriving size) times to this base",
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
SORT_ORDER = _text("compact.sort_order", "columns to sort or z-order by; unset: the table's sort order")
BLOOM_FILTERS = _text(
    "compact.bloom_filters",
    "columns whose Bloom filters rewritten files have, separated by commas, beside those of the table's properties; "
    "where Arrow rewrites",
)
DICTIONARIES = _text(
    "compact.dictionaries",
    "columns that rewritten files encode by dictionaries of up to 16 MB, separated by commas, where that makes a row "
    "group smaller, though its first page alone would not be; where Arrow rewrites",
)
LAYOUT_APPLY = _flag(
    "layout.apply",
    "whether `icewright advise --apply` sets compact.strategy, compact.sort_order, compact.bloom_filters, "
    "compact.dictionaries and compact.target_file_size_mb, where nobody else does",
    default=False,
)
LAYOUT_PAYS = _number_knob(
    "layout.pay_within_days",
    30,
    "days of queries that save the bytes of the rewrite; a layout that takes longer is not applied",
    unit="days",
    minimum=0.01,
    maximum=3650,
)
LAYOUT_WATCH = _number_knob(
    "layout.watch_days",
    7,
    "days after which an applied layout is judged, and taken back if it did not help",
    unit="days",
    maximum=3650,
)
LAYOUT_MEASURE = _flag(
    "layout.measure",
    "whether a layout is applied only once Spark has read less by it, on a branch of a sample of the table's files",
)
LAYOUT_SAMPLE = _integer(
    "layout.sample_mb", 256, "bytes of the files on that branch; each layout writes them once", unit="MB", maximum=10**6
)
LAYOUT_GB_HOURS = _number_knob(
    "layout.measure_gb_hours", 0.5, "GB-hours of Spark after which no further layout is measured", maximum=10**6
)
LAYOUT_READ: Knob[float | None] = _knob(
    "layout.read_before",
    ValueKind.NUMBER,
    None,
    "share of all bytes that the filters read before a layout was applied: `icewright advise --apply` writes it",
    minimum=0,
    maximum=1,
)
APPLY_DELETES = _flag("compact.apply_deletes", "whether tables with delete files are compacted, the deletes applied")
DELETE_FILE_THRESHOLD = _integer(
    "compact.delete_file_threshold",
    10,
    "delete files on one data file that make its partition worth rewriting: all of it, where rewrite_deletes is off",
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
WHERE = _text("compact.where", "predicate that the rewritten rows must match (SQL)", check=check_predicate)
BRANCHES = _text(
    "compact.branches", "branches that are compacted beside main: names and wildcards, separated by commas"
)
REWRITE_ALL = _flag(
    "compact.rewrite_all",
    "rewrite all files, once after each write, as `rewrite-all` of Spark's procedure",
    default=False,
)
OUTPUT_SPEC: Knob[int | str | None] = _knob(
    "compact.output_spec_id",
    ValueKind.INTEGER,
    None,
    "partition spec that all files are rewritten into; unset: that of the table, into which merges alone bring files",
    minimum=0,
    also="current",
)
OPTIONS = _mapping(
    "compact.options",
    {},
    f"options of Spark's `rewrite_data_files` that have no knob, by their names: {', '.join(_OPTIONS)}",
    check=_check_options,
)
HOT_PARTITIONS = _choice(
    "compact.hot_partitions", "skip", ("skip", "include"), "what to do with partitions being written"
)
HOT_MINUTES = _integer(
    "compact.hot_minutes",
    60,
    "a partition written within this time, or within twice the usual interval of its writes, is hot",
    unit="minutes",
    minimum=0,
)
HOT_MAX_HOURS = _integer(
    "compact.hot_max_hours",
    24,
    "a partition that has been written for longer counts as cold: it would always stay hot",
    unit="hours",
)
MAX_OVERLAP = _number_knob(
    "compact.max_overlap",
    0.5,
    "share of overlapping pairs of files that makes a partition worth sorting again (strategies sort and zorder)",
    maximum=1,
)
MAX_CALL_SIZE = _integer(
    "compact.max_call_size_mb", 102_400, "bytes of the partitions of one call to Spark", unit="MB", maximum=10**9
)

PRIOR_READS = 3  # whole reads of a table a day, where nobody says how many there are
READS_PER_DAY: Knob[float | str] = _knob(
    "value.reads_per_day",
    ValueKind.NUMBER,
    "auto",
    "whole reads of a table a day by which merges are valued; auto: the queries that engines reported, "
    f"{PRIOR_READS} where they reported none",
    minimum=0,
    maximum=10**6,
    also="auto",
    also_range=(0, 10**6),
)
PAYBACK = _number_knob(
    "value.payback_days", 30, "time within which a merge of settled files must pay", unit="days", maximum=3660
)
MIN_RETURN = _number_knob("value.min_return", 4, "least value of a merge as a multiple of its cost", maximum=1000)
GB_HOUR_PRICE = _number_knob("value.gb_hour_price", 0.02, "price of a GB-hour of memory", maximum=10**6)
REQUEST_PRICE = _number_knob("value.request_price", 4e-7, "price of a read request to the storage", maximum=1000)

MIN_DELETE_FILES = _integer(
    "rewrite_deletes.min_delete_files",
    5,
    "position delete files that make a partition due, or compact.delete_file_threshold on one data file if fewer; with "
    "half as many it goes along",
)
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
MANIFEST_SORT = _text("rewrite_manifests.sort_by", _SORT)
MANIFEST_SPEC: Knob[int | None] = _knob(
    "rewrite_manifests.spec_id", ValueKind.INTEGER, None, "rewrite the manifests of this spec alone", minimum=0
)
MANIFEST_DELETED = _flag(
    "rewrite_manifests.deleted_entries",
    "whether entries of files that are gone make a table due, as their bounds keep values of erased rows; in-service",
    default=False,
)
MANIFEST_CACHING = _flag("rewrite_manifests.use_caching", "Spark's option of the same name", default=False)
MANIFEST_ENGINE = _choice(
    "rewrite_manifests.engine",
    "auto",
    ("auto", "service", "spark"),
    "auto: in-service for format v1 and v2, else Spark",
)
