"""Parse the events that Trino's HTTP event listener sends when a query has completed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from icewright.core.events.fields import is_name, items, mapping, milliseconds, moment, number, text
from icewright.core.events.model import Event, Message, Name, ScanReported, TableTouched, message_id


class _Read(NamedTuple):
    """The metrics of one input of a query; only Trino's Iceberg connector adds the planning time."""

    planning_ms: float | None
    files: int
    bytes: int


def is_trino(document: Mapping[str, object]) -> bool:
    """Return whether the document is an event of the listener: of a query that began or completed, or of a split."""
    metadata = document.get("metadata")
    return (isinstance(metadata, dict) and "queryId" in metadata) or {"queryId", "stageId"} <= document.keys()


def query(document: Mapping[str, object], now: datetime) -> Message:
    """Return the message of a query: one scan for each table that it read, and the table that it wrote.

    For a query that began or failed, and for a split, the message has no events.
    """
    metadata = mapping(document.get("metadata", {}), "metadata")
    query_id = text(metadata.get("queryId", document.get("queryId")), "metadata.queryId")
    environment = mapping(document.get("context") or {}, "context").get("environment")
    where = "" if environment is None else text(environment, "context.environment")
    events: tuple[Event, ...] = ()
    if metadata.get("queryState") == "FINISHED" and document.get("statistics") is not None:
        tables = mapping(document.get("ioMetadata") or {}, "ioMetadata")
        events = (*_scans(document, tables, now), *_written(tables))
    return Message(message_id("trino", where, query_id, "completed" if events else "other"), events, foreign=True)


def _scans(document: Mapping[str, object], tables: Mapping[str, object], now: datetime) -> list[ScanReported]:
    statistics = mapping(document.get("statistics"), "statistics")
    at = moment(document.get("endTime"), "endTime", now)
    planning = milliseconds(statistics.get("planningTime"), "statistics.planningTime")
    duration = milliseconds(statistics.get("wallTime"), "statistics.wallTime")
    reads_by_table: dict[Name, list[_Read]] = {}  # a query may read a table more than once
    for i, item in enumerate(items(tables.get("inputs") or [], "ioMetadata.inputs")):
        read = mapping(item, f"ioMetadata.inputs[{i}]")
        if table := _table(read, f"ioMetadata.inputs[{i}]"):
            reads_by_table.setdefault(table, []).append(_read(read, f"ioMetadata.inputs[{i}]"))
    scans = []
    for table, reads in reads_by_table.items():
        own = [read.planning_ms for read in reads if read.planning_ms is not None]
        files, size = sum(read.files for read in reads), sum(read.bytes for read in reads)
        scans.append(ScanReported(table, at, sum(own) if own else planning, duration, files, size))
    return scans


def _read(document: Mapping[str, object], where: str) -> _Read:
    metrics = mapping(document.get("connectorMetrics") or {}, f"{where}.connectorMetrics")
    planning = _metric(metrics, "scanPlanningDuration", "duration", where)
    files = _metric(metrics, "dataFiles", "total", where)
    return _Read(
        None if planning is None else milliseconds(planning, f"{where}.connectorMetrics.scanPlanningDuration.duration"),
        int(number(files, f"{where}.connectorMetrics.dataFiles.total")),
        int(number(document.get("physicalInputBytes"), f"{where}.physicalInputBytes")),
    )


def _metric(metrics: Mapping[str, object], key: str, field: str, where: str) -> object:
    """Return a metric that Trino's Iceberg connector adds; None if it is absent."""
    if metrics.get(key) is None:
        return None
    return mapping(metrics[key], f"{where}.connectorMetrics.{key}").get(field)


def _written(tables: Mapping[str, object]) -> tuple[Event, ...]:
    if tables.get("output") is None:
        return ()
    table = _table(mapping(tables["output"], "ioMetadata.output"), "ioMetadata.output")
    return () if table is None else (TableTouched((table,)),)


def _table(document: Mapping[str, object], where: str) -> Name | None:
    """Return the table's name; None for functions and for metadata tables, such as `orders$snapshots`.

    Names of other connectors that no Iceberg table can have give None too.
    """
    raw_parts = [document.get(key) for key in ("catalogName", "schema", "table")]
    if not all(part.strip() if isinstance(part, str) else part for part in raw_parts):
        return None
    catalog, schema, table = (
        text(part, f"{where}.{key}") for part, key in zip(raw_parts, ("catalogName", "schema", "table"), strict=True)
    )
    parts = (catalog, *schema.split("."), table)
    return parts if "$" not in table and is_name(parts) else None
