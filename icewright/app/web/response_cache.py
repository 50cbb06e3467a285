"""Cache results of store reads until the store changes; concurrent requests share one read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fastapi import Request

T = TypeVar("T")
STALE_SECONDS = 1.0  # maximum age of a stale result
MAX_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class _Entry:
    change_token: Hashable | None  # of the store, before the read
    at: float
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
        """Return `work()` or its cached result for the current store; with `allow_stale`, up to a second old.

        Concurrent calls with the same key wait for one computation.
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
            result = work()
            with self._lock:
                self._entries[key] = _Entry(change_token, self.clock(), result)
            return result

    def _evict(self, change_token: Hashable | None) -> None:
        """Drop results that can no longer be served, and everything when the cache is full."""
        if change_token != self._last_token:
            self._last_token = change_token
            self._entries = {key: entry for key, entry in self._entries.items() if self._is_young(entry)}
        if len(self._entries) >= MAX_ENTRIES or len(self._key_locks) >= 2 * MAX_ENTRIES:
            self._entries, self._key_locks = {}, {}

    def _is_young(self, entry: _Entry) -> bool:
        return self.clock() - entry.at < STALE_SECONDS

    @staticmethod
    def _is_current(entry: _Entry, change_token: Hashable | None) -> bool:
        return change_token is not None and entry.change_token == change_token


def response_cache_of(request: Request) -> ResponseCache:
    """Return the response cache of a request's application."""
    response_cache: ResponseCache = request.app.state.response_cache
    return response_cache
