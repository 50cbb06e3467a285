"""Answers that many ask for at the same time are worked out once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

T = TypeVar("T")
SECONDS = 1.0
MOST = 256
KEPT = 32  # answers, of which the longest take some 2 MB


@dataclass
class Recent:
    """What was worked out a moment ago, by what was asked: whoever asks within a second is given the same."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[Hashable, tuple[float, Any]] = field(default_factory=dict)
    _busy: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, work: Callable[[], T]) -> T:
        """The answer; who asks for one that is being worked out waits for it."""
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            at, found = self._known.get(key, (0.0, None))
            if found is None or self.clock() - at >= SECONDS:
                found = work()
                with self._lock:
                    if len(self._known) >= MOST:
                        self._known.clear()
                        self._busy.clear()
                    self._known[key] = (self.clock(), found)
            return cast(T, found)


@dataclass
class Unchanged:
    """What was worked out from the store, by what was asked, for as long as nobody has changed the store."""

    stamp: Callable[[], Hashable | None]
    _of: Hashable = None
    _known: dict[Hashable, Any] = field(default_factory=dict)
    _busy: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, work: Callable[[], T]) -> T:
        """The answer, from nothing older than this call; who asks for one that is being worked out waits for it."""
        stamp = self.stamp()
        if stamp is None:
            return work()
        with self._lock:
            if stamp != self._of or len(self._known) >= KEPT:
                self._of, self._known, self._busy = stamp, {}, {}
            known, busy = self._known, self._busy.setdefault(key, threading.Lock())
        with busy:
            if key not in known:
                known[key] = work()
            return cast(T, known[key])
