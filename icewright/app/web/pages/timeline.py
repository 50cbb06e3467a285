"""Snapshots, refs and pins on one line of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from icewright.app.web.api import models

_CLOSE = 14.0  # percent of the line that a label takes
_LANES = 4


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A mark on the timeline, at a time."""

    at: float  # percent of the line
    says: str
    kind: str
    label: str = ""
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """The line, from its first to its last moment."""

    first: datetime
    last: datetime
    snapshots: Sequence[TimelineMark]
    labels: Sequence[TimelineMark]
    lanes: int


def made(found: models.Snapshots, now: datetime) -> Line | None:
    """Return the line; None of a table without snapshots."""
    if not found.items:
        return None
    first = min(snapshot.timestamp for snapshot in found.items)
    last = max(now, *(snapshot.timestamp for snapshot in found.items))
    whole = (last - first).total_seconds() or 1.0
    where = {s.snapshot_id: 100 * (s.timestamp - first).total_seconds() / whole for s in found.items}
    dots = [
        TimelineMark(
            where[s.snapshot_id],
            f"{s.operation or 'snapshot'} {s.snapshot_id}, {s.timestamp:%Y-%m-%d %H:%M:%S} UTC",
            _kind(s),
        )
        for s in sorted(found.items, key=lambda s: s.timestamp)
    ]
    named = [(ref.snapshot_id, f"{ref.kind} {ref.name}", str(ref.kind), ref.name) for ref in found.refs]
    named += [
        (pin.snapshot_id, f"held by {pin.reader} until {pin.until:%Y-%m-%d %H:%M} UTC", "pin", pin.reader)
        for pin in found.pins
    ]
    named += [
        (held.snapshot_id, f"held for {held.writer}", "pin", held.writer.partition(",")[0]) for held in found.writers
    ]
    labels = _laid([TimelineMark(where[at], says, kind, label) for at, says, kind, label in named if at in where])
    return Line(first, last, dots, labels, 1 + max((mark.lane for mark in labels), default=-1))


def _kind(snapshot: models.Snapshot) -> str:
    return "ours" if "icewright.job-id" in snapshot.summary else snapshot.operation or ""


def _laid(marks: Sequence[TimelineMark]) -> list[TimelineMark]:
    """Return each label in the first lane where it covers no other; what finds no place is in the last."""
    ends = [-_CLOSE] * _LANES
    laid = []
    for mark in sorted(marks, key=lambda m: m.at):
        lane = next((i for i, end in enumerate(ends) if mark.at - end >= _CLOSE), _LANES - 1)
        ends[lane] = mark.at
        laid.append(TimelineMark(mark.at, mark.says, mark.kind, mark.label, lane))
    return laid
