"""Answers that are looked at whole before they are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def buffer_response(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    wanted: Callable[[Message], bool],
    answer: Callable[[Message, bytes], Awaitable[None]],
) -> None:
    """Pass the request on. An answer whose start is `wanted` goes to `answer` with its body, any other straight on."""
    start: Message | None = None
    body = bytearray()

    async def sending(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and wanted(message):
            start = message
            return
        if start is None:
            await send(message)
            return
        body.extend(message.get("body", b""))
        if not message.get("more_body", False):
            await answer(start, bytes(body))

    await app(scope, receive, sending)
