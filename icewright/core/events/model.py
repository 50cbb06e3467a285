"""The events that senders push, the messages that carry them, and checks of the fields of untrusted JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NoReturn

from icewright.core.errors import BadEvent
from icewright.core.table import split_name
from icewright.core.words import kind

LONGEST = 4096  # characters of a text
MOST = 1000  # tables of a request
_MOST_PARTS = 32  # of a name
_LEAST_PARTS = 3  # catalog, namespace and table
_LARGEST = 2.0**50  # a petabyte of bytes, or 35,000 years of milliseconds
_OLDEST = timedelta(days=30)  # an older report counts as of this age

_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ns|us|ms|s|m|h|d)")
_ISO = re.compile(r"PT(?:(?P<h>[0-9]+(?:\.[0-9]+)?)H)?(?:(?P<m>[0-9]+(?:\.[0-9]+)?)M)?(?:(?P<s>[0-9]+(?:\.[0-9]+)?)S)?")
Name = tuple[str, ...]  # of a table as its sender writes it: catalog, namespaces, table
METADATA_FILES = (".metadata.json", ".metadata.json.gz")


def reject(where: str, value: object, right: str) -> NoReturn:
    """Raise `BadEvent` for a value of the wrong kind; the message does not repeat the value."""
    raise BadEvent([f"{where}: {kind(value)} given; write {right}"])


def decoded(body: bytes) -> object:
    """Return the decoded JSON of a body. Raises `BadEvent` if the body is not JSON."""

    def reject_constant(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        document: object = json.loads(body, parse_constant=reject_constant)
    except RecursionError:
        raise BadEvent(["the body is nested too deeply to be an event"]) from None
    except ValueError as error:  # covers json.JSONDecodeError and UnicodeDecodeError
        raise BadEvent([f"the body is not JSON: {error}"]) from None
    return document


def mapping(value: object, where: str) -> Mapping[str, object]:
    """Return the value as a JSON object. Raises `BadEvent` for any other kind."""
    if isinstance(value, dict):
        return value
    reject(where, value, "a mapping")


def items(value: object, where: str) -> Sequence[object]:
    """Return a JSON array of at most `MOST` entries. Raises `BadEvent` for anything else."""
    if not isinstance(value, list):
        reject(where, value, "a list")
    if len(value) > MOST:
        raise BadEvent([f"{where}: {len(value)} entries given; send at most {MOST} at a time"])
    return value


def text(value: object, where: str) -> str:
    """Return a text that can be stored: not blank, no NUL, no half of a surrogate pair."""
    if not isinstance(value, str) or not value.strip():
        reject(where, value if not isinstance(value, str) else None, "text")
    if len(value) > LONGEST:
        raise BadEvent([f"{where}: {len(value)} characters given; write at most {LONGEST}"])
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise BadEvent([f"{where}: a character given that no name can hold; write Unicode text without NUL"])
    return value


def number(value: object, where: str, most: float = _LARGEST) -> float:
    """Return a number from 0 to `most`; None counts as 0."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        reject(where, value, "a number")
    if not 0 <= value <= most:
        raise BadEvent([f"{where}: the number is out of range; write one from 0 to {most:.0f}"])
    return float(value)


def identifier(value: object, where: str) -> int | None:
    """Return a snapshot id, a whole number of 64 bits, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        reject(where, value, "a whole number of 64 bits")
    return value


def milliseconds(value: object, where: str) -> float:
    """Return a duration: a number of seconds, `PT1.73S`, or `1.73s`; None counts as 0."""
    if not isinstance(value, str):
        return number(number(value, where) * 1e3, where)
    if match := _WITH_UNIT.fullmatch(value):
        return number(float(match[1]) * _UNITS[match[2]], where)
    if value != "PT" and (match := _ISO.fullmatch(value)):
        return number(sum(float(part) * _UNITS[unit] for unit, part in match.groupdict("0").items()), where)
    raise BadEvent([f"{where}: no duration; write seconds as a number, PT1.73S or 1.73s"])


def moment(value: object, where: str, now: datetime) -> datetime:
    """Return a time as ISO 8601 or as seconds since 1970, not after now; None counts as now."""
    expected = "a time such as 2026-11-21T12:00:00Z"
    if value is None:
        return now
    try:
        if isinstance(value, str):
            parsed = datetime.fromisoformat(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            reject(where, value, expected)
        else:
            parsed = datetime.fromtimestamp(value, UTC)
        parsed = parsed.replace(tzinfo=parsed.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise BadEvent([f"{where}: no time; write {expected}"]) from None
    return min(now, max(now - _OLDEST, parsed))


def table_name(value: object, where: str) -> Name:
    """Return the parts of `catalog.namespace.table`; a part with a dot is quoted with backticks."""
    return name(split_name(text(value, where)), where)


def dotted_name(value: object, where: str) -> Name:
    """Return the parts of `catalog.namespace.table` as engines write it, without quotes."""
    return name(tuple(text(value, where).split(".")), where)


def is_name(parts: Name) -> bool:
    """Return whether the parts can be the full name of a table."""
    return _LEAST_PARTS <= len(parts) <= _MOST_PARTS and all(part.strip() for part in parts)


def name(parts: Name, where: str) -> Name:
    """Return the parts of a full table name. Raises `BadEvent` for too few, too many or blank parts."""
    if not is_name(parts):
        raise BadEvent([f"{where}: no full name of a table; write catalog.namespace.table"])
    return parts


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
    snapshot_id: int | None = None  # None: the report does not say which one
    filter: str = ""  # its template, as `core.filters` makes it; empty: none that bounds of files can use


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
