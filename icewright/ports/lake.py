"""The ports of catalogs, storage and table files, and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from icewright.core.errors import MetadataTooLarge, MetadataUnreadable
from icewright.core.restore import TableHistory
from icewright.core.runs import FileAction
from icewright.core.steps import ConvertEqualityDeletes, ExpireRows, RewriteDataFiles, RewritePositionDeletes
from icewright.core.table import ManifestFile, Snapshot, SnapshotRef, TableFacts, TableMetadata, TableRef, Thresholds

if TYPE_CHECKING:
    import pyarrow as pa


class Clock(Protocol):
    """The only source of the time."""

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait, as back-off between attempts."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A table as the catalog lists it: its name and the metadata file that is current."""

    ref: TableRef
    metadata_location: str


@dataclass(frozen=True, slots=True)
class AddSnapshot:
    """Make a new snapshot the head of a branch. `snapshot` is the JSON of the spec."""

    snapshot: Mapping[str, Any]
    branch: str


@dataclass(frozen=True, slots=True)
class RemoveSnapshots:
    """Drop snapshots, the named refs, the statistics of the snapshots, and specs and schemas that nothing uses."""

    snapshot_ids: frozenset[int]
    refs: frozenset[str]
    specs: frozenset[int] = frozenset()
    schemas: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RestoreSnapshots:
    """Restore the objects that an expiry removed, each from its JSON; objects that exist stay unchanged.

    The current snapshot and main do not move. A ref whose name another writer has used since stays unchanged.
    """

    table_uuid: str
    snapshots: tuple[Mapping[str, Any], ...]
    refs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    statistics: tuple[Mapping[str, Any], ...] = ()
    partition_statistics: tuple[Mapping[str, Any], ...] = ()
    specs: tuple[Mapping[str, Any], ...] = ()
    schemas: tuple[Mapping[str, Any], ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()  # removed entries of the snapshot log, and the next entry, which stayed

    def to_json(self) -> dict[str, Any]:
        """Return the change as values that JSON can represent."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RestoreSnapshots:
        """Return the change from the values of `to_json`."""
        arguments: dict[str, Any] = {
            n: tuple(value) if isinstance(value, list) else value for n, value in values.items()
        }
        return cls(**arguments)


@dataclass(frozen=True, slots=True)
class SetRefs:
    """Set branches and tags, main among them, to snapshots of the table, and drop others, all in one commit."""

    refs: tuple[SnapshotRef, ...]
    removed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SetStatistics:
    """Give a snapshot of the table its statistics files, in place of those that it has. Each is the JSON of the spec.

    Raises `Refused` when the snapshot is gone.
    """

    snapshot_id: int
    statistics: Mapping[str, Any] | None = None
    partition_statistics: Mapping[str, Any] | None = None

    @property
    def paths(self) -> frozenset[str]:
        """Return the paths of the files."""
        files = (self.statistics, self.partition_statistics)
        return frozenset(str(file["statistics-path"]) for file in files if file is not None)


Change = AddSnapshot | RemoveSnapshots | RestoreSnapshots | SetRefs | SetStatistics


@dataclass(frozen=True, slots=True)
class VendedCredentials:
    """Storage properties with credentials that a catalog vends for files below a prefix, valid for a limited time."""

    prefix: str
    properties: Mapping[str, str] = field(repr=False)
    expires: datetime | None = None


class Catalog(Protocol):
    """A catalog of tables. Raises `CatalogUnavailable` when it does not answer, and never returns a partial answer."""

    @property
    def name(self) -> str:
        """Return the name under which engines know it too."""

    def pointers(self) -> Sequence[Pointer]:
        """Return every table, views left out, by the cheapest means that the catalog has. Whole or not at all."""

    def load(self, ref: TableRef) -> TableMetadata:
        """Return the current metadata. Raises `TableNotFound`, `MetadataUnreadable`."""

    def neighbours(self) -> Sequence[Pointer]:
        """Return tables of the same server or database that this catalog does not list, under their catalogs' names.

        Complete or an error, as `pointers`. When this is called before `pointers`, a table that moves into this catalog
        meanwhile is in at least one of both results. Tables that a server does not show, such as other warehouses of a
        REST server, are missing.
        """

    def neighbour(self, pointer: Pointer) -> TableMetadata:
        """Return the metadata file of one of the neighbours, read where it lies. Raises `MetadataUnreadable`."""

    def unrestorable(self, base: TableMetadata, change: RestoreSnapshots) -> str:
        """Return what the change cannot put back into `base` as it was, in words; blank when all of it returns.

        Begins with `nothing:` when the commit would be refused. Raises `MetadataUnreadable`.
        """

    def commit(self, base: TableMetadata, change: Change) -> TableMetadata:
        """Apply `change` to exactly `base` and return the new metadata; `base` itself when there is nothing to change.

        Compare-and-set: raises `CommitConflict` when `base` is not current any more, and `CommitStateUnknown` when the
        reply was lost. Every ref or snapshot that others created or moved since `base` makes it a conflict. Where the
        catalog cannot compare everything, objects that the commit dropped are restored before the conflict is raised;
        if that fails too, `InvariantViolated` is raised, and no file may be deleted.
        """


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table of another format, such as Hive's or Delta Lake's, as a metastore lists it beside Iceberg's tables."""

    ref: TableRef
    locations: tuple[str, ...]  # folders of its files; those of single partitions are missing


@runtime_checkable
class ListsDatasets(Protocol):
    """A catalog that lists tables of other formats too: their engines read all files in their folders."""

    def listing(self) -> tuple[Sequence[Pointer], Sequence[Dataset]]:
        """Return what `pointers` does, and the tables of all other formats that have a folder. Whole or not at all."""


@runtime_checkable
class Restoring(Protocol):
    """A catalog whose server may drop, with a snapshot that a commit removes, a ref that somebody sets on it just then.

    `commit` restores such a ref; when the process dies in between, `restore` does it.
    """

    def restore(self, ref: TableRef, location: str, change: RemoveSnapshots) -> Sequence[str]:
        """Restore refs that the commit of a change planned on the metadata at `location` dropped; return their names.

        Raises `InvariantViolated` when the refs are unknown or cannot be restored: no file may be deleted then.
        """


@runtime_checkable
class Replying(Protocol):
    """A catalog whose server replies with the metadata itself, which `load` returns, and with the name of its file."""

    def load_from_file(self, metadata: TableMetadata) -> TableMetadata:
        """Return the metadata as its file has it, instead of the reply. Raises `MetadataUnreadable`."""


@runtime_checkable
class Registering(Protocol):
    """A catalog that takes a table by its metadata file."""

    def require_namespace(self, ref: TableRef) -> None:
        """Raise `Refused` when the catalog has no namespace for a table, and `CatalogUnavailable`."""

    def register(self, ref: TableRef, metadata_location: str, *, replace: bool = False) -> None:
        """Register a table. `replace`: the entry of this name goes before, and its files stay.

        Raises `Refused` when there is such a table, unless it is replaced, or no such namespace, and
        `CatalogUnavailable`: then the table may be registered, or its entry gone.
        """


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """The result of a bulk deletion: deleted paths (with those that did not exist), and failures by path."""

    deleted: tuple[str, ...]
    failures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AvroFile:
    """The header of an Avro file, and its records inflated, one after the other."""

    meta: Mapping[str, bytes]
    records: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file as `stat` sees it. `modified` is what `listing` reports: None where nobody knows it, as of a link."""

    bytes: int
    modified: datetime | None


def ignore(_: str) -> None:
    """Do nothing with a path that is left out of a listing."""


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The bytes that one file may have, as stored and inflated, and the setting that says so."""

    setting: str
    max_bytes: int

    def check(self, path: str, length: int, described: str = "the file has") -> None:
        """Raise `MetadataTooLarge` for more bytes than the limit."""
        if length > self.max_bytes:
            raise MetadataTooLarge(path, f"{described} {length} bytes, more than {self.max_bytes}", self.setting)


class Storage(Protocol):
    """Files by their full paths. Raises `StorageUnavailable`; what is missing or broken raises `MetadataUnreadable`."""

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        """Return the content of a regular file.

        Raises `FileMissing`, `StorageUnavailable`, `AccessDenied`, `MetadataUnreadable` for what is no regular file,
        and `MetadataTooLarge` for a file above the limit, by default that of a metadata.json.
        """

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes of a regular file from an offset inside it; fewer where the file ends before.

        Raises `FileMissing`, `StorageUnavailable`, `AccessDenied`, and `MetadataUnreadable` for no regular file.
        """

    def write(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Write a new file, perhaps from parts; it is durable, and there at all, when the call returns.

        Raises `StorageUnavailable`, and what the parts raise.
        """

    def copy(self, source: str, target: str, length: int) -> None:
        """Copy a file of this length to a new path, within a bucket without reading it; durable as by `write`.

        Raises the errors of `read_range` and `write`, and `MetadataUnreadable` when the file has another length.
        """

    def size(self, path: str) -> int | None:
        """Return the file's length in bytes, None when there is no such file."""

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return length and time of many files, by few requests; None when there is no such file.

        A folder or a link of a file system has no time: the name is in use, so the file does not count as deleted. A
        path that storage cannot address by name (see `listing`) is missing from the result, and `delete` reports why.
        Raises `AccessDenied`, and `StorageUnavailable` when storage does not answer for one of the others.
        """

    def time(self, location: str) -> datetime:
        """Return the storage's own clock, from a hidden file that is written below the location and deleted again.

        Raises `StorageUnavailable`, also when the file cannot be deleted, `AccessDenied`, and `Refused` where writing
        is not allowed.
        """

    def canonical(self, folder: str) -> str:
        """Return the folder without the links that lead to it; as it is where storage knows no links."""

    def canonicals(self, folders: Iterable[str]) -> Mapping[str, str]:
        """Return `canonical` of each of many folders; folders that lie in the same one share its cost."""

    def delete(
        self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None] | None = None
    ) -> DeleteReport:
        """Delete files; one that is missing already counts as deleted.

        A path that storage cannot address exactly as spelt is a failure: no other file is deleted in its place. So is
        one of `found`, as files were looked at, that is another file by now. Object stores, in which a look takes as
        long as a deletion, look before second attempts alone.
        """

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Remove folders that the deletion of `paths` left empty, below `stop`; nothing to do on object stores."""

    def listing(
        self, location: str, unnamed: Callable[[str], None] = ignore, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Return all files below a location: `path` (string), `bytes` (int64), `modified` (timestamp, null = unknown).

        In no order, and one may come twice. Some `known` paths let an object store list what lies between them at once.

        Entries that are no files or cannot be addressed by name are left out and passed to `unnamed` as printable text:
        directory markers and keys with an empty part, a part `.` or `..` or a control character in object stores, names
        that are not UTF-8 in file systems. Object stores give times in whole seconds, as for a single object. Raises
        `FolderMissing` where a file system has no such folder; an object store has no folders.
        """


class TableFiles(Storage, Protocol):
    """Storage with the content of Iceberg's metadata files, parsed."""

    def inventory(self, path: str, location: str, unnamed: Callable[[str], None] = ignore) -> Iterator[pa.RecordBatch]:
        """Return the columns of `listing` from an inventory of the object store: a file or a folder of files."""

    def facts(self, metadata: TableMetadata, thresholds: Thresholds) -> TableFacts:
        """Return the facts that the manifests of the current snapshot give. Never returns partial facts."""

    def history(self, metadata: TableMetadata) -> TableHistory:
        """Return the log of main's snapshots, and all schemas, from the metadata file. Raises `MetadataUnreadable`."""

    def candidates(
        self, metadata: TableMetadata, step: RewriteDataFiles | RewritePositionDeletes | ConvertEqualityDeletes
    ) -> tuple[FileAction, ...]:
        """Return the files of the step's partitions that are rewritten: by its options, as Spark's planner does."""

    def aged(self, metadata: TableMetadata, step: ExpireRows) -> tuple[FileAction, ...]:
        """Return the data files that hold rows older than the step's day, as far as their bounds tell."""

    def avro(self, path: str) -> AvroFile:
        """Return the header and the decompressed records of an Avro file. Raises `MetadataUnreadable`."""

    def avros(self, paths: Sequence[str]) -> Iterator[AvroFile | MetadataUnreadable]:
        """Yield each of the Avro files, or why it cannot be read, in order.

        Where storage takes its time, the next ones are read meanwhile.
        """

    def manifests(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """Return the rows of the snapshot's manifest list."""

    def outside(self, metadata: TableMetadata, snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
        """Return the folders outside the table's location and write paths that hold files of the snapshots."""

    def planning_seconds(self, snapshot: Snapshot) -> float:
        """Return the seconds to read the metadata of a full scan past every cache: manifest list and manifests."""

    def manifest_lists(self, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pa.Table:
        """Return the manifests that the snapshots list, each once; the columns are the fields of `ManifestFile`.

        `totals`: a list that names fewer live files than its snapshot's summary counts is `MetadataUnreadable`.
        """

    def entries(self, manifests: Sequence[ManifestFile]) -> pa.Table:
        """Return the entries of the manifests, deleted ones too, with inherited values filled in.

        Columns: status, snapshot_id, sequence_number, content, path, format, partition (canonical text), records,
        bytes, referenced, content_bytes, spec_id, and manifest: the index of the manifest in `manifests`.
        """

    def live_files(self, manifests: Sequence[ManifestFile], *, spare_cores: int = 0) -> Iterator[pa.RecordBatch]:
        """Return the files that are live in the manifests, in bounded memory.

        Columns: path, bytes, content, format, and manifest: the index of the manifest in `manifests`. A path may come
        more than once. Complete or an error: an unreadable manifest ends the iteration by raising. `spare_cores` are
        left to what the caller does meanwhile.
        """
