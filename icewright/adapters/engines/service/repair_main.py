"""A new snapshot of main in which counts and bounds are right, and from which lost files are gone.

Files of earlier snapshots never change, so that what is wrong in them stays until they expire.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from icewright.adapters.engines.service import manifest_list_files as lists
from icewright.adapters.engines.service.avro_records import Record
from icewright.adapters.engines.service.checked_entries import CheckedEntries
from icewright.adapters.engines.service.content_faults import check_content, corrected
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.manifest_bytes import read_manifest
from icewright.adapters.engines.service.manifest_files import DATA, DELETED, Entry, ManifestWriter
from icewright.adapters.engines.service.reachable import of_snapshots
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFault, FileFaultKind, name_mapping
from icewright.core.repair import LOST, MANIFESTS, RepairAction, RepairKind, Unrepaired, without_file
from icewright.core.runs import JOB_ID
from icewright.core.table import ManifestFile
from icewright.core.writer_state import total_files
from icewright.ports import Catalog, Clock, RepairRequest, TableFiles
from icewright.ports.work import WorkerThreads

_TOTALS = (
    "total-data-files",
    "total-delete-files",
    *("total-records", "total-position-deletes", "total-equality-deletes"),  # by a file's content
    "total-files-size",
)
NewManifest = tuple[ManifestFile, ManifestWriter, Sequence[Entry]]  # the replaced one, and what takes its place
_CONCURRENCY = 16  # requests
_ONE_MANIFEST = 1 << 62  # bytes: each manifest is replaced by one, whatever its size


def sizes(files: TableFiles, paths: Iterable[str]) -> Mapping[str, int | None]:
    """Return the lengths of files that may be lost, many asked for at once; None where there is no such file."""
    unique_paths = list(dict.fromkeys(paths))
    with WorkerThreads(_CONCURRENCY) as pool:
        return dict(zip(unique_paths, pool.map(files.size, unique_paths), strict=True))


@dataclass
class MainRepair:
    """The repairs of main's current snapshot; `actions` and `unrepaired` say what becomes of the faults."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    request: RepairRequest
    actions: list[RepairAction] = field(default_factory=list, init=False)
    unrepaired: list[Unrepaired] = field(default_factory=list, init=False)
    _lengths: dict[str, int] = field(default_factory=dict, init=False)  # of whole files whose entries say another one
    _totals: Counter[str] = field(default_factory=Counter, init=False)  # of the new snapshot, for its summary

    def run(self, correct: Sequence[FileFault], drop: Sequence[FileFault]) -> None:
        """Plan the new snapshot, and commit it unless this is a dry run."""
        base, faults = self.request.base, [*correct, *drop]
        head = base.current_snapshot
        try:
            rows = lists.read_list(self.files, (head and head.manifest_list) or "", base.format_version)
        except MetadataUnreadable:
            self._leave(faults, "it is not known what main has, as its manifest list cannot be read")
            return
        named = {rows.value(row, ids.MANIFEST_PATH): row for row in rows.records}
        if head is None or len(named) < len(rows.records):
            self._leave(faults, "main's manifest list names a manifest twice")
            return
        entries = CheckedEntries(self.files, of_snapshots(base, frozenset({head.snapshot_id})))
        live = defaultdict[str, list[ContentFile]](list)
        for file in entries.content_files():
            live[file.manifest].append(file)
        correct, drop = self._sorted_by_loss(correct, drop, live, entries.types)
        faults = [*correct, *drop]
        lost = self._lost_manifests(rows, named, drop)
        miscounted = {fault.path for fault in correct if fault.file == MANIFESTS} & named.keys()
        if miscounted and sum(map(len, live.values())) + sum(each.files for each in lost) != total_files(head):
            self._leave(faults, "main's manifests name other files than its summary counts: one may have lost some")
            return
        dropped = {action.path for action in lost}
        if any(
            sum(rows.value(row, n) or 0 for n in (ids.ADDED_FILES, ids.EXISTING_FILES))
            for path, row in named.items()
            if path not in {*live, *dropped}
        ):
            self._leave(faults, "main has a manifest that cannot be read, and that stays")
            return
        self.actions += lost
        replacing = Replacing(self.files, self.clock, self.catalog, base, head, self.files.manifests(head))
        new = self._new_manifests(replacing, live, faults, miscounted, entries.types)
        if self.actions and not self.request.dry_run:
            self._commit(replacing, new, dropped)

    def _new_manifests(
        self,
        replacing: Replacing,
        live: Mapping[str, Sequence[ContentFile]],
        faults: Sequence[FileFault],
        miscounted: AbstractSet[str],
        types: Mapping[int, Any],
    ) -> list[NewManifest]:
        """Return the manifests to replace, each with its new entries; count the files that the snapshot will have."""
        new: list[NewManifest] = []
        for manifest in replacing.listed:
            files = live.get(manifest.path, ())
            of_entries = {file.path for file in files} & {fault.path for fault in faults}
            of_manifest = [fault for fault in faults if fault.path in {manifest.path, *of_entries}]
            if manifest.path in miscounted or of_entries:
                try:
                    writer, made = self._rewritten(manifest, of_manifest, types, replacing.snapshot_id)
                except MetadataUnreadable as error:
                    self._leave(of_manifest, str(error))
                else:
                    new.append((manifest, writer, made))
                    continue
            self._count((file.content, file.values) for file in files)
        return new

    def _sorted_by_loss(
        self,
        correct: Sequence[FileFault],
        drop: Sequence[FileFault],
        live: Mapping[str, Sequence[ContentFile]],
        types: Mapping[int, Any],
    ) -> tuple[list[FileFault], list[FileFault]]:
        """Return what is corrected and what is dropped: a file of another length than its entry's may be whole."""
        named = {file.path: file for files in live.values() for file in files}
        corrected_faults, dropped = list[FileFault](), list(drop)
        for fault in correct:
            if fault.kind is not FileFaultKind.WRONG_LENGTH or fault.path in live:
                corrected_faults.append(fault)
            elif (file := named.get(fault.path)) and (size := self._whole_length(file, types)) is not None:
                self._lengths[fault.path] = size
                corrected_faults.append(fault)
            elif isinstance(why := without_file(fault, drop_lost=self.request.drop_lost), RepairKind):
                dropped.append(fault)
            else:
                self._leave([fault], why)
        return corrected_faults, dropped

    @cached_property
    def _sizes(self) -> Mapping[str, int | None]:
        return sizes(self.files, (fault.path for fault in self.request.faults if fault.kind in LOST))

    @property
    def _names(self) -> str | None:
        return name_mapping(self.request.base)

    def _whole_length(self, file: ContentFile, types: Mapping[int, Any]) -> int | None:
        """Return the length of a file whose entry has another; None unless its footer agrees with all else there."""
        size = self._sizes[file.path]
        if file.format != "PARQUET" or size is None or not file.mapped(ids.VALUE_COUNTS):
            return None
        sized = replace(file, values={**file.values, ids.FILE_SIZE: size})
        try:
            faults = check_content(self.files, sized, types, self.request.base.specs_by_id, {}, (), self._names)
        except MetadataUnreadable:
            return None
        return None if faults else size

    def _leave(self, faults: Sequence[FileFault], reason: str) -> None:
        self.unrepaired += [Unrepaired(fault, reason) for fault in faults]

    def _lost_manifests(
        self, rows: lists.Records, named: Mapping[str, Record], drop: Sequence[FileFault]
    ) -> list[RepairAction]:
        """Return what main loses with each lost manifest; one whose list does not say so stays."""
        actions = []
        for fault in drop:
            if (
                fault.file != MANIFESTS
                or fault.path not in named
                or not self._is_cut_or_gone(fault, rows.value(named[fault.path], ids.MANIFEST_LENGTH))
            ):
                continue
            content, *counts = (
                rows.value(named[fault.path], number)
                for number in (
                    ids.MANIFEST_CONTENT,
                    ids.ADDED_FILES,
                    ids.EXISTING_FILES,
                    ids.ADDED_ROWS,
                    ids.EXISTING_ROWS,
                )
            )
            if content:
                self._leave([fault], "without it, rows that were deleted would come back")
            elif None in counts:
                self._leave([fault], "the manifest list does not say how many rows it has")
            else:
                files, lost = counts[0] + counts[1], counts[2] + counts[3]
                actions.append(RepairAction(RepairKind.DROP, fault.path, fault.detail, lost, files))
        return actions

    def _rewritten(
        self, manifest: ManifestFile, faults: Sequence[FileFault], types: Mapping[int, Any], snapshot_id: int
    ) -> tuple[ManifestWriter, list[Entry]]:
        """Return the entries of the manifest that takes the place of one, and note what becomes of the faults."""
        base, actions = self.request.base, list[RepairAction]()
        source = read_manifest(self.files, manifest.path)
        writer = ManifestWriter(source, base, manifest.spec_id, manifest.content)
        kept = list[tuple[int, Mapping[int, Any]]]()
        faults_by_path = defaultdict[str, list[FileFault]](list)
        for fault in faults:
            faults_by_path[fault.path].append(fault)
        entries = writer.entries(manifest, source)
        for index, (entry, values) in enumerate(zip(entries, writer.data_files(entries), strict=True)):
            of_file = faults_by_path.get(values[ids.FILE_PATH], [])
            size = self._lengths.get(values[ids.FILE_PATH])
            lost = next((fault for fault in of_file if fault.kind in LOST), None) if size is None else None
            if lost is not None and self._is_cut_or_gone(lost, values[ids.FILE_SIZE]):
                entries[index] = replace(entry, status=DELETED, snapshot_id=snapshot_id)
                actions.append(RepairAction(RepairKind.DROP, lost.path, lost.detail, entry.records, files=1))
                continue
            real = values if size is None else {**values, ids.FILE_SIZE: size}
            file = ContentFile(manifest.path, manifest.spec_id, entry.status, entry.sequence or 0, real)
            right: Mapping[int, Any] = values
            if of_file and not lost:
                right = corrected(self.files, file, types, base.specs_by_id, self._names)
            if right != values:
                entries[index] = writer.changed(entry, right)
                actions += [RepairAction(RepairKind.CORRECT, fault.path, fault.detail) for fault in of_file]
            elif not lost:
                self._leave(of_file, "its footer does not prove what would be right")
            kept.append((file.content, right))
        actions += [
            RepairAction(RepairKind.CORRECT, manifest.path, fault.detail) for fault in faults_by_path[manifest.path]
        ]
        self.actions += actions
        self._count(kept)
        return writer, entries

    def _is_cut_or_gone(self, fault: FileFault, length: int) -> bool:
        """Return whether a lost file is still cut or missing; a longer one is left, as another file of its name."""
        size = self._sizes[fault.path]
        if size is not None and size > length:
            self._leave([fault], "it is longer than it was: whether it has the same rows is not known")
        return size is None or size < length

    def _count(self, files: Iterable[tuple[int, Mapping[int, Any]]]) -> None:
        """Count files of the new snapshot, each by its content and the values of its entry."""
        for content, values in files:
            self._totals[_TOTALS[0] if content == DATA else _TOTALS[1]] += 1
            self._totals[_TOTALS[2 + content]] += values[ids.RECORD_COUNT]
            self._totals[_TOTALS[-1]] += values[ids.FILE_SIZE]

    def _commit(self, replacing: Replacing, new: Sequence[NewManifest], dropped: AbstractSet[str]) -> None:
        """Commit the snapshot. Raises `CommitConflict` when the table has changed since `base`."""
        lost = [action for action in self.actions if action.kind is RepairKind.DROP]
        totals = {name: str(self._totals[name]) for name in replacing.current.summary if name in _TOTALS}
        files, records = sum(action.files for action in lost), sum(action.rows for action in lost)
        deleted = {"operation": "delete", "deleted-data-files": str(files), "deleted-records": str(records)}
        with replacing.undone_unless_committed():
            for _, writer, entries in new:
                replacing.write(writer, entries, _ONE_MANIFEST, 1)
            self.request.check()
            gone = {manifest.path for manifest, _, _ in new} | dropped
            replacing.commit(gone, {**totals, **(deleted if lost else {}), JOB_ID: self.request.job_id})
