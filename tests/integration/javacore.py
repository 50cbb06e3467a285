"""Commits of Iceberg's Java core through Spark's JVM: in milliseconds, and those that no SQL makes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.java_gateway import JavaPackage
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icewright.app.demo.files import WrittenFile, write_file
from tests.integration.bench import Bench

_DATA, _EQUALITY = 0, 2
_MAGIC, _PUFFIN = b"\xd1\xd3\x39\x64", b"PFA1"
_POSITION = 2_147_483_545  # the field id of `_pos`


def _iceberg(spark: Any) -> Any:
    """Java's package, without a search of all jars for classes named `org`, `org.apache` and so on at each call."""
    jvm = spark._jvm
    return JavaPackage("org.apache.iceberg", jvm._gateway_client, jvm._id)


@dataclass(frozen=True)
class Live:
    """A live data file as Java has it, and whether deletes apply to it."""

    file: Any
    deleted: bool

    @property
    def path(self) -> str:
        """Where it lies, as its writer spelt it."""
        return str(self.file.location())

    @property
    def rows(self) -> int:
        """Its rows, deleted ones too."""
        return int(self.file.recordCount())


@dataclass(frozen=True)
class JavaTable:
    """A table as it was when it was loaded; commits go to what it is then."""

    bench: Bench
    name: str
    spark: Any
    table: Any  # org.apache.iceberg.Table

    @classmethod
    def load(cls, bench: Bench, name: str) -> JavaTable:
        """The table as it is now."""
        spark: Any = bench.lake.spark()
        loaded = _iceberg(spark).spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"lake.{name}")
        return cls(bench, name, spark, loaded)

    @property
    def java(self) -> Any:
        """The package `org.apache.iceberg` of Spark's JVM."""
        return _iceberg(self.spark)

    def live(self, branch: str = "main") -> list[Live]:
        """The data files of a branch."""
        return list(self._live(branch))

    def _live(self, branch: str) -> Iterator[Live]:
        tasks = self.table.newScan().useRef(branch).planFiles().iterator()
        while tasks.hasNext():
            task = tasks.next()
            yield Live(task.file().copy(), not task.deletes().isEmpty())

    def data(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        """A new data file of the current schema and spec, identity-partitioned by its first row."""
        schema = self._schema()
        file = _written(self._path(), columns, schema, _DATA)
        return self._placed(self.java.DataFiles.builder(self.table.spec()), file, columns).build()

    def equality_deletes(self, columns: Mapping[str, Sequence[Any]], keys: Sequence[str]) -> Any:
        """A file that deletes the older rows of the partition whose keys are equal to those of these rows."""
        schema = self._schema()
        chosen = Schema(*(schema.find_field(key) for key in keys))
        file = _written(self._path(), {key: columns[key] for key in keys}, chosen, _EQUALITY)
        ids = self.spark._sc._gateway.new_array(self.spark._jvm.int, len(keys))
        for number, field in enumerate(chosen.fields):
            ids[number] = field.field_id
        builder = self.java.FileMetadata.deleteFileBuilder(self.table.spec()).ofEqualityDeletes(ids)
        return self._placed(builder, file, columns).build()

    def equality_deletes_as(self, file_format: str, key: str, value: int) -> Any:
        """A file in any format, by Iceberg's own writer, that deletes rows of an unpartitioned table by one key."""
        java, path = self.java, self._path(file_format)
        chosen = self.spark._jvm.java.util.ArrayList()
        chosen.add(key)
        schema = self.table.schema().select(chosen)
        ids = self.spark._sc._gateway.new_array(self.spark._jvm.int, 1)
        ids[0] = schema.findField(key).fieldId()
        factory = getattr(java.data, "GenericFileWriterFactory$Builder")(self.table).equalityFieldIds(ids)
        factory.deleteFileFormat(java.FileFormat.fromString(file_format)).equalityDeleteRowSchema(schema)
        place = java.encryption.EncryptedFiles.plainAsEncryptedOutput(self.table.io().newOutputFile(f"file://{path}"))
        writer = factory.build().newEqualityDeleteWriter(place, self.table.spec(), None)
        record = java.data.GenericRecord.create(schema)
        record.setField(key, value)
        writer.write(record)
        writer.close()
        return writer.toDeleteFile()

    def vectors(self, positions: Mapping[Live, Sequence[int]]) -> list[Any]:
        """Deletion vectors of several data files in one Puffin file."""
        path = self._path("puffin")
        blobs = write_puffin(path, {live.path: rows for live, rows in positions.items()})
        made = []
        for (live, rows), (offset, length) in zip(positions.items(), blobs, strict=True):
            spec = self.table.specs()[live.file.specId()]
            builder = self.java.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes()
            builder.withPath(f"file://{path}").withFormat("PUFFIN").withFileSizeInBytes(path.stat().st_size)
            builder.withReferencedDataFile(live.path).withContentOffset(offset).withContentSizeInBytes(length)
            if spec.isPartitioned():
                builder.withPartition(live.file.partition())
            made.append(builder.withRecordCount(len(rows)).build())
        return made

    def row_delta(self, data: Sequence[Any] = (), deletes: Sequence[Any] = (), branch: str = "main") -> None:
        """Commit rows and deletes together."""
        delta = self.table.newRowDelta()
        for file in data:
            delta.addRows(file)
        for file in deletes:
            delta.addDeletes(file)
        delta.validateFromSnapshot(self.table.snapshot(branch).snapshotId())  # what was before may be forgotten
        delta.toBranch(branch).commit()

    def append(self, file: Any, branch: str = "main", *, fast: bool = True) -> None:
        """Commit a data file, in a manifest of its own when `fast`."""
        update = self.table.newFastAppend() if fast else self.table.newAppend()
        update.appendFile(file).toBranch(branch).commit()

    def _schema(self) -> Schema:
        return self.loaded().schema()

    def loaded(self) -> Table:
        """The same table as PyIceberg loads it."""
        return self.bench.lake.catalog.load_table(self.name)

    def _path(self, ending: str = "parquet") -> Path:
        folder = self.bench.lake.folder(self.name) / "data"
        folder.mkdir(exist_ok=True)
        return folder / f"java-{uuid4()}.{ending}"

    def _placed(self, builder: Any, file: WrittenFile, columns: Mapping[str, Sequence[Any]]) -> Any:
        builder.withPath(f"file://{file.path}").withFormat("PARQUET").withFileSizeInBytes(file.size)
        stored = self.table.io().newInputFile(f"file://{file.path}")
        metrics = self.java.parquet.ParquetUtil.fileMetrics(stored, self.java.MetricsConfig.forTable(self.table))
        builder.withMetrics(metrics)
        spec = self.table.spec()
        if spec.isPartitioned():
            names = {field.field_id: field.name for field in self._schema().fields}
            partition = self.java.PartitionData(spec.partitionType())
            for number, field in enumerate(spec.fields().toArray()):
                partition.set(number, columns[names[field.sourceId()]][0])
            builder.withPartition(partition)
        return builder


def vector(positions: Sequence[int]) -> bytes:
    """A blob of type `deletion-vector-v1` (Puffin spec) with positions below 65536, each once."""
    rows = sorted(positions)
    bitmap = struct.pack(f"<IIHHI{len(rows)}H", 12_346, 1, 0, len(rows) - 1, 16, *rows)  # one array container
    body = _MAGIC + struct.pack("<QI", 1, 0) + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def write_puffin(path: Path, positions: Mapping[str, Sequence[int]]) -> list[tuple[int, int]]:
    """A Puffin file with a deletion vector for each data file; offset and length of each."""
    content, places, said = _PUFFIN, [], []
    for data_file, rows in positions.items():
        blob = vector(rows)
        places.append((len(content), len(blob)))
        said.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": data_file, "cardinality": str(len(rows))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": said, "properties": {}}).encode()
    path.write_bytes(content + _PUFFIN + footer + struct.pack("<II", len(footer), 0) + _PUFFIN)
    return places


def _written(path: Path, columns: Mapping[str, Sequence[Any]], schema: Schema, content: int) -> WrittenFile:
    return write_file(path, f"file://{path}", columns, schema, {"content": content})
