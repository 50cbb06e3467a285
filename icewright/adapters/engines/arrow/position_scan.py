"""Find the rows that equality deletes name: keys are held in memory, and data files are read for key columns alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pyroaring import BitMap64

from icewright.adapters.engines.arrow.deletes import bitmap
from icewright.adapters.engines.arrow.equality import misjudged_keys
from icewright.adapters.engines.arrow.key_sequences import KeySequences, read_key_sequences
from icewright.adapters.engines.arrow.live_deletes import LiveData, LiveDelete, Partition
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.reading_ahead import ReadingAhead
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow
from icewright.adapters.engines.arrow.tasks import Bin, FileSlice, Layout
from icewright.adapters.engines.arrow.types import single_value
from icewright.core.errors import CommitConflict
from icewright.core.schemas import columns
from icewright.core.table import TableMetadata


@dataclass
class PositionScan:
    """The positions of rows that equality deletes name, by data file. `check` raises when the job must end."""

    layout: Layout
    opener: Opener
    base: TableMetadata
    deletes: Sequence[LiveDelete]  # equality deletes
    check: Callable[[], None]
    matched: dict[str, BitMap64] = field(default_factory=dict, init=False)
    _sequences: dict[str, int] = field(default_factory=dict, init=False)  # of the data files that were read, by path
    _misjudged: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self._misjudged = misjudged_keys((*self.layout.schema["fields"], *self.layout.older_fields.values()))

    def scan(self, data: Sequence[LiveData]) -> None:
        """Read the data files that no earlier call has read.

        Raises `UnsupportedByArrow`, `UnreadableFile`, and `CommitConflict` for a file that was removed and added again:
        by now it is newer than deletes that named its rows.
        """
        if again := [file.path for file in data if self._sequences.get(file.path, file.sequence) != file.sequence]:
            raise CommitConflict(f"{self.base.ref}: a writer removed {again[0]} and added it again")
        fresh = [file for file in data if file.path not in self._sequences]
        by_partition: dict[Partition, list[LiveData]] = {}
        for file in fresh:
            by_partition.setdefault(file.partition, []).append(file)
        groups: dict[tuple[tuple[int, ...], Partition | None], list[LiveDelete]] = {}
        for delete in self.deletes:
            partition = None if delete.partition[0] in self.base.global_specs else delete.partition
            groups.setdefault((delete.file.equality_ids, partition), []).append(delete)
        for (ids, partition), deletes in groups.items():
            self._scan_group(ids, deletes, fresh if partition is None else by_partition.get(partition, []))
        self._sequences.update((file.path, file.sequence) for file in fresh)

    def _scan_group(self, ids: Sequence[int], deletes: Sequence[LiveDelete], data: Sequence[LiveData]) -> None:
        newest = max(delete.sequence for delete in deletes)
        older = [file for file in data if file.sequence < newest]
        if unread := [file for file in older if not file.is_plain_parquet]:
            raise UnsupportedByArrow(f"{unread[0].path}, to which they apply, is encrypted or not Parquet")
        for number in self._misjudged.intersection(ids):
            if bounded := [file for file in older if file.bounds[number][0] is not None]:
                reason = f"by its bounds of column {number} readers may pass over the delete of a key that it has"
                raise UnsupportedByArrow(f"{bounded[0].path}, to which they apply: {reason}")
        if not older:
            return
        opener = self._ahead(deletes)
        for keys in read_key_sequences(self.layout, opener, ids, ((d.path, d.sequence) for d in deletes)):
            matching = [file for file in older if keys.may_match(file.sequence, file.bounds)]
            ahead = self._ahead(matching)
            for file in matching:
                self.check()
                self._scan_file(ahead, keys, file)

    def _ahead(self, files: Sequence[LiveData | LiveDelete]) -> Opener:
        return ReadingAhead.of(self.opener, ((file.path, file.bytes) for file in files), self.layout.memory_bytes)

    def _scan_file(self, opener: Opener, keys: KeySequences, file: LiveData) -> None:
        constants = partition_constants(self.layout, self.base, file)
        scan = BatchScan(self.layout, opener, Bin.for_reading([file_slice(file)], constants))
        start = 0
        for batch in scan.scan_columns(keys.columns):
            by_id = {key["id"]: column for key, column in zip(keys.columns, batch, strict=True)}
            deleted = keys.deleted_rows(by_id, file.sequence)
            if not deleted.is_empty():
                self.matched.setdefault(file.path, BitMap64()).update(bitmap(deleted.cast(pl.UInt64) + start))
            start += len(batch[0])


def partition_constants(layout: Layout, base: TableMetadata, file: LiveData) -> Mapping[int, Any]:
    """Return the identity partition values of a data file by source field id, including dropped columns."""
    fields = base.spec(file.partition[0]).fields
    kinds = {number: field["type"] for number, field in layout.older_fields.items()}
    kinds |= {number: kind for number, _, kind in columns(base.schema)}
    return {
        field.source_id: single_value(kinds[field.source_id], value)
        for field, value in zip(fields, file.values, strict=True)
        if field.transform == "identity" and field.source_id in kinds
    }


def file_slice(file: LiveData, deletes: Sequence[LiveDelete] = ()) -> FileSlice:
    """Return the slice that is the whole data file, with its deletes."""
    tasks = tuple(delete.file for delete in deletes)
    return FileSlice(file.path, file.bytes, file.bytes, file.records, file.sequence, None, tasks)
