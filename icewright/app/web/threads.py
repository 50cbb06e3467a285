"""Routes that are answered in one thread: FastAPI takes one for each dependency, the route and its answer's check.

Each time is two messages between threads, and a wait for whichever thread computes at that moment.
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
    """The same for the event loop, which is not kept waiting; in a thread that its route took already, at once."""

    @wraps(function)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _in_loop():
            return await run_in_threadpool(function, *args, **kwargs)
        return function(*args, **kwargs)

    return called


class OneThread(APIRoute):
    """A route whose dependencies are `in_thread` or do not wait. One that reads a body does so in the event loop."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's own
        super().__init__(path, in_thread(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that runs the whole request in one thread."""
        handler = super().get_route_handler()
        if self.body_field is not None:
            return handler

        async def answered(request: Request) -> Response:
            return await run_in_threadpool(_run, handler, request)

        return answered


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(handler: Callable[[Request], Coroutine[Any, Any, T]], request: Request) -> T:
    """Return what a coroutine comes to that waits for nothing."""
    coroutine = handler(request)
    try:
        coroutine.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    coroutine.close()
    raise RuntimeError("a dependency of a route in a thread waits for the event loop")
