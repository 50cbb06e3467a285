"""Apply position deletes, deletion vectors and equality deletes (spec, Row-level Deletes)."""

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

from icewright.adapters.engines.arrow.opening import Opener, UnreadableFile
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id, resolved, with_ids
from icewright.adapters.engines.arrow.tasks import DeleteFile, DeleteKind, FileSlice, Layout
from icewright.adapters.engines.arrow.types import Field, storage_array

_FILE_PATH, _POSITION = 2147483546, 2147483545  # reserved ids of position delete files
_MAGIC = b"\xd1\xd3\x39\x64"
_BATCH_ROWS = 1 << 17
_FLOAT_BITS = 32

_KeyColumn = tuple[Field, tuple[str, ...], Field]  # a top-level field, the names down to the key field, the key field


@dataclass(frozen=True)
class EqualityKeys:
    """Key values of equality deletes on the same columns: rows with these values are deleted."""

    key_columns: tuple[_KeyColumn, ...]
    values: pl.DataFrame

    @property
    def columns(self) -> tuple[Field, ...]:
        """Return the top-level columns that hold the keys, dropped columns included."""
        return tuple({top["id"]: top for top, _, _ in self.key_columns}.values())


@dataclass
class Deletes:
    """The deletes of a bin; each position delete file is read once."""

    layout: Layout
    opener: Opener
    data_paths: frozenset[str]  # of the bin's data files
    _positions: dict[str, Mapping[str, pl.Series]] = field(default_factory=dict)
    _keys: dict[tuple[DeleteFile, ...], EqualityKeys] = field(default_factory=dict)

    def positions(self, file_slice: FileSlice) -> pl.Series | None:
        """Return the distinct deleted positions of a data file, ascending; None when there are none."""
        positions: list[pl.Series] = []
        for delete in file_slice.deletes:
            if delete.kind is DeleteKind.VECTOR:
                positions.append(self._vector(delete))
            elif delete.kind is DeleteKind.POSITION:
                if delete.path not in self._positions:
                    self._positions[delete.path] = self._read_positions(delete)
                if (own := self._positions[delete.path].get(file_slice.path)) is not None:
                    positions.append(own)
        return pl.concat(positions).unique().sort() if positions else None

    def keys(self, file_slice: FileSlice) -> list[EqualityKeys]:
        """Return the equality deletes of a data file, merged by their columns."""
        by_ids: dict[tuple[int, ...], list[DeleteFile]] = {}
        for delete in file_slice.deletes:
            if delete.kind is DeleteKind.EQUALITY:
                by_ids.setdefault(tuple(sorted(delete.equality_ids)), []).append(delete)
        result = []
        for ids, files in by_ids.items():
            files_key = tuple(files)
            if files_key not in self._keys:
                self._keys[files_key] = self._read_keys(ids, files_key)
            result.append(self._keys[files_key])
        return result

    def _vector(self, delete: DeleteFile) -> pl.Series:
        with self.opener.reading(delete.path) as source:
            source.seek(delete.offset)
            blob = source.read(delete.length)
        try:
            positions = _bitmap(blob)
        except (struct.error, ValueError) as error:
            raise UnreadableFile(f"{delete.path}: the deletion vector at {delete.offset} is broken: {error}") from error
        if delete.cardinality and len(positions) != delete.cardinality:
            present = f"{len(positions)} positions where its entry says {delete.cardinality}"
            raise UnreadableFile(f"{delete.path}: the deletion vector at {delete.offset} has {present}")
        return pl.Series(positions.to_array(), dtype=pl.UInt64).cast(pl.Int64)

    def _read_positions(self, delete: DeleteFile) -> Mapping[str, pl.Series]:
        with self.opener.parquet(delete.path) as source:
            names = {field_id(f): f.name for f in source.schema_arrow}
            path, position = names.get(_FILE_PATH, "file_path"), names.get(_POSITION, "pos")
            batches = source.iter_batches(_BATCH_ROWS, columns=[path, position], use_threads=False)
            frames = [
                frame.filter(pl.col("path").is_in(list(self.data_paths)))
                for batch in batches
                if (frame := _frame(batch, {path: "path", position: "pos"})).height
            ]
        if not frames:
            return {}
        parts = pl.concat(frames).partition_by("path", as_dict=True)
        return {str(name): part["pos"] for (name,), part in parts.items()}

    def _read_keys(self, ids: Sequence[int], files: Sequence[DeleteFile]) -> EqualityKeys:
        key_columns = tuple(_field_path(self.layout, number) for number in ids)
        alone = [_projected(top, path, leaf) for top, path, leaf in key_columns]
        frames: list[pl.DataFrame] = []
        for delete in files:
            with self.opener.parquet(delete.path) as source:
                schema = with_ids(source.schema_arrow, self.layout.properties.get("schema.name-mapping.default"))
                batches = source.iter_batches(_BATCH_ROWS, use_threads=False)
                frames += [_key_frame(resolved(batch, list(schema), alone, {}), key_columns) for batch in batches]
        return EqualityKeys(key_columns, pl.concat(frames).unique())


def equality_mask(length: int, columns: Mapping[int, pa.Array], keys: Sequence[EqualityKeys]) -> pa.BooleanArray | None:
    """Return a mask of the rows that no equality delete matches; None when all rows stay. `columns` are by field id.

    Null equals null, NaN equals NaN, and zero is not minus zero, as in Iceberg's Java reader.
    """
    deleted: list[pl.Series] = []
    for one in keys:
        frame = _key_frame([columns[top["id"]] for top, _, _ in one.key_columns], one.key_columns).with_row_index("row")
        deleted.append(frame.join(one.values, on=one.values.columns, how="semi", nulls_equal=True)["row"])
    rows = pl.concat(deleted).unique() if deleted else pl.Series(dtype=pl.UInt32)
    return None if rows.is_empty() else _mask(length, rows)


def position_mask(positions: pl.Series, start: int, length: int) -> pa.BooleanArray | None:
    """Return a mask of the rows from `start` on that are not at a deleted position; None when all rows stay."""
    low = int(positions.search_sorted(start))
    high = int(positions.search_sorted(start + length))
    return None if low == high else _mask(length, positions[low:high] - start)


def and_masks(masks: Sequence[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    """Return the conjunction of the masks; None when all are None."""
    present = [mask for mask in masks if mask is not None]
    return reduce(pc.and_, present) if present else None


def _frame(batch: pa.RecordBatch, names: Mapping[str, str]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(batch)).rename(names).select(names.values())


def _field_path(layout: Layout, number: int) -> _KeyColumn:
    """Return the key field of this id in the current schema, else among dropped columns."""
    for top in (*layout.schema["fields"], *layout.older_fields.values()):
        if (positions := _path_to(top, number)) is not None:
            return top, *positions
    raise UnsupportedByArrow(f"an equality delete names column {number}, which is inside another and was dropped")


def _path_to(field: Field, number: int, path: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Field] | None:
    if field["id"] == number:
        return path, field
    kind = field["type"]
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        for child in kind["fields"]:
            if (positions := _path_to(child, number, (*path, child["name"]))) is not None:
                return positions
    return None


def _projected(top: Field, path: Sequence[str], leaf: Field) -> Field:
    """Return the column reduced to the path to the key field, as delete files have it."""
    if not path:
        return top
    name, *rest = path
    child = next(field for field in top["type"]["fields"] if field["name"] == name)
    inner = _projected(child, rest, leaf)
    return {**top, "required": False, "type": {"type": "struct", "fields": [inner]}}


def _key_frame(columns: Sequence[pa.Array], key_columns: Sequence[_KeyColumn]) -> pl.DataFrame:
    """Return the key columns as values that are equal exactly where Iceberg's rules call them equal."""
    # struct_field: a field is null where its struct is
    inside = [reduce(pc.struct_field, path, column) for column, (_, path, _) in zip(columns, key_columns, strict=True)]
    arrays = [_comparable(array) for array in inside]
    names = [str(leaf["id"]) for _, _, leaf in key_columns]
    return pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(arrays, names)))


def _comparable(array: pa.Array) -> pa.Array:
    """Return floats as their bits with one NaN, and types that Polars lacks as binary."""
    if pa.types.is_floating(array.type):
        nan = pa.scalar(math.nan, array.type)
        array = pc.if_else(pc.is_nan(array), nan, array)
        return array.view(pa.int32() if array.type.bit_width == _FLOAT_BITS else pa.int64())
    return storage_array(array)


def _mask(length: int, deleted: pl.Series) -> pa.BooleanArray:
    mask = pl.repeat(value=True, n=length, eager=True).scatter(deleted, values=False)
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
