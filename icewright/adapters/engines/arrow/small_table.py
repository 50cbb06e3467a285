"""Small tables without deletes: planned and committed by the service, which has read their manifests anyway.

What Iceberg's planner and commit do in the JVM takes longer than rewriting a few small files, and where nothing but
data files is concerned little of it is needed. Whatever else is there is left to Iceberg's own means.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote_plus

from icewright.adapters.engines.arrow.group import Piece, SortField
from icewright.adapters.engines.arrow.table import Done, FileGroup
from icewright.adapters.engines.arrow.types import single_value
from icewright.adapters.engines.service.manifest_files import DELETED, Entry, ManifestWriter, read_manifest
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    MetadataUnreadable,
    TableReplaced,
)
from icewright.core.runs import JOB_ID
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, TableMetadata, columns
from icewright.ports import Catalog, Clock, Files

_MOST_FILES = 2_000  # beyond, the JVM's part is small beside the rest
_VERSION = 2  # of the format: older ones have no sequence numbers, newer ones number their rows
_MANIFEST_BYTES = 8 << 20  # of a manifest, as Iceberg has it by default
_RETRIES, _WAIT_MS, _MOST_WAIT_MS = 4, 100, 60_000  # Iceberg's defaults of commit.retry.*
_SPLIT_OVERHEAD = 5 * 1024  # as SizeBasedFileRewritePlanner has it
_PLACED_BY = ("write.location-provider.impl", "write.py-location-provider.impl")
_PATH, _FORMAT, _RECORDS, _BYTES, _KEY_METADATA, _SPLITS = 100, 101, 103, 104, 131, 132
_NUMBERS = {"record-count": _RECORDS, "file-size-in-bytes": _BYTES, "split-offsets": _SPLITS, "sort-order-id": 140}
_COUNTS = {"column-sizes": 108, "value-counts": 109, "null-value-counts": 110, "nan-value-counts": 137}
_BOUNDS = {"lower-bounds": 125, "upper-bounds": 128}
_SAID = (_PATH, _FORMAT, *_NUMBERS.values(), *_COUNTS.values(), *_BOUNDS.values())


@dataclass(frozen=True, slots=True)
class _Live:
    """A live data file, and the manifest that lists it."""

    entry: Entry
    manifest: str
    piece: Piece
    plain: bool  # Parquet, and not encrypted


@dataclass
class SmallTable:
    """A table as `base` has it. Made by `small_table` alone."""

    files: Files
    clock: Clock
    catalog: Catalog
    base: TableMetadata
    planned: Snapshot  # its current one
    app_id: str  # of the Spark application whose tasks write
    stores: Callable[[], Mapping[str, str]]  # by which properties files elsewhere are opened
    writer: ManifestWriter
    _now: TableMetadata = field(init=False)
    _read: dict[str, list[_Live]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._now = self.base

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.base.properties

    @property
    def location(self) -> str:
        """Where the table lies."""
        return self.base.location

    @property
    def lineage(self) -> bool:
        """Rows of format v2 have no ids."""
        return False

    @property
    def schema(self) -> Mapping[str, Any]:
        """The current schema as the spec's JSON."""
        return self.base.schema

    @property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """It has none."""
        return None

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """No equality delete asks for them."""
        return {}

    def storage(self) -> Mapping[str, str]:
        """By which properties the table's files are opened."""
        return self.stores()

    def remove_dangling_deletes(self) -> None:
        """There are no deletes at all."""

    def discard(self, paths: Iterable[str]) -> None:
        """Remove outputs that nobody will commit."""
        self.files.delete(list(paths), 1)

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """The files that Iceberg's planner takes, a group for each partition."""
        candidates = self.files.candidates(self.base, step)
        chosen = {fate.path for fate in candidates}
        groups: dict[bytes, list[_Live]] = {}
        for one in self._live(_data(self.files, self.base)):
            if one.piece.path in chosen:
                groups.setdefault(one.entry.partition, []).append(one)
        if sum(map(len, groups.values())) != len(candidates):
            raise MetadataUnreadable(f"{self.base.metadata_location} was read twice, and said another thing each time")
        sizes = Sizes(*(int(step.options[f"{name}-file-size-bytes"]) for name in ("target", "min", "max")))
        return [self._group(some, sizes) for some in groups.values()]

    def place(self, group: FileGroup, number: int) -> str:
        """In the folder of its partition, as Iceberg's default location provider has it."""
        return f"{group.planned}/{number:05d}-{uuid.uuid4()}"

    def commit(self, done: Sequence[Done], *, starting_sequence: bool, job_id: str) -> None:
        """One `replace` snapshot for the groups.

        Whoever committed meanwhile, the files must all be there still and no delete must have come. Raises
        `CommitConflict` where that is not so, and when others are quicker again and again.
        """
        retries = self._number("commit.retry.num-retries", _RETRIES)
        wait, longest = (
            self._number(f"commit.retry.{name}-wait-ms", default)
            for name, default in (("min", _WAIT_MS), ("max", _MOST_WAIT_MS))
        )
        try:
            _same_rows(self.base, done)
            for attempt in range(retries + 1):
                commit = self._prepared(self._now, done, job_id, starting_sequence=starting_sequence)
                try:
                    self._now = commit()
                except CommitConflict:
                    if attempt == retries:
                        raise
                    self.clock.sleep(min(wait * 2**attempt, longest) / 1000)
                    self._now = self.catalog.load(self.base.ref)
                else:
                    return
        except (CommitStateUnknown, InvariantViolated):
            raise  # the table may refer to the new files
        except Exception:
            self.discard(str(entry["file-path"]) for _, entries in done for entry in entries)
            raise

    def _number(self, name: str, default: int) -> int:
        """A property of the table; what is no number is as if it were not set."""
        said = self.properties.get(name, "")
        return int(said) if said.isdecimal() else default

    def _prepared(
        self, now: TableMetadata, done: Sequence[Done], job_id: str, *, starting_sequence: bool
    ) -> Callable[[], TableMetadata]:
        """The commit to the table as it is now. Raises `CommitConflict` where trying again would not help."""
        current = self._comes_after(now)
        gone = {piece.path for group, _ in done for piece in group.files}
        live = self._live(_data(self.files, now))
        removed = [one for one in live if one.piece.path in gone]
        if len(removed) != sum(len(group.files) for group, _ in done):
            raise CommitConflict(f"{now.ref}: a writer removed files that compaction had rewritten")
        touched = {one.manifest: None for one in removed}
        kept = [one.entry for one in live if one.manifest in touched and one.piece.path not in gone]
        like = {one.piece.path: one.entry for one in removed}
        replacing = Replacing(self.files, self.clock, self.catalog, now, current, self.files.manifests(current))
        mine, sequence = replacing.snapshot_id, self.planned.sequence_number if starting_sequence else None
        added = [
            self.writer.added(_by_id(entry), like[group.files[0].path], mine, sequence)
            for group, entries in done
            for entry in entries
        ]
        before = [replace(one.entry, status=DELETED, snapshot_id=mine) for one in removed]
        each = sum(len(entry.data_file) for entry in (*kept, *added, *before)) / max(1, len(kept + added + before))
        target = self._number("commit.manifest.target-size-bytes", _MANIFEST_BYTES)
        dead = [m.path for m in replacing.listed if not m.live_files]  # told what an earlier snapshot removed
        summary = _summary(current, removed, [entry for _, entries in done for entry in entries])
        said = {"app-id": self.app_id, "spark.app.id": self.app_id, **summary, JOB_ID: job_id}

        def commit() -> TableMetadata:
            with replacing.undone_unless_committed():
                replacing.write(self.writer, [*added, *kept], each, target)
                replacing.write(self.writer, before, each, target)
                return replacing.commit([*touched, *dead], said)

        return commit

    def _comes_after(self, now: TableMetadata) -> Snapshot:
        """The current snapshot. Raises unless the table is the planned one, and has nothing that is not done here."""
        if now.table_uuid != self.base.table_uuid:
            raise TableReplaced(f"{now.ref} was replaced by another table while it was compacted")
        if now.current_snapshot is None:
            raise CommitConflict(f"{now.ref}: a writer took all snapshots from main while it was compacted")
        if now is not self.base and (why := _against(self.files, now)) is not None:
            raise CommitConflict(f"{now.ref}: since compaction was planned a writer changed {why}")
        return now.current_snapshot

    def _live(self, manifests: Sequence[ManifestFile]) -> list[_Live]:
        return [one for manifest in manifests for one in self._of(manifest)]

    def _of(self, manifest: ManifestFile) -> list[_Live]:
        """The live files of a manifest, which is read once."""
        if manifest.path not in self._read:
            entries = self.writer.entries(manifest, read_manifest(self.files, manifest))
            if len(entries) != manifest.live_files:
                raise MetadataUnreadable(
                    f"{manifest.path} has {len(entries)} live files where its manifest list says {manifest.live_files}"
                )
            said = self.writer.data_files(entries)
            self._read[manifest.path] = [_as_live(*one, manifest.path) for one in zip(entries, said, strict=True)]
        return self._read[manifest.path]

    def _group(self, some: Sequence[_Live], sizes: Sizes) -> FileGroup:
        size = sum(one.piece.bytes for one in some)
        files, folder, constants = tuple(one.piece for one in some), self._folder(some[0]), self._constants(some[0])
        return FileGroup(folder, files, sizes.outputs(size), sizes.split(size), constants)

    def plain(self) -> bool:
        """Whether all files are Parquet, none is encrypted, and each lies in folders of its partition."""
        return all(one.plain and self._folder(one) for one in self._live(_data(self.files, self.base)))

    def _folder(self, one: _Live) -> str | None:
        """Where files of its partition belong, by the names that its writer gave the folders; None: it gave none."""
        said = ("write.data.path", "write.folder-storage.path")
        place = next((self.properties[name] for name in said if self.properties.get(name)), f"{self.location}/data")
        names = [field.name for field in self.base.spec(self.base.default_spec_id).fields]
        folders = one.piece.path.split("/")[-len(names) - 1 : -1]
        if [unquote_plus(folder.partition("=")[0]) for folder in folders] != names:
            return None
        return "/".join((place.rstrip("/"), *folders))

    def _constants(self, one: _Live) -> Mapping[int, Any]:
        """The values of identity partition fields, by their source."""
        kinds = {number: kind for number, _, kind in columns(self.schema)}
        fields = self.base.spec(self.base.default_spec_id).fields
        values = zip(fields, self.writer.partition(one.entry.partition), strict=True)
        return {
            field.source_id: single_value(kinds[field.source_id], value)
            for field, value in values
            if field.transform == "identity" and field.source_id in kinds
        }


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many files come of so many bytes (Iceberg's SizeBasedFileRewritePlanner). All in bytes."""

    target: int
    least: int
    most: int

    def outputs(self, size: int) -> int:
        """Files of about the target; a rest that would be too small goes to the others, unless they grew too large."""
        if size < self.target:
            return 1
        whole, rest = divmod(size, self.target)
        small = rest <= self.least and size / whole < min(1.1 * self.target, self._largest)
        return whole if small or not rest else whole + 1

    def split(self, size: int) -> int:
        """Bytes that one task reads at most."""
        return min(max(self.target, size // self.outputs(size) + _SPLIT_OVERHEAD), self._largest)

    @property
    def _largest(self) -> int:
        """Bytes of a file as it is written: half way to where it would be rewritten again."""
        return self.target + (self.most - self.target) // 2


def small_table(
    files: Files,
    clock: Clock,
    catalog: Catalog,
    base: TableMetadata,
    step: RewriteDataFiles,
    app_id: str,
    stores: Callable[[], Mapping[str, str]],
) -> SmallTable | None:
    """The table, if it is one of those, and the step asks for no more than is done here."""
    planned = base.current_snapshot
    if planned is None or step.user_where is not None or _against(files, base) is not None:
        return None
    if step.bytes > int(step.options["max-file-group-size-bytes"]):  # then a partition may be several groups
        return None
    model = next((read_manifest(files, one) for one in _data(files, base)), None)
    writer = None if model is None else ManifestWriter(model, base, base.default_spec_id)
    if writer is None or not writer.says(_SAID):
        return None
    table = SmallTable(files, clock, catalog, base, planned, app_id, stores, writer)
    return table if table.plain() else None


def _against(files: Files, base: TableMetadata) -> str | None:
    """What there is that is not done here; None when there is nothing."""
    snapshot, properties = base.current_snapshot, base.properties
    if base.format_version != _VERSION or snapshot is None or snapshot.manifest_list is None:
        return "its format"
    if base.sort_order_id:
        return "its sort order"
    if properties.get("write.object-storage.enabled") == "true" or any(name in properties for name in _PLACED_BY):
        return "the places of its files"
    manifests = [m for m in files.manifests(snapshot) if m.live_files]
    if any(m.content is ManifestContent.DELETES for m in manifests):
        return "rows by delete files"
    if any(m.spec_id != base.default_spec_id for m in manifests):
        return "its partition spec"
    return "most of its files" if sum(m.live_files for m in manifests) > _MOST_FILES else None


def _data(files: Files, metadata: TableMetadata) -> list[ManifestFile]:
    """The manifests that list live data files."""
    snapshot = metadata.current_snapshot
    listed = () if snapshot is None else files.manifests(snapshot)
    return [m for m in listed if m.content is ManifestContent.DATA and m.live_files]


def _as_live(entry: Entry, said: Mapping[int, Any], manifest: str) -> _Live:
    size = int(said[_BYTES])
    piece = Piece(
        said[_PATH], size, size, entry.records, entry.sequence or 0, None, split_offsets=tuple(said[_SPLITS] or ())
    )
    return _Live(entry, manifest, piece, said[_FORMAT].upper() == "PARQUET" and said.get(_KEY_METADATA) is None)


def _by_id(entry: Mapping[str, Any]) -> dict[int, Any]:
    """The entry of a file that was written, in the JSON of the spec's REST part, as a manifest holds it."""

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


def _same_rows(base: TableMetadata, done: Sequence[Done]) -> None:
    """Raise unless each group has as many rows as before: there is no delete that could take one."""
    for group, entries in done:
        had, has = sum(piece.records for piece in group.files), sum(int(entry["record-count"]) for entry in entries)
        if had != has:
            raise InvariantViolated(f"{base.ref}: compaction wrote {has} rows of {had}; nothing was committed")


def _summary(current: Snapshot, removed: Sequence[_Live], added: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """What changed, in Iceberg's words, and the totals as far as the snapshot before knew them."""
    new = (len(added), *(sum(int(e[name]) for e in added) for name in ("record-count", "file-size-in-bytes")))
    old = (len(removed), sum(one.piece.records for one in removed), sum(one.piece.bytes for one in removed))
    partitions = len({one.entry.partition for one in removed})
    names = ("data-files", "records", "files-size")
    totals = {
        f"total-{name}": str(int(current.summary[f"total-{name}"]) + more - less)
        for name, more, less in zip(names, new, old, strict=True)
        if current.summary.get(f"total-{name}", "").isdecimal()
    }
    kept = {name: said for name, said in current.summary.items() if name.startswith("total-")}
    changes = (("added", new), ("deleted", old))
    counts = {f"{how}-{name}": str(n) for how, some in changes for name, n in zip(names[:2], some, strict=False)}
    sizes = {"added-files-size": str(new[2]), "removed-files-size": str(old[2])}
    return {**counts, **sizes, "changed-partition-count": str(partitions), **kept, **totals}
