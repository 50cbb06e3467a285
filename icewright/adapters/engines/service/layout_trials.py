"""Trials of layouts: a sample of a table's rows in each order, cut into files, whose bounds recorded filters meet.

The files as they are enter with the bounds of their entries. Nothing is written: bounds alone decide which files a
plan reads, and they follow from the order of the rows.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundStartsWith,
    Or,
)

from icewright.adapters.engines.arrow.opening import StorageOpener
from icewright.adapters.engines.arrow.ranges import TIE, divide
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.tasks import Bin
from icewright.adapters.engines.service.checked_entries import CheckedEntries
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.file_slices import constants_of, reading_layout, slice_of
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.adapters.engines.service.row_predicate import RowPredicate
from icewright.core.field_ids import LOWER_BOUNDS, UPPER_BOUNDS
from icewright.core.layout import FileSizes, LayoutReport, LayoutTrial, RowLayout, layout_candidates
from icewright.core.table import TableMetadata
from icewright.ports import TableFiles

_SAMPLE_ROWS = 200_000
_ROWS_OF_A_FILE = 20  # of the sample, at the least: fewer say nothing about bounds


@dataclass
class LayoutTrials:
    """Trials on the current state of one table."""

    files: TableFiles
    metadata: TableMetadata  # with the current snapshot alone
    filters: Sequence[str]

    def run(self, sizes: FileSizes) -> LayoutReport:
        """Return the bytes that the filters read in each layout. Raises `UsageError` for what is no filter."""
        target = sizes.of(max(self._by_partition.values(), default=0))
        used = Counter(name for predicate in self._predicates for name in self._columns if name in predicate.columns)
        rows = self.sample if len(used) else pl.DataFrame()
        trials = [LayoutTrial(None, self._bytes_read(self._as_they_are), opening=sizes.opening / target)]
        smaller = [size for size in sizes.others if size < max(self._by_partition.values(), default=0)]
        candidates = layout_candidates([name for name, _ in used.most_common()], smaller) if rows.height else ()
        for layout in candidates:
            read = self._bytes_read(self._cut(rows, layout, sizes))
            trials.append(LayoutTrial(layout, read, opening=sizes.opening / (layout.target or target)))
        return LayoutReport(
            self.metadata.ref, len(self.filters), self._total, rows.height, tuple(trials), target=target
        )

    @cached_property
    def _entries(self) -> CheckedEntries:
        return CheckedEntries(self.files, self.metadata)

    @cached_property
    def _predicates(self) -> list[RowPredicate]:
        return [RowPredicate.of(text, [self.metadata.schema], "--filters") for text in self.filters]

    @cached_property
    def _columns(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the top-level columns of simple types that filters name."""
        fields = (field for predicate in self._predicates for field in predicate.fields)
        return {field["name"]: field for field in fields if isinstance(field["type"], str)}

    @cached_property
    def _data(self) -> list[ContentFile]:
        return [file for file in self._entries.content_files() if file.content == DATA]

    @cached_property
    def _total(self) -> int:
        return sum(file.bytes for file in self._data)

    @cached_property
    def _by_partition(self) -> Mapping[str, int]:
        """Return the bytes of each partition."""
        sizes = Counter[str]()
        for file in self._data:
            sizes[file.partition_key] += file.bytes
        return sizes

    @cached_property
    def _as_they_are(self) -> pl.DataFrame:
        types = {name: self._predicate_type(field["id"]) for name, field in self._columns.items()}
        rows = []
        for file in self._data:
            row: dict[str, Any] = {"bytes": file.bytes}
            lower, upper = file.mapped(LOWER_BOUNDS), file.mapped(UPPER_BOUNDS)
            for name, field in self._columns.items():
                for end, bounds in (("low", lower), ("high", upper)):
                    bound = bounds.get(field["id"])
                    row[f"{field['id']} {end}"] = None if bound is None else from_bytes(types[name], bound)
            rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    def _predicate_type(self, field_id: int) -> Any:  # noqa: ANN401 - a type of PyIceberg
        schema = next(p.schema for p in self._predicates if field_id in p.columns.values())
        return schema.find_type(field_id)

    @cached_property
    def sample(self) -> pl.DataFrame:
        """Return the columns of a sample of files, as the values that bounds compare, with the files' partitions."""
        chosen, rows = [], 0
        for file in random.Random(4).sample(self._data, len(self._data)):  # noqa: S311 - no secret
            if rows < _SAMPLE_ROWS and file.format == "PARQUET":
                chosen.append(file)
                rows += file.records
        fields = list(self._columns.values())
        layout, opener = reading_layout(fields, self._entries.schemas, self.metadata), StorageOpener({}, self.files)
        frames = []
        for file in chosen:
            constants = constants_of(file, self.metadata, self._entries.types)
            scan = BatchScan(layout, opener, Bin.for_reading([slice_of(file)], constants))
            for columns in scan.scan_columns(fields):
                batch = pa.RecordBatch.from_arrays(columns, names=[field["name"] for field in fields])
                frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(pl.all().to_physical())
                frames.append(frame.with_columns(pl.lit(file.partition_key).alias("partition of")))
        return pl.concat(frames) if frames else pl.DataFrame()

    def _cut(self, rows: pl.DataFrame, layout: RowLayout, sizes: FileSizes) -> pl.DataFrame:
        """Return the bounds of the files into which a rewrite in this layout would cut the rows."""
        parts = []
        for part in rows.partition_by("partition of"):
            size = self._total * part.height / rows.height
            target = layout.target or sizes.of(size)
            count = max(1, min(math.ceil(size / target), part.height // _ROWS_OF_A_FILE))
            keys = part.select(*layout.columns, pl.int_range(pl.len(), dtype=pl.UInt64).alias(TIE))
            order = tuple((number, False, False) for number, _ in enumerate(layout.columns))
            file = divide(order, keys, count, zorder=layout.zorder).numbers(keys)
            ends = [pl.col(name).min().alias(f"{field['id']} low") for name, field in self._columns.items()]
            ends += [pl.col(name).max().alias(f"{field['id']} high") for name, field in self._columns.items()]
            cut = part.group_by(file.alias("file")).agg(*ends, (pl.len() * size / part.height).alias("bytes"))
            parts.append(cut.drop("file"))
        return pl.concat(parts)

    def _bytes_read(self, files: pl.DataFrame) -> int:
        if files.is_empty():
            return 0
        read = (
            files.filter(_may_match(predicate.bound, files.columns).fill_null(value=True))["bytes"].sum()
            for predicate in self._predicates
        )
        return round(sum(read))


def _may_match(expression: BooleanExpression, known: Sequence[str]) -> pl.Expr:
    """Return whether a file with these bounds may hold a matching row; what bounds cannot tell may."""
    match expression:
        case And(left=left, right=right):
            return _may_match(left, known).fill_null(value=True) & _may_match(right, known).fill_null(value=True)
        case Or(left=left, right=right):
            return _may_match(left, known).fill_null(value=True) | _may_match(right, known).fill_null(value=True)
    column = expression.term.ref().field.field_id if hasattr(expression, "term") else ""
    low, high = pl.col(f"{column} low"), pl.col(f"{column} high")
    if f"{column} low" not in known:
        return pl.lit(value=True)
    if isinstance(expression, BoundIn):
        return pl.any_horizontal((low <= value) & (high >= value) for value in map(pl.lit, expression.value_set))
    if not isinstance(expression, BoundLiteralPredicate):
        return pl.lit(value=True)
    value = pl.lit(expression.literal.value)
    match expression:
        case BoundEqualTo():
            return (low <= value) & (high >= value)
        case BoundLessThan():
            return low < value
        case BoundLessThanOrEqual():
            return low <= value
        case BoundGreaterThan():
            return high > value
        case BoundGreaterThanOrEqual():
            return high >= value
        case BoundStartsWith():
            length = len(str(expression.literal.value))
            return (low.str.slice(0, length) <= value) & (high.str.slice(0, length) >= value)
    return pl.lit(value=True)
