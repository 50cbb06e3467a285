"""Manifests and their lists as columns: equal to what PyIceberg reads, and nothing but the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import types as t
from pyiceberg.manifest import FileFormat, ManifestEntryStatus, write_manifest_list
from pyiceberg.manifest import ManifestFile as Listed
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import TableVersion

from icewright.adapters.files.manifests import ManifestReader
from icewright.core.partitions import partition_values
from icewright.core.table import Snapshot
from tests.adapters.writing import IO, TYPES, Partitioned, by_fastavro, entry, ours, path_bounds, plain, record

EXISTING, ADDED, DELETED = ManifestEntryStatus
WRITERS = ["pyiceberg-v1", "pyiceberg-v2", "crafted-v1", "crafted-v2", "crafted-v3"]


def write(table: Partitioned, writer: str, partitions: Sequence[Sequence[Any]]) -> Listed:
    """A manifest with one added file in each of the partitions."""
    version: TableVersion = {"1": 1, "2": 2, "3": 3}[writer[-1]]  # type: ignore[assignment]
    paths = [f"file:///t/{i}.parquet" for i in range(len(partitions))]
    snapshot_id = 7 if version == 1 else None
    if writer.startswith("crafted"):
        return table.crafted(version, [record(f, p, snapshot_id=7) for f, p in zip(paths, partitions, strict=True)])
    entries = [entry(f, p, snapshot_id=snapshot_id) for f, p in zip(paths, partitions, strict=True)]
    return table.pyiceberg(version, entries)


def theirs(rows: Sequence[Listed]) -> list[tuple[Any, ...]]:
    """What PyIceberg reads in the manifests."""
    found = []
    for index, row in enumerate(rows):
        for one in row.fetch_manifest_entry(IO, discard_deleted=False):
            file = one.data_file
            partition = tuple(plain(value) for value in file.partition._data)
            said = (one.status.value, one.snapshot_id, one.sequence_number, (file.content or 0) + 0, file.file_path)
            size = (file.record_count, file.file_size_in_bytes, row.partition_spec_id, index)
            found.append((*said, file.file_format.value, partition, *size))
    return found


def mine(reader: ManifestReader, rows: Sequence[Listed]) -> list[tuple[Any, ...]]:
    """What the reader says of the same."""
    names = ["status", "snapshot_id", "sequence_number", "content", "path", "format", "partition"]
    names += ["records", "bytes", "spec_id", "manifest"]
    table = reader.entries([ours(row) for row in rows])
    return [
        tuple(tuple(plain(v) for v in partition_values(row[n])) if n == "partition" else row[n] for n in names)
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", TYPES)
def test_partition_types(reader: ManifestReader, tmp_path: Path, writer: str, kind: str) -> None:
    """A partition value of every type, null among them, is the one that PyIceberg reads."""
    iceberg_type, values = TYPES[kind]
    row = write(Partitioned(tmp_path, (iceberg_type,)), writer, [*([v] for v in values), [None], [values[0]]])
    assert mine(reader, [row]) == theirs([row])
    texts = reader.entries([ours(row)])["partition"].to_pylist()
    assert texts[0] == texts[-1]
    assert len(set(texts)) == len(set(values)) + 1


@pytest.mark.parametrize("writer", WRITERS)
def test_all_types_at_once(reader: ManifestReader, tmp_path: Path, writer: str) -> None:
    """A partition of many fields keeps their order, whatever their types are."""
    table = Partitioned(tmp_path, tuple(kind for kind, _ in TYPES.values()))
    rows = [[values[i] for _, values in TYPES.values()] for i in range(3)] + [[None] * len(TYPES)]
    row = write(table, writer, rows)
    assert mine(reader, [row]) == theirs([row])


@pytest.mark.parametrize("writer", WRITERS)
def test_not_partitioned(reader: ManifestReader, tmp_path: Path, writer: str) -> None:
    """A table without partitions has one, the empty tuple."""
    row = write(Partitioned(tmp_path, ()), writer, [(), ()])
    assert mine(reader, [row]) == theirs([row])
    assert reader.entries([ours(row)])["partition"].to_pylist() == ["[]", "[]"]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_partitions_of_floats(reader: ManifestReader, tmp_path: Path, kind: str) -> None:
    """Not-a-number is not equal to itself, but one partition; zeros are equal, but two."""
    values = [float("nan"), 0.0, -0.0, float("nan"), 0.0, float("-inf")]
    row = write(Partitioned(tmp_path, (TYPES[kind][0],)), "crafted-v2", [[value] for value in values])
    assert mine(reader, [row]) == theirs([row])
    texts = ["[NaN]", "[0.0]", "[-0.0]", "[NaN]", "[0.0]", "[-Infinity]"]
    assert reader.entries([ours(row)])["partition"].to_pylist() == texts


def test_doubles_are_exact(reader: ManifestReader, tmp_path: Path) -> None:
    """A double is not rounded to a float (PyIceberg 0.12 reads -1.100000023841858 and infinity here)."""
    values = [-1.1, 1e300, 5e-324]
    row = write(Partitioned(tmp_path, (t.DoubleType(),)), "crafted-v2", [[value] for value in values])
    assert [one[6] for one in mine(reader, [row])] == [(value,) for value in values]


@pytest.mark.parametrize(
    ("transform", "source", "values"),
    [
        ("bucket[16]", t.StringType(), [0, 15, None]),
        ("truncate[3]", t.StringType(), ["abc", "é表x", None]),
        ("truncate[10]", t.DecimalType(9, 2), [Decimal("-1.30"), Decimal("0.00"), None]),
        ("year", t.TimestampType(), [-1, 56, None]),
        ("month", t.DateType(), [-13, 680, None]),
        ("day", t.TimestamptzType(), [-1, 20_000, None]),
        ("hour", t.TimestampType(), [-1, 490_896, None]),
        ("void", t.StringType(), [None, None, None]),
    ],
)
def test_transforms(reader: ManifestReader, tmp_path: Path, transform: str, source: Any, values: list[Any]) -> None:
    """The values of every transform are those that PyIceberg reads."""
    schema = Schema(t.NestedField(1, "c1", source))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p1"), spec_id=3)
    rows = [record(f"file:///t/{i}.parquet", [value]) for i, value in enumerate(values)]
    row = by_fastavro(tmp_path, spec, schema, 2, rows, (7, 5))
    assert mine(reader, [row]) == theirs([row])


def test_schemas_are_read_together(reader: ManifestReader, tmp_path: Path) -> None:
    """Manifests of several writers, versions and specs in one call keep their order, each with its own index."""
    one, other = Partitioned(tmp_path, (t.StringType(),), 1), Partitioned(tmp_path, (t.DateType(), t.LongType()), 2)
    rows = [write(table, writer, [["x" if table is one else 1, 2][: len(table.kinds)]]) for writer in WRITERS
            for table in (one, other, one)]  # fmt: skip
    assert mine(reader, rows) == theirs(rows)
    assert mine(reader, rows[::-1]) == theirs(rows[::-1])
    assert mine(reader, rows) == theirs(rows), "again, from the cache"


def test_many_manifests(reader: ManifestReader, tmp_path: Path) -> None:
    """More manifests than are read at once come whole and in order."""
    table = Partitioned(tmp_path, (t.IntegerType(),))
    rows = [write(table, "crafted-v2" if i % 3 else "crafted-v1", [[i]] * (i % 4 + 1)) for i in range(140)]
    assert mine(reader, rows) == theirs(rows)


def test_no_manifest(reader: ManifestReader, tmp_path: Path) -> None:
    """No manifest has no entry, and neither has an empty one; the columns are there."""
    empty = Partitioned(tmp_path, (t.IntegerType(),)).crafted(2, [])
    for rows in ([], [empty]):
        table = reader.entries([ours(row) for row in rows])
        assert table.num_rows == 0
        assert {"path", "spec_id", "manifest", "partition"} <= set(table.column_names)


@pytest.mark.parametrize("writer", ["pyiceberg-v1", "crafted-v2"])
def test_what_entries_inherit(reader: ManifestReader, tmp_path: Path, writer: str) -> None:
    """Sequence number and snapshot come from the list where an entry has none, 0 in tables that were v1."""
    table = Partitioned(tmp_path, ())
    if writer == "pyiceberg-v1":
        rows = [write(table, writer, [(), ()])]
        assert [row[1:3] for row in mine(reader, rows)] == [(7, 0), (7, 0)]
    else:
        mixed = [
            record("file:///t/added"),
            record("file:///t/existing", status=0, sequence=3, snapshot_id=5),
            record("file:///t/deleted", status=2, sequence=4, snapshot_id=8),
            record("file:///t/explicit", sequence=2),
        ]
        rows = [table.crafted(2, mixed, snapshot_id=8, sequence=9), table.crafted(2, mixed, snapshot_id=6, sequence=6)]
        assert [row[1:3] for row in mine(reader, rows[:1])] == [(8, 9), (5, 3), (8, 4), (8, 2)]
    assert mine(reader, rows) == theirs(rows)


def test_one_manifest_in_two_lists(reader: ManifestReader, tmp_path: Path) -> None:
    """The cache holds what the file says, so that what is inherited depends on the list that is read."""
    row = Partitioned(tmp_path, ()).crafted(2, [record("file:///t/x")], snapshot_id=7, sequence=1)
    first = ours(row)
    second = ours(Listed(*row._data[:4], 5, 5, 9, *row._data[7:]))
    assert reader.entries([first])["sequence_number"].to_pylist() == [1]
    assert reader.entries([second])["sequence_number"].to_pylist() == [5]
    assert reader.entries([second])["snapshot_id"].to_pylist() == [9]


def test_deletion_vectors(reader: ManifestReader, tmp_path: Path) -> None:
    """A deletion vector says which data file it is of, and how long it is in its Puffin file."""
    vector: dict[str, Any] = {"content": 1, "file_format": "PUFFIN", "content_offset": 4, "record_count": 3}
    vector |= {"referenced_data_file": "file:///t/data.parquet", "content_size_in_bytes": 40}
    row = Partitioned(tmp_path, ()).crafted(3, [record("file:///t/dv.puffin", **vector)], sequence=5)
    (found,) = reader.entries([ours(row)]).to_pylist()
    assert (found["content"], found["format"], found["records"]) == (1, FileFormat.PUFFIN.value, 3)
    assert (found["referenced"], found["content_bytes"]) == ("file:///t/data.parquet", 40)


@pytest.mark.parametrize(
    ("fields", "referenced"),
    [
        ({"content": 1, **path_bounds("file:///t/é.parquet", "file:///t/é.parquet")}, "file:///t/é.parquet"),
        ({"content": 1, **path_bounds("file:///t/a", "file:///t/b")}, None),
        ({"content": 1, "lower_bounds": None, "upper_bounds": None}, None),
        ({"content": 1, "lower_bounds": [], "upper_bounds": []}, None),
        ({"content": 1, **path_bounds("file:///t/a", "file:///t/a"), "upper_bounds": None}, None),
        ({"content": 2, "equality_ids": [1], **path_bounds("file:///t/a", "file:///t/a")}, None),
        ({"content": 0, **path_bounds("file:///t/a", "file:///t/a")}, None),
    ],
)
def test_position_deletes_of_one_file(
    reader: ManifestReader, tmp_path: Path, fields: dict[str, Any], referenced: str | None
) -> None:
    """A position delete file whose paths have equal bounds is of that one data file; nothing else is."""
    other = record("file:///t/other", content=1, **path_bounds("file:///t/z", "file:///t/z"))
    row = Partitioned(tmp_path, ()).crafted(2, [record("file:///t/x", **fields), other])
    assert reader.entries([ours(row)])["referenced"].to_pylist() == [referenced, "file:///t/z"]


def test_lists_say_what_pyiceberg_reads(reader: ManifestReader, tmp_path: Path) -> None:
    """The rows of manifest lists of v1 and v2 are those that PyIceberg reads."""
    versions: tuple[TableVersion, ...] = (1, 2)
    snapshots = []
    for version in versions:
        table = Partitioned(tmp_path, (t.StringType(),), spec_id=version)
        row = table.pyiceberg(version, [entry("file:///t/x", ["a"], sequence=0, snapshot_id=version)])
        output = IO.new_output(f"file://{tmp_path}/snap-{version}.avro")
        with write_manifest_list(version, output, version, None, version, "deflate") as writer:
            writer.add_manifests([row])
        snapshots.append(_snapshot(version, output.location))
        (found,) = reader.manifests(snapshots[-1])
        assert (found.path, found.length, found.spec_id) == (row.manifest_path, row.manifest_length, version)
        assert (found.sequence_number, found.added_snapshot_id, found.live_files) == (0, row.added_snapshot_id, 1)
    assert reader.manifest_lists(snapshots)["spec_id"].to_list() == [1, 2]


def _snapshot(snapshot_id: int, location: str | None, manifests: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(snapshot_id, None, 0, datetime(2026, 11, 21, tzinfo=UTC), location, manifests)


def test_manifests_named_by_the_metadata(reader: ManifestReader, tmp_path: Path) -> None:
    """Format v1 may name manifests in the metadata file: their rows are made from themselves."""
    table = Partitioned(tmp_path, (t.LongType(),), spec_id=4)
    mixed = [record("file:///t/a", [1], snapshot_id=7), record("file:///t/b", [2], status=2, snapshot_id=7)]
    row = table.crafted(1, mixed)
    (found,) = reader.manifests(_snapshot(7, None, (row.manifest_path,)))
    assert (found.path, found.length, found.spec_id) == (row.manifest_path, row.manifest_length, 4)
    assert (found.added_files, found.existing_files, found.deleted_files) == (1, 0, 1)
    assert len(reader.entries([found])) == 2
