"""Partition statistics (spec, Partition Statistics): files, rows and deletes of each partition, from the manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.types import FIELD_ID, arrow_type, storage_array, stored_name
from icewright.adapters.engines.service.manifest_files import DATA, DELETED, EQUALITY_DELETES, POSITION_DELETES
from icewright.core.partitions import EPOCH, DistantTime, partition_key, partition_text, partition_values
from icewright.core.schemas import columns
from icewright.core.table import FORMAT_V3, PartitionField, TableMetadata

_KEY = ("spec_id", "partition")
_MOMENT = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps without a zone
_EPOCH = _MOMENT.replace(tzinfo=UTC)
_LONG, _INT = pa.int64(), pa.int32()
# name, type and whether it is required before v3; the ids are 2 and on
_COUNTS = (
    ("spec_id", _INT, True),
    ("data_record_count", _LONG, True),
    ("data_file_count", _INT, True),
    ("total_data_file_size_in_bytes", _LONG, True),
    ("position_delete_record_count", _LONG, False),
    ("position_delete_file_count", _INT, False),
    ("equality_delete_record_count", _LONG, False),
    ("equality_delete_file_count", _INT, False),
    ("total_record_count", _LONG, False),
    ("last_updated_at", _LONG, False),
    ("last_updated_snapshot_id", _LONG, False),
    ("dv_count", _INT, True),
)
_OPTIONAL = ("total_record_count", "last_updated_at", "last_updated_snapshot_id")  # from v3 on


def partition_statistics(metadata: TableMetadata, entries: pa.Table) -> pa.Table | None:
    """Return the rows of the statistics file, sorted by partition as Iceberg's own are; None without any.

    A partition has the values of all specs' fields, null where its spec lacks them.
    """
    fields = _unified(metadata)
    counted = _counted(metadata, entries)
    if not fields or counted.is_empty():
        return None
    stored: dict[int, list[Any]] = {field.field_id: [] for field, _ in fields}
    for spec_id, text in counted.select(_KEY).iter_rows():
        spec = metadata.spec(spec_id)
        values = {f.field_id: v for f, v in zip(spec.fields, partition_values(text), strict=True)}
        for field, _ in fields:
            stored[field.field_id].append(values.get(field.field_id))
    partition = _partitions(fields, stored)
    numbers = counted.to_arrow()
    counts = [counter for counter in _COUNTS if metadata.format_version >= FORMAT_V3 or counter[0] != "dv_count"]
    required = {n: (metadata.format_version >= FORMAT_V3 and n not in _OPTIONAL) or early for n, _, early in _COUNTS}
    schema = pa.schema(
        [
            pa.field("partition", partition.type, False, {FIELD_ID: b"1"}),
            *(
                pa.field(name, kind, not required[name], {FIELD_ID: str(number).encode()})
                for number, (name, kind, _) in enumerate(counts, 2)
            ),
        ]
    )
    table = pa.table([partition, *(numbers[name].cast(kind) for name, kind, _ in counts)], schema=schema)
    keys = pl.DataFrame([pl.Series(str(i), storage_array(child)) for i, child in enumerate(partition.flatten())])
    keys = keys.with_columns(counted["spec_id"])
    order = keys.select(pl.arg_sort_by(*keys.columns, nulls_last=False)).to_series()
    return table.take(order.to_arrow())


def parquet(table: pa.Table) -> bytes:
    """Return the rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_decimal_as_integer=True)
    return bytes(sink.getvalue())


def _counted(metadata: TableMetadata, entries: pa.Table) -> pl.DataFrame:
    """Return the counts of each partition of a spec; a deleted entry only says when the partition changed last."""
    times = pl.LazyFrame(
        [(s.snapshot_id, (s.timestamp - _EPOCH) // timedelta(milliseconds=1)) for s in metadata.snapshots],
        schema={"snapshot_id": pl.Int64, "at": pl.Int64},
        orient="row",
    )
    live, content = pl.col("status") != DELETED, pl.col("content")
    data, positions, equality = (live & (content == kind) for kind in (DATA, POSITION_DELETES, EQUALITY_DELETES))
    vector = positions & (pl.col("format") == "PUFFIN")
    newest = pl.col("snapshot_id").filter(pl.col("at").is_not_null()).sort_by(pl.col("at").drop_nulls())
    stored = pl.DataFrame(pl.from_arrow(entries))
    keys = stored.select(_KEY).unique()
    texts = [partition_text(partition_key(metadata.spec(spec_id), text)[1]) for spec_id, text in keys.rows()]
    one_form = keys.with_columns(pl.Series("key", texts, pl.String)).lazy()  # some writers store days as numbers
    return (
        stored.lazy()
        .join(one_form, on=_KEY)
        .drop("partition")
        .rename({"key": "partition"})
        .join(times, on="snapshot_id", how="left")
        .group_by(_KEY, maintain_order=True)
        .agg(
            data_record_count=pl.col("records").filter(data).sum(),
            data_file_count=data.sum(),
            total_data_file_size_in_bytes=pl.col("bytes").filter(data).sum(),
            position_delete_record_count=pl.col("records").filter(positions).sum(),
            position_delete_file_count=(positions & ~vector).sum(),
            equality_delete_record_count=pl.col("records").filter(equality).sum(),
            equality_delete_file_count=equality.sum(),
            total_record_count=pl.lit(None, pl.Int64),
            last_updated_at=pl.col("at").max(),
            last_updated_snapshot_id=newest.last(),
            dv_count=vector.sum(),
        )
        .collect()
    )


def _unified(metadata: TableMetadata) -> list[tuple[PartitionField, str]]:
    """Return the fields of all specs whose columns are there still, by id, each with its type and its latest name."""
    kinds = {number: kind for number, _, kind in columns(metadata.schema)}
    latest: dict[int, PartitionField] = {}
    for spec in sorted(metadata.specs, key=lambda spec: -spec.spec_id):
        for field in spec.fields:
            if field.source_id not in kinds:
                continue
            known = latest.get(field.field_id)
            if known is None:
                latest[field.field_id] = field
            elif known.transform == "void":  # which v1 puts in the place of a dropped field
                latest[field.field_id] = PartitionField(field.source_id, field.field_id, known.name, field.transform)
    return [(latest[number], _kind(latest[number], str(kinds[latest[number].source_id]))) for number in sorted(latest)]


def _kind(field: PartitionField, source: str) -> str:
    """Return the type of a partition field's values (spec, Partition Transforms)."""
    if field.transform == "day":
        return "date"
    return "int" if field.transform.startswith(("bucket", "year", "month", "hour")) else source


def _partitions(fields: Sequence[tuple[PartitionField, str]], stored: Mapping[int, Sequence[Any]]) -> pa.StructArray:
    children = [_array(kind, stored[field.field_id]) for field, kind in fields]
    described = [
        pa.field(stored_name(field.name), child.type, nullable=True, metadata={FIELD_ID: str(field.field_id).encode()})
        for (field, _), child in zip(fields, children, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=described)


def _array(kind: str, values: Sequence[Any]) -> pa.Array:
    """Return stored partition values as an array of an Iceberg type."""
    target = arrow_type(kind)
    if kind == "date" or kind.startswith("timestamp"):
        width = pa.int32() if kind == "date" else pa.int64()
        return pa.array([None if v is None else _ticks(v) for v in values], width).cast(target)
    if kind == "uuid":
        return pa.ExtensionArray.from_storage(target, pa.array(values, pa.binary(16)))
    if pa.types.is_decimal(target):
        return pa.array([_decimal(v, target.scale) for v in values], target)
    return pa.array(values, target)


def _ticks(value: Any) -> int:  # noqa: ANN401 - a date or moment, or its number
    match value:
        case DistantTime(number, _):
            return number
        case datetime():
            return (value.replace(tzinfo=None) - _MOMENT) // timedelta(microseconds=1)
        case date():
            return (value - EPOCH).days
    return int(value)


def _decimal(value: Any, scale: int) -> Decimal | None:  # noqa: ANN401 - a number, or its unscaled bytes
    if isinstance(value, bytes):
        unscaled = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
        return Decimal((unscaled.sign, unscaled.digits, -scale))
    return None if value is None else Decimal(value)
