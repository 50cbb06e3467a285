"""The Arrow kernel without Spark: columns by field id, deletes, orders, outputs, and files that are broken."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.adapters.engines.arrow.batch_rows import batch_rows_of
from icewright.adapters.engines.arrow.metrics import leaves, truncate_bounds
from icewright.adapters.engines.arrow.tasks import (
    BinFailed,
    BinWritten,
    DeleteFile,
    DeleteKind,
    FileSlice,
    split_into_bins,
)
from icewright.adapters.engines.arrow.types import LAST_UPDATED, ROW_ID, Field, arrow_field, arrow_schema
from tests.adapters.arrow_tables import ID, NAME, Folder, column, rewritten_in_memory

POINT = {"type": "struct", "fields": [column(11, "x", "int"), column(12, "y", "int")]}


def _counts(kind: str) -> Mapping[str, Any]:
    return {"type": "map", "key-id": 3, "key": "string", "value-id": 4, "value": kind, "value-required": False}


ROWS = [{"id": n, "name": f"name {n}"} for n in range(10)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty one."""
    return Folder(tmp_path)


@pytest.mark.cases(44, 45, 46, 50)
@pytest.mark.parametrize(
    ("had", "row", "wanted", "found"),
    [
        (column(1, "old", "long"), 7, column(1, "new", "long"), 7),
        (column(9, "same", "long"), 7, column(1, "same", "long"), None),
        (column(1, "a", "int"), 7, column(1, "a", "long"), 7),
        (column(1, "a", "float"), 0.5, column(1, "a", "double"), 0.5),
        (column(1, "a", "decimal(5, 2)"), Decimal("1.25"), column(1, "a", "decimal(12, 2)"), Decimal("1.25")),
        (column(9, "a", "int"), 7, column(1, "b", "int", default=34), 34),
        (column(9, "a", "int"), 7, column(1, "b", "date", default="2020-02-29"), date(2020, 2, 29)),
        (column(9, "a", "int"), 7, column(1, "b", "decimal(5, 2)", default="1.50"), Decimal("1.50")),
        (column(9, "a", "int"), 7, column(1, "b", "binary", default="00FF"), b"\x00\xff"),
        (
            column(9, "a", "int"),
            7,
            column(1, "b", "timestamptz", default="2020-01-01T00:00:00+00:00"),
            datetime(2020, 1, 1, tzinfo=UTC),
        ),
        (column(1, "p", POINT), {"x": 1, "y": 2}, column(1, "p", POINT), {"x": 1, "y": 2}),
        (
            column(1, "p", POINT),
            {"x": 1, "y": 2},
            column(1, "p", {"type": "struct", "fields": [column(12, "why", "long"), column(13, "z", "string")]}),
            {"why": 2, "z": None},
        ),
        (
            column(1, "l", {"type": "list", "element-id": 3, "element": "int", "element-required": False}),
            [1, None],
            column(1, "l", {"type": "list", "element-id": 3, "element": "long", "element-required": False}),
            [1, None],
        ),
        (
            column(1, "l", {"type": "list", "element-id": 3, "element": POINT, "element-required": False}),
            [{"x": 1, "y": 2}, None],
            column(
                1,
                "l",
                {
                    "type": "list",
                    "element-id": 3,
                    "element": {"type": "struct", "fields": [column(12, "y", "long")]},
                    "element-required": False,
                },
            ),
            [{"y": 2}, None],
        ),
        (
            column(1, "m", _counts("int")),
            [("k", 1), ("n", None)],
            column(1, "m", _counts("long")),
            [("k", 1), ("n", None)],
        ),
    ],
)
def test_columns_are_found_by_field_id(had: Field, row: object, wanted: Field, found: object, tmp_path: Path) -> None:
    """Renamed, promoted, nested and missing columns read as the schema has them now, nulls too."""
    folder = Folder(tmp_path, [wanted])
    path = folder.write([{had["name"]: row}, {had["name"]: None}], [had])
    nothing = found if wanted.get("initial-default") is not None else None
    assert [one[wanted["name"]] for one in folder.rows(folder.file_slice(path))] == [found, nothing]


@pytest.mark.parametrize("by", ["id", "name"])
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32(), 40), pa.list_view(pa.float32()), pa.large_list_view(pa.float32())], ids=str
)
def test_lists_of_any_arrow_type_are_lists(kind: pa.DataType, by: str, tmp_path: Path) -> None:
    """A file's Arrow schema may name types whose buffers are others than those of a list, as embeddings have them."""
    wanted = column(2, "v", {"type": "list", "element-id": 3, "element": "float", "element-required": False})
    folder = Folder(tmp_path, [ID, wanted])
    values = [[float(n + m) if m % 7 else None for m in range(40)] if n % 3 else None for n in range(100)]
    path = str(tmp_path / "lists.parquet")
    fields = [arrow_field(ID), arrow_field(wanted).with_type(kind)]
    if by == "name":
        fields = [one.remove_metadata() for one in fields]
        inner = {"field-id": 3, "names": ["element"]}
        mapping = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["v"], "fields": [inner]}]
        folder.of(properties={"schema.name-mapping.default": json.dumps(mapping)})
    pq.write_table(pa.Table.from_arrays([pa.array(range(100)), pa.array(values, kind)], schema=pa.schema(fields)), path)
    assert [row["v"] for row in folder.rows(folder.file_slice(path))] == values


def test_a_required_column_that_a_file_lacks_names_the_file(tmp_path: Path) -> None:
    """There is no value to write: nothing is written."""
    folder = Folder(tmp_path, [column(5, "must", "int", required=True)])
    path = folder.write([{"id": 1}], [ID])
    found = folder.rewrite(folder.file_slice(path))
    assert isinstance(found, BinFailed)
    assert path in found.error
    assert "must" in found.error
    assert not list(tmp_path.glob("out*"))


def test_partition_values_stand_for_their_columns(folder: Folder) -> None:
    """An identity partition's value holds whether the file has the column or not."""
    path = folder.write([{"id": 1}], [ID])
    assert folder.rows(folder.file_slice(path), partition={2: "here"}) == [{"id": 1, "name": "here"}]
    assert folder.rows(folder.file_slice(path), partition={1: 5, 2: None}) == [{"id": 5, "name": None}]


def test_files_without_ids_need_a_name_mapping(folder: Folder, tmp_path: Path) -> None:
    """Columns are found by the mapping's names; without a mapping the file is refused by name."""
    import pyarrow as pa

    path = str(tmp_path / "foreign.parquet")
    pq.write_table(pa.table({"ID": [1], "label": ["a"], "more": [2]}), path)
    refused = folder.rewrite(folder.file_slice(path))
    assert isinstance(refused, BinFailed)
    assert refused.unsupported
    assert "name mapping" in refused.error
    mapping = '[{"field-id": 1, "names": ["id", "ID"]}, {"field-id": 2, "names": ["label"]}, {"names": ["more"]}]'
    folder.of(properties={"schema.name-mapping.default": mapping})
    assert folder.rows(folder.file_slice(path)) == [{"id": 1, "name": "a"}]


def test_structs_without_any_mapped_field_are_left_to_spark(tmp_path: Path) -> None:
    """Spark reads null for one: a struct of nulls in its place would be another answer after the compaction."""
    struct = {"type": "struct", "fields": [column(3, "a", "int")]}
    folder = Folder(tmp_path, [column(2, "s", struct)])
    inner = {"field-id": 3, "names": ["a"]}
    mapping = [{"field-id": 2, "names": ["s"], "fields": [inner]}]
    folder.of(properties={"schema.name-mapping.default": json.dumps(mapping)})
    path = str(tmp_path / "foreign.parquet")
    pq.write_table(pa.table({"s": [{"x": 1}, None]}), path)
    refused = folder.rewrite(folder.file_slice(path))
    assert isinstance(refused, BinFailed)
    assert refused.unsupported
    assert "struct<x: int64> for struct<a: int32>" in refused.error


@pytest.mark.cases(27, 29)
def test_positions_are_deleted_once(folder: Folder) -> None:
    """Unsorted and repeated positions of several files, and those of other data files, count as they should."""
    one, other = folder.write(ROWS), folder.write(ROWS)
    mixed = folder.positions((one, 9), (other, 0), (one, 3), (one, 9), ("elsewhere", 4))
    more = folder.positions((one, 0))
    rows = folder.rows(folder.file_slice(one, mixed, more), folder.file_slice(other, mixed))
    assert [row["id"] for row in rows] == [1, 2, 4, 5, 6, 7, 8, *range(1, 10)]


@pytest.mark.cases(35)
def test_a_deletion_vector_is_read_from_its_place(folder: Folder) -> None:
    """Its positions go, also those of other row groups than the first."""
    path = folder.write(ROWS, row_group_size=4)
    found = folder.rewrite(folder.file_slice(path, folder.vector(0, 5, 9)))
    assert isinstance(found, BinWritten)
    assert (found.read, found.deleted) == (10, 3)
    assert [row["id"] for row in folder.rows(folder.file_slice(path, folder.vector(0, 5, 9)))] == [1, 2, 3, 4, 6, 7, 8]


@pytest.mark.cases(20, 24, 25, 26)
def test_keys_delete_what_equals_them(tmp_path: Path) -> None:
    """Null equals null and NaN equals NaN, zero is not minus zero; each set of columns counts for itself."""
    value = column(3, "value", "double")
    folder = Folder(tmp_path, [ID, value])
    dropped = column(8, "gone", "string")
    rows: list[dict[str, Any]] = [
        {"id": 1, "value": 0.0},
        {"id": 2, "value": -0.0},
        {"id": 3, "value": math.nan},
        {"id": 4, "value": None},
        {"id": None, "value": 1.0},
        {"id": 6, "value": 6.0, "gone": "yes"},
        {"id": 8, "value": 8.0},
    ]
    path = folder.write(rows, [ID, value, dropped])
    folder.of(older_fields={8: dropped})
    found = folder.rows(
        folder.file_slice(
            path,
            folder.keys([value], [3], {"value": -0.0}, {"value": math.nan}, {"value": None}),
            folder.keys([ID], [1], {"id": None}, {"id": 60}),
            folder.keys([dropped], [8], {"gone": "yes"}),
        )
    )
    assert [row["id"] for row in found] == [1, 8]


@pytest.mark.cases(22, 25)
@pytest.mark.parametrize(
    ("field", "number", "value"),
    [(column(3, "p", POINT), 12, {"x": 1, "y": 2}), (column(3, "f", "fixed[2]"), 3, b"ab")],
)
def test_keys_that_readers_do_not_find_are_left_to_spark(
    field: Mapping[str, Any], number: int, value: Any, tmp_path: Path
) -> None:
    """Iceberg's reader keeps the last fixed value of a file alone, and loses values in structs of the same hash."""
    folder = Folder(tmp_path, [ID, field])
    path = folder.write([{"id": 1, field["name"]: value}])
    left = folder.rewrite(folder.file_slice(path, folder.keys([field], [number], {field["name"]: value})))
    assert isinstance(left, BinFailed)
    assert (left.unsupported, f"column {number}, which is" in left.error) == (True, True)


def test_names_are_not_mapped_in_equality_deletes(folder: Folder, tmp_path: Path) -> None:
    """Iceberg's reader takes columns without ids by their place: such deletes are left to Spark."""
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "keys.parquet")
    folder.of(properties={"schema.name-mapping.default": '[{"field-id": 2, "names": ["name"]}]'})
    keys = DeleteFile(DeleteKind.EQUALITY, str(tmp_path / "keys.parquet"), equality_ids=(2,))
    left = folder.rewrite(folder.file_slice(folder.write([{"id": 1, "name": "a"}]), keys))
    assert isinstance(left, BinFailed)
    assert (left.unsupported, "without field ids" in left.error) == (True, True)


@pytest.mark.cases(38)
def test_rows_keep_their_ids(folder: Folder) -> None:
    """Ids and sequence numbers come from the file where it has them, else from its entry, else there are none."""
    folder.of(has_row_ids=True)
    fresh = folder.write(ROWS[:3])
    moved = folder.write(
        [
            {"id": 5, "_row_id": 77, "_last_updated_sequence_number": None},
            {"id": 6, "_last_updated_sequence_number": 4},
        ],
        [ID, NAME, ROW_ID, LAST_UPDATED],
    )
    old = folder.write(ROWS[:1])
    rows = folder.rows(
        folder.file_slice(fresh, folder.vector(1), first_row_id=100, sequence_number=8),
        folder.file_slice(moved, first_row_id=200, sequence_number=9),
        folder.file_slice(old),
    )
    lineage = [(row["id"], row["_row_id"], row["_last_updated_sequence_number"]) for row in rows]
    assert lineage == [(0, 100, 8), (2, 102, 8), (5, 77, 9), (6, 201, 4), (0, None, None)]


def test_outputs_share_the_rows(folder: Folder) -> None:
    """Each file gets about the same number; entries say size, rows and row groups as they are."""
    paths = [folder.write(ROWS) for _ in range(5)]
    found = folder.rewrite(*map(folder.file_slice, paths), outputs=3)
    assert isinstance(found, BinWritten)
    assert [one["record-count"] for one in found.files] == [17, 17, 16]
    for one in found.files:
        footer = pq.read_metadata(one["file-path"])
        assert Path(one["file-path"]).stat().st_size == one["file-size-in-bytes"]
        assert footer.num_rows == one["record-count"]
        assert one["split-offsets"] == [4]
        assert "-7-" in one["file-path"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "numbers"),
    [([f"{n}" * 8000 for n in range(5)], [n % 5 for n in range(20_000)]),
     (["a", "b" * 200_000, "c"], [0] * 4500 + [1] * 750 + [2] * 4500)],
    ids=["without bounds", "between short bounds"],
)  # fmt: skip
def test_values_of_a_dictionary_are_not_all_held(folder: Folder, values: list[str], numbers: list[int]) -> None:
    """A file that is a thousandth of what it holds is rewritten, sorted too, in the memory of a task."""
    names = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(values))
    path, count = folder.place / "dictionary.parquet", len(numbers)
    kinds = arrow_schema([ID, NAME])
    rows = pa.Table.from_arrays(
        [pa.array(range(count)), names], schema=kinds.set(1, kinds.field(1).with_type(names.type))
    )
    pq.write_table(rows, path, store_schema=False)
    for by in ((), ((1, True, True),)):
        folder.of(order=by)
        rewritten_in_memory(folder, path, count)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [250, 0])
def test_wide_rows_of_repeated_values_are_not_all_held(folder: Folder, stored: int) -> None:
    """Numbers that repeat take no room in a file, and defaults of columns that it lacks none: batches are small."""
    folder.fields = [column(number, f"c{number}", "long", default=7) for number in range(1, 251)]
    folder.fields = folder.fields if stored else [column(1, "c1", "string", default="long" * 1000)]
    schema = arrow_schema([*folder.fields[:stored], column(251, "dropped", "long")])
    sevens = pa.array([7] * (1 << 17))
    path = folder.place / "wide.parquet"
    pq.write_table(pa.Table.from_arrays([sevens] * len(schema), schema=schema), path)
    folder.of(schema={"type": "struct", "fields": folder.fields})
    rewritten_in_memory(folder, path, len(sevens))


def test_batches_are_as_large_as_the_values_of_dictionaries_allow(tmp_path: Path) -> None:
    """Short values make large batches, whose rows take less time each; a long one among them makes them small."""
    path = tmp_path / "rows.parquet"

    def rows_of(*texts: str | None) -> int:
        pq.write_table(pa.table({"text": [*texts, *["short"] * 100_000]}), path)
        return batch_rows_of(pa.OSFile(str(path)), pq.read_metadata(path), [0])

    assert rows_of() == rows_of(None, "other") == 1 << 17
    assert rows_of("short", "r" + "x" * 400_000, "z" * 1000) == (16 << 20) // 400_001
    assert rows_of("x" * 5000) < 1 << 13, "as before: the footer has no bounds"


@pytest.mark.cases(31)
def test_no_rows_no_file(folder: Folder) -> None:
    """When every row is deleted nothing is written."""
    path = folder.write(ROWS)
    found = folder.rewrite(folder.file_slice(path, folder.vector(*range(10))))
    assert found == BinWritten(0, (), 10, 10)
    assert not list(folder.place.glob("out*"))


def _nothing(_: Path) -> None: ...


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _overwrite(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20:60] = bytes(40)
    path.write_bytes(content)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[path.read_bytes().index(b"name 3")] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("break_it", "lie", "said"),
    [
        (_cut, {}, "bytes where its entry says"),
        (_overwrite, {}, ""),
        (_flip, {}, ""),
        (Path.unlink, {}, ""),
        (_nothing, {"records": 11}, "rows where its entry says 11"),
    ],
    ids=["cut short", "corrupt page", "a flipped bit", "missing", "lying footer"],
)
def test_a_broken_file_is_named_and_nothing_is_left(
    break_it: Any, lie: Mapping[str, int], said: str, folder: Folder
) -> None:
    """The answer names the file; outputs that were begun are gone."""
    well, broken = folder.write(ROWS), folder.write(ROWS, compression="none", write_page_checksum=True)
    file_slice = folder.file_slice(broken, **lie)
    break_it(Path(broken))
    found = folder.rewrite(folder.file_slice(well), file_slice, outputs=4)
    assert isinstance(found, BinFailed)
    assert broken in found.error
    assert said in found.error
    assert not found.unsupported
    assert not list(folder.place.glob("out*"))


def test_a_broken_deletion_vector_is_named(folder: Folder) -> None:
    """A vector whose checksum is wrong, or that has not as many positions as its entry says, deletes nothing."""
    path = folder.write(ROWS)
    spoilt = folder.rewrite(folder.file_slice(path, folder.vector(1, spoil=True)))
    vector = folder.vector(1, 2)
    short = DeleteFile(DeleteKind.VECTOR, vector.path, vector.offset, vector.length, 3)
    counted = folder.rewrite(folder.file_slice(path, short))
    assert isinstance(spoilt, BinFailed)
    assert isinstance(counted, BinFailed)
    assert "checksum" in spoilt.error
    assert "2 positions where its entry says 3" in counted.error


def test_position_deletes_without_positions_are_named(folder: Folder) -> None:
    """An entry may call a file of rows one of position deletes."""
    path = folder.write(ROWS)
    found = folder.rewrite(folder.file_slice(path, DeleteFile(DeleteKind.POSITION, path)))
    assert isinstance(found, BinFailed)
    assert f"{path} has no columns of position deletes" in found.error


def _piece(number: int, size: int, groups: int = 1) -> FileSlice:
    offsets = tuple(4 + part * size // groups for part in range(groups))
    return FileSlice(f"f{number}", size, size, size, 1, None, (), 0, offsets)


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=30), outputs=st.integers(1, 12), groups=st.integers(1, 5)
)
def test_bins_hold_every_byte_once(sizes: list[int], outputs: int, groups: int) -> None:
    """Whatever the sizes: each range of each file is in one bin, and there are about as many outputs as asked for."""
    files = [_piece(number, size, groups) for number, size in enumerate(sizes)]
    found = split_into_bins(files, outputs=outputs, split_bytes=1000)
    held = sorted((p.path, p.start, p.end) for slices, _ in found for p in slices)
    for path, ranges in itertools.groupby(held, key=lambda one: one[0]):
        parts = list(ranges)
        assert parts[0][1] == 0
        assert parts[-1][2] == sizes[int(path[1:])]
        assert all(one[2] == following[1] for one, following in itertools.pairwise(parts))
    assert {path for path, _, _ in held} == {file.path for file in files}
    assert all(slices and count >= 1 for slices, count in found)


def test_metrics_of_many_columns() -> None:
    """The first hundred columns have bounds: those of a struct come after the columns beside it."""
    inside = {"type": "struct", "fields": [column(1000 + n, f"i{n}", "int") for n in range(5)]}
    fields = [column(1, "s", inside), *(column(2 + n, f"c{n}", "int") for n in range(98))]
    modes = {one.id: one.mode for one in leaves(fields, {}, [1004])}
    assert [modes[number] for number in (2, 99, 1000, 1001, 1002, 1003, 1004)] == [
        *["truncate(16)"] * 4,
        *["none"] * 2,
        "truncate(16)",
    ]
    assert {
        one.mode
        for one in leaves([*fields[1:], column(999, "c", "int"), column(998, "d", "int"), ROW_ID, LAST_UPDATED], {}, [])
    } == {"truncate(16)"}
    assert {one.mode for one in leaves(fields, {"write.metadata.metrics.default": "counts"}, [])} == {"counts"}
    assert {one.mode for one in leaves(fields[:1], {"write.metadata.metrics.column.s.i2": "Full"}, [])} == {
        "truncate(16)",
        "full",
    }


@pytest.mark.parametrize(("most", "modes"), [("1", ["truncate(16)", "none"]), ("-1", ["truncate(16)"] * 2)])
def test_what_is_no_metrics_mode(most: str, modes: list[str]) -> None:
    """It counts as that of columns which nothing names, also for one of the first or the sorted columns."""
    fields = [column(number, f"c{number}", "int") for number in (1, 2)]
    properties = {"write.metadata.metrics.max-inferred-column-defaults": most}
    assert [one.mode for one in leaves(fields, properties, [])] == modes
    wrong = {f"write.metadata.metrics.column.c{number}": "truncate(0)" for number in (1, 2)}
    assert [one.mode for one in leaves(fields, properties | wrong, [2])] == [modes[1]] * 2


@pytest.mark.parametrize(
    ("kind", "low", "high", "found"),
    [
        ("string", "abc", "abd", ("ab", "ac")),
        ("string", "a", "b", ("a", "b")),
        ("string", "éé€", "éé€", ("éé", "éê")),
        ("string", "x", "a\U0010ffff!", ("x", "b")),
        ("string", "x", "\U0010ffff\U0010ffff!", ("x", None)),
        ("string", "x", "\ud7ff\U0010ffff!", ("x", "\ue000")),
        ("binary", b"\x01\x02\x03", b"\x01\xff\x03", (b"\x01\x02", b"\x02")),
        ("binary", b"", b"\xff\xff\xff", (b"", None)),
    ],
)
def test_bounds_are_cut_to_be_bounds_still(
    kind: str, low: str | bytes, high: str | bytes, found: tuple[str | bytes, str | bytes | None]
) -> None:
    """The lower one is a beginning, the upper one the next beginning; none where there is none so short."""

    def raw(value: str | bytes) -> bytes:
        return value.encode() if isinstance(value, str) else value

    low_cut, high_cut = truncate_bounds(kind, raw(low), raw(high), 2)
    assert (low_cut, high_cut) == (raw(found[0]), None if found[1] is None else raw(found[1]))
