"""Repairs of a table's metadata, each only where it is provably right.

A lost manifest list is written again under its own name, so that nothing else changes. It is the list of a snapshot
that was made from it, without what that one added, or that of the snapshot before, with the manifests that only the
lost one can have named; the counts of its snapshot's summary must agree. All else is a new snapshot of main, with
manifests in which counts and bounds are right, or from which lost files are gone. A lost manifest is written again
under its name too, where manifests of neighbouring snapshots prove what it had (`lost_manifests`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from icewright.adapters.engines.service import manifest_list_files as lists
from icewright.adapters.engines.service.folders import files_below
from icewright.adapters.engines.service.lost_manifests import LostManifests
from icewright.adapters.engines.service.own_manifests import added_by, avro_files
from icewright.adapters.engines.service.repair_main import MainRepair, sizes
from icewright.core import field_ids as ids
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFault, FileFaultKind
from icewright.core.paths import key
from icewright.core.places import Spelling
from icewright.core.repair import LISTS, MANIFESTS, RepairAction, RepairKind, RepairPlan, Unrepaired, ordered, proposed
from icewright.core.table import FORMAT_V3, Snapshot
from icewright.core.words import count
from icewright.ports import Catalog, Clock, RepairRequest, TableFiles

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SPELLING = Spelling()
_TOTALS = "total-data-files", "total-delete-files", "total-records"


@dataclass
class TableRepair:
    """One repair of one table, or its dry run."""

    files: TableFiles
    clock: Clock
    catalog: Catalog
    request: RepairRequest
    _actions: list[RepairAction] = field(default_factory=list, init=False)
    _unrepaired: list[Unrepaired] = field(default_factory=list, init=False)
    _rebuilt: dict[int, lists.Records] = field(default_factory=dict, init=False)  # lists by snapshot

    def run(self) -> RepairPlan:
        """Repair what can be repaired. Raises `CommitConflict` when main has changed since `base`."""
        kinds, manifests = defaultdict[RepairKind, list[FileFault]](list), list[tuple[FileFault, RepairKind | str]]()
        moved = self._moved()
        for fault in self.request.faults:
            choice = moved.get(fault.path) or proposed(
                self.request.base, fault, drop_lost=self.request.drop_lost, main_is_known=self.request.main_is_known
            )
            if fault.path not in moved and fault.file == MANIFESTS and fault.kind is FileFaultKind.MISSING:
                manifests.append((fault, choice))
            elif choice is RepairKind.REBUILD and not self._is_own(fault.path):
                self._leave([fault], "it lies in no place of the table, where a repair may write: put it back there")
            elif isinstance(choice, RepairKind):
                kinds[choice].append(fault)
            else:
                self._unrepaired.append(Unrepaired(fault, choice))
        self._rebuild_lists({fault.path: fault for fault in kinds[RepairKind.REBUILD] if fault.file == LISTS})
        for fault, otherwise in manifests:
            if self._rebuild_manifest(fault):
                continue
            if isinstance(otherwise, RepairKind):
                kinds[otherwise].append(fault)
            else:
                self._unrepaired.append(Unrepaired(fault, otherwise))
        if kinds[RepairKind.CORRECT] or kinds[RepairKind.DROP]:
            main = MainRepair(self.files, self.clock, self.catalog, self.request)
            main.run(kinds[RepairKind.CORRECT], kinds[RepairKind.DROP])
            self._actions += main.actions
            self._unrepaired += main.unrepaired
        return ordered(self._actions, self._unrepaired)

    def _moved(self) -> Mapping[str, str]:
        """Return for each missing file whose name lies elsewhere in the table's places where: it is not lost.

        Only of names with a UUID, which no two files share.
        """
        missing = {
            fault.path.rpartition("/")[2]: fault.path
            for fault in self.request.faults
            if fault.kind is FileFaultKind.MISSING and fault.file != LISTS
        }
        names, reasons = [name for name in missing if _UUID.search(name)], {}
        for place in self.request.base.roots if names else ():
            for frame in files_below(self.files, place):
                named = frame.select("path", name=pl.col("path").str.split("/").list.last())
                for path, name in named.filter(pl.col("name").is_in(names)).iter_rows():
                    reasons[missing[name]] = f"a file of this name is {path}: put it back"
        return reasons

    def _is_own(self, path: str) -> bool:
        """Return whether a file lies in the table's places: whoever wrote its metadata may have named any other."""
        base, canonical = self.request.base, self.files.canonical
        folder = _SPELLING.place(canonical(path.rpartition("/")[0]))
        return any(folder.within(_SPELLING.place(canonical(root))) for root in base.folders)

    def _leave(self, faults: Sequence[FileFault], reason: str) -> None:
        self._unrepaired += [Unrepaired(fault, reason) for fault in faults]

    def _rebuild_lists(self, lost: Mapping[str, FileFault]) -> None:
        base = self.request.base
        newest_first = sorted(base.snapshots, key=lambda s: (s.sequence_number, s.timestamp), reverse=True)
        lengths = sizes(self.files, lost)
        missing = [s for s in newest_first if lengths.get(s.manifest_list or "", 0) is None]
        for snapshot in (*missing, *reversed(missing)):  # each may need one that comes after it, or one before
            path = snapshot.manifest_list or ""
            if snapshot.snapshot_id in self._rebuilt:
                continue
            if (rows := self._rows_before_children(snapshot) or self._rows_of_append(snapshot)) is None:
                continue
            self._rebuilt[snapshot.snapshot_id] = rows
            detail = f"written again with {count(len(rows.records), 'manifest')}"
            self._actions.append(RepairAction(RepairKind.REBUILD, path, detail))
            if not self.request.dry_run:
                self.request.check()
                numbers = snapshot.snapshot_id, snapshot.parent_id, snapshot.sequence_number
                self.files.write(path, lists.manifest_list(rows, rows.records, [], base, *numbers))
        unproved = [lost[s.manifest_list or ""] for s in missing if s.snapshot_id not in self._rebuilt]
        self._leave(unproved, "neither the snapshot before nor one made from it proves what the list had")

    def _rebuild_manifest(self, fault: FileFault) -> bool:
        """Write a lost manifest again where neighbours prove what it had; return whether they do."""
        content = self._lost_manifests.content(fault.path) if self._is_own(fault.path) else None
        if content is None:
            return False
        self._actions.append(RepairAction(RepairKind.REBUILD, fault.path, "written again from neighbouring manifests"))
        if not self.request.dry_run and self.files.size(fault.path) is None:
            self.request.check()
            self.files.write(fault.path, content)
        return True

    @cached_property
    def _lost_manifests(self) -> LostManifests:
        def rows(snapshot: Snapshot) -> lists.Records:
            return self._rebuilt.get(snapshot.snapshot_id) or self._list(snapshot.manifest_list or "")

        return LostManifests(self.files, self.request.base, rows)

    def _rows_before_children(self, snapshot: Snapshot) -> lists.Records | None:
        """Return what the snapshot listed; None where no snapshot that was made from it proves it."""
        for child in self.request.base.snapshots:
            if child.parent_id != snapshot.snapshot_id or child.manifest_list is None:
                continue
            try:
                rows = self._rebuilt.get(child.snapshot_id) or self._list(child.manifest_list)
            except MetadataUnreadable:
                continue
            own = [row for row in rows.records if rows.value(row, ids.ADDED_SNAPSHOT_ID) == child.snapshot_id]
            rest = replace(rows, records=[row for row in rows.records if row not in own])
            only_added = all(
                rows.value(row, number) == 0 for row in own for number in (ids.EXISTING_FILES, ids.DELETED_FILES)
            )
            if only_added and _has_totals(rest, snapshot):
                return rest
        return None

    def _rows_of_append(self, snapshot: Snapshot) -> lists.Records | None:
        """Return what a snapshot lists that added files to the one before; None where nothing proves which."""
        base = self.request.base
        parent = base.by_id.get(snapshot.parent_id or 0)
        hands_out_row_ids = base.format_version >= FORMAT_V3
        if parent is None or parent.manifest_list is None or snapshot.operation != "append" or hands_out_row_ids:
            return None
        try:
            before = self._rebuilt.get(parent.snapshot_id) or self._list(parent.manifest_list)
        except MetadataUnreadable:
            return None
        others = {key(before.value(row, ids.MANIFEST_PATH)) for row in before.records}
        candidates = {path: size for path, size in self._avro_files.items() if key(path) not in others}
        own = added_by(self.files, base, snapshot, candidates)
        rows = lists.with_written(before, own, snapshot.snapshot_id, snapshot.sequence_number)
        added = {
            "added-data-files": sum(m.entries for m in own),
            "added-records": sum(m.row[ids.ADDED_ROWS] for m in own),
        }
        stated = all(snapshot.summary.get(name) == str(number) for name, number in added.items())
        return rows if own and stated and _has_totals(rows, snapshot) else None

    @cached_property
    def _avro_files(self) -> Mapping[str, int]:
        return avro_files(self.files, self.request.base)

    def _list(self, path: str) -> lists.Records:
        return lists.read_list(self.files, path, self.request.base.format_version)


def _has_totals(rows: lists.Records, snapshot: Snapshot) -> bool:
    """Return whether the manifests have as many files and rows as the snapshot's summary says."""
    totals = Counter[str](dict.fromkeys(_TOTALS, 0))
    for row in rows.records:
        deletes = bool(rows.value(row, ids.MANIFEST_CONTENT))
        counts = [
            rows.value(row, number)
            for number in (ids.ADDED_FILES, ids.EXISTING_FILES, ids.ADDED_ROWS, ids.EXISTING_ROWS)
        ]
        if None in counts:
            return False
        totals[_TOTALS[deletes]] += counts[0] + counts[1]
        totals[_TOTALS[2]] += 0 if deletes else counts[2] + counts[3]
    return all(snapshot.summary.get(name) == str(totals[name]) for name in _TOTALS)
