"""Work beside a test, in threads, until the test's own is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_TO_END = 120


@contextmanager
def beside(stop: threading.Event, *works: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Each work in a thread until the block ends and `stop` is set; what they raise is kept for the test."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS_TO_END)
