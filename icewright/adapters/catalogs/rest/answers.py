"""Decoding of a REST catalog's responses about a table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from icewright.core.errors import CatalogUnavailable, MetadataUnreadable
from icewright.core.table import TableRef


class StorageCredential(msgspec.Struct, frozen=True):
    """Credentials for the files below a prefix."""

    prefix: str
    config: Mapping[str, str] = {}


class Credentials(msgspec.Struct, frozen=True, rename="kebab"):
    """The response of the credentials endpoint."""

    storage_credentials: tuple[StorageCredential, ...] = ()


class Loaded(msgspec.Struct, frozen=True, rename="kebab"):
    """A loaded or committed table; `metadata` holds the bytes of the response."""

    metadata: msgspec.Raw = msgspec.Raw()
    metadata_location: str | None = None
    config: Mapping[str, str] | None = None
    storage_credentials: tuple[StorageCredential, ...] | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_LOADED = msgspec.json.Decoder(Loaded)
_CREDENTIALS = msgspec.json.Decoder(Credentials)


def loaded(ref: TableRef, body: bytes, where: str) -> Loaded:
    """Decode a load or commit response. Raises `MetadataUnreadable`."""
    try:
        answer = _LOADED.decode(body)
    except msgspec.MsgspecError as error:
        raise MetadataUnreadable(f"{ref}: {where} answers in a way that is not the spec's ({error})") from error
    if not bytes(answer.metadata):
        raise MetadataUnreadable(f"{ref}: {where} answers without the table's metadata")
    return answer


def decode_credentials(ref: TableRef, body: bytes, where: str) -> Credentials:
    """Decode a response of the credentials endpoint. Raises `CatalogUnavailable`."""
    try:
        return _CREDENTIALS.decode(body)
    except msgspec.MsgspecError as error:
        raise CatalogUnavailable(f"{ref}: {where} lends credentials in a way that is not the spec's") from error
