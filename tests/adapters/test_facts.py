"""Facts of a table: counted as a person would count, one entry after the other, by the rules of the specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.manifest import DataFileContent
from pyiceberg.manifest import ManifestFile as Listed

from icewright.adapters.engines.arrow.partition_statistics import partition_statistics
from icewright.adapters.files.cache import Cache
from icewright.adapters.files.facts import table_facts
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifests import ENTRY, ManifestReader
from icewright.core.errors import MetadataUnreadable
from icewright.core.partitions import partition_name, partition_text, partition_values
from icewright.core.predicates import partitions_predicate
from icewright.core.sizes import FileHistogram
from icewright.core.table import (
    PartitionFacts,
    PartitionField,
    PartitionSpec,
    Snapshot,
    TableFacts,
    Thresholds,
)
from tests.adapters.writing import IO, Partitioned, by_fastavro, metadata, ours, path_bounds, record
from tests.examples import examples

MEGABYTE = 1 << 20
SIZES = Thresholds(512 * MEGABYTE, 384 * MEGABYTE, 922 * MEGABYTE, 8 * MEGABYTE)
FLAT = PartitionSpec(0, ())
BY_P = PartitionSpec(1, (PartitionField(1, 1000, "p1", "identity"),))
AT = datetime(2026, 11, 20, tzinfo=UTC)
DATA, POSITION, EQUALITY = 0, 1, 2
#: A data file as a test says it: its name, partition, sequence number; a delete file says its content besides.
Row = dict[str, Any]


class Bed:
    """Where a test writes manifests of one table and reads its facts."""

    def __init__(self, folder: Path, specs: Sequence[PartitionSpec] = (FLAT, BY_P)) -> None:
        self.flat = Partitioned(folder, (), 0)
        self.by_p = Partitioned(folder, (t.StringType(),), 1)
        self.specs = specs
        self.reader = ManifestReader(LocalStorage(), Cache(folder / "cache", 1 << 24, ENTRY))
        self.rows: list[Listed] = []

    def add(self, *entries: Row, sequence: int, snapshot_id: int = 7) -> None:
        """A manifest of one commit: entries of one content and spec."""
        table = self.by_p if entries[0]["data_file"]["partition"] else self.flat
        self.rows.append(table.crafted(3, entries, snapshot_id=snapshot_id, sequence=sequence))

    def facts(self, snapshots: Sequence[Snapshot] = (), **more: Any) -> TableFacts:
        """What the manifests say together; more of the metadata by its names."""
        listed = [ours(row) for row in self.rows]
        base = replace(metadata(self.specs, snapshots), **more)
        return table_facts(base, SIZES, listed, self.reader.entries(listed), {})


def data(name: str, *partition: Any, **fields: Any) -> Row:
    """A data file of 100 rows."""
    return record(f"file:///t/{name}", partition, **{"record_count": 100, **fields})


def position(name: str, *partition: Any, of: str | None = None, **fields: Any) -> Row:
    """A position delete file of 10 rows, of one data file or of the whole partition."""
    bounds = path_bounds(f"file:///t/{of}", f"file:///t/{of}") if of else path_bounds("file:///a", "file:///z")
    return record(f"file:///t/{name}", partition, content=POSITION, **bounds, **fields)


def equality(name: str, *partition: Any, **fields: Any) -> Row:
    """An equality delete file of 10 keys."""
    return record(f"file:///t/{name}", partition, content=EQUALITY, equality_ids=[1], **fields)


def vector(name: str, *partition: Any, of: str) -> Row:
    """A deletion vector of 10 rows."""
    said: dict[str, Any] = {"file_format": "PUFFIN", "referenced_data_file": f"file:///t/{of}"}
    return record(f"file:///t/{name}", partition, content=POSITION, content_offset=4, content_size_in_bytes=9, **said)


def only(facts: TableFacts) -> PartitionFacts:
    """The table's one partition."""
    (partition,) = facts.partitions
    return partition


_FILE = st.tuples(
    st.sampled_from([(0, None), (1, "a"), (1, "b"), (1, None)]),
    st.sampled_from([DATA, DATA, DATA, POSITION, EQUALITY]),
    st.sampled_from([0, 1, 1, 1, 2]),
    st.integers(0, 2000 * MEGABYTE) | st.sampled_from([MEGABYTE, 384 * MEGABYTE, 922 * MEGABYTE, 1024 * MEGABYTE]),
    st.integers(0, 10**6),
)


def _by_power_of_two(sizes: Iterable[int]) -> Iterable[list[int]]:
    classes: dict[int, list[int]] = {}
    for size in sizes:
        classes.setdefault(size.bit_length(), []).append(size)
    return classes.values()


@examples(25)
@given(commits=st.lists(st.lists(_FILE, min_size=1, max_size=12), min_size=1, max_size=5))
def test_counts_are_those_of_a_naive_recount(
    commits: list[list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files, bytes, rows, candidates and sizes per partition are those that PyIceberg's entries add up to."""
    bed, names = Bed(tmp_path_factory.mktemp("facts")), iter(range(10**6))
    for sequence, files in enumerate(commits, 1):
        for spec in (0, 1):
            for deletes in (False, True):
                chosen = [f for f in files if f[0][0] == spec and (f[1] > 0) == deletes]
                entries = [
                    record(f"file:///t/{next(names)}", () if spec == 0 else (p,), status, sequence, content=content,
                           file_size_in_bytes=size, record_count=rows, snapshot_id=7, equality_ids=[1])
                    for (_, p), content, status, size, rows in chosen
                ]  # fmt: skip
                if entries:
                    bed.add(*entries, sequence=sequence)
    facts = bed.facts()
    entries_of = [(row, e) for row in bed.rows for e in row.fetch_manifest_entry(IO)]
    live: dict[tuple[int, tuple[Any, ...]], list[Any]] = {}
    for row, one in entries_of:
        if one.data_file.content == DataFileContent.DATA:
            live.setdefault((row.partition_spec_id, tuple(one.data_file.partition._data)), []).append(one.data_file)
    with_data = {p.key: p for p in facts.partitions if p.data_files}
    assert with_data.keys() == live.keys()
    limits = [0, *(limit * MEGABYTE for limit in FileHistogram.LIMITS_MB), 1 << 62]
    for key, found in live.items():
        sizes = [f.file_size_in_bytes for f in found]
        small = [size for size in sizes if not SIZES.min_bytes <= size <= SIZES.max_bytes]
        seen = with_data[key]
        assert (seen.data_files, seen.data_bytes) == (len(found), sum(sizes))
        assert seen.records == sum(f.record_count for f in found)
        assert (seen.candidate_files, seen.candidate_bytes) == (len(small), sum(small))
        below = [size for size in sizes if size < SIZES.min_bytes]
        assert sum(one.files for one in seen.small) == len(below)
        assert sum(one.bytes for one in seen.small) == sum(below)
        assert [one.largest for one in seen.small] == sorted({max(group) for group in _by_power_of_two(below)})
        counts = [sum(low <= size < high for size in sizes) for low, high in pairwise(limits)]
        assert list(seen.histogram.counts) == counts
    for manifest in facts.manifests:
        group = [
            r for r in bed.rows if (r.partition_spec_id, int(r.content)) == (manifest.spec_id, int(manifest.content))
        ]
        assert (manifest.manifests, manifest.bytes) == (len(group), sum(r.manifest_length for r in group))
        assert manifest.entries == sum((r.added_files_count or 0) + (r.existing_files_count or 0) for r in group)
    assert sum(m.manifests for m in facts.manifests) == len(bed.rows)


@pytest.mark.cases(21)
@pytest.mark.parametrize(("make", "at", "counted"), [
    (position, 4, "dangling_position_deletes"), (position, 5, "position_delete_files"),
    (position, 6, "position_delete_files"), (equality, 4, "dangling_equality_deletes"),
    (equality, 5, "dangling_equality_deletes"), (equality, 6, "equality_delete_files"),
])  # fmt: skip
@pytest.mark.parametrize("partition", [(), ("a",)])
def test_sequence_numbers_decide(
    tmp_path: Path, make: Callable[..., Row], at: int, counted: str, partition: tuple[str, ...]
) -> None:
    """A position delete applies to data of its own commit or older, an equality delete to older data only."""
    bed = Bed(tmp_path)
    bed.add(data("x", *partition), sequence=5)
    bed.add(make("d", *partition), sequence=at)
    found = only(bed.facts())
    names = ("position_delete_files", "equality_delete_files", "deletion_vectors", "dangling_position_deletes",
             "dangling_equality_deletes")  # fmt: skip
    assert {name: getattr(found, name) for name in names} == dict.fromkeys(names, 0) | {counted: 1}
    assert found.deleted_rows == (0 if counted.startswith("dangling") else 10)


@pytest.mark.cases(22)
def test_deletes_stay_in_their_partition(tmp_path: Path) -> None:
    """Deletes of one partition apply to nothing in another, null being one of its own."""
    bed = Bed(tmp_path)
    bed.add(data("x", "b"), data("y", None), sequence=1)
    bed.add(equality("e", "a"), position("p", "a"), sequence=2)
    found = {p.values: p for p in bed.facts().partitions}
    assert (found[("a",)].data_files, found[("a",)].dangling_delete_files, found[("a",)].delete_files) == (0, 2, 0)
    assert [found[key].delete_files + found[key].dangling_delete_files for key in (("b",), (None,))] == [0, 0]


@pytest.mark.cases(23)
def test_global_equality_deletes_reach_every_partition(tmp_path: Path) -> None:
    """An equality delete of an unpartitioned spec applies to older data of every spec, a position delete does not."""
    bed = Bed(tmp_path)
    bed.add(data("old", "a"), sequence=1)
    bed.add(data("flat"), sequence=1)
    bed.add(equality("e"), position("p"), sequence=2)
    found = {p.key: p for p in bed.facts().partitions}
    assert {key: p.equality_delete_files for key, p in found.items()} == {(0, ()): 1, (1, ("a",)): 1}
    assert {key: p.position_delete_files for key, p in found.items()} == {(0, ()): 1, (1, ("a",)): 0}


@pytest.mark.cases(23, 30)
def test_a_global_delete_that_applies_somewhere_is_not_dangling(tmp_path: Path) -> None:
    """A global equality delete that still applies in one partition dangles nowhere, and is one file of the table."""
    bed = Bed(tmp_path)
    bed.add(data("old", "a"), sequence=1)
    bed.add(equality("e"), sequence=2)
    bed.add(data("new", "b"), sequence=3)
    facts = bed.facts()
    assert sum(p.dangling_equality_deletes for p in facts.partitions) == 0
    assert facts.delete_files == 1


@pytest.mark.cases(23)
def test_a_global_delete_is_one_file(tmp_path: Path) -> None:
    """The table has one delete file and ten deleted rows, however many partitions the file applies to."""
    bed = Bed(tmp_path)
    bed.add(data("x", "a"), data("y", "b"), data("z", "c"), sequence=1)
    bed.add(equality("e"), sequence=2)
    facts = bed.facts()
    assert (facts.delete_files, facts.deleted_rows) == (1, 10)


@pytest.mark.cases(30)
@pytest.mark.parametrize("partition", [(), ("a",)])
def test_deletes_without_any_data_dangle(tmp_path: Path, partition: tuple[str, ...]) -> None:
    """When the last data file is gone, its deletes are all dangling, and none is forgotten."""
    bed = Bed(tmp_path)
    bed.add(equality("e", *partition), position("p", *partition), vector("v", *partition, of="gone"), sequence=2)
    found = only(bed.facts())
    assert (found.dangling_equality_deletes, found.dangling_position_deletes) == (1, 2)
    assert (found.delete_files, found.data_files, found.deleted_rows) == (0, 0, 0)
    assert bed.facts().delete_files == 3


@pytest.mark.cases(30, 35)
@pytest.mark.parametrize("make", [vector, position])
def test_deletes_of_a_file_dangle_without_it(tmp_path: Path, make: Callable[..., Row]) -> None:
    """A deletion vector, or position deletes of one file, go by that file alone, whatever else the partition has."""
    bed = Bed(tmp_path)
    bed.add(data("x", "a"), data("y", "a"), sequence=1)
    bed.add(make("d1", "a", of="x"), make("d2", "a", of="gone"), sequence=2)
    found = only(bed.facts())
    assert (found.delete_files, found.dangling_position_deletes, found.deleted_rows) == (1, 1, 10)
    assert found.deletion_vectors == (1 if make is vector else 0)
    assert found.max_delete_ratio_of_a_file == pytest.approx(0.1)


def test_a_rewritten_file_is_younger_than_its_deletes(tmp_path: Path) -> None:
    """Position deletes of one file that is younger than they dangle, though an older file lies beside it."""
    bed = Bed(tmp_path)
    bed.add(data("old", "a"), sequence=1)
    bed.add(data("x", "a"), sequence=5)
    bed.add(position("d", "a", of="x"), sequence=3)
    assert only(bed.facts()).dangling_position_deletes == 1


@pytest.mark.parametrize(("deletes", "mergeable", "most"), [
    ([("d1", "x")], 0, 1), ([("d1", "x"), ("d2", "y")], 0, 1), ([("d1", "x"), ("d2", "x"), ("d3", "y")], 2, 2),
    ([("d1", None)], 0, 1), ([("d1", None), ("d2", None)], 2, 2), ([("d1", None), ("d2", "x")], 0, 2),
])  # fmt: skip
def test_mergeable_deletes(tmp_path: Path, deletes: list[tuple[str, str | None]], mergeable: int, most: int) -> None:
    """Position delete files can be merged that share their data file, or the partition; a reader opens all of them."""
    bed = Bed(tmp_path)
    bed.add(data("x", "a"), data("y", "a"), sequence=1)
    bed.add(*(position(name, "a", of=of) for name, of in deletes), sequence=2)
    found = only(bed.facts())
    assert (found.mergeable_deletes, found.max_deletes_of_a_file) == (mergeable, most)


@pytest.mark.parametrize(("deletes", "more", "mergeable"), [
    ([("d1", "x")], {"format_version": 3}, 1), ([("d1", None), ("d2", "x")], {"format_version": 3}, 2),
    ([("d1", "x"), ("d2", "y")], {"properties": {"write.delete.granularity": "Partition"}}, 2),
    ([("d1", "x")], {"properties": {"write.delete.granularity": "partition"}}, 0),
    ([("d1", "x"), ("d2", "y")], {"properties": {"write.delete.granularity": "file"}}, 0),
])  # fmt: skip
def test_the_table_says_what_merging_makes(
    tmp_path: Path, deletes: list[tuple[str, str | None]], more: dict[str, Any], mergeable: int
) -> None:
    """Vectors in format v3, one file of a partition where the table asks for that, else one of each data file."""
    bed = Bed(tmp_path)
    bed.add(data("x", "a"), data("y", "a"), sequence=1)
    bed.add(*(position(name, "a", of=of) for name, of in deletes), sequence=2)
    assert only(bed.facts(**more)).mergeable_deletes == mergeable


@pytest.mark.parametrize(
    ("kind", "transform", "number", "name", "predicate"),
    [
        (t.DateType(), "identity", 2_932_897, "+10000-01-01", "date'+10000-01-01'"),
        (t.DateType(), "identity", -719_529, "-0001-12-31", "date'-0001-12-31'"),
        (t.DateType(), "identity", 2**31 - 1, "+5881580-07-11", "date'+5881580-07-11'"),
        (t.DateType(), "day", 2_932_897, "+10000-01-01", "`lake`.system.days(`c1`) = date'+10000-01-01'"),
        (t.IntegerType(), "day", 2_932_897, "+10000-01-01", "`lake`.system.days(`c1`) = date'+10000-01-01'"),
        (t.TimestampType(), "identity", 253_402_300_800_000_001, "+10000-01-01 00:00:00.000001", "timestamp'+10000-01"),
        (t.TimestamptzType(), "identity", -62_167_219_200_000_001, "-0001-12-31 23:59:59.999999", "timestamp'-0001-12"),
    ],
)
def test_years_that_python_lacks_are_partitions(
    tmp_path: Path, kind: t.PrimitiveType, transform: str, number: int, name: str, predicate: str
) -> None:
    """One row of a distant year, as timestamps in a wrong unit make them, takes no table out of maintenance."""
    bed = Bed(tmp_path, (FLAT, PartitionSpec(1, (PartitionField(1, 1000, "p1", transform),))))
    bed.by_p = Partitioned(tmp_path, (kind,), 1)
    bed.add(data("x", number), data("y", number), sequence=1)
    found = bed.facts(schema={"schema-id": 0, "fields": [{"id": 1, "name": "c1", "type": str(kind)}]})
    assert only(found).data_files == 2
    key = only(found).key
    assert (partition_name(found.metadata, key), partition_values(partition_text(key[1]))) == (f"p1={name}", key[1])
    assert predicate in (partitions_predicate(found.metadata, found.partitions) or "")


@pytest.mark.cases(85)
def test_a_manifest_of_a_spec_that_the_table_lacks_is_named(tmp_path: Path) -> None:
    """Nobody knows the partitions of its files."""
    bed = Bed(tmp_path, (BY_P,))
    bed.add(data("a"), sequence=1)
    with pytest.raises(MetadataUnreadable, match=r"\.avro is of partition spec 0, which the table does not have"):
        bed.facts()


@pytest.mark.cases(85)
def test_a_manifest_of_a_spec_that_has_other_fields_is_unreadable(tmp_path: Path) -> None:
    """As where somebody edited the spec: which value is of which field nobody knows."""
    bed = Bed(tmp_path)
    bed.add(data("a"), sequence=1)
    bed.specs = (PartitionSpec(0, (*BY_P.fields, *BY_P.fields)),)
    with pytest.raises(MetadataUnreadable, match="restore the spec"):
        bed.facts()


def test_a_rewrite_is_no_write(tmp_path: Path) -> None:
    """A partition is as hot as its last write; files of replace snapshots, and of snapshots long gone, say nothing."""
    bed = Bed(tmp_path)
    operations = {11: "append", 12: "overwrite", 13: "replace"}
    for partition, ids in {"a": (11, 12), "b": (11, 13), "c": (13,), "d": (99,), "e": (11, 99)}.items():
        for snapshot_id in ids:
            bed.add(data(f"{partition}{snapshot_id}", partition), sequence=1, snapshot_id=snapshot_id)
    snapshots = [Snapshot(i, None, 1, AT + timedelta(hours=i), "l", operation=o) for i, o in operations.items()]
    found = {p.values[0]: p.last_write and (p.last_write - AT) // timedelta(hours=1)
             for p in bed.facts(snapshots).partitions}  # fmt: skip
    assert found == {"a": 12, "b": 11, "c": None, "d": None, "e": 11}


def test_rhythm_of_writing(tmp_path: Path) -> None:
    """The first write and their number are told from the live files; rewrites and lost snapshots do not count."""
    bed = Bed(tmp_path)
    for number, snapshot_id in enumerate((11, 12, 12, 13, 14, 99)):
        bed.add(data(f"f{number}", "a"), sequence=1, snapshot_id=snapshot_id)
    operations = {11: "append", 12: "overwrite", 13: "replace", 14: "append"}
    snapshots = [Snapshot(i, None, 1, AT + timedelta(hours=i), "l", operation=o) for i, o in operations.items()]
    found = only(bed.facts(snapshots))
    assert (found.first_write, found.last_write, found.writes) == (
        AT + timedelta(hours=11),
        AT + timedelta(hours=14),
        3,
    )


def test_candidates_by_the_size_of_their_partition(tmp_path: Path) -> None:
    """With targets in steps a file is too small for a large partition and right for a small one."""
    bed = Bed(tmp_path)
    for number in range(4):
        bed.add(data(f"large{number}", "large", file_size_in_bytes=60), sequence=1)
    bed.add(data("small", "small", file_size_in_bytes=60), sequence=1)
    stepped = Thresholds(64, 48, 115, 8 * MEGABYTE, steps=((0, 64), (200, 128)))
    listed = [ours(row) for row in bed.rows]
    made = table_facts(metadata(bed.specs, ()), stepped, listed, bed.reader.entries(listed), {})
    assert {p.values: p.candidate_files for p in made.partitions} == {("large",): 4, ("small",): 0}


def test_days_are_one_partition_whoever_wrote_them(tmp_path: Path) -> None:
    """Some writers store a day as a date, some as a number: both are the same partition, its deletes included."""
    spec = PartitionSpec(1, (PartitionField(1, 1000, "p1", "day"),))
    bed = Bed(tmp_path, (FLAT, spec))
    for sequence, (kind, entry) in enumerate([(t.DateType(), data("x", 20_000)), (t.IntegerType(), data("y", 20_000)),
                                              (t.DateType(), equality("e", 20_000))], 1):  # fmt: skip
        table = Partitioned(tmp_path, (kind,), 1)
        bed.rows.append(by_fastavro(tmp_path, table.spec, table.schema, 2, [entry], (7, sequence)))
    found = only(bed.facts())
    assert (found.data_files, found.equality_delete_files) == (2, 1)
    assert found.values == (datetime(2024, 10, 4, tzinfo=UTC).date(),)
    entries = bed.reader.entries([ours(row) for row in bed.rows])
    schema = {"type": "struct", "fields": [{"id": 1, "name": "at", "required": False, "type": "date"}]}
    (counted,) = (partition_statistics(metadata(bed.specs, schema=schema), entries) or pa.table({})).to_pylist()
    assert counted["partition"] == {"p1": found.values[0]}
    assert (counted["data_file_count"], counted["equality_delete_file_count"]) == (2, 1)
