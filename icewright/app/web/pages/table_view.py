"""Derive what the page of a table shows from the API's documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from icewright.app.web.api import models
from icewright.app.web.pages import charts
from icewright.core.health import WEIGHTS
from icewright.core.policy import KNOBS, MEGABYTE, Operation
from icewright.core.sizes import FileHistogram
from icewright.ports.views import WaitingItem

_LETTER, _MARK = 2.1, 4.0  # width of a letter and of a mark on a phone, in percent of the line
_LONGEST = 18  # letters of a label
_TURNED = 80  # percent from which on a label stands before its mark
_LANES = 4
_COLD = timedelta(days=30)  # without a write
_LOW, _MIDDLE = 50, 80  # health scores
_CLASSES = [f"<{limit}MB" for limit in FileHistogram.LIMITS_MB] + [f">={FileHistogram.LIMITS_MB[-1]}MB"]
_UPPER = [*FileHistogram.LIMITS_MB, float("inf")]


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A snapshot or label on the timeline."""

    at: float  # percent of the line
    tooltip: str
    kind: str
    label: str = ""
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """A stretch of time on which events are placed, from its first to its last moment."""

    first: datetime
    last: datetime
    snapshots: Sequence[TimelineMark]
    labels: Sequence[TimelineMark]
    lanes: int


def timeline_of(snapshots: models.Snapshots, now: datetime) -> Timeline | None:
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
    named += [
        (read.snapshot_id, f"read on {read.read_at:%Y-%m-%d} by nobody who pinned it", "pin", "unpinned reader")
        for read in snapshots.unpinned_reads
    ]
    labels = _assign_lanes(
        [TimelineMark(percent[at], tooltip, kind, label) for at, tooltip, kind, label in named if at in percent]
    )
    return Timeline(first, last, dots, labels, 1 + max((mark.lane for mark in labels), default=-1))


def _kind(snapshot: models.Snapshot) -> str:
    return "ours" if "icewright.job-id" in snapshot.summary else snapshot.operation or ""


def _assign_lanes(marks: Sequence[TimelineMark]) -> list[TimelineMark]:
    """Assign each label the first lane without overlap, or the last lane."""
    ends = [-_MARK] * _LANES
    assigned = []
    for mark in sorted(marks, key=lambda m: m.at):
        width = _MARK + _LETTER * min(len(mark.label), _LONGEST)
        begin, end = (mark.at - width, mark.at + _MARK) if mark.at > _TURNED else (mark.at, mark.at + width)
        lane = next((i for i, taken in enumerate(ends) if begin >= taken), _LANES - 1)
        ends[lane] = end
        assigned.append(TimelineMark(mark.at, mark.tooltip, mark.kind, mark.label, lane))
    return assigned


@dataclass(frozen=True, slots=True)
class HealthLine:
    """A component of the health score."""

    name: str
    score: int | None
    explanation: str
    weight: int
    tone: str


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """A partition that maintenance would improve."""

    name: str
    files: int
    bytes: int
    candidates: int
    deletes: int
    deleted_ratio: float
    last_write: str | None
    heat: str  # hot, warm, cold; blank when unknown
    sizes: Sequence[charts.Bar]


@dataclass(frozen=True, slots=True)
class OperationView:
    """An operation with its verdict, last run and next step."""

    operation: Operation
    verdict: str
    reason: str
    notes: Sequence[str]
    benefit_mb: float | None
    cost: float | None
    revisit: str | None
    last: models.Maintenance
    waiting: WaitingItem | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The next step of the table's maintenance, in one sentence."""

    kind: str
    sentence: str
    at: datetime | None = None
    job: str | None = None


def tone_of(score: int | None) -> str:
    """Return the colour class of a health score."""
    if score is None:
        return "calm"
    return "bad" if score < _LOW else "warn" if score < _MIDDLE else "good"


def parts(detail: models.TableDetail) -> list[HealthLine]:
    """Return the components of the health score, highest weight first."""
    return [
        HealthLine(name.replace("_", " "), part["score"], part["behind"], WEIGHTS.get(name, 0), tone_of(part["score"]))
        for name, part in sorted(detail.parts.items(), key=lambda item: -WEIGHTS.get(item[0], 0))
    ]


def sizes(facts: Mapping[str, Any]) -> list[charts.Bar]:
    """Return the histogram of file sizes, coloured below half the target."""
    return _histogram(facts.get("file_sizes", {}), facts.get("target_file_size_bytes"))


def _histogram(counted: Mapping[str, int], target: int | None) -> list[charts.Bar]:
    if not counted:
        return []
    goal = (target or 128 * MEGABYTE) / MEGABYTE
    tones = ["warn" if upper <= goal / 2 else "good" for upper in _UPPER]
    return charts.bars([(_size_label(name), counted.get(name, 0)) for name in _CLASSES], tones=tones)


def _size_label(name: str) -> str:
    sign, amount = ("≥", name[2:-2]) if name.startswith(">=") else ("<", name[1:-2])
    return f"{sign} 1 GB" if amount == "1024" else f"{sign} {amount} MB"


def partitions(facts: Mapping[str, Any], now: datetime, hot_minutes: int) -> list[PartitionLine]:
    """Return the partitions with most to gain at the last evaluation."""
    return [
        PartitionLine(
            name=partition["partition"] or "whole table",
            files=partition["files"],
            bytes=partition["bytes"],
            candidates=partition["candidate_files"] if partition["candidate_files"] > 1 else 0,  # one has no other
            deletes=partition["delete_files"],
            deleted_ratio=partition["deleted_ratio"],
            last_write=partition["last_write"],
            heat=_heat(partition["last_write"], now, timedelta(minutes=hot_minutes)),
            sizes=_histogram(partition.get("file_sizes", {}), partition["target_file_size_bytes"]),
        )
        for partition in facts.get("worst_partitions", [])
    ]


def _heat(last_write: str | None, now: datetime, hot: timedelta) -> str:
    if last_write is None:
        return ""
    quiet = now - datetime.fromisoformat(last_write)
    return "hot" if quiet < hot else "cold" if quiet >= _COLD else "warm"


def operations(detail: models.TableDetail, waiting: Sequence[WaitingItem]) -> list[OperationView]:
    """Return all operations in order of execution."""
    verdicts = {verdict.operation: verdict for verdict in detail.verdicts}
    waiting_by_operation = {item.operation: item for item in waiting}
    unknown = "not evaluated yet" if detail.error is None else "the table cannot be read"
    views = []
    for operation in Operation:
        verdict = verdicts.get(operation)
        document = verdict.model_dump() if verdict is not None else {}
        views.append(
            OperationView(
                operation=operation,
                verdict=verdict.verdict if verdict is not None else "",
                reason=verdict.reason if verdict is not None else unknown,
                notes=document.get("notes", []),
                benefit_mb=document.get("benefit_mb"),
                cost=document.get("cost_gb_hours"),
                revisit=document.get("revisit"),
                last=detail.maintenance[operation],
                waiting=waiting_by_operation.get(operation),
            )
        )
    return views


def outlook(detail: models.TableDetail, waiting: Sequence[WaitingItem]) -> Outlook:
    """Return the most pressing statement about what happens next."""
    if detail.state == "dropped":
        return Outlook("calm", "The table was dropped. No operation runs on it.")
    if detail.job is not None:
        prefix = f"Paused: {detail.paused}. " if detail.paused is not None else ""
        return Outlook("live", f"{prefix}A job is running on this table", job=detail.job)
    if detail.error is not None:
        return Outlook("bad", f"It cannot be read: {detail.error.rstrip('.')}. The next try is", detail.evaluate_at)
    if detail.paused is not None:
        return Outlook("warn", f"Paused: {detail.paused}. No automatic job starts until you resume the table.")
    blocked = [v.operation for v in detail.verdicts if v.verdict == "blocked" and detail.state == "blocked"]
    prefix = f"Blocked: {_names(blocked)}. " if blocked else ""
    if waiting:
        first, names = waiting[0], _names([item.operation for item in waiting])
        place = f" at place {first.position} of the queue" if first.position is not None else ""
        end = "s" if len(waiting) == 1 else ""
        why = f": {first.reason}" if first.reason else f", and start{end} with the next plan"
        names = f"{names.capitalize()} wait{end}"
        first_from = detail.goes_first_from
        bound = f"; before all others from {first_from:%Y-%m-%d %H:%M} UTC" if first_from is not None else ""
        return Outlook("bad" if blocked else "warn", f"{prefix}{names}{place}{why}{bound}")
    if detail.evaluated_at is None:
        return Outlook("live", "The table is new; its first evaluation is", detail.evaluate_at)
    idle = "Nothing else is due" if blocked else "Nothing is due"
    text = f"{prefix}{idle}. The next evaluation is at the next commit, or"
    return Outlook("bad" if blocked else "good", text, detail.evaluate_at)


def _names(operations: Sequence[str]) -> str:
    words = [str(operation).replace("_", " ") for operation in operations]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def knobs(all_knobs: Sequence[models.Knob], *, every: bool) -> list[tuple[str, list[tuple[models.Knob, str]]]]:
    """Return knobs with their help, grouped by prefix; without `every` only those set at some level."""
    groups: dict[str, list[tuple[models.Knob, str]]] = {}
    for knob in all_knobs:
        if every or knob.level != "default":
            group, dot, _ = knob.knob.rpartition(".")
            groups.setdefault(group if dot else "table", []).append((knob, KNOBS[knob.knob].help))
    return list(groups.items())
