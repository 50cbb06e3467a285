"""Room for the metadata of tables that one process reads at the same time, so that several huge tables wait in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from icewright.core.errors import MemoryBusy

_SMALL_SHARE = 64  # of the room: a table that takes less than one part of so many neither waits nor counts
_STALE_SECONDS = 300.0  # without a further read, after which nobody waits any more for a table that may hang
_LOOK_SECONDS = 1.0


@dataclass(eq=False)
class _Hold:
    """The memory that one table has taken."""

    patience: float | None  # seconds that it waits for others; None: as long as it takes
    bytes: int = 0
    waits: bool = False
    taken_at: float = 0.0  # 0: nothing that counts yet


class _Current(threading.local):
    hold: _Hold | None = None


@dataclass
class MetadataRoom:
    """Bytes of metadata and manifests, inflated, that tables have in memory together. Thread-safe.

    A table that finds no room waits until others have ended; one that is larger than the room is read alone. Tables
    that already hold some and wait for each other go on one at a time, the oldest first.
    """

    max_bytes: int = 512 << 20
    seconds: Callable[[], float] = time.monotonic
    _holds: dict[_Hold, None] = field(default_factory=dict, init=False)  # those that count, by age
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _current: _Current = field(default_factory=_Current, init=False)

    @contextmanager
    def table(self, patience: float | None = None) -> Iterator[None]:
        """Count what the thread takes in the block as one table's; the outermost block counts."""
        if self._current.hold is not None:
            yield
            return
        hold = self._current.hold = _Hold(patience)
        try:
            yield
        finally:
            self._current.hold = None
            with self._changed:
                self._holds.pop(hold, None)
                self._changed.notify_all()

    def reserve(self, length: int) -> None:
        """Wait until the thread's table may have so many bytes more. Raises `MemoryBusy` when its patience ends.

        Outside of a block nothing is counted.
        """
        hold = self._current.hold
        if hold is None:
            return
        if hold.bytes + length <= self.max_bytes // _SMALL_SHARE:
            hold.bytes += length
            return
        with self._changed:
            self._holds.setdefault(hold)
            began, hold.waits = self.seconds(), True
            try:
                while not self._admits(hold, length):
                    waited = self.seconds() - began
                    if hold.patience is not None and waited >= hold.patience:
                        raise MemoryBusy(
                            f"other tables take the {self.max_bytes} bytes of reading.max_total_mb for {waited:.0f} s"
                        )
                    self._changed.wait(_LOOK_SECONDS)
            finally:
                hold.waits = False
                self._changed.notify_all()
            hold.bytes, hold.taken_at = hold.bytes + length, self.seconds()

    def state(self) -> tuple[int, int]:
        """Return the bytes that tables have taken, and how many tables wait for room."""
        with self._changed:
            return sum(hold.bytes for hold in self._holds), sum(hold.waits for hold in self._holds)

    def _admits(self, hold: _Hold, length: int) -> bool:
        now, holds = self.seconds(), list(self._holds)
        older = holds[: holds.index(hold)]
        others = [h for h in holds if h is not hold and (h.waits or now - h.taken_at <= _STALE_SECONDS)]
        if all(other.waits for other in others):
            return not any(earlier.waits for earlier in older)
        if not hold.taken_at and any(earlier.waits for earlier in older):  # the turn of a huge table comes, too
            return False
        return hold.bytes + length + sum(other.bytes for other in others) <= self.max_bytes


ROOM = MetadataRoom()  # of this process: memory is the process's, whichever catalog or reader takes it
