"""The demo's data and delete files on disk, their descriptions in Avro files, and commits that look days old."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import ManifestEntryStatus, data_file_with_partition, manifest_entry_schema_with_data_file
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, ListType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from icewright.app.demo.lake import Lake

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data or delete file on disk, and its record in a manifest."""

    path: Path
    record: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """Return the number of rows in the file."""
        return int(self.record["record_count"])

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return int(self.record["file_size_in_bytes"])


def local(location: str) -> Path:
    """Return the path of a file that PyIceberg calls `file:///x` and Spark `file:/x`."""
    return Path(re.sub(r"^file:/+", "/", location))


def millis(at: datetime) -> int:
    """Return a time in milliseconds, as Iceberg's metadata has it."""
    return round(at.timestamp() * 1000)


def set_modified(path: Path, at_ms: int) -> None:
    """Make a file look last written at a time in milliseconds."""
    os.utime(path, (at_ms / 1000, at_ms / 1000))


def write_file(
    path: Path, uri: str, columns: Mapping[str, Sequence[Any]], schema: Schema, extra: Mapping[str, Any]
) -> WrittenFile:
    """Write a Parquet file with field ids, which metadata calls `uri`.

    Its record has the true statistics, and `extra` besides.
    """
    footers: list[Any] = []
    table = pa.Table.from_pydict(columns, schema=schema_to_pyarrow(schema))
    pq.write_table(table, path, compression="zstd", metadata_collector=footers)
    statistics = data_file_statistics_from_parquet_metadata(
        footers[0], compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    ).to_serialized_dict()
    record = {
        name: [{"key": column, "value": value} for column, value in values.items()]
        if isinstance(values, dict)
        else values
        for name, values in statistics.items()
    }
    record |= {"file_path": uri, "file_format": "PARQUET", "file_size_in_bytes": path.stat().st_size}
    return WrittenFile(path, record | dict(extra))


def entry_schema(partition_type: StructType) -> Any:  # noqa: ANN401 - fastavro's
    """Return the Avro schema of manifest entries with `equality_ids` as ints; Java cannot read PyIceberg's longs."""
    equality_ids = ListType(element_id=136, element_type=IntegerType(), element_required=True)
    fields = [
        NestedField(field.field_id, field.name, equality_ids) if field.name == "equality_ids" else field
        for field in data_file_with_partition(partition_type, 2).fields
    ]
    return avro_schema(manifest_entry_schema_with_data_file(2, StructType(*fields)), "manifest_entry")


def avro_schema(schema: Schema, name: str) -> Any:  # noqa: ANN401 - fastavro's
    """Return an Avro schema that carries Iceberg's field ids, as fastavro takes it."""
    return fastavro.parse_schema(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))


def backdate(lake: Lake, name: str, times: Sequence[datetime]) -> None:
    """Give the last snapshots of a table these commit times, and the files that they added the same age.

    Earlier snapshots keep their times. The metadata files of the log are corrected in place, so that the history
    tells one story; the result is a new metadata file, to which the catalog is pointed.
    """
    table = lake.catalog.load_table(lake.identifier(name))
    order = [s.snapshot_id for s in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)]
    fresh = dict(zip(order[-len(times) :], map(millis, times), strict=True))
    when = {s.snapshot_id: s.timestamp_ms for s in table.metadata.snapshots} | fresh
    _age_files(table, fresh)
    logged: dict[str, int] = {}
    for location in [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]:
        document = json.loads(local(location).read_text(encoding="utf-8"))
        logged[location] = _redate(document, when, logged, millis(times[0]) - _MINUTE_MS)
        _save(local(location), document, logged[location])
    document["metadata-log"] = [{"metadata-file": path, "timestamp-ms": at} for path, at in logged.items()]
    path = _next(local(table.metadata_location), lake.random(f"{name} backdated").getrandbits(128))
    _save(path, document, logged[table.metadata_location])
    lake.point(name, f"file://{path}")  # a commit could not set these fields


def _redate(document: dict[str, Any], when: Mapping[int, int], logged: Mapping[str, int], before: int) -> int:
    """Replace the times in a metadata file, and the file's own time."""
    for snapshot in document.get("snapshots", []):
        snapshot["timestamp-ms"] = when[snapshot["snapshot-id"]]
    for entry in document.get("snapshot-log", []):
        entry["timestamp-ms"] = when[entry["snapshot-id"]]
    for entry in document.get("metadata-log", []):
        entry["timestamp-ms"] = logged[entry["metadata-file"]]
    current = document.get("current-snapshot-id")
    written = before if current is None else when.get(current, before)  # Java writes -1 when there is none
    document["last-updated-ms"] = written
    return written


def _save(path: Path, document: Mapping[str, Any], at: int) -> None:
    path.unlink(missing_ok=True)  # a server's notes about the old content are the old file's
    path.write_text(json.dumps(document), encoding="utf-8")
    set_modified(path, at)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop would call the file corrupt


def _next(path: Path, bits: int) -> Path:
    number = int(path.name.partition("-")[0]) + 1
    return path.with_name(f"{number:05d}-{uuid.UUID(int=bits, version=4)}.metadata.json")


def _age_files(table: Table, fresh: Mapping[int, int]) -> None:
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id not in fresh:
            continue
        set_modified(local(snapshot.manifest_list), fresh[snapshot.snapshot_id])
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            set_modified(local(manifest.manifest_path), fresh[snapshot.snapshot_id])
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status == ManifestEntryStatus.ADDED:
                    set_modified(local(entry.data_file.file_path), fresh[snapshot.snapshot_id])
