"""Apply and write deletes: position deletes, deletion vectors and equality deletes (spec, Row-level Deletes)."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.equality import EqualityDeletes, EqualityIndex, read_equality_index
from icewright.adapters.engines.arrow.opening import Opener, UnreadableFile
from icewright.adapters.engines.arrow.resolve import field_id
from icewright.adapters.engines.arrow.tasks import DeleteFile, DeleteKind, FileSlice, Layout
from icewright.adapters.engines.arrow.types import FIELD_ID
from icewright.core.field_ids import DELETED_PATH, DELETED_POSITION, ROW_POSITION

VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
PUFFIN_MAGIC = b"PFA1"
POSITION_COLUMNS = ("file_path", "pos")  # of position delete files (spec)
_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Blob:
    """The position of a blob in its Puffin file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Puffin:
    """A Puffin file, and where its blobs lie, in the order in which they were given."""

    content: bytes
    blobs: tuple[Blob, ...]
    footer_bytes: int


def puffin_file(blobs: Iterable[tuple[bytes, Mapping[str, Any]]]) -> Puffin:
    """Return a Puffin file of blobs, each with what the footer says of it (Puffin spec)."""
    content, stored_blobs, footer = bytearray(PUFFIN_MAGIC), [], []
    for blob, about in blobs:
        stored_blobs.append(Blob(len(content), len(blob)))
        footer.append({**about, "offset": len(content), "length": len(blob)})
        content += blob
    end = puffin_end({"blobs": footer, "properties": {"created-by": "Icewright"}})
    return Puffin(bytes(content) + end, tuple(stored_blobs), len(end))


def puffin_end(footer: Mapping[str, Any]) -> bytes:
    """Return the end of a Puffin file, which holds its footer."""
    payload = json.dumps(footer).encode()
    return PUFFIN_MAGIC + payload + struct.pack("<I", len(payload)) + bytes(4) + PUFFIN_MAGIC


def vector_file(vectors: Mapping[str, BitMap64]) -> Puffin:
    """Return a Puffin file with a deletion vector for each data file."""
    return puffin_file((vector_blob(positions), _about(path, positions)) for path, positions in vectors.items())


def _about(path: str, positions: BitMap64) -> Mapping[str, Any]:
    properties = {"referenced-data-file": path, "cardinality": str(len(positions))}
    unknown_ids = {"fields": [ROW_POSITION], "snapshot-id": -1, "sequence-number": -1}
    return {"type": "deletion-vector-v1", **unknown_ids, "properties": properties}


def vector_blob(positions: BitMap64) -> bytes:
    """Return a blob of type `deletion-vector-v1` (Puffin spec)."""
    body = VECTOR_MAGIC + positions.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def position_delete_file(positions: Mapping[str, BitMap64]) -> bytes:
    """Return a Parquet file of positions, sorted by data file and position (spec, Position Delete Files)."""
    fields = zip(POSITION_COLUMNS, (pa.string(), pa.int64()), (DELETED_PATH, DELETED_POSITION), strict=True)
    schema = pa.schema([pa.field(n, kind, False, {FIELD_ID: str(number).encode()}) for n, kind, number in fields])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for path in sorted(positions):
            rows = pl.Series(positions[path].to_array(), dtype=pl.UInt64).cast(pl.Int64)
            for first in range(0, len(rows), _BATCH_ROWS):
                share = rows[first : first + _BATCH_ROWS].to_arrow()
                columns = [pa.repeat(pa.scalar(path), len(share)), share]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return bytes(sink.getvalue())


@dataclass
class Deletes:
    """The deletes of a bin; each position delete file is read once."""

    layout: Layout
    opener: Opener
    slices: Sequence[FileSlice]  # of the bin
    _positions: dict[str, Mapping[str, BitMap64]] = field(default_factory=dict, init=False)
    _indexes: dict[tuple[int, ...], EqualityIndex] = field(default_factory=dict, init=False)

    def positions(self, file_slice: FileSlice) -> BitMap64:
        """Return the deleted positions of a data file."""
        positions: list[BitMap64] = []
        for delete in file_slice.deletes:
            if delete.kind is DeleteKind.VECTOR:
                positions.append(self._vector(delete))
            elif delete.kind is DeleteKind.POSITION:
                if delete.path not in self._positions:
                    self._positions[delete.path] = self._read_positions(delete)
                if (file_positions := self._positions[delete.path].get(file_slice.path)) is not None:
                    positions.append(file_positions)
        return BitMap64.union(*positions) if positions else BitMap64()

    def equality_deletes(self, file_slice: FileSlice) -> list[EqualityDeletes]:
        """Return the equality deletes of a data file, one for each set of columns."""
        return [self._index(ids).applied(paths) for ids, paths in _equality_files([file_slice]).items()]

    def _index(self, ids: tuple[int, ...]) -> EqualityIndex:
        if ids not in self._indexes:
            paths = _equality_files(self.slices)[ids]
            self._indexes[ids] = read_equality_index(self.layout, self.opener, ids, paths)
        return self._indexes[ids]

    def _vector(self, delete: DeleteFile) -> BitMap64:
        with self.opener.reading(delete.path) as source:
            source.seek(delete.offset)
            blob = source.read(delete.length)
        try:
            positions = vector_positions(blob)
        except (struct.error, ValueError) as error:
            raise UnreadableFile(f"{delete.path}: the deletion vector at {delete.offset} is broken: {error}") from error
        if delete.cardinality and len(positions) != delete.cardinality:
            present = f"{len(positions)} positions where its entry says {delete.cardinality}"
            raise UnreadableFile(f"{delete.path}: the deletion vector at {delete.offset} has {present}")
        return positions

    def _read_positions(self, delete: DeleteFile) -> Mapping[str, BitMap64]:
        data_paths = {file_slice.path for file_slice in self.slices}
        positions_by_path: dict[str, BitMap64] = {}
        with self.opener.parquet(delete.path, page_memory=self.layout.page_memory) as source:
            names = {field_id(f): f.name for f in source.schema_arrow}
            path, position = map(names.get, (DELETED_PATH, DELETED_POSITION), POSITION_COLUMNS)
            if not {path, position} <= set(source.schema_arrow.names):
                raise UnreadableFile(f"{delete.path} has no columns of position deletes")
            for batch in source.iter_batches(_BATCH_ROWS, columns=[path, position], use_threads=False):
                frame = _frame(batch, {path: "path", position: "pos"}).filter(pl.col("path").is_in(data_paths))
                for (name,), part in frame.partition_by("path", as_dict=True).items():
                    positions_by_path.setdefault(str(name), BitMap64()).update(bitmap(part["pos"]))
        return positions_by_path


def _equality_files(slices: Iterable[FileSlice]) -> dict[tuple[int, ...], list[str]]:
    """Return the paths of the slices' equality delete files, each once, by the ids of their columns."""
    paths: dict[tuple[int, ...], dict[str, None]] = {}
    for delete in itertools.chain.from_iterable(file_slice.deletes for file_slice in slices):
        if delete.kind is DeleteKind.EQUALITY:
            paths.setdefault(tuple(sorted(delete.equality_ids)), {})[delete.path] = None
    return {ids: list(ordered_paths) for ids, ordered_paths in paths.items()}


def equality_mask(
    length: int, columns: Mapping[int, pa.Array], deletes: Sequence[EqualityDeletes]
) -> pa.BooleanArray | None:
    """Return a mask of the rows that no equality delete matches; None when all rows stay. `columns` are by field id."""
    if not deletes:
        return None
    rows = pl.concat([delete.deleted_rows(columns) for delete in deletes]).unique()
    return None if rows.is_empty() else _mask(length, rows)


def position_mask(positions: BitMap64, start: int, length: int) -> pa.BooleanArray | None:
    """Return a mask of the rows from `start` on that are not at a deleted position; None when all rows stay."""
    deleted = (positions & BitMap64(range(start, start + length))).to_array() if positions else None
    return _mask(length, pl.Series(deleted, dtype=pl.UInt64) - start) if deleted else None


def bitmap(rows: pl.Series) -> BitMap64:
    """Return the bitmap of row numbers, without an object for each."""
    values, arrow = array("Q"), rows.cast(pl.UInt64).rechunk().to_arrow()
    first, width = arrow.offset, values.itemsize
    values.frombytes(memoryview(arrow.buffers()[1])[first * width : (first + len(arrow)) * width])
    return BitMap64(values)


def and_masks(masks: Sequence[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    """Return the conjunction of the masks; None when all are None."""
    present = [mask for mask in masks if mask is not None]
    return reduce(pc.and_, present) if present else None


def _frame(batch: pa.RecordBatch, names: Mapping[str, str]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(batch)).rename(names).select(names.values())


def _mask(length: int, deleted: pl.Series) -> pa.BooleanArray:
    mask = pl.repeat(value=True, n=length, eager=True).scatter(deleted, values=False)
    return mask.to_arrow()


def vector_positions(blob: bytes) -> BitMap64:
    """Return the positions of a `deletion-vector-v1` blob (Puffin spec)."""
    (length,) = struct.unpack_from(">I", blob)
    if blob[4:8] != VECTOR_MAGIC or length + 8 != len(blob):
        raise ValueError("its magic or its length is wrong")
    (checksum,) = struct.unpack_from(">I", blob, 4 + length)
    if zlib.crc32(blob[4 : 4 + length]) != checksum:
        raise ValueError("its checksum is wrong")
    return BitMap64.deserialize(blob[8 : 4 + length])
