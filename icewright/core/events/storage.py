"""Parse notifications of object stores about written metadata files."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote_plus

from icewright.core.events.fields import items, mapping, text
from icewright.core.events.model import Event, MetadataChanged, is_metadata_file


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
    return _written("s3", bucket.get("name"), text(key, f"{where}s3.object.key"), f"{where}s3.bucket.name")


def s3_detail(data: Mapping[str, object], where: str) -> tuple[Event, ...]:
    """Return the events of an EventBridge notification about an S3 object; its key is not encoded."""
    bucket = mapping(data.get("bucket"), f"{where}bucket")
    stored_object = mapping(data.get("object"), f"{where}object")
    return _written(
        "s3", bucket.get("name"), text(stored_object.get("key"), f"{where}object.key"), f"{where}bucket.name"
    )


def gcs_object(data: Mapping[str, object], where: str) -> tuple[Event, ...]:
    """Return the events of a `google.cloud.storage.object.v1.finalized` notification."""
    return _written("gs", data.get("bucket"), text(data.get("name"), f"{where}name"), f"{where}bucket")


def _written(scheme: str, bucket: object, key: str, where: str) -> tuple[Event, ...]:
    if not is_metadata_file(key):
        return ()
    return (MetadataChanged(f"{scheme}://{text(bucket, where)}/{key}"),)
