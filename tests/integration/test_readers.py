"""Which engines read tables before and after maintenance: what `docs/reference/engines.md` says is what is found here.

READERS_PYTHON names a Python with PyIceberg, Polars, DuckDB and its extensions `iceberg` and `avro` (from PyPI),
DataFusion with `pyiceberg-core`, Daft and chdb.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.integration.bench import Bench
from tests.integration.in_readers import ENGINES
from tests.integration.javacore import JavaTable
from tests.integration.tables import create, insert
from tests.trino import Trino, trino

pytestmark = [pytest.mark.spark, pytest.mark.external, pytest.mark.nightly]

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "reference" / "engines.md"
COLUMNS = "id int, s string"
MERGE_ON_READ = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
VIEWS = ("", " by a filter", " at an old snapshot")
COMPACT = {
    "compact.min_input_files": 2,
    "compact.delete_file_threshold": 1,
    "compact.delete_ratio_threshold": 0.01,
    "compact.hot_partitions": "include",
    "compact.output_spec_id": "current",
    "value.min_return": 0,
}
Answer = list[list[Any]] | str  # rows, or why there are none


@dataclass(frozen=True)
class Table:
    """A table, and its snapshot of before the last commit, which a tag keeps."""

    kind: str
    name: str
    old: int


def spark_table(bench: Bench, name: str, version: int) -> None:
    """Appends, then a delete of some rows of each file, and one more append."""
    quoted = create(bench, name, COLUMNS, properties=MERGE_ON_READ, version=version)
    for rows in ("(1, 'a'), (2, 'b')", "(3, 'c'), (4, 'd')", "(5, 'e'), (6, 'f')"):
        bench.sql(f"INSERT INTO {quoted} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")  # noqa: S608 - quoted
    bench.sql(f"DELETE FROM {quoted} WHERE id IN (2, 4, 6)")  # noqa: S608 - quoted
    insert(bench, quoted, "(7, 'g')")


def upserted_table(bench: Bench, name: str) -> None:
    """Deletes by key, as of Flink's upserts."""
    quoted = create(bench, name, COLUMNS)
    insert(bench, quoted, "(1, 'a'), (2, 'b'), (4, 'd')")
    for key in (2, 4):
        java = JavaTable.load(bench, name)
        java.row_delta([java.data({"id": [key + 10], "s": ["n"]})], [java.equality_deletes({"id": [key]}, ["id"])])
    insert(bench, quoted, "(7, 'g')")


def repartitioned_table(bench: Bench, name: str) -> None:
    """Files of two partition specs."""
    quoted = create(bench, name, COLUMNS)
    insert(bench, quoted, "(1, 'a'), (2, 'b')", "(4, 'a')")
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD s")
    insert(bench, quoted, "(5, 'a'), (6, 'b')", "(7, 'a')")


def trino_table(bench: Bench, server: Trino, name: str) -> None:
    """Files of ORC, and position deletes of them."""
    bench.lake.identifier(name)
    table = f"lake.{name}"
    server.rows(f"CREATE TABLE {table} (id integer, s varchar) WITH (format = 'ORC', format_version = 2)")
    for values in ("(1, 'a'), (2, 'b')", "(4, 'd'), (5, 'e')"):
        server.rows(f"INSERT INTO {table} VALUES {values}")  # noqa: S608
    server.rows(f"DELETE FROM {table} WHERE id IN (2, 4)")  # noqa: S608
    server.rows(f"INSERT INTO {table} VALUES (7, 'g')")  # noqa: S608


def tagged(bench: Bench, kind: str, name: str) -> Table:
    """The table, with a tag on what it was before its last commit."""
    *_, before, newest = bench.metadata(name).snapshots
    assert (newest.summary["total-delete-files"] != "0") is ("delet" in kind), newest.summary
    bench.sql(f"ALTER TABLE {bench.lake.quoted(name)} CREATE TAG old AS OF VERSION {before.snapshot_id}")
    return Table(kind, name, before.snapshot_id)


def by_sql(rows: Callable[[str], Sequence[Sequence[Any]]], table: Table, quoted: str, at: str) -> list[Answer]:
    """What an engine answers for each view, asked by SQL; `at` names the snapshot."""
    answers: list[Answer] = []
    for more in ("", " WHERE id > 3", f" {at} {table.old}"):
        try:
            answers.append(sorted(list(row) for row in rows(f"SELECT id, s FROM {quoted}{more}")))  # noqa: S608
        except Exception as error:  # noqa: BLE001 - what an engine cannot read is the answer
            answers.append(str(error)[:200])
    return answers


def by_file(engine: str, locations: Mapping[str, str], tables: Sequence[Table]) -> tuple[str, list[list[Answer]]]:
    """The engine's version, and what it answers for each table and view, asked by metadata files."""
    questions = [
        {
            "metadata": locations[table.name],
            "snapshot": table.old if view == VIEWS[2] else None,
            "filtered": bool(n == 1),
        }
        for table in tables
        for n, view in enumerate(VIEWS)
    ]
    command = [os.environ["READERS_PYTHON"], str(HERE / "in_readers.py"), engine]
    ran = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    flat = said["answers"]
    return said["version"], [flat[n : n + len(VIEWS)] for n in range(0, len(flat), len(VIEWS))]


def all_answers(bench: Bench, server: Trino, tables: Sequence[Table]) -> dict[str, list[list[Answer]]]:
    """What each engine answers, by its name and version."""
    locations = {table.name: bench.metadata(table.name).metadata_location for table in tables}
    for table in tables:
        bench.sql(f"REFRESH TABLE {bench.lake.quoted(table.name)}")
    spark = [by_sql(bench.sql, t, bench.lake.quoted(t.name), "VERSION AS OF") for t in tables]
    found = {"Spark 4.1, Iceberg 1.12": spark}
    for engine in ENGINES:
        release, answers = by_file(engine, locations, tables)
        found[f"{engine} {release}"] = answers
    found["Trino 476"] = [by_sql(server.rows, t, f"lake.{t.name}", "FOR VERSION AS OF") for t in tables]
    return found


def maintained(bench: Bench, name: str) -> None:
    """Compact the table, and rewrite its manifests."""
    assert bench.run(name, Operation.COMPACT, COMPACT).state is OperationState.COMMITTED
    bench.run(name, Operation.REWRITE_MANIFESTS, {"rewrite_manifests.min_manifests": 2})


def line(
    engine: str,
    tables: Sequence[Table],
    expected: Sequence[Sequence[Answer]],
    before: Sequence[Sequence[Answer]],
    after: Sequence[Sequence[Answer]],
) -> str:
    """The engine's line of the page."""

    def right(answers: Sequence[Sequence[Answer]]) -> int:
        return sum(
            a == e for found, said in zip(answers, expected, strict=True) for a, e in zip(found, said, strict=True)
        )

    bad = {
        (table.kind, view): " (wrong rows)" if isinstance(answer, list) else ""
        for table, found, said in zip(tables, after, expected, strict=True)
        for view, answer, right_one in zip(VIEWS, found, said, strict=True)
        if answer != right_one
    }
    kinds = [table.kind for table in tables]
    left = [kind for kind in kinds if all((kind, view) in bad for view in VIEWS)]
    views = [view for view in VIEWS if all((kind, view) in bad for kind in kinds)]
    rest = [f"{k}{view}{wrong}" for (k, view), wrong in bad.items() if k not in left and view not in views]
    left += [f"any table{view}" for view in views] + rest
    total = len(tables) * len(VIEWS)
    return f"| {engine} | {right(before)} of {total} | {right(after)} of {total} | {'; '.join(left)}{' ' * bool(left)}|"


@pytest.mark.skipif("READERS_PYTHON" not in os.environ, reason="READERS_PYTHON names no Python with the engines")
def test_the_page_of_engines_says_what_they_read(bench: Bench, new_name: Callable[[str], str], tmp_path: Path) -> None:
    """No engine reads less after maintenance, none reads other rows, and Trino writes on where it was."""
    made: Mapping[str, Callable[[Bench, str], None]] = {
        "position deletes": partial(spark_table, version=2),
        "deletion vectors": partial(spark_table, version=3),
        "equality deletes": upserted_table,
        "two partition specs": repartitioned_table,
    }
    tables = []
    for kind, make in made.items():
        name = new_name("read")
        make(bench, name)
        tables.append(tagged(bench, kind, name))
    with trino(bench.catalog, bench.lake.warehouse, tmp_path / "trino") as server:
        name = new_name("orc")
        trino_table(bench, server, name)
        tables.append(tagged(bench, "ORC with position deletes", name))
        before = all_answers(bench, server, tables)
        for table in tables:
            maintained(bench, table.name)
        after = all_answers(bench, server, tables)
        server.rows(f"INSERT INTO lake.{name} VALUES (8, 'h')")  # noqa: S608
        server.rows(f"DELETE FROM lake.{name} WHERE id = 1")  # noqa: S608
        bench.sql(f"REFRESH TABLE {bench.lake.quoted(name)}")
        assert sorted(row["id"] for row in bench.sql(f"SELECT id FROM {bench.lake.quoted(name)}")) == [5, 7, 8]  # noqa: S608

    expected = next(iter(before.values()))
    assert next(iter(after.values())) == expected
    assert all(isinstance(answer, list) for answers in expected for answer in answers)
    for engine, answers in before.items():
        pairs = zip(answers, after[engine], expected, strict=True)
        views = [view for pair in pairs for view in zip(*pair, strict=True)]
        assert not [view for view in views if view[0] == view[2] != view[1]], engine
    lines = [line(engine, tables, expected, before[engine], after[engine]) for engine in before]
    page = PAGE.read_text(encoding="utf-8")
    assert not [one for one in lines if one not in page], "\n".join(lines)
