"""Measures from column bounds in manifest entries: how well files are sorted, and how old their rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icewright.adapters.files.manifests import ManifestReader
from icewright.core.runs import FileAction
from icewright.core.sortedness import Range, bound, ordering_fields, overlap
from icewright.core.steps import ExpireRows
from icewright.core.table import ManifestFile, TableMetadata, Thresholds


@dataclass(frozen=True, slots=True)
class Measured:
    """The measures of one partition by bounds; None where no setting needs one, or bounds are missing."""

    overlap: float | None = None
    lowest: int | None = None


def measured(
    reader: ManifestReader, metadata: TableMetadata, manifests: Sequence[ManifestFile], thresholds: Thresholds
) -> Mapping[tuple[int, str], Measured]:
    """Return measures by spec id and partition text; empty, without reading, if the thresholds name no column."""
    order = ordering_fields(metadata.schema, thresholds.order)
    age = ordering_fields(metadata.schema, (thresholds.age,)) if thresholds.age else ()
    if not order and not age:
        return {}
    fields = dict.fromkeys((*order, *age))
    boxes: dict[tuple[int, str], list[list[Range]]] = {}
    lowest: dict[tuple[int, str], int] = {}
    for _, _, spec_id, partition, *ends in reader.bounds(manifests, [number for number, _ in fields]).iter_rows():
        key = (spec_id, partition)
        ranges = dict(zip(fields, zip(ends[::2], ends[1::2], strict=True), strict=True))
        if order and all(None not in ranges[one] for one in order):
            boxes.setdefault(key, []).append([_values(kind, *ranges[number, kind]) for number, kind in order])
        for number, kind in age:
            low = ranges[number, kind][0]
            if low is not None:
                value = bound(kind, low)
                lowest[key] = min(value, lowest.get(key, value))
    return {
        key: Measured(overlap(boxes[key]) if key in boxes else None, lowest.get(key))
        for key in boxes.keys() | lowest.keys()
    }


def aged(
    reader: ManifestReader, metadata: TableMetadata, manifests: Sequence[ManifestFile], step: ExpireRows
) -> tuple[FileAction, ...]:
    """Return data files with rows before the step's day: those deleted whole, and those rewritten."""
    ((_, kind),) = ordering_fields(metadata.schema, (step.column,))
    actions = []
    for path, size, _, _, low, high in reader.bounds(manifests, [step.field_id]).iter_rows():
        if low is not None and bound(kind, low) < step.ticks:
            expired = high is not None and bound(kind, high) < step.ticks
            actions.append(FileAction(path, size, "data" if expired else "data, in part"))
    return tuple(sorted(actions, key=lambda fate: fate.path))


def _values(kind: str, low: bytes, high: bytes) -> Range:
    return bound(kind, low), bound(kind, high)
