"""Parse request bodies to messages; the media type and the top-level keys tell the format."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote_plus

from icewright.core.errors import BadEvent
from icewright.core.events.model import (
    MOST,
    CommitReported,
    Event,
    Message,
    MetadataChanged,
    Name,
    ScanReported,
    TableTouched,
    decoded,
    dotted_name,
    identifier,
    is_metadata_file,
    is_name,
    items,
    mapping,
    message_id,
    milliseconds,
    moment,
    number,
    reject,
    table_name,
    tables_named,
    text,
)
from icewright.core.filters import filter_template
from icewright.core.words import near

_MILLISECONDS = {
    "nanoseconds": 1e-6,
    "microseconds": 1e-3,
    "milliseconds": 1.0,
    "seconds": 1e3,
    "minutes": 6e4,
    "hours": 3.6e6,
    "days": 8.64e7,
}
TABLE_CHANGED = "icewright.table.changed"
METADATA_CHANGED = "icewright.metadata.changed"
_ANY_TYPE = "a report of Iceberg or a notification of an object store may have any type"
CLOUDEVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
JSON = "application/json"
MEDIA_TYPES = (JSON, CLOUDEVENT, BATCH)
_SUPPORTED_FORMATS = (
    "a CloudEvent (specversion), Iceberg's ReportMetricsRequest (report-type), a query event of Trino "
    "(metadata.queryId) or a notification of an object store (Records)"
)


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
                snapshot_id=identifier(document.get("snapshot-id"), f"{where}snapshot-id"),
                filter=filter_template(document.get("filter")),
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


def records(document: Mapping[str, object], where: str) -> tuple[Event, ...]:
    """Return the events of a body that S3 or MinIO sends: `{"Records": [...]}`; only metadata files count."""
    by_record = [
        s3_record(mapping(record, f"{where}Records[{i}]"), f"{where}Records[{i}].")
        for i, record in enumerate(items(document.get("Records"), f"{where}Records"))
    ]
    return tuple(event for events in by_record for event in events)


def s3_record(record: Mapping[str, object], where: str) -> tuple[Event, ...]:
    """Return the events of one record; its key is encoded as in a URL's query."""
    if "ObjectCreated" not in text(record.get("eventName", "ObjectCreated"), f"{where}eventName"):
        return ()
    stored = mapping(record.get("s3"), f"{where}s3")
    bucket = mapping(stored.get("bucket"), f"{where}s3.bucket")
    stored_object = mapping(stored.get("object"), f"{where}s3.object")
    key = unquote_plus(text(stored_object.get("key"), f"{where}s3.object.key"))
    return _file_written("s3", bucket.get("name"), text(key, f"{where}s3.object.key"), f"{where}s3.bucket.name")


def s3_detail(data: Mapping[str, object], where: str) -> tuple[Event, ...]:
    """Return the events of an EventBridge notification about an S3 object; its key is not encoded."""
    bucket = mapping(data.get("bucket"), f"{where}bucket")
    stored_object = mapping(data.get("object"), f"{where}object")
    return _file_written(
        "s3", bucket.get("name"), text(stored_object.get("key"), f"{where}object.key"), f"{where}bucket.name"
    )


def gcs_object(data: Mapping[str, object], where: str) -> tuple[Event, ...]:
    """Return the events of a `google.cloud.storage.object.v1.finalized` notification."""
    return _file_written("gs", data.get("bucket"), text(data.get("name"), f"{where}name"), f"{where}bucket")


def _file_written(scheme: str, bucket: object, key: str, where: str) -> tuple[Event, ...]:
    if not is_metadata_file(key):
        return ()
    return (MetadataChanged(f"{scheme}://{text(bucket, where)}/{key}"),)


def structured(document: Mapping[str, object], where: str, now: datetime) -> Message:
    """Return the message of an event whose attributes and data are in one JSON object."""
    data = document.get("data")
    if "data_base64" in document:
        coded = document["data_base64"]
        if not isinstance(coded, str):
            reject(f"{where}data_base64", coded, "text")
        try:
            data = decoded(b64decode(coded, validate=True))
        except ValueError:
            raise BadEvent([f"{where}data_base64: no base64; write the data as JSON under `data`"]) from None
    return _message(document, data, where, now)


def binary(attributes: Mapping[str, str], data: object, now: datetime) -> Message:
    """Return the message of an event whose attributes came as headers `ce-...`, with the data as the body."""
    return _message(attributes, data, "ce-", now)


def _message(attributes: Mapping[str, object], data: object, where: str, now: datetime) -> Message:
    version = attributes.get("specversion")
    if version != "1.0":
        raise BadEvent([f"{where}specversion: not 1.0; send CloudEvents 1.0"])
    event_id, source = (text(attributes.get(key), f"{where}{key}") for key in ("id", "source"))
    kind = text(attributes.get("type"), f"{where}type")
    # in binary mode the data is all of the body, so its fields have no prefix
    path = "" if where == "ce-" else f"{where}data."
    content = {} if data is None else mapping(data, path.removesuffix(".") or "the body")
    parsed = _events(kind, attributes.get("subject"), content, path, now)
    if parsed is None:
        hint = near(kind, (TABLE_CHANGED, METADATA_CHANGED))
        raise BadEvent([f"{where}type: no event that is known{hint}; {_ANY_TYPE}"])
    return Message(message_id("cloudevent", source, event_id), parsed[0], foreign=parsed[1])


def _events(
    kind: str, subject: object, data: Mapping[str, object], where: str, now: datetime
) -> tuple[tuple[Event, ...], bool] | None:
    """Return the events of the data, and whether they may concern unconfigured catalogs; None for an unknown kind."""
    match kind, data:
        case "icewright.table.changed", _:
            return (_touched(subject, data, where),), False
        case "icewright.metadata.changed", _:
            location = text(data.get("metadata_location"), f"{where}metadata_location")
            return (MetadataChanged(location),), False
        case _, {"report-type": _}:
            return (report(data, where, now),), False
        case _, {"Records": _}:
            return records(data, where), True
        case _, {"s3": _}:
            return s3_record(data, where), True
        case _, {"bucket": str(), "name": _}:
            return gcs_object(data, where), True
        case _, {"bucket": dict(), "object": _}:
            return s3_detail(data, where), True
    return None


def _touched(subject: object, data: Mapping[str, object], where: str) -> TableTouched:
    """Return the event for the tables of `data.table`, `data.tables`, or the subject."""
    if "tables" in data:
        listed = items(data["tables"], f"{where}tables")
        if not listed:
            raise BadEvent([f"{where}tables: an empty list given; name at least one table"])
        return TableTouched(tuple(table_name(entry, f"{where}tables[{i}]") for i, entry in enumerate(listed)))
    if "table" in data or subject is None:
        return TableTouched((table_name(data.get("table"), f"{where}table"),))
    return TableTouched((table_name(subject, "subject"),))


def messages(document: object, media_type: str, attributes: Mapping[str, str], now: datetime) -> tuple[Message, ...]:
    """Return the messages of a decoded body. `attributes` are those of a binary CloudEvent, without prefix, else empty.

    Raises `BadEvent` with every fault: one invalid event rejects the whole request.
    """
    if attributes:
        parsed: tuple[Message, ...] = (binary(attributes, document, now),)
    elif media_type == BATCH:
        parsed = _batch(document, now)
    else:
        parsed = (_single(document, media_type, now),)
    if tables_named(parsed) > MOST:
        raise BadEvent([f"the request names {tables_named(parsed)} tables; send at most {MOST} at a time"])
    return parsed


def _single(document: object, media_type: str, now: datetime) -> Message:
    if isinstance(document, list):
        raise BadEvent([f"the body: a list given; send a batch of CloudEvents as {BATCH}"])
    document = mapping(document, "the body")
    if media_type == CLOUDEVENT or "specversion" in document:
        return structured(document, "", now)
    if "report-type" in document:
        return Message(_content_id("report", document), (report(document, "", now),))
    if "Records" in document:
        return Message(_content_id("storage", document), records(document, ""), foreign=True)
    if is_trino(document):
        return query(document, now)
    raise BadEvent([f"the body is no event that is known; send {_SUPPORTED_FORMATS}"])


def _content_id(kind: str, document: object) -> str:
    """Return the id of a document that has none of its own: a hash of its content."""
    return message_id(kind, json.dumps(document, sort_keys=True))


def _batch(document: object, now: datetime) -> tuple[Message, ...]:
    parsed: list[Message] = []
    faults: list[str] = []
    for i, item in enumerate(items(document, "the batch")):
        if not isinstance(item, dict):
            reject(f"[{i}]", item, "a CloudEvent")
        try:
            parsed.append(structured(item, f"[{i}].", now))
        except BadEvent as error:
            faults += error.faults
    if faults:
        raise BadEvent(faults)
    return tuple(parsed)
