"""Live files as manifests list them, and manifest records of new files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icewright.adapters.engines.arrow.tasks import DeleteFile, DeleteKind, FileSlice
from icewright.adapters.engines.service.manifest_bytes import read_manifests
from icewright.adapters.engines.service.manifest_files import (
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    Entry,
    ManifestWriter,
)
from icewright.core import field_ids as ids
from icewright.core.table import ManifestContent, ManifestFile, Snapshot
from icewright.core.writer_state import stated_number
from icewright.ports import TableFiles

_NUMBERS = {
    "record-count": ids.RECORD_COUNT,
    "file-size-in-bytes": ids.FILE_SIZE,
    "split-offsets": ids.SPLIT_OFFSETS,
    "sort-order-id": ids.SORT_ORDER_ID,
}
_COUNTS = {
    "column-sizes": ids.COLUMN_SIZES,
    "value-counts": ids.VALUE_COUNTS,
    "null-value-counts": ids.NULL_COUNTS,
    "nan-value-counts": ids.NAN_COUNTS,
}
_BOUNDS = {"lower-bounds": ids.LOWER_BOUNDS, "upper-bounds": ids.UPPER_BOUNDS}
_GONE = ("removed", "deleted")  # how counts of summaries begin that lower a total
REQUIRED_FIELDS = frozenset((ids.FILE_PATH, ids.FILE_FORMAT, *_NUMBERS.values(), *_COUNTS.values(), *_BOUNDS.values()))


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A live data or delete file, and the manifest that lists the file."""

    entry: Entry
    manifest: str
    partition: str  # a text that is equal for equal partition values
    path: str
    bytes: int
    split_offsets: tuple[int, ...]
    content: int
    is_plain_parquet: bool  # not encrypted
    only_file: str | None  # the data file of a position delete file that names only one
    delete: DeleteFile | None  # as tasks take it; None for a data file

    @property
    def sequence(self) -> int:
        """Return the data sequence number of the file."""
        return self.entry.sequence or 0

    def applies_to(self, data: ListedFile) -> bool:
        """Return whether this delete file may delete rows of a data file of its spec (spec, Scan Planning)."""
        if self.sequence < data.sequence + (self.content == EQUALITY_DELETES):
            return False
        return self.only_file == data.path if self.only_file is not None else self.partition == data.partition

    def file_slice(self, deletes: Sequence[ListedFile]) -> FileSlice:
        """Return the file as a slice, with the delete files that apply to the file."""
        applicable = tuple(file.delete for file in deletes if file.delete is not None and file.applies_to(self))
        records, offsets = self.entry.records, self.split_offsets
        return FileSlice(
            self.path, self.bytes, self.bytes, records, self.sequence, None, applicable, split_offsets=offsets
        )


@dataclass
class LiveFileReader:
    """Reads manifests of data or of delete files, each manifest once."""

    files: TableFiles
    writer: ManifestWriter
    _read: dict[str, list[ListedFile]] = field(default_factory=dict, init=False)

    def live(self, manifests: Sequence[ManifestFile]) -> list[ListedFile]:
        """Return the live files of the manifests. Raises `MetadataUnreadable` when the manifest list counts others."""
        unread = [manifest for manifest in manifests if manifest.path not in self._read]
        for manifest, source in zip(unread, read_manifests(self.files, [m.path for m in unread]), strict=True):
            entries = self.writer.live_entries(manifest, source)
            record = self.writer.data_files(entries)
            self._read[manifest.path] = [
                self._listed(entry, file, manifest.path) for entry, file in zip(entries, record, strict=True)
            ]
        return [file for manifest in manifests for file in self._read[manifest.path]]

    def _listed(self, entry: Entry, record: Mapping[int, Any], manifest: str) -> ListedFile:
        return ListedFile(
            entry,
            manifest,
            repr(self.writer.partition(entry.partition)),
            record[ids.FILE_PATH],
            int(record[ids.FILE_SIZE]),
            tuple(record.get(ids.SPLIT_OFFSETS) or ()),
            record.get(ids.CONTENT) or 0,
            record[ids.FILE_FORMAT].upper() == "PARQUET" and record.get(ids.KEY_METADATA) is None,
            only_data_file(record) if record.get(ids.CONTENT) == POSITION_DELETES else None,
            delete_file(record) if record.get(ids.CONTENT) else None,
        )


def delete_file(record: Mapping[int, Any]) -> DeleteFile:
    """Return a delete file as readers take it, by the values of its entry."""
    path = record[ids.FILE_PATH]
    if record[ids.CONTENT] == EQUALITY_DELETES:
        return DeleteFile(DeleteKind.EQUALITY, path, equality_ids=tuple(sorted(record.get(ids.EQUALITY_IDS) or ())))
    if record[ids.FILE_FORMAT].upper() != "PUFFIN":
        return DeleteFile(DeleteKind.POSITION, path)
    offset, length = (record.get(number) or 0 for number in (ids.CONTENT_OFFSET, ids.CONTENT_SIZE))
    return DeleteFile(DeleteKind.VECTOR, path, offset, length, int(record[ids.RECORD_COUNT]))


def only_data_file(record: Mapping[int, Any]) -> str | None:
    """Return the only data file of a position delete file: the referenced file, or equal bounds of `file_path`."""
    if record.get(ids.REFERENCED_DATA_FILE) is not None:
        return str(record[ids.REFERENCED_DATA_FILE])
    bounds = [
        next((file["value"] for file in record.get(bound_key) or () if file["key"] == ids.DELETED_PATH), None)
        for bound_key in (ids.LOWER_BOUNDS, ids.UPPER_BOUNDS)
    ]
    return bounds[0].decode() if bounds[0] is not None and bounds[0] == bounds[1] else None


def with_live_content(manifests: Iterable[ManifestFile], content: ManifestContent) -> list[ManifestFile]:
    """Return the manifests of this content that have live files."""
    return [m for m in manifests if m.content is content and m.live_files]


def manifest_record(entry: Mapping[str, Any]) -> dict[int, Any]:
    """Return the manifest record, by field id, of a new file in REST JSON."""

    def items(name: str) -> list[dict[str, Any]] | None:
        if name not in entry:
            return None
        keys, values = entry[name]["keys"], entry[name]["values"]
        return [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]

    values: dict[int, Any] = {ids.FILE_PATH: entry["file-path"], ids.FILE_FORMAT: entry["file-format"].upper()}
    values |= {number: entry.get(name) for name, number in _NUMBERS.items()}
    values |= {number: items(name) for name, number in _COUNTS.items()}
    for name, number in _BOUNDS.items():
        bounds = items(name)
        values[number] = bounds and [{**file, "value": bytes.fromhex(file["value"])} for file in bounds]
    return values


def removed_entries(members: Sequence[ListedFile], snapshot_id: int) -> list[Entry]:
    """Return the entries with status DELETED in the snapshot that removes the files."""
    return [replace(file.entry, status=DELETED, snapshot_id=snapshot_id) for file in members]


def rewrite_summary(
    current: Snapshot, removed: Sequence[ListedFile], dangling: Sequence[ListedFile], added: Sequence[Mapping[str, Any]]
) -> Mapping[str, str]:
    """Return the summary of a rewrite's snapshot: it replaces data files, and removes deletes that nothing needs."""
    of_kinds = {
        kind: [file for file in dangling if file.content == content]
        for kind, content in (("position", POSITION_DELETES), ("equality", EQUALITY_DELETES))
    }
    counts = {
        "added-data-files": len(added),
        "deleted-data-files": len(removed),
        "added-records": sum(int(entry["record-count"]) for entry in added),
        "deleted-records": sum(file.entry.records for file in removed),
        "added-files-size": sum(int(entry["file-size-in-bytes"]) for entry in added),
        "removed-files-size": sum(file.bytes for file in (*removed, *dangling)),
        "changed-partition-count": len({file.partition for file in removed}),
    }
    deletes = {"removed-delete-files": len(dangling)}
    for kind, files in of_kinds.items():
        deletes[f"removed-{kind}-delete-files"] = len(files)
        deletes[f"removed-{kind}-deletes"] = sum(file.entry.records for file in files)
    return with_totals(counts | {name: count for name, count in deletes.items() if count}, current)


def with_totals(counts: Mapping[str, int], current: Snapshot) -> Mapping[str, str]:
    """Return the summary of a snapshot that changes these counts, with the totals that the current one states."""
    totals = {}
    for name in current.summary:
        before, of = stated_number(current, name), name.removeprefix("total-")
        if before is None or of == name:
            continue
        total = before + counts.get(f"added-{of}", 0) - sum(counts.get(f"{gone}-{of}", 0) for gone in _GONE)
        if total >= 0:  # a negative total was wrong before
            totals[name] = total
    return {name: str(count) for name, count in {**counts, **totals}.items()}
