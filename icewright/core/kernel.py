"""Choose the engine that rewrites data files: Arrow where its result is known to equal Spark's, else Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from icewright.core import rewriting
from icewright.core.effective import Knobs
from icewright.core.ordering import Ordering
from icewright.core.partitions import PartitionKey
from icewright.core.sortedness import ordering_fields
from icewright.core.steps import Kernel
from icewright.core.table import PartitionFacts, TableFacts

_PRIMITIVES = frozenset(
    (
        *("boolean", "int", "long", "float", "double", "date", "time", "string", "uuid", "binary"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"),
    )
)
_PARAMETERIZED = re.compile(r"(?:decimal\(.*\)|fixed\[\d+\])")
_CODECS = frozenset(("zstd", "gzip", "snappy", "lz4", "lz4_raw", "brotli", "uncompressed", "none"))
_PARQUET = "write.parquet."
_SUPPORTED_PROPERTIES = (  # by name or by the beginning of the name
    *("compression-codec", "compression-level", "row-group-size-bytes", "row-group-check-", "page-size-bytes"),
    *("page-row-limit", "page-version", "dict-size-bytes", "dict-encoding-enabled.column."),
    *("bloom-filter-enabled.column.", "bloom-filter-fpp.column.", "bloom-filter-ndv.column."),
    *("row-group-size-track-uncompressed", "shred-variants", "variant-inference-buffer-size"),
)
_ZORDER = "zorder("
EQUAL = "Arrow does all that the table has as Spark does"


@dataclass(frozen=True, slots=True)
class Kernels:
    """The engine of each partition with the reasons; `refused` where the setting asks for the impossible."""

    by_partition: Mapping[PartitionKey, Kernel]
    why: tuple[str, ...]
    refused: str | None = None

    def of(self, partitions: Iterable[PartitionFacts]) -> Kernel:
        """Return the one engine for partitions that are rewritten together."""
        return Kernel.SPARK if any(self.by_partition[p.key] is Kernel.SPARK for p in partitions) else Kernel.ARROW


def kernels(facts: TableFacts, partitions: Sequence[PartitionFacts], knobs: Knobs, order: str | None) -> Kernels:
    """Choose the engine of each partition; properties of the table concern all partitions."""
    specs = sorted(spec.spec_id for spec in facts.metadata.specs)
    if output_spec(facts, knobs) not in specs:
        refused = f"compact.output_spec_id: the table has the partition specs {', '.join(map(str, specs))}"
        return Kernels({}, (), refused)
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
    return Kernels(chosen, (*why, *(f"kernel spark: {reason}" for reason in spark_reasons)))


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


def passed_options(knobs: Knobs, order: str | None) -> dict[str, str]:
    """Return the policy's options that Iceberg takes with this order; None is binpack, which refuses those of sorts."""
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
        return "files of an older partition spec are partitioned anew"
    return "some files are not Parquet" if partition.other_formats else None


def _table_reasons(facts: TableFacts, order: str | None) -> Iterator[str]:
    """Yield the reasons why the table as a whole needs Spark."""
    metadata = facts.metadata
    properties = metadata.properties
    written = properties.get("write.format.default", "parquet").lower()
    if written != "parquet":
        yield f"the table is written as {written}"
    if properties.get("encryption.key-id"):
        yield "the table is encrypted"
    yield from (f"columns of type {kind}" for kind in _unsupported_types(metadata.schema))
    yield from _property_reasons(properties)
    if metadata.sort_order_id and metadata.sort_order is None:
        yield "the table's sort order has transforms"
    order = order or metadata.sort_order  # by which Spark sorts what it merges too
    if order is not None:
        ordering = Ordering.parse(order)
        if not ordering.whole:
            yield "the sort order has transforms"
        elif not all(ordering_fields(metadata.schema, [column.name]) for column in ordering.columns):
            yield "the sort order has a column that is unknown"
        elif any("." in column.name for column in ordering.columns):
            yield "the sort order has a column inside another"


def _property_reasons(properties: Mapping[str, str]) -> Iterator[str]:
    codec = (properties.get(f"{_PARQUET}compression-codec") or "zstd").lower()
    if codec not in _CODECS:
        yield f"Arrow does not write {codec}"
    if not properties.get(f"{_PARQUET}compression-level", "0").isdigit():
        yield f"{_PARQUET}compression-level is no number"
    others = sorted(name for name in properties if name.startswith(_PARQUET))
    yield from (
        f"{name} is set" for name in others if not name.removeprefix(_PARQUET).startswith(_SUPPORTED_PROPERTIES)
    )


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
