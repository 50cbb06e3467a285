"""Calls with a deadline, as no library of catalogs ends a call that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from icewright.core.errors import CatalogUnavailable, StorageHangs
from icewright.core.table import TableRef
from icewright.ports.work import SupervisedWork, progress

T = TypeVar("T")
_LOOK_SECONDS = 1.0  # between two questions whether a call is worth its wait
_ASKED_ANEW = timedelta(seconds=30)  # after which a catalog is asked again beside a call that hangs ...
_MOST_HUNG = 3  # ... unless so many calls in a row have hung
_LONGEST_READ = timedelta(minutes=5)  # after which a table that is still being read is not waited for either


class _Overdue(Exception):
    """Raised when a call has not returned in time; the message says why nobody waits any more."""


@dataclass(eq=False, slots=True)
class _Running:
    """A call, and the thread that waits for its answer."""

    thread: threading.Thread
    began: float
    work: SupervisedWork  # of that thread: when it last read a file
    hung: int = 0  # calls before it that hang
    overdue: bool = False

    def blocks(self, now: float) -> bool:
        """Return whether this call is overdue, so that another call of the catalog would be useless."""
        return self.hung + 1 >= _MOST_HUNG or now - self.began < _ASKED_ANEW.total_seconds()


@dataclass
class CatalogCalls:
    """Calls catalogs in threads, and waits for their answers for a limited time. Thread-safe.

    While a call is overdue, further ones of its catalog, or reads of its table, fail at once, so that threads that hang
    do not pile up. A catalog is asked anew now and then, as it may answer by now, while requests of before never end.
    """

    limits: Mapping[str, timedelta]  # by catalog
    seconds: Callable[[], float] = time.monotonic
    # the oldest calls, or overdue ones
    _running: dict[str | TableRef, _Running] = field(default_factory=dict, init=False)

    def ask(self, catalog: str, call: Callable[[], T], failing: Callable[[], str | None] = lambda: None) -> T:
        """Return the answer of a catalog, or raise what the call raises.

        Raises `CatalogUnavailable` when the catalog does not answer in time, or once `failing` returns why it does not.
        """
        try:
            return self._call(catalog, call, self.limits[catalog], " (detect.timeout_seconds)", failing)
        except _Overdue as overdue:
            raise CatalogUnavailable(f"catalog {catalog} {overdue}", catalog) from None

    def read(self, ref: TableRef, read: Callable[[], T], limit: timedelta) -> T:
        """Return what is read of a table, or raise what reading raises; a file that hangs costs its table alone.

        Raises `StorageHangs` when the call makes no progress within the limit, as a table of many files takes longer to
        read. The limit counts from the progress of the oldest read of the table that has not returned, so that a file
        that hangs is waited for once, by all together.
        """
        try:
            return self._call(ref, read, limit)
        except _Overdue as overdue:
            raise StorageHangs(f"reading {ref} {overdue}") from None

    def look(self, disk: str, look: Callable[[], T], limit: timedelta) -> T:
        """Return what is seen on a disk, or raise what looking raises. Raises `StorageHangs`."""
        try:
            return self._call(disk, look, limit)
        except _Overdue as overdue:
            raise StorageHangs(f"the file system at {disk} {overdue}: is its server away?") from None

    def _call(
        self,
        key: str | TableRef,
        call: Callable[[], T],
        limit: timedelta,
        setting: str = "",
        failing: Callable[[], str | None] = lambda: None,
    ) -> T:
        oldest, hung = self._unanswered(key)
        answer: Future[T] = Future()
        work = SupervisedWork(f"ask {key}", self.seconds)

        def run() -> None:
            with work.attached():
                _answer(call, answer)

        running = _Running(threading.Thread(target=run, name=f"ask {key}", daemon=True), self.seconds(), work, hung)
        running.thread.start()
        if oldest is None:
            self._running[key] = oldest = running
        while True:
            left = self._seconds_left(key, running, oldest, limit.total_seconds())
            with suppress(TimeoutError):
                return answer.result(min(_LOOK_SECONDS, max(0.0, left)))
            if answer.done():
                return answer.result()  # raises, if the call did
            if left <= 0:
                reason = f"did not answer within {limit.total_seconds():g} s{setting}"
            elif (error := failing()) is not None:
                reason = f"does not answer: {error}"
            else:
                continue
            running.overdue = True
            self._running[key] = running
            raise _Overdue(reason)

    def _unanswered(self, key: str | TableRef) -> tuple[_Running | None, int]:
        """Return the oldest call that is still waited for, and how many hang. Raises `_Overdue` where one blocks."""
        oldest = self._running.get(key)
        if oldest is None or not oldest.thread.is_alive():
            return None, 0
        if not oldest.overdue:
            return oldest, oldest.hung
        if isinstance(key, TableRef) or oldest.blocks(self.seconds()):
            raise _Overdue("has not answered an earlier request yet")
        return None, oldest.hung + 1

    def _seconds_left(self, key: str | TableRef, running: _Running, oldest: _Running, limit: float) -> float:
        """Return how long a call is still waited for; the progress of a read is that of who waits for it, too."""
        if not isinstance(key, TableRef):
            return running.began + limit - self.seconds()
        idle = oldest.work.idle_seconds()
        if idle < _LOOK_SECONDS:
            progress()
        longest = max(limit, _LONGEST_READ.total_seconds())
        return min(limit - idle, oldest.began + longest - self.seconds())


class SharedCall(Generic[T]):
    """A call that runs once at a time, whose answer all who ask meanwhile share. Thread-safe."""

    def __init__(self, call: Callable[[], T], limit: timedelta) -> None:
        self._call, self._limit = call, limit
        self._lock = threading.Lock()
        self._answer: Future[T] | None = None

    def answer(self) -> T:
        """Return the answer, or raise what the call raises; `TimeoutError` when none comes within the limit."""
        with self._lock:
            answer = self._answer
            if answer is None or answer.done():
                answer = Future()
                threading.Thread(target=_answer, args=(self._call, answer), name="ask", daemon=True).start()
                self._answer = answer
        return answer.result(self._limit.total_seconds())


def _answer(call: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again for the caller
        answer.set_exception(error)
