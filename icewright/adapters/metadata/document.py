"""A metadata file as the bytes of its top-level fields: fields that no change touches are not decoded."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from io import BytesIO
from typing import Any
from uuid import uuid4

import msgspec

from icewright.adapters.read_limits import read_limits
from icewright.core.errors import MetadataUnreadable
from icewright.core.paths import metadata_folder
from icewright.ports.memory import ROOM

Json = Any
Document = dict[str, Any]  # a metadata file: each field as its raw bytes, or as its new value

GZIP = b"\x1f\x8b"
# what a compressed file may inflate to: metadata shrinks to a tenth, now and then to a thirtieth, and never below that
MOST_INFLATED_BYTES = 256 << 20
MOST_TIMES_INFLATED = 50
_CHUNK = 1 << 20

_PREFIX_DIGITS, _CHECK_DIGITS = 20, 12  # of the 32 of a uuid
_NAME = re.compile(r"\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.gz)?\.metadata\.json(?:\.gz)?")


class SpecObject(msgspec.Struct, rename=lambda name: name.replace("_", "-"), frozen=True, gc=False):
    """An object of the spec; fields that it does not name are skipped."""


class SnapshotKey(SpecObject, frozen=True, gc=False):
    """The id of a snapshot, or of an object that belongs to one, and the snapshot's place in the order of commits."""

    snapshot_id: int
    sequence_number: int | None = None
    timestamp_ms: int | None = None

    @property
    def commit_order(self) -> tuple[int, int]:
        """Return the key by which snapshots sort in the order of their commits."""
        return (self.sequence_number or 0, self.timestamp_ms or 0)


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
SNAPSHOT_KEY = msgspec.json.Decoder(SnapshotKey)


def inflate(content: bytes, location: str) -> bytes:
    """Return the file's JSON, inflated if it is gzipped. Raises `OSError`, `EOFError`, `zlib.error` if it is broken.

    Raises `MetadataTooLarge` before a file takes more memory than `reading.max_metadata_mb`, and `MetadataUnreadable`
    before it inflates to more than 256 MiB and more than 50 times itself.
    """
    if content[:2] != GZIP:
        return content
    max_bytes = max(MOST_INFLATED_BYTES, MOST_TIMES_INFLATED * len(content))
    inflated = BytesIO()
    with gzip.GzipFile(fileobj=BytesIO(content)) as reader:
        while chunk := reader.read(_CHUNK):
            inflated_bytes = inflated.tell() + len(chunk)
            read_limits().metadata.check(location, inflated_bytes, "the file inflates to")
            if inflated_bytes > max_bytes:
                raise MetadataUnreadable(
                    f"{location}: {len(content)} bytes inflate to more than {max_bytes}: no metadata file does; if "
                    "this one is good, set write.metadata.compression-codec to none and let its writer commit once"
                )
            ROOM.reserve(len(chunk))
            inflated.write(chunk)
    return inflated.getvalue()


def text_of(content: bytes, location: str) -> bytes:
    """Return the file's JSON. Raises `MetadataUnreadable`."""
    try:
        return inflate(content, location)
    except (OSError, EOFError, zlib.error) as error:
        raise MetadataUnreadable(f"{location}: not a readable metadata file ({error})") from error


def decode(content: bytes, location: str) -> Document:
    """Return the fields of a metadata file, gzipped or not. Raises `MetadataUnreadable`."""
    try:
        document: Document = msgspec.json.decode(text_of(content, location), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MetadataUnreadable(f"{location}: not a readable metadata file ({error})") from error
    if "format-version" not in document or "location" not in document:
        raise MetadataUnreadable(f"{location}: not an Iceberg table metadata file")
    return document


class Editor:
    """Reads and writes single fields of a document; all others keep their bytes."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def get(self, name: str, default: Json) -> Json:
        """Return a field's value, the default when the field is missing or null."""
        value = self.document.get(name)
        value = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
        return default if value is None else value

    def items(self, name: str) -> list[msgspec.Raw]:
        """Return the items of a list, as bytes."""
        value = self.document.get(name)
        value = msgspec.json.decode(value, type=list[msgspec.Raw] | None) if isinstance(value, msgspec.Raw) else value
        return value or []

    def set(self, name: str, value: Json) -> None:
        """Set a field's value, which may contain raw JSON bytes of the file."""
        self.document[name] = value


def encode(document: Document) -> bytes:
    """Return the file's content, gzipped when the table asks for it."""
    return encode_as(document, gzipped=_gzipped(Editor(document)))


def encode_as(document: Document, *, gzipped: bool) -> bytes:
    """Return the file's content, gzipped or not; the same whenever it is asked for."""
    content = msgspec.json.encode(document)
    return gzip.compress(content, mtime=0) if gzipped else content


def next_location(document: Document, current: str) -> str:
    """Return the location of the next metadata file: the next version with a new uuid, unique to this writer.

    The uuid marks the file as Icewright's; see `is_staged_by_us`.
    """
    editor = Editor(document)
    location = editor.get("location", "").rstrip("/")
    folder = metadata_folder(location, editor.get("properties", {}))
    version = current.rsplit("/", 1)[-1].partition("-")[0]
    number = int(version) + 1 if version.isdecimal() else 1
    ending = ".gz.metadata.json" if _gzipped(editor) else ".metadata.json"
    return f"{folder}/{number:05d}-{_own_uuid()}{ending}"


def is_staged_by_us(location: str) -> bool:
    """Return whether the name of a metadata file says that Icewright wrote it, and no other writer.

    So a file that a crash left before any catalog named it is recognized without a record of it.
    """
    match = _NAME.fullmatch(location.rsplit("/", 1)[-1])
    digits = match[1].replace("-", "") if match else ""
    return _check(digits) == digits[_PREFIX_DIGITS:]


def _own_uuid() -> str:
    """Return a random uuid of version 4 whose last digits can be worked out from the others."""
    digits = uuid4().hex
    digits = digits[:_PREFIX_DIGITS] + _check(digits)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _check(digits: str) -> str:
    return hashlib.sha256(b"icewright" + digits[:_PREFIX_DIGITS].encode()).hexdigest()[:_CHECK_DIGITS]


def _gzipped(document: Editor) -> bool:
    codec = document.get("properties", {}).get("write.metadata.compression-codec", "none")
    return str(codec).lower() == "gzip"
