"""The Files port over storage and the manifest cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl
import pyarrow as pa

from icewright.adapters.files.avro import parsed, translating_errors
from icewright.adapters.files.bounds import aged, measured
from icewright.adapters.files.facts import rewrite_candidates, table_facts
from icewright.adapters.files.inventory import read_inventory
from icewright.adapters.files.manifests import ManifestReader, listed
from icewright.adapters.files.read_ahead import read_ahead
from icewright.adapters.lru_cache import LRUCache
from icewright.adapters.metadata.parsing import read_history
from icewright.adapters.read_limits import read_limits
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import local_path, split
from icewright.core.places import Spelling
from icewright.core.restore import TableHistory
from icewright.core.runs import FileAction
from icewright.core.steps import ConvertEqualityDeletes, ExpireRows, RewriteDataFiles, RewritePositionDeletes
from icewright.core.table import ManifestFile, Snapshot, TableFacts, TableMetadata, Thresholds
from icewright.ports import AvroFile, DeleteReport, FileStat, SizeLimit, Storage, ignore
from icewright.ports.memory import ROOM
from icewright.ports.work import catalog_context

_ROOT = 2  # slashes of the topmost folder of a store
_MAX_FOLDERS = 200  # folders stored for a table; of more folders, their parents are stored
_SPELLING = Spelling()
_FACTS_CACHE_BYTES = 32_000_000  # bytes, about, with the metadata that they are of
_PARTITION = 400
_ENTRIES_CACHE_BYTES = 64_000_000  # bytes
_TIMES_INFLATED = 5  # manifests in memory, against their length
_OUTSIDE_CACHE_BYTES = 8_000_000  # bytes, about


def outside_folders(paths: pl.Series, metadata: TableMetadata, canonical: Callable[[str], str]) -> tuple[str, ...]:
    """Return the folders, without a slash at the end, of paths in neither the table's location nor its write paths.

    `canonical` resolves links: a link below the location may lead into another table's folder.
    """
    folders = _located(paths, metadata).str.extract(r"^(.*)/[^/]*$").drop_nulls().unique().sort()
    real = {folder: canonical(folder) for folder in folders}
    own = [canonical(place).rstrip("/") + "/" for place in metadata.roots]
    # nearly all files are spelt as the places are
    beyond = [
        folder
        for folder, leads in real.items()
        if "/../" in f"{leads}/" or not any(f"{leads}/".startswith(place) for place in own)
    ]
    places = [_SPELLING.place(place) for place in own]
    outside = [f for f in beyond if not any(_SPELLING.place(real[f]).within(place) for place in places)]
    return _merged_upwards([*outside, *links_resolved({folder: real[folder] for folder in outside})])


def links_resolved(real: Mapping[str, str]) -> list[str]:
    """Return where folders lead that are links: the disk that has a link may be away when somebody deletes there."""
    return [leads.rstrip("/") for folder, leads in real.items() if _SPELLING.place(leads) != _SPELLING.place(folder)]


def _located(paths: pl.Series, metadata: TableMetadata) -> pl.Series:
    """Return the paths, relative ones from the table's location on, and those without a bucket in the table's own."""
    given = split(metadata.metadata_location)
    bucket = "" if local_path(metadata.metadata_location) is not None else f"{given.scheme}://{given.authority}"
    path = pl.col("path")
    below = pl.lit(f"{metadata.location.rstrip('/')}/") + path
    whole = pl.when(path.str.contains(r"^[A-Za-z][A-Za-z0-9+.-]*:")).then(path)
    return (
        pl.DataFrame({"path": paths}, schema={"path": pl.String})
        .select(whole.when(path.str.starts_with("/")).then(pl.lit(bucket) + path).otherwise(below))
        .to_series()
    )


def _merged_upwards(folders: list[str]) -> tuple[str, ...]:
    """Return the folders, or their parents where there are too many: the claim gets wider, never narrower."""
    while len(folders) > _MAX_FOLDERS:
        above = sorted(
            {folder.rpartition("/")[0] for folder in folders if _SPELLING.place(folder).folder.count("/") > _ROOT}
        )
        if not above or above == folders:
            break
        folders = above
    return tuple(folders)


@dataclass(frozen=True)
class IcebergFiles:
    """The TableFiles port over a storage and a manifest reader."""

    storage: Storage
    reader: ManifestReader
    _facts: LRUCache[tuple[str, str, int | None, Thresholds], TableFacts] = field(
        default_factory=lambda: LRUCache(_FACTS_CACHE_BYTES, _weight), init=False
    )
    _entries: LRUCache[tuple[ManifestFile, ...], pa.Table] = field(
        default_factory=lambda: LRUCache(_ENTRIES_CACHE_BYTES, lambda table: table.nbytes), init=False
    )
    _outside: LRUCache[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=lambda: LRUCache(_OUTSIDE_CACHE_BYTES, lambda folders: 200 + sum(map(len, folders))), init=False
    )

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        return self.storage.read(path, limit)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.storage.read_range(path, start, length)

    def write(self, path: str, content: bytes | Iterator[bytes]) -> None:
        self.storage.write(path, content)

    def copy(self, source: str, target: str, length: int) -> None:
        self.storage.copy(source, target, length)

    def size(self, path: str) -> int | None:
        return self.storage.size(path)

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        return self.storage.stat(paths, concurrency)

    def time(self, location: str) -> datetime:
        return self.storage.time(location)

    def canonical(self, folder: str) -> str:
        return self.storage.canonical(folder)

    def canonicals(self, folders: Iterable[str]) -> Mapping[str, str]:
        return self.storage.canonicals(folders)

    def delete(
        self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None] | None = None
    ) -> DeleteReport:
        return self.storage.delete(paths, concurrency, found)

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        self.storage.tidy(paths, stop)

    def listing(
        self, location: str, unnamed: Callable[[str], None] = ignore, known: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        return self.storage.listing(location, unnamed, known)

    def inventory(self, path: str, location: str, unnamed: Callable[[str], None] = ignore) -> Iterator[pa.RecordBatch]:
        return read_inventory(self.storage, path, location, unnamed)

    def facts(self, metadata: TableMetadata, thresholds: Thresholds) -> TableFacts:
        """Return the facts that the manifests of the current snapshot give.

        A job needs the same facts several times: the last results are cached, as neither metadata nor manifests change.
        """
        key = (metadata.metadata_location, metadata.table_uuid, metadata.current_snapshot_id, thresholds)
        facts = self._facts.get(key)
        if facts is None or facts.metadata is not metadata:
            with catalog_context(metadata.ref.catalog):
                facts = self._counted(metadata, thresholds)
            self._facts.put(key, facts)
        return facts

    def history(self, metadata: TableMetadata) -> TableHistory:
        with catalog_context(metadata.ref.catalog):
            content = self.storage.read(metadata.metadata_location)
        return read_history(content, metadata.metadata_location)

    def _counted(self, metadata: TableMetadata, thresholds: Thresholds) -> TableFacts:
        snapshot = metadata.current_snapshot
        if snapshot is None:
            if metadata.current_snapshot_id is not None:
                raise MetadataUnreadable(f"{metadata.metadata_location}: the current snapshot is not in it")
            return TableFacts(metadata, thresholds, (), (), delete_files=0, deleted_rows=0)
        manifests = self.manifests(snapshot)
        ROOM.reserve(_TIMES_INFLATED * sum(manifest.length for manifest in manifests))
        measures = measured(self.reader, metadata, manifests, thresholds)
        return table_facts(metadata, thresholds, manifests, self.entries(manifests), measures)

    def candidates(
        self, metadata: TableMetadata, step: RewriteDataFiles | RewritePositionDeletes | ConvertEqualityDeletes
    ) -> tuple[FileAction, ...]:
        snapshot = metadata.current_snapshot
        if snapshot is None:
            return ()
        with catalog_context(metadata.ref.catalog):
            return rewrite_candidates(metadata, self.entries(self.manifests(snapshot)), step)

    def aged(self, metadata: TableMetadata, step: ExpireRows) -> tuple[FileAction, ...]:
        snapshot = metadata.current_snapshot
        with catalog_context(metadata.ref.catalog):
            return () if snapshot is None else aged(self.reader, metadata, self.manifests(snapshot), step)

    def avro(self, path: str) -> AvroFile:
        (file,) = self.avros([path])
        if isinstance(file, MetadataUnreadable):
            raise file
        return file

    def avros(self, paths: Sequence[str]) -> Iterator[AvroFile | MetadataUnreadable]:
        limit = read_limits().manifest

        def read(path: str) -> bytes | MetadataUnreadable:
            try:
                return self.storage.read(path, limit)
            except MetadataUnreadable as error:
                return error

        for path, content in zip(paths, read_ahead(read, paths), strict=True):
            yield content if isinstance(content, MetadataUnreadable) else _avro_file(path, content)

    def manifests(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        return self.reader.manifests(snapshot)

    def outside(self, metadata: TableMetadata, snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
        """Return the folders outside the table's own places in which files lie that the snapshots need.

        Where the places are links, so is what these lead to now. Lists whose files all lie inside, and manifests, are
        read once.
        """

        def key(path: str | None, snapshot_id: int) -> tuple[str, ...]:
            return (path or "", str(snapshot_id), *metadata.roots)

        unread = [s for s in snapshots if self._outside.get(key(s.manifest_list, s.snapshot_id)) is None]
        listed_manifests = listed(self.reader.manifest_lists(unread))
        manifests = {key(m.path, m.added_snapshot_id): m for m in listed_manifests}
        paths = [*(m.path for m in manifests.values()), *(s.manifest_list for s in snapshots if s.manifest_list)]
        paths += [s.path for s in (*metadata.statistics, *metadata.partition_statistics)]
        folders_of_files = dict.fromkeys(links_resolved({place: self.canonical(place) for place in metadata.roots}))
        folders_of_files |= dict.fromkeys(outside_folders(pl.Series(paths, dtype=pl.String), metadata, self.canonical))
        folders_of = {name: self._outside.get(name) for name in manifests}
        fresh = [name for name, folders in folders_of.items() if folders is None]
        for name, folders in zip(fresh, self._outside_of(metadata, [manifests[m] for m in fresh]), strict=True):
            self._outside.put(name, folders)
            folders_of[name] = folders
        folders_of_files |= dict.fromkeys(folder for folders in folders_of.values() for folder in folders or ())
        for snapshot in unread if not folders_of_files else ():
            if snapshot.manifest_list is not None:
                self._outside.put(key(snapshot.manifest_list, snapshot.snapshot_id), ())
        return tuple(folders_of_files)

    def _outside_of(self, metadata: TableMetadata, manifests: Sequence[ManifestFile]) -> Iterator[tuple[str, ...]]:
        """Yield, for each manifest, the folders outside the table's own places in which its live files lie."""
        outside: dict[int, tuple[str, ...]] = {}
        for frame in self.reader.live_files(manifests):  # each has whole manifests
            if outside_folders(frame["path"], metadata, self.canonical):  # of most tables none is outside
                for (number,), own in frame.group_by("manifest"):
                    outside[number] = outside_folders(own["path"], metadata, self.canonical)
        yield from (outside.get(number, ()) for number in range(len(manifests)))

    def planning_seconds(self, snapshot: Snapshot) -> float:
        """Return the seconds that reading the metadata for a full scan takes."""
        started = time.perf_counter()
        self.reader.plan(snapshot)
        return time.perf_counter() - started

    def manifest_lists(self, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pa.Table:
        return self.reader.manifest_lists(snapshots, totals=totals).to_arrow()

    def entries(self, manifests: Sequence[ManifestFile]) -> pa.Table:
        """Return the entries of the manifests, from memory when the last calls requested the same manifests.

        Expiring snapshots changes the metadata and no manifest of the current snapshot.
        """
        key = tuple(manifests)
        entries = self._entries.get(key)
        if entries is None:
            entries = self.reader.entries(manifests)
            self._entries.put(key, entries)
        return entries

    def live_files(self, manifests: Sequence[ManifestFile], *, spare_cores: int = 0) -> Iterator[pa.RecordBatch]:
        for frame in self.reader.live_files(manifests, spare_cores=spare_cores):
            yield from frame.to_arrow(compat_level=pl.CompatLevel.newest()).to_batches()  # copies no text


def _avro_file(path: str, content: bytes) -> AvroFile | MetadataUnreadable:
    try:
        file = parsed(path, content)
        with translating_errors([path]):
            return AvroFile(file.meta, file.records, file.body())
    except MetadataUnreadable as error:
        return error


def _weight(facts: TableFacts) -> int:
    return facts.metadata.metadata_length + _PARTITION * len(facts.partitions)
