"""Answer a request in one thread; FastAPI uses one for each dependency, the route and response validation.

Each hand-over costs two messages between threads, and a wait for the thread that holds the GIL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

P = ParamSpec("P")
T = TypeVar("T")


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

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's own
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
