"""Data and delete files on disk, and how Avro files of Iceberg describe them."""

from __future__ import annotations

import os
import re
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
from pyiceberg.manifest import data_file_with_partition, manifest_entry_schema_with_data_file
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion


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


def age(path: Path, at: datetime) -> None:
    """Make a file look last written at `at`."""
    os.utime(path, (at.timestamp(), at.timestamp()))


def write_file(
    path: Path, uri: str, columns: Mapping[str, Sequence[Any]], schema: Schema, extra: Mapping[str, Any]
) -> WrittenFile:
    """Write a Parquet file with field ids, which metadata calls `uri`.

    Its record has the true statistics, and what `about` says besides.
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
