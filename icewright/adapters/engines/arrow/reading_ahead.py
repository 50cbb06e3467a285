"""Small files of an object store, read before they are asked for: each takes as long as several do at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from icewright.adapters.engines.arrow.opening import IN_MEMORY_BYTES, Opener
from icewright.core.paths import local_path
from icewright.ports.work import WorkerThreads

_READERS = 8  # threads
_SHARE = 32  # divisor of the task's memory: what may be in it before it is asked for


@dataclass(frozen=True)
class ReadingAhead(Opener):
    """Opens files by another opener, and begins with those that come next; their errors come when they are opened."""

    opener: Opener
    memory_bytes: int  # for files that are not asked for yet
    _next: deque[tuple[str, int]]  # paths in order, each with the bytes of its file
    _coming: dict[str, tuple[int, Future[pa.NativeFile]]] = field(default_factory=dict, init=False)
    _opened: set[str] = field(default_factory=set, init=False)
    _threads: WorkerThreads = field(default_factory=lambda: WorkerThreads(_READERS), init=False)

    @classmethod
    def of(cls, opener: Opener, files: Iterable[tuple[str, int]], memory_bytes: int) -> Opener:
        """Return an opener of files that are likely to be opened in this order, in a task of so much memory.

        Local files come by the given opener.
        """
        small = {path: size for path, size in files if size <= IN_MEMORY_BYTES and local_path(path) is None}
        return cls(opener.storage, opener, memory_bytes // _SHARE, deque(small.items())) if len(small) > 1 else opener

    def input(self, path: str) -> pa.NativeFile:
        """Open a file, which is in memory if it was among the next ones."""
        self._opened.add(path)
        while self._next and self._has_room(self._next[0][1]):
            following, size = self._next.popleft()
            if following == path or following not in self._opened:
                self._coming[following] = size, self._threads.submit(self._in_memory, following)
        _, coming = self._coming.pop(path, (0, None))
        return self.opener.input(path) if coming is None else coming.result()

    def _has_room(self, size: int) -> bool:
        return not self._coming or size + sum(other for other, _ in self._coming.values()) <= self.memory_bytes

    def _in_memory(self, path: str) -> pa.NativeFile:
        stream = self.opener.input(path)
        if stream.size() > IN_MEMORY_BYTES:  # which its entry did not say
            return stream
        with stream:
            return pa.BufferReader(stream.read_buffer())
