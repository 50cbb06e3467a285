"""Reads the owner and the earlier versions from metadata files that no catalog names, without parsing the rest."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime

import msgspec

from icewright.adapters.metadata.document import OfSnapshot, SpecObject, inflate
from icewright.adapters.metadata.parsing import NO_SNAPSHOT, time_of
from icewright.core.errors import MetadataUnreadable

_FIELDS = ("format-version", "table-uuid", "view-uuid")  # one of which every file of Iceberg has
_ZSTD = b"\x28\xb5\x2f\xfd"  # some writers compress by it, although the spec does not know it
_ENCRYPTED = b"AGS1"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The table or view that a metadata file belongs to, and the versions of the table before it."""

    table_uuid: str  # of a view its own; blank when the file has none, as format v1 allows
    location: str
    last_updated: datetime | None  # None for views
    log: tuple[str, ...]  # earlier metadata files as the file names them, the oldest first
    snapshot_ids: frozenset[int]
    current_snapshot_id: int | None


class _LogEntry(SpecObject, frozen=True, gc=False):
    metadata_file: str


class _Lineage(SpecObject, frozen=True, gc=False):
    table_uuid: str | None = None
    view_uuid: str | None = None
    location: str = ""
    last_updated_ms: int | None = None
    metadata_log: list[_LogEntry] | None = None
    snapshots: list[OfSnapshot] | None = None
    current_snapshot_id: int | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_LINEAGE = msgspec.json.Decoder(_Lineage)


def lineage(content: bytes, location: str) -> Lineage | None:
    """Return the lineage of a metadata file; None when it is debris: empty, truncated, or not Iceberg's at all.

    Raises `MetadataUnreadable` when the file may be a table's and cannot be read: compressed in another way, encrypted,
    not valid by the spec, or too large when inflated.
    """
    if content.startswith((_ZSTD, _ENCRYPTED)):
        raise MetadataUnreadable(f"{location}: compressed or encrypted in a way that Icewright cannot read")
    try:
        text = inflate(content, location)
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not fields.keys() & set(_FIELDS):
        return None
    try:
        return _values(_LINEAGE.decode(text))
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise MetadataUnreadable(f"{location}: not as the spec has it ({error})") from error


def _values(decoded: _Lineage) -> Lineage:
    current = decoded.current_snapshot_id
    return Lineage(
        table_uuid=decoded.table_uuid or decoded.view_uuid or "",
        location=decoded.location.rstrip("/"),
        last_updated=None if decoded.last_updated_ms is None else time_of(decoded.last_updated_ms),
        log=tuple(entry.metadata_file for entry in decoded.metadata_log or ()),
        snapshot_ids=frozenset(snapshot.snapshot_id for snapshot in decoded.snapshots or ()),
        current_snapshot_id=None if current == NO_SNAPSHOT else current,
    )
