"""What a task is given and what it answers: plain values that travel between the driver and the executors."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SortField = tuple[int, bool, bool]  # field id, descending, nulls last


class DeleteKind(enum.StrEnum):
    """The three ways in which Iceberg deletes rows."""

    POSITION = "position"
    VECTOR = "vector"
    EQUALITY = "equality"


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A delete file that applies to the data file under which it is named: Iceberg's planner has seen to that."""

    kind: DeleteKind
    path: str
    offset: int = 0  # of a deletion vector in its Puffin file
    length: int = 0
    cardinality: int = 0
    equality_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A data file, or the row groups of it that begin in a range of its bytes."""

    path: str
    bytes: int  # of the piece
    file_bytes: int
    records: int  # of the file
    sequence_number: int
    first_row_id: int | None
    deletes: tuple[DeleteFile, ...] = ()
    start: int = 0
    split_offsets: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        return self.records * self.bytes // max(1, self.file_bytes)

    @property
    def end(self) -> int:
        """Return the byte before which the row groups begin."""
        return self.start + self.bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """How the table wants its files: the same for all tasks of a call."""

    schema: Mapping[str, Any]  # the spec's JSON
    older_fields: Mapping[int, Mapping[str, Any]]  # dropped columns that equality deletes still name
    properties: Mapping[str, str]
    lineage: bool  # format v3: rows keep their ids
    order: tuple[SortField, ...]  # in which rows are written; of a z-order the ids alone count
    zorder: bool
    sort_order_id: int  # of the table's sort order, where that is the order of the rows, else 0
    sorted_by: tuple[int, ...]  # fields of the table's sort order, which keep their bounds
    memory_bytes: int
    storage: Mapping[str, str]  # properties by which files are opened


@dataclass(frozen=True, slots=True)
class Bin:
    """What one task reads and writes."""

    group: int
    pieces: tuple[FileSlice, ...]
    partition: Mapping[int, Any]  # identity partition values by source field, as the spec's JSON single values
    output: str  # how the paths of its files begin: each attempt has names of its own
    outputs: int  # files that it is to write


@dataclass(frozen=True, slots=True)
class Written:
    """A bin done: the entries of its files without spec and partition, in the JSON of the spec's REST part."""

    group: int
    files: tuple[Mapping[str, Any], ...]
    read: int  # rows
    deleted: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A bin that could not be rewritten; nothing of it is left."""

    group: int
    why: str
    unfit: bool = False  # nothing is wrong: this path does not do it, Spark's does


Answer = Written | Failed


def bins(
    files: Sequence[FileSlice], *, outputs: int, split_bytes: int, whole: bool
) -> list[tuple[Sequence[FileSlice], int]]:
    """Return the files of a group in as many bins as files come out, and how many outputs each has.

    The largest first, each into the bin that holds least. A file larger than a split is cut between row groups.
    `whole`: all in one bin, as what is sorted must be sorted together.
    """
    if whole or outputs <= 1:
        return [(tuple(files), max(1, outputs))]
    pieces = [piece for file in files for piece in _cut(file, split_bytes)]
    held: list[list[FileSlice]] = [[] for _ in range(min(outputs, len(pieces)))]
    sizes = [0] * len(held)
    for piece in sorted(pieces, key=lambda one: one.bytes, reverse=True):
        least = sizes.index(min(sizes))
        held[least].append(piece)
        sizes[least] += piece.bytes
    share = sum(sizes) / outputs
    return [(tuple(some), max(1, round(size / share))) for some, size in zip(held, sizes, strict=True)]


def _cut(file: FileSlice, split_bytes: int) -> list[FileSlice]:
    """Return the file as runs of row groups of about a split's bytes each."""
    if file.bytes <= split_bytes or len(file.split_offsets) < 2:  # noqa: PLR2004 - one row group is not cut
        return [file]
    count = math.ceil(file.bytes / split_bytes)
    starts = [0]
    for number in range(1, count):
        wanted = number * file.bytes // count
        start = next((offset for offset in file.split_offsets if offset >= wanted), None)
        if start is not None and start > starts[-1]:
            starts.append(start)
    ends = [*starts[1:], file.bytes]
    return [replace(file, start=start, bytes=end - start) for start, end in zip(starts, ends, strict=True)]
