"""The live rows of a bin's files, batch by batch, in the table's schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.deletes import Deletes, Keys, both, unmatched, without
from icewright.adapters.engines.arrow.group import Bin, FileSlice, Layout
from icewright.adapters.engines.arrow.opening import Broken, Opener
from icewright.adapters.engines.arrow.resolve import Unresolvable, field_id, resolved, with_ids
from icewright.adapters.engines.arrow.types import LAST_UPDATED, ROW_ID, Field, arrow_schema

RANK = "rank of the row"  # the column that `ranks` fill
_A_BATCH = 16 << 20  # bytes once decoded
_MOST_ROWS = 1 << 13  # whatever the footer says: values of a dictionary are longer once decoded
_LEAST_ROWS = 1 << 8


@dataclass
class BatchScan:
    """What has been read of a bin."""

    layout: Layout
    opener: Opener
    bin: Bin
    read: int = 0  # rows, deleted ones too
    deleted: int = 0
    ranks: pl.Series | None = None  # of each row, in the order of the files: told with the row
    fields: tuple[Field, ...] = field(init=False)
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        lineage = (ROW_ID, LAST_UPDATED) if self.layout.lineage else ()
        self.fields = (*self.layout.schema["fields"], *lineage)
        self.schema = arrow_schema(self.fields)
        wanted = frozenset(piece.path for piece in self.bin.pieces)
        self._deletes = Deletes(self.layout, self.opener, wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all live rows. Raises `Broken` with the name of the file at fault."""
        for piece in self.bin.pieces:
            yield from self._of(piece)

    def every_row(self, fields: Sequence[Field]) -> Iterator[list[pa.Array]]:
        """Yield some columns of all rows, deleted ones too, in the order of `batches` and as large."""
        for piece in self.bin.pieces:
            with self.opener.parquet(piece.path, piece.file_bytes) as source:
                for batch, own, _ in self._raw(source, piece, fields):
                    yield self._resolved(piece, batch, own, fields)

    def _of(self, piece: FileSlice) -> Iterator[pa.RecordBatch]:
        positions, keys = self._deletes.positions(piece), self._deletes.keys(piece)
        known = {one["id"] for one in self.fields}
        extra = [one for key in keys for one in key.columns if one["id"] not in known]
        fields = (*self.fields, *{one["id"]: one for one in extra}.values())
        with self.opener.parquet(piece.path, piece.file_bytes) as source:
            for batch, own, start in self._raw(source, piece, fields):
                yield self._live(piece, fields, self._resolved(piece, batch, own, fields), start, positions, keys)

    def _live(
        self,
        piece: FileSlice,
        fields: Sequence[Field],
        columns: list[pa.Array],
        start: int,
        positions: pl.Series | None,
        keys: Sequence[Keys],
    ) -> pa.RecordBatch:
        length = len(columns[0])
        if self.layout.lineage:
            self._inherit(piece, columns, start)
        whole = pa.RecordBatch.from_arrays(columns[: len(self.fields)], schema=self.schema)
        by_position = None if positions is None else without(positions, start, length)
        by_id = {one["id"]: column for one, column in zip(fields, columns, strict=True)}
        mask = both([by_position, unmatched(length, by_id, keys) if keys else None])
        if self.ranks is not None:
            own = self.ranks[self.read : self.read + length].to_arrow()
            whole = whole.append_column(RANK, own)
        left = whole if mask is None else whole.filter(mask)
        self.read += length
        self.deleted += length - left.num_rows
        return left

    def _inherit(self, piece: FileSlice, columns: list[pa.Array], start: int) -> None:
        """Row ids and sequence numbers that the file leaves to its entry (spec, Row Lineage)."""
        at = len(self.fields) - 2
        length = len(columns[at])
        if piece.first_row_id is None:
            columns[at] = columns[at + 1] = pa.nulls(length, pa.int64())
            return
        first = piece.first_row_id + start
        ids = pl.int_range(first, first + length, dtype=pl.Int64, eager=True).to_arrow()
        columns[at] = pc.coalesce(columns[at], ids)
        columns[at + 1] = columns[at + 1].fill_null(piece.sequence_number)

    def _raw(
        self, source: pq.ParquetFile, piece: FileSlice, fields: Sequence[Field]
    ) -> Iterator[tuple[pa.RecordBatch, list[pa.Field], int]]:
        """Batches of the columns that matter, as the file has them; with each its fields and its first row's number."""
        metadata = source.metadata
        if metadata.num_rows != piece.records:
            raise Broken(f"{piece.path} has {metadata.num_rows} rows where its entry says {piece.records}")
        schema = with_ids(source.schema_arrow, self.layout.properties.get("schema.name-mapping.default"))
        wanted = {one["id"] for one in fields} - self.bin.partition.keys()
        names = [f.name for f in schema if field_id(f) in wanted]
        by_name = {f.name: f for f in schema}
        groups, start = _row_groups(metadata, piece)
        if not groups:
            return
        rows = _rows_of_a_batch(metadata, groups)
        if not names:  # the file has none of the columns: constants alone, as many as it has rows
            for number in groups:
                length = metadata.row_group(number).num_rows
                yield pa.RecordBatch.from_arrays([pa.nulls(length)], names=["none"]), [], start
                start += length
            return
        for batch in source.iter_batches(rows, row_groups=groups, columns=names, use_threads=False):
            yield batch, [by_name[name] for name in batch.schema.names], start
            start += batch.num_rows

    def _resolved(
        self, piece: FileSlice, batch: pa.RecordBatch, own: list[pa.Field], fields: Sequence[Field]
    ) -> list[pa.Array]:
        try:
            return resolved(batch, own, fields, self.bin.partition)
        except Unresolvable as error:
            raise Broken(f"{piece.path}: {error}") from error


def _row_groups(metadata: pq.FileMetaData, piece: FileSlice) -> tuple[list[int], int]:
    """Return the row groups that begin in the piece, and the number of the first row of the first of them."""
    groups: list[int] = []
    first = row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if piece.start <= offset(group) < piece.end:
            if not groups:
                first = row
            groups.append(number)
        row += group.num_rows
    return groups, first


def offset(group: pq.RowGroupMetaData) -> int:
    """Return where a row group begins in its file."""
    if not group.num_columns:
        return 0
    column = group.column(0)
    offsets: list[int] = [o for o in (column.dictionary_page_offset, column.data_page_offset) if o is not None]
    return min(offsets)


def _rows_of_a_batch(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    """So many that a batch takes about as much memory whatever the width of a row."""
    rows: int = sum(metadata.row_group(number).num_rows for number in groups)
    size: int = sum(metadata.row_group(number).total_byte_size for number in groups)
    return max(_LEAST_ROWS, min(_MOST_ROWS, _A_BATCH * rows // max(1, size)))
