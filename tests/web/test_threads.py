"""Routes in one thread: a request to the API takes one, and the event loop is never kept waiting."""

from __future__ import annotations

import threading
from typing import Annotated

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette import concurrency

from icewright.app.web import routing
from icewright.app.web.api import access, jobs, overview, policies, system, tables, triggers
from icewright.app.web.routing import SingleThreadRoute, in_thread


@in_thread
def dependency() -> int:
    """The thread that it runs in."""
    return threading.get_ident()


async def loop() -> int:
    """The event loop's thread."""
    return threading.get_ident()


async def waiting() -> None:
    """What waits for the event loop."""
    await concurrency.run_in_threadpool(int)


def _app(kind: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=kind)

    @router.get("/")
    def get(of: Annotated[int, Depends(dependency)]) -> dict[str, int]:
        return {"dependency": of, "route": threading.get_ident()}

    @router.post("/")
    def post(
        of: Annotated[int, Depends(dependency)], at: Annotated[int, Depends(loop)], said: Annotated[str, Body()]
    ) -> dict[str, int | str]:
        assert at not in (of, threading.get_ident())
        return {"said": said}

    @router.get("/waiting")
    def waits(of: Annotated[None, Depends(waiting)]) -> None:
        """Never answered in a thread."""

    app = FastAPI(telemetry={"auto_configure": False})
    app.include_router(router)
    return app


def test_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dependency and the route share it: it is asked for once."""
    asked: list[object] = []

    async def counted(function: object, *args: object, **more: object) -> object:
        asked.append(function)
        return await concurrency.run_in_threadpool(function, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(routing, "run_in_threadpool", counted)
    with TestClient(_app(SingleThreadRoute)) as client:
        found = client.get("/").json()
        assert found["dependency"] == found["route"]
        assert len(asked) == 1
        assert client.post("/", json="x").json() == {"said": "x"}


def test_in_a_usual_route() -> None:
    """The dependency takes a thread of its own, and the event loop goes on."""
    with TestClient(_app(APIRoute)) as client:
        assert client.get("/").status_code == 200
        assert client.post("/", json="x").json() == {"said": "x"}


def test_who_waits_is_found() -> None:
    """A mistake of ours, and said so."""
    with TestClient(_app(SingleThreadRoute)) as client, pytest.raises(RuntimeError, match="event loop"):
        client.get("/waiting")


def test_the_api_is_in_threads() -> None:
    """All of it but the events, which wait for their body."""
    parts = (access, jobs, overview, policies, system, tables, triggers)
    routes = [route for part in parts for route in part.router.routes]
    assert routes
    assert [route for route in routes if not isinstance(route, SingleThreadRoute)] == []
