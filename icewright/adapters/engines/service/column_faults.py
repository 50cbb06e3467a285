"""Checks of an entry's counts, bounds and partition against the columns of its file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from icewright.adapters.engines.service.content_file import ContentFile
from icewright.core import field_ids as ids
from icewright.core.integrity import FileFaultKind
from icewright.core.single_values import bound_value, is_bound
from icewright.core.table import PartitionSpec

Fault = tuple[FileFaultKind, str]
MAYBE_TRUNCATED_BYTES = 32  # writers cut texts of at least this length in statistics
_RAISED_BYTES = 8  # at the end of such a text, which a writer may have raised to a greater one
_TIMES = ("year", "month", "day", "hour")


@dataclass(frozen=True)
class ColumnContent:
    """The statistics of a column in one file: numbers as integers, texts as bytes."""

    values: int
    nulls: int | None
    least: Any
    most: Any
    is_exact: bool  # the two are values of the column, and not cut
    nans: int | None = None
    sample: tuple[Any, ...] = ()  # more of its values


UNMEASURED = ColumnContent(0, None, None, None, is_exact=False)


def is_ordered(kind: str) -> bool:
    """Return whether bounds of the type can be compared: libraries differ in the order of UUIDs, others have none."""
    return kind != "uuid" and not kind.startswith(("variant", "geometry", "geography", "unknown"))


def column_faults(
    entry: ContentFile, columns: Mapping[int, ColumnContent], types: Mapping[int, Any], spec: PartitionSpec | None
) -> Iterator[Fault]:
    """Yield where an entry differs from what its file says of the columns, by their ids."""
    counts = {
        "values": entry.mapped(ids.VALUE_COUNTS),
        "nulls": entry.mapped(ids.NULL_COUNTS),
        "NaN": entry.mapped(ids.NAN_COUNTS),
    }
    for number, column in columns.items():
        for (what, stated), actual in zip(counts.items(), (column.values, column.nulls, column.nans), strict=True):
            if None not in (actual, stated.get(number)) and actual != stated[number]:
                detail = f"column {number} has {actual} {what}, and its entry says {stated[number]}"
                yield FileFaultKind.WRONG_COUNT, detail
    for number, contradiction in contradictions(entry).items():
        yield FileFaultKind.WRONG_COUNT, f"column {number} has {contradiction} by its entry"
    yield from (fault for _, fault in _bound_faults(entry, columns, types))
    if names_other_files(entry, columns):
        detail = f"it deletes rows of other files than {entry.referenced}, which its entry names alone"
        yield FileFaultKind.WRONG_BOUNDS, detail
    yield from _wrong_partition(entry, columns, types, spec)


def names_other_files(entry: ContentFile, columns: Mapping[int, ColumnContent]) -> bool:
    """Return whether position deletes name other data files than their entry does."""
    path, paths = entry.referenced.encode(), columns.get(ids.DELETED_PATH, UNMEASURED)
    return bool(path) and not entry.is_vector and any(_outside("string", ids.DELETED_PATH, paths, path, path))


def contradictions(entry: ContentFile) -> Mapping[int, str]:
    """Return the columns whose counts contradict one another or their bounds."""
    values, nulls, nans, lower = map(
        entry.mapped, (ids.VALUE_COUNTS, ids.NULL_COUNTS, ids.NAN_COUNTS, ids.LOWER_BOUNDS)
    )
    contradictions = {}
    for number, total in values.items():
        numbers, bound = total - nulls.get(number, 0) - nans.get(number, 0), lower.get(number, b"")
        if numbers < 0:
            contradictions[number] = "fewer values than nulls and NaN"
        elif (
            not numbers
            and nans.get(number)
            and is_bound("double", bound)
            and not math.isnan(bound_value("double", bound))
        ):
            contradictions[number] = "nothing but NaN, and a bound"
    return contradictions


def wrong_bounds(entry: ContentFile, columns: Mapping[int, ColumnContent], types: Mapping[int, Any]) -> frozenset[int]:
    """Return the columns of which the entry has bounds that are none, or that leave out values."""
    return frozenset(number for number, _ in _bound_faults(entry, columns, types))


def _bound_faults(
    entry: ContentFile, columns: Mapping[int, ColumnContent], types: Mapping[int, Any]
) -> Iterator[tuple[int, Fault]]:
    """Yield what is wrong with the bounds of each column of a simple type, with its id."""
    lower, upper = entry.mapped(ids.LOWER_BOUNDS), entry.mapped(ids.UPPER_BOUNDS)
    for number in sorted(lower.keys() | upper.keys()):
        if isinstance(kind := types.get(number), str):
            column = columns.get(number, UNMEASURED)
            for fault in _outside(kind, number, column, lower.get(number), upper.get(number)):
                yield number, fault


def _outside(
    kind: str, number: int, column: ColumnContent, lower: bytes | None, upper: bytes | None
) -> Iterator[Fault]:
    """Compare the entry's bounds with the column's: a file whose rows lie outside of them is skipped by readers."""
    if any(bound is not None and not is_bound(kind, bound) for bound in (lower, upper)):
        yield FileFaultKind.WRONG_BOUNDS, f"column {number} has a bound that is no {kind}"
        return
    if lower is not None and upper is not None and is_ordered(kind):
        low, high = bound_value(kind, lower), bound_value(kind, upper)
        if low > high:
            yield FileFaultKind.WRONG_BOUNDS, f"column {number} has the lower bound {low!r}, above the upper {high!r}"
    if column.least is not None and lower is not None:
        low, least = bound_value(kind, lower), column.least
        if isinstance(low, bytes) and len(least) >= MAYBE_TRUNCATED_BYTES:
            low = low[: len(least)]
        if low > least:
            yield FileFaultKind.WRONG_BOUNDS, f"column {number} has {least!r}, below the lower bound {low!r}"
    if column.most is not None and upper is not None:
        high, most = bound_value(kind, upper), column.most if column.is_exact else column.most[:-_RAISED_BYTES]
        if high < most:
            yield FileFaultKind.WRONG_BOUNDS, f"column {number} has {column.most!r}, above the upper bound {high!r}"


def _wrong_partition(
    entry: ContentFile, columns: Mapping[int, ColumnContent], types: Mapping[int, Any], spec: PartitionSpec | None
) -> Iterator[Fault]:
    """Compare partition values with the column's, where the file has the column."""
    for partition, value in zip(spec.fields if spec else (), entry.partition, strict=False):
        column = columns.get(partition.source_id)
        if column is None or partition.transform == "void":
            continue
        if _has_rows_of_others(column, types[partition.source_id], partition.transform, value):
            yield (
                FileFaultKind.WRONG_PARTITION,
                f"{partition.name} of its partition is {value!r}, and its rows are of others",
            )


def _has_rows_of_others(column: ColumnContent, kind: str, transform: str, value: Any) -> bool:  # noqa: ANN401 - Avro's
    """Return whether the column has rows of another partition than that of `value`; False where nobody can tell."""
    if value is None:
        return column.nulls is not None and column.nulls != column.values
    if value != value or not column.is_exact or column.least is None or column.most is None:  # noqa: PLR0124 - NaN
        return False
    if column.nulls:
        return True
    stored = comparable(value, kind)
    expected = {_transformed(transform, kind, known) for known in (column.least, column.most, *column.sample)}
    return any(type(known) is type(stored) and known != stored for known in expected)


def _transformed(transform: str, kind: str, value: Any) -> Any:  # noqa: ANN401 - any comparable
    """Return the partition value of a column's value; None where it cannot be told.

    Early versions of Iceberg rounded times before 1970 up.
    """
    if transform == "identity":
        return value
    function = None if kind.startswith("decimal") else _function(transform, kind)
    if function is None or (transform in _TIMES and value < 0):
        return None
    try:
        result = function(value.decode() if kind == "string" else value)
    except (UnicodeDecodeError, OverflowError):  # Python has texts of UTF-8 alone, and no year above 9999
        return None
    return result.encode() if isinstance(result, str) else result


@lru_cache(maxsize=100)
def _function(transform: str, kind: str) -> Callable[[Any], Any] | None:
    """Return a transform of a type; None for those that there are not."""
    from pyiceberg.transforms import parse_transform  # noqa: PLC0415 - takes long to load
    from pyiceberg.types import NestedField  # noqa: PLC0415

    field = NestedField.model_validate({"id": 1, "name": "source", "type": kind, "required": False})
    try:
        parsed = parse_transform(transform)
        function: Callable[[Any], Any] = parsed.transform(field.field_type)
    except (AttributeError, ValueError):
        return None
    exists = parsed.can_transform(field.field_type) and not re.search(r"\[0+\]$", transform)
    return function if exists else None


def comparable(value: Any, kind: str) -> Any:  # noqa: ANN401 - any physical value
    """Return a physical value as those of its column compare: texts as bytes, decimals as integers."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes) and kind.startswith("decimal"):
        return int.from_bytes(value, "big", signed=True)
    return value
