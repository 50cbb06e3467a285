"""Rows of a bin in a sort order or a z-order, in bounded memory."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.encoding import repeats
from icewright.adapters.engines.arrow.group import Layout
from icewright.adapters.engines.arrow.reading import RANK, BatchScan
from icewright.adapters.engines.arrow.types import plain

_BITS_OF_A_COLUMN = 16  # of the place on a z-curve
_BITS = 63
_BYTE = 8
_KEYS_OF_MEMORY, _ROWS_OF_MEMORY = 2, 8  # the shares that both may take, one after the other
_MOST_SHARES = 128
_BYTES_OF_A_RANK = 16  # while places are found
_DIFFERENT = 16 << 20  # bytes of the texts of a key column that have numbers in their place
_BYTES_OF_A_TEXT = 32  # beside its own, while it is sorted
_SLACK = 3  # shares are cut so much finer than the first rows ask for, and put together by what they hold


class TooLarge(Exception):
    """The keys of the rows do not fit into the memory of a task."""

    def __str__(self) -> str:
        return "the columns that order its rows do not fit into the memory of a task (compact.task_memory_mb)"


def ordered(reading: BatchScan) -> Iterator[pa.RecordBatch]:
    """Yield the live rows in the layout's order.

    The place of each row is found from the key columns alone. Where all columns do not fit into memory too, they go,
    by shares of the places, into files beside the task, each small enough to be sorted. Raises `TooLarge`.
    """
    memory = reading.layout.memory_bytes
    reading.ranks = _ranks(reading, memory // _KEYS_OF_MEMORY)
    budget = memory // _ROWS_OF_MEMORY
    source, first, held = reading.batches(), list[pa.RecordBatch](), 0
    for batch in source:
        first.append(batch)
        held += batch.nbytes
        if held > budget:
            break
    else:
        yield from _in_order(first) if first else ()
        return
    parts = math.ceil(_SLACK * held * len(reading.ranks) / max(1, reading.read) / budget)
    with tempfile.TemporaryDirectory(prefix="icewright-") as folder:
        files = [Path(folder) / f"{number}.arrow" for number in range(min(_MOST_SHARES, parts))]
        sizes = _spread(_given_up(first, source), files, len(reading.ranks))
        for some in _together(sizes, budget):
            batches = [batch for number in some for batch in _read(files[number])]
            yield from _in_order(batches) if batches else ()


def _given_up(first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one after the other, and no longer held."""
    while first:
        yield first.pop(0)
    yield from rest


def _ranks(reading: BatchScan, budget: int) -> pl.Series:
    """Of each row, deleted ones too, its place among all."""
    layout = reading.layout
    by_id = {one["id"]: one for one in reading.fields}
    fields = [by_id[number] for number, _, _ in layout.order]
    batches, held = [], 0
    for columns in reading.every_row(fields):
        batch = pa.RecordBatch.from_arrays([plain(c) for c in columns], [str(n) for n in range(len(columns))])
        again = sum(column.nbytes for column in batch.columns if _is_text(column.type))  # once more for a moment
        held += batch.nbytes + again + _BYTES_OF_A_RANK * batch.num_rows
        if held > budget:
            raise TooLarge
        batches.append(batch)
    if not batches:
        return pl.Series(dtype=pl.UInt32)
    keys = _keys(batches, budget - held)
    if layout.zorder:
        keys = pl.DataFrame([_boxes(keys, reading.bin.outputs), _curve(keys).alias("curve")])
        return _places(keys.select(pl.arg_sort_by("box", "curve")).to_series())
    return _places(_order(keys, layout))


def _keys(batches: list[pa.RecordBatch], room: int) -> pl.DataFrame:
    """The columns of the batches, which are no longer held; of texts that come again, the place of each among them.

    Places sort in half the time and take less memory than texts, for which there must be room of so many bytes.
    """
    table = pa.Table.from_batches(batches)
    batches.clear()
    if not any(map(_is_text, table.schema.types)):
        return pl.DataFrame(pl.from_arrow(table))
    waiting, keys = table.columns, list[pl.Series]()
    del table
    while waiting:  # in one piece each: with texts among them Polars sorts many pieces slowly
        column = waiting.pop(0).combine_chunks()
        text = _is_text(column.type)
        if text and repeats(pa.chunked_array([column]), _DIFFERENT):
            keys.append(_numbered(column).alias(str(len(keys))))
            continue
        room -= _BYTES_OF_A_TEXT * len(column) if text else 0
        if room < 0:
            raise TooLarge
        keys.append(pl.Series(str(len(keys)), pl.from_arrow(column)))
    return pl.DataFrame(keys)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _numbered(column: pa.Array) -> pl.Series:
    """Of each text its place among those that there are."""
    coded = pc.dictionary_encode(column)
    places = _places(pl.Series(pl.from_arrow(coded.dictionary)).arg_sort())
    return places.gather(pl.Series(pl.from_arrow(coded.indices)))


def _order(keys: pl.DataFrame, layout: Layout) -> pl.Series:
    descending, last = [d for _, d, _ in layout.order], [n for _, _, n in layout.order]
    return keys.select(pl.arg_sort_by(keys.columns, descending=descending, nulls_last=last)).to_series()


def _places(order: pl.Series) -> pl.Series:
    """Return the inverse of a permutation."""
    numbers = pl.int_range(order.len(), dtype=pl.UInt32, eager=True)
    return pl.repeat(0, order.len(), dtype=pl.UInt32, eager=True).scatter(order, numbers)


def _boxes(keys: pl.DataFrame, count: int) -> pl.Series:
    """Return a number for each row, equal within boxes of as many rows as an output gets; the boxes do not overlap.

    Halves of halves, in one column after the other. A stretch of a z-curve that is not a power of two long covers
    boxes that do overlap; so rows are in the order of the curve inside their box alone.
    """
    share = math.ceil(keys.height / count)
    box = pl.repeat(0, keys.height, dtype=pl.Int32, eager=True).alias("box")
    waiting = [(pl.int_range(keys.height, dtype=pl.UInt32, eager=True), 0, count, 0)]
    while waiting:
        rows, first, parts, depth = waiting.pop()
        if parts == 1 or rows.len() <= share:
            box = box.scatter(rows, first)
            continue
        half = parts // 2
        sorted_rows = rows.gather(keys.to_series(depth % keys.width).gather(rows).arg_sort())
        waiting.append((sorted_rows[: share * half], first, half, depth + 1))
        waiting.append((sorted_rows[share * half :], first + half, parts - half, depth + 1))
    return box


def _curve(keys: pl.DataFrame) -> pl.Series:
    """Return the bits of the ranks in each column, interleaved: near on the curve is near in every column.

    Ranks in place of values spread every column evenly, whatever its type and its outliers.
    """
    bits = min(_BITS_OF_A_COLUMN, _BITS // keys.width)
    place = pl.repeat(0, keys.height, dtype=pl.Int64, eager=True)
    spread = pl.Series([_stretched(byte, keys.width) for byte in range(1 << _BYTE)], dtype=pl.Int64)
    for number, name in enumerate(keys.columns):
        share = keys[name].rank("min").fill_null(0).cast(pl.Float64) / (keys.height + 1)
        scaled = (share * 2**bits).cast(pl.Int64)
        for byte in range(math.ceil(bits / _BYTE)):
            own = spread.gather((scaled // 2 ** (_BYTE * byte)) % 2**_BYTE)
            place = place | (own * 2 ** (_BYTE * byte * keys.width + keys.width - 1 - number))
    return place


def _stretched(byte: int, stride: int) -> int:
    """Return the bits of a byte, so far apart."""
    return sum((byte >> bit & 1) << (bit * stride) for bit in range(_BYTE) if bit * stride < _BITS)


def _spread(batches: Iterator[pa.RecordBatch], files: Sequence[Path], total: int) -> list[int]:
    """Return all rows into the files, by shares of their places; how many bytes each file holds once read."""
    sizes = [0] * len(files)
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        for batch in batches:
            share = pl.Series(pl.from_arrow(batch.column(RANK))).cast(pl.UInt64) * len(files) // total
            order = share.arg_sort()
            sorted_batch, share = batch.take(order.to_arrow()), share.gather(order)
            counts = share.value_counts().sort(share.name)
            start = 0
            for number, count in counts.rows():
                part = sorted_batch.slice(start, count)
                start += count
                if number not in writers:
                    new = pa.ipc.new_file(str(files[number]), batch.schema)
                    writers[number] = stack.enter_context(new)
                writers[number].write_batch(part)
                sizes[number] += part.nbytes
    return sizes


def _together(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Shares side by side that fit into memory."""
    some: list[int] = []
    held = 0
    for number, size in enumerate(sizes):
        if some and held + size > budget:
            yield some
            some, held = [], 0
        some.append(number)
        held += size
    yield some


def _read(file: Path) -> list[pa.RecordBatch]:
    if not file.exists():
        return []
    with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    file.unlink()
    return batches


def _in_order(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches)
    order = pc.sort_indices(table.column(RANK))
    yield from table.drop_columns([RANK]).take(order).to_batches()
