"""Reads tables by their metadata files as other engines do; argument: the engine. Takes and prints JSON.

Run by a Python that has the engines (`tests/integration/test_readers.py`), one process for each of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.table import ALWAYS_TRUE, StaticTable

Row = tuple[Any, ...]
_WHERE = "id > 3"


def pyiceberg(metadata: str, snapshot: int | None, *, filtered: bool) -> list[Row]:
    """Read by PyIceberg."""
    scan = StaticTable.from_metadata(metadata).scan(_WHERE if filtered else ALWAYS_TRUE, snapshot_id=snapshot)
    return [(row["id"], row["s"]) for row in scan.to_arrow().to_pylist()]


def polars(metadata: str, snapshot: int | None, *, filtered: bool) -> list[Row]:
    """Read by Polars' own reader, which does not fall back to PyIceberg."""
    import polars as pl

    frame = pl.scan_iceberg(metadata, snapshot_id=snapshot, reader_override="native")
    if filtered:
        frame = frame.filter(pl.col("id") > 3)
    return frame.select("id", "s").collect().rows()


def duckdb(metadata: str, snapshot: int | None, *, filtered: bool) -> list[Row]:
    """Read by DuckDB with its extension of the same day."""
    import duckdb as engine

    connection = engine.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        (file,) = Path(str(spec.origin)).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    at = "" if snapshot is None else f", snapshot_from_id => {snapshot}"
    where = f" WHERE {_WHERE}" if filtered else ""
    return connection.execute(f"SELECT id, s FROM iceberg_scan('{metadata}'{at}){where}").fetchall()  # noqa: S608


def clickhouse(metadata: str, snapshot: int | None, *, filtered: bool) -> list[Row]:
    """Read by ClickHouse in the process (chdb)."""
    import chdb

    table, _, file = metadata.partition("/metadata/")
    place = f"icebergLocal('{urlsplit(table).path}', SETTINGS iceberg_metadata_file_path = 'metadata/{file}')"
    where = f" WHERE {_WHERE}" if filtered else ""
    at = "" if snapshot is None else f" SETTINGS iceberg_snapshot_id = {snapshot}"
    os.chdir("/")  # it reads no file that lies outside the folder in which it runs
    answer = chdb.query(f"SELECT id, s FROM {place}{where}{at}", "JSONCompactEachRow")  # noqa: S608
    return [tuple(json.loads(line)) for line in str(answer).splitlines()]


def datafusion(metadata: str, snapshot: int | None, *, filtered: bool) -> list[Row]:
    """Read by DataFusion with iceberg-rust."""
    import datafusion as engine
    from pyiceberg_core.datafusion import IcebergDataFusionTable

    assert snapshot is None, "no old snapshots"
    context = engine.SessionContext()
    context.register_table("t", IcebergDataFusionTable(["db", "t"], metadata, {}))
    where = f" WHERE {_WHERE}" if filtered else ""
    return [(row["id"], row["s"]) for row in context.sql(f"SELECT id, s FROM t{where}").to_pylist()]  # noqa: S608


def daft(metadata: str, snapshot: int | None, *, filtered: bool) -> list[Row]:
    """Read by Daft."""
    import daft as engine

    frame = engine.read_iceberg(StaticTable.from_metadata(metadata), snapshot_id=snapshot)
    if filtered:
        frame = frame.where(engine.col("id") > 3)
    return [(row["id"], row["s"]) for row in frame.select("id", "s").to_pylist()]


ENGINES: Mapping[str, tuple[Callable[..., list[Row]], str]] = {  # and the distribution whose version is told
    "PyIceberg": (pyiceberg, "pyiceberg"),
    "Polars, its own reader": (polars, "polars"),
    "DuckDB": (duckdb, "duckdb"),
    "ClickHouse (chdb)": (clickhouse, "chdb-core"),
    "DataFusion": (datafusion, "datafusion"),
    "Daft": (daft, "daft"),
}


def main() -> None:
    """Answer each question by its rows, or by the error."""
    read, distribution = ENGINES[sys.argv[1]]
    answers: list[Any] = []
    for question in json.load(sys.stdin):
        try:
            answers.append(sorted(read(**question)))
        except Exception as error:  # noqa: BLE001 - what an engine cannot read is the answer
            answers.append(f"{type(error).__name__}: {error}"[:200])
    sys.stdout.write(json.dumps({"version": version(distribution), "answers": answers}))


if __name__ == "__main__":
    main()
