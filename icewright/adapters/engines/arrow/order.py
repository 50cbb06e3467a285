"""Sort the rows of a bin by a sort order or a z-order, in bounded memory."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from icewright.adapters.engines.arrow.encoding import dictionary_pays
from icewright.adapters.engines.arrow.reading import SORT_RANK, BatchScan
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.arrow.types import storage_array

_CURVE_BITS_PER_COLUMN = 16  # of a position on the z-order curve
_CURVE_BITS = 63
_BYTE_BITS = 8
_KEY_MEMORY_SHARE, _ROW_MEMORY_SHARE = 2, 8  # divisors of the task's memory: for the keys, then for the rows
_MAX_PARTITIONS = 128
_RANK_BYTES = 16  # while ranks are computed
_DICTIONARY_BYTES = 16 << 20  # bytes of the distinct texts of a key column up to which they are replaced by their ranks
_TEXT_SORT_BYTES = 32  # beside the text itself, while it is sorted
_PARTITION_SLACK = 3  # more partitions than the first rows suggest; small neighbours are read back together


class SortExceedsMemory(Exception):
    """The sort keys of a bin do not fit into the memory of a task."""

    def __str__(self) -> str:
        return "the columns that order its rows do not fit into the memory of a task (compact.task_memory_mb)"


def sorted_batches(scan: BatchScan) -> Iterator[pa.RecordBatch]:
    """Yield the live rows in the layout's order.

    The rank of each row is computed from the key columns alone. Rows that do not fit into memory are partitioned by
    rank into local files, each small enough to be sorted. Raises `SortExceedsMemory` when the keys do not fit.
    """
    memory = scan.layout.memory_bytes
    scan.sort_ranks = _sort_ranks(scan, memory // _KEY_MEMORY_SHARE)
    budget = memory // _ROW_MEMORY_SHARE
    source, first, bytes_held = scan.batches(), list[pa.RecordBatch](), 0
    for batch in source:
        first.append(batch)
        bytes_held += batch.nbytes
        if bytes_held > budget:
            break
    else:
        yield from _sorted_by_rank(first) if first else ()
        return
    parts = math.ceil(_PARTITION_SLACK * bytes_held * len(scan.sort_ranks) / max(1, scan.read) / budget)
    with tempfile.TemporaryDirectory(prefix="icewright-") as folder:
        files = [Path(folder) / f"{number}.arrow" for number in range(min(_MAX_PARTITIONS, parts))]
        sizes = _spill(_drained(first, source), files, len(scan.sort_ranks))
        for run in _runs_within(sizes, budget):
            batches = [batch for partition_number in run for batch in _load(files[partition_number])]
            yield from _sorted_by_rank(batches) if batches else ()


def _drained(first: list[pa.RecordBatch], remaining: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first batches, releasing each, then the rest."""
    while first:
        yield first.pop(0)
    yield from remaining


def _sort_ranks(scan: BatchScan, budget: int) -> pl.Series:
    """Return the rank of each row in the sort order, in scan order, deleted rows included."""
    layout = scan.layout
    by_id = {field["id"]: field for field in scan.fields}
    fields = [by_id[number] for number, _, _ in layout.order]
    batches, bytes_held = [], 0
    for columns in scan.scan_columns(fields):
        batch = pa.RecordBatch.from_arrays([storage_array(c) for c in columns], [str(n) for n in range(len(columns))])
        # a second copy of texts exists while columns are combined
        text_bytes = sum(column.nbytes for column in batch.columns if _is_text(column.type))
        bytes_held += batch.nbytes + text_bytes + _RANK_BYTES * batch.num_rows
        if bytes_held > budget:
            raise SortExceedsMemory
        batches.append(batch)
    if not batches:
        return pl.Series(dtype=pl.UInt32)
    keys = _keys(batches, budget - bytes_held)
    if layout.zorder:
        keys = pl.DataFrame([boxes(keys, scan.bin.outputs), _curve(keys).alias("curve")])
        return _inverse(keys.select(pl.arg_sort_by("box", "curve")).to_series())
    return _inverse(_order(keys, layout))


def _keys(batches: list[pa.RecordBatch], budget: int) -> pl.DataFrame:
    """Return the key columns and empty `batches`; columns of repeating texts become ranks among the distinct texts.

    Ranks sort in half the time of texts and take less memory. Raises `SortExceedsMemory` when other texts need more
    than `budget` bytes.
    """
    table = pa.Table.from_batches(batches)
    batches.clear()
    if not any(map(_is_text, table.schema.types)):
        return pl.DataFrame(pl.from_arrow(table))
    stack, keys = table.columns, list[pl.Series]()
    del table
    while stack:  # combined: Polars sorts text columns of many chunks slowly
        column = stack.pop(0).combine_chunks()
        text = _is_text(column.type)
        if text and dictionary_pays(pa.chunked_array([column]), _DICTIONARY_BYTES):
            keys.append(_text_ranks(column).alias(str(len(keys))))
            continue
        budget -= _TEXT_SORT_BYTES * len(column) if text else 0
        if budget < 0:
            raise SortExceedsMemory
        keys.append(pl.Series(str(len(keys)), pl.from_arrow(column)))
    return pl.DataFrame(keys)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _text_ranks(column: pa.Array) -> pl.Series:
    """Return the rank of each text among the distinct texts of the column."""
    encoded = pc.dictionary_encode(column)
    ranks = _inverse(pl.Series(pl.from_arrow(encoded.dictionary)).arg_sort())
    return ranks.gather(pl.Series(pl.from_arrow(encoded.indices)))


def _order(keys: pl.DataFrame, layout: Layout) -> pl.Series:
    descending, last = [d for _, d, _ in layout.order], [n for _, _, n in layout.order]
    return keys.select(pl.arg_sort_by(keys.columns, descending=descending, nulls_last=last)).to_series()


def _inverse(order: pl.Series) -> pl.Series:
    """Return the inverse of a permutation."""
    numbers = pl.int_range(order.len(), dtype=pl.UInt32, eager=True)
    return pl.repeat(0, order.len(), dtype=pl.UInt32, eager=True).scatter(order, numbers)


def boxes(keys: pl.DataFrame, count: int) -> pl.Series:
    """Return the box number of each row: a k-d tree with one disjoint box of equal row count for each output.

    Rows follow the z-order curve only inside a box, because a stretch of the curve whose length is no power of two
    covers overlapping boxes.
    """
    box_rows = math.ceil(keys.height / count)
    box = pl.repeat(0, keys.height, dtype=pl.Int32, eager=True).alias("box")
    stack = [(pl.int_range(keys.height, dtype=pl.UInt32, eager=True), 0, count, 0)]
    while stack:
        rows, first, parts, depth = stack.pop()
        if parts == 1 or rows.len() <= box_rows:
            box = box.scatter(rows, first)
            continue
        half = parts // 2
        sorted_rows = rows.gather(keys.to_series(depth % keys.width).gather(rows).arg_sort())
        stack.append((sorted_rows[: box_rows * half], first, half, depth + 1))
        stack.append((sorted_rows[box_rows * half :], first + half, parts - half, depth + 1))
    return box


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


def _spill(batches: Iterator[pa.RecordBatch], files: Sequence[Path], total: int) -> list[int]:
    """Write each row into the file of its rank's partition. Return the decoded bytes of each file."""
    sizes = [0] * len(files)
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        for batch in batches:
            partition = pl.Series(pl.from_arrow(batch.column(SORT_RANK))).cast(pl.UInt64) * len(files) // total
            order = partition.arg_sort()
            sorted_batch, partition = batch.take(order.to_arrow()), partition.gather(order)
            counts = partition.value_counts().sort(partition.name)
            start = 0
            for partition_number, count in counts.rows():
                part = sorted_batch.slice(start, count)
                start += count
                if partition_number not in writers:
                    new = pa.ipc.new_file(str(files[partition_number]), batch.schema)
                    writers[partition_number] = stack.enter_context(new)
                writers[partition_number].write_batch(part)
                sizes[partition_number] += part.nbytes
    return sizes


def _runs_within(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield runs of neighbouring file numbers that fit into `budget` bytes together."""
    run: list[int] = []
    bytes_held = 0
    for partition_number, size in enumerate(sizes):
        if run and bytes_held + size > budget:
            yield run
            run, bytes_held = [], 0
        run.append(partition_number)
        bytes_held += size
    yield run


def _load(file: Path) -> list[pa.RecordBatch]:
    if not file.exists():
        return []
    with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    file.unlink()
    return batches


def _sorted_by_rank(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches)
    order = pc.sort_indices(table.column(SORT_RANK))
    yield from table.drop_columns([SORT_RANK]).take(order).to_batches()
