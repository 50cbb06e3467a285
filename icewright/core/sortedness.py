"""Measure how well a partition is sorted, by the overlap of the value ranges of its files."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from icewright.core.ordering import Ordering
from icewright.core.schemas import columns

Range = tuple[Any, Any]  # least and greatest value that a file holds of a column
_MOST_FILES = 400  # of a partition whose boxes are compared pair by pair; of more, as many spread evenly


def ordering_columns(order: str) -> tuple[str, ...]:
    """Return the columns by which files are told apart: the first of a sort order, all of a z-order.

    Empty when the order begins with something else than a column, such as `bucket(4, id)`: nobody knows then.
    """
    ordering = Ordering.parse(order)
    if ordering.zorder:
        return tuple(column.name for column in ordering.columns) if ordering.whole else ()
    return tuple(column.name for column in ordering.columns[:1])


def unknown_columns(schema: Mapping[str, Any], order: str) -> tuple[str, ...]:
    """Return the columns of an order that the schema has not."""
    known = {".".join(path).lower() for _, path, _ in columns(schema)}
    return tuple(column.name for column in Ordering.parse(order).columns if column.name.lower() not in known)


def ordering_fields(schema: Mapping[str, Any], names: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Return field id and type of each column; empty unless all are in the schema with primitive types."""
    fields_by_name = {
        ".".join(path).lower(): (number, kind) for number, path, kind in columns(schema) if isinstance(kind, str)
    }
    fields = [fields_by_name.get(name.lower()) for name in names]
    return tuple(field for field in fields if field is not None) if all(fields) else ()


def overlap(files: Sequence[Sequence[Range]]) -> float | None:
    """Return the share of pairs of files whose ranges overlap, in every column: 0 is sorted, 1 as bad as can be.

    Ranges that only touch do not overlap. None for fewer than two files.
    """
    if len(files) < 2:  # noqa: PLR2004 - a pair
        return None
    if len(files[0]) == 1:
        return _overlap_of_one([one for (one,) in files])
    step = max(1, len(files) // _MOST_FILES)
    pairs = list(combinations(files[::step], 2))
    return sum(_meet(a, b) for a, b in pairs) / len(pairs)


def _overlap_of_one(ranges: Sequence[Range]) -> float:
    ends = sorted(high for _, high in ranges)
    apart = sum(bisect_right(ends, low) for low, _ in ranges)
    apart -= sum(low == high for low, high in ranges)  # a file of one value is not apart from itself
    twins = Counter(low for low, high in ranges if low == high)
    apart -= sum(count * (count - 1) // 2 for count in twins.values())  # counted from both sides
    total = len(ranges) * (len(ranges) - 1) // 2
    return float((total - apart) / total)


def _meet(one: Sequence[Range], other: Sequence[Range]) -> bool:
    return all(a[0] < b[1] and b[0] < a[1] for a, b in zip(one, other, strict=True))
