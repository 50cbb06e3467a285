"""Many files read in order, several at once where the storage takes its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import perf_counter
from typing import TypeVar

from icewright.core.errors import MetadataUnreadable
from icewright.ports.work import WorkerThreads

Content = TypeVar("Content", bytes, bytes | MetadataUnreadable)

_SLOW_SECONDS = 0.005  # of one file
_READERS = 24  # threads: Arrow opens 25 connections to a store
_MAX_BYTES_AHEAD = 32 << 20  # in memory before they are asked for, by the length of the file that was slow


def read_ahead(
    read: Callable[[str], Content], paths: Iterable[str], seconds: Callable[[], float] = perf_counter
) -> Iterator[Content]:
    """Yield the content of each file, in order; errors of `read` come when the turn of their file does.

    A disk of this machine answers sooner than threads take turns: one thread reads there. From the first file on that
    was slow, as those of an object store are, the next ones are read meanwhile.
    """
    remaining, length = iter(paths), 0
    for path in remaining:
        started = seconds()
        content = read(path)
        is_slow = seconds() - started > _SLOW_SECONDS
        length = len(content) if isinstance(content, bytes) else 0
        yield content
        if is_slow:
            break
    with WorkerThreads(_READERS) as pool:
        ahead = min(_READERS, _MAX_BYTES_AHEAD // (length + 1))
        reads = deque(pool.submit(read, path) for path in islice(remaining, max(1, ahead)))
        while reads:
            content = reads.popleft().result()
            reads.extend(pool.submit(read, path) for path in islice(remaining, 1))
            yield content
