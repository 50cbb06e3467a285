"""Counts and bounds of a written file by field id (spec, Manifests; Iceberg's ParquetMetrics)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.types import LAST_UPDATED, ROW_ID, Field, stored_name
from icewright.core.single_values import bound

Bounds = tuple[bytes, bytes]  # the lowest and the highest value

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column."
_MAX_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"
_INFERRED = 100  # its default
_TRUNCATE = re.compile(r"truncate\((\d+)\)")
_MODES = re.compile(r"none|counts|full|truncate\(0*[1-9]\d*\)")
_FALLBACK = "truncate(16)"
_LINEAGE = (ROW_ID["id"], LAST_UPDATED["id"])  # columns of no schema, which count towards no limit
_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A primitive column outside of lists and maps, of which Iceberg keeps metrics."""

    id: int
    names: tuple[str, ...]  # from the top-level column down
    kind: str
    mode: str

    @property
    def has_bounds(self) -> bool:
        """Return whether Iceberg stores lower and upper bounds for the column."""
        return self.mode not in ("none", "counts")

    @property
    def path(self) -> str:
        """Return the dotted path by which properties name the column."""
        return ".".join(self.names)

    @property
    def stored_names(self) -> tuple[str, ...]:
        """Return the names of the column in files."""
        return tuple(stored_name(name) for name in self.names)

    @property
    def stored_path(self) -> str:
        """Return the dotted Parquet column path."""
        return ".".join(self.stored_names)


def leaves(fields: Sequence[Field], properties: Mapping[str, str], sorted_by: Sequence[int]) -> list[Leaf]:
    """Return the primitive columns with their metrics modes (Iceberg's MetricsConfig).

    Without a default mode only the first columns of a wide table have metrics; sorted columns always have bounds. What
    is no mode counts as the mode of columns that nothing names: none in a wide table, for the first columns too.
    """
    default, inferred = _mode(properties.get(_DEFAULT), _FALLBACK), set[int]()
    if _DEFAULT not in properties:
        limit = int(properties.get(_MAX_INFERRED, _INFERRED))
        own = _first_columns([field for field in fields if field["id"] not in _LINEAGE])
        if len(own) > (limit := limit if limit >= 0 else _INFERRED):
            default, inferred = "none", set(own[:limit])
    result = []
    for leaf in _primitives(fields):
        mode = _FALLBACK if leaf.id in inferred else default
        if leaf.id in sorted_by and mode in ("none", "counts"):
            mode = _FALLBACK
        asked = properties.get(_COLUMN + leaf.path)
        result.append(replace(leaf, mode=mode if asked is None else _mode(asked, default)))
    return result


def _mode(text: str | None, otherwise: str) -> str:
    """Return the metrics mode of a property; another one where it is not set or no mode."""
    mode = (text or "").lower()
    return mode if _MODES.fullmatch(mode) else otherwise


def _primitives(fields: Sequence[Field], prefix: tuple[str, ...] = ()) -> Iterator[Leaf]:
    for field in fields:
        kind, names = field["type"], (*prefix, field["name"])
        if isinstance(kind, str):
            yield Leaf(field["id"], names, kind, "")
        elif kind["type"] == "struct":
            yield from _primitives(kind["fields"], names)


def column_paths(fields: Sequence[Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the Parquet path and id of each primitive column, in lists and maps too."""
    for field in fields:
        yield from _paths_of(field["type"], field["id"], f"{prefix}{stored_name(field['name'])}")


def _paths_of(kind: Any, number: int, path: str) -> Iterator[tuple[str, int]]:  # noqa: ANN401 - the spec's JSON
    if isinstance(kind, str):
        yield path, number
    elif kind["type"] == "struct":
        yield from column_paths(kind["fields"], f"{path}.")
    elif kind["type"] == "list":
        yield from _paths_of(kind["element"], kind["element-id"], f"{path}.list.element")
    else:
        yield from _paths_of(kind["key"], kind["key-id"], f"{path}.key_value.key")
        yield from _paths_of(kind["value"], kind["value-id"], f"{path}.key_value.value")


def _first_columns(fields: Sequence[Field]) -> list[int]:
    """Return the ids of all primitive columns, by level inside each struct (Iceberg's MetricsConfig)."""
    ids: list[int] = []
    stack = [[(field["type"], field["id"]) for field in fields]]
    while stack:
        level = stack.pop(0)
        ids += [number for kind, number in level if isinstance(kind, str)]
        stack[:0] = [_children(kind) for kind, _ in level if not isinstance(kind, str)]
    return ids


def _children(kind: Any) -> list[tuple[Any, int]]:  # noqa: ANN401 - the spec's JSON of a nested type
    match kind["type"]:
        case "struct":
            return [(field["type"], field["id"]) for field in kind["fields"]]
        case "list":
            return [(kind["element"], kind["element-id"])]
    return [(kind["key"], kind["key-id"]), (kind["value"], kind["value-id"])]


def entry_metrics(
    footer: pq.FileMetaData,
    fields: Sequence[Field],
    leaves_: Sequence[Leaf],
    nans: Mapping[int, int],
    long_bounds: Mapping[int, Bounds],
) -> dict[str, Any]:
    """Return the metrics as maps by field id: bounds as bytes, sizes and counts as integers.

    `long_bounds` are those of row groups whose values are too long for statistics. Columns inside lists and maps have
    sizes only.
    """
    by_path = {leaf.stored_path: leaf for leaf in leaves_}
    ids = dict(column_paths(fields))
    stored = {path: chunks for path, chunks in _chunks(footer) if path not in by_path or by_path[path].mode != "none"}
    measured = [(by_path[path], chunks) for path, chunks in stored.items() if path in by_path]
    bounds = {leaf.id: _bounds(leaf, chunks, long_bounds.get(leaf.id)) for leaf, chunks in measured if leaf.has_bounds}
    return {
        "column-sizes": {ids[path]: sum(c.total_compressed_size for c in chunks) for path, chunks in stored.items()},
        "value-counts": {leaf.id: sum(chunk.num_values for chunk in chunks) for leaf, chunks in measured},
        "null-value-counts": {
            leaf.id: sum(chunk.statistics.null_count for chunk in chunks)
            for leaf, chunks in measured
            if all(chunk.statistics is not None and chunk.statistics.has_null_count for chunk in chunks)
        },
        "nan-value-counts": {leaf.id: nans.get(leaf.id, 0) for leaf, _ in measured if leaf.kind in ("float", "double")},
        "lower-bounds": {number: low for number, (low, _) in bounds.items() if low is not None},
        "upper-bounds": {number: high for number, (_, high) in bounds.items() if high is not None},
    }


def _chunks(footer: pq.FileMetaData) -> Iterator[tuple[str, Sequence[pq.ColumnChunkMetaData]]]:
    """Yield each stored column with its chunks, one of each row group."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        yield footer.schema.column(index).path, [group.column(index) for group in groups]


def _bounds(
    leaf: Leaf, chunks: Sequence[pq.ColumnChunkMetaData], long_bounds: Bounds | None
) -> tuple[bytes | None, bytes | None]:
    """Return the bounds over all row groups, each None where Iceberg stores none."""
    lows, highs = ([long_bounds[0]], [long_bounds[1]]) if long_bounds is not None else ([], [])
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            lows.append(_comparable(leaf.kind, statistics.min_raw))
            highs.append(_comparable(leaf.kind, statistics.max_raw))
        elif statistics is not None and leaf.kind in ("float", "double"):
            continue  # Arrow leaves out bounds of floats where there is nothing but null and NaN
        elif long_bounds is None and (statistics is None or statistics.null_count != chunk.num_values):
            return None, None
    if not lows:
        return None, None
    low, high = min(lows), max(highs)
    if leaf.kind in ("string", "binary"):
        return _truncated(leaf, low, high)
    return bound(leaf.kind, low), bound(leaf.kind, high)


def _truncated(leaf: Leaf, low: bytes, high: bytes) -> tuple[bytes | None, bytes | None]:
    """Return bounds of a string or binary column, truncated as its metrics mode asks.

    A bound of a string column that is not UTF-8 is None: Iceberg's readers fail to decode such bounds.
    """
    decodable = [leaf.kind == "binary" or _is_utf8(value) for value in (low, high)]
    length = _TRUNCATE.fullmatch(leaf.mode)
    if length is not None:
        ends = [value if valid else b"" for value, valid in zip((low, high), decodable, strict=True)]
        bounds = truncate_bounds(leaf.kind, ends[0], ends[1], int(length[1]))
    else:
        bounds = low, high
    return bounds[0] if decodable[0] else None, bounds[1] if decodable[1] else None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _comparable(kind: str, raw: Any) -> Any:  # noqa: ANN401 - a physical value
    """Return a physical value that compares as its logical value: unscaled decimals as integers."""
    return int.from_bytes(raw, "big", signed=True) if kind.startswith("decimal") and isinstance(raw, bytes) else raw


def truncate_bounds(kind: str, low: bytes, high: bytes, length: int) -> tuple[bytes, bytes | None]:
    """Return bounds of at most `length` characters (bytes for binary); the upper is None when no such bound exists."""
    if kind == "binary":
        if len(high) <= length:
            return low[:length], high
        head = high[:length].rstrip(b"\xff")
        return low[:length], (head[:-1] + bytes([head[-1] + 1])) if head else None
    low_text, limit = low.decode(), high.decode()
    if len(limit) <= length:
        return low_text[:length].encode(), high
    for end in range(length, 0, -1):
        following = ord(limit[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _MAX_CODE_POINT:
            return low_text[:length].encode(), (limit[: end - 1] + chr(following)).encode()
    return low_text[:length].encode(), None
