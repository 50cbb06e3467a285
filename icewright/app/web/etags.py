"""Tag responses of the API with ETags and answer 304 to clients that have them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BYTES = 16


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
