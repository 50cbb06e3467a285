"""The parts of an Iceberg table that maintenance needs, with the names of the Iceberg spec."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from operator import le
from typing import Any

from icewright.core.errors import UsageError
from icewright.core.places import Spelling
from icewright.core.sizes import FileHistogram, SizeClass

_PLAIN = re.compile(r"[^.`\s*?]+")  # what needs no quotes: a bare wildcard makes a pattern of a name
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
MAIN = "main"
_SPELLING = Spelling()
FORMAT_V2 = 2  # the version from which on entries have sequence numbers, and rows are deleted by delete files
FORMAT_V3 = 3  # the version from which on position deletes are vectors, and rows have ids
# `write.folder-storage.path` is the older name of the first
WRITE_PATHS = ("write.data.path", "write.folder-storage.path", "write.object-storage.path", "write.metadata.path")


def split_name(text: str) -> tuple[str, ...]:
    """Return the parts of a dotted name; parts with dots are quoted with backticks. Empty for other text."""
    parts: list[str] = []
    position = 0
    while match := _PART.match(text, position):
        parts.append(match[1].replace("``", "`") if match[1] is not None else match[2])
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            break
        position += 1
    return ()


@dataclass(frozen=True, slots=True, order=True)
class TableRef:
    """A table's full name: `catalog.namespace.table`, namespaces nested by dots."""

    catalog: str
    namespace: tuple[str, ...]
    name: str

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the name from the catalog down to the table."""
        return (self.catalog, *self.namespace, self.name)

    def __str__(self) -> str:
        return ".".join(p if _PLAIN.fullmatch(p) else "`" + p.replace("`", "``") + "`" for p in self.parts)

    @classmethod
    def parse(cls, text: str) -> TableRef:
        """Read a name as people type it; a part that holds a dot, blank, backtick, `*` or `?` is quoted with backticks.

        Raises `UsageError` when the text is not at least `catalog.namespace.table`.
        """
        parts = split_name(text)
        if len(parts) >= 3:  # noqa: PLR2004 - catalog, namespace and table
            return cls(parts[0], parts[1:-1], parts[-1])
        remedy = "write catalog.namespace.table, and quote a part that holds a dot with backticks, as in lake.a.`b.c`"
        raise UsageError(f"{text!r} is not a table name: {remedy}")


class RefKind(enum.StrEnum):
    """The two kinds of snapshot references."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A branch or tag with its own retention (spec, Snapshot References)."""

    name: str
    kind: RefKind
    snapshot_id: int
    min_snapshots_to_keep: int | None = None
    max_snapshot_age: timedelta | None = None
    max_ref_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of the table."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    timestamp: datetime
    manifest_list: str | None
    manifests: tuple[str, ...] = ()  # format v1 may name the manifests here instead of a list
    operation: str | None = None
    summary: Mapping[str, str] = field(default_factory=dict)
    schema_id: int | None = None
    writer_properties: Mapping[str, str] = field(default_factory=dict)  # summary keys that Iceberg does not define


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partition spec."""

    source_id: int
    field_id: int
    name: str
    transform: str


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """How the files of one spec are partitioned."""

    spec_id: int
    fields: tuple[PartitionField, ...]

    @property
    def is_unpartitioned(self) -> bool:
        """Return whether its partition tuples tell nothing: there is no field, or all are void."""
        return all(field.transform == "void" for field in self.fields)


@dataclass(frozen=True, slots=True)
class StatisticsFile:
    """A Puffin statistics file or a partition statistics file."""

    snapshot_id: int
    path: str
    length: int


@dataclass(frozen=True)
class TableMetadata:
    """One metadata file, read. Immutable: a commit makes another one at another location."""

    ref: TableRef
    metadata_location: str
    metadata_length: int
    table_uuid: str
    location: str
    format_version: int
    last_updated: datetime
    last_sequence_number: int
    current_snapshot_id: int | None
    snapshots: tuple[Snapshot, ...]
    refs: tuple[SnapshotRef, ...]
    metadata_log: tuple[str, ...]
    statistics: tuple[StatisticsFile, ...]
    partition_statistics: tuple[StatisticsFile, ...]
    properties: Mapping[str, str]
    specs: tuple[PartitionSpec, ...]
    default_spec_id: int
    schema: Mapping[str, Any]  # the current schema as the spec's JSON
    sort_order: str | None  # the default sort order as SQL, None when unsorted
    schema_ids: tuple[int, ...] = ()
    sort_order_id: int = 0  # of the default sort order; 0 when unsorted
    log_since: datetime | None = None  # of the metadata log's oldest entry; None when there is no log

    @cached_property
    def by_id(self) -> Mapping[int, Snapshot]:
        """Return the snapshots by their id."""
        return {s.snapshot_id: s for s in self.snapshots}

    @cached_property
    def is_straight(self) -> bool:
        """Return whether each snapshot is the parent of the next and no younger, the last is current, no id repeats."""
        ids = [s.snapshot_id for s in self.snapshots]
        parents = [s.parent_id for s in self.snapshots]
        times = [s.timestamp for s in self.snapshots]
        lined = ids[-1:] == [self.current_snapshot_id] and parents[1:] == ids[:-1] and parents[0] not in ids
        return lined and len(self.by_id) == len(ids) and all(map(le, times, times[1:]))

    @cached_property
    def write_paths(self) -> tuple[str, ...]:
        """Return the folders outside the location to which the table properties send its files."""
        here = _SPELLING.place(self.location)
        named = (self.properties.get(name, "") for name in WRITE_PATHS)
        outside = {_SPELLING.place(path): path.rstrip("/") for path in named if path}
        return tuple(path for place, path in outside.items() if not place.may_lie_in(here))

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the location and the write paths outside of it, in which the table's files are looked for."""
        return (self.location, *self.write_paths)

    @property
    def metadata_folder(self) -> str:
        """Return the folder of the current metadata file, without a slash at its end."""
        return self.metadata_location.rpartition("/")[0]

    @property
    def folders(self) -> tuple[str, ...]:
        """Return all folders that are the table's own now: its metadata may lie elsewhere than its properties say."""
        return (*self.roots, self.metadata_folder)

    @property
    def current_snapshot(self) -> Snapshot | None:
        """Return the snapshot that a plain read of the table sees."""
        if self.snapshots and self.snapshots[-1].snapshot_id == self.current_snapshot_id:
            return self.snapshots[-1]  # nearly always, and no index is needed to find it
        return None if self.current_snapshot_id is None else self.by_id.get(self.current_snapshot_id)

    @cached_property
    def specs_by_id(self) -> Mapping[int, PartitionSpec]:
        """Return the partition specs by their id."""
        return {spec.spec_id: spec for spec in self.specs}

    @cached_property
    def global_specs(self) -> frozenset[int]:
        """Return the ids of the unpartitioned specs, whose equality deletes apply to all partitions."""
        return frozenset(spec.spec_id for spec in self.specs if spec.is_unpartitioned)

    def spec(self, spec_id: int) -> PartitionSpec:
        """Return the partition spec of this id. Raises `LookupError` when the table has none."""
        if (spec := self.specs_by_id.get(spec_id)) is None:
            raise LookupError(f"{self.metadata_location} has no partition spec {spec_id}")
        return spec


class ManifestContent(enum.IntEnum):
    """Whether a manifest lists data files or delete files."""

    DATA = 0
    DELETES = 1


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One row of a manifest list."""

    path: str
    length: int
    spec_id: int
    content: ManifestContent
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files: int
    existing_files: int
    deleted_files: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> ManifestFile:
        """Build a manifest file from plain values in the order of the fields."""
        path, length, spec_id, content, *rest = row
        return cls(path, length, spec_id, ManifestContent(content), *rest)

    @property
    def live_files(self) -> int:
        """Return the number of entries that are not deleted."""
        return self.added_files + self.existing_files


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The sizes in bytes by which files are called candidates; part of facts, so that facts say what they counted."""

    target_bytes: int
    min_bytes: int
    max_bytes: int
    manifest_target_bytes: int
    steps: tuple[tuple[int, int], ...] = ()  # bytes of a partition from which on it has this target, ascending
    order: tuple[str, ...] = ()  # columns by which files are told apart when they are sorted
    age: str | None = None  # column that says how old rows are

    def of(self, partition_bytes: int) -> Thresholds:
        """Return the sizes for a partition of so many bytes."""
        fitting = [target for least, target in self.steps if partition_bytes >= least]
        return self.scaled(fitting[-1]) if fitting else self

    def scaled(self, target: int) -> Thresholds:
        """Return the same shares of another target."""
        low, high = self.min_bytes * target // self.target_bytes, self.max_bytes * target // self.target_bytes
        return Thresholds(target, low, high, self.manifest_target_bytes, self.steps, self.order, self.age)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The counts in the manifests of one partition (spec id and partition tuple) of the current snapshot."""

    spec_id: int
    values: tuple[Any, ...]  # JSON-like values in the order of the spec's fields; None is a null value
    data_files: int
    data_bytes: int
    records: int
    candidate_files: int  # smaller than min_bytes or larger than max_bytes
    candidate_bytes: int
    histogram: FileHistogram
    position_delete_files: int  # that still apply to some data file
    equality_delete_files: int
    deletion_vectors: int
    mergeable_deletes: int  # position delete files that a rewrite would make fewer of, or vectors
    dangling_position_deletes: int  # apply to no data file any more
    dangling_equality_deletes: int
    deleted_rows: int  # positions and keys in delete files that still apply: an upper bound for positions
    max_deletes_of_a_file: int  # delete files that one data file's reader opens
    max_delete_ratio_of_a_file: float  # deleted rows by file-scoped deletes over its records
    last_write: datetime | None  # last commit that was not a rewrite; None when its snapshot is gone
    first_write: datetime | None = None  # the first of them that is known of the files that are live
    writes: int = 0  # how many of them are known
    lowest: int | None = None  # least bound of the column that says how old rows are, where files have bounds
    other_formats: int = 0  # data and delete files that are neither Parquet nor Puffin
    small: tuple[SizeClass, ...] = ()  # files smaller than min_bytes by size class, the smallest first
    overlap: float | None = None  # share of pairs of files that overlap in the sort order; None: not sorted, not known

    @property
    def key(self) -> tuple[int, tuple[Any, ...]]:
        """Return the spec id and the partition tuple."""
        return (self.spec_id, self.values)

    @property
    def delete_files(self) -> int:
        """Return the number of delete files of every kind that still apply."""
        return self.position_delete_files + self.equality_delete_files + self.deletion_vectors

    @property
    def dangling_delete_files(self) -> int:
        """Return the number of delete files that apply to no data file."""
        return self.dangling_position_deletes + self.dangling_equality_deletes

    @property
    def deleted_ratio(self) -> float:
        """Return the share of deleted rows among the rows in data files, at most 1."""
        return min(1.0, self.deleted_rows / self.records) if self.records else 0.0


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The manifests of the current snapshot that share a spec and a content."""

    spec_id: int
    content: ManifestContent
    manifests: int
    bytes: int
    entries: int
    small: int  # smaller than 75 % of the target
    large: int = 0  # of many entries and larger than twice the target
    deleted_entries: int = 0  # of files that the snapshots took out; their bounds keep values of erased rows


@dataclass(frozen=True, slots=True)
class SnapshotHold:
    """A need for a snapshot and all later ones, by a streaming reader or by a rewrite that began on it."""

    snapshot_id: int
    by: str
    until: datetime
    since: datetime | None = None  # when it was pinned; None: the policy pins it


@dataclass(frozen=True)
class TableFacts:
    """Everything that verdicts are made from: one metadata file and the manifests of its current snapshot."""

    metadata: TableMetadata
    thresholds: Thresholds
    partitions: tuple[PartitionFacts, ...]
    manifests: tuple[ManifestFacts, ...]
    delete_files: int  # dangling ones included; a global one counts once, however many partitions it applies to
    deleted_rows: int  # that live delete files name
    holds: tuple[SnapshotHold, ...] = ()
    reads: Mapping[int, datetime] = field(default_factory=dict)  # by snapshot, its last read that engines reported
    queries: float | None = None  # a day, as engines reported; None: nobody knows
    outside: tuple[str, ...] = ()  # folders outside the location and write paths in which live files lie
    sharing: tuple[TableRef, ...] = ()  # other tables whose location is this table's, lies in it or holds it
    unmerged: tuple[tuple[datetime, str], ...] = ()  # when other branches of the catalog went on from here, and which
    branches: Mapping[str, TableFacts] = field(default_factory=dict)  # those that compaction is asked to rewrite

    @property
    def ref(self) -> TableRef:
        """Return the table that the facts are of."""
        return self.metadata.ref

    @cached_property
    def data_files(self) -> int:
        """Return the number of live data files."""
        return sum([p.data_files for p in self.partitions])

    @cached_property
    def data_bytes(self) -> int:
        """Return the bytes of live data files."""
        return sum([p.data_bytes for p in self.partitions])

    @cached_property
    def records(self) -> int:
        """Return the number of rows in live data files, deleted ones included."""
        return sum([p.records for p in self.partitions])

    @cached_property
    def manifest_count(self) -> int:
        """Return the number of manifests of the current snapshot."""
        return sum(m.manifests for m in self.manifests)
