"""Routes as this API needs them: path segments that contain encoded slashes, and one thread for a request.

FastAPI uses a thread for each dependency, the route and response validation. Each hand-over costs two messages between
threads, and a wait for the thread that holds the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from icewright.app.web.problems import Problem

_SLASH = "\udc2f"  # a lone surrogate, which no path decoded from UTF-8 contains
LONGEST = 4096
P = ParamSpec("P")
T = TypeVar("T")


class Segment(Convertor[str]):
    """A decoded path segment, which may contain slashes."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Percent-decode a segment of the path."""
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        """Percent-encode a value as a segment of a path."""
        return value.replace("/", _SLASH)


register_url_convertor("segment", Segment())


class PathSegmentMiddleware:
    """Protects encoded slashes of names from routing; refuses null characters and long paths."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with encoded slashes of the path replaced by a marker."""
        if scope["type"] == "http":
            raw, query = scope.get("raw_path") or b"", scope.get("query_string", b"")
            if b"%00" in raw or b"%00" in query or b"\0" in raw or len(raw) > LONGEST:
                problem = Problem(400, f"no name holds a null character, and no path is longer than {LONGEST} bytes")
                await problem.response(scope)(scope, receive, send)
                return
            if b"%" in raw:
                parts = raw.partition(b"?")[0].split(b"/")
                scope = {**scope, "path": "/".join(unquote(p.decode("latin-1")).replace("/", _SLASH) for p in parts)}
        await self.app(scope, receive, send)


def in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return an async function that runs in a worker thread when called from the event loop, else directly."""

    @wraps(function)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if _in_event_loop():
            return await run_in_threadpool(function, *args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


class SingleThreadRoute(APIRoute):
    """A route that runs dependencies and endpoint in one thread; a body is read in the event loop first."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, in_thread(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that runs the whole request in one thread."""
        handler = super().get_route_handler()
        if self.body_field is not None:
            return handler

        async def run_in_thread(request: Request) -> Response:
            return await run_in_threadpool(_run_without_loop, handler, request)

        return run_in_thread


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_without_loop(handler: Callable[[Request], Coroutine[Any, Any, T]], request: Request) -> T:
    """Return the result of a coroutine that never suspends. Raises `RuntimeError` when it does."""
    coroutine = handler(request)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a dependency of a route in a thread waits for the event loop")
