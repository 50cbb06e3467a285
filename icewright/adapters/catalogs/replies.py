"""Replies of HTTP servers, read within limits of size and time, so that none takes all memory or lasts for ever."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from http.client import HTTPException, HTTPResponse
from io import BufferedReader, BytesIO, RawIOBase
from typing import Any
from urllib.parse import urlsplit

from requests import ReadTimeout, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, ContentDecodingError
from requests.exceptions import ConnectionError as Disconnected
from urllib3.exceptions import ConnectTimeoutError, DecodeError, HTTPError, NewConnectionError, ReadTimeoutError

from icewright.adapters.read_limits import read_limits
from icewright.core.errors import CatalogUnavailable
from icewright.ports import SizeLimit
from icewright.ports.memory import ROOM

_CHUNK = 1 << 16
_PATIENCE = 90.0  # seconds for any reply, from its first byte
_LEAST_RATE = 1 << 16  # bytes a second of a longer one
_UNTRUSTED = "certificate verify failed"
_SECRET_HEADER = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
_SHORTEST = 4  # characters of a secret: fewer occur in too many words


class PacedAdapter(HTTPAdapter):
    """Connections that end slow replies, headers too: no time-out between two bytes ends a reply that drips."""

    def get_connection_with_tls_context(self, *args: Any, **how: Any) -> Any:  # noqa: ANN401 - urllib3's
        """Return the pool for a request, whose new connections keep the pace."""
        pool: Any = super().get_connection_with_tls_context(*args, **how)
        pool.ConnectionCls = _paced(type(pool).ConnectionCls)
        return pool


@cache
def _paced(connection: type) -> type:
    return type("PacedConnection", (connection,), {"response_class": _PacedResponse})


class _PacedResponse(HTTPResponse):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.fp = BufferedReader(_PacedBytes(self.fp.detach()))


class _PacedBytes(RawIOBase):
    """The bytes of a reply as they come over the network. Raises `TimeoutError` when they come too slowly."""

    def __init__(self, raw: RawIOBase) -> None:
        self._raw, self._length, self._began = raw, 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - any writable buffer
        length = self._raw.readinto(buffer)
        now = time.monotonic()
        self._began, self._length = self._began or now, self._length + (length or 0)
        if now - self._began > _PATIENCE + self._length / _LEAST_RATE:
            raise TimeoutError(f"timed out: {self._length} bytes came in {now - self._began:.0f} s")
        return length

    def close(self) -> None:
        self._raw.close()
        super().close()


@dataclass
class ReplySize:
    """The bytes that the replies to one question have together, inflated. Thread-safe."""

    limit: SizeLimit
    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def add(self, path: str, length: int) -> None:
        """Count bytes of a reply. Raises `MetadataTooLarge` above the limit."""
        with self._lock:
            self.bytes += length
        self.limit.check(path, self.bytes, "the catalog's reply has")

    @property
    def hooks(self) -> dict[str, Callable[..., None]]:
        """Return the hooks of a request that read its reply and count it."""
        return {"response": partial(_read, add=self.add)}


@dataclass
class ListingSize(ReplySize):
    """The bytes of a listing, all pages together, or of another reply that is about no single table."""

    catalog: str = ""

    @classmethod
    def of(cls, catalog: str) -> ListingSize:
        """Return a new count for a catalog, with the limit of this process."""
        return cls(read_limits().listing, catalog=catalog)

    def add(self, path: str, length: int) -> None:
        """Count bytes of a reply. Raises `CatalogUnavailable` above the limit."""
        with self._lock:
            self.bytes += length
        if self.bytes > self.limit.max_bytes:
            raise CatalogUnavailable(
                f"catalog {self.catalog}: the replies to {path} have more than {self.limit.max_bytes} bytes: mend the "
                f"server, or raise {self.limit.setting} and the memory of this process",
                self.catalog,
            )


def table_reply() -> ReplySize:
    """Return a new count for a reply that brings a table's metadata, with the limit of this process."""
    return ReplySize(read_limits().metadata)


def was_never_sent(error: Exception) -> bool:
    """Return whether a request failed before anything of it was sent: no address, no connection or no trust."""
    reason = getattr(error.args[0], "reason", None) if isinstance(error, Disconnected) and error.args else None
    return isinstance(reason, ConnectTimeoutError | NewConnectionError) or _UNTRUSTED in str(reason)


def remedy(error: Exception) -> str:
    """Return what helps where a server does not answer, for the end of a message."""
    untrusted = "renew the server's certificate, or let this machine trust who signed it"
    return untrusted if _UNTRUSTED in str(error) else "is the server up?"


def read_within_limits(response: Response, *_: object, catalog: str, **__: Any) -> None:
    """Read a reply of a session that counts nothing itself, such as the server's configuration."""
    _read(response, add=ListingSize.of(catalog).add)


def _read(response: Response, *_: object, add: Callable[[str, int], None], **__: Any) -> None:
    """Read the body as it comes, where `requests` would wait for all of it."""
    read: Any = response
    if read._content_consumed:  # noqa: SLF001 - what `Response.content` looks at
        return
    path, body = urlsplit(response.url or "").path, BytesIO()
    try:
        for chunk in _chunks(response):
            add(path, len(chunk))
            ROOM.reserve(len(chunk))
            body.write(chunk)
    except BaseException:
        response.close()
        raise
    read._content, read._content_consumed = _without_credentials(response, body.getvalue()), True  # noqa: SLF001


def _without_credentials(response: Response, body: bytes) -> bytes:
    """Return a reply without the request's credentials, which errors of some servers quote, and messages have those."""
    if response.ok:
        return body
    for name, value in response.request.headers.items():
        scheme, _, credentials = str(value).partition(" ")
        secret = (credentials or scheme) if name.lower().endswith("authorization") else str(value)
        if _SECRET_HEADER.search(name) and len(secret) >= _SHORTEST:
            body = body.replace(secret.encode(), b"***")
    return body


def _chunks(response: Response) -> Iterator[bytes]:
    """Yield what has come, with the errors of `requests`."""
    try:
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            yield chunk
    except DecodeError as error:
        raise ContentDecodingError(error) from error
    except ReadTimeoutError as error:
        raise ReadTimeout(error) from error
    except (HTTPError, HTTPException) as error:
        raise ChunkedEncodingError(error) from error
