"""Parse request bodies to messages; the media type and the top-level keys tell the format."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime

from icewright.core.errors import BadEvent
from icewright.core.events.formats import gcs_object, is_trino, query, records, report, s3_detail, s3_record
from icewright.core.events.model import (
    MOST,
    Event,
    Message,
    MetadataChanged,
    TableTouched,
    decoded,
    items,
    mapping,
    message_id,
    table_name,
    tables_named,
    text,
    wrong,
)
from icewright.core.words import near

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


def structured(document: Mapping[str, object], where: str, now: datetime) -> Message:
    """Return the message of an event whose attributes and data are in one JSON object."""
    data = document.get("data")
    if "data_base64" in document:
        coded = document["data_base64"]
        if not isinstance(coded, str):
            wrong(f"{where}data_base64", coded, "text")
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
            wrong(f"[{i}]", item, "a CloudEvent")
        try:
            parsed.append(structured(item, f"[{i}].", now))
        except BadEvent as error:
            faults += error.faults
    if faults:
        raise BadEvent(faults)
    return tuple(parsed)
