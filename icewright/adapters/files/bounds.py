"""Measures from column bounds in manifest entries: how well files are sorted, and how old their rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icewright.adapters.files.manifests import ManifestReader
from icewright.core.operations.expire_rows import TICKS_A_DAY, ticks_of
from icewright.core.partition_filter import moments
from icewright.core.partitions import partition_key
from icewright.core.runs import FileAction
from icewright.core.single_values import bound_value
from icewright.core.sortedness import Range, ordering_fields, overlap
from icewright.core.steps import ExpireRows
from icewright.core.table import ManifestFile, TableMetadata, Thresholds

_ANY_AGE = (-(1 << 63), 1 << 63)  # the ticks that a file may hold of which nothing is known


@dataclass(frozen=True, slots=True)
class Measured:
    """The measures of one partition; None where no setting needs one, bounds are missing or all ages are null."""

    overlap: float | None = None
    lowest: int | None = None


def measured(
    reader: ManifestReader, metadata: TableMetadata, manifests: Sequence[ManifestFile], thresholds: Thresholds
) -> Mapping[tuple[int, str], Measured]:
    """Return measures by spec id and partition text; empty, without reading, if the thresholds name no column."""
    order = ordering_fields(metadata.schema, thresholds.order)
    age = ordering_fields(metadata.schema, (thresholds.age,)) if thresholds.age else ()
    age = tuple(column for column in age if column[1] in TICKS_A_DAY)
    if not order and not age:
        return {}
    fields = dict.fromkeys((*order, *age))
    boxes: dict[tuple[int, str], list[list[Range]]] = {}
    lowest: dict[tuple[int, str], int] = {}
    for _, _, spec_id, partition, *found in reader.bounds(manifests, [number for number, _ in fields]).iter_rows():
        key = (spec_id, partition)
        ranges = dict(zip(fields, zip(found[::3], found[1::3], found[2::3], strict=True), strict=True))
        if order and all(None not in ranges[column] for column in order):
            boxes.setdefault(key, []).append([_values(kind, *ranges[number, kind][:2]) for number, kind in order])
        for column in age:
            if (ages := _ages(metadata, key, column, *ranges[column])) is not None:
                lowest[key] = min(ages[0], lowest.get(key, ages[0]))
    return {
        key: Measured(overlap(boxes[key]) if key in boxes else None, lowest.get(key))
        for key in boxes.keys() | lowest.keys()
    }


def aged(
    reader: ManifestReader, metadata: TableMetadata, manifests: Sequence[ManifestFile], step: ExpireRows
) -> tuple[FileAction, ...]:
    """Return data files that may hold rows before the step's day: those deleted whole, and those rewritten."""
    (column,) = ordering_fields(metadata.schema, (step.column,))
    actions = []
    for path, size, spec_id, partition, *found in reader.bounds(manifests, [step.field_id]).iter_rows():
        ages = _ages(metadata, (spec_id, partition), column, *found)
        if ages is not None and ages[0] < step.ticks:
            actions.append(FileAction(path, size, "data" if ages[1] < step.ticks else "data, in part"))
    return tuple(sorted(actions, key=lambda fate: fate.path))


def _ages(
    metadata: TableMetadata,
    key: tuple[int, str],
    column: tuple[int, str],
    low: bytes | None,
    high: bytes | None,
    only_nulls: bool,
) -> tuple[int, int] | None:
    """Return the least and greatest value that a file may hold of the column of its rows' age; None for nulls alone.

    Without bounds the partition tells: Iceberg's metrics leave out columns after the first hundred, moments of INT96
    and the columns that Hive keeps in names of folders.
    """
    number, kind = column
    if low is not None:
        return bound_value(kind, low), _ANY_AGE[1] if high is None else bound_value(kind, high)
    spec = metadata.spec(key[0])
    for field, value in zip(spec.fields, partition_key(spec, key[1])[1], strict=True):
        if field.source_id == number and field.transform != "void":
            only_nulls = only_nulls or value is None  # transforms have a null for nulls alone
            if (span := moments(field, value, kind)) is not None:
                return ticks_of(kind, span[0]), ticks_of(kind, span[1])
    return None if only_nulls else _ANY_AGE


def _values(kind: str, low: bytes, high: bytes) -> Range:
    return bound_value(kind, low), bound_value(kind, high)
