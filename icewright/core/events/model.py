"""The events that senders push, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

Name = tuple[str, ...]  # of a table as its sender writes it: catalog, namespaces, table

METADATA_FILES = (".metadata.json", ".metadata.json.gz")


@dataclass(frozen=True, slots=True)
class TableTouched:
    """A sender reports that tables changed."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """A metadata file was written; the table is the one whose location holds it."""

    location: str
    catalogs: tuple[str, ...] = ()  # that may hold the table, while its name is unknown


@dataclass(frozen=True, slots=True)
class ScanReported:
    """A report that a query read a table."""

    table: Name
    at: datetime
    planning_ms: float
    duration_ms: float
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitReported:
    """A report that a writer committed to a table."""

    table: Name
    snapshot_id: int | None = None
    operation: str = ""


Event = TableTouched | MetadataChanged | ScanReported | CommitReported


@dataclass(frozen=True, slots=True)
class Message:
    """The events of one delivery; a message that arrives again, with the same id, counts once."""

    id: str
    events: tuple[Event, ...]
    foreign: bool = False  # the sender reports all its tables, also those of catalogs that are not configured


def message_id(*parts: str | bytes) -> str:
    """Return the SHA-256 hex digest that identifies a message by these parts."""
    digest = sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def is_metadata_file(path: str) -> bool:
    """Return whether an object is a table's metadata file, by its name."""
    return path.endswith(METADATA_FILES)


def tables_named(messages: Sequence[Message]) -> int:
    """Return how many tables and files the messages name."""
    events = [event for message in messages for event in message.events]
    return sum(len(event.names) if isinstance(event, TableTouched) else 1 for event in events)
