"""Parse `ReportMetricsRequest` bodies of Iceberg's REST specification, which report a scan or a commit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from icewright.core.errors import BadEvent
from icewright.core.events.fields import dotted_name, identifier, mapping, number, text
from icewright.core.events.model import CommitReported, Event, ScanReported

_MILLISECONDS = {
    "nanoseconds": 1e-6,
    "microseconds": 1e-3,
    "milliseconds": 1.0,
    "seconds": 1e3,
    "minutes": 6e4,
    "hours": 3.6e6,
    "days": 8.64e7,
}


def report(document: Mapping[str, object], where: str, now: datetime) -> Event:
    """Return the event of one report. Reports have no timestamp, so a scan counts as of `now`."""
    table = dotted_name(document.get("table-name"), f"{where}table-name")
    metrics = mapping(document.get("metrics", {}), f"{where}metrics")
    match document.get("report-type"):
        case "scan-report":
            return ScanReported(
                table=table,
                at=now,
                planning_ms=_timer(metrics, "total-planning-duration", where),
                duration_ms=0.0,  # the report is made when the planning is over
                files=int(_counter(metrics, "result-data-files", where)),
                bytes=int(_counter(metrics, "total-file-size-in-bytes", where)),
            )
        case "commit-report":
            operation = document.get("operation")
            return CommitReported(
                table=table,
                snapshot_id=identifier(document.get("snapshot-id"), f"{where}snapshot-id"),
                operation="" if operation is None else text(operation, f"{where}operation"),
            )
    raise BadEvent([f"{where}report-type: no report that is known; write scan-report or commit-report"])


def _counter(metrics: Mapping[str, object], key: str, where: str) -> float:
    if metrics.get(key) is None:
        return 0.0
    path = f"{where}metrics.{key}"
    return number(mapping(metrics[key], path).get("value"), f"{path}.value")


def _timer(metrics: Mapping[str, object], key: str, where: str) -> float:
    if metrics.get(key) is None:
        return 0.0
    path = f"{where}metrics.{key}"
    timer = mapping(metrics[key], path)
    unit = _MILLISECONDS.get(text(timer.get("time-unit"), f"{path}.time-unit").lower())
    if unit is None:
        raise BadEvent([f"{path}.time-unit: no unit that is known; write one of {', '.join(_MILLISECONDS)}"])
    return number(timer.get("total-duration"), f"{path}.total-duration", 2.0**63) * unit
