"""Sort the rows of a bin by a sort order or a z-order, in bounded memory."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.encoding import dictionary_pays
from icewright.adapters.engines.arrow.ranges import TIE, KeySample, Ranges, divide, inverse, sorted_rows, ties
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.resolve import beyond_memory
from icewright.adapters.engines.arrow.sizes import groups_within
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.arrow.types import storage_array

_CURVE_BITS_PER_COLUMN = 16  # of a position on the z-order curve
_CURVE_BITS = 63
_BYTE_BITS = 8
_ROW_MEMORY_SHARE = 8  # divisor of the task's memory, for the rows that are sorted at once; a sample takes half of it
_BYTES_OF_A_ROW = 48  # beside its values, while it is sorted
_KEY_COPIES = 2  # of a text key beside it
_LONG_ROW_BYTES = 64 << 10  # of a row, about, from which Arrow's `take` needs three times the memory of long values
_TAKEN_BYTES = 8 << 20  # of sorted rows, about
_MAX_RANGES = 128
_DICTIONARY_BYTES = 16 << 20  # bytes of the distinct texts of a key column up to which they are replaced by their ranks
_RANGE_SLACK = 2  # more ranges than sizes suggest; small neighbours are read back together
_DECODED = 8  # times that rows are larger than their files, about


def sorted_batches(scan: BatchScan) -> Iterator[pa.RecordBatch]:
    """Yield the live rows in the layout's order.

    Rows that do not fit into memory are divided into ranges by a sample of their keys, for which the files are read
    twice, and each range is sorted by itself.
    """
    scan.tie_seed = 0
    source = scan.batches()
    first, rest = _take(scan.layout, source)
    if rest is None:
        yield from _sorted_in_memory(scan.layout, first)
        return
    rows = sum(file.rows for file in scan.bin.slices)
    sample = sample_of(scan, 0, rows, _budget(scan.layout) // 2)
    ranges = ranges_of(
        scan.layout, sample.frame, sum(_size(scan.layout, batch) for batch in first) * rows // max(1, scan.read)
    )
    yield from _sorted_by_ranges(scan.layout, itertools.chain(_drain(first), rest), ranges)


def merged_batches(layout: Layout, batches: Iterator[pa.RecordBatch], ranges: Ranges) -> Iterator[pa.RecordBatch]:
    """Yield rows with ties in the layout's order; `ranges` divide those that do not fit into memory."""
    first, rest = _take(layout, batches)
    if rest is None:
        yield from _sorted_in_memory(layout, first)
    else:
        yield from _sorted_by_ranges(layout, itertools.chain(_drain(first), rest), ranges)


def sample_of(scan: BatchScan, tie_seed: int, rows: int, most_bytes: int) -> KeySample:
    """Return a sample of the keys of a bin's rows, deleted rows included; `rows` are all that are sorted."""
    by_id = {field["id"]: field for field in scan.fields}
    fields = [by_id[number] for number, _, _ in scan.layout.order]

    def keys() -> Iterator[pa.RecordBatch]:
        start = 0
        for columns in scan.scan_columns(fields):
            length = len(columns[0])
            yield _key_batch(columns, ties(start, length, tie_seed))
            start += length

    return KeySample.of(keys(), rows, most_bytes)


def ranges_of(layout: Layout, sample: pl.DataFrame, size: int) -> Ranges:
    """Return ranges of rows that take `size` bytes in all, each of which fits into memory about twice."""
    count = min(_MAX_RANGES, math.ceil(_RANGE_SLACK * size / _budget(layout)))
    return divide(layout.order, sample, max(2, count), zorder=layout.zorder)


def decoded_bytes(file_bytes: int) -> int:
    """Return about how much memory the rows of files take."""
    return _DECODED * file_bytes


def split_by_range(layout: Layout, rows: pa.Table, ranges: Ranges) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each range that has some, with its number."""
    numbers = _range_numbers(layout, rows, ranges)
    if rows.nbytes > _LONG_ROW_BYTES * rows.num_rows:
        for number in numbers.unique().to_list():
            yield number, rows.filter((numbers == number).to_arrow())
        return
    order = numbers.arg_sort()
    rows, numbers = rows.take(order.to_arrow()), numbers.gather(order)
    start = 0
    for number, count in numbers.value_counts().sort(numbers.name).rows():
        yield int(number), rows.slice(start, count)
        start += count


def rows_of_range(layout: Layout, rows: pa.RecordBatch, ranges: Ranges, number: int) -> pa.RecordBatch:
    """Return the rows of one range."""
    numbers = _range_numbers(layout, pa.Table.from_batches([rows]), ranges)
    return rows.filter((numbers == number).to_arrow())


def _range_numbers(layout: Layout, rows: pa.Table, ranges: Ranges) -> pl.Series:
    """Return the number of each row's range."""
    return ranges.numbers(pl.DataFrame(pl.from_arrow(_keys(layout, rows))))


def chunks(batches: Iterable[pa.RecordBatch], layout: Layout) -> Iterator[pa.Table]:
    """Yield tables of batches that fit into memory while they are sorted."""
    source = iter(batches)
    rest: Iterator[pa.RecordBatch] | None = source
    while rest is not None:
        taken, rest = _take(layout, source)
        if taken:
            yield pa.Table.from_batches(_drain(taken))


def _budget(layout: Layout) -> int:
    return layout.memory_bytes // _ROW_MEMORY_SHARE


def _size(layout: Layout, rows: pa.RecordBatch | pa.Table) -> int:
    """Return the bytes that rows take while they are sorted, their keys of texts some times."""
    keys = (column for column in _key_columns(layout, rows) if not pa.types.is_primitive(column.type))
    texts = sum(column.nbytes for column in keys)
    return int(rows.nbytes + _KEY_COPIES * texts + _BYTES_OF_A_ROW * rows.num_rows)


def _take(
    layout: Layout, source: Iterator[pa.RecordBatch]
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """Return batches until they are above the budget, and the source, or None when it is at its end."""
    taken, size = list[pa.RecordBatch](), 0
    for batch in source:
        taken.append(batch)
        size += _size(layout, batch)
        if size > _budget(layout):
            return taken, source
    return taken, None


def _drain(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, releasing each."""
    while batches:
        yield batches.pop(0)


def _key_batch(columns: Sequence[pa.Array], tie: pa.Array) -> pa.RecordBatch:
    names = [*map(str, range(len(columns))), TIE]
    return pa.RecordBatch.from_arrays([*map(storage_array, columns), tie], names)


def _keys(layout: Layout, rows: pa.Table) -> pa.RecordBatch:
    """Return the keys and ties of rows that have a column of ties behind the table's columns.

    They are in one piece: Polars sorts text columns of many chunks slowly.
    """
    columns = [column.combine_chunks() for column in _key_columns(layout, rows)]
    return _key_batch(columns, rows.column(TIE).combine_chunks())


def _key_columns(layout: Layout, rows: pa.RecordBatch | pa.Table) -> list[pa.Array | pa.ChunkedArray]:
    numbers = [field["id"] for field in layout.schema["fields"]]
    return [rows.column(numbers.index(number)) for number, _, _ in layout.order]


def _sorted_in_memory(layout: Layout, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not batches:
        return
    table = pa.Table.from_batches(_drain(batches))
    keys = pl.DataFrame([_sortable(column).alias(str(n)) for n, column in enumerate(_keys(layout, table).columns[:-1])])
    order = _curve(keys).arg_sort() if layout.zorder else sorted_rows(keys, layout.order)
    del keys
    table = table.drop_columns([TIE])
    step = max(1, table.num_rows)
    if table.nbytes > _LONG_ROW_BYTES * table.num_rows:
        table, step = table.combine_chunks(), max(1, _TAKEN_BYTES * table.num_rows // table.nbytes)
    for start in range(0, table.num_rows, step):
        yield from table.take(order.slice(start, step).to_arrow()).to_batches()


def _sortable(column: pa.Array) -> pl.Series:
    """Return a key column; texts that repeat as ranks, which sort in half the time and take less memory."""
    if not pa.types.is_binary(column.type) or not dictionary_pays(pa.chunked_array([column]), _DICTIONARY_BYTES):
        return pl.Series(pl.from_arrow(column))
    encoded = pc.dictionary_encode(column)
    ranks = inverse(pl.Series(pl.from_arrow(encoded.dictionary)).arg_sort())
    return ranks.gather(pl.Series(pl.from_arrow(encoded.indices)))


def _curve(keys: pl.DataFrame) -> pl.Series:
    """Return each row's position on the z-order curve: the bits of its rank in each column, interleaved.

    Ranks instead of values spread every column evenly, whatever its type and its outliers.
    """
    bits = min(_CURVE_BITS_PER_COLUMN, _CURVE_BITS // keys.width)
    curve = pl.repeat(0, keys.height, dtype=pl.Int64, eager=True)
    spread_bytes = pl.Series([_spread_bits(byte, keys.width) for byte in range(1 << _BYTE_BITS)], dtype=pl.Int64)
    for index, name in enumerate(keys.columns):
        fraction = keys[name].rank("min").fill_null(0).cast(pl.Float64) / (keys.height + 1)
        scaled = (fraction * 2**bits).cast(pl.Int64)
        for byte in range(math.ceil(bits / _BYTE_BITS)):
            bits_of_byte = spread_bytes.gather((scaled // 2 ** (_BYTE_BITS * byte)) % 2**_BYTE_BITS)
            curve = curve | (bits_of_byte * 2 ** (_BYTE_BITS * byte * keys.width + keys.width - 1 - index))
    return curve


def _spread_bits(byte: int, stride: int) -> int:
    """Return the bits of a byte, placed `stride` bits apart."""
    return sum((byte >> bit & 1) << (bit * stride) for bit in range(_BYTE_BITS) if bit * stride < _CURVE_BITS)


def _sorted_by_ranges(layout: Layout, batches: Iterable[pa.RecordBatch], ranges: Ranges) -> Iterator[pa.RecordBatch]:
    """Yield rows in order: each is written into the file of its range, and each file is sorted."""
    with tempfile.TemporaryDirectory(prefix="icewright-") as folder:
        files = [Path(folder) / f"{number}.arrow" for number in range(ranges.count)]
        sizes, rows = _spill(layout, batches, ranges, files)
        for run in groups_within(range(len(sizes)), _budget(layout), sizes.__getitem__):
            too_large = sizes[run[0]] > _RANGE_SLACK * _budget(layout)  # then it is alone
            if too_large and rows[run[0]] > 1:
                yield from _sorted_file(layout, files[run[0]], sizes[run[0]], rows[run[0]])
            else:
                stored = [batch for number in run for batch in _stored_batches(files[number])]
                yield from _sorted_in_memory(layout, stored)


def _sorted_file(layout: Layout, file: Path, size: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range that is larger than the sample predicted: it is divided again."""
    keys = (_keys(layout, pa.Table.from_batches([batch])) for batch in _stored_batches(file))
    sample = KeySample.of(keys, rows, _budget(layout) // 2)
    if sample.keys.num_rows < 2:  # noqa: PLR2004 - which cannot be told apart
        raise beyond_memory("the columns that order its rows do")
    yield from _sorted_by_ranges(layout, _stored_batches(file), ranges_of(layout, sample.frame, size))


def _spill(
    layout: Layout, batches: Iterable[pa.RecordBatch], ranges: Ranges, files: Sequence[Path]
) -> tuple[list[int], list[int]]:
    """Write each row into the file of its range. Return the bytes in memory and the rows of each file."""
    sizes, rows = [0] * len(files), [0] * len(files)
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        for table in chunks(batches, layout):
            for number, part in split_by_range(layout, table, ranges):
                if number not in writers:
                    writers[number] = stack.enter_context(pa.ipc.new_stream(str(files[number]), table.schema))
                writers[number].write_table(part)
                sizes[number] += _size(layout, part)
                rows[number] += part.num_rows
    return sizes, rows


def _stored_batches(file: Path) -> Iterator[pa.RecordBatch]:
    if file.exists():
        with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as reader:
            yield from reader
