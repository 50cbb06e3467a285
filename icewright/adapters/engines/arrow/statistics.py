"""Statistics of one snapshot: theta sketches in a Puffin file, and partition statistics; set by compare-and-set.

Sketches of new files are merged into those of an ancestor where only rows were added since, and carried over where
rewrites changed none: each snapshot's operation says so. Else all live rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import uuid4

from icewright.adapters.engines.arrow.deletes import puffin_file
from icewright.adapters.engines.arrow.live_deletes import LiveData, LiveDelete, LiveFiles, Partition, other_columns
from icewright.adapters.engines.arrow.opening import Opener, refusing, service_opener
from icewright.adapters.engines.arrow.partition_statistics import parquet, partition_statistics
from icewright.adapters.engines.arrow.position_scan import file_slice, partition_constants
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow
from icewright.adapters.engines.arrow.tasks import Bin, FileSlice, Layout
from icewright.adapters.engines.arrow.theta import RewrittenSketches, ThetaSketch
from icewright.adapters.engines.service.footers import puffin_blobs
from icewright.adapters.engines.service.manifest_files import ADDED, DELETED, EQUALITY_DELETES
from icewright.adapters.engines.service.replacing import commit, undone_unless_committed
from icewright.core.ancestry import newer_than
from icewright.core.errors import CommitConflict, InvariantViolated, MetadataUnreadable
from icewright.core.operations.compute_statistics import ADDING, UNCHANGING
from icewright.core.paths import metadata_folder
from icewright.core.policy import Operation
from icewright.core.runs import Outcome, backoff, committed
from icewright.core.steps import ComputeStatistics
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, TableMetadata
from icewright.core.verify import identity_violations, ref_violations
from icewright.core.words import count
from icewright.ports import Catalog, Clock, SetStatistics, StepRequest, TableFiles
from icewright.ports.work import progress

ATTEMPTS = 10  # of the commit, each on top of what writers have committed since the one before
UNSUPPORTED = "statistics_unsupported"
THETA = "apache-datasketches-theta-v1"
_TYPE = "icewright.type"  # of the column when its values were hashed: sketches of ours alone have this property
_NEWEST = 1 << 62  # above every sequence number


@dataclass(frozen=True)
class StatisticsInService:
    """Computes statistics and sets them."""

    files: TableFiles
    clock: Clock
    rewritten: RewrittenSketches  # of what compaction has read

    def run(self, catalog: Catalog, request: StepRequest, step: ComputeStatistics) -> Outcome:
        """Compute and set statistics, or say what would be read. Raises `CommitConflict` if the snapshot is gone."""
        base = request.base
        snapshot = base.by_id.get(step.snapshot_id)
        if snapshot is None:
            raise CommitConflict(f"{base.ref}: snapshot {step.snapshot_id}, whose statistics were planned, is gone")
        sketching = Sketching(self.files, request, step, snapshot, self.rewritten)
        with refusing(base.ref, "no statistics", UNSUPPORTED):
            sketches = sketching.planned() if request.dry_run else sketching.sketches()
        entries = self.files.entries(self.files.manifests(snapshot)) if step.partitions else None
        partitions = None if entries is None else partition_statistics(base, entries)
        writing = _Writing(self.files, self.clock, catalog, request, snapshot)
        if not request.dry_run:
            writing.run(sketching.fields, sketches, None if partitions is None else parquet(partitions))
        return committed(
            Operation.COMPUTE_STATISTICS,
            f"{'would count' if request.dry_run else 'counted'} the distinct values of "
            f"{count(len(sketching.fields), 'column')}, {sketching.how}, and the files and rows of "
            f"{count(0 if partitions is None else len(partitions), 'partition')}",
            {
                "columns_counted": len(sketching.fields),
                "partitions_counted": 0 if partitions is None else len(partitions),
                "files_read": sketching.files_read,
                "bytes_read": sketching.bytes_read,
                "rows_read": sketching.rows_read,
                "bytes_written": writing.written_bytes,
            },
        )


@dataclass
class Sketching:
    """The sketches of a snapshot's columns."""

    files: TableFiles
    request: StepRequest
    step: ComputeStatistics
    snapshot: Snapshot
    rewritten: RewrittenSketches
    files_read: int = field(default=0, init=False)
    bytes_read: int = field(default=0, init=False)
    rows_read: int = field(default=0, init=False)
    how: str = field(default="reading nothing", init=False)

    @property
    def base(self) -> TableMetadata:
        """Return the table as it was when the step was planned."""
        return self.request.base

    @cached_property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """Return the columns, in the order of the step."""
        by_name = {field["name"]: field for field in self.base.schema["fields"]}
        return [by_name[name] for name in self.step.columns]

    def planned(self) -> list[ThetaSketch]:
        """Return the sketches to begin with, and count what is to be read."""
        begun, bins = self._begun() if self.fields else ([], [])
        for group in bins:
            self._count(group)
        return begun

    def sketches(self) -> list[ThetaSketch]:
        """Return a sketch for each column, of all live rows. Raises `UnsupportedByArrow`, `UnreadableFile`."""
        sketches, bins = self._begun() if self.fields else ([], [])
        for group in bins:
            self._count(group)
            for batch in BatchScan(self._layout, self._opener, group).batches():
                self._check()
                for sketch, column in zip(sketches, batch.columns, strict=True):
                    sketch.update(column)
            self.request.on_progress({"files_read": self.files_read})
        return sketches

    def _count(self, group: Bin) -> None:
        self.files_read += len(group.slices)
        self.bytes_read += sum(file.bytes for file in group.slices)
        self.rows_read += sum(file.records for file in group.slices)

    def _begun(self) -> tuple[list[ThetaSketch], list[Bin]]:
        """Return the sketches to begin with, and what is to be read beside them."""
        known = {file.snapshot_id for file in self.base.statistics}
        since = newer_than(self.base, self.snapshot.snapshot_id, known)
        if since is not None and all(snapshot.operation in (ADDING, UNCHANGING) for snapshot in since[1]):
            start, newer = since
            if (sketches := self._sketches_of(start)) is not None:
                appended = [self._appended(snapshot) for snapshot in newer if snapshot.operation == ADDING]
                if None not in appended:
                    self.how = f"from the sketches of snapshot {start.snapshot_id} and what was appended since"
                    new = [file for files in appended for file in files or ()]
                    return sketches, self._bins(self._without_rewritten(new, newer, sketches), ())
        self.how = "reading all live rows"
        listed = self.files.manifests(self.snapshot)
        live = LiveFiles(self.files, self.base, self._check)
        deletes = live.deletes(listed)
        for spec_id in {delete.partition[0] for delete in deletes}:
            live.require_comparable_partitions(spec_id, listed)
        return [ThetaSketch() for _ in self.fields], self._bins(live.data(listed, frozenset(), _NEWEST, None), deletes)

    def _sketches_of(self, start: Snapshot) -> list[ThetaSketch] | None:
        """Return the sketches that Icewright made of the snapshot; None unless all columns have one of their type.

        Others may hash values in another way, as Spark does with UUIDs.
        """
        file = next(file for file in self.base.statistics if file.snapshot_id == start.snapshot_id)
        try:
            blobs = {
                (blob["fields"][0], blob.get("properties", {}).get(_TYPE)): blob
                for blob in puffin_blobs(self.files, file.path, file.length)
                if blob["type"] == THETA
            }
            own = [blobs.get((field["id"], field["type"])) for field in self.fields]
            return (
                [
                    ThetaSketch.from_bytes(self.files.read_range(file.path, blob["offset"], blob["length"]))
                    for blob in own
                    if blob is not None
                ]
                if None not in own
                else None
            )
        except (MetadataUnreadable, ValueError, LookupError):
            return None  # a file that is missing or broken is of no use: all rows are read

    def _appended(self, snapshot: Snapshot) -> list[LiveData] | None:
        """Return the live data files that the snapshot added; None unless all that it added are found."""
        listed = self.files.manifests(snapshot)
        own = [m for m in listed if m.content is ManifestContent.DATA and m.added_snapshot_id == snapshot.snapshot_id]
        added = self._paths(own, snapshot, ADDED)
        live = LiveFiles(self.files, self.base, self._check).data(own, frozenset(), _NEWEST, None)
        still_live = [file for file in live if file.path in added]
        return still_live if str(len(still_live)) == snapshot.summary.get("added-data-files") else None

    def _without_rewritten(
        self, new: Sequence[LiveData], newer: Sequence[Snapshot], sketches: Sequence[ThetaSketch]
    ) -> list[LiveData]:
        """Return the files that no compaction of this process has read; add what it counted of the others."""
        replaced: set[str] = set()
        for snapshot in newer if new else ():
            if snapshot.operation == UNCHANGING:
                replaced |= self._paths(self.files.manifests(snapshot), snapshot, DELETED)
        columns = [(field["id"], field["type"]) for field in self.fields]
        known, counted = self.rewritten.of({file.path for file in new}, replaced, columns)
        for sketch, other in zip(sketches, counted, strict=True):
            sketch.merge(other)
        if known:
            self.how += f", {count(len(known), 'file')} of it as compaction read them"
        return [file for file in new if file.path not in known]

    def _paths(self, listed: Sequence[ManifestFile], snapshot: Snapshot, status: int) -> set[str]:
        """Return the data files to whose entries the snapshot itself gave this status."""
        own = [m for m in listed if m.content is ManifestContent.DATA and m.added_snapshot_id == snapshot.snapshot_id]
        entries = self.files.entries(own)
        columns = (entries[name].to_pylist() for name in ("path", "status", "snapshot_id"))
        return {path for path, found, by in zip(*columns, strict=True) if (found, by) == (status, snapshot.snapshot_id)}

    def _bins(self, data: Iterable[LiveData], deletes: Sequence[LiveDelete]) -> list[Bin]:
        """Return the files of each partition with their deletes: a delete file of a partition is read once."""
        if unread := next((d for d in deletes if d.is_encrypted or d.format not in ("PARQUET", "PUFFIN")), None):
            raise UnsupportedByArrow(f"{unread.path} is encrypted, or neither Parquet nor Puffin")
        by_file, by_partition, everywhere = _by_scope(self.base, deletes)
        groups: dict[Partition, list[LiveData]] = {}
        for file in data:
            if not file.is_plain_parquet:
                raise UnsupportedByArrow(f"{file.path} is encrypted, or not Parquet")
            groups.setdefault(file.partition, []).append(file)
        bins = []
        for partition, members in groups.items():
            near = [*by_partition.get(partition, ()), *everywhere]
            slices = [_slice(file, [*by_file.get(file.path, ()), *near]) for file in members]
            bins.append(Bin.for_reading(slices, partition_constants(self._layout, self.base, members[0])))
        return bins

    @cached_property
    def _layout(self) -> Layout:
        older = other_columns(self.files, self.base, {field["id"] for field in self.fields})
        schema = {"type": "struct", "fields": self.fields}
        return Layout.for_reading(schema, older, self.base.properties, self.step.memory_bytes)

    @cached_property
    def _opener(self) -> Opener:
        return service_opener(self.files, self.base.location)

    def _check(self) -> None:
        self.request.check()
        progress()


def _by_scope(
    base: TableMetadata, deletes: Iterable[LiveDelete]
) -> tuple[dict[str, list[LiveDelete]], dict[Partition, list[LiveDelete]], list[LiveDelete]]:
    """Return the deletes of one data file by its path, those of a partition, and those of all partitions."""
    by_file: dict[str, list[LiveDelete]] = {}
    by_partition: dict[Partition, list[LiveDelete]] = {}
    everywhere = []
    for delete in deletes:
        if delete.only_file is not None:
            by_file.setdefault(delete.only_file, []).append(delete)
        elif delete.content == EQUALITY_DELETES and delete.partition[0] in base.global_specs:
            everywhere.append(delete)
        else:
            by_partition.setdefault(delete.partition, []).append(delete)
    return by_file, by_partition, everywhere


def _slice(file: LiveData, near: Sequence[LiveDelete]) -> FileSlice:
    """Return a data file as a whole slice with the deletes that apply to it (spec, Scan Planning)."""
    vectors = [delete for delete in near if delete.is_vector and delete.applies_to(file)]
    positions = vectors or [delete for delete in near if delete.applies_to(file)]  # a vector stands for all of them
    equality = [delete for delete in near if delete.content == EQUALITY_DELETES and delete.sequence > file.sequence]
    return file_slice(file, [*positions, *equality])


@dataclass
class _Writing:
    """The statistics files of a snapshot, and their commit."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    request: StepRequest
    snapshot: Snapshot
    written_bytes: int = field(default=0, init=False)
    _paths: list[str] = field(default_factory=list, init=False)

    def run(
        self, fields: Sequence[Mapping[str, Any]], sketches: Sequence[ThetaSketch], partitions: bytes | None
    ) -> None:
        """Write the files and set them; no file is left when the commit fails, unless the table may refer to it."""
        with undone_unless_committed(lambda: self.files.delete(self._paths, 1)):
            statistics = self._sketch_file(fields, sketches) if sketches else None
            of_partitions = None if partitions is None else self._file("partition-stats-{}-{}.parquet", partitions)
            self._commit(SetStatistics(self.snapshot.snapshot_id, statistics, of_partitions))

    def _sketch_file(self, fields: Sequence[Mapping[str, Any]], sketches: Sequence[ThetaSketch]) -> Mapping[str, Any]:
        about = [
            {
                "type": THETA,
                "fields": [field["id"]],
                "snapshot-id": self.snapshot.snapshot_id,
                "sequence-number": self.snapshot.sequence_number,
                "properties": {"ndv": str(sketch.estimate), _TYPE: field["type"]},
            }
            for field, sketch in zip(fields, sketches, strict=True)
        ]
        puffin = puffin_file(zip((sketch.to_bytes() for sketch in sketches), about, strict=True))
        file = self._file("{}-{}.stats", puffin.content)
        return {**file, "file-footer-size-in-bytes": puffin.footer_bytes, "blob-metadata": about}

    def _file(self, name: str, content: bytes) -> Mapping[str, Any]:
        base = self.request.base
        folder = metadata_folder(base.location, base.properties)
        path = f"{folder}/{name.format(self.snapshot.snapshot_id, uuid4())}"
        self._paths.append(path)
        self.files.write(path, content)
        self.written_bytes += len(content)
        size = len(content)
        return {"snapshot-id": self.snapshot.snapshot_id, "statistics-path": path, "file-size-in-bytes": size}

    def _commit(self, change: SetStatistics) -> None:
        """Commit on top of what writers commit meanwhile. Raises `CommitConflict` when the snapshot is gone."""
        base = metadata = self.request.base
        for attempt in range(1, ATTEMPTS + 1):
            self.request.check()
            try:
                after = commit(self.catalog, metadata, change)
            except CommitConflict:
                now = self.catalog.load(base.ref)
                same = now.table_uuid == base.table_uuid and self.snapshot.snapshot_id in now.by_id
                if attempt == ATTEMPTS or not same:
                    raise
                self.request.on_progress({"commits_lost": attempt})
                self.clock.sleep(backoff(attempt).total_seconds())
                metadata = self.catalog.load(base.ref)
            else:
                self._verify(metadata, after, change)
                return

    def _verify(self, before: TableMetadata, after: TableMetadata, change: SetStatistics) -> None:
        broken = identity_violations(before, after) + ref_violations(before, after, ())
        broken += [f"snapshot {gone} is gone" for gone in sorted(before.by_id.keys() - after.by_id.keys())]
        present = {file.path for file in (*after.statistics, *after.partition_statistics)}
        broken += [f"{path} was not set" for path in sorted(change.paths - present)]
        if broken:
            raise InvariantViolated(f"{before.ref}: compute_statistics broke the table: {'; '.join(broken)}")
