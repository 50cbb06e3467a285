"""Values that travel between the driver and the tasks: bins of file slices, write layout, results."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from icewright.core.ordering import Ordering
from icewright.core.sortedness import ordering_fields

SortField = tuple[int, bool, bool]  # field id, descending, nulls last


def sort_fields(schema: Mapping[str, Any], ordering: Ordering) -> tuple[SortField, ...]:
    """Return the fields of an order by columns."""
    fields = ordering_fields(schema, [column.name for column in ordering.columns])
    pairs = zip(fields, ordering.columns, strict=True)
    return tuple((number, column.descending, column.nulls_last) for (number, _), column in pairs)


class DeleteKind(enum.StrEnum):
    """The three kinds of row-level deletes in Iceberg."""

    POSITION = "position"
    VECTOR = "vector"
    EQUALITY = "equality"


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A delete file that the planner has matched to a data file."""

    kind: DeleteKind
    path: str
    offset: int = 0  # of a deletion vector in its Puffin file
    length: int = 0
    cardinality: int = 0
    equality_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A data file, or those of its row groups that begin in a range of bytes."""

    path: str
    bytes: int  # of the slice
    file_bytes: int
    records: int  # of the file
    sequence_number: int
    first_row_id: int | None
    deletes: tuple[DeleteFile, ...] = ()
    start: int = 0
    split_offsets: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Return the estimated number of rows, by the slice's share of the file's bytes."""
        return self.records * self.bytes // max(1, self.file_bytes)

    @property
    def end(self) -> int:
        """Return the offset before which the slice's row groups begin."""
        return self.start + self.bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """How the outputs of a rewrite are written; equal for all of its bins."""

    schema: Mapping[str, Any]  # the spec's JSON
    older_fields: Mapping[int, Mapping[str, Any]]  # by id: dropped top-level columns that equality deletes still name
    properties: Mapping[str, str]
    has_row_ids: bool  # format v3: rows keep their row ids
    order: tuple[SortField, ...]  # of the written rows; for a z-order only the ids count
    zorder: bool
    sort_order_id: int  # the table's sort order id where the rows have that order, else 0
    sorted_by: tuple[int, ...]  # ids of the table's sort order; their columns always have bounds
    memory_bytes: int
    storage: Mapping[str, str]  # FileIO properties; empty for local files
    counted: tuple[int, ...] = ()  # ids of the top-level columns whose distinct values are counted

    @property
    def page_memory(self) -> int:
        """Return the bytes that the pages of a file may take; a row group that waits to be written takes as much."""
        return self.memory_bytes // 4

    @classmethod
    def for_reading(
        cls,
        schema: Mapping[str, Any],
        older_fields: Mapping[int, Mapping[str, Any]],
        properties: Mapping[str, str],
        memory_bytes: int,
    ) -> Layout:
        """Return the layout of a scan that writes nothing and reads by the opener of its caller."""
        return cls(schema, older_fields, properties, False, (), False, 0, (), memory_bytes, {})


@dataclass(frozen=True, slots=True)
class Bin:
    """File slices of one group that one task rewrites into `outputs` files."""

    group: int
    slices: tuple[FileSlice, ...]
    partition: Mapping[int, Any]  # identity partition values by source field, as the spec's JSON single values
    output: str  # prefix of the output paths; each attempt appends its own suffix
    outputs: int

    @classmethod
    def for_reading(cls, slices: Sequence[FileSlice], partition: Mapping[int, Any]) -> Bin:
        """Return the bin of a scan that writes nothing."""
        return cls(0, tuple(slices), partition, "", 1)


@dataclass(frozen=True, slots=True)
class BinWritten:
    """A rewritten bin: its output files as REST content file JSON, without spec and partition."""

    group: int
    files: tuple[Mapping[str, Any], ...]
    read: int  # rows, deleted rows included
    deleted: int  # rows
    sketches: Mapping[str, str] = field(default_factory=dict)  # by the id of a counted column, in base 64


@dataclass(frozen=True, slots=True)
class BinFailed:
    """A bin that was not rewritten; its outputs are deleted."""

    group: int
    error: str
    unsupported: bool = False  # Spark's own engine can rewrite the bin


BinResult = BinWritten | BinFailed


def result_to_json(result: BinResult) -> str:
    """Return the result as JSON: a Spark Connect server sends it back, and a pickle could run its code here."""
    return json.dumps({"written": isinstance(result, BinWritten), **asdict(result)})


def result_from_json(text: str) -> BinResult:
    """Return the result whose JSON `result_to_json` made."""
    document = json.loads(text)
    return BinWritten(**document) if document.pop("written") else BinFailed(**document)


def split_into_bins(
    files: Sequence[FileSlice], *, outputs: int, split_bytes: int
) -> list[tuple[Sequence[FileSlice], int]]:
    """Return bins of slices with the number of output files of each bin.

    Slices go in descending size into the smallest bin so far; files larger than `split_bytes` are split between row
    groups.
    """
    if outputs <= 1:
        return [(tuple(files), max(1, outputs))]
    slices = [file_slice for file in files for file_slice in _split(file, split_bytes)]
    assigned: list[list[FileSlice]] = [[] for _ in range(min(outputs, len(slices)))]
    sizes = [0] * len(assigned)
    for file_slice in sorted(slices, key=lambda file_slice: file_slice.bytes, reverse=True):
        smallest = sizes.index(min(sizes))
        assigned[smallest].append(file_slice)
        sizes[smallest] += file_slice.bytes
    average = sum(sizes) / outputs
    return [(tuple(members), max(1, round(size / average))) for members, size in zip(assigned, sizes, strict=True)]


def _split(file: FileSlice, split_bytes: int) -> list[FileSlice]:
    """Return slices of a file of about `split_bytes` each."""
    if file.bytes <= split_bytes or len(file.split_offsets) < 2:  # noqa: PLR2004 - one row group cannot be split
        return [file]
    count = math.ceil(file.bytes / split_bytes)
    starts = [0]
    for number in range(1, count):
        target = number * file.bytes // count
        start = next((offset for offset in file.split_offsets if offset >= target), None)
        if start is not None and start > starts[-1]:
            starts.append(start)
    ends = [*starts[1:], file.bytes]
    return [replace(file, start=start, bytes=end - start) for start, end in zip(starts, ends, strict=True)]
