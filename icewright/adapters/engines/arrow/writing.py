"""Write Parquet files as the table's `write.parquet.*` properties ask."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.encoding import RowGroupTarget, coded, codes_of, dictionary_pays, unified
from icewright.adapters.engines.arrow.metrics import Bounds, Leaf, column_paths, entry_metrics, leaves
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.reading import offset
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow
from icewright.adapters.engines.arrow.tasks import Layout
from icewright.adapters.engines.arrow.types import Field, arrow_schema
from icewright.core.errors import TerminalError
from icewright.core.words import first_line

if TYPE_CHECKING:
    from icewright.adapters.engines.arrow.theta import ThetaSketch

_CODECS = {"uncompressed": "NONE", "lz4_raw": "LZ4"}
_LEVELS = {"ZSTD": 3, "GZIP": 6}  # defaults of parquet-java
_DEFAULTS = {  # Iceberg's, under `write.parquet.`
    "compression-codec": "zstd",
    "row-group-size-bytes": "134217728",
    "page-size-bytes": "1048576",
    "page-row-limit": "20000",
    "page-version": "v1",
    "dict-size-bytes": "2097152",
    "row-group-check-min-record-count": "100",
    "row-group-check-max-record-count": "10000",
}
_BLOOM = "write.parquet.bloom-filter-enabled.column."
_NDV = "write.parquet.bloom-filter-ndv.column."
_BLOOM_NDV = 1 << 19  # about 1 MB, Iceberg's limit of a filter
_DICTIONARY = "write.parquet.dict-encoding-enabled.column."
_FPP = "write.parquet.bloom-filter-fpp.column."
_STATISTICS_BYTES = 1 << 12  # of the longest value for which Arrow writes statistics
_LEAST_PAGE_BYTES = 1 << 12  # below it Arrow may write empty pages, which it cannot read
_WRITE_BATCH = 1024  # values, the default of Arrow
# divisors of the task's memory: a row group stays decoded while it is encoded, and sorting needs memory beside it
_ENCODING_COPIES = 8  # of a value, about, while its page is made
_GROUP_MEMORY_SHARE, _SORTED_GROUP_MEMORY_SHARE = 4, 8
_CODED_SHARE = 2  # times that rows held as codes must be smaller: encoding values twice takes time


class RowsMiscounted(TerminalError):
    """The footer of a written file has another row count than was written."""


@dataclass
class Outputs:
    """The output files of a bin; each file gets about the same number of rows."""

    layout: Layout
    opener: Opener
    fields: Sequence[Field]
    new_paths: Iterator[str]
    file_count: int
    rows_per_file: int  # the last file takes the rest
    entries: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    _buffered: list[pa.RecordBatch] = field(default_factory=list)
    _file: _File | None = None

    def __post_init__(self) -> None:
        properties = self.layout.properties
        self.schema = arrow_schema(self.fields)
        self._leaves = leaves(self.fields, properties, self.layout.sorted_by)
        divisor = _SORTED_GROUP_MEMORY_SHARE if self.layout.order else _GROUP_MEMORY_SHARE
        self._group_bytes = self.layout.memory_bytes // divisor
        self._target = _target(properties)
        self._options: dict[str, Any] | None = None  # of the current file
        self._coded: frozenset[str] = frozenset()  # columns of the current file that are held as codes
        self._group_rows: int | None = None  # in the current file, once known
        self._buffered_bytes = self._buffered_rows = 0
        self._sketches = _sketches(self.layout, self.fields)
        self._check_options()

    def sketches(self) -> dict[str, str]:
        """Return the sketch of each counted column over all rows, by its id, in base 64."""
        return {number: b64encode(sketch.to_bytes()).decode() for number, _, sketch in self._sketches}

    def _check_options(self) -> None:
        """Raise `UnsupportedByArrow` when Arrow refuses the table's options; in memory, where no storage can fail."""
        options = writer_options(self.layout.properties, self._leaves)
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), self.schema, **options) as writer:
                writer.write_table(pa.Table.from_batches([], self.schema), row_group_size=1)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UnsupportedByArrow(f"Arrow cannot write files as the table asks: {first_line(error)}") from error

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows, and close each file that has its number of rows."""
        for _, index, sketch in self._sketches:
            sketch.update(batch.column(index))
        while batch.num_rows:
            file_rows = self._file.rows if self._file is not None else 0
            is_last = len(self.entries) + 1 >= self.file_count
            take = batch.num_rows if is_last else self.rows_per_file - file_rows - self._buffered_rows
            head, batch = batch.slice(0, take), batch.slice(take)
            self._hold(head)
            full = not is_last and file_rows + self._buffered_rows >= self.rows_per_file
            self._flush_full_groups()
            if full:
                self._close()

    def _hold(self, batch: pa.RecordBatch) -> None:
        most = self._group_bytes // _ENCODING_COPIES
        if batch.nbytes > most and any(_longest(column) > most for column in batch.columns):
            reason = f"values of more than {most >> 20} MB take more memory than a task has"
            raise UnsupportedByArrow(f"{reason} (compact.task_memory_mb)")
        if self._file is None and not self._buffered:
            # where parquet-java counts what pages take before compression, values must too
            self._coded = codes_of(batch) if self._target.compressed else frozenset()
        batch = coded(batch, self._coded)
        self._buffered.append(batch)
        self._buffered_rows += batch.num_rows
        self._buffered_bytes += batch.nbytes

    def _flush_full_groups(self) -> None:
        """Write the row groups that are complete, by their encoded bytes or the memory of their decoded rows."""
        if self._group_rows is None and self._buffered_bytes >= self._target.bytes:
            self._group_rows = self._target.rows(self._table(), self._file_options())
        while self._group_rows is not None and self._buffered_rows >= self._group_rows:
            self._flush(self._group_rows)
        if self._buffered_bytes >= self._group_limit and not self._hold_codes():
            self._flush()

    def _hold_codes(self) -> bool:
        """Hold texts as codes and one dictionary each from now on, and return whether that makes room in memory."""
        if self._file is None:
            self._coded |= self._repeating_texts()
        if not self._coded:
            return False
        batches, self._buffered = self._buffered, []
        while batches:
            self._buffered.append(coded(batches.pop(0), self._coded))
        table = unified(self._table(), self._file_options()["dictionary_pagesize_limit"])
        self._buffered, self._buffered_bytes = table.to_batches(), table.get_total_buffer_size()
        return self._buffered_bytes * _CODED_SHARE <= self._group_limit

    def _repeating_texts(self) -> frozenset[str]:
        """Return the columns that take so much less memory as codes that encoding them twice pays; else none."""
        table, dictionaries = self._table(), self._file_options()["use_dictionary"]
        saved = {
            name: column.nbytes - 4 * len(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
            if name in dictionaries and (pa.types.is_string(column.type) or pa.types.is_binary(column.type))
        }
        pays = (table.nbytes - sum(saved.values())) * _CODED_SHARE <= table.nbytes
        return frozenset(saved) if pays else frozenset()

    def _table(self) -> pa.Table:
        return pa.Table.from_batches(self._buffered, self._buffered[0].schema)

    def _file_options(self) -> dict[str, Any]:
        """Return the writer's options for the current file, which the first rows that are held decide."""
        if self._options is None:
            table, properties = self._table(), self.layout.properties
            self._options = writer_options(properties, self._leaves)
            self._options["use_dictionary"] = self._dictionary_columns(table)
            self._options["write_batch_size"] = _values_per_write(table, self._options["data_page_size"])
        return self._options

    def _dictionary_columns(self, table: pa.Table) -> list[str]:
        properties = self.layout.properties
        limit = int(parquet_property(properties, "dict-size-bytes"))
        plain = set()
        for leaf in self._leaves:
            enabled = properties.get(_DICTIONARY + leaf.path)
            page_rows = self._target.page_rows if enabled is None else None  # asked for: a first page decides nothing
            allowed = enabled is None or enabled.lower() == "true"
            if not (allowed and dictionary_pays(_leaf_column(table, leaf), limit, page_rows)):
                plain.add(leaf.stored_path)
        return [path for path, _ in column_paths(self.fields) if path not in plain]

    @property
    def _group_limit(self) -> int:
        """Return the decoded bytes of a row group: fewer where rows are so long that encoding one takes memory."""
        row_bytes = self._buffered_bytes // max(1, self._buffered_rows)
        return max(self._group_bytes // 2, self._group_bytes - _ENCODING_COPIES * row_bytes)

    def finish(self) -> list[dict[str, Any]]:
        """Close the last file and return all entries; there are none without rows."""
        self._close()
        return self.entries

    def discard(self) -> None:
        """Delete all files, complete or not."""
        if self._file is not None:
            self._file.abandon()
        for path in self.paths:
            self.opener.delete(path)

    def _flush(self, rows: int | None = None) -> None:
        """Write rows that are held, all unless told how many, as a row group."""
        options, table = self._file_options(), self._table()
        if self._file is None:
            path = next(self.new_paths)
            self.paths.append(path)
            self._file = _File(path, self.layout, self.opener, self.fields, self._leaves, options)
        left = table.slice(table.num_rows if rows is None else rows)
        self._buffered, self._buffered_bytes, self._buffered_rows = left.to_batches(), left.nbytes, left.num_rows
        group = table.slice(0, rows)
        del table
        self._file.write(unified(group, options["dictionary_pagesize_limit"]) if self._coded else group)

    def _close(self) -> None:
        """Write what is held and close the file, if there is one."""
        if self._buffered:
            self._flush()
        if self._file is not None:
            self.entries.append(self._file.close())
        self._file, self._options, self._coded, self._group_rows = None, None, frozenset(), None


class _File:
    """A Parquet file that is being written."""

    def __init__(
        self,
        path: str,
        layout: Layout,
        opener: Opener,
        fields: Sequence[Field],
        leaves_: Sequence[Leaf],
        options: Mapping[str, Any],
    ) -> None:
        self.path, self.rows = path, 0
        self._layout, self._opener, self._fields, self._leaves = layout, opener, fields, leaves_
        self._options = options
        self._nans: dict[int, int] = {}
        self._long_bounds: dict[int, Bounds] = {}
        self._stream = opener.create(path)
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, table.schema, **self._options)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows
        for leaf in self._leaves:
            if leaf.kind in ("float", "double") and leaf.mode != "none":
                count = pc.sum(pc.is_nan(_leaf_column(table, leaf))).as_py() or 0
                self._nans[leaf.id] = self._nans.get(leaf.id, 0) + count
            if leaf.kind in ("string", "binary") and leaf.has_bounds:
                self._add_long_bounds(leaf, _leaf_column(table, leaf))

    def _add_long_bounds(self, leaf: Leaf, column: pa.ChunkedArray) -> None:
        """Keep the bounds of a row group with values above 4 KB, for which Arrow writes no statistics."""
        if pa.types.is_dictionary(column.type):
            column = pa.chunked_array([chunk.dictionary for chunk in column.chunks], column.type.value_type)
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is None or longest <= _STATISTICS_BYTES:
            return
        extremes = pc.min_max(column)
        # buffers, because a string need not be UTF-8
        low, high = (extremes[name].as_buffer().to_pybytes() for name in ("min", "max"))
        before = self._long_bounds.get(leaf.id, (low, high))
        self._long_bounds[leaf.id] = min(low, before[0]), max(high, before[1])

    def close(self) -> dict[str, Any]:
        """Close the file, verify its footer and return its entry with metrics."""
        if self._writer is not None:
            self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        with self._opener.reading(self.path) as source:
            footer = pq.read_metadata(source)
        if footer.num_rows != self.rows or footer.num_rows != sum(
            footer.row_group(number).num_rows for number in range(footer.num_row_groups)
        ):
            raise RowsMiscounted(f"{self.path} has {footer.num_rows} rows of {self.rows} written")
        metrics = entry_metrics(footer, self._fields, self._leaves, self._nans, self._long_bounds)
        return {
            "content": "data",
            "file-path": self.path,
            "file-format": "parquet",
            "file-size-in-bytes": size,
            "record-count": footer.num_rows,
            **{name: _json_map(metric) for name, metric in metrics.items() if metric},
            "split-offsets": [offset(footer.row_group(number)) for number in range(footer.num_row_groups)],
            "sort-order-id": self._layout.sort_order_id,
        }

    def abandon(self) -> None:
        """Close the stream without completing the file."""
        self._stream.close()


def _sketches(layout: Layout, fields: Sequence[Field]) -> list[tuple[str, int, ThetaSketch]]:
    """Return an empty sketch for each counted column, with its id and index; none on executors that cannot hash."""
    if not layout.counted:
        return []
    try:
        from icewright.adapters.engines.arrow.theta import ThetaSketch  # noqa: PLC0415 - only where it is asked for
    except ImportError:
        return []
    return [(str(f["id"]), index, ThetaSketch()) for index, f in enumerate(fields) if f["id"] in layout.counted]


def _longest(array: pa.Array) -> int:
    """Return the bytes of the longest text, binary value, list or map, inside of nested columns too."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _longest(array.dictionary)
    if pa.types.is_struct(kind):
        return max((_longest(array.field(number)) for number in range(kind.num_fields)), default=0)
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        inner = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        most: int = pc.max(pc.pairwise_diff(array.offsets)).as_py() or 0
        size: int = sum(values.nbytes for values in inner)
        return max(most * size // max(1, len(inner[0])), *map(_longest, inner))
    text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return (pc.max(pc.binary_length(array)).as_py() or 0) if text else 0


def _values_per_write(table: pa.Table, page_bytes: int) -> int:
    """Return how many values Arrow may add to a page before it compares the page with its size, 1,024 by default.

    A page of long values would otherwise grow to a thousand of them, in memory several times while it is encoded.
    """
    widest: int = max((column.nbytes for column in table.columns), default=0)
    return max(1, min(_WRITE_BATCH, page_bytes * int(table.num_rows) // max(widest, 1)))


def _target(properties: Mapping[str, str]) -> RowGroupTarget:
    names = ("row-group-size-bytes", "row-group-check-min-record-count", "row-group-check-max-record-count")
    size, least, most, page_rows, page_bytes = (
        int(parquet_property(properties, name)) for name in (*names, "page-row-limit", "page-size-bytes")
    )
    compressed = parquet_property(properties, "row-group-size-track-uncompressed").lower() != "true"
    return RowGroupTarget(size, least, most, page_rows, page_bytes, compressed=compressed)


def _leaf_column(table: pa.Table, leaf: Leaf) -> pa.ChunkedArray:
    name, *inside = leaf.stored_names
    column = table.column(name)
    for inner in inside:
        column = pc.struct_field(column, inner)
    return column


def _json_map(by_field_id: Mapping[int, Any]) -> dict[str, list[Any]]:
    values = [value.hex().upper() if isinstance(value, bytes) else value for value in by_field_id.values()]
    return {"keys": list(by_field_id), "values": values}


def parquet_property(properties: Mapping[str, str], name: str) -> str:
    """Return a `write.parquet.` property, or its default, or an empty text."""
    return properties.get(f"write.parquet.{name}") or _DEFAULTS.get(name, "")


def writer_options(properties: Mapping[str, str], leaves_: Sequence[Leaf]) -> dict[str, Any]:
    """Return the options of Arrow's ParquetWriter for the table's properties."""
    codec = parquet_property(properties, "compression-codec").lower()
    codec = _CODECS.get(codec, codec.upper())
    level = parquet_property(properties, "compression-level")
    bloom = {
        leaf.stored_path: {
            "fpp": float(properties.get(_FPP + leaf.path, "0.01")),
            "ndv": int(properties.get(_NDV + leaf.path, str(_BLOOM_NDV))),
        }
        for leaf in leaves_
        if properties.get(_BLOOM + leaf.path, "").lower() == "true"
    }
    return {
        "compression": codec,
        "compression_level": int(level) if level and codec in _LEVELS else _LEVELS.get(codec),
        "data_page_size": max(_LEAST_PAGE_BYTES, int(parquet_property(properties, "page-size-bytes"))),
        "data_page_version": "2.0" if parquet_property(properties, "page-version") == "v2" else "1.0",
        "dictionary_pagesize_limit": int(parquet_property(properties, "dict-size-bytes")),
        "max_rows_per_page": int(parquet_property(properties, "page-row-limit")),
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_index": True,
        "write_page_checksum": True,
        **({"bloom_filter_options": bloom} if bloom else {}),
    }
