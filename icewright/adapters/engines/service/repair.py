"""Repairs of a table's metadata, each only where it is provably right.

A lost manifest list is written again under its own name, so that nothing else changes: the list of a snapshot that was
made from it, without what that one added, is it, if the counts of its snapshot's summary agree. All else is a new
snapshot of main, with manifests in which counts and bounds are right, or from which lost files are gone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from icewright.adapters.engines.service import manifest_list_files as lists
from icewright.adapters.engines.service.repair_main import MainRepair
from icewright.core.errors import MetadataUnreadable
from icewright.core.integrity import FileFault
from icewright.core.repair import RepairAction, RepairKind, RepairPlan, Unrepaired, ordered, proposed
from icewright.core.table import Snapshot
from icewright.core.words import count
from icewright.ports import Catalog, Clock, RepairRequest, TableFiles

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
        kinds = defaultdict[RepairKind, list[FileFault]](list)
        for fault in self.request.faults:
            choice = proposed(self.request.base, fault, drop_lost=self.request.drop_lost)
            if isinstance(choice, RepairKind):
                kinds[choice].append(fault)
            else:
                self._unrepaired.append(Unrepaired(fault, choice))
        self._rebuild_lists({fault.path: fault for fault in kinds[RepairKind.REBUILD]})
        if kinds[RepairKind.CORRECT] or kinds[RepairKind.DROP]:
            main = MainRepair(self.files, self.clock, self.catalog, self.request)
            main.run(kinds[RepairKind.CORRECT], kinds[RepairKind.DROP])
            self._actions += main.actions
            self._unrepaired += main.unrepaired
        return RepairPlan(ordered(self._actions), tuple(self._unrepaired))

    def _leave(self, faults: Sequence[FileFault], reason: str) -> None:
        self._unrepaired += [Unrepaired(fault, reason) for fault in faults]

    def _rebuild_lists(self, lost: Mapping[str, FileFault]) -> None:
        base = self.request.base
        newest_first = sorted(base.snapshots, key=lambda s: (s.sequence_number, s.timestamp), reverse=True)
        for snapshot in newest_first:
            path = snapshot.manifest_list or ""
            if path not in lost or self.files.size(path) is not None:
                continue
            if (rows := self._rows_before_children(snapshot)) is None:
                self._leave([lost[path]], "no snapshot that was made from it tells provably what the list had")
                continue
            self._rebuilt[snapshot.snapshot_id] = rows
            detail = f"written again with {count(len(rows.records), 'manifest')}"
            self._actions.append(RepairAction(RepairKind.REBUILD, path, detail))
            if not self.request.dry_run:
                self.request.check()
                ids = snapshot.snapshot_id, snapshot.parent_id, snapshot.sequence_number
                self.files.write(path, lists.manifest_list(rows, rows.records, [], base, *ids))

    def _rows_before_children(self, snapshot: Snapshot) -> lists.Records | None:
        """Return what the snapshot listed; None where no snapshot that was made from it proves it."""
        for child in self.request.base.snapshots:
            if child.parent_id != snapshot.snapshot_id or child.manifest_list is None:
                continue
            try:
                rows = self._rebuilt.get(child.snapshot_id) or self._list(child.manifest_list)
            except MetadataUnreadable:
                continue
            own = [row for row in rows.records if rows.value(row, 503) == child.snapshot_id]
            rest = replace(rows, records=[row for row in rows.records if row not in own])
            only_added = all(rows.value(row, number) == 0 for row in own for number in (505, 506))
            if only_added and _has_totals(rest, snapshot):
                return rest
        return None

    def _list(self, path: str) -> lists.Records:
        return lists.read_list(self.files, path, self.request.base.format_version)


def _has_totals(rows: lists.Records, snapshot: Snapshot) -> bool:
    """Return whether the manifests have as many files and rows as the snapshot's summary says."""
    found = Counter[str](dict.fromkeys(_TOTALS, 0))
    for row in rows.records:
        deletes = bool(rows.value(row, 517))
        counts = [rows.value(row, number) for number in (504, 505, 512, 513)]
        if None in counts:
            return False
        found[_TOTALS[deletes]] += counts[0] + counts[1]
        found[_TOTALS[2]] += 0 if deletes else counts[2] + counts[3]
    return all(snapshot.summary.get(name) == str(found[name]) for name in _TOTALS)
