"""Checks that every file which any snapshot of a table needs exists and is what its entry says.

One listing of the table's places answers for the existence of nearly all files; what it does not show is asked for one
by one. Manifests are read while the listing goes on; only hashes of their files stay in memory, and manifests with
files that the listing does not show are read again. Paths are compared as they are spelt, but for their schemes, which
costs next to nothing; where that finds many files missing, all is looked at once more by keys that all spellings share.
Deeper levels decode all manifests, and read footers and rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import polars as pl

from icewright.adapters.engines.service.checked_entries import CheckedEntries
from icewright.adapters.engines.service.column_types import replaced_types
from icewright.adapters.engines.service.content_faults import check_content
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.folders import files_below
from icewright.adapters.engines.service.footers import check_statistics
from icewright.adapters.engines.service.listing import hashed
from icewright.adapters.engines.service.manifest_files import DATA
from icewright.adapters.engines.service.reachable import (
    Canonical,
    as_files,
    content_by_manifest,
    lists_of,
    manifests_of,
    paths_by_manifest,
    statistics_of,
    with_kinds,
)
from icewright.adapters.engines.service.row_faults import Answer, RowCheck
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import CheckLevel, FileFault, FileFaultKind, IntegrityReport, name_mapping
from icewright.core.places import is_object_store
from icewright.core.table import Snapshot, TableMetadata, TableRef
from icewright.ports import TableFiles
from icewright.ports.work import WorkerThreads

_SLICE = 512  # manifests that are read together
_FEW = 1_000  # files that may be asked for one by one
_KEPT = 250_000  # files whose entries stay in memory, so that no manifest is read again for those at fault
_SEED = 5
_CONCURRENCY = 16
_NO_FILES = pl.DataFrame(schema={"hash": pl.UInt64, "listed": pl.Int64})
_HASHED = ("hash", "bytes", "manifest")
_NO_HASHES = pl.DataFrame(schema={"hash": pl.UInt64, "bytes": pl.Int64, "manifest": pl.UInt32})
_DIFFERS = pl.col("listed").is_null() | (pl.col("bytes") != pl.col("listed")).fill_null(value=False)
Item = TypeVar("Item")
RowReader = Callable[[RowCheck, Sequence[ContentFile]], Iterable[Answer]]


@dataclass
class IntegrityCheck:
    """One check of one table."""

    files: TableFiles
    metadata: TableMetadata
    level: CheckLevel = CheckLevel.EXISTS
    content: bytes | None = None  # of the metadata file, where it is not written yet
    since: int | None = None  # sequence number up to which a check as deep has found no fault; None: all is read
    read_rows: RowReader | None = None  # at level `rows`
    _listed: pl.DataFrame = field(default_factory=_NO_FILES.clone, init=False)
    _named: list[pl.DataFrame] = field(default_factory=list, init=False)  # of content files: entries, or their hashes
    _as_spelt: bool = field(default=True, init=False)
    _manifests: list[pl.DataFrame] = field(default_factory=list, init=False)
    _checked: int = field(default=0, init=False)
    _suspects: dict[str, tuple[int | None, str]] = field(default_factory=dict, init=False)  # bytes, kind by path
    _suspects_by_manifest: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set), init=False)
    _unreadable: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)  # kind, error by path
    _alike: dict[int, tuple[str, ...]] = field(default_factory=dict, init=False)  # manifests by what they say of a file

    def planned(self) -> IntegrityReport:
        """Return how many files a check would look at, and how many it would read; nothing else is read for that."""
        _read_halving(self.metadata.snapshots, self._read_lists, self._list_is_unreadable)
        manifests = self._distinct_manifests()
        self._hash_all(manifests)
        self._checked += self._small(manifests).height
        return self._report((), self._contents(self._entries(), set()))

    def run(self, load: Callable[[TableRef], TableMetadata]) -> IntegrityReport:
        """Check the table's files. What went during the check with snapshots that `load` shows no more is no fault."""
        metadata = self.metadata
        with WorkerThreads(1) as pool:
            listing = pool.submit(self._list_places)
            _read_halving(metadata.snapshots, self._read_lists, self._list_is_unreadable)
            manifests = self._distinct_manifests()
            self._hash_all(manifests)
            self._listed = listing.result()
        differing = self._differing(manifests)
        if differing.height + len(self._suspects) > _FEW:
            self._as_spelt = False
            self._hash_all(manifests)
            self._listed = self._list_places()
            differing = self._differing(manifests)
        numbers = self._note_kept(manifests, differing)
        _read_halving(numbers, partial(self._read, manifests), partial(self._manifest_is_unreadable, manifests))
        faults, unread = self._faults(), dict[str, str]()
        contents = list[ContentFile]()
        if self.level.includes(CheckLevel.ENTRIES):
            broken, entries = {fault.path for fault in faults}, self._entries()
            contents = self._contents(entries, broken)
            deeper, unread = self._deeper_faults(entries, contents, broken)
            faults += sorted(deeper, key=lambda fault: (fault.path, fault.kind, fault.detail))
        remaining = load(metadata.ref).by_id.keys()
        lasting = tuple(f for f in faults if not f.snapshot_ids or not remaining.isdisjoint(f.snapshot_ids))
        return replace(self._report(lasting, contents), unread=unread)

    def _deeper_faults(
        self, entries: CheckedEntries, contents: Sequence[ContentFile], broken: AbstractSet[str]
    ) -> tuple[set[FileFault], dict[str, str]]:
        """Return what entries, footers and rows show of files that are not broken, and why some rows are not read."""
        faults = {f for f in entries.faults if f.kind is not FileFaultKind.UNREADABLE or f.path not in broken}
        unread = dict[str, str]()
        if self.level.includes(CheckLevel.FOOTERS):
            faults.update(self._footer_faults(entries, contents) if contents else ())
            faults.update(self._statistics_faults(entries, broken))
        if self.read_rows is not None and contents and self.level.includes(CheckLevel.ROWS):
            found, unread = self._row_faults(entries, contents, {fault.path for fault in faults})
            faults.update(found)
        return faults, unread

    def _report(self, faults: tuple[FileFault, ...], contents: Sequence[ContentFile]) -> IntegrityReport:
        """Return the report; `contents` are the files whose footers are read."""
        metadata, rows = self.metadata, sum(file.bytes for file in self._with_rows(contents))
        return IntegrityReport(
            metadata.ref,
            metadata.metadata_location,
            self.level,
            len(metadata.snapshots),
            self._checked,
            faults,
            len(contents),
            rows,
        )

    def _distinct_manifests(self) -> pl.DataFrame:
        return pl.concat(self._manifests).unique("path") if self._manifests else pl.DataFrame()

    @cached_property
    def _canonical(self) -> Canonical:
        """Return the function that resolves links in folders, which asks for each folder once in a check."""
        return cache(self.files.canonical)

    def _list_places(self) -> pl.DataFrame:
        """List the table's location and write paths; only hashes of paths stay, with the bytes of the files."""
        listed = _NO_FILES.clone()
        for place in self.metadata.roots:
            for frame in files_below(self.files, place):  # without the folder, each of its files is asked for
                listed.extend(frame.select(hash=self._hashes(frame["path"]), listed="bytes"))
        return listed.unique("hash") if len(self.metadata.roots) > 1 else listed

    def _read_lists(self, snapshots: Sequence[Snapshot]) -> None:
        self._manifests.append(manifests_of(self.files, snapshots))

    def _hashes(self, paths: pl.Series) -> pl.Series:
        """Return the hash of each path."""
        if not self._as_spelt and is_object_store(self.metadata.location):
            return paths.str.replace("^[^/]*//[^/]*", "").str.replace_all("/{2,}", "/").hash(_SEED)
        if not self._as_spelt:
            return hashed(paths.to_frame("path"), self._canonical)["hash"]
        plain = paths.str.strip_prefix("file:").str.strip_chars_start("/")  # half the time of one regular expression
        if plain.str.starts_with("s3").any():
            plain = plain.str.replace("^s3[an]:", "s3:")
        return plain.hash(_SEED)

    def _hash_all(self, manifests: pl.DataFrame) -> None:
        """Hash the paths of the content files of all manifests that can be read."""
        self._checked = 0
        self._named.clear()
        for start in range(0, manifests.height, _SLICE):
            numbers = range(start, min(start + _SLICE, manifests.height))
            _read_halving(numbers, partial(self._hash, manifests), partial(self._manifest_is_unreadable, manifests))

    def _hash(self, manifests: pl.DataFrame, numbers: Sequence[int]) -> None:
        numbered = pl.Series(numbers, dtype=pl.UInt32)
        frames = [
            frame.with_columns(hash=self._hashes(frame["path"]), manifest=numbered.gather(frame["manifest"]))
            for frame in paths_by_manifest(self.files, manifests[numbers], spare_cores=1)  # for the listing
        ]
        self._checked += sum(frame.height for frame in frames)
        self._named += frames if self._checked <= _KEPT else [frame.select(_HASHED) for frame in frames]

    def _differing(self, manifests: pl.DataFrame) -> pl.DataFrame:
        """Return `row` and `manifest` of the content files that the listing does not show as they are named."""
        self._suspects.clear()
        small = self._small(manifests)
        self._checked += small.height
        for path, size, kind in self._unlike_listed(small).select("path", "bytes", "kind").iter_rows():
            self._suspects[path] = size, kind
        hashes = pl.concat([_NO_HASHES, *(frame.select(_HASHED) for frame in self._named)]).with_row_index("row")
        return hashes.join(self._listed, on="hash", how="left").filter(_DIFFERS).select("row", "manifest")

    def _note_kept(self, manifests: pl.DataFrame, differing: pl.DataFrame) -> Sequence[int]:
        """Note the differing files whose entries were kept, and return the manifests to read again for the others."""
        kept = [frame for frame in self._named if "path" in frame.columns]
        count = sum(frame.height for frame in kept)
        if count:
            rows = pl.concat(kept)[differing.filter(pl.col("row") < count)["row"]]
            self._note(with_kinds(rows), manifests["path"])
        self._named.clear()
        return sorted(set(differing.filter(pl.col("row") >= count)["manifest"]))

    def _note(self, differing: pl.DataFrame, manifests: pl.Series) -> None:
        for path, size, kind, number in differing.select("path", "bytes", "kind", "manifest").iter_rows():
            self._suspects[path] = size, kind
            self._suspects_by_manifest[manifests[number]].add(path)

    def _small(self, manifests: pl.DataFrame) -> pl.DataFrame:
        """Return the files of metadata that snapshots need."""
        small = [lists_of(self.metadata.snapshots), statistics_of(self.metadata)]
        return pl.concat([*small, as_files(manifests)] if manifests.height else small)

    def _read(self, manifests: pl.DataFrame, numbers: Sequence[int]) -> None:
        paths = manifests["path"].gather(list(numbers))
        for frame in content_by_manifest(self.files, manifests[numbers]):
            self._note(self._unlike_listed(frame), paths)

    def _list_is_unreadable(self, snapshot: Snapshot, error: MetadataUnreadable) -> None:
        self._unreadable[snapshot.manifest_list or self.metadata.metadata_location] = "manifest list", str(error)

    def _manifest_is_unreadable(self, manifests: pl.DataFrame, number: int, error: MetadataUnreadable) -> None:
        self._unreadable[manifests["path"][number]] = "manifest", str(error)

    def _unlike_listed(self, files: pl.DataFrame) -> pl.DataFrame:
        """Return the files that the listing does not show with the length that is expected."""
        named = files.with_columns(hash=self._hashes(files["path"]))
        listed = self._listed.filter(pl.col("hash").is_in(named["hash"].implode()))  # a join would index all of it
        return named.join(listed, on="hash", how="left").filter(_DIFFERS)

    def _faults(self) -> list[FileFault]:
        faults: dict[str, tuple[FileFaultKind, str, str]] = {
            path: (FileFaultKind.UNREADABLE, kind, error) for path, (kind, error) in self._unreadable.items()
        }
        stats = self.files.stat(list(self._suspects), _CONCURRENCY)
        for path, (size, kind) in self._suspects.items():
            if path not in stats:
                faults[path] = FileFaultKind.UNREADABLE, kind, "storage cannot address a file by this name"
            elif (stat := stats[path]) is None:
                faults[path] = FileFaultKind.MISSING, kind, "there is no such file"
            elif size is not None and stat.bytes != size:
                faults[path] = FileFaultKind.WRONG_LENGTH, kind, f"it has {stat.bytes} bytes instead of {size}"
        needed_by = self._snapshots_of(set(faults)) if faults else {}
        return [
            FileFault(kind, file, path, detail, tuple(sorted(needed_by.get(path, ()))))
            for path, (kind, file, detail) in sorted(faults.items())
        ]

    def _entries(self) -> CheckedEntries:
        return CheckedEntries(self.files, self.metadata, self.content, self.since)

    def _contents(self, entries: CheckedEntries, broken: AbstractSet[str]) -> list[ContentFile]:
        """Compare lists and manifests; return the distinct entries whose files are read, without broken files.

        Of entries that say the same in several manifests it is main's, which has to have what its readers need.
        """
        footers = self.level.includes(CheckLevel.FOOTERS)
        distinct: dict[int, ContentFile] = {}
        if self.level.includes(CheckLevel.ENTRIES):
            for file in entries.content_files():
                if footers and file.path not in broken:
                    stated = _stated(file)
                    self._alike[stated] = (*self._alike.get(stated, ()), file.manifest)
                    if stated not in distinct or entries.is_of_main(file.manifest):
                        distinct[stated] = file
        return list(distinct.values())

    def _concern(self, entries: CheckedEntries, file: ContentFile) -> tuple[int, ...]:
        """Return the snapshots that read a file by an entry that says the same."""
        manifests = self._alike[_stated(file)]
        return tuple(sorted({number for manifest in manifests for number in entries.concern(manifest)}))

    def _footer_faults(self, entries: CheckedEntries, contents: Sequence[ContentFile]) -> list[FileFault]:
        records, replaced = _records(contents), self._replaced_types(entries, contents)
        specs, names = self.metadata.specs_by_id, name_mapping(self.metadata)

        def check(file: ContentFile) -> list[FileFault]:
            try:
                types = replaced.get(file.manifest, entries.types)
                found = check_content(self.files, file, types, specs, records, entries.needed_columns(file), names)
            except MetadataUnreadable as error:
                found = [(FileFaultKind.UNREADABLE, str(error))]
            concerned = self._concern(entries, file) if found else ()
            return [FileFault(kind, file.kind, file.path, detail, concerned) for kind, detail in found]

        with WorkerThreads(_CONCURRENCY) as pool:
            return [fault for found in pool.map(check, contents) for fault in found]

    def _replaced_types(
        self, entries: CheckedEntries, contents: Sequence[ContentFile]
    ) -> Mapping[str, Mapping[int, Any]]:
        """Return the types of columns by manifest, where readers of old snapshots read its files by other ones."""
        replaced, found = replaced_types(entries.document, entries.types), dict[str, Mapping[int, Any]]()
        for manifest in {file.manifest for file in contents} if replaced else ():
            concerned = entries.concern(manifest)
            if not entries.is_of_main(manifest):
                found.update((manifest, replaced[number]) for number in concerned if number in replaced)
        return found

    def _with_rows(self, contents: Sequence[ContentFile]) -> list[ContentFile]:
        """Return the files whose rows are read: those that were added since the last check, wherever they are named."""
        if not self.level.includes(CheckLevel.ROWS):
            return []
        files = [file for file in contents if not file.is_vector]
        if (since := self.since) is None:
            return files
        return [file for file in files if file.file_sequence is None or file.file_sequence > since]

    def _row_faults(
        self, entries: CheckedEntries, contents: Sequence[ContentFile], broken: AbstractSet[str]
    ) -> tuple[list[FileFault], dict[str, str]]:
        """Return what reading the files finds, and why some are not read; those with faults already are left out."""
        read_rows, names = self.read_rows, name_mapping(self.metadata)
        chosen = [file for file in self._with_rows(contents) if file.path not in broken]
        unread = {
            file.path: "it is encrypted" if file.is_encrypted else f"only Parquet is read, not {file.format}"
            for file in chosen
            if file.is_encrypted or file.format != "PARQUET"
        }
        chosen = [file for file in chosen if file.path not in unread]
        faults = list[FileFault]()
        replaced = self._replaced_types(entries, chosen)
        check = RowCheck(entries.types, self.metadata.specs_by_id, names, _records(contents), replaced)
        for number, found, why in read_rows(check, chosen) if read_rows is not None and chosen else ():
            file = chosen[number]
            concerned = self._concern(entries, file) if found else ()
            faults += [FileFault(FileFaultKind(k), file.kind, file.path, detail, concerned) for k, detail in found]
            if why is not None:
                unread[file.path] = why
        return faults, unread

    def _statistics_faults(self, entries: CheckedEntries, broken: AbstractSet[str]) -> Iterator[FileFault]:
        named = entries.document.get("statistics") or ()
        footers = {stats.get("statistics-path"): stats.get("file-footer-size-in-bytes") for stats in named}
        partitions = self.metadata.partition_statistics
        for file in (*self.metadata.statistics, *partitions):
            try:
                if file.path not in broken:
                    check_statistics(self.files, file.path, file.length, footers.get(file.path))
            except MetadataUnreadable as error:
                kind = "partition statistics" if file in partitions else "statistics"
                yield FileFault(FileFaultKind.UNREADABLE, kind, file.path, str(error), (file.snapshot_id,))

    def _snapshots_of(self, wanted: set[str]) -> dict[str, set[int]]:
        """Return the snapshots that need each of the paths."""
        needed_by = defaultdict[str, set[int]](set)
        for statistics in (*self.metadata.statistics, *self.metadata.partition_statistics):
            needed_by[statistics.path].add(statistics.snapshot_id)
        for snapshot in self.metadata.snapshots:
            of_snapshot = {snapshot.manifest_list or self.metadata.metadata_location}
            if of_snapshot.isdisjoint(self._unreadable):
                for path in manifests_of(self.files, [snapshot])["path"]:
                    of_snapshot |= {path} | self._suspects_by_manifest.get(path, set())
            for path in of_snapshot & wanted:
                needed_by[path].add(snapshot.snapshot_id)
        return needed_by


def _stated(file: ContentFile) -> int:
    """Return a number for all that an entry says of its file."""
    return hash(repr(file.values))


def _records(contents: Sequence[ContentFile]) -> dict[str, int]:
    """Return the rows of data files, by path."""
    return {file.path: file.records for file in contents if file.content == DATA}


def _read_halving(
    items: Sequence[Item],
    read: Callable[[Sequence[Item]], None],
    unreadable: Callable[[Item, MetadataUnreadable], None],
) -> None:
    """Read all items at once, or ever fewer where that fails, down to those at fault, which are passed on."""
    if not items:
        return
    try:
        read(items)
    except MetadataUnreadable as error:
        if len(items) == 1:
            unreadable(items[0], error)
            return
        middle = len(items) // 2
        _read_halving(items[:middle], read, unreadable)
        _read_halving(items[middle:], read, unreadable)
