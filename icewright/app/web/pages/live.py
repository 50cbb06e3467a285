"""Server-sent events: a part of a page, sent again when it has changed, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from icewright.app.web.problems import Problem

MOST = 100  # who follow at the same time
SECONDS = 300.0  # after which the browser comes again, and is asked again who it is
_STEP = 0.2
_AGAIN_MS = 2000
_BEAT = 15.0  # within which something is sent, so that no proxy closes what is silent


@dataclass
class StreamSlots:
    """The number of browsers that follow events, and its limit."""

    most: int = MOST
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self) -> None:
        """Count one follower more. Raises `Problem` at the limit."""
        with self._lock:
            if self._count >= self.most:
                raise Problem(503, "too many follow what happens; load the page again", headers={"Retry-After": "30"})
            self._count += 1

    def leave(self) -> None:
        """Count one of the followers less."""
        with self._lock:
            self._count -= 1


class CountedStream(StreamingResponse):
    """A stream that counts as long as it is sent."""

    followers: StreamSlots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.followers.leave()


@dataclass(frozen=True, slots=True)
class Fragment:
    """The part as it is now, and whether it will change no more."""

    html: str
    last: bool = False


def follow(request: Request, look: Callable[[], Fragment], every: float) -> Response:
    """Return the stream. `look` is called off the loop, as often as said."""
    followers: StreamSlots = request.app.state.stream_slots
    followers.join()
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    answer = CountedStream(_shots(request, look, every), media_type="text/event-stream", headers=headers)
    answer.followers = followers
    return answer


async def _shots(request: Request, look: Callable[[], Fragment], every: float) -> AsyncIterator[str]:
    closing: threading.Event = request.app.state.closing
    loop = asyncio.get_running_loop()
    began = submission = loop.time()
    before: str | None = None
    yield f"retry: {_AGAIN_MS}\n\n"
    while not closing.is_set() and loop.time() - began < SECONDS:
        shot = await run_in_threadpool(look)
        if shot.html != before:
            before, submission = shot.html, loop.time()
            yield _event("part", shot.html)
        elif loop.time() - submission >= _BEAT:
            submission = loop.time()
            yield ": still here\n\n"
        if shot.last:
            yield _event("end", "")
            return
        until = loop.time() + every  # in steps, as another thread says that the server is to stop
        while loop.time() < until and not closing.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_STEP)


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.replace("\r", "").split("\n"))
    return f"event: {name}\n{lines}\n"
