"""What the entry of a written file says: counts and bounds by field id (spec, Manifests; Iceberg's ParquetMetrics)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.types import Field

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column."
_MOST_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"
_TRUNCATE = re.compile(r"truncate\((\d+)\)")
_FALLBACK = "truncate(16)"
_HIGHEST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A primitive column that is in no list and no map: what Iceberg keeps metrics of."""

    id: int
    names: tuple[str, ...]  # from the column of the table down
    kind: str
    mode: str

    @property
    def bounded(self) -> bool:
        """Return whether Iceberg stores lower and upper bounds for the column."""
        return self.mode not in ("none", "counts")

    @property
    def path(self) -> str:
        """As Parquet names the column."""
        return ".".join(self.names)


def leaves(fields: Sequence[Field], properties: Mapping[str, str], sorted_by: Sequence[int]) -> list[Leaf]:
    """Return the columns with the mode of their metrics (Iceberg's MetricsConfig).

    Tables of many columns keep metrics of the first alone unless a default is set; sorted columns keep bounds.
    """
    found = list(_primitives(fields))
    default = properties.get(_DEFAULT)
    most = int(properties.get(_MOST_INFERRED, "100"))
    inferred = {one.id for one in found} if default is not None else _first(fields, most)
    result = []
    for one in found:
        mode = (default or _FALLBACK) if one.id in inferred else "none"
        if one.id in sorted_by and mode in ("none", "counts"):
            mode = _FALLBACK
        said = properties.get(_COLUMN + one.path)
        result.append(replace(one, mode=(said or mode).lower()))
    return result


def _primitives(fields: Sequence[Field], above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    for field in fields:
        kind, names = field["type"], (*above, field["name"])
        if isinstance(kind, str):
            yield Leaf(field["id"], names, kind, "")
        elif kind["type"] == "struct":
            yield from _primitives(kind["fields"], names)


def every_path(fields: Sequence[Field], above: str = "") -> Iterator[tuple[str, int]]:
    """Yield the paths of all columns as Parquet names them, those in lists and maps too, and their ids."""
    for field in fields:
        yield from _paths_of(field["type"], field["id"], f"{above}{field['name']}")


def _paths_of(kind: Any, number: int, path: str) -> Iterator[tuple[str, int]]:  # noqa: ANN401 - the spec's JSON
    if isinstance(kind, str):
        yield path, number
    elif kind["type"] == "struct":
        yield from every_path(kind["fields"], f"{path}.")
    elif kind["type"] == "list":
        yield from _paths_of(kind["element"], kind["element-id"], f"{path}.list.element")
    else:
        yield from _paths_of(kind["key"], kind["key-id"], f"{path}.key_value.key")
        yield from _paths_of(kind["value"], kind["value-id"], f"{path}.key_value.value")


def _first(fields: Sequence[Field], most: int) -> set[int]:
    """Return the ids of so many primitive columns, those of a struct before what is inside its columns."""
    ids: list[int] = []
    waiting = [[(field["type"], field["id"]) for field in fields]]
    while waiting:
        level = waiting.pop(0)
        ids += [number for kind, number in level if isinstance(kind, str)]
        waiting[:0] = [_inside(kind) for kind, _ in level if not isinstance(kind, str)]
    return set(ids[:most])


def _inside(kind: Any) -> list[tuple[Any, int]]:  # noqa: ANN401 - the spec's JSON of a nested type
    match kind["type"]:
        case "struct":
            return [(field["type"], field["id"]) for field in kind["fields"]]
        case "list":
            return [(kind["element"], kind["element-id"])]
    return [(kind["key"], kind["key-id"]), (kind["value"], kind["value-id"])]


def entry_metrics(
    footer: pq.FileMetaData, fields: Sequence[Field], wanted: Sequence[Leaf], nans: Mapping[int, int]
) -> dict[str, Any]:
    """Return the metrics as maps by field id, of plain values: bounds are bytes, sizes and counts are numbers.

    Columns inside lists and maps have sizes alone.
    """
    by_path = {one.path: one for one in wanted}
    inside = dict(every_path(fields))
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for index in range(footer.num_columns):
        path = footer.schema.column(index).path
        leaf = by_path.get(path)
        if leaf is not None and leaf.mode == "none":
            continue
        chunks = [footer.row_group(number).column(index) for number in range(footer.num_row_groups)]
        sizes[inside[path]] = sum(chunk.total_compressed_size for chunk in chunks)
        if leaf is None:
            continue
        values[leaf.id] = sum(chunk.num_values for chunk in chunks)
        if all(chunk.statistics is not None and chunk.statistics.has_null_count for chunk in chunks):
            nulls[leaf.id] = sum(chunk.statistics.null_count for chunk in chunks)
        if leaf.bounded and (found := _bounds(leaf, chunks)) is not None:
            low, high = found
            lower[leaf.id] = low
            if high is not None:
                upper[leaf.id] = high
    counted = {leaf.id: nans.get(leaf.id, 0) for leaf in wanted if leaf.kind in ("float", "double")}
    counted = {number: count for number, count in counted.items() if number in values}
    return {
        "column-sizes": sizes,
        "value-counts": values,
        "null-value-counts": nulls,
        "nan-value-counts": counted,
        "lower-bounds": lower,
        "upper-bounds": upper,
    }


def _bounds(leaf: Leaf, chunks: Sequence[pq.ColumnChunkMetaData]) -> tuple[bytes, bytes | None] | None:
    """Both bounds over all row groups; None where a row group with values has none."""
    lows, highs = [], []
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics is None or (not statistics.has_min_max and statistics.null_count != chunk.num_values):
            return None
        if statistics.has_min_max:
            lows.append(_number(leaf.kind, statistics.min_raw))
            highs.append(_number(leaf.kind, statistics.max_raw))
    if not lows:
        return None
    low, high = min(lows), max(highs)
    if leaf.kind in ("string", "binary"):
        return cut(leaf, low, high)
    return _single(leaf.kind, low), _single(leaf.kind, high)


def cut(leaf: Leaf, low: bytes, high: bytes) -> tuple[bytes, bytes | None]:
    """Bounds of a text or binary as long as its mode allows."""
    length = _TRUNCATE.fullmatch(leaf.mode)
    return truncated(leaf.kind, low, high, int(length[1])) if length is not None else (low, high)


def _number(kind: str, raw: Any) -> Any:  # noqa: ANN401 - a physical value
    """Return a physical value that compares as its logical one: unscaled decimals as numbers."""
    return int.from_bytes(raw, "big", signed=True) if kind.startswith("decimal") and isinstance(raw, bytes) else raw


def _single(kind: str, value: Any) -> bytes:  # noqa: ANN401 - a physical value
    """Return the binary single value (spec, Appendix D)."""
    match kind:
        case "boolean":
            return bytes([value])
        case "int" | "date":
            return struct.pack("<i", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string" | "binary" | "uuid":
            return bytes(value)
    if kind.startswith("fixed"):
        return bytes(value)
    if kind.startswith("decimal"):
        magnitude = value if value >= 0 else -value - 1
        return int(value).to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    return struct.pack("<q", value)


def truncated(kind: str, low: bytes, high: bytes, length: int) -> tuple[bytes, bytes | None]:
    """Bounds of at most so many characters (bytes of a binary); no upper one where none that short is high enough."""
    if kind == "binary":
        if len(high) <= length:
            return low[:length], high
        head = high[:length].rstrip(b"\xff")
        return low[:length], (head[:-1] + bytes([head[-1] + 1])) if head else None
    least, most = low.decode(), high.decode()
    if len(most) <= length:
        return least[:length].encode(), high
    for end in range(length, 0, -1):
        following = ord(most[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _HIGHEST:
            return least[:length].encode(), (most[: end - 1] + chr(following)).encode()
    return least[:length].encode(), None
