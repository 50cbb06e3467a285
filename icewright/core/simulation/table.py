"""A simulated table: its metadata and manifests as a catalog would serve them, and the files in its storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import Any

from icewright.core.cost import OPEN_COST_MB
from icewright.core.partitions import PartitionKey
from icewright.core.policy import MEGABYTE
from icewright.core.simulation.partition import SimulatedPartition
from icewright.core.simulation.writes import Layout, Write
from icewright.core.table import (
    MAIN,
    ManifestContent,
    ManifestFacts,
    PartitionField,
    PartitionSpec,
    RefKind,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    TableFacts,
    TableMetadata,
    TableRef,
    Thresholds,
)

_MANIFEST_BYTES, _ENTRY_BYTES = 4096, 300  # of a manifest with statistics of ten columns
_METADATA_BYTES, _SNAPSHOT_BYTES = 3000, 700
_MERGED_FROM = 100  # manifests that make a writer merge them: commit.manifest.min-count-to-merge
_SMALL = 0.75  # of the target: a manifest below is small
_EPOCH = date(1970, 1, 1)
_TICKS = 1_000_000  # of a second, in bounds of timestamps


@dataclass
class Orphans:
    """Files that a failed attempt left, and when a scan found them first."""

    at: datetime
    files: int
    bytes: int
    found: datetime | None = None


@dataclass(frozen=True, slots=True)
class FilesDeleted:
    """The count and bytes of files deleted from the storage."""

    files: int = 0
    bytes: int = 0


class SimulatedTable:
    """The state of one table; every change increments its version."""

    def __init__(self, ref: TableRef, reads_per_day: float | None = None) -> None:
        self.ref = ref
        self.reads_per_day = reads_per_day
        self.partitions: dict[PartitionKey, SimulatedPartition] = {}
        self.layouts: list[Layout] = []
        self.snapshots: list[Snapshot] = []
        self.tags: list[SnapshotRef] = []
        self.statistics: tuple[StatisticsFile, ...] = ()  # of both kinds
        self.orphans: list[Orphans] = []
        self.version = 0
        self.files = self.bytes = self.deletes = 0  # live data files, their bytes, delete files that apply
        self.manifests = self.delete_manifests = 0
        self.dead_files = self.dead_bytes = 0  # that old snapshots reach, and orphans
        self._dead: deque[tuple[int, int, int]] = deque()  # sequence number that does without them, files, bytes
        self._sequence = 0
        self._updated: datetime | None = None

    # -- what writers do

    def write(self, write: Write) -> None:
        """Apply a writer's commit, with the orphans of the attempts before it."""
        if write.orphans:
            size = write.orphans * write.bytes // max(1, write.files)
            self.orphans.append(Orphans(write.at, write.orphans, size))
            self.dead_files += write.orphans
            self.dead_bytes += size
        partition = self._partition(write)
        removed = 0
        if write.operation == "overwrite" or (write.operation == "delete" and not write.delete_files):
            removed = partition.bytes
            self.clear(partition)
        if write.files or write.delete_files or partition.files:
            partition.write(write)
        else:
            del self.partitions[partition.key]
        self.files += write.files
        self.bytes += write.bytes
        self.deletes += write.delete_files
        self.manifests += bool(write.files)
        self.delete_manifests += bool(write.delete_files)
        if self.manifests >= _MERGED_FROM:
            self.merge_manifests(8 * MEGABYTE)
        self.commit(write.at, write.operation, deletes=write.delete_files, removed=removed, added=write.bytes)

    def _partition(self, write: Write) -> SimulatedPartition:
        if write.layout not in self.layouts:
            self.layouts.append(write.layout)
        key = (self.layouts.index(write.layout), write.values)
        if key not in self.partitions:
            self.partitions[key] = SimulatedPartition(key, _lowest(write.layout, write.values))
        return self.partitions[key]

    # -- what commits of every kind do

    def commit(self, at: datetime, operation: str, *, deletes: int = 0, removed: int = 0, added: int = 0) -> None:
        """Add a snapshot; files given to `bury` before are from now on reached by older snapshots alone."""
        self._sequence += 1
        number = self._sequence
        summary = {"added-delete-files": str(deletes)} if deletes else {}
        if removed:
            sizes = {"added": added, "removed": removed, "total": self.bytes}
            summary |= {f"{key}-files-size": str(size) for key, size in sizes.items()}
        self.snapshots.append(Snapshot(number, number - 1 or None, number, at, None, (), operation, summary))
        self.touched(at)

    def touched(self, at: datetime) -> None:
        """Record that a commit wrote another metadata file."""
        self.version += 1
        self._updated = at

    def bury(self, files: int, size: int) -> None:
        """Record files that the next snapshot drops: they are deleted when the last older snapshot has expired."""
        if files:
            self._dead.append((self._sequence + 1, files, size))
            self.dead_files += files
            self.dead_bytes += size

    def clear(self, partition: SimulatedPartition) -> None:
        """Drop the partition's files with the next snapshot."""
        self.thin_manifests(partition.files)
        self.bury(partition.files + partition.deletes + partition.dangling, partition.bytes)
        self.files -= partition.files
        self.bytes -= partition.bytes
        self.deletes -= partition.deletes
        partition.clear()
        self.fit_delete_manifests()

    def fit_delete_manifests(self) -> None:
        """Drop delete manifests that list no delete file any more."""
        left = sum(p.deletes + p.dangling for p in self.partitions.values()) if self.delete_manifests else 0
        gone = max(0, self.delete_manifests - left)
        self.delete_manifests -= gone
        self.bury(gone, gone * _MANIFEST_BYTES)

    def thin_manifests(self, entries: int) -> None:
        """Drop the manifests of removed entries, which are taken to be spread evenly."""
        left = ceil(self.manifests * (1 - entries / self.files)) if self.files else 0
        self.bury(self.manifests - left, (self.manifests - left) * _MANIFEST_BYTES)
        self.manifests = left

    def merge_manifests(self, target: int) -> None:
        """Rewrite the data manifests into as few as the target allows."""
        self.bury(self.manifests, self._manifest_bytes)
        entries = self.files * _ENTRY_BYTES + _MANIFEST_BYTES
        self.manifests = max(1, ceil(entries / target))

    def merge_delete_manifests(self) -> None:
        """Rewrite the delete manifests into one, as there are never many delete files."""
        merged = max(0, self.delete_manifests - 1)
        self.delete_manifests -= merged
        self.bury(merged, merged * _MANIFEST_BYTES)

    def expire(self, snapshot_ids: Sequence[int], at: datetime, *, delete_files: bool) -> FilesDeleted:
        """Remove snapshots, then the files that only they reached."""
        files, size = len(snapshot_ids), 0  # a manifest list each
        if self.snapshots[files - 1].snapshot_id == snapshot_ids[-1]:  # the oldest, as nearly always
            del self.snapshots[:files]
        else:
            gone = set(snapshot_ids)
            self.snapshots = [s for s in self.snapshots if s.snapshot_id not in gone]
        oldest = self.snapshots[0].sequence_number if self.snapshots and delete_files else 0
        while self._dead and self._dead[0][0] <= oldest:
            _, dead_files, dead_bytes = self._dead.popleft()
            files, size = files + dead_files, size + dead_bytes
            self.dead_files -= dead_files
            self.dead_bytes -= dead_bytes
        self.touched(at)
        return FilesDeleted(files, size) if delete_files else FilesDeleted()

    # -- what the table says of itself

    @property
    def _manifest_bytes(self) -> int:
        return self.manifests * _MANIFEST_BYTES + self.files * _ENTRY_BYTES

    @property
    def location(self) -> str:
        """Return a stand-in for the path of the current metadata file."""
        return str(self.version)

    @property
    def query_mb(self) -> float:
        """Return the scan work in MB of a query over the whole table.

        Bytes, files to open and manifests to plan with.
        """
        opened = self.files + self.deletes + (self.manifests + self.delete_manifests) / 4
        return self.bytes / MEGABYTE + OPEN_COST_MB * opened

    def facts(self, by: Thresholds) -> TableFacts:
        """Return the table's facts, as if read from manifests."""
        partitions = tuple([p.counted if p.by is by and p.counted else p.facts(by) for p in self.partitions.values()])
        manifests = []
        if self.manifests:
            size_bytes = self._manifest_bytes
            small = self.manifests if size_bytes < _SMALL * by.manifest_target_bytes * self.manifests else 0
            spec = max(0, len(self.layouts) - 1)
            manifests.append(ManifestFacts(spec, ManifestContent.DATA, self.manifests, size_bytes, self.files, small))
        if self.delete_manifests:
            count, size_bytes = self.delete_manifests, self.delete_manifests * _MANIFEST_BYTES
            manifests.append(ManifestFacts(0, ManifestContent.DELETES, count, size_bytes, self.deletes, count))
        dangling = sum(p.dangling_position_deletes for p in partitions) if self.delete_manifests else 0
        return TableFacts(
            metadata=self.metadata(),
            thresholds=by,
            partitions=partitions,
            manifests=tuple(manifests),
            delete_files=self.deletes + dangling,
            deleted_rows=sum(p.deleted_rows for p in partitions) if self.deletes else 0,
            queries=self.reads_per_day,
        )

    def metadata(self) -> TableMetadata:
        """Return the table's metadata as a catalog would load it."""
        current = self.snapshots[-1].snapshot_id if self.snapshots else None
        schema, specs = _schema(tuple(self.layouts))
        made = TableMetadata(
            ref=self.ref,
            metadata_location=self.location,
            metadata_length=_METADATA_BYTES + _SNAPSHOT_BYTES * len(self.snapshots),
            table_uuid=str(self.ref),
            location=f"s3://{'/'.join(self.ref.parts)}",
            format_version=2,
            last_updated=self._updated or datetime.min,  # noqa: DTZ901 - no file was ever written
            last_sequence_number=self._sequence,
            current_snapshot_id=current,
            snapshots=tuple(self.snapshots),
            refs=() if current is None else (SnapshotRef(MAIN, RefKind.BRANCH, current), *self.tags),
            metadata_log=(),
            statistics=self.statistics,
            partition_statistics=self.statistics,
            properties={},
            specs=specs,
            default_spec_id=specs[-1].spec_id,
            schema=schema,
            sort_order=None,
        )
        if current is not None and current - self.snapshots[0].snapshot_id == len(self.snapshots) - 1:
            vars(made)["is_straight"] = True  # known here, as nothing branches: it need not be looked for
        return made


@lru_cache(maxsize=1024)
def _schema(layouts: tuple[Layout, ...]) -> tuple[Mapping[str, Any], tuple[PartitionSpec, ...]]:
    """Return a schema with a timestamp and the columns of the layouts, and a spec for each layout."""
    names = dict.fromkeys(name for layout in layouts for name, transform in layout if transform == "identity")
    ids = {name: number for number, name in enumerate(names, 2)}
    fields = [{"id": 1, "name": "ts", "required": False, "type": "timestamptz"}]
    fields += [{"id": i, "name": name, "required": False, "type": "string"} for name, i in ids.items()]
    specs = tuple(
        PartitionSpec(number, tuple(PartitionField(ids.get(n, 1), 1000 + i, n, t) for i, (n, t) in enumerate(layout)))
        for number, layout in enumerate(layouts or ((),))
    )
    return {"type": "struct", "schema-id": 0, "fields": fields}, specs


def _lowest(layout: Layout, values: tuple[Any, ...]) -> int | None:
    """Return the least timestamp of a partition's rows, if its fields tell."""
    for (_, transform), value in zip(layout, values, strict=True):
        if transform == "day" and isinstance(value, date):
            return (value - _EPOCH) // timedelta(seconds=1) * _TICKS
        if transform == "hour" and isinstance(value, int):
            return value * 3600 * _TICKS
    return None
