"""The dependencies that routes take from the running application."""

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

    @property
    def directory(self) -> Directory:
        """Return the catalogs by every name that events may use."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Readiness faults, metrics and stuck loops of the process."""

    faults: Callable[[], Sequence[str]]  # why the process is not ready; empty when ready
    metrics: Callable[[], bytes]  # in Prometheus's text format
    stuck_loops: Callable[[], Sequence[str]] = tuple  # why the process must be replaced; empty while it lives


async def app_state(request: Request) -> AppState:
    """Return the application of a request, as a dependency of routes."""
    state: AppState = request.app.state.application
    return state


async def service_status(request: Request) -> ServiceStatus:
    """Return the status of the process, as a dependency of routes."""
    status: ServiceStatus = request.app.state.service_status
    return status
