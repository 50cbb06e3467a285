"""What was read from the store is kept until the store changes: what many ask for at the same time is read once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fastapi import Request

T = TypeVar("T")
SECONDS = 1.0  # that an answer may be old where it takes work
MOST = 256


@dataclass(frozen=True, slots=True)
class _Answer:
    stamp: Hashable | None  # of the store, before it was read
    at: float
    found: Any


@dataclass
class ResponseCache:
    """What was worked out from the store, by what was asked."""

    stamp: Callable[[], Hashable | None]  # another one after each change of the store; None: not known
    clock: Callable[[], float] = time.monotonic
    _known: dict[Hashable, _Answer] = field(default_factory=dict)
    _busy: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _last: Hashable | None = None  # stamp
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, work: Callable[[], T], *, lately: bool = False) -> T:
        """Return the answer as it is now; with `lately`, or as it was within the last second.

        Who asks for one that is being worked out waits for it.
        """
        stamp = self.stamp()
        if stamp is None and not lately:
            return work()
        with self._lock:
            self._forget(stamp)
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            known = self._known.get(key)
            if known is not None and (self._holds(known, stamp) or (lately and self._is_young(known))):
                return cast(T, known.found)
            found = work()
            with self._lock:
                self._known[key] = _Answer(stamp, self.clock(), found)
            return found

    def _forget(self, stamp: Hashable | None) -> None:
        """Keep nothing that nobody can be answered any more, nor too much."""
        if stamp != self._last:
            self._last = stamp
            self._known = {key: known for key, known in self._known.items() if self._is_young(known)}
        if len(self._known) >= MOST or len(self._busy) >= 2 * MOST:
            self._known, self._busy = {}, {}

    def _is_young(self, known: _Answer) -> bool:
        return self.clock() - known.at < SECONDS

    @staticmethod
    def _holds(known: _Answer, stamp: Hashable | None) -> bool:
        return stamp is not None and known.stamp == stamp


def response_cache_of(request: Request) -> ResponseCache:
    """Return what the application of a request has kept."""
    recent: ResponseCache = request.app.state.recent
    return recent
