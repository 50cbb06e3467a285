"""Choose the engine that rewrites data files: Arrow where its result is known to equal Spark's, else Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from icewright.core import policy, rewriting
from icewright.core.effective import Knobs
from icewright.core.numbers import number_or
from icewright.core.ordering import Ordering
from icewright.core.partitions import PartitionKey
from icewright.core.sortedness import ordering_fields, unknown_columns
from icewright.core.steps import Counting, Kernel
from icewright.core.table import PartitionFacts, TableFacts

_PRIMITIVES = frozenset(
    (
        *("boolean", "int", "long", "float", "double", "date", "time", "string", "uuid", "binary"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"),
    )
)
_PARAMETERIZED = re.compile(r"(?:decimal\(.*\)|fixed\[\d+\])")
_CODECS = frozenset(("zstd", "gzip", "snappy", "lz4_raw", "brotli", "uncompressed", "none"))
_PARQUET = "write.parquet."
_SUPPORTED_PROPERTIES = (  # by name or by the beginning of the name
    *("compression-codec", "compression-level", "row-group-size-bytes", "row-group-check-", "page-size-bytes"),
    *("page-row-limit", "page-version", "dict-size-bytes", "dict-encoding-enabled.column."),
    *("bloom-filter-enabled.column.", "bloom-filter-fpp.column.", "bloom-filter-ndv.column."),
    *("row-group-size-track-uncompressed", "shred-variants", "variant-inference-buffer-size"),
)
BLOOM_FILTER = f"{_PARQUET}bloom-filter-enabled.column."
DICTIONARY, _DICTIONARY_SIZE = f"{_PARQUET}dict-encoding-enabled.column.", f"{_PARQUET}dict-size-bytes"
_DICTIONARY_BYTES = 16 << 20  # of a column that the policy names: a reader keeps one for each column that it reads
_FILTERED = frozenset(("int", "long", "string", "date", "time", "timestamp", "timestamptz", "uuid"))  # by equality
_ZORDER = "zorder("
_UNCOUNTED = ("variant", "geometry", "geography", "unknown")  # types without serialization of values, or equality
EQUAL = "Arrow supports all that the table uses"


@dataclass(frozen=True, slots=True)
class ArrowLimit:
    """A limit of the Arrow engine: what it supports, and why Spark rewrites a table beyond it."""

    arrow: str  # what it supports
    reason: str  # as verdicts and jobs say it; braces stand for what the table has

    def __call__(self, found: str = "") -> str:
        """Return the reason for what was found."""
        return self.reason.format(found)


_FORMAT = ArrowLimit("tables that are written as Parquet", "the table is written as {}")
_OTHER_FORMATS = ArrowLimit("Parquet data files and delete files", "some files are not Parquet")
_ENCRYPTED = ArrowLimit("tables without encryption", "the table is encrypted")
_TYPE = ArrowLimit(
    f"columns of type {', '.join(sorted(_PRIMITIVES))}, decimal, fixed, and struct, list and map of them",
    "columns of type {}",
)
_CODEC = ArrowLimit(
    f"codecs {', '.join(sorted(_CODECS))}; zstd where none is set, as Iceberg documents (Spark's own path writes gzip)",
    "Arrow does not write {}",
)
_LEVEL = ArrowLimit("compression levels that are numbers", "{} is no number")
_PROPERTY = ArrowLimit(
    f"`{_PARQUET}` with what is or begins with {', '.join(f'`{name}`' for name in _SUPPORTED_PROPERTIES)}", "{} is set"
)
_TABLE_ORDER = ArrowLimit(
    "the table's sort order by columns, also of files that are only merged", "the table's sort order has transforms"
)
_ORDER = ArrowLimit("sorting by columns; z-order, as boxes that do not overlap", "the sort order has transforms")
_UNKNOWN_COLUMN = ArrowLimit("columns of the current schema", "the sort order has a column that is unknown")
_INNER_COLUMN = ArrowLimit("top-level columns", "the sort order has a column inside another")
OLDER_SPEC = ArrowLimit("files of the spec that outputs have", "files of an older partition spec are partitioned again")
PARTITION_VALUE = ArrowLimit("partition values that JSON has", "a partition value is not a number")
NO_IDS = ArrowLimit(
    "files with field ids, or a name mapping",
    "there are files without field ids, and no name mapping (schema.name-mapping.default)",
)
KEY_COLUMN = ArrowLimit(
    "equality deletes by columns of the table, not of type fixed",
    "equality deletes name column {}, which is of type fixed or inside another: not all readers find the same rows",
)
FOREIGN_TYPE = ArrowLimit("columns of the table's types, or of ones that Iceberg widens", "a file has a column of {}")
LIMITS = (
    *(_FORMAT, _OTHER_FORMATS, _ENCRYPTED, _TYPE, _CODEC, _LEVEL, _PROPERTY, _TABLE_ORDER, _ORDER),
    *(_UNKNOWN_COLUMN, _INNER_COLUMN, OLDER_SPEC, PARTITION_VALUE, NO_IDS, KEY_COLUMN, FOREIGN_TYPE),
)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The engine of each partition with the reasons; `refused` where the setting asks for the impossible.

    `properties` are those of the table's kind that the policy sets for what Arrow writes.
    """

    by_partition: Mapping[PartitionKey, Kernel]
    why: tuple[str, ...]
    refused: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def of(self, partitions: Iterable[PartitionFacts]) -> Kernel:
        """Return the one engine for partitions that are rewritten together."""
        return Kernel.SPARK if any(self.by_partition[p.key] is Kernel.SPARK for p in partitions) else Kernel.ARROW


def kernels(facts: TableFacts, partitions: Sequence[PartitionFacts], knobs: Knobs, order: str | None) -> Kernels:
    """Choose the engine of each partition; properties of the table concern all partitions."""
    specs = sorted(spec.spec_id for spec in facts.metadata.specs)
    if output_spec(facts, knobs) not in specs:
        refused = f"compact.output_spec_id: the table has the partition specs {', '.join(map(str, specs))}"
        return Kernels({}, (), refused)
    if order is not None and (unknown := unknown_columns(facts.metadata.schema, order)):
        return Kernels({}, (), f"compact.sort_order: the table has no column {unknown[0]}")
    setting = knobs[rewriting.KERNEL]
    if setting == Kernel.SPARK:
        return Kernels({p.key: Kernel.SPARK for p in partitions}, ("kernel spark: compact.engine says so",))
    table_reason = next(chain(_option_reasons(knobs, order), _table_reasons(facts, order)), None)
    reasons = {p.key: table_reason or _partition_reason(p, output_spec(facts, knobs)) for p in partitions}
    spark_reasons = [reason for reason in dict.fromkeys(reasons.values()) if reason is not None]
    if setting == Kernel.ARROW and spark_reasons:
        refused = f"compact.engine is arrow, but {spark_reasons[0]}: set it to auto or spark"
        return Kernels({}, (), refused)
    chosen = {key: Kernel.ARROW if reason is None else Kernel.SPARK for key, reason in reasons.items()}
    arrow = EQUAL if setting == "auto" else "compact.engine says so"
    why = [f"kernel arrow: {arrow}"] if None in reasons.values() else []
    properties = {
        **bloom_properties(facts.metadata.schema, knobs[rewriting.BLOOM_FILTERS]),
        **dictionary_properties(facts.metadata.schema, knobs[rewriting.DICTIONARIES], facts.metadata.properties),
    }
    return Kernels(chosen, (*why, *(f"kernel spark: {reason}" for reason in spark_reasons)), properties=properties)


def output_spec(facts: TableFacts, knobs: Knobs) -> int:
    """Return the id of the partition spec of rewritten files."""
    asked = knobs[rewriting.OUTPUT_SPEC]
    return asked if isinstance(asked, int) else facts.metadata.default_spec_id


def written_order(knobs: Knobs, table_order: str | None) -> str | None:
    """Return the policy's order, else the table's own, as Spark's procedure takes it; none for binpack."""
    order = knobs[rewriting.SORT_ORDER] or table_order
    if knobs[rewriting.STRATEGY] == "binpack" or order is None:
        return None
    zorder = knobs[rewriting.STRATEGY] == "zorder" and not order.lower().startswith(_ZORDER)
    return f"zorder({order})" if zorder else order


def bloom_properties(schema: Mapping[str, Any], names: str | None) -> Mapping[str, str]:
    """Return the table properties of Bloom filters of these columns, separated by commas, that can have one."""
    return {f"{BLOOM_FILTER}{name}": "true" for name in _filtered(schema, names)}


def dictionary_properties(
    schema: Mapping[str, Any], names: str | None, properties: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the table properties by which these columns have large dictionaries, where the table has smaller ones."""
    chosen = {f"{DICTIONARY}{name}": "true" for name in _filtered(schema, names)}
    size = max(_DICTIONARY_BYTES, number_or(0, properties.get(_DICTIONARY_SIZE, "")))
    return {**chosen, _DICTIONARY_SIZE: str(size)} if chosen else {}


def _filtered(schema: Mapping[str, Any], names: str | None) -> Sequence[str]:
    """Return the columns of a list separated by commas whose types filters compare."""
    chosen = {name.strip() for name in (names or "").split(",")}
    fields = (field for field in schema.get("fields", ()) if isinstance(field["type"], str))
    return [str(field["name"]) for field in fields if field["type"] in _FILTERED and field["name"] in chosen]


def countable_columns(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the top-level columns of simple types, whose distinct values can be counted."""
    fields = (field for field in schema.get("fields", ()) if isinstance(field["type"], str))
    return tuple(str(field["name"]) for field in fields if not field["type"].startswith(_UNCOUNTED))


def counting(facts: TableFacts, knobs: Knobs) -> Counting:
    """Return what a rewrite counts on its way for `compute_statistics`.

    That is nothing where the operation does not run by itself, and before the first statistics, which read all rows.
    """
    metadata, named = facts.metadata, knobs[policy.STATISTICS_COLUMNS]
    known = {file.snapshot_id for file in metadata.statistics}
    since = max((s.sequence_number for s in metadata.snapshots if s.snapshot_id in known), default=0)
    runs = knobs[policy.ENABLED[policy.Operation.COMPUTE_STATISTICS]] and knobs[policy.STATISTICS] != "partitions"
    if not (runs and since):
        return Counting()
    wanted = None if named is None else {name.strip() for name in named.split(",")}
    names = (name for name in countable_columns(metadata.schema) if wanted is None or name in wanted)
    return Counting(tuple(names), since)


def passed_options(knobs: Knobs, order: str | None) -> dict[str, str]:
    """Return the policy's options that Iceberg takes with this order; without an order, none of those of sorts."""
    valid = {*rewriting.PLANNING_OPTIONS, *(rewriting.SORTING_OPTIONS if order is not None else ())}
    if order is not None and order.lower().startswith(_ZORDER):
        valid |= rewriting.ZORDER_OPTIONS.keys()
    return {name: value for name, value in knobs[rewriting.OPTIONS].items() if name in valid}


def option_notes(knobs: Knobs) -> Iterator[str]:
    """Yield what the files that a dry run lists do not tell."""
    if most := knobs[rewriting.OPTIONS].get("max-files-to-rewrite"):
        yield f"each call rewrites {most} of its files at most: compact.options says so"


def _option_reasons(knobs: Knobs, order: str | None) -> Iterator[str]:
    """Yield the options that only Spark's own path takes: they divide its shuffle, or change its order."""
    others = passed_options(knobs, order).keys() - rewriting.PLANNING_OPTIONS.keys()
    yield from (f"compact.options has {name}" for name in sorted(others))


def _partition_reason(partition: PartitionFacts, spec_id: int) -> str | None:
    if partition.spec_id != spec_id:
        return OLDER_SPEC()
    return _OTHER_FORMATS() if partition.other_formats else None


def _table_reasons(facts: TableFacts, order: str | None) -> Iterator[str]:
    """Yield the reasons why the table as a whole needs Spark."""
    metadata = facts.metadata
    properties = metadata.properties
    written = properties.get("write.format.default", "parquet").lower()
    if written != "parquet":
        yield _FORMAT(written)
    if properties.get("encryption.key-id"):
        yield _ENCRYPTED()
    yield from map(_TYPE, _unsupported_types(metadata.schema))
    yield from _property_reasons(properties)
    if metadata.sort_order_id and metadata.sort_order is None:
        yield _TABLE_ORDER()
    order = order or metadata.sort_order  # by which Spark sorts what it merges too
    if order is not None:
        ordering = Ordering.parse(order)
        if not ordering.whole:
            yield _ORDER()
        elif not all(ordering_fields(metadata.schema, [column.name]) for column in ordering.columns):
            yield _UNKNOWN_COLUMN()
        elif any("." in column.name for column in ordering.columns):
            yield _INNER_COLUMN()


def _property_reasons(properties: Mapping[str, str]) -> Iterator[str]:
    codec = (properties.get(f"{_PARQUET}compression-codec") or "zstd").lower()
    if codec not in _CODECS:
        yield _CODEC(codec)
    if not properties.get(f"{_PARQUET}compression-level", "0").isdigit():
        yield _LEVEL(f"{_PARQUET}compression-level")
    others = sorted(name for name in properties if name.startswith(_PARQUET))
    yield from (_PROPERTY(name) for name in others if not name.removeprefix(_PARQUET).startswith(_SUPPORTED_PROPERTIES))


def _unsupported_types(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the types of the schema, nested ones included, that Arrow does not support."""
    pending: list[Any] = [field["type"] for field in schema.get("fields", ())]
    while pending:
        kind = pending.pop(0)
        if isinstance(kind, str):
            if kind not in _PRIMITIVES and not _PARAMETERIZED.fullmatch(kind):
                yield kind
        else:
            pending += _child_types(kind)


def _child_types(kind: Mapping[str, Any]) -> Iterable[Any]:
    match kind["type"]:
        case "struct":
            return [field["type"] for field in kind["fields"]]
        case "list":
            return [kind["element"]]
    return [kind["key"], kind["value"]]
