"""Recorded commits as the commits of a simulation: from traces, one JSON object a line, or a table's snapshots."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from icewright.core.errors import ConfigError, UsageError
from icewright.core.simulation.writes import OPERATIONS, Layout, Source, Write
from icewright.core.table import Snapshot, TableMetadata, TableRef
from icewright.core.writer_state import summary_number

_REWRITES = "replace"  # maintenance, which is what the simulation does itself
_EPOCH = date(1970, 1, 1)
ROW_BYTES = 100  # of a commit that does not say its rows
DELETED_ROWS = 1000  # that a delete file names where the commit does not say
MOST = 10**15  # of files, rows or bytes (a petabyte) of one commit
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)  # knobs reach some years further
_COUNTS = ("files", "bytes", "rows", "delete_files", "deleted_rows")
_READS = "reads"
_KEYS = ("at", "table", "partition", "operation", *_COUNTS, _READS)
_DAY = timedelta(days=1)
_SHOWN = 20
_DAY_OR_HOUR = re.compile(r"(\d{4}-\d{2}-\d{2})(?:-(\d{2}))?")


def writes_of(metadata: TableMetadata) -> tuple[Write, ...]:
    """Return the writers' commits in the order of time; the first brings all that the table held by then.

    A summary does not name partitions: a commit goes to that of its day or hour where the table has such, else to
    the whole table. What emptied partitions without writing is left out.
    """
    layout = layout_of(metadata)
    writes: list[Write] = []
    for snapshot in sorted(metadata.snapshots, key=lambda s: s.timestamp):
        if snapshot.operation == _REWRITES:
            continue
        write = _write(snapshot, layout, whole=not writes)
        if write.files or write.delete_files:
            writes.append(write)
    return tuple(writes)


def _write(snapshot: Snapshot, layout: Layout, *, whole: bool) -> Write:
    number, which = partial(summary_number, snapshot), "total" if whole else "added"
    files, size, deletes = (number(f"{which}-{name}") for name in ("data-files", "files-size", "delete-files"))
    replaces = files and not deletes and not whole and number("deleted-data-files")
    return Write(
        at=snapshot.timestamp,
        files=files,
        bytes=max(size, files),
        rows=number(f"{which}-records") or size // ROW_BYTES,
        layout=layout,
        values=values_at(layout, snapshot.timestamp),
        delete_files=deletes,
        deleted_rows=number("added-position-deletes") or DELETED_ROWS * deletes,
        operation="overwrite" if replaces else "append",
    )


def layout_of(metadata: TableMetadata) -> Layout:
    """Return the field by day or hour that the table is partitioned by; nothing for any other spec."""
    fields = next((spec.fields for spec in metadata.specs if spec.spec_id == metadata.default_spec_id), ())
    return next((((f.name, f.transform),) for f in fields if f.transform in ("day", "hour")), ())


def values_at(layout: Layout, at: datetime) -> tuple[object, ...]:
    """Return the partition of what is written at a time."""
    match layout:
        case ((_, "day"),):
            return (at.date(),)
        case ((_, "hour"),):
            return ((at.date() - _EPOCH).days * 24 + at.hour,)
    return ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Tables with their commits, from the first to the last."""

    sources: Sequence[Source]
    first: datetime
    last: datetime


def read_trace(name: str, lines: Iterable[str]) -> Trace:
    """Return the commits of all lines; blank lines count for nothing.

    Raises `ConfigError` with the number of each bad line, and what would be right.
    """
    faults: list[str] = []
    writes_by_table: dict[TableRef, list[Write]] = {}
    reads: Counter[TableRef] = Counter()
    refs: dict[str, TableRef] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            if not isinstance(raw, dict):
                raise ValueError("write one object, such as {...}")  # noqa: TRY301, TRY004 - told like all others
            table = _text(raw, "table")
            ref = refs.get(table) or refs.setdefault(table, TableRef.parse(table))
            at = _time(raw)
            if _READS in raw:
                reads[ref] += _reads(raw)
            else:
                writes_by_table.setdefault(ref, []).append(read_write(raw, at, _KEYS))
        except (ValueError, UsageError, RecursionError) as error:
            reason = f"no JSON: {error}" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
            faults.append(f"{name}, line {number}: {reason}")
    if len(faults) > _SHOWN:
        faults[_SHOWN:] = [f"{name}: {len(faults) - _SHOWN} more lines are wrong"]
    if faults:
        raise ConfigError(faults)
    if not writes_by_table:
        raise ConfigError([f"{name}: holds no commit; write one JSON object a line, with the keys {', '.join(_KEYS)}"])
    for writes in writes_by_table.values():
        writes.sort(key=lambda write: write.at)
    made = trace_of(writes_by_table, {})
    days = max(1.0, (made.last - made.first) / _DAY)
    return trace_of(writes_by_table, {ref: number / days for ref, number in reads.items()})


def trace_of(writes_by_table: Mapping[TableRef, Sequence[Write]], reads_per_day: Mapping[TableRef, float]) -> Trace:
    """Return the tables with their commits, which are in the order of time; each has at least one."""
    first = min(writes[0].at for writes in writes_by_table.values())
    last = max(writes[-1].at for writes in writes_by_table.values())
    sources = [
        Source(ref, partial(iter, writes_by_table[ref]), reads_per_day.get(ref)) for ref in sorted(writes_by_table)
    ]
    return Trace(sources, first, last)


def _reads(raw: Mapping[str, Any]) -> int:
    if extra := [key for key in raw if key not in ("at", "table", _READS)]:
        raise ValueError(f"{extra[0]}: leave it out where reads are told; a commit has a line of its own")
    return _count(raw, _READS)


def read_write(raw: Mapping[str, Any], at: datetime, known: Sequence[str]) -> Write:
    """Return one commit. Raises `ValueError` that says what would be right."""
    if unknown := [key for key in raw if key not in known]:
        raise ValueError(f"there is no key {unknown[0]}; known are {', '.join(known)}")
    operation = raw.get("operation", "append")
    if operation not in OPERATIONS:
        raise ValueError(f"operation: {operation!r} is not one of {', '.join(OPERATIONS)}")
    counts = {key: _count(raw, key) for key in _COUNTS if key in raw}
    if counts.get("files", 0) and not counts.get("bytes"):
        raise ValueError("bytes: missing; say how many bytes the files have")
    if counts.get("bytes") and not counts.get("files"):
        raise ValueError("files: missing; say how many files hold the bytes")
    if not counts.get("files") and not counts.get("delete_files") and operation == "append":
        raise ValueError("files: missing; an append brings files or delete files")
    if counts.get("deleted_rows") and not counts.get("delete_files"):
        raise ValueError("delete_files: missing; deleted_rows are those that delete files name")
    layout, values = read_partition(raw.get("partition", ""))
    defaults = {
        "rows": counts.get("bytes", 0) // ROW_BYTES,
        "deleted_rows": DELETED_ROWS * counts.get("delete_files", 0),
    }
    return Write(at=at, layout=layout, values=values, operation=operation, **{**defaults, **counts})


def read_partition(text: object) -> tuple[Layout, tuple[Any, ...]]:
    """Parse `day=2026-01-31/region=eu`: dates are days, dates with an hour (`2026-01-31-07`) are hours."""
    if not isinstance(text, str):
        raise ValueError(f"partition: {text!r} is no text; write it as day=2026-01-31/region=eu")  # noqa: TRY004
    layout: list[tuple[str, str]] = []
    values: list[Any] = []
    for part in text.split("/") if text else ():
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ValueError(f"partition: {text!r} has no name=value in {part!r}; write day=2026-01-31/region=eu")
        transform, parsed = _value(value)
        layout.append((name, transform))
        values.append(parsed)
    return tuple(layout), tuple(values)


def _value(text: str) -> tuple[str, Any]:
    if text in ("null", "__HIVE_DEFAULT_PARTITION__"):
        return "identity", None
    match = _DAY_OR_HOUR.fullmatch(text)
    try:
        day = date.fromisoformat(match[1]) if match else None
    except ValueError:
        day = None
    if match is None or day is None:
        return "identity", text
    return ("day", day) if match[2] is None else ("hour", (day - _EPOCH).days * 24 + int(match[2]))


def _time(raw: Mapping[str, Any]) -> datetime:
    text = _text(raw, "at")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"at: {text!r} is no time; write it as 2026-01-31T07:30:00Z") from None
    return moment("at", at)


def moment(key: str, at: datetime) -> datetime:
    """Return the time in UTC. Raises `ValueError` for a time before `EARLIEST` or after `LATEST`."""
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    if not EARLIEST <= at <= LATEST:
        raise ValueError(
            f"{key}: {at.isoformat()} is out of range; write a time from {EARLIEST:%Y-%m-%d} to {LATEST:%Y-%m-%d}"
        )
    return at.astimezone(UTC)


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key}: missing" if value is None else f"{key}: {value!r} is no text")
    return value


def _count(raw: Mapping[str, Any], key: str) -> int:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"{key}: {value!r} is not a whole number from 0 to {MOST}")
    return value
