"""The rows of seeded tables: their columns, and Parquet files of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 100  # of a data file that is a link to a template
COLUMNS = (
    ("id", "long"),
    ("ts", "timestamptz"),
    ("part", "int"),
    ("user", "string"),
    ("event", "string"),
    ("url", "string"),
    ("a", "double"),
    ("b", "double"),
    ("n", "long"),
    ("m", "long"),
)
IDS = range(1, len(COLUMNS) + 1)
_KINDS = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_SCHEMA = pa.schema(
    [
        pa.field(name, _KINDS[kind], metadata={"PARQUET:field_id": str(i)})
        for i, (name, kind) in zip(IDS, COLUMNS, strict=True)
    ]
)
_EVENTS = pa.array(["buy", "search", "view"])
_FIRST_MICROS = 1_700_000_000_000_000


def write_template(path: Path, age_seconds: float) -> int:
    """A small file of nothing but nulls that looks old; its length."""
    table = pa.Table.from_arrays([pa.nulls(ROWS, f.type) for f in _SCHEMA], schema=_SCHEMA)
    pq.write_table(table, path, compression="zstd")
    os.utime(path, (time.time() - age_seconds, time.time() - age_seconds))
    return path.stat().st_size


def write_rows(path: Path, count: int, part: int | None, seed: int) -> int:
    """A file of rows such as an application writes, about 65 bytes of it each; its length."""

    def numbers(column: int, below: int) -> pa.Array:
        return pc.cast(pc.floor(pc.multiply(pc.random(count, initializer=seed + column), below)), pa.int64())

    def texts(before: str, column: int, below: int) -> pa.Array:
        return pc.binary_join_element_wise(before, pc.cast(numbers(column, below), pa.string()), "")

    columns = [
        pa.array(range(seed * count, seed * count + count), pa.int64()),
        pc.cast(pc.add(numbers(2, 3_600_000_000), _FIRST_MICROS), _KINDS["timestamptz"]),
        pa.array([part] * count, pa.int32()),
        texts("user-", 4, 100_000),
        _EVENTS.take(numbers(5, len(_EVENTS))),
        texts("https://example.org/", 6, 10_000_000),
        pc.random(count, initializer=seed + 7),
        pc.random(count, initializer=seed + 8),
        numbers(9, 1000),
        numbers(10, 1_000_000_000),
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), path, compression="zstd")
    return path.stat().st_size
