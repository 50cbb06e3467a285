"""A lost manifest, written again under its name from the manifests of neighbouring snapshots.

A snapshot that came after without the manifest says which files were live before it: its own without those that it
added, and those that it deleted. A rewrite that changed no file has the same as the one before. What other manifests of
the snapshot do not name, the lost one did; counts, rows, sequence numbers and bounds of its manifest list must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icewright.adapters.engines.service import manifest_list_files as lists
from icewright.adapters.engines.service.avro_records import Record
from icewright.adapters.engines.service.manifest_bytes import ManifestBytes, read_manifest
from icewright.adapters.engines.service.manifest_files import ADDED, DELETED, EXISTING, Entry, ManifestWriter
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable, UnsupportedTable
from icewright.core.table import FORMAT_V3, ManifestContent, ManifestFile, Snapshot, TableMetadata
from icewright.ports import TableFiles

_UNCHANGED = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
FileKey = tuple[str, int | None]  # path, and the offset of a deletion vector in it


@dataclass(frozen=True, slots=True)
class _Listed:
    """A row of a manifest list, whole."""

    manifest: ManifestFile
    rows: tuple[int | None, int | None]  # of added and of existing files
    partitions: Sequence[Record] | None


@dataclass(frozen=True)
class LostManifests:
    """Rebuilds manifests of one table; `rows` reads a snapshot's list and raises `MetadataUnreadable`."""

    files: TableFiles
    base: TableMetadata
    rows: Callable[[Snapshot], lists.Records]

    def content(self, path: str) -> bytes | None:
        """Return what the manifest had, of the same length; None unless neighbours prove it."""
        if self.base.format_version >= FORMAT_V3:  # whose lists hand out row ids by the order of entries
            return None
        for snapshot in self.base.snapshots:
            listed = self._listed(snapshot)
            lost = next((entry for entry in listed if entry.manifest.path == path), None)
            if lost is None or lost.manifest.deleted_files:
                continue
            for neighbour in self._neighbours(snapshot):
                try:
                    content = self._rebuild(lost, listed, snapshot, neighbour)
                except (MetadataUnreadable, UnsupportedTable, LookupError):
                    continue
                if content is not None:
                    return content
        return None

    def _neighbours(self, snapshot: Snapshot) -> Iterator[Snapshot]:
        yield from (child for child in self.base.snapshots if child.parent_id == snapshot.snapshot_id)
        parent = self.base.by_id.get(snapshot.parent_id or 0)
        rewrite = snapshot.operation == "replace" and "total-data-files" in snapshot.summary
        if parent is not None and rewrite and all(snapshot.summary.get(n, "0") == "0" for n in _UNCHANGED):
            yield parent

    def _listed(self, snapshot: Snapshot) -> list[_Listed]:
        """Return what the snapshot lists; nothing where its list cannot be read, or leaves counts out."""
        try:
            records = self.rows(snapshot)
        except MetadataUnreadable:
            return []
        listed = []
        for record in records.records:
            values = [records.value(record, number) for number in ids.MANIFEST_FILE]
            if None in values:
                return []
            counts = records.value(record, ids.ADDED_ROWS), records.value(record, ids.EXISTING_ROWS)
            listed.append(_Listed(ManifestFile.of(values), counts, records.value(record, ids.PARTITION_SUMMARIES)))
        return listed

    def _rebuild(
        self, lost: _Listed, listed: Sequence[_Listed], snapshot: Snapshot, neighbour: Snapshot
    ) -> bytes | None:
        manifest = lost.manifest
        theirs = [entry.manifest for entry in self._listed(neighbour)]
        alike = [candidate for candidate in theirs if _kind(candidate) == _kind(manifest)]
        if not alike or manifest.path in {candidate.path for candidate in theirs}:
            return None
        read = {candidate.path: read_manifest(self.files, candidate.path) for candidate in alike}
        model = next(iter(read.values()))
        writer = ManifestWriter(model, self.base, manifest.spec_id, ManifestContent(manifest.content))
        live: dict[FileKey, Entry] = {}
        deleted: dict[FileKey, Entry] = {}
        for candidate in alike:
            live |= _by_key(writer, candidate, read[candidate.path], live)
            deleted |= _by_key(writer, candidate, read[candidate.path], deleted, (DELETED,))
        if neighbour.parent_id == snapshot.snapshot_id:
            live = self._live_before(neighbour, live, deleted, manifest)
        for other in listed:
            if other is not lost and _kind(other.manifest) == _kind(manifest):
                for named in _by_key(writer, other.manifest, read_manifest(self.files, other.manifest.path), {}):
                    live.pop(named, None)
        entries = [_as_listed(entry, manifest) for entry in live.values()]
        return writer.same_length(entries, manifest.length) if _agrees(writer, entries, lost) else None

    def _live_before(
        self, child: Snapshot, live: Mapping[FileKey, Entry], deleted: Mapping[FileKey, Entry], lost: ManifestFile
    ) -> dict[FileKey, Entry]:
        """Return what was live before the child: without what it added, and with what it deleted."""
        # all snapshots of format v1 have the number 0, which therefore names none of them
        added_by = {s.sequence_number: s.snapshot_id for s in self.base.snapshots if s.sequence_number}
        if not lost.existing_files:
            added_by[0] = lost.added_snapshot_id
        kept = {key: entry for key, entry in live.items() if entry.snapshot_id != child.snapshot_id}
        return kept | {
            key: replace(entry, snapshot_id=added_by[entry.file_sequence or 0])
            for key, entry in deleted.items()
            if entry.snapshot_id == child.snapshot_id
        }


def _kind(manifest: ManifestFile) -> tuple[int, int]:
    return manifest.spec_id, manifest.content


def _by_key(
    writer: ManifestWriter,
    manifest: ManifestFile,
    source: ManifestBytes,
    known: Mapping[FileKey, Entry],
    statuses: Sequence[int] = (EXISTING, ADDED),
) -> dict[FileKey, Entry]:
    """Return the entries by file. Raises `LookupError` for a file that is named twice, which tells no file apart."""
    entries = writer.entries(manifest, source, statuses)
    entries_by_file = {
        (str(f[ids.FILE_PATH]), f.get(ids.CONTENT_OFFSET)): entry
        for f, entry in zip(writer.data_files(entries), entries, strict=True)
    }
    if len(entries_by_file) < len(entries) or entries_by_file.keys() & known.keys():
        raise LookupError(f"{manifest.path} names a file that is named already")
    return entries_by_file


def _as_listed(entry: Entry, manifest: ManifestFile) -> Entry:
    """Return the entry as the manifest had it: what its own snapshot added inherits the sequence numbers."""
    if entry.snapshot_id != manifest.added_snapshot_id:
        return replace(entry, status=EXISTING)
    own = manifest.sequence_number
    sequence = None if entry.sequence == own else entry.sequence
    return replace(entry, status=ADDED, sequence=sequence, file_sequence=None)


def _agrees(writer: ManifestWriter, entries: Sequence[Entry], lost: _Listed) -> bool:
    """Return whether the entries are as many, of as many rows, and as old as the list says, in the same partitions."""
    manifest = lost.manifest
    of = {status: [e.records for e in entries if e.status == status] for status in (ADDED, EXISTING)}
    sequences = [manifest.sequence_number if e.sequence is None else e.sequence for e in entries]
    counts = (len(of[ADDED]), len(of[EXISTING])) == (manifest.added_files, manifest.existing_files)
    rows = (sum(of[ADDED]), sum(of[EXISTING])) == lost.rows
    return (
        bool(entries)
        and counts
        and rows
        and min(sequences) == manifest.min_sequence_number
        and _bounds(writer.summaries(entries)) == _bounds(lost.partitions)
    )


def _bounds(summaries: Sequence[Record] | None) -> list[Any]:
    return [(s.get("contains_null"), s.get("lower_bound"), s.get("upper_bound")) for s in summaries or ()]
