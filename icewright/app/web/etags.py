"""ETags: whoever has an answer already is told so, and not sent it again."""

from __future__ import annotations

from hashlib import blake2b

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icewright.app.web.buffering import buffer_response

_BYTES = 16


class ETagMiddleware:
    """Tags the JSON that the API answers to GET, and answers 304 to whoever names its tag."""

    def __init__(self, app: ASGIApp, below: str = "/api/") -> None:
        self.app, self.below = app, below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and hold its answer until it is whole."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(self.below):
            await self.app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("if-none-match", "")

        async def tagged(start: Message, body: bytes) -> None:
            await _answer(start, body, wanted, send)

        await buffer_response(self.app, scope, receive, send, _taggable, tagged)


def _taggable(message: Message) -> bool:
    kind = Headers(raw=message["headers"]).get("content-type", "")
    return message["status"] == 200 and kind == "application/json"  # noqa: PLR2004 - OK


async def _answer(start: Message, body: bytes, wanted: str, send: Send) -> None:
    tag = f'"{blake2b(body, digest_size=_BYTES).hexdigest()}"'
    headers = MutableHeaders(scope=start)
    headers["etag"] = tag
    headers["cache-control"] = "private, no-cache"  # it may be kept, and is asked for again each time
    headers.add_vary_header("authorization, cookie")
    known = {one.strip().removeprefix("W/") for one in wanted.split(",")}
    if tag in known or "*" in known:
        del headers["content-length"]
        await send({**start, "status": 304})
        await send({"type": "http.response.body", "body": b""})
        return
    await send(start)
    await send({"type": "http.response.body", "body": body})
