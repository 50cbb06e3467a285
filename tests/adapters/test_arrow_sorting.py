"""Rows are sorted in the memory of a task, by one task or by several together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.adapters.engines.arrow import order
from icewright.adapters.engines.arrow.exchange import (
    SampledBin,
    SortedGroup,
    SplitBin,
    chosen_ranges,
    merge,
    planned,
    sampled,
    split,
    write_range,
)
from icewright.adapters.engines.arrow.ranges import TIE, KeySample, divide, sorted_rows, ties
from icewright.adapters.engines.arrow.tasks import Bin, BinFailed, BinResult, BinWritten, FileSlice
from icewright.adapters.engines.arrow.types import arrow_schema
from icewright.core.sortedness import overlap
from tests.adapters.arrow_tables import MEMORY, Folder, column, rewritten_in_memory


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty one."""
    return Folder(tmp_path)


BY_NAME: Sequence[tuple[int, bool, bool]] = ((2, True, True), (1, False, False))


@pytest.mark.parametrize("budget", [64 << 20, 1 << 14], ids=["in memory", "by shares"])
def test_rows_are_sorted(budget: int, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all columns, each in its direction, nulls where they belong; in memory or through files beside the task."""
    names = ["b", None, "a", "c", "a"]
    rows = [{"id": n, "name": names[n % 5]} for n in range(2000)]
    paths = [folder.write(rows[start::4], row_group_size=100) for start in range(4)]
    monkeypatch.setattr(order, "_ROW_MEMORY_SHARE", MEMORY // budget)
    folder.of(order=tuple(BY_NAME))
    found = folder.rows(*(folder.file_slice(path, folder.positions((path, 0))) for path in paths))
    kept = [row for number, row in enumerate(rows) if number >= 4]
    wanted = [row for name in ("c", "b", "a", None) for row in kept if row["name"] == name]
    assert found == wanted


@pytest.mark.parametrize(("by", "most"), [(1, 9 << 20), (2, 4 << 20)], ids=["number", "text"])
def test_rows_of_long_keys_are_sorted_a_few_at_a_time(by: int, most: int, folder: Folder) -> None:
    """Keys of texts are in memory some times: those of 5 KB took 650 MB of 512."""
    folder.of(memory_bytes=64 << 20, order=((by, False, False),))
    ids, names = pa.array(range(100)), pa.array(["x" * 5000] * 100)
    rows = pa.record_batch([ids, names, ids.cast(pa.uint64())], names=["id", "name", TIE])
    sizes = [table.nbytes for table in order.chunks(itertools.repeat(rows, 64), folder.layout)]
    assert sum(sizes) == 64 * rows.nbytes
    assert most // 2 < max(sizes) < most


@pytest.mark.slow
def test_long_rows_are_sorted_in_the_memory_of_a_task(folder: Folder) -> None:
    """Arrow takes long values into a buffer that doubles, beside a copy of them: rows of 4 MB took 753 MB of 512."""
    folder.of(memory_bytes=128 << 20, order=((1, True, False),))
    path, count = folder.place / "long.parquet", 60
    rows = pa.Table.from_arrays(
        [pa.array([n * 7 % count for n in range(count)]), pa.array([f"{n:04}" * 500_000 for n in range(count)])],
        schema=arrow_schema(folder.fields),
    )
    pq.write_table(rows, path, use_dictionary=False, write_batch_size=1, row_group_size=10)
    rewritten_in_memory(folder, path, count, 96 << 20)  # it was 120


@pytest.mark.parametrize("different", [2000, 50, 1], ids=["all differ", "come again", "are one"])
def test_texts_are_sorted_however_many_there_are(different: int, folder: Folder) -> None:
    """In the memory of a task, and where it is so little that ranges of rows are divided again."""
    rows = [{"id": n, "name": f"name {n * 7919 % different:05d}" + "x" * 500} for n in range(2000)]
    path = folder.write(rows, row_group_size=100)
    for memory in (MEMORY, 1 << 20):
        folder.of(order=((2, True, False), (1, False, False)), memory_bytes=memory)
        found = folder.rows(folder.file_slice(path))
        assert found == sorted(rows, key=lambda row: (-int(str(row["name"])[5:10]), row["id"]))


def test_a_range_of_long_rows_is_divided_again(folder: Folder) -> None:
    """A sample counts rows, not bytes: nearly all bytes are in one range here, and one row is longer than a range."""
    rows = [{"id": n, "name": "x" * (3000 if n == 5000 else 10 if n < 9000 else 400)} for n in range(10_000)]
    path = folder.write(rows[::-1], row_group_size=1000)
    folder.of(order=((1, False, False),), memory_bytes=400_000)
    assert folder.rows(folder.file_slice(path)) == rows


def test_keys_beyond_the_memory_are_left_to_others(tmp_path: Path) -> None:
    """A bin that cannot be ordered in the memory of a task is no failure: another path does it."""
    fields = [column(number, f"key{number}", "string") for number in range(1, 6)]
    folder = Folder(tmp_path, fields)
    path = folder.write([{field["name"]: f"{n}" * 6000 for field in fields} for n in range(9)], row_group_size=1)
    folder.of(order=tuple((field["id"], False, False) for field in fields), memory_bytes=400_000)
    found = folder.rewrite(folder.file_slice(path))
    assert isinstance(found, BinFailed)
    assert found.unsupported
    assert "do not fit into the memory of a task" in found.error


def together(
    folder: Folder, bins: Sequence[Sequence[FileSlice]], outputs: int, *, shuffled: bool = True
) -> list[BinResult]:
    """What the tasks answer that sort a group together: as Spark's shuffle would connect them, or as each reads all."""
    rows = sum(piece.records for slices in bins for piece in slices)
    group = SortedGroup(
        [Bin(0, tuple(slices), {}, "", 1) for slices in bins],
        [Bin(0, (), {}, f"{folder.place}/sorted{number}", 1) for number in range(outputs)],
        rows,
        sum(piece.bytes for slices in bins for piece in slices),
    )
    layout = folder.layout
    samples = [sampled(layout, SampledBin(bin_, n, rows, 1 << 20)) for n, bin_ in enumerate(group.bins)]
    if failed := [sample for sample in samples if isinstance(sample, BinFailed)]:
        return list(failed)
    ranges, parts = planned(layout, group, [sample for sample in samples if isinstance(sample, KeySample)])
    if not shuffled:
        return [answer for task in chosen_ranges(group, ranges, parts) for answer in write_range(layout, task)]
    pieces = [p for n, bin_ in enumerate(group.bins) for p in split(layout, SplitBin(bin_, n, 0, ranges))]
    return [
        answer
        for number in range(len(parts))
        if (received := [piece for piece in pieces if piece.part == number])
        for answer in merge(layout, parts, number, iter(received))
    ]


@pytest.mark.parametrize(("outputs", "shuffled"), [(1, True), (4, True), (5, True), (3, False)])
def test_a_z_order_keeps_neighbours_together(outputs: int, shuffled: bool, tmp_path: Path) -> None:
    """Outputs are boxes that do not overlap, and a quarter of a box spans about half of it in both columns."""
    folder = Folder(tmp_path, [column(1, "x", "int"), column(2, "y", "double")])
    grid = [{"x": x, "y": float(y)} for x, y in itertools.product(range(16), repeat=2)]
    folder.of(order=((1, False, False), (2, False, False)), zorder=True)
    found = together(
        folder, [[folder.file_slice(folder.write(grid[start::2]))] for start in range(2)], outputs, shuffled=shuffled
    )
    files = [rows for rows in written_rows(found) if rows]
    boxes = [[(min(row[c] for row in rows), max(row[c] for row in rows)) for c in ("x", "y")] for rows in files]
    assert len(files) == outputs
    assert outputs == 1 or overlap(boxes) == 0
    for rows in files:
        quarter = rows[: len(rows) // 4]
        assert len({row["x"] for row in quarter}) <= 8
        assert len({row["y"] for row in quarter}) <= 8


def written_rows(answers: Sequence[BinResult]) -> list[list[dict[str, Any]]]:
    """The rows of each output."""
    assert all(isinstance(answer, BinWritten) for answer in answers), answers
    files = [file for answer in answers if isinstance(answer, BinWritten) for file in answer.files]
    return [pq.ParquetFile(file["file-path"]).read().to_pylist() for file in files]


@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffled", "each reads all"])
@pytest.mark.parametrize("memory", [MEMORY, 1 << 18], ids=["in memory", "through files"])
def test_tasks_that_sort_together_write_ranges(memory: int, shuffled: bool, folder: Folder) -> None:
    """Each live row once, in order within files and from file to file, of about one size though most keys are equal."""
    rows: list[dict[str, Any]] = [
        {"id": n * 7919 % 5003, "name": None if n % 7 == 0 else "a" if n % 2 else f"{n % 97}"} for n in range(6000)
    ]
    paths = [folder.write(rows[start::4], row_group_size=400) for start in range(4)]
    folder.of(order=((2, True, True),), memory_bytes=memory)
    slices = [folder.file_slice(path, folder.positions((path, 0))) for path in paths]
    answers = together(folder, [slices[:2], slices[2:]], 3, shuffled=shuffled)
    files = written_rows(answers)
    found = [row for file in files for row in file]
    names = [str(row["name"] or "") for row in found]
    assert names == sorted(names, reverse=True)
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in rows[4:])
    assert [1800 < len(file) < 2200 for file in files] == [True] * 3
    counts = [(answer.read, answer.deleted) for answer in answers if isinstance(answer, BinWritten) and answer.read]
    assert counts == ([(3000, 2), (3000, 2)] if shuffled else [(6000, 4)])


@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffled", "each reads all"])
@pytest.mark.parametrize("broken", ["keys", "deletes"])
def test_a_bin_that_fails_fails_its_group(broken: str, shuffled: bool, folder: Folder) -> None:
    """Where its keys are sampled, or only where its rows are split, as the deletes are read then."""
    slices = [folder.file_slice(folder.write([{"id": n, "name": "a"} for n in range(100)])) for _ in range(2)]
    slices[1] = (
        replace(slices[1], records=99)
        if broken == "keys"
        else replace(slices[1], deletes=(folder.vector(1, spoil=True),))
    )
    folder.of(order=((1, False, False),))
    answers = together(folder, [[piece] for piece in slices], 2, shuffled=shuffled)
    failed, *more = (answer for answer in answers if isinstance(answer, BinFailed))
    assert len(more) == (0 if shuffled or broken == "keys" else 1)  # each task reads the deletes
    assert ("99" if broken == "keys" else "checksum") in failed.error
    assert not failed.unsupported


VALUES: Sequence[pa.Array] = (
    pa.array([True, False, None]),
    pa.array([1, None, 3, 2, 2]),
    pa.array([float("nan"), 1.0, None, float("inf"), 2.0, float("-inf")]),
    pa.array(["a", "b\u00e9", None, "", "B"]),
    pa.array([b"a", b"\xff", None, b""]),
    pa.array([Decimal("1.10"), None, Decimal("-9.99")], pa.decimal128(38, 2)),
    pa.array([0, None, -1], pa.timestamp("us", "UTC")),
    pa.nulls(2, pa.int32()),
)


@pytest.mark.parametrize("values", VALUES, ids=[str(values.type) for values in VALUES])
@pytest.mark.parametrize(("descending", "nulls_last"), [*itertools.product([False, True], repeat=2)])
def test_ranges_are_in_the_order_of_rows(values: pa.Array, descending: bool, nulls_last: bool) -> None:
    """Whatever the type of the first key, and where its nulls, NaN and equal values are."""
    count, order = 60, ((1, descending, nulls_last), (2, False, False))
    first = pa.concat_arrays([values] * (count // len(values)))
    columns = {"0": first, "1": pa.array(n * 7 % 5 for n in range(len(first))), TIE: ties(0, len(first), 0)}
    keys = pl.DataFrame(pl.from_arrow(pa.table(columns)))
    numbers = divide(order, keys.gather_every(3), 7, zorder=False).numbers(keys).gather(sorted_rows(keys, order))
    assert numbers.is_sorted()
    assert numbers.n_unique() == 7
