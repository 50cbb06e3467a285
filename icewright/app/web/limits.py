"""What one client may ask for: requests per second, and bytes per request."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icewright.app.web.problems import Problem

CLIENTS = 4096  # of whom it is known how much they asked for
PROBES = ("/healthz", "/readyz")  # whoever watches the service is never turned away
BODY_SECONDS = 30.0  # within which a body must have come
_NETWORK = 64  # bits of an IPv6 address that are one client


@dataclass
class TokenBuckets:
    """A token bucket for each client: `rate` requests a second, twice as many at once."""

    rate: float
    clock: Callable[[], float] = time.monotonic
    most: int = CLIENTS
    _known: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens, as of when

    def wait(self, client: str) -> float:
        """Take a token: 0 when there was one, else the seconds until there is."""
        now, full = self.clock(), 2 * self.rate
        tokens, at = self._known.pop(client, (full, now))
        tokens = min(full, tokens + (now - at) * self.rate)
        self._known[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._known) > self.most:
            self._known.popitem(last=False)  # who asked longest ago begins anew
        return 0.0 if tokens >= 1 else (1 - tokens) / self.rate


class RateLimitMiddleware:
    """Turns away who asks too often."""

    def __init__(self, app: ASGIApp, buckets: TokenBuckets) -> None:
        self.app, self.buckets = app, buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, or say when it may come again."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            wait = self.buckets.wait(_client(scope))
            if wait:
                headers = {"Retry-After": str(ceil(wait))}
                problem = Problem(
                    429, "too many requests; send fewer, or raise server.requests_per_second", headers=headers
                )
                await problem.response(scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _client(scope: Scope) -> str:
    host = (scope.get("client") or ("",))[0]
    try:
        address = ip_address(host)
    except ValueError:
        return str(host)
    return str(ip_network((address, _NETWORK), strict=False)) if isinstance(address, IPv6Address) else str(address)


class BodyLimitMiddleware:
    """Refuses bodies that are too large, whether they say so or come in chunks, and that take too long to come."""

    def __init__(self, app: ASGIApp, most: int, seconds: float = BODY_SECONDS) -> None:
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, its body counted as it comes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "0")
        if said.isdecimal() and int(said) > self.most:
            await Problem(413, self._detail, headers={"Connection": "close"}).response(scope)(scope, receive, send)
            return
        come, whole, until = 0, False, asyncio.get_running_loop().time() + self.seconds

        async def receiving() -> Message:
            nonlocal come, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                detail = f"the body did not come within {self.seconds:g} seconds"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            come += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if come > self.most:
                # closed, so that nobody goes on sending
                raise HTTPException(413, self._detail, {"Connection": "close"})
            return message

        await self.app(scope, receiving, send)

    @property
    def _detail(self) -> str:
        return f"the body is larger than {self.most} bytes; send less at a time, or raise server.max_body_mb"
