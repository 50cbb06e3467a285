"""Data files whose rows, columns, row groups or keys take much memory, for the benchmark of a task's memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Commit = list[str]  # the path of a data file, and that of the keys that it deletes in earlier ones
_COLUMNS, _FILES = 1000, 20
_KINDS = {"long": pa.int64(), "string": pa.string(), "double": pa.float64()}


@dataclass(frozen=True)
class Written:
    """Columns by name and type, and commits. Rows of them are what is left."""

    columns: Sequence[tuple[str, str]]
    commits: Sequence[Commit]
    rows: int


@dataclass(frozen=True)
class Shape:
    """Files that one task rewrites. `order` are columns by number."""

    name: str
    write: Callable[[Path, bool], Written]  # into a folder, quick or not
    order: tuple[int, ...] = ()
    slow: bool = False  # by Spark's procedure: minutes


def _schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    fields = [
        pa.field(name, _KINDS[kind], metadata={"PARQUET:field_id": str(number)})
        for number, (name, kind) in enumerate(columns, 1)
    ]
    return pa.schema(fields)


def _file(path: Path, columns: Sequence[tuple[str, str]], parts: Iterator[list[Any]], **options: Any) -> int:
    """Write one file, each part as a row group of its own; the number of its rows."""
    schema, rows = _schema(columns), 0
    with pq.ParquetWriter(path, schema, compression="zstd", **options) as writer:
        for part in parts:
            table = pa.table(part, schema=schema)
            writer.write_table(table, row_group_size=table.num_rows)
            rows += table.num_rows
    return rows


_TEXT = (("id", "long"), ("text", "string"))


def _long(length: int, in_page: int, rows: int, quick_rows: int, distinct: int = 0) -> Callable[[Path, bool], Written]:
    """Texts of one length, in row groups of about 128 MB, or all in one with a dictionary of `distinct`."""

    def write(folder: Path, quick: bool) -> Written:
        count = quick_rows if quick else rows
        step = count if distinct else max(in_page, (128 << 20) // length)

        def parts() -> Iterator[list[Any]]:
            for start in range(0, count, step):
                numbers = range(start, min(start + step, count))
                yield [list(numbers), [_text(n % distinct if distinct else n, length) for n in numbers]]

        path = folder / "data.parquet"
        pages = {"use_dictionary": bool(distinct), "write_batch_size": in_page}
        return Written(_TEXT, [[str(path)]], _file(path, _TEXT, parts(), **pages))

    return write


def _text(number: int, length: int) -> str:
    return f'{{"n":{number:08d}}}'.ljust(10, "x") * (length // 14)


def _growing(folder: Path, _: bool) -> Written:
    """Texts that are short at first: the first page of the column says nothing of the last, which is 400 MB."""
    lengths = [10] * 200_000 + [4_000_000] * 100
    path = folder / "data.parquet"
    part: list[Any] = [list(range(len(lengths))), [_text(n, length) for n, length in enumerate(lengths)]]
    rows = _file(path, _TEXT, iter([part]), use_dictionary=False, write_batch_size=20_000)
    return Written(_TEXT, [[str(path)]], rows)


def _short_and_long(folder: Path, _: bool) -> Written:
    """A file of short texts and one of 4 MB each, which become one file."""
    commits, rows, lengths = list[Commit](), 0, ([20] * 100_000, [4_000_000] * 100)
    for number, some in enumerate(lengths):
        path = folder / f"data-{number}.parquet"
        part: list[Any] = [list(range(len(some))), [_text(n, length) for n, length in enumerate(some)]]
        rows += _file(path, _TEXT, iter([part]), use_dictionary=False, write_batch_size=5)
        commits.append([str(path)])
    return Written(_TEXT, commits, rows)


def _upserts(folder: Path, _: bool) -> Written:
    """200 commits of a stream of upserts: a data file and a file of keys each, half of them of rows before."""
    columns = (("id", "long"), ("user", "string"), ("amount", "double"))
    chosen, commits, count, alive = random.Random(7), list[Commit](), 5_000, dict[int, int]()
    for number in range(200):
        ids = [*chosen.sample(range(max(1, number) * count), count // 2), *range(number * count, number * count + 2500)]
        ids = list(dict.fromkeys(ids))
        data, keys = folder / f"data-{number:03d}.parquet", folder / f"keys-{number:03d}.parquet"
        users = [f"user-{id_ % 1000}" for id_ in ids]
        _file(data, columns, iter([[ids, users, [chosen.random() for _ in ids]]]))
        _file(keys, columns[:1], iter([[ids]]))
        commits.append([str(data), str(keys)])
        alive |= dict.fromkeys(ids, number)
    return Written(columns, commits, len(alive))


def _long_keys(folder: Path, quick: bool) -> Written:
    """A file of keys of 10 KB each, which delete all rows of a small one."""
    columns, count = (("text", "string"),), 20_000 if quick else 50_000
    commits = [[str(folder / f"{what}-{number}.parquet") for what in ("data", "keys")] for number in range(2)]
    for path, rows in zip([path for commit in commits for path in commit], (100, 1, 1, count), strict=True):
        _file(Path(path), columns, iter([[[_text(n, 10_000) for n in range(rows)]]]), use_dictionary=False)
    return Written(columns, commits, 1)


def _columns(folder: Path, quick: bool) -> Written:
    """1,000 columns, numbers and texts in turn."""
    columns = [(f"c{number}", ("long", "string")[number % 2]) for number in range(_COLUMNS)]
    count, commits, rows = 1_000 if quick else 5_000, list[Commit](), 0
    for number in range(_FILES):
        start, path = number * count, folder / f"data-{number:02d}.parquet"
        longs = pa.array(range(start, start + count), pa.int64())
        texts = pc.binary_join_element_wise("value-", pc.cast(longs, pa.string()), "")
        rows += _file(path, columns, iter([[(longs, texts)[column % 2] for column in range(_COLUMNS)]]))
        commits.append([str(path)])
    return Written(columns, commits, rows)


def _one_group(folder: Path, quick: bool) -> Written:
    """One row group of 1 GB as encoded, a quarter of it in quick."""
    columns = (("id", "long"), ("user", "string"), ("url", "string"), ("a", "double"), ("b", "double"))
    count = 3_000_000 if quick else 12_000_000
    numbers = pa.array(range(count), pa.int64())
    spread = pc.bit_wise_and(pc.multiply(numbers, 2_654_435_761), (1 << 32) - 1)
    urls = pc.binary_join_element_wise("https://example.org/a-long-path/", pc.cast(spread, pa.string()), "")
    users = pc.binary_join_element_wise("user-", pc.cast(pc.bit_wise_and(spread, 0xFFFF), pa.string()), "")
    part = [numbers, users, urls, pc.random(count, initializer=1), pc.random(count, initializer=2)]
    path = folder / "data.parquet"
    return Written(columns, [[str(path)]], _file(path, columns, iter([part])))


def _keys(folder: Path, _: bool) -> Written:
    """Five million distinct keys, in files that overlap."""
    columns = (("id", "long"), ("text", "string"), ("a", "double"))
    commits, rows, count = list[Commit](), 0, 500_000
    for number in range(10):
        longs = pa.array(range(number, number + 10 * count, 10), pa.int64())
        spread = pc.bit_wise_and(pc.multiply(longs, 2_654_435_761), (1 << 40) - 1)
        texts = pc.binary_join_element_wise("key-", pc.cast(spread, pa.string()), "")
        path = folder / f"data-{number}.parquet"
        rows += _file(path, columns, iter([[spread, texts, pc.random(count, initializer=number)]]))
        commits.append([str(path)])
    return Written(columns, commits, rows)


SHAPES = (
    Shape("200 upsert commits", _upserts, slow=True),
    Shape("delete keys of 10 KB", _long_keys),
    Shape("strings of 100 KB", _long(100_000, 10, 20_000, 4_000)),
    Shape("strings of 4 MB, pages of 40 MB", _long(4_000_000, 10, 400, 150)),
    Shape("strings of 4 MB, pages of 400 MB", _long(4_000_000, 100, 400, 150)),
    Shape("strings of 30 MB", _long(30_000_000, 1, 40, 20)),
    Shape("short strings, then 4 MB", _growing),
    Shape("a file of short strings, one of 4 MB", _short_and_long),
    Shape("four strings of 100 KB, repeated", _long(100_000, 1024, 20_000, 20_000, distinct=4)),
    Shape("1,000 columns", _columns),
    Shape("one row group of 1 GB, a quarter of it in quick", _one_group),
    Shape("strings of 4 MB, sorted", _long(4_000_000, 1, 400, 150), order=(1,)),
    Shape("5 million distinct numbers, sorted", _keys, order=(1,)),
    Shape("5 million distinct texts, sorted", _keys, order=(2,)),
)
