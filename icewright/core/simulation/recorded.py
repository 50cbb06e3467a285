"""The commits of a table's writers, as far as its snapshots tell, for simulation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from icewright.core.simulation.trace import DELETED_ROWS, ROW_BYTES
from icewright.core.simulation.writes import Layout, Write
from icewright.core.table import TableMetadata

_REWRITES = "replace"  # maintenance, which is what the simulation does itself
_EPOCH = date(1970, 1, 1)


def writes_of(metadata: TableMetadata) -> tuple[Write, ...]:
    """Return the writers' commits in the order of time; the first brings all that the table held by then.

    A summary does not name partitions: a commit goes to that of its day or hour where the table has such, else to
    the whole table. What emptied partitions without writing is left out.
    """
    layout = _layout(metadata)
    found: list[Write] = []
    for snapshot in sorted(metadata.snapshots, key=lambda s: s.timestamp):
        if snapshot.operation == _REWRITES:
            continue
        write = _write(snapshot.summary, snapshot.timestamp, layout, whole=not found)
        if write.files or write.delete_files:
            found.append(write)
    return tuple(found)


def _write(said: Mapping[str, str], at: datetime, layout: Layout, *, whole: bool) -> Write:
    files = _count(said, "total-data-files" if whole else "added-data-files")
    size = _count(said, "total-files-size" if whole else "added-files-size")
    deletes = _count(said, "total-delete-files" if whole else "added-delete-files")
    replaces = files and not deletes and not whole and _count(said, "deleted-data-files")
    return Write(
        at=at,
        files=files,
        bytes=max(size, files),
        rows=_count(said, "total-records" if whole else "added-records") or size // ROW_BYTES,
        layout=layout,
        values=_values(layout, at),
        delete_files=deletes,
        deleted_rows=_count(said, "added-position-deletes") or DELETED_ROWS * deletes,
        operation="overwrite" if replaces else "append",
    )


def _layout(metadata: TableMetadata) -> Layout:
    fields = next((spec.fields for spec in metadata.specs if spec.spec_id == metadata.default_spec_id), ())
    return next((((f.name, f.transform),) for f in fields if f.transform in ("day", "hour")), ())


def _values(layout: Layout, at: datetime) -> tuple[object, ...]:
    match layout:
        case ((_, "day"),):
            return (at.date(),)
        case ((_, "hour"),):
            return ((at.date() - _EPOCH).days * 24 + at.hour,)
    return ()


def _count(said: Mapping[str, str], key: str) -> int:
    text = said.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() else 0
