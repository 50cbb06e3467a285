"""What an engine needs at least to read Parquet files and write one, without Iceberg: `-m benchmarks.kit.limits`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import polars as pl
import pyarrow.parquet as pq

from benchmarks.kit.child import Answer, measured, serve

_BATCH_ROWS = 1 << 17


def _duckdb(files: Sequence[str], out: str) -> None:
    with duckdb.connect(config={"threads": 2, "preserve_insertion_order": False}) as connection:
        options = "format parquet, codec zstd, compression_level 3"
        connection.execute(f"copy (select * from read_parquet({files})) to '{out}' ({options})")  # noqa: S608


def _polars(files: Sequence[str], out: str) -> None:
    pl.scan_parquet(list(files)).sink_parquet(out, compression="zstd", compression_level=3)


def _pyarrow(files: Sequence[str], out: str) -> None:
    schema = pq.read_schema(files[0])
    with pq.ParquetWriter(out, schema, compression="zstd", compression_level=3) as writer:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS, use_threads=False):
                writer.write_batch(batch)


ENGINES: dict[str, Callable[[Sequence[str], str], None]] = {"duckdb": _duckdb, "polars": _polars, "pyarrow": _pyarrow}


def _run(engine: str, files: Sequence[str], out: str) -> Answer:
    with measured() as found:
        ENGINES[engine](files, out)
    return found.answer(files=[out])


if __name__ == "__main__":
    serve({"run": _run})
