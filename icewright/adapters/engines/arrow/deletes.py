"""Which rows of a data file its deletes leave: positions, deletion vectors, and keys (spec, Row-level Deletes)."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.group import DeleteFile, DeleteKind, FileSlice, Layout
from icewright.adapters.engines.arrow.opening import Broken, Opener
from icewright.adapters.engines.arrow.resolve import Unfit, field_id, resolved, with_ids
from icewright.adapters.engines.arrow.types import Field, plain

_FILE_PATH, _POSITION = 2147483546, 2147483545  # reserved ids of position delete files
_MAGIC = b"\xd1\xd3\x39\x64"
_A_BATCH = 1 << 17
_FLOAT_BITS = 32

_Leaf = tuple[Field, tuple[str, ...], Field]  # a top-level field, the way down from it, and the field itself


@dataclass(frozen=True)
class Keys:
    """What equality deletes of the same columns say: rows with these values are gone."""

    leaves: tuple[_Leaf, ...]
    values: pl.DataFrame

    @property
    def columns(self) -> tuple[Field, ...]:
        """Return the columns of the table, of now or of before, that hold them."""
        return tuple({top["id"]: top for top, _, _ in self.leaves}.values())


@dataclass
class Deletes:
    """The deletes of a bin, each file read once."""

    layout: Layout
    opener: Opener
    wanted: frozenset[str]  # data files of the bin
    _positions: dict[str, Mapping[str, pl.Series]] = field(default_factory=dict)
    _keys: dict[tuple[DeleteFile, ...], Keys] = field(default_factory=dict)

    def positions(self, piece: FileSlice) -> pl.Series | None:
        """Return the positions of the file's rows that are gone, each once and ascending; None when there are none."""
        found: list[pl.Series] = []
        for delete in piece.deletes:
            if delete.kind is DeleteKind.VECTOR:
                found.append(self._vector(delete))
            elif delete.kind is DeleteKind.POSITION:
                if delete.path not in self._positions:
                    self._positions[delete.path] = self._read_positions(delete)
                if (own := self._positions[delete.path].get(piece.path)) is not None:
                    found.append(own)
        return pl.concat(found).unique().sort() if found else None

    def keys(self, piece: FileSlice) -> list[Keys]:
        """Return what the file's equality deletes say, those of the same columns together."""
        by_ids: dict[tuple[int, ...], list[DeleteFile]] = {}
        for delete in piece.deletes:
            if delete.kind is DeleteKind.EQUALITY:
                by_ids.setdefault(tuple(sorted(delete.equality_ids)), []).append(delete)
        result = []
        for ids, files in by_ids.items():
            same = tuple(files)
            if same not in self._keys:
                self._keys[same] = self._read_keys(ids, same)
            result.append(self._keys[same])
        return result

    def _vector(self, delete: DeleteFile) -> pl.Series:
        with self.opener.reading(delete.path) as source:
            source.seek(delete.offset)
            blob = source.read(delete.length)
        try:
            positions = _bitmap(blob)
        except (struct.error, ValueError) as error:
            raise Broken(f"{delete.path}: the deletion vector at {delete.offset} is broken: {error}") from error
        if delete.cardinality and len(positions) != delete.cardinality:
            said = f"{len(positions)} positions where its entry says {delete.cardinality}"
            raise Broken(f"{delete.path}: the deletion vector at {delete.offset} has {said}")
        return pl.Series(positions.to_array(), dtype=pl.UInt64).cast(pl.Int64)

    def _read_positions(self, delete: DeleteFile) -> Mapping[str, pl.Series]:
        with self.opener.parquet(delete.path) as source:
            names = {field_id(f): f.name for f in source.schema_arrow}
            path, position = names.get(_FILE_PATH, "file_path"), names.get(_POSITION, "pos")
            batches = source.iter_batches(_A_BATCH, columns=[path, position], use_threads=False)
            frames = [
                frame.filter(pl.col("path").is_in(list(self.wanted)))
                for batch in batches
                if (frame := _frame(batch, {path: "path", position: "pos"})).height
            ]
        if not frames:
            return {}
        parts = pl.concat(frames).partition_by("path", as_dict=True)
        return {str(name): part["pos"] for (name,), part in parts.items()}

    def _read_keys(self, ids: Sequence[int], files: Sequence[DeleteFile]) -> Keys:
        leaves = tuple(_found(self.layout, number) for number in ids)
        alone = [_alone(top, path, leaf) for top, path, leaf in leaves]
        frames: list[pl.DataFrame] = []
        for delete in files:
            with self.opener.parquet(delete.path) as source:
                schema = with_ids(source.schema_arrow, self.layout.properties.get("schema.name-mapping.default"))
                batches = source.iter_batches(_A_BATCH, use_threads=False)
                frames += [_keyed(resolved(batch, list(schema), alone, {}), leaves) for batch in batches]
        return Keys(leaves, pl.concat(frames).unique())


def unmatched(length: int, columns: Mapping[int, pa.Array], keys: Sequence[Keys]) -> pa.BooleanArray | None:
    """Return which of the rows no equality delete matches; None when all stay. `columns` by the id of their field.

    Null equals null, NaN equals NaN, and zero is not minus zero, as in Iceberg's own reader.
    """
    gone: list[pl.Series] = []
    for one in keys:
        frame = _keyed([columns[top["id"]] for top, _, _ in one.leaves], one.leaves).with_row_index("row")
        gone.append(frame.join(one.values, on=one.values.columns, how="semi", nulls_equal=True)["row"])
    rows = pl.concat(gone).unique() if gone else pl.Series(dtype=pl.UInt32)
    return None if rows.is_empty() else _mask(length, rows)


def without(positions: pl.Series, start: int, length: int) -> pa.BooleanArray | None:
    """Return which of the rows from `start` on are not at a deleted position; None when all stay."""
    low = int(positions.search_sorted(start))
    high = int(positions.search_sorted(start + length))
    return None if low == high else _mask(length, positions[low:high] - start)


def both(masks: Sequence[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    """Return the rows that stay by all masks."""
    said = [mask for mask in masks if mask is not None]
    return reduce(pc.and_, said) if said else None


def _frame(batch: pa.RecordBatch, names: Mapping[str, str]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(batch)).rename(names).select(names.values())


def _found(layout: Layout, number: int) -> _Leaf:
    """Return the field of this id in the table's schema, else in an older one."""
    for top in (*layout.schema["fields"], *layout.older_fields.values()):
        if (found := _within(top, number)) is not None:
            return top, *found
    raise Unfit(f"an equality delete names column {number}, which is inside another and was dropped")


def _within(field: Field, number: int, path: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Field] | None:
    if field["id"] == number:
        return path, field
    kind = field["type"]
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        for child in kind["fields"]:
            if (found := _within(child, number, (*path, child["name"]))) is not None:
                return found
    return None


def _alone(top: Field, path: Sequence[str], leaf: Field) -> Field:
    """Return the column with nothing in it but the way to the leaf, as delete files have it."""
    if not path:
        return top
    name, *rest = path
    child = next(field for field in top["type"]["fields"] if field["name"] == name)
    inner = _alone(child, rest, leaf)
    return {**top, "required": False, "type": {"type": "struct", "fields": [inner]}}


def _keyed(columns: Sequence[pa.Array], leaves: Sequence[_Leaf]) -> pl.DataFrame:
    """Return a column for each leaf, of values that are equal exactly where Iceberg calls them equal."""
    # a field is null where the struct around it is
    inside = [reduce(pc.struct_field, path, column) for column, (_, path, _) in zip(columns, leaves, strict=True)]
    arrays = [_comparable(array) for array in inside]
    names = [str(leaf["id"]) for _, _, leaf in leaves]
    return pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(arrays, names)))


def _comparable(array: pa.Array) -> pa.Array:
    """Floats as their bits, all NaN alike; what Polars has no type for as bytes."""
    if pa.types.is_floating(array.type):
        nan = pa.scalar(math.nan, array.type)
        array = pc.if_else(pc.is_nan(array), nan, array)
        return array.view(pa.int32() if array.type.bit_width == _FLOAT_BITS else pa.int64())
    return plain(array)


def _mask(length: int, gone: pl.Series) -> pa.BooleanArray:
    mask = pl.repeat(value=True, n=length, eager=True).scatter(gone, values=False)
    return mask.to_arrow()


def _bitmap(blob: bytes) -> BitMap64:
    """Return the positions of a `deletion-vector-v1` blob (Puffin spec)."""
    (length,) = struct.unpack_from(">I", blob)
    if blob[4:8] != _MAGIC or length + 8 != len(blob):
        raise ValueError("its magic or its length is wrong")
    (checksum,) = struct.unpack_from(">I", blob, 4 + length)
    if zlib.crc32(blob[4 : 4 + length]) != checksum:
        raise ValueError("its checksum is wrong")
    return BitMap64.deserialize(blob[8 : 4 + length])
