"""Middlewares: limit what clients send, give each request an id and a log line, and tag responses with ETags."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icewright.app.web.problems import Problem

CLIENTS = 4096  # buckets in memory
PROBES = ("/healthz", "/readyz")  # never limited, so that an orchestrator does not kill a busy service
BODY_SECONDS = 30.0  # to receive a whole body
_SLOT_SECONDS = 5  # Retry-After of what finds no slot
_NETWORK = 64  # prefix bits of an IPv6 address that count as one client
REQUEST_ID = "x-request-id"
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = {  # defaults; a route may set its own, as pages do
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_log = logging.getLogger(__name__)
_BYTES = 16


@dataclass
class TokenBuckets:
    """A token bucket for each client: `rate` tokens a second, bursts of twice as many."""

    rate: float
    clock: Callable[[], float] = time.monotonic
    limit: int = CLIENTS
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens, as of when

    def wait(self, client: str) -> float:
        """Take a token of the client and return 0, or return the seconds until one is available."""
        now, full = self.clock(), 2 * self.rate
        tokens, at = self._buckets.pop(client, (full, now))
        tokens = min(full, tokens + (now - at) * self.rate)
        self._buckets[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > self.limit:
            self._buckets.popitem(last=False)  # the client that was idle longest gets a full bucket again
        return 0.0 if tokens >= 1 else (1 - tokens) / self.rate


@dataclass
class PrincipalSlots:
    """Counts what each principal has open of one kind, up to a limit for each and one for all."""

    kind: str  # in the plural
    per_principal: int
    total: int
    _open: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, principal: str) -> None:
        """Take a slot. Raises `Problem` 429 at the principal's limit, and 503 at the limit of all."""
        headers = {"Retry-After": str(_SLOT_SECONDS)}
        with self._lock:
            if self._open[principal] >= self.per_principal:
                raise Problem(429, f"you have {self.per_principal} {self.kind} open; close one first", headers=headers)
            if self._open.total() >= self.total:
                raise Problem(503, f"{self.total} {self.kind} are open; try again", headers=headers)
            self._open[principal] += 1

    def release(self, principal: str) -> None:
        """Give a slot of the principal back."""
        with self._lock:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]

    @contextmanager
    def hold(self, principal: str) -> Iterator[None]:
        """Hold a slot while the block runs. Raises `Problem` as `acquire` does."""
        self.acquire(principal)
        try:
            yield
        finally:
            self.release(principal)


class RateLimitMiddleware:
    """Answers 429 to clients that exceed their rate."""

    def __init__(self, app: ASGIApp, buckets: TokenBuckets) -> None:
        self.app, self.buckets = app, buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, or answer 429 with `Retry-After`."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            seconds = self.buckets.wait(network_of((scope.get("client") or ("",))[0]))
            if seconds:
                headers = {"Retry-After": str(ceil(seconds))}
                problem = Problem(
                    429, "too many requests; send fewer, or raise server.requests_per_second", headers=headers
                )
                await problem.response(scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def network_of(host: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(ip_network((address, _NETWORK), strict=False)) if isinstance(address, IPv6Address) else str(address)


class BodyLimitMiddleware:
    """Answers 413 to bodies that are too large, declared or chunked, and 408 to bodies that arrive too slowly."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float = BODY_SECONDS) -> None:
        self.app, self.limit, self.seconds = app, limit, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a `receive` that counts the body's bytes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > self.limit:
            await Problem(413, self._detail, headers={"Connection": "close"}).response(scope)(scope, receive, send)
            return
        received, complete, deadline = 0, False, asyncio.get_running_loop().time() + self.seconds

        async def counting_receive() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"the body did not come within {self.seconds:g} seconds"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self.limit:
                # close the connection, so that the client stops sending
                raise HTTPException(413, self._detail, {"Connection": "close"})
            return message

        await self.app(scope, counting_receive, send)

    @property
    def _detail(self) -> str:
        return f"the body is larger than {self.limit} bytes; send less at a time, or raise server.max_body_mb"


class HeadMiddleware:
    """Answers HEAD, with which monitors and load balancers ask, as GET without the body; endless streams refuse it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and drop the bodies of answers to HEAD."""

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        if scope["type"] == "http" and scope["method"] == "HEAD" and not scope["path"].startswith("/live/"):
            await self.app({**scope, "method": "GET"}, receive, send_head)
        else:
            await self.app(scope, receive, send)


class RequestLogMiddleware:
    """Assigns request ids, sets security headers and logs every request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and answer 500 when it raises before a response began."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        header = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = header if _VALID_ID.fullmatch(header) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, REQUEST_ID: request_id}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass  # the client has disconnected
        except Exception:
            _log.exception("request %s failed", request_id)
            if status:
                raise  # the response has begun: the server closes the connection
            problem = Problem(500, "internal error; search the log of the service for the id of this request")
            await problem.response(scope)(scope, receive, send_with_headers)
        finally:
            elapsed_ms = (time.perf_counter() - started) * 1000
            # percent-encoded, so that a newline cannot forge a log line
            path = scope.get("raw_path", b"").decode("ascii", "replace")
            client = (scope.get("client") or ("-",))[0]
            _log.info(
                "%s %s %s %.1f ms from %s, request %s", scope["method"], path, status, elapsed_ms, client, request_id
            )


async def buffer_response(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    should_buffer: Callable[[Message], bool],
    answer: Callable[[Message, bytes], Awaitable[None]],
) -> None:
    """Run the application; pass responses whose start matches `should_buffer` whole to `answer`, and send on others."""
    start: Message | None = None
    body = bytearray()

    async def buffering_send(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and should_buffer(message):
            start = message
            return
        if start is None:
            await send(message)
            return
        body.extend(message.get("body", b""))
        if not message.get("more_body", False):
            await answer(start, bytes(body))

    await app(scope, receive, buffering_send)


class ETagMiddleware:
    """Tags JSON responses to GET, and answers 304 when `If-None-Match` names the tag."""

    def __init__(self, app: ASGIApp, below: str = "/api/") -> None:
        self.app, self.below = app, below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, buffering JSON responses to compute their tag."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(self.below):
            await self.app(scope, receive, send)
            return
        if_none_match = Headers(scope=scope).get("if-none-match", "")

        async def answer(start: Message, body: bytes) -> None:
            await _send_tagged(start, body, if_none_match, send)

        await buffer_response(self.app, scope, receive, send, _taggable, answer)


def _taggable(message: Message) -> bool:
    kind = Headers(raw=message["headers"]).get("content-type", "")
    return message["status"] == 200 and kind == "application/json"  # noqa: PLR2004 - OK


async def _send_tagged(start: Message, body: bytes, if_none_match: str, send: Send) -> None:
    tag = f'"{blake2b(body, digest_size=_BYTES).hexdigest()}"'
    headers = MutableHeaders(scope=start)
    headers["etag"] = tag
    headers["cache-control"] = "private, no-cache"  # browsers may store the response and must revalidate
    headers.add_vary_header("authorization, cookie")
    client_tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    if tag in client_tags or "*" in client_tags:
        del headers["content-length"]
        await send({**start, "status": 304})
        await send({"type": "http.response.body", "body": b""})
        return
    await send(start)
    await send({"type": "http.response.body", "body": body})
