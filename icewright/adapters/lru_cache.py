"""A least-recently-used cache in memory, limited by total weight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class LRUCache(Generic[K, V]):
    """Values by key; the least recently used are evicted while the total weight exceeds `most`.

    A value that alone weighs more is not stored, unless `newest` is true: then the newest value always stays.
    """

    most: int
    weight: Callable[[V], int]
    newest: bool = False
    _values: dict[K, V] = field(default_factory=dict, init=False)
    _total: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def get(self, key: K) -> V | None:
        """Return the value and mark it as the most recently used; None when there is none."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def put(self, key: K, value: V) -> None:
        """Store a value in place of an older one with the same key."""
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._total += self.weight(value)
            least = 1 if self.newest else 0
            while self._total > self.most and len(self._values) > least:
                self._drop(next(iter(self._values)))

    def _drop(self, key: K) -> None:
        old = self._values.pop(key, None)
        if old is not None:
            self._total -= self.weight(old)
