"""The Arrow kernel at the limits of types: long decimals, strings that are not UTF-8, values above 4 KB."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.adapters.engines.arrow import deletes, equality, opening, reading
from icewright.adapters.engines.arrow.equality import read_keys
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.tasks import Bin, BinFailed, BinWritten
from icewright.adapters.engines.arrow.types import Field, arrow_schema, single_value
from icewright.adapters.engines.arrow.writing import Outputs
from tests.adapters.arrow_tables import ID, NAME, Folder, column

MODE = "write.metadata.metrics.default"
NOT_UTF8 = b"a\xffb"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty folder for a table of id and name."""
    return Folder(tmp_path)


def strings(folder: Folder, values: Sequence[bytes | None]) -> str:
    """Write a file whose names have these bytes, whether they are UTF-8 or not, and return its path."""
    names = pa.array(values, pa.binary()).cast(pa.string(), safe=False)
    folder.count += 1
    path = str(folder.place / f"{folder.count}.parquet")
    rows = pa.Table.from_arrays([pa.array(range(len(values)), pa.int64()), names], schema=arrow_schema([ID, NAME]))
    pq.write_table(rows, path)
    return path


def names_of(written: object) -> list[bytes | None]:
    """Return the bytes of the names in the outputs."""
    assert isinstance(written, BinWritten), written
    tables = [pq.ParquetFile(one["file-path"]).read(["name"]) for one in written.files]
    values: list[bytes | None] = pa.concat_tables(tables).column("name").cast(pa.binary()).to_pylist()
    return values


@pytest.mark.cases(122)
@pytest.mark.parametrize("unscaled", [-99999999999999999999123456789012345678, 10**37, -1, 0, 12 * 10**18])
def test_decimals_of_38_digits_are_exact(unscaled: int, tmp_path: Path) -> None:
    """An identity partition value has the same digits in the manifest, in the file and in its bounds."""
    kind = "decimal(38, 18)"
    folder = Folder(tmp_path, [ID, column(2, "amount", kind)])
    path = folder.write([{"id": 1}], [ID])
    raw = unscaled.to_bytes(16, "big", signed=True)
    written = folder.rewrite(folder.file_slice(path), partition={2: single_value(kind, raw)})
    assert isinstance(written, BinWritten), written
    (file,) = written.files
    (row,) = pq.ParquetFile(file["file-path"]).read().to_pylist()
    digits = Decimal(unscaled).as_tuple().digits
    assert row["amount"] == Decimal((unscaled < 0, digits, -18))
    for bounds in (file["lower-bounds"], file["upper-bounds"]):
        bound = bytes.fromhex(bounds["values"][bounds["keys"].index(2)])
        assert int.from_bytes(bound, "big", signed=True) == unscaled


@pytest.mark.cases(123)
@pytest.mark.parametrize("mode", ["none", "counts", "truncate(16)", "truncate(1)", "full"])
@pytest.mark.parametrize("long", [b"", b"x" * 5000], ids=["short", "above 4 KB"])
def test_bounds_that_are_not_utf8_are_left_out(mode: str, long: bytes, folder: Folder) -> None:
    """The rows are written as they are, and a bound that readers could not decode is missing."""
    values = [NOT_UTF8 + long, b"z" + long, None, b"\xf0\x9f" + long]
    folder.of(properties={MODE: mode})
    written = folder.rewrite(folder.file_slice(strings(folder, values)))
    assert names_of(written) == values
    assert isinstance(written, BinWritten)
    (file,) = written.files
    for bounds in (file.get("lower-bounds"), file.get("upper-bounds")):
        assert bounds is None or NAME["id"] not in bounds["keys"]


@pytest.mark.cases(123)
@pytest.mark.parametrize("mode", ["truncate(16)", "full"])
def test_a_bound_that_is_utf8_stays(mode: str, folder: Folder) -> None:
    """The lower bound does not go with the upper one."""
    folder.of(properties={MODE: mode})
    written = folder.rewrite(folder.file_slice(strings(folder, [b"a", b"\xff"])))
    assert isinstance(written, BinWritten)
    (file,) = written.files
    lower = dict(zip(file["lower-bounds"]["keys"], file["lower-bounds"]["values"], strict=True))
    assert bytes.fromhex(lower[NAME["id"]]) == b"a"
    assert NAME["id"] not in file["upper-bounds"]["keys"]


@pytest.mark.cases(123)
def test_strings_that_are_not_utf8_are_sorted_and_deleted(folder: Folder) -> None:
    """They sort by their bytes, as in Spark, and equality deletes find them."""
    values = [b"\xff", NOT_UTF8, b"b", b"a"]
    path, keys = strings(folder, values), strings(folder, [b"\xff"])
    folder.of(order=((2, False, True),))
    delete = folder.keys([ID, NAME], [2])
    Path(delete.path).write_bytes(Path(keys).read_bytes())
    assert names_of(folder.rewrite(folder.file_slice(path, delete))) == [b"a", NOT_UTF8, b"b"]


@pytest.mark.parametrize("mode", ["truncate(16)", "full"])
def test_values_above_4_kb_have_bounds(mode: str, folder: Folder) -> None:
    """Arrow writes no statistics for them; their bounds are those of all row groups."""
    rows = [{"id": n, "name": f"{n % 90 + 10}" + "x" * (5000 if n % 2 else 2)} for n in range(100)]
    often = {"write.parquet.row-group-check-min-record-count": "10"}
    folder.of(properties={MODE: mode, "write.parquet.row-group-size-bytes": "60000", **often})
    written = folder.rewrite(*(folder.file_slice(folder.write(rows[start::3])) for start in range(3)))
    assert isinstance(written, BinWritten)
    (file,) = written.files
    assert len(file["split-offsets"]) > 1
    lower, upper = (
        bytes.fromhex(bounds["values"][bounds["keys"].index(2)]).decode()
        for bounds in (file["lower-bounds"], file["upper-bounds"])
    )
    names = [str(row["name"]) for row in rows]
    assert lower == (min(names)[:16] if mode != "full" else min(names))
    assert upper == (max(names)[:15] + "y" if mode != "full" else max(names))


@pytest.mark.cases(128)
@pytest.mark.parametrize(("value", "encoded"), [("FALSE", False), ("no", False), ("TRUE", True)])
def test_dictionaries_follow_the_property_as_java_reads_it(value: str, encoded: bool, folder: Folder) -> None:
    """Only `true`, in any case, is true."""
    folder.of(properties={"write.parquet.dict-encoding-enabled.column.name": value})
    written = folder.rewrite(folder.file_slice(folder.write([{"id": n, "name": "same"} for n in range(50)])))
    assert isinstance(written, BinWritten)
    chunk = pq.read_metadata(written.files[0]["file-path"]).row_group(0).column(1)
    assert ("RLE_DICTIONARY" in chunk.encodings or "PLAIN_DICTIONARY" in chunk.encodings) is encoded


@pytest.mark.parametrize("asked", [True, False])
def test_a_dictionary_that_is_asked_for_pays_over_all_rows(asked: bool, folder: Folder) -> None:
    """Parquet-java looks at the first page, in which values that are frequent in a row group hardly repeat."""
    page = {"write.parquet.page-row-limit": "100"}
    folder.of(properties=page | ({"write.parquet.dict-encoding-enabled.column.name": "true"} if asked else {}))
    rows = [{"id": n, "name": f"{n * 7919 % 1000:09}"} for n in range(6000)]
    written = folder.rewrite(folder.file_slice(folder.write(rows)))
    assert isinstance(written, BinWritten)
    identity, name = (pq.read_metadata(written.files[0]["file-path"]).row_group(0).column(n) for n in (0, 1))
    assert (identity.has_dictionary_page, name.has_dictionary_page) == (False, asked)
    assert names_of(written) == [str(row["name"]).encode() for row in rows]


STRUCT = column(2, "s", {"type": "struct", "fields": [column(3, "x", "int")]}, default={"3": 1})


@pytest.mark.cases(126)
@pytest.mark.parametrize(
    ("fields", "properties", "reason"),
    [
        ([ID, column(2, "b", "boolean")], {"write.parquet.bloom-filter-enabled.column.b": "true"}, "boolean"),
        ([ID, NAME], {"write.parquet.compression-codec": "lzo"}, "LZO"),
        ([ID, NAME], {"write.parquet.page-size-bytes": "large"}, "large"),
        ([ID, STRUCT], {}, "struct"),
        ([ID, column(2, "v", "variant")], {}, "variant"),
    ],
    ids=["boolean bloom filter", "codec", "page size", "default of a struct", "type"],
)
def test_what_arrow_cannot_write_is_left_to_spark(
    fields: Sequence[Field], properties: Mapping[str, str], reason: str, tmp_path: Path
) -> None:
    """The bin says why it is unsupported, the file is not blamed, and no output stays."""
    folder = Folder(tmp_path, fields)
    folder.of(properties=properties)
    path = folder.write([{"id": 1}], [ID])
    failed = folder.rewrite(folder.file_slice(path))
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert reason in failed.error
    assert path not in failed.error
    assert not list(tmp_path.glob("out*"))


@pytest.mark.cases(124, 126)
@pytest.mark.parametrize("error", [pa.ArrowMemoryError("realloc of size 2147483648 failed"), MemoryError()], ids=repr)
def test_lack_of_memory_blames_no_file(error: Exception, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runs out while a file is read leaves the bin to Spark."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(reading, "resolved", fail)
    path = folder.write([{"id": 1, "name": "a"}])
    failed = folder.rewrite(folder.file_slice(path))
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert "compact.task_memory_mb" in failed.error
    assert path not in failed.error


@pytest.mark.cases(126)
@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("float", pa.array([0.1], pa.float64())),
        ("long", pa.array([2**31], pa.uint32())),
        ("string", pa.array([1])),
        ("string", pa.array([NOT_UTF8])),
    ],
)
def test_types_that_readers_take_otherwise_are_left_to_spark(kind: str, stored: pa.Array, folder: Folder) -> None:
    """No file is blamed, and no value is converted in another way than Spark does, or where it refuses."""
    folder.of(schema={"type": "struct", "fields": [column(1, "c", kind)]})
    schema = pa.schema([pa.field("c", stored.type, metadata={"PARQUET:field_id": "1"})])
    path = folder.place / "foreign.parquet"
    pq.write_table(pa.Table.from_arrays([stored], schema=schema), path, store_schema=False)
    failed = folder.rewrite(folder.file_slice(str(path)))
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert failed.error.startswith(f"a file has a column of {stored.type} for ")


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [("decimal(10, 2)", Decimal("1.2345"), "cannot hold"), ("int", None, "has nulls in column c, which is required")],
)
def test_values_that_spark_would_misread_fail_the_bin(kind: str, value: Any, says: str, folder: Folder) -> None:
    """Spark takes the digits of 1.2345 for 123.45, and a null in a required column for 0: it must not rewrite them."""
    folder.of(schema={"type": "struct", "fields": [{**column(1, "c", kind), "required": value is None}]})
    stored = pa.array([value], pa.int32() if value is None else None)
    schema = pa.schema([pa.field("c", stored.type, metadata={"PARQUET:field_id": "1"})])
    path = folder.place / "foreign.parquet"
    pq.write_table(pa.Table.from_arrays([stored], schema=schema), path, store_schema=False)
    failed = folder.rewrite(folder.file_slice(str(path)))
    assert isinstance(failed, BinFailed), failed
    assert (failed.unsupported, says in failed.error) == (False, True), failed.error


@pytest.mark.parametrize(
    ("value", "unit", "micros"), [(1001, "ns", None), (2000, "ns", 2), (2, "ms", 2000), (2**62, "ms", None)]
)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_keep_the_value_that_their_file_says(
    value: int, unit: str, micros: int | None, zone: str | None, folder: Folder
) -> None:
    """Spark reads nanoseconds as microseconds, and those of milliseconds by vectors: it must not rewrite the rest."""
    stored = pa.array([value], pa.timestamp(unit, zone))
    folder.of(schema={"type": "struct", "fields": [column(1, "c", "timestamptz" if zone else "timestamp")]})
    schema = pa.schema([pa.field("c", stored.type, metadata={"PARQUET:field_id": "1"})])
    path = folder.place / "foreign.parquet"
    pq.write_table(pa.Table.from_arrays([stored], schema=schema), path, store_schema=False)
    written = folder.rewrite(folder.file_slice(str(path)))
    if micros is None:
        assert isinstance(written, BinFailed), written
        assert (written.unsupported, str(path) in written.error) == (False, True)
        return
    assert isinstance(written, BinWritten), written
    rewritten = pq.read_table(written.files[0]["file-path"])["c"]
    assert (rewritten.type, rewritten.cast(pa.int64()).to_pylist()) == (pa.timestamp("us", zone), [micros])


@pytest.mark.slow
@pytest.mark.cases(124)
@pytest.mark.parametrize("dictionary", [False, True], ids=["plain", "dictionary"])
def test_pages_beyond_the_memory_of_a_task_are_left_to_spark_before_they_are_read(
    folder: Folder, dictionary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers of pages say their size: the same rows in small pages are rewritten."""
    texts = [f"{number:010d}" * 20_000 for number in range(180)]  # 36 MB, and as much again while they are decoded
    rows = [{"id": number, "name": text} for number, text in enumerate(texts)]
    pages: dict[str, Any] = {"data_page_size": 1 << 30, "dictionary_pagesize_limit": 1 << 30}
    large = folder.file_slice(folder.write(rows, use_dictionary=dictionary, **pages))
    small = folder.file_slice(folder.write(rows, use_dictionary=False, write_batch_size=10))
    assert isinstance(folder.rewrite(small), BinWritten)

    monkeypatch.setattr(reading, "resolved", lambda *_: pytest.fail("a row was read"))
    failed = folder.rewrite(large)
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert "compact.task_memory_mb" in failed.error
    assert large.path not in failed.error


@pytest.mark.cases(124)
@pytest.mark.parametrize(
    ("lengths", "in_page"),
    [
        # the last page has 40 MB
        pytest.param([10] * 100_000 + [2_000_000] * 20, 50_000, id="last page", marks=pytest.mark.slow),
        # the last pages have 1 MB, and a batch has 8,192 rows on average
        pytest.param([10] * 60_000 + [1_000_000] * 70, 1, id="last rows", marks=pytest.mark.slow),
        pytest.param([20_000_000], 1, id="one value"),
    ],
)
def test_pages_that_are_larger_than_the_first_are_left_to_spark(
    lengths: Sequence[int], in_page: int, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages of a column with long values are looked at; one of such a value alone counts twice."""
    rows = [{"id": number, "name": "x" * length} for number, length in enumerate(lengths)]
    path = folder.write(rows, use_dictionary=False, write_batch_size=in_page, row_group_size=len(rows))
    monkeypatch.setattr(reading, "resolved", lambda *_: pytest.fail("a row was read"))
    failed = folder.rewrite(folder.file_slice(path))
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert "compact.task_memory_mb" in failed.error


@pytest.mark.cases(124)
@pytest.mark.parametrize(
    "kind",
    [
        {"type": "list", "element-id": 4, "element": "long", "element-required": False},
        {"type": "map", "key-id": 4, "key": "long", "value-id": 5, "value": "long", "value-required": False},
    ],
    ids=lambda kind: kind["type"],
)
@pytest.mark.parametrize("length", [9_000, 40_000])
def test_long_lists_and_maps_are_left_to_spark(kind: Mapping[str, Any], length: int, tmp_path: Path) -> None:
    """One of 3 million numbers took 735 MB of a task's 512 MB while it was encoded."""
    folder = Folder(tmp_path, [ID, column(3, "many", kind)])
    folder.of(memory_bytes=8 << 20)
    values: Any = range(length) if kind["type"] == "list" else zip(range(length), range(length), strict=True)
    done = folder.rewrite(folder.file_slice(folder.write([{"id": 1, "many": list(values)}, {"id": 2, "many": None}])))
    if length < 10_000:
        assert isinstance(done, BinWritten), done
    else:
        assert isinstance(done, BinFailed), done
        assert (done.unsupported, "values of more than" in done.error) == (True, True)


@pytest.mark.cases(124)
def test_a_footer_beyond_the_memory_of_a_task_is_left_to_spark(folder: Folder) -> None:
    """One of 20,000 row groups of 20 columns takes 370 MB once decoded."""
    folder.of(memory_bytes=1 << 20)
    rows = [{"id": number, "name": "x"} for number in range(600)]
    one, many = (folder.file_slice(folder.write(rows, row_group_size=size)) for size in (600, 1))
    assert isinstance(folder.rewrite(one), BinWritten)
    failed = folder.rewrite(many)
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert "the footer" in failed.error


def test_long_rows_make_smaller_row_groups(folder: Folder) -> None:
    """A row group of 64 MiB would be in memory with eight copies of the value of 4 MB that is being encoded."""
    rows = [{"id": number, "name": f"{number:010d}" * 400_000} for number in range(20)]
    written = folder.rewrite(folder.file_slice(folder.write(rows, use_dictionary=False, write_batch_size=1)))
    assert isinstance(written, BinWritten)
    footer = pq.read_metadata(written.files[0]["file-path"])
    assert max(footer.row_group(number).num_rows for number in range(footer.num_row_groups)) == 12  # in batches of 4


def test_a_storage_that_fails_is_raised(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark retries the task: another engine would meet the same storage."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Outputs, "add", fail)
    with pytest.raises(OSError, match="No space left"):
        folder.rewrite(folder.file_slice(folder.write([{"id": 1, "name": "a"}])))
    assert not list(folder.place.glob("out*"))


@pytest.mark.cases(124)
@given(
    files=st.lists(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=6), min_size=1, max_size=5),
    deletes=st.lists(st.lists(st.sampled_from([None, 0, 1, 2]), max_size=4), min_size=1, max_size=5),
)
def test_each_file_has_its_own_equality_deletes(
    files: list[list[int | None]], deletes: list[list[int | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Data file n is subject to the delete files from n on, as in a stream of upserts, and to no earlier ones."""
    folder = Folder(tmp_path_factory.mktemp("upserts"))
    paths = [folder.write([{"id": key, "name": str(row)} for row, key in enumerate(keys)]) for keys in files]
    written = [folder.keys([ID], [1], *({"id": key} for key in keys)) for keys in deletes]
    slices = [folder.file_slice(path, *written[number:]) for number, path in enumerate(paths)]
    expected = [
        (key, str(row))
        for number, keys in enumerate(files)
        for row, key in enumerate(keys)
        if not any(key in later for later in deletes[number:])
    ]
    assert [(row["id"], row["name"]) for row in folder.rows(*slices)] == expected


@pytest.mark.cases(124)
def test_each_equality_delete_file_is_read_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many data files it applies to."""
    opened: Counter[str] = Counter()
    parquet = Opener.parquet

    def counting(self: Opener, path: str, *more: int | None, **options: bool) -> object:
        opened[path] += 1
        return parquet(self, path, *more, **options)

    monkeypatch.setattr(Opener, "parquet", counting)
    deletes = [folder.keys([ID], [1], {"id": number}) for number in range(5)]
    paths = [folder.write([{"id": number, "name": "a"}]) for number in range(5)]
    slices = [folder.file_slice(path, *deletes[number:]) for number, path in enumerate(paths)]
    assert folder.rows(*slices) == []
    assert {opened[delete.path] for delete in deletes} == {1}


@pytest.mark.cases(124)
@pytest.mark.parametrize(("column", "form", "memory"), [(ID, int, 64_000), (NAME, "{:05}".format, 116_000)])
def test_equality_deletes_beyond_the_memory_are_left_to_spark(
    column: Field, form: Callable[[int], object], memory: int, folder: Folder
) -> None:
    """Before memory runs out, and without a word against a file. A text takes more than its own bytes."""
    rows = ({column["name"]: form(number)} for number in range(1000))
    delete, path = folder.keys([column], [column["id"]], *rows), folder.write([{"id": 1, "name": "a"}])
    folder.of(memory_bytes=memory)
    failed = folder.rewrite(folder.file_slice(path, delete))
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert "the keys of its equality deletes do not fit" in failed.error


@pytest.mark.cases(124)
@pytest.mark.parametrize("kind", ["keys", "positions"])
def test_deletes_with_pages_beyond_the_memory_are_left_to_spark(
    kind: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is decoded whole, also that of keys or of paths: no row of it is read."""
    path, long = folder.write([{"id": 1, "name": "a"}]), "x" * (1 << 20)
    keys = folder.keys([NAME], [2], {"name": long})
    delete = keys if kind == "keys" else folder.positions((long, 0), (path, 0))
    folder.of(memory_bytes=2 << 20)
    monkeypatch.setattr(equality, "resolved", lambda *_: pytest.fail("a key was read"))
    monkeypatch.setattr(deletes, "_frame", lambda *_: pytest.fail("a position was read"))
    failed = folder.rewrite(folder.file_slice(path, delete))
    assert isinstance(failed, BinFailed), failed
    assert failed.unsupported
    assert "the pages of its files do not fit" in failed.error


def test_keys_of_the_same_hash_are_told_apart(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that gives different keys one hash is not used; rows that merely share a hash stay."""

    def hashes(frame: pl.DataFrame, seed: int) -> pl.Series:
        return (frame.to_series().fill_null(9) % (2 + 3 * seed)).cast(pl.UInt64)

    monkeypatch.setattr(pl.DataFrame, "hash_rows", hashes)
    path = folder.write([{"id": number, "name": "a"} for number in range(12)])
    delete = folder.keys([ID], [1], {"id": 2}, {"id": 4})
    assert [row["id"] for row in folder.rows(folder.file_slice(path, delete))] == [0, 1, 3, *range(5, 12)]


@pytest.mark.cases(124)
def test_repeated_long_strings_are_decoded_in_small_batches(folder: Folder) -> None:
    """Four strings of 100 KB in a dictionary are a small file whose rows take 100 KB each once decoded."""
    rows = [{"id": number, "name": str(number % 4) * 100_000} for number in range(600)]
    file_slice = folder.file_slice(folder.write(rows))
    scan = reading.BatchScan(folder.layout, Opener({}), Bin(0, (file_slice,), {}, "", 1))
    assert max(batch.nbytes for batch in scan.batches()) < 17 << 20


@pytest.mark.cases(124)
def test_rows_of_small_files_are_held_together(folder: Folder) -> None:
    """A batch of a row takes a thousand times the memory of its values: 8,000 files of 60 columns took 600 MB."""
    slices = [folder.file_slice(folder.write([{"id": number, "name": "x"}])) for number in range(20)]
    scan = reading.BatchScan(folder.layout, Opener({}), Bin(0, tuple(slices), {}, "", 1))
    assert [batch.column(0).to_pylist() for batch in scan.batches()] == [[*range(20)]]


@pytest.mark.cases(124)
def test_what_is_read_ahead_is_not_kept(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 row groups of a megabyte two are in memory at once: a file of 900 MB was held as a whole."""
    monkeypatch.setattr(opening, "_PRE_BUFFER_BYTES", 2 << 20)
    path = folder.place / "groups.parquet"
    pq.write_table(
        pa.table({"c": pc.random(1 << 21)}), path, row_group_size=1 << 17, compression="none", use_dictionary=False
    )
    before = pa.total_allocated_bytes()
    with Opener({}).parquet(str(path)) as source:
        held = [pa.total_allocated_bytes() - before for _ in source.iter_batches(1 << 14)]
    assert len(held) == 1 << 7
    assert max(held) < 8 << 20


@pytest.mark.cases(125)
def test_texts_that_repeat_share_a_row_group(folder: Folder) -> None:
    """They are held as codes where that halves the memory of the rows, nulls and values above 4 KB among them."""
    rows = [
        {"id": n % 7, "name": None if n % 9 == 0 else f"{n % 90:02d}" * (2_500 if n < 90 else 300)}
        for n in range(20_000)
    ]
    folder.of(memory_bytes=8 << 20)
    written = folder.rewrite(folder.file_slice(folder.write(rows)))
    assert isinstance(written, BinWritten)
    (file,) = written.files
    assert len(file["split-offsets"]) == 1
    assert pq.read_table(file["file-path"]).to_pylist() == rows
    bounds = [bytes.fromhex(file[name]["values"][1]) for name in ("lower-bounds", "upper-bounds")]
    assert bounds == [b"01" * 8, b"89" * 7 + b"8:"]


@pytest.mark.parametrize(("distinct", "encoded"), [(10_000, True), (100_000, False)])
def test_a_dictionary_that_saves_nothing_in_a_first_page_is_none(distinct: int, encoded: bool, folder: Folder) -> None:
    """As Spark's writer decides it: most of 20,000 values are new where there are 100,000, and codes take room too."""
    draw = random.Random(1)
    rows = [{"id": 1, "name": f"user-{draw.randrange(distinct)}"} for _ in range(40_000)]
    written = folder.rewrite(folder.file_slice(folder.write(rows)))
    assert isinstance(written, BinWritten)
    assert pq.read_metadata(written.files[0]["file-path"]).row_group(0).column(1).has_dictionary_page is encoded


@pytest.mark.cases(125)
def test_texts_that_repeat_no_more_are_written_as_they_are(folder: Folder) -> None:
    """A dictionary that would outgrow the table's limit ends, as in Parquet's own writers."""
    rows = [{"id": 1, "name": (f"{n % 5}" if n < 15_000 else f"{n}") * 200} for n in range(20_000)]
    folder.of(memory_bytes=4 << 20, properties={"write.parquet.dict-size-bytes": "100000"})
    written = folder.rewrite(folder.file_slice(folder.write(rows, row_group_size=400)))
    assert isinstance(written, BinWritten)
    (file,) = written.files
    assert pq.read_table(file["file-path"]).to_pylist() == rows
    last = pq.read_metadata(file["file-path"]).row_group(len(file["split-offsets"]) - 1).column(1)
    assert last.data_page_offset - last.dictionary_page_offset < last.total_compressed_size / 10


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("a1_é", "a1_é"),
        ("a.b c-d", "a_x2Eb_x20c_x2Dd"),
        ("1a²", "_1a_xB2"),
        ("😀[0]", "_xD83D_xDE00_x5B0_x5D"),
    ],
)
def test_columns_are_named_as_iceberg_names_them(name: str, stored: str, tmp_path: Path) -> None:
    """Readers by name find a column in all files, and properties and metrics are those of the table's column."""
    inside = {"type": "struct", "fields": [column(3, name, "double"), column(4, "plain", "long")]}
    properties = {
        f"write.metadata.metrics.column.{name}": "counts",
        f"write.parquet.bloom-filter-enabled.column.{name}": "true",
    }
    folder = Folder(tmp_path, [column(1, name, "string"), column(2, "s", inside)])
    folder.of(properties=properties)
    path = folder.write([{stored: "x", "s": {stored: float("nan"), "plain": 7}}])
    (written,) = folder.rewrite(folder.file_slice(path)).files  # type: ignore[union-attr] # else it fails
    footer = pq.read_metadata(written["file-path"])
    assert [footer.schema.column(at).path for at in range(3)] == [stored, f"s.{stored}", "s.plain"]
    ask = "SELECT bloom_filter_offset IS NOT NULL FROM parquet_metadata(?)"
    assert duckdb.execute(ask, [written["file-path"]]).fetchall() == [(True,), (False,), (False,)]
    assert written["value-counts"] == {"keys": [1, 3, 4], "values": [1, 1, 1]}
    assert written["nan-value-counts"] == {"keys": [3], "values": [1]}
    assert written["lower-bounds"]["keys"] == [4]


@pytest.mark.slow
def test_long_keys_of_deletes_are_read_a_few_at_a_time(folder: Folder) -> None:
    """Those of 10 KB were read 131,072 at once, in 1.2 GB of a task's 512 MB; a file without keys has none."""
    files = [folder.keys([NAME], [2], *({"name": f"{n:05}" * 2000} for n in range(count))) for count in (4000, 0)]
    frames = [[frame.height for frame in read_keys(folder.layout, Opener({}), (NAME,), file.path)] for file in files]
    assert [sum(heights) for heights in frames] == [4000, 0]
    assert max(frames[0]) * 10_000 < 32 << 20
