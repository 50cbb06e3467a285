"""Commits as a CDC sink makes them: rows, deletes by position and deletes by key, through Iceberg's Java API."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.kit.rows import write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATH = pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"})
_POSITION = pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"})
_KEY = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})


@dataclass(frozen=True)
class Upserts:
    """Commits of data files and deletes, for a table whose rows are those of `write_rows`."""

    folder: Path  # of the table
    number: int  # of files of keys
    rows: int  # that come with each
    keys: int  # of each: they are deleted among the rows before
    every: int = 20  # of its own rows each commit deletes one; 0: none
    first: int = 0  # the number of the first file
    together: int = 1  # files of keys of a commit, beside one data file

    def commit(self, session: SparkSession, table: str) -> None:
        """Make the commits."""
        java, opened = _opened(session, table)
        files, deletes = java.org.apache.iceberg.DataFiles, java.org.apache.iceberg.FileMetadata
        ids = session.sparkContext._gateway.new_array(java.int, 1)  # type: ignore[union-attr]  # noqa: SLF001
        ids[0] = 1
        for number in range(self.first, self.first + self.number):
            data, places, keys = (
                self.folder / "data" / f"{kind}-{number:05d}.parquet" for kind in ("data", "pos", "eq")
            )
            if not number % self.together:
                delta, rows = opened.newRowDelta(), self.rows * self.together
                write_rows(data, rows, None, number // self.together)
                delta.addRows(_described(files.builder(opened.spec()), data, rows))
            if self.every:
                positions = range(number % self.every, self.rows, self.every)
                columns = [pa.array([f"file:{data}"] * len(positions)), pa.array(positions, pa.int64())]
                _write(places, columns, [_PATH, _POSITION])
                builder = deletes.deleteFileBuilder(opened.spec()).ofPositionDeletes()
                delta.addDeletes(_described(builder, places, len(positions)))
            gone = self.deleted(number)
            _write(keys, [pa.array(gone, pa.int64())], [_KEY])
            builder = deletes.deleteFileBuilder(opened.spec()).ofEqualityDeletes(ids)
            delta.addDeletes(_described(builder, keys, len(gone)))
            if not (number + 1) % self.together:
                delta.commit()

    def deleted(self, number: int) -> list[int]:
        """The keys that the commit of a data file deletes among the rows of earlier commits."""
        before = number // self.together * self.together * self.rows
        return sorted(random.Random(number).sample(range(max(before, self.rows)), self.keys))


def append(session: SparkSession, table: str, paths: Sequence[str]) -> None:
    """Add data files to an unpartitioned table, in one commit."""
    java, opened = _opened(session, table)
    files, commit = java.org.apache.iceberg.DataFiles, opened.newAppend()
    for path in map(Path, paths):
        commit.appendFile(_described(files.builder(opened.spec()), path, pq.read_metadata(path).num_rows))
    commit.commit()


def _opened(session: SparkSession, table: str) -> tuple[Any, Any]:
    """The JVM, and the table in it."""
    java: Any = session._jvm  # noqa: SLF001 - PySpark has no other way to Iceberg
    return java, java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, table)  # noqa: SLF001


def _write(path: Path, columns: list[pa.Array], fields: list[pa.Field]) -> None:
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), path, compression="zstd")


def _described(builder: Any, path: Path, rows: int) -> Any:  # noqa: ANN401 - Java
    builder.withPath(f"file:{path}").withFormat("PARQUET").withFileSizeInBytes(path.stat().st_size)
    return builder.withRecordCount(rows).build()
