"""Copying manifests: each field of each entry survives, and the list says what the new manifests hold."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg import types as t
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestFile as Listed
from pyiceberg.manifest import construct_partition_summaries, read_manifest_list, write_manifest_list
from pyiceberg.typedef import Record, TableVersion

from icewright.adapters.engines.arrow.small_table_limits import unsupported_feature
from icewright.adapters.engines.service.avro_records import schema_field
from icewright.adapters.engines.service.manifest_bytes import read_manifest
from icewright.adapters.engines.service.manifest_files import ManifestWriter
from icewright.adapters.engines.service.manifest_list_files import manifest_list, read_list
from icewright.adapters.engines.service.partition_bounds import uncovered
from icewright.adapters.engines.service.partition_types import promoted
from icewright.adapters.engines.service.rewrite_manifests import widest
from icewright.adapters.files.tables import IcebergFiles
from icewright.core.errors import IcewrightError
from icewright.core.table import PartitionField, PartitionSpec, Snapshot, TableMetadata
from tests.adapters.writing import IO, TYPES, Partitioned, by_fastavro, entries_schema, entry, metadata, ours, record

_SUMMARY = ("contains_null", "contains_nan", "lower_bound", "upper_bound")
STATED = ("status", "snapshot_id", "sequence_number", "file_sequence_number")


def copied(
    files: IcebergFiles, folder: Path, rows: Sequence[Listed], version: int, table: TableMetadata | None = None
) -> Listed:
    """One manifest of the live entries of others, as `rewrite_manifests` makes it."""
    listed = [ours(row) for row in rows]
    sources = [read_manifest(files, manifest.path) for manifest in listed]
    table = table or metadata([PartitionSpec(0, ())], version=version)
    writer = ManifestWriter(widest(sources), table, listed[0].spec_id)
    entries = [e for manifest, source in zip(listed, sources, strict=True) for e in writer.entries(manifest, source)]
    (written,) = writer.write(files, f"file://{folder}", writer.clustered(entries), 1)
    values = {**written.row, 503: 99, 515: 9 if version > 1 else 0}
    order = (500, 501, 502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514)
    return Listed(*(values[i] for i in order), [Record(*s.values()) for s in values[507]], None)


def raw(row: Listed) -> list[dict[str, Any]]:
    """The records of a manifest as fastavro reads them, by path."""
    path = Path(row.manifest_path.removeprefix("file://"))
    with path.open("rb") as source:
        found: list[Any] = list(fastavro.reader(source))
    return sorted(found, key=lambda one: str(one["data_file"]["file_path"]))


def header(row: Listed) -> dict[str, str]:
    """The header of a manifest, without Avro's own part."""
    with Path(row.manifest_path.removeprefix("file://")).open("rb") as source:
        meta = fastavro.reader(source).metadata
    return {k: v for k, v in meta.items() if not k.startswith("avro.")} | {"fields": json.loads(meta["avro.schema"])}


def mixed(table: Partitioned, version: TableVersion, sequence: int) -> Listed:
    """A manifest with an added, an existing and a deleted entry in every partition of its types."""
    values = list(zip(*(v for kind, v in TYPES.values() if kind in table.kinds), strict=True)) or [()]
    status = [(1, None), (0, 3), (2, 4)]
    return table.crafted(
        version,
        [
            record(f"file:///t/{version}-{s}-{i}", list(value), s, n, snapshot_id=None if s == 1 and version > 1 else 5)
            for i, value in enumerate([*values, [None] * len(table.kinds)])
            for s, n in status
        ],
        sequence=sequence,
    )


@pytest.mark.cases(43, 49)
@pytest.mark.parametrize("version", [1, 2])
def test_every_field_survives(files: IcebergFiles, tmp_path: Path, version: TableVersion) -> None:
    """Each live entry is in the copy once, EXISTING, with what it inherited stated and all else as it was."""
    table = Partitioned(tmp_path, tuple(kind for kind, _ in TYPES.values()))
    source = mixed(table, version, 0 if version == 1 else 6)
    copy = copied(files, tmp_path, [source], version)
    before = [one for one in raw(source) if one["status"] != 2]
    after = raw(copy)
    assert [one["data_file"] for one in after] == [one["data_file"] for one in before]
    assert {one["status"] for one in after} == {0}
    assert [one["snapshot_id"] for one in after] == [one["snapshot_id"] or 7 for one in before]
    if version > 1:
        expected = [6 if one["sequence_number"] is None else one["sequence_number"] for one in before]
        assert [one["sequence_number"] for one in after] == expected
        assert [one["file_sequence_number"] for one in after] == expected
    assert header(copy) == header(source)
    assert copy.existing_files_count == len(before)
    assert copy.existing_rows_count == 10 * len(before)
    assert copy.min_sequence_number == (0 if version == 1 else 3)
    assert copy.manifest_length == Path(copy.manifest_path.removeprefix("file://")).stat().st_size


@pytest.mark.cases(47)
@pytest.mark.parametrize("writer", ["pyiceberg", "crafted"])
def test_v1_manifests_in_an_upgraded_table(files: IcebergFiles, tmp_path: Path, writer: str) -> None:
    """Manifests of v1 in a table that is v2 now become manifests of v2, their files of sequence number 0."""
    table = Partitioned(tmp_path, (t.StringType(),))
    if writer == "crafted":
        source = table.crafted(
            1, [record("file:///t/a", ["x"], snapshot_id=5), record("file:///t/b", [None], snapshot_id=5)]
        )
    else:
        source = table.pyiceberg(1, [entry(f"file:///t/{n}", [n], snapshot_id=5) for n in "ab"])
    copy = copied(files, tmp_path, [source], 2)
    for before, after in zip(raw(source), raw(copy), strict=True):
        kept = {k: v for k, v in before["data_file"].items() if k != "block_size_in_bytes"}
        assert {k: v for k, v in after["data_file"].items() if k in kept} == kept
        assert (after["sequence_number"], after["file_sequence_number"], after["data_file"]["content"]) == (0, 0, 0)
    assert (header(copy)["format-version"], header(copy)["content"]) == ("2", "data")
    theirs = copy.fetch_manifest_entry(IO)
    assert [(e.status.value, e.sequence_number, e.data_file.content) for e in theirs] == [(0, 0, 0)] * 2
    assert len(files.entries([ours(copy)])) == 2, "this program reads what it wrote"


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("first", ["old", "new"])
@pytest.mark.parametrize(
    ("narrow", "wide", "before", "since"),
    [
        (t.DecimalType(5, 2), t.DecimalType(38, 2), (Decimal("-1.28"), Decimal("1.28"), None), Decimal(f"{10**30}.25")),
        (t.IntegerType(), t.LongType(), (-1, 2**31 - 1, None), 2**40),
        (t.FloatType(), t.DoubleType(), (-0.5, 1.25, None), 0.1),
        (t.FloatType(), t.DoubleType(), (-0.5, 1.25, None), 1e300),
    ],
)
def test_values_from_before_a_promotion(
    files: IcebergFiles,
    tmp_path: Path,
    narrow: t.PrimitiveType,
    wide: t.PrimitiveType,
    before: Sequence[Any],
    since: Any,
    first: str,
    dropped: bool,
) -> None:
    """All partition values stay the same, whichever manifest comes first, and the bounds have the type of today.

    So they do where the column was dropped since, and no schema names its type.
    """
    tables = [Partitioned(tmp_path, (t.StringType(), kind)) for kind in (narrow, wide)]
    rows = [
        table.crafted(2, [record(f"file:///t/{value}", ["x", value]) for value in values])
        for table, values in zip(tables, (before, [since]), strict=True)
    ]
    spec = PartitionSpec(0, tuple(PartitionField(i, 999 + i, f"p{i}", "identity") for i in (1, 2)))
    column = {"id": 2, "name": "c2", "type": str(wide)}
    table = metadata([spec], schema={"type": "struct", "fields": [] if dropped else [column]})
    copy = copied(files, tmp_path, rows if first == "old" else rows[::-1], 2, table)
    found = {one["data_file"]["file_path"]: list(one["data_file"]["partition"].values()) for one in raw(copy)}
    assert found == {f"file:///t/{value}": ["x", value] for value in (*before, since)}
    real = [value for value in (*before, since) if value is not None]
    bounds = [to_bytes(wide, value) for value in (min(real), max(real))]
    assert copy.partitions is not None
    assert copy.partitions[1]._data[2:] == bounds


def test_a_promoted_type_of_two_fields_is_defined_once() -> None:
    """Avro allows one definition of a name, to which other fields refer; a field that stays keeps its type."""
    decimal = {"type": "fixed", "size": 2, "name": "decimal_4_2", "logicalType": "decimal", "precision": 4, "scale": 2}
    kinds = {1: ["null", decimal], 2: ["null", "decimal_4_2"], 3: ["null", "decimal_4_2"], 4: "int", 5: ["null", "int"]}
    partition = {"type": "record", "name": "r102", "fields": [schema_field(f"p{n}", n, k) for n, k in kinds.items()]}
    data_file = {"type": "record", "name": "r2", "fields": [schema_field("partition", 102, partition)]}
    schema = {"type": "record", "name": "manifest_entry", "fields": [schema_field("data_file", 2, data_file)]}
    wide = {**decimal, "size": 9, "name": "decimal_20_2", "precision": 20}
    after = promoted(schema, {1: "decimal(20, 2)", 3: "decimal(20, 2)", 4: "long", 5: "int"})
    fields = after["fields"][0]["type"]["fields"][0]["type"]["fields"]
    expected = [["null", wide], ["null", decimal], ["null", "decimal_20_2"], "long", ["null", "int"]]
    assert [one["type"] for one in fields] == expected
    assert promoted(schema, {1: "decimal(4, 2)", 4: "int"}) is schema


def test_a_plan_of_a_small_table_ends_with_the_type_of_its_partitions() -> None:
    """Files that a writer adds after a promotion have values that manifests of before cannot hold."""
    spec = PartitionSpec(0, (PartitionField(1, 1000, "p", "identity"),))
    at = datetime(2026, 11, 1, tzinfo=UTC)
    planned, renamed, promoted_ = (
        metadata(
            [spec],
            [Snapshot(1, None, 1, at, "snap.avro")],
            schema={"type": "struct", "fields": [{"id": 1, "name": name, "type": kind}]},
        )
        for name, kind in (("c", "float"), ("d", "float"), ("c", "double"))
    )
    assert unsupported_feature(renamed, [], has_jvm=True, planned=planned) is None
    assert unsupported_feature(promoted_, [], has_jvm=True, planned=planned) == "the types of its partition columns"


@pytest.mark.cases(47)
@pytest.mark.parametrize("first", ["v1", "v2"])
def test_v1_and_v2_manifests_together(files: IcebergFiles, tmp_path: Path, first: str) -> None:
    """An upgraded table has manifests of both versions: they are merged, whichever comes first."""
    table = Partitioned(tmp_path, (t.StringType(), t.DecimalType(9, 2)))
    old = table.crafted(1, [record("file:///t/old", ["x", Decimal("-1.28")], snapshot_id=5)])
    new = table.crafted(2, [record("file:///t/new", ["y", None])], sequence=4)
    copy = copied(files, tmp_path, [old, new] if first == "v1" else [new, old], 2)
    found = {e.data_file.file_path: e for e in copy.fetch_manifest_entry(IO)}
    assert {p.rsplit("/", 1)[1]: (e.sequence_number, e.snapshot_id) for p, e in found.items()} == {
        "old": (0, 5),
        "new": (4, 7),
    }
    assert {p.rsplit("/", 1)[1]: e.data_file.partition._data for p, e in found.items()} == {
        "old": ["x", Decimal("-1.28")],
        "new": ["y", None],
    }
    same = {"record_count", "file_size_in_bytes", "column_sizes", "lower_bounds", "split_offsets", "sort_order_id"}
    for one in (*raw(old), *raw(new)):
        (match,) = (r["data_file"] for r in raw(copy) if r["data_file"]["file_path"] == one["data_file"]["file_path"])
        assert {k: match[k] for k in same} == {k: one["data_file"][k] for k in same}
    assert len(files.entries([ours(copy)])) == 2, "this program reads what it wrote"


def test_uuids_are_bounded_in_java_s_order(files: IcebergFiles, tmp_path: Path) -> None:
    """Iceberg's Java library, which writes and prunes most tables, orders UUIDs as two signed numbers."""
    kind, (zero, ones, middle) = TYPES["uuid"]
    table = Partitioned(tmp_path, (kind,))
    rows = [record(f"file:///t/{i}", [value]) for i, value in enumerate((zero, ones, middle))]
    (summary,) = copied(files, tmp_path, [table.crafted(2, rows)], 2).partitions or []
    assert summary._data[2:] == [ones.bytes, middle.bytes]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", sorted(TYPES.keys() - {"uuid"}))
def test_partition_summaries(files: IcebergFiles, tmp_path: Path, kind: str, version: TableVersion) -> None:
    """Bounds and null flags of each type are those that PyIceberg works out."""
    iceberg_type, values = TYPES[kind]
    table = Partitioned(tmp_path, (iceberg_type,))
    for partitions in ([*values, None], list(values), [None], [values[0]]):
        rows = [record(f"file:///t/{i}", [value], snapshot_id=5) for i, value in enumerate(partitions)]
        copy = copied(files, tmp_path, [table.crafted(version, rows)], version)
        theirs = construct_partition_summaries(table.spec, table.schema, [Record(value) for value in partitions])
        assert [s._data for s in copy.partitions or []] == [s._data for s in theirs]


@pytest.mark.parametrize("unscaled", [-1, -127, -128, -129, -32768, -32769, 0, 127, 128, 255, 256, 999_999_999])
def test_decimal_bounds_are_minimal(files: IcebergFiles, tmp_path: Path, unscaled: int) -> None:
    """A decimal bound takes as few bytes as hold it (spec, Appendix D), as Java's BigInteger.toByteArray has it."""
    table = Partitioned(tmp_path, (t.DecimalType(9, 2),))
    source = table.crafted(2, [record("file:///t/a", [Decimal(unscaled).scaleb(-2)])])
    copy = copied(files, tmp_path, [source], 2)
    (summary,) = copy.partitions or []
    length = next(n for n in range(1, 9) if -(1 << 8 * n - 1) <= unscaled < 1 << 8 * n - 1)
    assert summary._data[2:] == [unscaled.to_bytes(length, "big", signed=True)] * 2


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("others", [[], [1.5, -2.5]])
def test_nan_is_flagged_and_bounds_nothing(files: IcebergFiles, tmp_path: Path, kind: str, others: list[float]) -> None:
    """Not-a-number is no bound but a flag of its own."""
    table = Partitioned(tmp_path, (TYPES[kind][0],))
    values = [others[0], float("nan"), *others[1:]] if others else [float("nan")]
    copy = copied(files, tmp_path, [table.crafted(2, [record("file:///t/a", [v]) for v in values])], 2)
    theirs = construct_partition_summaries(table.spec, table.schema, [Record(value) for value in values])
    assert [s._data for s in copy.partitions or []] == [s._data for s in theirs]
    assert theirs[0].contains_nan
    field, listed = {"name": "f", "type": {"type": kind}}, dict(zip(_SUMMARY, theirs[0]._data, strict=True))
    for stated, faults in ((True, 0), (None, 0), (False, 1)):  # by `is nan` readers skip what is said to have none
        assert len(list(uncovered([field], [listed | {"contains_nan": stated}], [(v,) for v in values]))) == faults


@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0]])
@pytest.mark.parametrize(("kind", "code"), [("float", "<f"), ("double", "<d")])
def test_zeros_are_bounded_in_java_s_order(
    files: IcebergFiles, tmp_path: Path, kind: str, code: str, zeros: list[float]
) -> None:
    """To Java, minus zero is less than zero: bounds the other way round would hold neither."""
    table = Partitioned(tmp_path, (TYPES[kind][0],))
    copy = copied(files, tmp_path, [table.crafted(2, [record("file:///t/a", [zero]) for zero in zeros])], 2)
    (summary,) = copy.partitions or []
    less, more = summary._data[2:]
    assert (less, more) == (struct.pack(code, -0.0), struct.pack(code, 0.0))
    field, tuples = {"name": "f", "type": {"type": kind}}, [(zero,) for zero in zeros]
    for lower, upper, faults in ((less, more, 0), (more, less, 1), (less, less, 1), (more, more, 1)):
        listed = {"contains_null": False, "contains_nan": False, "lower_bound": lower, "upper_bound": upper}
        assert len(list(uncovered([field], [listed], tuples))) == faults


def test_two_fields_of_one_fixed_type(files: IcebergFiles, tmp_path: Path) -> None:
    """Java names a fixed type once and refers to it from then on: both decimal fields are copied and summed up."""
    table = Partitioned(tmp_path, (t.DecimalType(9, 2), t.DecimalType(9, 2)))
    other = Partitioned(tmp_path, (t.DecimalType(9, 2), t.DecimalType(9, 3)))  # fastavro refuses one name twice
    schema = entries_schema(2, other.spec, other.schema)
    data = next(f for f in schema["fields"] if f["name"] == "data_file")
    partition = next(f for f in data["type"]["fields"] if f["name"] == "partition")
    first, second = partition["type"]["fields"]
    second["type"] = ["null", first["type"][1]["name"]]
    values = [[Decimal("-1.28"), Decimal("3.00")], [Decimal("7.00"), Decimal("-300.00")]]
    entries = [record(f"file:///t/{i}", pair) for i, pair in enumerate(values)]
    source = by_fastavro(tmp_path, table.spec, table.schema, 2, entries, (7, 5), json.loads(json.dumps(_bare(schema))))
    copy = copied(files, tmp_path, [source], 2)
    assert [one["data_file"]["partition"] for one in raw(copy)] == [
        one["data_file"]["partition"] for one in raw(source)
    ]
    numbers = [tuple(int.from_bytes(b, "big", signed=True) for b in s._data[2:]) for s in copy.partitions or []]
    assert numbers == [(-128, 700), (-30_000, 300)]
    assert len(files.entries([ours(copy)])) == 2


def test_one_fixed_type_defined_twice(files: IcebergFiles, tmp_path: Path) -> None:
    """PyIceberg defines the type of each field anew, which Avro forbids: it is copied, or an error on purpose."""
    table = Partitioned(tmp_path, (t.DecimalType(9, 2), t.DecimalType(9, 2)))
    source = table.pyiceberg(2, [entry("file:///t/a", [Decimal("1.00"), Decimal("2.00")])])
    try:
        copied(files, tmp_path, [source], 2)
    except IcewrightError as error:
        assert source.manifest_path in str(error)  # noqa: PT017 - either outcome is right


def _bare(schema: Any) -> Any:
    """A schema without what fastavro notes in it."""
    return {k: v for k, v in schema.items() if not k.startswith("__")}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("lists", [1, 2])
def test_lists_carry_over_rows(files: IcebergFiles, tmp_path: Path, version: int, lists: TableVersion) -> None:
    """The new list has the new manifests first and the kept rows as they were; PyIceberg reads both."""
    if lists > version:
        return  # no table goes back
    table = Partitioned(tmp_path, (t.StringType(),))
    kept = table.pyiceberg(lists, [entry("file:///t/kept", ["é"], sequence=0, snapshot_id=5)], snapshot_id=5)
    output = IO.new_output(f"file://{tmp_path}/snap-1.avro")
    with write_manifest_list(lists, output, 5, None, 0, "deflate") as writer:
        writer.add_manifests([kept])
    rows = read_list(files, output.location, version)
    source = table.crafted(lists, [record("file:///t/a", ["a"], snapshot_id=5)])
    manifest = read_manifest(files, ours(source).path)
    maker = ManifestWriter(manifest, metadata([PartitionSpec(0, ())], version=version), 0)
    (new,) = maker.write(files, f"file://{tmp_path}", maker.entries(ours(source), manifest), 1)
    base = metadata([PartitionSpec(0, ())], version=version)
    location = f"file://{tmp_path}/snap-2.avro"
    files.write(location, manifest_list(rows, rows.records, [new], base, 99, 5, 9 if version > 1 else 0))
    first, second = read_manifest_list(IO.new_input(location))
    assert (first.manifest_path, first.added_snapshot_id, first.sequence_number) == (new.path, 99, 9 * (version > 1))
    assert (first.existing_files_count, first.existing_rows_count, first.added_files_count) == (1, 10, 0)
    assert [s._data for s in first.partitions or []] == [[False, False, b"a", b"a"]]
    (before,) = read_manifest_list(IO.new_input(output.location))
    assert [v for i, v in enumerate(second._data) if i != 3] == [v for i, v in enumerate(before._data) if i != 3]
    assert second.content == before.content == 0
    snapshot = Snapshot(99, 5, 9, base.last_updated, location)
    assert [m.path for m in files.manifests(snapshot)] == [new.path, kept.manifest_path], "this program reads it too"
    meta = fastavro.reader(io.BytesIO(files.read(location))).metadata
    assert (meta["snapshot-id"], meta["parent-snapshot-id"], meta["format-version"]) == ("99", "5", str(version))
