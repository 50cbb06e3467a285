"""Repairs of what a check found: which are provably right, and which need a person's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from icewright.core.integrity import FileFault, FileFaultKind
from icewright.core.table import FORMAT_V3, TableMetadata
from icewright.core.writer_state import summary_number

LISTS, MANIFESTS, DATA = "manifest list", "manifest", "data"  # what a fault calls a file
LOST = {FileFaultKind.MISSING, FileFaultKind.WRONG_LENGTH}
_MISSTATED = {FileFaultKind.WRONG_COUNT, FileFaultKind.WRONG_BOUNDS}
_CONTENT = (DATA, "position deletes", "equality deletes")


class RepairKind(StrEnum):
    """The way in which a repair treats a file."""

    REBUILD = "rebuild"  # a lost manifest list or manifest is written again, from those of neighbouring snapshots
    CORRECT = "correct"  # main gets a manifest in which counts and bounds are right
    DROP = "drop"  # main goes on without a data file that is lost, or without all that a lost manifest named


@dataclass(frozen=True, slots=True)
class RepairAction:
    """A repair of a file, with what main loses by it."""

    kind: RepairKind
    path: str
    detail: str
    rows: int = 0  # that main loses
    files: int = 0


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """A fault that stays, and why."""

    fault: FileFault
    reason: str


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The changes that a repair makes, or has made, and the faults that stay."""

    actions: tuple[RepairAction, ...]
    unrepaired: tuple[Unrepaired, ...]

    @property
    def lost_rows(self) -> int:
        """Return how many rows main loses."""
        return sum(action.rows for action in self.actions)


def files_named(metadata: TableMetadata) -> int:
    """Return how many data and delete files the snapshots name, by their summaries."""
    return sum(
        summary_number(snapshot, f"{'added' if number else 'total'}-{what}-files")
        for number, snapshot in enumerate(metadata.snapshots)
        for what in ("data", "delete")
    )


def proposed(metadata: TableMetadata, fault: FileFault, *, drop_lost: bool, main_is_known: bool) -> RepairKind | str:
    """Return the repair of a fault, or why there is none; `main_is_known`: main's manifest list was read."""
    if fault.kind is FileFaultKind.UNREADABLE:
        return "another program may be able to read it; if it is broken for sure, move it away and repair again"
    if fault.file == LISTS and fault.kind is FileFaultKind.MISSING:
        return RepairKind.REBUILD
    if metadata.current_snapshot_id not in fault.snapshot_ids and not main_is_known:
        return "whether main needs it is known once main's manifest list is there again: repair again then"
    if metadata.current_snapshot_id not in fault.snapshot_ids:
        return "main does not need it; snapshots never change, and the fault goes when those that need it expire"
    if metadata.format_version >= FORMAT_V3:  # whose manifest lists hand out row ids
        return "manifests of format v3 are not written by a repair"
    misstated = fault.kind in _MISSTATED or (fault.kind is FileFaultKind.WRONG_OFFSETS and fault.file in _CONTENT)
    if misstated and fault.file in (MANIFESTS, *_CONTENT):
        return RepairKind.CORRECT
    if fault.kind is FileFaultKind.WRONG_LENGTH and fault.file in (MANIFESTS, *_CONTENT):
        return RepairKind.CORRECT  # where the file is whole; else it is as good as missing
    if fault.kind in LOST and fault.file in (MANIFESTS, *_CONTENT):
        return without_file(fault, drop_lost=drop_lost)
    return "no repair of it is provably right"


def without_file(fault: FileFault, *, drop_lost: bool) -> RepairKind | str:
    """Return what becomes of main's entry of a file that is missing or cut."""
    if fault.file not in (MANIFESTS, DATA):
        return "without the file, rows that were deleted would come back: put it back, or restore an earlier state"
    if drop_lost:
        return RepairKind.DROP
    # of a manifest its list alone says whether it is of data or of deletes, which are never dropped
    whom = "them" if fault.file == DATA else "a manifest of data files"
    return f"its rows are lost unless the file is put back; --drop-lost lets main go on without {whom}"


def ordered(actions: Sequence[RepairAction], unrepaired: Sequence[Unrepaired]) -> RepairPlan:
    """Return the plan in the order in which it is shown, whatever was repaired first."""
    return RepairPlan(
        tuple(sorted(actions, key=lambda action: (list(RepairKind).index(action.kind), action.path))),
        tuple(sorted(unrepaired, key=lambda item: (item.fault.path, item.fault.kind, item.fault.detail))),
    )
