"""The search for rows of a predicate in every file that may hold rows of a table, whoever names the file.

Snapshots, waiting deletions and the listing of the table's places say which files there are; each is read whole, as
bounds may be wrong and a file that nobody names has none. What a writer commits meanwhile is read in another round.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.arrow.deletes import POSITION_COLUMNS, PUFFIN_MAGIC
from icewright.adapters.engines.arrow.live_files import delete_file, only_data_file
from icewright.adapters.engines.arrow.opening import Opener, StorageOpener, UnreadableFile
from icewright.adapters.engines.arrow.reading import BatchScan
from icewright.adapters.engines.arrow.resolve import UnsupportedByArrow, field_id
from icewright.adapters.engines.arrow.tasks import Bin, FileSlice, Layout
from icewright.adapters.engines.service.checked_entries import CheckedEntries
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.file_slices import constants_of, identity_values, reading_layout, slice_of
from icewright.adapters.engines.service.folders import files_below
from icewright.adapters.engines.service.footers import PARQUET_MAGIC
from icewright.adapters.engines.service.manifest_files import DATA, DELETED, EQUALITY_DELETES, POSITION_DELETES
from icewright.adapters.engines.service.manifest_list_files import read_list
from icewright.adapters.engines.service.reachable import reached, with_key
from icewright.adapters.engines.service.row_predicate import RowPredicate
from icewright.core import field_ids as ids
from icewright.core.avro_values import AVRO_MAGIC
from icewright.core.copying import MARKER
from icewright.core.erasure import ORPHAN_AGE, SNAPSHOT_AGE, FoundRows, RowPlace, RowSearchReport, SearchedFile
from icewright.core.errors import MetadataUnreadable, Refused
from icewright.core.integrity import FileFaultKind
from icewright.core.recovery import point_of
from icewright.core.table import MAIN, RefKind, TableMetadata, TableRef
from icewright.ports import Catalog, TableFiles
from icewright.ports.work import WorkerThreads

_CONCURRENCY = 4
_ROUNDS = 5
_DELETED_ROW = "row"  # optional in position delete files, deprecated with v3 (spec, Position Delete Files)
# what lies in a table's folders without rows in it
_WITHOUT_ROWS = rf"(\.metadata\.json(\.gz)?|\.crc|/version-hint\.text|/_SUCCESS|/{re.escape(MARKER)})$"
_MANIFEST, _MANIFEST_LIST = b'"manifest_entry"', b'"manifest_file"'
_HEAD_BYTES = 64 << 10  # holds the schema of an Avro file


@dataclass(frozen=True)
class Waiting:
    """The files that jobs are still to delete, and when the last of the jobs may begin to."""

    paths: AbstractSet[str]
    jobs: tuple[str, ...]
    until: datetime | None


@dataclass
class RowSearch:
    """One search of one table."""

    files: TableFiles
    catalog: Catalog
    text: str  # the predicate
    roots: Callable[[TableMetadata], tuple[Sequence[str], Sequence[str]]]  # folders to list, and notes on others
    waiting: Callable[[TableRef], Waiting]
    # files that were read whole, with their matching rows, by path
    counts: dict[str, tuple[SearchedFile, int]] = field(default_factory=dict, init=False)

    def run(self, ref: TableRef) -> RowSearchReport:
        """Read every file, and those that writers add meanwhile. Raises `Refused` while they never pause."""
        metadata = self.catalog.load(ref)
        for _ in range(_ROUNDS):
            report = _Round(self, metadata, self.waiting(ref)).run()
            fresh = self.catalog.load(ref)
            if fresh.metadata_location == metadata.metadata_location:
                return report
            metadata = fresh
        raise Refused(f"{ref}: writers commit faster than new files are read; search again when they rest")


@dataclass
class _Round:
    """One round of a search, over the state `metadata`."""

    search: RowSearch
    metadata: TableMetadata
    waiting: Waiting
    _unread: dict[str, str] = field(default_factory=dict, init=False)

    def run(self) -> RowSearchReport:
        metadata, files = self.metadata, self.search.files
        named = self._named
        known = {name for chunk in reached(files, metadata) for name in with_key(chunk, files.canonical)["key"]}
        with WorkerThreads(_CONCURRENCY) as pool:
            owned = list(pool.map(self._read_entry, (entries[0] for entries in named.values())))
            planned = {name: path for name, path in self._with_keys(self.waiting.paths) if name not in known}
            lost = dict(self._listed())
            waiting = list(planned.values())
            orphans = [path for name, path in self._with_keys(lost) if name not in known | planned.keys()]
            others = [*waiting, *orphans]
            rows = list(pool.map(self._read_file, others))
            found = [(*file, matching) for file, matching in zip(named.items(), owned, strict=True) if matching]
            found_rows = list(pool.map(lambda each: self._found(*each), found))  # reads those of main again
        found_rows += self._manifests_with_bounds()
        for path, matching in zip(others, rows, strict=True):
            if matching:
                place = RowPlace.WAITING_DELETION if path in waiting else RowPlace.ORPHAN
                found_rows.append(self._found_elsewhere(path, matching, place, lost.get(path)))
        counts = self.search.counts
        searched = tuple(counts[path][0] for path in sorted((*named, *others)) if path in counts)
        first, *earlier = (predicate for predicate, _ in self._predicates)
        return RowSearchReport(
            metadata.ref,
            metadata.table_uuid,
            metadata.metadata_location,
            first.text,
            first.columns,
            tuple(predicate.columns for predicate in earlier),
            tuple(self._places[0]),
            searched,
            tuple(sorted(found_rows, key=lambda found: found.path)),
            dict(sorted(self._unread.items())) | dict.fromkeys(self._places[1], "not listed"),
        )

    @cached_property
    def _places(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.search.roots(self.metadata)

    @cached_property
    def _entries(self) -> CheckedEntries:
        return CheckedEntries(self.search.files, self.metadata)

    @cached_property
    def _predicates(self) -> Sequence[tuple[RowPredicate, Layout]]:
        """Return what the predicate means, each with the layout of its columns."""
        schemas = self._entries.schemas
        return [
            (predicate, reading_layout(predicate.fields, schemas, self.metadata))
            for predicate in RowPredicate.every(self.search.text, schemas)
        ]

    @cached_property
    def _named(self) -> dict[str, list[ContentFile]]:
        """Return the entries of the files that hold rows or keys, by path."""
        named = defaultdict[str, list[ContentFile]](list)
        for file in self._content:
            if not file.is_vector and file.status != DELETED:
                named[file.path].append(file)
        return named

    @cached_property
    def _content(self) -> list[ContentFile]:
        content = list(self._entries.content_files(gone=True))
        unreadable = (fault for fault in self._entries.faults if fault.kind is FileFaultKind.UNREADABLE)
        self._unread |= {fault.path: fault.detail for fault in unreadable}  # what it names is not known
        return content

    @cached_property
    def _head(self) -> list[ContentFile]:
        """Return the live files of main, deletion vectors included."""
        head = self.metadata.current_snapshot_id
        live = (file for file in self._content if file.status != DELETED)
        return [file for file in live if head in self._entries.concern(file.manifest)]

    def _manifests_with_bounds(self) -> Iterator[FoundRows]:
        """Yield the manifests that keep matching values as bounds of files that are gone."""
        gone = Counter(file.manifest for file in self._content if file.status == DELETED and self._matches_bounds(file))
        for manifest, entries in gone.items():
            snapshots = set(self._entries.concern(manifest))
            places = {RowPlace.BOUNDS} if self.metadata.current_snapshot_id in snapshots else set()
            yield self._with_places(FoundRows(manifest, "manifest", entries, 0, (), ()), snapshots, places)

    def _matches_bounds(self, file: ContentFile) -> bool:
        """Return whether the bounds of an entry match; those of position deletes are paths and positions.

        A manifest with bounds that are no values of their columns is not read: they may be parts of any.
        """
        if file.content == POSITION_DELETES:
            return False
        spelt = file.mapped(ids.LOWER_BOUNDS), file.mapped(ids.UPPER_BOUNDS), identity_values(file, self.metadata)
        return self._match(file.manifest, file.path, *spelt)

    def _match(
        self, holder: str, path: str, lower: Mapping[int, Any], upper: Mapping[int, Any], partition: Mapping[int, Any]
    ) -> bool:
        """Return whether bounds or partition values that a file of metadata, the holder, keeps of a file match."""
        try:
            return any(each.matches_bounds(lower, upper, partition) for each, _ in self._predicates)
        except (ValueError, struct.error) as error:
            self._unread[holder] = f"a bound of {path} is no value of its column: {error}"
            return False

    def _listed(self) -> Iterator[tuple[str, datetime | None]]:
        """Yield all files in the table's places that may hold rows, with the times at which they were written."""
        for place in self._places[0]:
            for frame in files_below(self.search.files, place):
                with_rows = frame.filter(~pl.col("path").str.contains(_WITHOUT_ROWS))
                yield from with_rows.select("path", "modified").iter_rows()

    def _with_keys(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the paths with the keys by which two spellings of one path meet."""
        frame = pl.DataFrame({"path": list(paths)}, schema={"path": pl.String})
        yield from with_key(frame, self.search.files.canonical).select("key", "path").iter_rows()

    def _read_entry(self, file: ContentFile) -> int:
        """Return the number of matching rows, or keys, of a file that an entry names."""
        keys = frozenset[int](file.equality_ids) if file.content == EQUALITY_DELETES else None
        if keys is not None and all(keys.isdisjoint(each.columns.values()) for each, _ in self._predicates):
            return 0
        if file.format != "PARQUET" or file.is_encrypted:
            self._unread[file.path] = f"encrypted, or {file.format}: only Parquet is read"
            return 0
        if file.content == POSITION_DELETES:
            return self._read_file(file.path)
        return self._count(slice_of(file), constants_of(file, self.metadata, self._entries.types), keys)

    def _read_file(self, path: str) -> int:
        """Return the number of matching rows of a file by its own columns; position deletes have none."""
        files = self.search.files
        if (size := files.size(path)) is None:
            return 0  # deleted by now
        magic = files.read_range(path, 0, len(PARQUET_MAGIC))
        if magic == PUFFIN_MAGIC:
            return 0
        if magic == AVRO_MAGIC:
            return self._read_avro(path)
        if magic != PARQUET_MAGIC:
            self._unread[path] = "it is no Parquet file"
            return 0
        try:
            with self._opener.parquet(path) as source:
                records, schema = source.metadata.num_rows, source.schema_arrow
        except (UnreadableFile, UnsupportedByArrow) as error:
            self._unread[path] = str(error)
            return 0
        if schema.names[:2] == [*POSITION_COLUMNS]:
            if _DELETED_ROW in schema.names:
                self._unread[path] = f"position deletes that keep the deleted rows in their column {_DELETED_ROW}"
            return 0
        known = self._known_columns(schema)
        if known is not None and not known:
            return int(records)  # each may match
        return self._count(FileSlice(path, size, size, records, 0, None), {}, known)

    def _known_columns(self, schema: pa.Schema) -> frozenset[int] | None:
        """Return the predicate's columns whose values a file that nobody names tells; None where it tells all.

        Hive leaves the columns by which it partitions out of its files: only their folder says the value.
        """
        sources = {f.source_id for spec in self.metadata.specs for f in spec.fields if f.transform == "identity"}
        columns = {number: name for predicate, _ in self._predicates for name, number in predicate.columns.items()}
        present = {*map(field_id, schema), *(number for number, name in columns.items() if name in schema.names)}
        missing = (sources & columns.keys()) - present
        return frozenset(columns.keys() - missing) if missing else None

    def _read_avro(self, path: str) -> int:
        """Return the number of entries or rows with bounds that match, of a manifest or list that nobody names."""
        head = self.search.files.read_range(path, 0, _HEAD_BYTES).replace(b" ", b"")
        try:
            if _MANIFEST_LIST in head:
                return self._read_list(path)
            if _MANIFEST in head:
                return sum(self._matches_bounds(file) for file in self._entries.read(path)[0])
            self._unread[path] = "it is no Parquet file"
        except MetadataUnreadable as error:
            self._unread[path] = str(error)
        return 0

    def _read_list(self, path: str) -> int:
        """Return the number of manifests of whose partitions a manifest list keeps matching values."""
        listed, matches = read_list(self.search.files, path, self.metadata.format_version), 0
        for row in listed.records:
            spec = self.metadata.specs_by_id.get(listed.value(row, ids.MANIFEST_SPEC_ID))
            summaries = listed.value(row, ids.PARTITION_SUMMARIES) or ()
            pairs = list(zip(spec.fields if spec else (), summaries, strict=False))
            lower, upper = (
                {field.source_id: kept.get(end) for field, kept in pairs if field.transform == "identity"}
                for end in ("lower_bound", "upper_bound")
            )
            matches += self._match(path, listed.value(row, ids.MANIFEST_PATH), lower, upper, {})
        return matches

    def _count(self, file: FileSlice, constants: Mapping[int, Any], keys: frozenset[int] | None) -> int:
        if file.path in (counts := self.search.counts):
            return counts[file.path][1]
        matching = 0
        try:
            for predicate, layout in self._predicates:
                if keys is not None and keys.isdisjoint(predicate.columns.values()):
                    continue
                scan = BatchScan(layout, self._opener, Bin.for_reading([file], constants))
                matching += sum(predicate.count(columns, keys) for columns in scan.scan_columns(predicate.fields))
        except (UnreadableFile, UnsupportedByArrow) as error:
            if self.search.files.size(file.path) is not None:  # what is gone holds no row
                self._unread[file.path] = str(error)
            return 0
        counts[file.path] = SearchedFile(file.path, file.file_bytes, file.records), matching
        return matching

    def _live(self, file: ContentFile) -> int:
        """Return the number of matching rows of a data file that main shows."""
        deletes = tuple(delete_file(d.values) for d in self._head if applies(d, file, self.metadata.global_specs))
        task = replace(slice_of(file), deletes=deletes)
        whole = Bin.for_reading([task], constants_of(file, self.metadata, self._entries.types))
        try:
            return sum(
                predicate.count(batch.columns)
                for predicate, layout in self._predicates
                for batch in BatchScan(layout, self._opener, whole).batches()
            )
        except (UnreadableFile, UnsupportedByArrow) as error:
            self._unread[file.path] = f"its deletes cannot be applied: {error}"
            return 0

    @cached_property
    def _opener(self) -> Opener:
        return StorageOpener({}, self.search.files)

    def _found(self, path: str, entries: Sequence[ContentFile], matching: int) -> FoundRows:
        file, places, live = entries[0], set[RowPlace](), 0
        snapshots = {number for entry in entries for number in self._entries.concern(entry.manifest)}
        if file.content == EQUALITY_DELETES:
            places.add(RowPlace.DELETE_KEYS)
        elif self.metadata.current_snapshot_id in snapshots:
            live = self._live(file)
            places |= {RowPlace.LIVE} if live else set()
            places |= {RowPlace.MASKED} if live < matching else set()
        return self._with_places(FoundRows(path, file.kind, matching, live, (), ()), snapshots, places)

    def _with_places(self, found: FoundRows, snapshots: AbstractSet[int], places: set[RowPlace]) -> FoundRows:
        """Return the file with its places: those given, and those of the snapshots and refs that keep it."""
        metadata, keepers = self.metadata, set[str]()
        heads = {metadata.current_snapshot_id}
        for ref in metadata.refs:
            if ref.snapshot_id in snapshots and ref.name != MAIN:
                branch, point = ref.kind is RefKind.BRANCH, point_of(ref)
                places.add(RowPlace.BRANCH if branch else RowPlace.RECOVERY_POINT if point else RowPlace.TAG)
                keepers.add(f"{'branch' if branch else 'tag'} {ref.name}")
                heads.add(ref.snapshot_id)
        only = snapshots - heads
        places |= {RowPlace.SNAPSHOT} if only else set()
        keepers |= {f"snapshot {number}" for number in only}
        until = max((metadata.by_id[number].timestamp for number in only), default=None)
        ordered = tuple(place for place in RowPlace if place in places)
        return replace(found, places=ordered, keepers=tuple(sorted(keepers)), until=until and until + SNAPSHOT_AGE)

    def _found_elsewhere(self, path: str, matching: int, place: RowPlace, written: datetime | None) -> FoundRows:
        kind = "manifest" if path.endswith(".avro") else "data"
        if place is RowPlace.WAITING_DELETION:
            jobs = tuple(f"job {job}" for job in self.waiting.jobs)
            return FoundRows(path, kind, matching, 0, (place,), jobs, self.waiting.until)
        return FoundRows(path, kind, matching, 0, (place,), (), written and written + ORPHAN_AGE)


def applies(delete: ContentFile, data: ContentFile, global_specs: Container[int]) -> bool:
    """Return whether a delete file may delete rows of a data file (spec, Scan Planning).

    Equality deletes of the `global_specs`, which are those without partitions, apply to all data files.
    """
    if delete.content == DATA or delete.sequence < data.sequence:
        return False
    same = delete.partition_key == data.partition_key
    if delete.content == EQUALITY_DELETES:
        return delete.sequence > data.sequence and (same or delete.spec_id in global_specs)
    only = delete.referenced if delete.is_vector else only_data_file(delete.values)
    return only == data.path if only else same
