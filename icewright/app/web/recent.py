"""Answers that many ask for at the same time are worked out once: whoever asks within a second is given the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

T = TypeVar("T")
SECONDS = 1.0
MOST = 256


@dataclass
class Recent:
    """What was worked out a moment ago, by what was asked."""

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
