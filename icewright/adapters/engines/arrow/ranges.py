"""Divide rows into consecutive ranges of a sort order, or into boxes of a z-order, by a sample of their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.arrow.tasks import SortField

TIE = "tie of the row"  # the name of a column of numbers as if at random, which divide rows of equal keys
_MAX = (1 << 64) - 1
_SAMPLED_ROWS = 1 << 16  # of all rows that are divided: sizes of 30 ranges differ by about 2 %


def ties(first: int, length: int, seed: int) -> pa.Array:
    """Return the ties of rows that are numbered from `first` on: the same whenever the rows are read."""
    return pl.int_range(first, first + length, dtype=pl.UInt64, eager=True).hash(seed).to_arrow()


@dataclass(frozen=True)
class KeySample:
    """The keys and ties of the rows whose ties have hashes up to `below`."""

    keys: pa.Table
    below: int

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], rows: int, most_bytes: int) -> KeySample:
        """Return a sample of batches of keys and ties, of about `rows` rows in all; of fewer where keys are long."""
        below, size = min(_MAX, _MAX * _SAMPLED_ROWS // max(1, rows)), 0
        schema, chosen = None, list[pa.RecordBatch]()
        for batch in batches:
            schema = batch.schema
            chosen.append(_up_to(batch, below))
            size += chosen[-1].nbytes
            while size > most_bytes and sum(one.num_rows for one in chosen) > 1:
                below //= 2
                chosen = [_up_to(one, below) for one in chosen]
                size = sum(one.nbytes for one in chosen)
        return cls(pa.Table.from_batches(chosen, schema or pa.schema([])), below)

    @classmethod
    def merged(cls, samples: Sequence[KeySample]) -> KeySample:
        """Return the sample of all rows of some samples."""
        below = min(sample.below for sample in samples)
        return cls(pa.concat_tables([_up_to(s.keys, below) for s in samples if s.keys.num_columns]), below)

    @property
    def frame(self) -> pl.DataFrame:
        """Return the keys and ties as a frame."""
        return pl.DataFrame(pl.from_arrow(self.keys.combine_chunks()))


def _up_to(rows: pa.RecordBatch | pa.Table, most: int) -> pa.RecordBatch | pa.Table:
    # hashes, because the rows of a range of equal keys have neighbouring ties
    hashes = pl.Series(pl.from_arrow(rows.column(TIE)), dtype=pl.UInt64).hash()
    return rows.filter((hashes <= most).to_arrow())


@dataclass(frozen=True, slots=True)
class _Box:
    """A division of a box of a z-order: rows before a bound of a column, and the others; or the number of a box."""

    column: int
    bound: int  # the place of the bound among those of the column
    before: _Box | int
    after: _Box | int


@dataclass(frozen=True)
class Ranges:
    """The bounds by which rows are divided. A row that equals a bound comes after it."""

    order: tuple[SortField, ...]
    count: int
    bounds: Sequence[pl.DataFrame]  # in order: of all columns together, or of each column of a z-order
    boxes: _Box | int | None  # of a z-order

    def numbers(self, keys: pl.DataFrame) -> pl.Series:
        """Return the number of the range of each row, by its keys and tie."""
        places = [_places(bounds, keys, self.order) for bounds in self.bounds]
        if self.boxes is None:
            return places[0]
        numbers = pl.repeat(0, keys.height, dtype=pl.UInt32, eager=True)
        stack = [(self.boxes, pl.int_range(keys.height, dtype=pl.UInt32, eager=True))]
        while stack:
            box, rows = stack.pop()
            if isinstance(box, int):
                numbers = numbers.scatter(rows, box)
                continue
            before = places[box.column].gather(rows) <= box.bound
            stack += [(box.before, rows.filter(before)), (box.after, rows.filter(~before))]
        return numbers


def divided(order: tuple[SortField, ...], sample: pl.DataFrame, count: int, *, zorder: bool) -> Ranges:
    """Return `count` ranges of about as many rows each; fewer where the sample has fewer rows."""
    if not zorder:
        ordered = sample.gather(sorted_rows(sample, order))
        cuts = sorted({number * sample.height // count for number in range(1, count)} - {0})
        return Ranges(order, count, [ordered.gather(cuts)], None)
    boxes = _Boxes(order, sample)
    root = boxes.divide(pl.int_range(sample.height, dtype=pl.UInt32, eager=True), 0, count, 0)
    return Ranges(order, count, *boxes.numbered(root))


@dataclass
class _Boxes:
    """A k-d tree of a sample's rows, whose leaves have about as many rows each and do not overlap."""

    order: tuple[SortField, ...]
    sample: pl.DataFrame
    bounds: list[list[int]] = field(init=False)  # the rows that are bounds, by column

    def __post_init__(self) -> None:
        self.bounds = [[] for _ in self.order]

    def divide(self, rows: pl.Series, first: int, count: int, depth: int) -> _Box | int:
        """Return the boxes of some rows, numbered from `first` on; their bounds are numbered as they are found."""
        half = count // 2
        cut = rows.len() * half // max(1, count)
        if not cut:
            return first
        column = depth % len(self.order)
        keys = self.sample.select(self.sample.columns[column], TIE)
        ordered = rows.gather(sorted_rows(keys.gather(rows), self.order[column : column + 1]))
        self.bounds[column].append(int(ordered[cut]))
        bound = len(self.bounds[column]) - 1
        before = self.divide(ordered[:cut], first, half, depth + 1)
        return _Box(column, bound, before, self.divide(ordered[cut:], first + half, count - half, depth + 1))

    def numbered(self, root: _Box | int) -> tuple[list[pl.DataFrame], _Box | int]:
        """Return the bounds of each column in order, and the boxes with the places of their bounds there."""
        frames, places = [], list[list[int]]()
        for column, rows in enumerate(self.bounds):
            found = self.sample.select(self.sample.columns[column], TIE).gather(rows)
            ordered = sorted_rows(found, self.order[column : column + 1])
            frames.append(found.gather(ordered))
            places.append(inverse(ordered).to_list())

        def placed(box: _Box | int) -> _Box | int:
            if isinstance(box, int):
                return box
            return _Box(box.column, places[box.column][box.bound], placed(box.before), placed(box.after))

        return frames, placed(root)


def sorted_rows(keys: pl.DataFrame, order: Sequence[SortField]) -> pl.Series:
    """Return the numbers of the rows in order; those of equal keys by the columns that have no order of their own."""
    rest = len(keys.columns) - len(order)
    descending = [d for _, d, _ in order] + [False] * rest
    last = [n for _, _, n in order] + [False] * rest
    by = pl.arg_sort_by(keys.columns, descending=descending, nulls_last=last, maintain_order=True)
    return keys.select(by).to_series()


def inverse(order: pl.Series) -> pl.Series:
    """Return the inverse of a permutation."""
    numbers = pl.int_range(order.len(), dtype=pl.UInt32, eager=True)
    return pl.repeat(0, order.len(), dtype=pl.UInt32, eager=True).scatter(order, numbers)


def _places(bounds: pl.DataFrame, keys: pl.DataFrame, order: Sequence[SortField]) -> pl.Series:
    """Return how many of the bounds come before each row or equal it."""
    of_bounds = [by for name, by in zip(keys.columns, order, strict=False) if name in bounds.columns]
    first, (_, descending, nulls_last) = bounds.columns[0], of_bounds[0]
    values, column = bounds[first].drop_nulls().sort(), keys[first]
    before, up_to = (values.search_sorted(column, side=side) for side in ("left", "right"))
    undecided = ((before != up_to) | column.is_null()).arg_true()
    places = (values.len() - up_to if descending else before) + (0 if nulls_last else bounds[first].null_count())
    if undecided.is_empty():
        return places
    return places.scatter(undecided, _places_by_all_columns(bounds, keys.select(bounds.columns)[undecided], of_bounds))


def _places_by_all_columns(bounds: pl.DataFrame, keys: pl.DataFrame, order: Sequence[SortField]) -> pl.Series:
    # the sort is stable, and a bound comes before the row that equals it
    ordered = sorted_rows(pl.concat([bounds, keys]), order)
    before = (ordered < bounds.height).cum_sum()
    return pl.repeat(0, ordered.len(), dtype=pl.UInt32, eager=True).scatter(ordered, before)[bounds.height :]
