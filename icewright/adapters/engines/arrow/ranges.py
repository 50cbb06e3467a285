"""Divide rows into consecutive ranges of a sort order, or into boxes of a z-order, by a sample of their keys.

Keys are not unique, so each row also has a tie: a pseudorandom number that divides rows of equal keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.arrow.tasks import SortField

TIE = "tie of the row"  # name of the column
_MAX = (1 << 64) - 1
_SAMPLED_ROWS = 1 << 16  # with so many, the sizes of 30 ranges differ by about 2 %


def ties(first: int, length: int, seed: int) -> pa.Array:
    """Return the ties of `length` rows from number `first` on; they are the same whenever the rows are read."""
    return pl.int_range(first, first + length, dtype=pl.UInt64, eager=True).hash(seed).to_arrow()


@dataclass(frozen=True)
class KeySample:
    """The keys and ties of the rows whose ties have hashes up to `below`."""

    keys: pa.Table
    below: int

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], rows: int, most_bytes: int) -> KeySample:
        """Return a sample of about `_SAMPLED_ROWS` of `rows` rows, of fewer where it would exceed `most_bytes`."""
        below, size = min(_MAX, _MAX * _SAMPLED_ROWS // max(1, rows)), 0
        schema, chosen = None, list[pa.RecordBatch]()
        for batch in batches:
            schema = batch.schema
            chosen.append(_with_hashes_up_to(batch, below))
            size += chosen[-1].nbytes
            while size > most_bytes and sum(some.num_rows for some in chosen) > 1:
                below //= 2
                chosen = [_with_hashes_up_to(some, below) for some in chosen]
                size = sum(some.nbytes for some in chosen)
        return cls(pa.Table.from_batches(chosen, schema or pa.schema([])), below)

    @classmethod
    def merged(cls, samples: Sequence[KeySample]) -> KeySample:
        """Return one sample of the rows of all samples together."""
        below = min(sample.below for sample in samples)
        return cls(pa.concat_tables([_with_hashes_up_to(s.keys, below) for s in samples if s.keys.num_columns]), below)

    @property
    def frame(self) -> pl.DataFrame:
        """Return the keys and ties as a frame."""
        return pl.DataFrame(pl.from_arrow(self.keys.combine_chunks()))


def _with_hashes_up_to(rows: pa.RecordBatch | pa.Table, most: int) -> pa.RecordBatch | pa.Table:
    # of hashes: within a range of equal keys, ties themselves are close to one another
    hashes = pl.Series(pl.from_arrow(rows.column(TIE)), dtype=pl.UInt64).hash()
    return rows.filter((hashes <= most).to_arrow())


@dataclass(frozen=True, slots=True)
class _Node:
    """An inner node of a k-d tree: rows up to a bound of a column are in `before`, the others in `after`.

    A child is a node, or the number of a range.
    """

    column: int
    bound: int  # its index among the bounds of the column
    before: _Node | int
    after: _Node | int


@dataclass(frozen=True)
class Ranges:
    """The bounds by which rows are divided. A row that equals a bound comes after it."""

    order: tuple[SortField, ...]
    count: int
    bounds: Sequence[pl.DataFrame]  # in order: of all columns together, or of each column of a z-order
    tree: _Node | int | None  # for a z-order

    def numbers(self, keys: pl.DataFrame) -> pl.Series:
        """Return the number of the range of each row, by its keys and tie."""
        positions = [_search_sorted(bounds, keys, self.order) for bounds in self.bounds]
        if self.tree is None:
            return positions[0]
        numbers = pl.repeat(0, keys.height, dtype=pl.UInt32, eager=True)
        stack = [(self.tree, pl.int_range(keys.height, dtype=pl.UInt32, eager=True))]
        while stack:
            node, rows = stack.pop()
            if isinstance(node, int):
                numbers = numbers.scatter(rows, node)
                continue
            before = positions[node.column].gather(rows) <= node.bound
            stack += [(node.before, rows.filter(before)), (node.after, rows.filter(~before))]
        return numbers


def divide(order: tuple[SortField, ...], sample: pl.DataFrame, count: int, *, zorder: bool) -> Ranges:
    """Return `count` ranges of about as many rows each; fewer where the sample has fewer rows."""
    if not zorder:
        ordered = sample.gather(sorted_rows(sample, order))
        cuts = sorted({number * sample.height // count for number in range(1, count)} - {0})
        return Ranges(order, count, [ordered.gather(cuts)], None)
    builder = _TreeBuilder(order, sample)
    root = builder.divide(pl.int_range(sample.height, dtype=pl.UInt32, eager=True), 0, count, 0)
    return Ranges(order, count, *builder.with_sorted_bounds(root))


@dataclass
class _TreeBuilder:
    """Builds a k-d tree of a sample's rows, whose leaves have about equally many rows and do not overlap."""

    order: tuple[SortField, ...]
    sample: pl.DataFrame
    bounds: list[list[int]] = field(init=False)  # numbers of the rows that are bounds, by column

    def __post_init__(self) -> None:
        self.bounds = [[] for _ in self.order]

    def divide(self, rows: pl.Series, first: int, count: int, depth: int) -> _Node | int:
        """Return the tree of some rows, with ranges from `first` on; bounds are numbered in the order of division."""
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
        return _Node(column, bound, before, self.divide(ordered[cut:], first + half, count - half, depth + 1))

    def with_sorted_bounds(self, root: _Node | int) -> tuple[list[pl.DataFrame], _Node | int]:
        """Return the bounds of each column in order, and the tree with the indices of its bounds in that order."""
        frames, indices = [], list[list[int]]()
        for column, rows in enumerate(self.bounds):
            bounds = self.sample.select(self.sample.columns[column], TIE).gather(rows)
            ordered = sorted_rows(bounds, self.order[column : column + 1])
            frames.append(bounds.gather(ordered))
            indices.append(inverse(ordered).to_list())

        def renumbered(node: _Node | int) -> _Node | int:
            if isinstance(node, int):
                return node
            bound = indices[node.column][node.bound]
            return _Node(node.column, bound, renumbered(node.before), renumbered(node.after))

        return frames, renumbered(root)


def sorted_rows(keys: pl.DataFrame, order: Sequence[SortField]) -> pl.Series:
    """Return the numbers of the rows in order; columns beyond those of `order`, such as ties, sort ascending."""
    rest = len(keys.columns) - len(order)
    descending = [d for _, d, _ in order] + [False] * rest
    last = [n for _, _, n in order] + [False] * rest
    by = pl.arg_sort_by(keys.columns, descending=descending, nulls_last=last, maintain_order=True)
    return keys.select(by).to_series()


def inverse(order: pl.Series) -> pl.Series:
    """Return the inverse of a permutation."""
    numbers = pl.int_range(order.len(), dtype=pl.UInt32, eager=True)
    return pl.repeat(0, order.len(), dtype=pl.UInt32, eager=True).scatter(order, numbers)


def _search_sorted(bounds: pl.DataFrame, keys: pl.DataFrame, order: Sequence[SortField]) -> pl.Series:
    """Return how many of the bounds come before each row or equal it."""
    of_bounds = [by for name, by in zip(keys.columns, order, strict=False) if name in bounds.columns]
    first, (_, descending, nulls_last) = bounds.columns[0], of_bounds[0]
    values, column = bounds[first].drop_nulls().sort(), keys[first]
    before, up_to = (values.search_sorted(column, side=side) for side in ("left", "right"))
    undecided = ((before != up_to) | column.is_null()).arg_true()
    positions = (values.len() - up_to if descending else before) + (0 if nulls_last else bounds[first].null_count())
    if undecided.is_empty():
        return positions
    return positions.scatter(
        undecided, _search_sorted_by_all_columns(bounds, keys.select(bounds.columns)[undecided], of_bounds)
    )


def _search_sorted_by_all_columns(bounds: pl.DataFrame, keys: pl.DataFrame, order: Sequence[SortField]) -> pl.Series:
    # the sort is stable, and a bound comes before the row that equals it
    ordered = sorted_rows(pl.concat([bounds, keys]), order)
    before = (ordered < bounds.height).cum_sum()
    return pl.repeat(0, ordered.len(), dtype=pl.UInt32, eager=True).scatter(ordered, before)[bounds.height :]
