"""Cases whose oracle is Spark: odd delete files, sequence numbers over several rewrites, Spark's own procedure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyiceberg.manifest import write_manifest_list
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from icewright.app.demo.files import entry_schema, local, write_file
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from tests.adapters.writing import IO, by_fastavro
from tests.integration.bench import Bench
from tests.integration.tables import backdate_all, create, insert

pytestmark = pytest.mark.spark

POSITIONS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)
KEYS = Schema(NestedField(1, "id", IntegerType()))
SNAPSHOT = 4_711_000_000_000
COMPACT = {"compact.min_input_files": 2, "compact.hot_partitions": "include", "compact.delete_file_threshold": 1}


def commit_deletes(bench: Bench, name: str, schema: Schema, columns: Mapping[str, Sequence[Any]]) -> None:
    """Commit a delete file as another engine would: equality deletes by these columns, or position deletes."""
    table, folder = bench.lake.catalog.load_table(name), bench.folder(name)
    current = table.current_snapshot()
    assert current is not None
    path = local(table.metadata_location)
    document = json.loads(path.read_text(encoding="utf-8"))
    sequence = document["last-sequence-number"] + 1
    snapshot_id = SNAPSHOT + sequence
    by_position = schema is POSITIONS
    about: dict[str, Any] = {
        "content": 1 if by_position else 2,
        "partition": {},
        "equality_ids": None if by_position else [f.field_id for f in schema.fields],
        "sort_order_id": None,
    }
    deletes = folder / "data" / f"deletes-{sequence}.parquet"
    file = write_file(deletes, f"file://{deletes}", columns, schema, about)
    entry = {"status": 1, "snapshot_id": snapshot_id, "sequence_number": None, "file_sequence_number": None}
    entries = [{**entry, "data_file": dict(file.record)}]
    spec, avro = UNPARTITIONED_PARTITION_SPEC, entry_schema(StructType())
    row = by_fastavro(folder / "metadata", spec, table.schema(), 2, entries, (snapshot_id, sequence), avro)
    output = IO.new_output(f"file://{folder}/metadata/snap-{snapshot_id}.avro")
    with write_manifest_list(2, output, snapshot_id, current.snapshot_id, sequence, "deflate") as writer:
        writer.add_manifests([row, *current.manifests(table.io)])
    document["snapshots"].append(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": current.snapshot_id,
            "sequence-number": sequence,
            "timestamp-ms": document["last-updated-ms"] + 1,
            "manifest-list": output.location,
            "summary": {"operation": "delete", "added-delete-files": "1"},
            "schema-id": table.schema().schema_id,
        }
    )
    document |= {"current-snapshot-id": snapshot_id, "last-sequence-number": sequence}
    document["last-updated-ms"] += 1
    document["refs"]["main"]["snapshot-id"] = snapshot_id
    fresh = path.with_name(f"{int(path.name.partition('-')[0]) + 1:05d}-{snapshot_id}.metadata.json")
    fresh.write_text(json.dumps(document), encoding="utf-8")
    bench.lake.catalog.drop_table(name)
    bench.lake.catalog.register_table(name, f"file://{fresh}")


def ids(bench: Bench, name: str) -> list[int]:
    """The rows that Spark reads."""
    return sorted(row["id"] for row in bench.sql(f"SELECT id FROM {bench.lake.quoted(name)}"))  # noqa: S608 - quoted


@pytest.mark.cases(29)
def test_positions_that_are_doubled_and_out_of_order(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A position that is named thrice, in an unsorted file, is one row: compaction keeps the rows that Spark reads."""
    name = new_name("doubled")
    quoted = create(bench, name, "id int")
    insert(bench, quoted, "(1), (2), (3), (4)", "(5), (6)")
    rows = bench.sql(f"SELECT id, _file AS f, _pos AS p FROM {quoted}")  # noqa: S608 - quoted
    at = {row["id"]: (row["f"], row["p"]) for row in rows}
    victims = [at[n] for n in (6, 4, 2, 4, 6, 4)]
    commit_deletes(bench, name, POSITIONS, {"file_path": [f for f, _ in victims], "pos": [p for _, p in victims]})
    left = ids(bench, name)
    assert left == [1, 3, 5]
    done = bench.run(name, Operation.COMPACT, COMPACT)
    assert done.state is OperationState.COMMITTED, done
    assert ids(bench, name) == left
    counted = bench.sql(f"SELECT sum(record_count) AS n FROM {quoted}.files WHERE content = 0")  # noqa: S608 - quoted
    assert counted[0]["n"] == 3, "the deletes are applied, each row once"


@pytest.mark.cases(20, 34)
def test_deletes_before_and_after_a_partial_compaction(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Rewritten in part, deleted from again, its manifests merged, compacted: no row comes back, none is lost."""
    name = new_name("partial")
    quoted = create(bench, name, "id int")
    insert(bench, quoted, "(0)", "(1)", "(2)", "(3)")
    commit_deletes(bench, name, KEYS, {"id": [1]})
    insert(bench, quoted, "(1), (4)")
    options = "map('rewrite-all', 'true', 'min-input-files', '1', 'use-starting-sequence-number', 'true')"
    bench.call("rewrite_data_files", name, f"where => 'id <= 1', options => {options}")
    commit_deletes(bench, name, KEYS, {"id": [2, 4]})
    insert(bench, quoted, "(4)")
    expected = [0, 1, 3, 4]
    assert ids(bench, name) == expected
    numbers = {(row["p"], row["s"]) for row in _entries(bench, quoted)}
    knobs = {"rewrite_manifests.min_manifests": 2, "rewrite_manifests.engine": "service"}
    done = bench.run(name, Operation.REWRITE_MANIFESTS, knobs)
    assert done.state is OperationState.COMMITTED, done
    assert {(row["p"], row["s"]) for row in _entries(bench, quoted)} == numbers
    assert ids(bench, name) == expected
    assert bench.run(name, Operation.COMPACT, COMPACT).state is OperationState.COMMITTED
    assert ids(bench, name) == expected


def _entries(bench: Bench, quoted: str) -> list[Any]:
    said = "data_file.file_path AS p, sequence_number AS s"
    return bench.sql(f"SELECT {said} FROM {quoted}.entries WHERE status < 2")  # noqa: S608 - quoted


@pytest.mark.cases(63, "T5")
def test_sparks_expiry_of_a_table_registered_twice(bench: Bench, new_name: Callable[[str], str]) -> None:
    """The fallback on Spark's procedure keeps to the same rule: a twin reads the files, so nothing is expired."""
    name, twin = new_name("twice"), new_name("twin")
    quoted = create(bench, name, "id int")
    insert(bench, quoted, "(1)", "(2)")
    bench.sql(f"INSERT OVERWRITE {quoted} VALUES (3)")  # noqa: S608 - quoted
    backdate_all(bench, name, 90, 50)
    bench.lake.catalog.register_table(twin, bench.lake.catalog.load_table(name).metadata_location)
    versions = bench.versions(twin)
    read, files = bench.read(twin, versions), bench.files(name)
    knobs = {"expire_snapshots.engine": "spark", "expire_snapshots.min_snapshots_to_keep": 1}
    done = bench.run(
        name, Operation.EXPIRE_SNAPSHOTS, {**knobs, "deletion.delay_hours": 0, "expire_snapshots.retention_hours": 1}
    )
    bench.lake.catalog.drop_table(name)  # other tests scan for orphans
    assert bench.files(twin) >= files
    assert (done.state, twin in done.reason) == (OperationState.SKIPPED, True), done
    assert bench.read(twin, versions) == read
