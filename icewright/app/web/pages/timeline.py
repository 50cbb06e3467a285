"""Lay out snapshots, refs and pins on a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from icewright.app.web.api import models

_CLOSE = 14.0  # width of a label, in percent of the line
_LANES = 4


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A snapshot or label on the timeline."""

    at: float  # percent of the line
    tooltip: str
    kind: str
    label: str = ""
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A timeline from its first to its last moment."""

    first: datetime
    last: datetime
    snapshots: Sequence[TimelineMark]
    labels: Sequence[TimelineMark]
    lanes: int


def timeline_of(snapshots: models.Snapshots, now: datetime) -> Line | None:
    """Return the timeline of a table, None without snapshots."""
    if not snapshots.items:
        return None
    first = min(snapshot.timestamp for snapshot in snapshots.items)
    last = max(now, *(snapshot.timestamp for snapshot in snapshots.items))
    seconds = (last - first).total_seconds() or 1.0
    percent = {s.snapshot_id: 100 * (s.timestamp - first).total_seconds() / seconds for s in snapshots.items}
    dots = [
        TimelineMark(
            percent[s.snapshot_id],
            f"{s.operation or 'snapshot'} {s.snapshot_id}, {s.timestamp:%Y-%m-%d %H:%M:%S} UTC",
            _kind(s),
        )
        for s in sorted(snapshots.items, key=lambda s: s.timestamp)
    ]
    named = [(ref.snapshot_id, f"{ref.kind} {ref.name}", str(ref.kind), ref.name) for ref in snapshots.refs]
    named += [
        (pin.snapshot_id, f"held by {pin.reader} until {pin.until:%Y-%m-%d %H:%M} UTC", "pin", pin.reader)
        for pin in snapshots.pins
    ]
    named += [
        (pin.snapshot_id, f"held for {pin.writer}", "pin", pin.writer.partition(",")[0]) for pin in snapshots.writers
    ]
    labels = _assign_lanes(
        [TimelineMark(percent[at], tooltip, kind, label) for at, tooltip, kind, label in named if at in percent]
    )
    return Line(first, last, dots, labels, 1 + max((mark.lane for mark in labels), default=-1))


def _kind(snapshot: models.Snapshot) -> str:
    return "ours" if "icewright.job-id" in snapshot.summary else snapshot.operation or ""


def _assign_lanes(marks: Sequence[TimelineMark]) -> list[TimelineMark]:
    """Assign each label the first lane without overlap, or the last lane."""
    ends = [-_CLOSE] * _LANES
    assigned = []
    for mark in sorted(marks, key=lambda m: m.at):
        lane = next((i for i, end in enumerate(ends) if mark.at - end >= _CLOSE), _LANES - 1)
        ends[lane] = mark.at
        assigned.append(TimelineMark(mark.at, mark.tooltip, mark.kind, mark.label, lane))
    return assigned
