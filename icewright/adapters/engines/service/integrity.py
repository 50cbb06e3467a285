"""Checks that every file which any snapshot of a table needs exists and is what its entry says.

One listing of the table's places answers for the existence of nearly all files; what it does not show is asked for one
by one. Manifests are read while the listing goes on; only hashes of their files stay in memory, and manifests with
files that the listing does not show are read again. Paths are compared as they are spelt, but for their schemes, which
costs next to nothing; where that finds many files missing, all is looked at once more by keys that all spellings share.
Deeper levels decode all manifests, and read footers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TypeVar

import polars as pl

from icewright.adapters.engines.service.content_faults import check_content, puffin_blobs
from icewright.adapters.engines.service.entry_faults import ContentFile, EntryFaults
from icewright.adapters.engines.service.listing import hashed
from icewright.adapters.engines.service.reachable import (
    Canonical,
    as_files,
    content_by_manifest,
    lists_of,
    manifests_of,
    statistics_of,
)
from icewright.core.errors import FolderMissing, MetadataUnreadable
from icewright.core.integrity import CheckLevel, FileFault, FileFaultKind, IntegrityReport
from icewright.core.table import Snapshot, TableMetadata, TableRef
from icewright.ports import TableFiles
from icewright.ports.work import WorkerThreads

_SLICE = 512  # manifests that are read together
_FEW = 1_000  # files that may be asked for one by one
_SEED = 5
_CONCURRENCY = 16
_NO_FILES = pl.DataFrame(schema={"hash": pl.UInt64, "listed": pl.Int64})
_DIFFERS = pl.col("listed").is_null() | (pl.col("bytes") != pl.col("listed")).fill_null(value=False)
Item = TypeVar("Item")


@dataclass
class IntegrityCheck:
    """One check of one table."""

    files: TableFiles
    metadata: TableMetadata
    level: CheckLevel = CheckLevel.EXISTS
    content: bytes | None = None  # of the metadata file, where it is not written yet
    _listed: pl.DataFrame = field(default_factory=_NO_FILES.clone, init=False)
    _named: list[pl.DataFrame] = field(default_factory=list, init=False)  # hash, bytes, manifest of content files
    _as_spelt: bool = field(default=True, init=False)
    _manifests: list[pl.DataFrame] = field(default_factory=list, init=False)
    _checked: int = field(default=0, init=False)
    _suspects: dict[str, tuple[int | None, str]] = field(default_factory=dict, init=False)  # bytes, kind by path
    _held: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set), init=False)  # suspects by manifest
    _unreadable: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)  # kind, error by path

    def run(self, load: Callable[[TableRef], TableMetadata]) -> IntegrityReport:
        """Check the table's files. What went during the check with snapshots that `load` shows no more is no fault."""
        metadata = self.metadata
        with WorkerThreads(1) as pool:
            listing = pool.submit(self._list_places)
            _each(metadata.snapshots, self._read_lists, self._list_is_unreadable)
            manifests = pl.concat(self._manifests).unique("path") if self._manifests else pl.DataFrame()
            self._hash_all(manifests)
            self._listed = listing.result()
        numbers, count = self._differing(manifests)
        if count > _FEW:
            self._as_spelt = False
            self._hash_all(manifests)
            self._listed = self._list_places()
            numbers, _ = self._differing(manifests)
        _each(numbers, partial(self._read, manifests), partial(self._manifest_is_unreadable, manifests))
        faults = self._faults()
        if self.level.includes(CheckLevel.ENTRIES):
            faults += self._deeper_faults({fault.path for fault in faults})
        remaining = load(metadata.ref).by_id.keys()
        lasting = tuple(fault for fault in faults if not remaining.isdisjoint(fault.snapshot_ids))
        return IntegrityReport(
            metadata.ref, metadata.metadata_location, self.level, len(metadata.snapshots), self._checked, lasting
        )

    @cached_property
    def _canonical(self) -> Canonical:
        """Return the function that resolves links in folders, which asks for each folder once in a check."""
        return cache(self.files.canonical)

    def _list_places(self) -> pl.DataFrame:
        """List the table's location and write paths; only hashes of paths stay, with the bytes of the files."""
        listed = _NO_FILES.clone()
        for place in (self.metadata.location, *self.metadata.write_paths):
            try:
                for batch in self.files.listing(place):
                    frame = self._hashed(pl.DataFrame(pl.from_arrow(batch)))
                    listed.extend(frame.select("hash", pl.col("bytes").alias("listed")))
            except FolderMissing:  # each of its files is asked for
                continue
        return listed.unique("hash")

    def _read_lists(self, snapshots: Sequence[Snapshot]) -> None:
        self._manifests.append(manifests_of(self.files, snapshots))

    def _hashed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with a column `hash` of its paths."""
        if self._as_spelt:
            plain = pl.col("path").str.replace("^file:/*", "/").str.replace("^s3[an]:", "s3:")
            return frame.with_columns(hash=plain.hash(_SEED))
        return hashed(frame, self._canonical)

    def _hash_all(self, manifests: pl.DataFrame) -> None:
        """Hash the paths of the content files of all manifests that can be read."""
        self._checked = 0
        for start in range(0, manifests.height, _SLICE):
            numbers = range(start, min(start + _SLICE, manifests.height))
            _each(numbers, partial(self._hash, manifests), partial(self._manifest_is_unreadable, manifests))

    def _hash(self, manifests: pl.DataFrame, numbers: Sequence[int]) -> None:
        found = [
            self._hashed(frame).select(
                "hash", "bytes", manifest=pl.Series(numbers, dtype=pl.UInt32).gather(frame["manifest"])
            )
            for frame in content_by_manifest(self.files, manifests[numbers])
        ]
        self._checked += sum(frame.height for frame in found)
        self._named += found

    def _differing(self, manifests: pl.DataFrame) -> tuple[Sequence[int], int]:
        """Return the manifests with files that the listing does not show as they are named, and how many files."""
        self._suspects.clear()
        small = [lists_of(self.metadata.snapshots), statistics_of(self.metadata)]
        for files in [*small, as_files(manifests)] if manifests.height else small:
            self._checked += files.height
            self._compare(files)
        if not self._named:
            return (), len(self._suspects)
        differing = pl.concat(self._named).join(self._listed, on="hash", how="left").filter(_DIFFERS)
        self._named.clear()
        return sorted(set(differing["manifest"])), differing.height + len(self._suspects)

    def _read(self, manifests: pl.DataFrame, numbers: Sequence[int]) -> None:
        paths = manifests["path"].gather(list(numbers))
        for frame in content_by_manifest(self.files, manifests[numbers]):
            for path, number in self._compare(frame).select("path", "manifest").iter_rows():
                self._held[paths[number]].add(path)

    def _list_is_unreadable(self, snapshot: Snapshot, error: MetadataUnreadable) -> None:
        self._unreadable[snapshot.manifest_list or self.metadata.metadata_location] = "manifest list", str(error)

    def _manifest_is_unreadable(self, manifests: pl.DataFrame, number: int, error: MetadataUnreadable) -> None:
        self._unreadable[manifests["path"][number]] = "manifest", str(error)

    def _compare(self, files: pl.DataFrame) -> pl.DataFrame:
        """Note files that the listing does not show with the length that is expected, and return them."""
        differing = self._hashed(files).join(self._listed, on="hash", how="left").filter(_DIFFERS)
        for path, size, kind in differing.select("path", "bytes", "kind").iter_rows():
            self._suspects[path] = size, kind
        return differing

    def _faults(self) -> list[FileFault]:
        found: dict[str, tuple[FileFaultKind, str, str]] = {
            path: (FileFaultKind.UNREADABLE, kind, error) for path, (kind, error) in self._unreadable.items()
        }
        stats = self.files.stat(list(self._suspects), _CONCURRENCY)
        for path, (size, kind) in self._suspects.items():
            if path not in stats:
                found[path] = FileFaultKind.UNREADABLE, kind, "storage cannot address a file by this name"
            elif (stat := stats[path]) is None:
                found[path] = FileFaultKind.MISSING, kind, "there is no such file"
            elif size is not None and stat.bytes != size:
                found[path] = FileFaultKind.WRONG_LENGTH, kind, f"it has {stat.bytes} bytes instead of {size}"
        needed_by = self._snapshots_of(set(found)) if found else {}
        return [
            FileFault(kind, file, path, detail, tuple(sorted(needed_by.get(path, ()))))
            for path, (kind, file, detail) in sorted(found.items())
        ]

    def _deeper_faults(self, broken: AbstractSet[str]) -> list[FileFault]:
        """Return what is wrong with entries and footers, but for the files that are known to be broken."""
        entries = EntryFaults(self.files, self.metadata, self.content)
        footers = self.level.includes(CheckLevel.FOOTERS)
        distinct: dict[int, ContentFile] = {}
        for one in entries.content_files():
            if footers and one.path not in broken:
                distinct.setdefault(hash(repr(one.values)), one)
        faults = set(entries.faults)
        if footers:
            faults.update(self._footer_faults(entries, list(distinct.values())), self._statistics_faults(broken))
        return sorted(faults, key=lambda fault: (fault.path, fault.kind, fault.detail))

    def _footer_faults(self, entries: EntryFaults, contents: Sequence[ContentFile]) -> list[FileFault]:
        types, specs = entries.types, {spec.spec_id: spec for spec in self.metadata.specs}

        def check(one: ContentFile) -> list[FileFault]:
            try:
                found = check_content(self.files, one, types, specs)
            except MetadataUnreadable as error:
                found = [(FileFaultKind.UNREADABLE, str(error))]
            concerned = entries.concern(one.manifest)
            return [FileFault(kind, one.kind, one.path, detail, concerned) for kind, detail in found]

        with WorkerThreads(_CONCURRENCY) as pool:
            return [fault for found in pool.map(check, contents) for fault in found]

    def _statistics_faults(self, broken: AbstractSet[str]) -> list[FileFault]:
        faults = []
        for one in self.metadata.statistics:
            if one.path in broken:
                continue
            try:
                puffin_blobs(self.files, one.path, one.length)
            except MetadataUnreadable as error:
                kind, concerned = FileFaultKind.UNREADABLE, (one.snapshot_id,)
                faults.append(FileFault(kind, "statistics", one.path, str(error), concerned))
        return faults

    def _snapshots_of(self, wanted: set[str]) -> dict[str, set[int]]:
        """Return the snapshots that need each of the paths."""
        needed_by = defaultdict[str, set[int]](set)
        for statistics in (*self.metadata.statistics, *self.metadata.partition_statistics):
            needed_by[statistics.path].add(statistics.snapshot_id)
        for snapshot in self.metadata.snapshots:
            of_snapshot = {snapshot.manifest_list or self.metadata.metadata_location}
            if of_snapshot.isdisjoint(self._unreadable):
                for path in manifests_of(self.files, [snapshot])["path"]:
                    of_snapshot |= {path} | self._held.get(path, set())
            for path in of_snapshot & wanted:
                needed_by[path].add(snapshot.snapshot_id)
        return needed_by


def of_snapshots(metadata: TableMetadata, snapshot_ids: frozenset[int]) -> TableMetadata:
    """Return the metadata with some of its snapshots alone, and their statistics."""
    return replace(
        metadata,
        snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id in snapshot_ids),
        statistics=tuple(s for s in metadata.statistics if s.snapshot_id in snapshot_ids),
        partition_statistics=tuple(s for s in metadata.partition_statistics if s.snapshot_id in snapshot_ids),
    )


def _each(
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
        _each(items[:middle], read, unreadable)
        _each(items[middle:], read, unreadable)
