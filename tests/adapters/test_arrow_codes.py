"""Texts of few values go from the files that are read to those that are written as codes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icewright.adapters.engines.arrow.encoding import RowGroupTarget, dictionary_pays
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.tasks import Bin, BinWritten, FileSlice
from tests.adapters.arrow_tables import NAME, Folder

Rows = list[dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty folder for a table of id and name."""
    return Folder(tmp_path)


def rows_of(*names: str | None, count: int = 5_000, first: int = 0) -> Rows:
    """Return rows whose names are these, again and again."""
    return [{"id": first + n, "name": names[n % len(names)]} for n in range(count)]


def written(folder: Folder, *slices: FileSlice) -> tuple[Rows, dict[str, Any]]:
    """Return the rows of the one output, and its entry."""
    found = folder.rewrite(*slices)
    assert isinstance(found, BinWritten), found
    (file,) = found.files
    return pq.ParquetFile(file["file-path"]).read().to_pylist(), dict(file)


def are_codes(folder: Folder, slices: Sequence[FileSlice], *, codes: bool = True) -> list[bool]:
    """Return whether the names of each batch of a scan are codes."""
    scan = BatchScan(folder.layout, Opener({}), Bin(0, tuple(slices), {}, "", 1), codes=codes)
    return [pa.types.is_dictionary(batch.schema.field("name").type) for batch in scan.batches()]


def test_texts_of_few_values_are_read_as_codes_where_nothing_looks_at_them(folder: Folder) -> None:
    """Values that equality deletes name are looked at, and a dictionary of many values saves nothing."""
    few = folder.file_slice(folder.write(rows_of("a", "b", None)))
    many = folder.file_slice(folder.write(rows_of(*map(str, range(2_000)))))
    plain = folder.file_slice(folder.write(rows_of("a"), use_dictionary=False))
    deleted = folder.file_slice(few.path, folder.keys([NAME], [2], {"name": "a"}))
    assert are_codes(folder, [few, few, plain, many, few]) == [True, False, True]
    assert are_codes(folder, [few], codes=False) == [False]
    assert are_codes(folder, [deleted]) == [False]
    rows, _ = written(folder, deleted, plain)
    assert rows == [row for row in rows_of("a", "b", None) if row["name"] != "a"] + rows_of("a")


def test_files_with_other_dictionaries_or_none_become_one(folder: Folder) -> None:
    """Codes of each file mean other values; where the first file has codes, the others' texts become codes."""
    shares = [rows_of("a", None), rows_of("b", "a", first=5_000), rows_of("c", first=10_000)]
    slices = [folder.file_slice(folder.write(share, use_dictionary=share is not shares[2])) for share in shares]
    expected = [row for share in shares for row in share]
    for order in (slices, slices[::-1]):
        rows, entry = written(folder, *order)
        assert sorted(rows, key=lambda row: int(row["id"])) == expected
        assert entry["null-value-counts"]["values"] == [0, 2_500]
        assert pq.read_metadata(entry["file-path"]).row_group(0).column(1).has_dictionary_page


def test_values_of_deleted_rows_widen_no_bounds(folder: Folder) -> None:
    """A value that no row has any more stays in the dictionary that was read; beside nulls, Arrow would count it."""
    path = folder.write(rows_of("m", None, "a", "z"))
    dead = folder.positions(*((path, n) for n in range(5_000) if n % 4 == 3))
    rows, entry = written(folder, folder.file_slice(path, dead))
    assert {row["name"] for row in rows} == {"m", None, "a"}
    assert [bytes.fromhex(entry[f"{end}-bounds"]["values"][1]) for end in ("lower", "upper")] == [b"a", b"m"]


def test_values_count_as_such_where_the_table_says_so(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group of so many bytes before compression has as many rows as without codes."""
    sizes = {"row-group-size-bytes": "1000000", "page-row-limit": "1000", "row-group-size-track-uncompressed": "true"}
    folder.of(properties={f"write.parquet.{name}": value for name, value in sizes.items()})
    names = [f"{n}" * 100 for n in range(5)]
    slices = [folder.file_slice(folder.write(rows_of(*names, count=10_000, first=n * 10_000))) for n in range(5)]
    _, coded = written(folder, *slices)
    monkeypatch.setattr("icewright.adapters.engines.arrow.opening.few_valued_texts", lambda _: [])
    _, plain = written(folder, *slices)
    assert len(coded["split-offsets"]) == len(plain["split-offsets"]) > 1


def test_rows_of_a_group_are_estimated_by_one_dictionary() -> None:
    """Batches have dictionaries of their own; the row group will have one."""
    draw = random.Random(1)
    names = [draw.randbytes(50).hex() for _ in range(50)]
    batches = [pa.array(draw.choices(names, k=10_000)) for _ in range(4)]
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 20, "max_rows_per_page": 1000}
    target = RowGroupTarget(100_000, 100, 10_000, 1000, 1 << 20, compressed=True)
    plain, coded = (
        target.rows(pa.table({"name": pa.chunked_array(chunks)}), options)
        for chunks in (batches, [batch.dictionary_encode() for batch in batches])
    )
    assert coded == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("texts", [["x" * 100_000], ["a", None, "y" * 100_000]])
def test_whether_a_dictionary_pays_is_found_without_decoding_long_values(texts: list[str | None]) -> None:
    """A sample of 4,096 rows of codes is a few kilobytes, and 400 MB of values."""
    codes = pa.array([n % len(texts) for n in range(20_000)], pa.int32())
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(codes, pa.array(texts))])
    before, measured = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(measured)
    try:
        assert dictionary_pays(column, 1 << 20)
    finally:
        pa.set_memory_pool(before)
    assert measured.max_memory() < 64 << 20
