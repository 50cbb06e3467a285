"""Files as manifests list them: data files, position deletes and what they apply to, and entries of new files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icewright.adapters.engines.arrow.group import DeleteFile, DeleteKind, FileSlice
from icewright.adapters.engines.service.manifest_files import Entry, ManifestWriter, read_manifest
from icewright.core.errors import MetadataUnreadable
from icewright.core.table import ManifestContent, ManifestFile
from icewright.ports import TableFiles

_PATH, _FORMAT, _RECORDS, _BYTES, _KEY_METADATA, _SPLITS, _CONTENT = 100, 101, 103, 104, 131, 132, 134
_LOWER, _UPPER, _REFERENCED = 125, 128, 143
_DELETED_PATH = 2147483546  # the reserved id of `file_path` in position delete files
_POSITION_DELETES = 1
_NUMBERS = {"record-count": _RECORDS, "file-size-in-bytes": _BYTES, "split-offsets": _SPLITS, "sort-order-id": 140}
_COUNTS = {"column-sizes": 108, "value-counts": 109, "null-value-counts": 110, "nan-value-counts": 137}
_BOUNDS = {"lower-bounds": _LOWER, "upper-bounds": _UPPER}
SAID = frozenset((_PATH, _FORMAT, *_NUMBERS.values(), *_COUNTS.values(), *_BOUNDS.values()))


@dataclass(frozen=True, slots=True)
class Listed:
    """A live file, and the manifest that lists it."""

    entry: Entry
    manifest: str
    partition: str  # its values, as text that is equal where they are
    path: str
    bytes: int
    split_offsets: tuple[int, ...]
    content: int
    plain: bool  # Parquet, and not encrypted
    of: str | None  # the one data file that a position delete file is of

    @property
    def sequence(self) -> int:
        """Return the data sequence number of the file."""
        return self.entry.sequence or 0

    def applies_to(self, data: Listed) -> bool:
        """Return whether, as position deletes, it may delete rows of a data file (spec, Scan Planning)."""
        if self.sequence < data.sequence:
            return False
        return self.of == data.path if self.of is not None else self.partition == data.partition

    def piece(self, deletes: Sequence[Listed]) -> FileSlice:
        """As a task is told of it, with those of the deletes that apply."""
        own = tuple(DeleteFile(DeleteKind.POSITION, one.path) for one in deletes if one.applies_to(self))
        records, offsets = self.entry.records, self.split_offsets
        return FileSlice(self.path, self.bytes, self.bytes, records, self.sequence, None, own, split_offsets=offsets)


@dataclass
class ListedManifests:
    """Reads manifests of one content, each once."""

    files: TableFiles
    writer: ManifestWriter
    _read: dict[str, list[Listed]] = field(default_factory=dict, init=False)

    def live(self, manifests: Iterable[ManifestFile]) -> list[Listed]:
        """The live files of the manifests. Raises `MetadataUnreadable` where they are not as many as the list says."""
        return [one for manifest in manifests for one in self._of(manifest)]

    def _of(self, manifest: ManifestFile) -> list[Listed]:
        if manifest.path not in self._read:
            entries = self.writer.entries(manifest, read_manifest(self.files, manifest))
            if len(entries) != manifest.live_files:
                raise MetadataUnreadable(
                    f"{manifest.path} has {len(entries)} live files where its manifest list says {manifest.live_files}"
                )
            said = self.writer.data_files(entries)
            self._read[manifest.path] = [
                self._listed(entry, one, manifest.path) for entry, one in zip(entries, said, strict=True)
            ]
        return self._read[manifest.path]

    def _listed(self, entry: Entry, said: Mapping[int, Any], manifest: str) -> Listed:
        return Listed(
            entry,
            manifest,
            repr(self.writer.partition(entry.partition)),
            said[_PATH],
            int(said[_BYTES]),
            tuple(said.get(_SPLITS) or ()),
            said.get(_CONTENT) or 0,
            said[_FORMAT].upper() == "PARQUET" and said.get(_KEY_METADATA) is None,
            _single_file(said) if said.get(_CONTENT) == _POSITION_DELETES else None,
        )


def _single_file(said: Mapping[int, Any]) -> str | None:
    """Return the data file that a position delete file names, or that is both bounds of those in it."""
    if said.get(_REFERENCED) is not None:
        return str(said[_REFERENCED])
    bounds = [
        next((one["value"] for one in said.get(which) or () if one["key"] == _DELETED_PATH), None)
        for which in (_LOWER, _UPPER)
    ]
    return bounds[0].decode() if bounds[0] is not None and bounds[0] == bounds[1] else None


def content_of(manifests: Iterable[ManifestFile], content: ManifestContent) -> list[ManifestFile]:
    """Return the manifests that list live files of this content."""
    return [m for m in manifests if m.content is content and m.live_files]


def by_id(entry: Mapping[str, Any]) -> dict[int, Any]:
    """Return the entry of a file that was written, in the JSON of the spec's REST part, as a manifest holds it."""

    def items(name: str) -> list[dict[str, Any]] | None:
        if name not in entry:
            return None
        keys, values = entry[name]["keys"], entry[name]["values"]
        return [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]

    values: dict[int, Any] = {_PATH: entry["file-path"], _FORMAT: entry["file-format"].upper()}
    values |= {number: entry.get(name) for name, number in _NUMBERS.items()}
    values |= {number: items(name) for name, number in _COUNTS.items()}
    for name, number in _BOUNDS.items():
        found = items(name)
        values[number] = found and [{**one, "value": bytes.fromhex(one["value"])} for one in found]
    return values
