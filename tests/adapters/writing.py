"""Manifests as their writers leave them: by PyIceberg, and straight by fastavro for what PyIceberg cannot write."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import fastavro
from pyiceberg import types as t
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    write_manifest,
)
from pyiceberg.manifest import ManifestFile as Listed
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record, TableVersion

from icewright.app.demo.files import avro_schema
from icewright.core import table as core
from icewright.core.table import ManifestContent, ManifestFile

IO = PyArrowFileIO()
#: Every type that may partition a table, with values as Iceberg holds them in memory.
TYPES: dict[str, tuple[t.PrimitiveType, tuple[Any, Any, Any]]] = {
    "int": (t.IntegerType(), (-5, 0, 2**31 - 1)),
    "long": (t.LongType(), (-(2**63), 3, 2**63 - 1)),
    "string": (t.StringType(), ("", "a/b=c %20+é表", 'quo"te\\')),
    "date": (t.DateType(), (-1, 20_000, 0)),
    "timestamp": (t.TimestampType(), (-1, 1_790_000_000_123_456, 0)),
    "timestamptz": (t.TimestamptzType(), (-1, 1_790_000_000_123_456, 0)),
    "time": (t.TimeType(), (0, 86_399_999_999, 1)),
    "decimal": (t.DecimalType(9, 2), (Decimal("-1.28"), Decimal("12345.67"), Decimal("0.00"))),
    "wide decimal": (t.DecimalType(38, 10), (Decimal(-(2**70)).scaleb(-10), Decimal("1e-10"), Decimal("0E-10"))),
    "uuid": (t.UUIDType(), (UUID(int=0), UUID(int=2**128 - 1), UUID("12345678-90ab-cdef-1234-567890abcdef"))),
    "fixed": (t.FixedType(3), (b"\x00\x00\x00", b"\xff\xfe\xfd", b"abc")),
    "binary": (t.BinaryType(), (b"", b"\xff\x00", b"abc")),
    "bool": (t.BooleanType(), (True, False, True)),
    "float": (t.FloatType(), (-1.5, 0.25, float("inf"))),
    "double": (t.DoubleType(), (-1.25, float("-inf"), 2.0**60)),
}


@dataclass(frozen=True)
class Partitioned:
    """A table's schema with one partition field of each of the given types, and where its manifests go."""

    folder: Path
    kinds: tuple[t.PrimitiveType, ...]
    spec_id: int = 0

    @property
    def schema(self) -> Schema:
        """One column for each partition field."""
        return Schema(*(t.NestedField(i, f"c{i}", kind) for i, kind in enumerate(self.kinds, 1)))

    @property
    def spec(self) -> PartitionSpec:
        """The columns themselves are the partition."""
        fields = [PartitionField(i, 999 + i, IdentityTransform(), f"p{i}") for i in range(1, len(self.kinds) + 1)]
        return PartitionSpec(*fields, spec_id=self.spec_id)

    def pyiceberg(
        self, version: TableVersion, entries: Sequence[ManifestEntry], *, snapshot_id: int = 7, sequence: int = 0
    ) -> Listed:
        """A manifest as PyIceberg writes it, and its row in a manifest list."""
        output = IO.new_output(f"file://{self.folder}/{uuid4()}-m0.avro")
        with write_manifest(version, self.spec, self.schema, output, snapshot_id, "deflate") as writer:
            for one in entries:
                writer.add_entry(one)
        row = writer.to_manifest_file()
        row.sequence_number, row.min_sequence_number = sequence, min(row.min_sequence_number, sequence)
        return row

    def crafted(
        self, version: TableVersion, entries: Sequence[Mapping[str, Any]], *, snapshot_id: int = 7, sequence: int = 0
    ) -> Listed:
        """A manifest as fastavro writes it, and its row in a manifest list."""
        return by_fastavro(self.folder, self.spec, self.schema, version, entries, (snapshot_id, sequence))


def entry(
    path: str,
    partition: Sequence[Any] = (),
    status: ManifestEntryStatus = ManifestEntryStatus.ADDED,
    sequence: int | None = None,
    snapshot_id: int | None = None,
    **fields: Any,
) -> ManifestEntry:
    """An entry as PyIceberg has it, every field of its data file filled."""
    values: dict[str, Any] = {
        "content": DataFileContent.DATA,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": Record(*partition),
        "record_count": 10,
        "file_size_in_bytes": 1000,
        "column_sizes": {1: 40, 2: 50},
        "value_counts": {1: 10},
        "null_value_counts": {1: 1},
        "nan_value_counts": {1: 0},
        "lower_bounds": {1: b"\x00\xff"},
        "upper_bounds": {1: b"\xff\x00"},
        "key_metadata": b"key",
        "split_offsets": [4, 500],
        "equality_ids": None,
        "sort_order_id": 1,
    } | fields
    data = DataFile.from_args(**values)
    return ManifestEntry.from_args(
        status=status, snapshot_id=snapshot_id, sequence_number=sequence, file_sequence_number=sequence, data_file=data
    )


def record(
    path: str, partition: Sequence[Any] = (), status: int = 1, sequence: int | None = None, **fields: Any
) -> dict[str, Any]:
    """An entry as fastavro takes it, every field of its data file filled; those of other versions are passed over."""
    return {
        "status": status,
        "snapshot_id": fields.pop("snapshot_id", None),
        "sequence_number": sequence,
        "file_sequence_number": sequence,
        "data_file": {
            "content": 0,
            "file_path": path,
            "file_format": "PARQUET",
            "partition": {f"p{i}": _raw(value) for i, value in enumerate(partition, 1)},
            "record_count": 10,
            "file_size_in_bytes": 1000,
            "block_size_in_bytes": 67_108_864,
            "column_sizes": _map({1: 40, 2: 50}),
            "value_counts": _map({1: 10}),
            "null_value_counts": _map({1: 1}),
            "nan_value_counts": _map({1: 0}),
            "lower_bounds": _map({1: b"\x00\xff"}),
            "upper_bounds": _map({1: b"\xff\x00"}),
            "key_metadata": b"key",
            "split_offsets": [4, 500],
            "equality_ids": None,
            "sort_order_id": 1,
            "first_row_id": None,
            "referenced_data_file": None,
            "content_offset": None,
            "content_size_in_bytes": None,
            **fields,
        },
    }


def _raw(value: Any) -> Any:
    """Fastavro writes a uuid of 16 bytes as bytes only."""
    return value.bytes if isinstance(value, UUID) else value


def _map(values: Mapping[int, Any]) -> list[dict[str, Any]]:
    return [{"key": k, "value": v} for k, v in values.items()]


def path_bounds(lower: str, upper: str) -> dict[str, Any]:
    """Bounds of a position delete file's column `file_path`."""
    column = 2_147_483_546
    return {"lower_bounds": _map({column: lower.encode()}), "upper_bounds": _map({column: upper.encode()})}


def entries_schema(version: TableVersion, spec: PartitionSpec, schema: Schema) -> Any:
    """The Avro schema of manifest entries as fastavro takes it; numbers have no defaults, as in Java's files."""
    data = data_file_with_partition(spec.partition_type(schema), version)
    made = avro_schema(manifest_entry_schema_with_data_file(version, data), "manifest_entry")
    for field in next(f["type"]["fields"] for f in made["fields"] if f["name"] == "data_file"):
        if field.get("default") is not None:
            del field["default"]
    return made


def by_fastavro(
    folder: Path,
    spec: PartitionSpec,
    schema: Schema,
    version: TableVersion,
    entries: Sequence[Mapping[str, Any]],
    listed: tuple[int, int],
    avro: Any = None,
) -> Listed:
    """A manifest of many entries a block, as Java writes it; position and equality deletes may stand together."""
    deletes = any(e["data_file"].get("content") for e in entries)
    header = {
        "schema": schema.model_dump_json(),
        "partition-spec": "[]",
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(version),
        "content": "deletes" if deletes else "data",
    }
    out = io.BytesIO()
    fastavro.writer(out, avro or entries_schema(version, spec, schema), entries, codec="deflate", metadata=header)
    path = folder / f"{uuid4()}-m0.avro"
    path.write_bytes(out.getvalue())
    counts = [sum(e["status"] == status for e in entries) for status in (1, 0, 2)]
    return Listed.from_args(
        manifest_path=f"file://{path}",
        manifest_length=path.stat().st_size,
        partition_spec_id=spec.spec_id,
        content=int(deletes),
        sequence_number=listed[1],
        min_sequence_number=listed[1],
        added_snapshot_id=listed[0],
        added_files_count=counts[0],
        existing_files_count=counts[1],
        deleted_files_count=counts[2],
        added_rows_count=0,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[],
        key_metadata=None,
    )


def ours(row: Listed) -> ManifestFile:
    """The row as this program has it."""
    return ManifestFile(
        path=row.manifest_path,
        length=row.manifest_length,
        spec_id=row.partition_spec_id,
        content=ManifestContent(row.content),
        sequence_number=row.sequence_number,
        min_sequence_number=row.min_sequence_number,
        added_snapshot_id=row.added_snapshot_id or 0,
        added_files=row.added_files_count or 0,
        existing_files=row.existing_files_count or 0,
        deleted_files=row.deleted_files_count or 0,
    )


def plain(value: Any) -> Any:
    """A partition value as Iceberg holds it in memory: days and microseconds as numbers, a uuid as its bytes."""
    match value:
        case dt.datetime():
            zone = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            return (zone - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - dt.date(1970, 1, 1)).days
        case dt.time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case UUID():
            return value.bytes
        case float() if value != value:  # noqa: PLR0124 - NaN is not itself
            return "NaN"
    return value


def metadata(
    specs: Sequence[core.PartitionSpec], snapshots: Sequence[core.Snapshot] = (), version: int = 2, **fields: Any
) -> core.TableMetadata:
    """Metadata of a table that has these specs and snapshots, and nothing else of note."""
    said: dict[str, Any] = {
        "ref": core.TableRef("lake", ("sales",), "orders"),
        "metadata_location": "file:///w/orders/metadata/00001-x.metadata.json",
        "metadata_length": 1,
        "table_uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:///w/orders",
        "format_version": version,
        "last_updated": dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
        "last_sequence_number": 9,
        "current_snapshot_id": snapshots[-1].snapshot_id if snapshots else None,
        "snapshots": tuple(snapshots),
        "refs": (),
        "metadata_log": (),
        "statistics": (),
        "partition_statistics": (),
        "properties": {},
        "specs": tuple(specs),
        "default_spec_id": specs[-1].spec_id,
        "schema": {"type": "struct", "fields": []},
        "sort_order": None,
    }
    return core.TableMetadata(**(said | fields))
