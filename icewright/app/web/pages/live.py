"""Stream a fragment of a page as server-sent events whenever it changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from icewright.app.web.callers import Caller
from icewright.app.web.middlewares import PrincipalSlots

SECONDS = 300.0  # after which the browser reconnects and authenticates again
_STEP = 0.2
_RECONNECT_MS = 2000
_KEEP_ALIVE_SECONDS = 15.0  # keep-alive interval, so that no proxy closes a silent stream


class CountedStream(StreamingResponse):
    """A streaming response that releases its slot when it ends."""

    release: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, and release its slot at the end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.release()


@dataclass(frozen=True, slots=True)
class Fragment:
    """The HTML of a fragment, and whether it is final."""

    html: str
    last: bool = False


def stream_fragments(caller: Caller, render: Callable[[], Fragment], every: float) -> Response:
    """Return a stream that calls `render` in a thread every `every` seconds. Raises `Problem` 429 or 503."""
    slots: PrincipalSlots = caller.request.app.state.stream_slots
    slots.acquire(caller.slot_key)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    answer = CountedStream(_stream(caller.request, render, every), media_type="text/event-stream", headers=headers)
    answer.release = partial(slots.release, caller.slot_key)
    return answer


async def _stream(request: Request, render: Callable[[], Fragment], every: float) -> AsyncIterator[str]:
    closing: threading.Event = request.app.state.closing
    loop = asyncio.get_running_loop()
    began = last_sent = loop.time()
    previous: str | None = None
    yield f"retry: {_RECONNECT_MS}\n\n"
    while not closing.is_set() and loop.time() - began < SECONDS:
        fragment = await run_in_threadpool(render)
        if fragment.html != previous:
            previous, last_sent = fragment.html, loop.time()
            yield _event("part", fragment.html)
        elif loop.time() - last_sent >= _KEEP_ALIVE_SECONDS:
            last_sent = loop.time()
            yield ": still here\n\n"
        if fragment.last:
            yield _event("end", "")
            return
        until = loop.time() + every  # polled, because another thread sets `closing`
        while loop.time() < until and not closing.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_STEP)


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.replace("\r", "").split("\n"))
    return f"event: {name}\n{lines}\n"
