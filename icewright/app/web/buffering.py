"""Buffer responses that a middleware must see whole before they are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
