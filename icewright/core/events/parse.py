"""Parse request bodies to messages; the media type and the top-level keys tell the format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from icewright.core.errors import BadEvent
from icewright.core.events import cloudevents
from icewright.core.events.fields import MOST, items, mapping, wrong
from icewright.core.events.iceberg_reports import report
from icewright.core.events.model import Message, message_id, tables_named
from icewright.core.events.storage import records
from icewright.core.events.trino import is_trino, query

CLOUDEVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
JSON = "application/json"
MEDIA_TYPES = (JSON, CLOUDEVENT, BATCH)
_SUPPORTED_FORMATS = (
    "a CloudEvent (specversion), Iceberg's ReportMetricsRequest (report-type), a query event of Trino "
    "(metadata.queryId) or a notification of an object store (Records)"
)


def messages(document: object, media_type: str, attributes: Mapping[str, str], now: datetime) -> tuple[Message, ...]:
    """Return the messages of a decoded body. `attributes` are those of a binary CloudEvent, without prefix, else empty.

    Raises `BadEvent` with every fault: one invalid event rejects the whole request.
    """
    if attributes:
        parsed: tuple[Message, ...] = (cloudevents.binary(attributes, document, now),)
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
        return cloudevents.structured(document, "", now)
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
            parsed.append(cloudevents.structured(item, f"[{i}].", now))
        except BadEvent as error:
            faults += error.faults
    if faults:
        raise BadEvent(faults)
    return tuple(parsed)
