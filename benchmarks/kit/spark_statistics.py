"""Statistics in-service against Spark's procedures `compute_table_stats` and `compute_partition_stats`.

Prints one JSON line: all rows of a table; then after an append, when ours goes on from the sketches that there are;
then random histories, after each of which both must say the same. `ndv_error` is the largest relative error of a
column; up to 4096 distinct values both must be exact, and the rows of partition statistics equal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq

from benchmarks.kit.bench import Bench, bench, options
from benchmarks.kit.lake import CATALOG, NAMESPACE, Saved, local
from benchmarks.kit.report import Comparison, Run, in_turn

EXACT = 4096  # distinct values up to which no sketch may err
DISTINCT = {"user": 100_000, "country": 200, "price": 50_000, "day": 365, "part": 16}
KNOBS = {"compute_statistics.min_change": "0", "impact.planning": "false"}
_SELECT = (
    "SELECT id, concat('user-', id * 7919 % {user}) AS user, concat('c', id % {country}) AS country, "
    "cast(id % {price} AS double) / 7 AS price, date_add(date '2026-01-01', cast(id % {day} AS int)) AS day, "
    "cast(id % {part} AS int) AS part FROM range({start}, {end})"
)


def name_of(table: str) -> str:
    """The table as Spark names it."""
    return f"{CATALOG}.{NAMESPACE}.{table}"


def rows(start: int, end: int) -> str:
    """A query of these rows."""
    return _SELECT.format(start=start, end=end, **DISTINCT)


def created(sides: Bench, table: str, count: int) -> None:
    """A partitioned table of so many rows, in two commits."""
    made = f"CREATE TABLE {name_of(table)} USING iceberg PARTITIONED BY (part) AS {rows(0, 1)}"
    sides.spark.ask("sql", statement=made)
    for number in range(2):
        start, end = (max(1, count * n // 2) for n in (number, number + 1))
        sides.spark.ask("sql", statement=f"INSERT INTO {name_of(table)} {rows(start, end)}")


def statistics(saved: Saved) -> tuple[Mapping[str, int], Sequence[Any]]:
    """The distinct values by column and the rows of partitions that the current snapshot's statistics say."""
    found = saved.lake.metadata(saved.table)
    current = found["current-snapshot-id"]
    schema = next(s for s in found["schemas"] if s["schema-id"] == found["current-schema-id"])
    names = {field["id"]: field["name"] for field in schema["fields"]}
    columns, partitions = (
        next(file for file in found[kind] if file["snapshot-id"] == current)
        for kind in ("statistics", "partition-statistics")
    )
    numbers = {names[blob["fields"][0]]: int(blob["properties"]["ndv"]) for blob in columns["blob-metadata"]}
    counted = pq.ParquetFile(local(partitions["statistics-path"])).read().to_pylist()
    return numbers, sorted(map(str, counted))


def ours(sides: Bench, table: str) -> Run:
    """Compute them in-service."""
    return sides.ours.ask("run", table=table, operation="compute_statistics", knobs=KNOBS)


def theirs(sides: Bench, table: str) -> Run:
    """Compute them on Spark."""
    calls = [
        f"CALL {CATALOG}.system.{procedure}(table => '{NAMESPACE}.{table}')"
        for procedure in ("compute_table_stats", "compute_partition_stats")
    ]
    return sides.spark.ask("each", statements=[f"REFRESH TABLE {name_of(table)}", *calls])


def compare(sides: Bench, saved: Saved, count: int, shape: str) -> Comparison:
    """Both in turn on the same table."""
    true = {"id": count, **DISTINCT}
    errors: list[float] = []

    def left(_: Run) -> Hashable:
        numbers, partitions = statistics(saved)
        errors.append(max(abs(numbers[name] - of) / of for name, of in true.items()))
        exact = {name: numbers[name] for name, of in true.items() if of <= EXACT}
        saved.restore()
        return json.dumps([exact, partitions])

    turns = in_turn(lambda: ours(sides, saved.table), lambda: theirs(sides, saved.table), left, discard=sides.discard)
    more = {"ndv_error": {"ours": round(max(errors[::2]), 4), "peer": round(max(errors[1::2]), 4)}}
    return Comparison("statistics", "Spark CALL compute_table_stats and compute_partition_stats", shape, turns, more)


def histories(sides: Bench, count: int) -> Mapping[str, Any]:
    """Random histories of a small table: in how many both said the same, and ours read new files alone."""
    draw, equal, incremental = random.Random(7), 0, 0
    for number in range(count):
        table, last = f"history{number}", 400
        created(sides, table, last)
        ours(sides, table)
        changes = [draw.choice(("append", "append", "rewrite", "delete", "column")) for _ in range(draw.randrange(3))]
        for change in (*changes, "append"):
            statement = {
                "append": f"INSERT INTO {name_of(table)} {rows(last, last + 60)}",
                "rewrite": f"CALL {CATALOG}.system.rewrite_data_files(table => '{NAMESPACE}.{table}', options => "
                "map('rewrite-all', 'true'))",
                "delete": f"DELETE FROM {name_of(table)} WHERE id % 7 = {draw.randrange(7)}",  # noqa: S608 - ours
                "column": f"ALTER TABLE {name_of(table)} ALTER COLUMN part TYPE bigint",
            }[change]
            sides.spark.ask("each", statements=[f"REFRESH TABLE {name_of(table)}", statement])
            last += 60
        saved = sides.lake.save(table)
        incremental += "from the sketches" in ours(sides, table)["summary"]
        found = statistics(saved)
        saved.restore()
        theirs(sides, table)
        equal += found == statistics(saved)
    return {"histories": count, "equal": equal, "from_new_files_alone": incremental}


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "500,000 rows and 3 histories instead of 20,000,000 and 40").parse_args()
    count, tried = (500_000, 3) if chosen.quick else (20_000_000, 40)
    added = count // 20
    with bench(chosen) as sides:
        created(sides, "whole", count)
        whole = compare(sides, sides.lake.save("whole"), count, f"{count} rows, 6 columns, all read")
        created(sides, "grown", count)
        ours(sides, "grown")
        sides.spark.ask("sql", statement=f"INSERT INTO {name_of('grown')} {rows(count, count + added)}")
        shape = f"{count} rows and {added} appended since the last statistics"
        grown = compare(sides, sides.lake.save("grown"), count + added, shape)
        sides.found += [replace(whole, more={**whole.more, **histories(sides, tried)}), grown]
