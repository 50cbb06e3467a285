"""Parquet files of a table, as its properties want them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icewright.adapters.engines.arrow.encoding import repeats
from icewright.adapters.engines.arrow.group import Layout
from icewright.adapters.engines.arrow.metrics import Leaf, cut, entry_metrics, every_path, leaves
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.reading import offset
from icewright.adapters.engines.arrow.types import Field, arrow_schema
from icewright.core.errors import TerminalError

_CODECS = {"uncompressed": "NONE", "lz4_raw": "LZ4"}
_LEVELS = {"ZSTD": 3, "GZIP": 6}  # Parquet's own in Java, where the table says none
_DEFAULTS = {  # of Iceberg, under `write.parquet.`
    "compression-codec": "zstd",
    "row-group-size-bytes": "134217728",
    "page-size-bytes": "1048576",
    "page-row-limit": "20000",
    "page-version": "v1",
    "dict-size-bytes": "2097152",
}
_BLOOM = "write.parquet.bloom-filter-enabled.column."
_NDV = "write.parquet.bloom-filter-ndv.column."
_VALUES_OF_A_BLOOM = 1 << 19  # about the 1 MB to which Iceberg limits a filter
_DICTIONARY = "write.parquet.dict-encoding-enabled.column."
_FPP = "write.parquet.bloom-filter-fpp.column."
_A_BATCH = 1 << 14  # rows
_OF_MEMORY, _OF_MEMORY_SORTED = 4, 8  # a row group is held decoded while it is encoded, and beside what is sorted


class RowsMiscounted(TerminalError):
    """A file would not hold what was written to it."""


@dataclass
class Outputs:
    """The files of a bin: rows in, entries out. Each file gets about the same number of rows."""

    layout: Layout
    opener: Opener
    fields: Sequence[Field]
    names: Iterator[str]
    files: int
    rows_of_a_file: int  # of all but the last
    entries: list[dict[str, Any]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _file: _File | None = None

    def __post_init__(self) -> None:
        properties = self.layout.properties
        self.schema = arrow_schema(self.fields)
        self._leaves = leaves(self.fields, properties, self.layout.sorted_by)
        said = parquet_property(properties, "row-group-size-bytes")
        share = _OF_MEMORY_SORTED if self.layout.order else _OF_MEMORY
        self._group_bytes = min(int(said), self.layout.memory_bytes // share)
        self._bytes = self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of the schema; a file that has its share is closed."""
        while batch.num_rows:
            written = self._file.rows if self._file is not None else 0
            last = len(self.entries) + 1 >= self.files
            room = batch.num_rows if last else self.rows_of_a_file - written - self._rows
            part, batch = batch.slice(0, room), batch.slice(room)
            self._held.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
            full = not last and written + self._rows >= self.rows_of_a_file
            if full or self._bytes >= self._group_bytes:
                self._flush()
            if full:
                self._close()

    def done(self) -> list[dict[str, Any]]:
        """Return the entries of all files, none where there were no rows."""
        if self._held:
            self._flush()
        self._close()
        return self.entries

    def discard(self) -> None:
        """Delete the files that were begun and not committed."""
        if self._file is not None:
            self._file.abandon()
        for path in self.begun:
            self.opener.delete(path)

    def _flush(self) -> None:
        if self._file is None:
            path = next(self.names)
            self.begun.append(path)
            self._file = _File(path, self.layout, self.opener, self.fields, self._leaves)
        self._file.write(pa.Table.from_batches(self._held, self.schema))
        self._held, self._bytes, self._rows = [], 0, 0

    def _close(self) -> None:
        if self._file is not None:
            self.entries.append(self._file.close())
            self._file = None


class _File:
    """One file being written. Its first row group decides which columns have dictionaries."""

    def __init__(
        self, path: str, layout: Layout, opener: Opener, fields: Sequence[Field], wanted: Sequence[Leaf]
    ) -> None:
        self.path, self.rows = path, 0
        self._layout, self._opener, self._fields, self._leaves = layout, opener, fields, wanted
        self._nans: dict[int, int] = {}
        self._stream = opener.create(path)
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        if self._writer is None:
            options = writer_options(self._layout.properties, self._leaves)
            options["use_dictionary"] = self._repeating(table)
            self._writer = pq.ParquetWriter(self._stream, table.schema, **options)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows
        for leaf in self._leaves:
            if leaf.kind in ("float", "double") and leaf.mode != "none":
                count = pc.sum(pc.is_nan(_leaf(table, leaf))).as_py() or 0
                self._nans[leaf.id] = self._nans.get(leaf.id, 0) + count

    def _repeating(self, table: pa.Table) -> list[str]:
        properties = self._layout.properties
        limit = int(parquet_property(properties, "dict-size-bytes"))
        plain = {
            leaf.path
            for leaf in self._leaves
            if properties.get(_DICTIONARY + leaf.path, "").lower() == "false" or not repeats(_leaf(table, leaf), limit)
        }
        return [path for path, _ in every_path(self._fields) if path not in plain]

    def close(self) -> dict[str, Any]:
        """Return the entry of the file."""
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
        metrics = entry_metrics(footer, self._fields, self._leaves, self._nans)
        self._bound_long_values(metrics)
        return {
            "content": "data",
            "file-path": self.path,
            "file-format": "parquet",
            "file-size-in-bytes": size,
            "record-count": footer.num_rows,
            **{name: _map(found) for name, found in metrics.items() if found},
            "split-offsets": [offset(footer.row_group(number)) for number in range(footer.num_row_groups)],
            "sort-order-id": self._layout.sort_order_id,
        }

    def _bound_long_values(self, metrics: dict[str, Any]) -> None:
        """Parquet keeps no bounds of values beyond 4 KB: theirs are taken from the file itself, by their beginnings."""
        for leaf in self._leaves:
            missing = leaf.id in metrics["value-counts"] and leaf.id not in metrics["lower-bounds"]
            filled = metrics["null-value-counts"].get(leaf.id) != metrics["value-counts"].get(leaf.id)
            if not (missing and filled and leaf.bounded and leaf.kind in ("string", "binary")):
                continue
            with self._opener.parquet(self.path) as source:
                columns = source.iter_batches(_A_BATCH, columns=[leaf.path], use_threads=False)
                found = [pc.min_max(_leaf(pa.Table.from_batches([one]), leaf)) for one in columns]
            lows = [one["min"].as_py() for one in found if one["min"].is_valid]
            highs = [one["max"].as_py() for one in found if one["max"].is_valid]
            low, high = min(map(_bytes, lows)), max(map(_bytes, highs))
            metrics["lower-bounds"][leaf.id], above = cut(leaf, low, high)
            if above is not None:
                metrics["upper-bounds"][leaf.id] = above

    def abandon(self) -> None:
        """Let go of the file, whatever is in it."""
        self._stream.close()


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _leaf(table: pa.Table, leaf: Leaf) -> pa.ChunkedArray:
    name, *inside = leaf.names
    column = table.column(name)
    for inner in inside:
        column = pc.struct_field(column, inner)
    return column


def _map(found: Mapping[int, Any]) -> dict[str, list[Any]]:
    values = [value.hex().upper() if isinstance(value, bytes) else value for value in found.values()]
    return {"keys": list(found), "values": values}


def parquet_property(properties: Mapping[str, str], name: str) -> str:
    """Return a `write.parquet.` property, or its default; empty where there is none."""
    return properties.get(f"write.parquet.{name}") or _DEFAULTS.get(name, "")


def writer_options(properties: Mapping[str, str], wanted: Sequence[Leaf]) -> dict[str, Any]:
    """Return what Arrow's writer is told of the table's `write.parquet.*`."""
    codec = parquet_property(properties, "compression-codec").lower()
    codec = _CODECS.get(codec, codec.upper())
    level = parquet_property(properties, "compression-level")
    bloom = {
        leaf.path: {
            "fpp": float(properties.get(_FPP + leaf.path, "0.01")),
            "ndv": int(properties.get(_NDV + leaf.path, str(_VALUES_OF_A_BLOOM))),
        }
        for leaf in wanted
        if properties.get(_BLOOM + leaf.path, "").lower() == "true"
    }
    return {
        "compression": codec,
        "compression_level": int(level) if level and codec in _LEVELS else _LEVELS.get(codec),
        "data_page_size": int(parquet_property(properties, "page-size-bytes")),
        "data_page_version": "2.0" if parquet_property(properties, "page-version") == "v2" else "1.0",
        "dictionary_pagesize_limit": int(parquet_property(properties, "dict-size-bytes")),
        "max_rows_per_page": int(parquet_property(properties, "page-row-limit")),
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_index": True,
        "write_page_checksum": True,
        **({"bloom_filter_options": bloom} if bloom else {}),
    }
