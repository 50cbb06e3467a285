"""What routes are handed: the application that the server was made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request

from icewright.core.events.directory import Directory
from icewright.flow.runtime import Runtime


class AppState(Protocol):
    """An application whose store is open; `bootstrap.Application` is one."""

    @property
    def runtime(self) -> Runtime:
        """Return the runtime of the opened application."""
        ...

    @property
    def directory(self) -> Directory:
        """Return the catalogs as others may name them."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """What those who watch the service are told."""

    faults: Callable[[], Sequence[str]]  # why it cannot do its work; nothing while it can
    metrics: Callable[[], bytes]  # in Prometheus's text format


async def app_state(request: Request) -> AppState:
    """Return the application, as a dependency of a route; what does not wait takes no thread."""
    found: AppState = request.app.state.opened
    return found


async def watch(request: Request) -> Watch:
    """Return what to say of the service, as a dependency of a route."""
    found: Watch = request.app.state.watch
    return found
