"""The dependencies that routes take from the running application, and its cache of what the store answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from fastapi import Request

from icewright.core.events.directory import Directory
from icewright.flow.runtime import Runtime

T = TypeVar("T")
STALE_SECONDS = 1.0  # age of a stale result that took no time to compute
_STALE_TIMES, _MOST_STALE_SECONDS = 10, 30.0
MAX_ENTRIES = 256


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


@dataclass(frozen=True, slots=True)
class _Entry:
    change_token: Hashable | None  # of the store, before the read
    at: float
    seconds: float  # that the read took
    result: Any


@dataclass
class ResponseCache:
    """A cache of results by key, valid for one state of the store."""

    change_token: Callable[[], Hashable | None]  # differs after each change of the store; None: unknown
    clock: Callable[[], float] = time.monotonic
    _entries: dict[Hashable, _Entry] = field(default_factory=dict)
    _key_locks: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _last_token: Hashable | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, work: Callable[[], T], *, allow_stale: bool = False) -> T:
        """Return `work()` or its cached result for the current store; with `allow_stale`, an older one too.

        A stale result is a second old at most, or ten times as old as it took to compute: a page that follows a large
        fleet takes a tenth of a processor at most. Concurrent calls with the same key wait for one computation.
        """
        change_token = self.change_token()
        if change_token is None and not allow_stale:
            return work()
        with self._lock:
            self._evict(change_token)
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            entry = self._entries.get(key)
            if entry is not None and (self._is_current(entry, change_token) or (allow_stale and self._is_young(entry))):
                return cast(T, entry.result)
            began = self.clock()
            result = work()
            with self._lock:
                ended = self.clock()
                self._entries[key] = _Entry(change_token, ended, ended - began, result)
            return result

    def _evict(self, change_token: Hashable | None) -> None:
        """Drop results that can no longer be served, and everything when the cache is full."""
        if change_token != self._last_token:
            self._last_token = change_token
            self._entries = {key: entry for key, entry in self._entries.items() if self._is_young(entry)}
        if len(self._entries) >= MAX_ENTRIES or len(self._key_locks) >= 2 * MAX_ENTRIES:
            self._entries, self._key_locks = {}, {}

    def _is_young(self, entry: _Entry) -> bool:
        return self.clock() - entry.at < max(STALE_SECONDS, min(_STALE_TIMES * entry.seconds, _MOST_STALE_SECONDS))

    @staticmethod
    def _is_current(entry: _Entry, change_token: Hashable | None) -> bool:
        return change_token is not None and entry.change_token == change_token


def response_cache_of(request: Request) -> ResponseCache:
    """Return the response cache of a request's application."""
    response_cache: ResponseCache = request.app.state.response_cache
    return response_cache
