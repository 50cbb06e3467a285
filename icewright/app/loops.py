"""Loops: each repeats its body in a thread of its own, independent of the others."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from icewright.core.errors import IcewrightError, StoreUnavailable
from icewright.core.runs import retry_delay
from icewright.flow.runtime import Listener
from icewright.ports import Clock
from icewright.ports.work import SupervisedWork

MOST_BACKOFF = timedelta(minutes=5)
MOST_BACKOFF_OF_STORE = timedelta(seconds=5)  # asking a store that is away costs little, and all work waits for it


@dataclass
class Loop:
    """One loop of the service. `body` returns how much it did: after work it runs again at once, else after `pause`."""

    name: str
    pause: timedelta
    body: Callable[[], int]
    wakes: Sequence[Loop] = ()  # loops to wake when this one did something
    bound: timedelta = timedelta(minutes=10)  # that a round may go on without progress
    failures: int = 0  # in a row
    error: str | None = None
    store_failed: bool = False  # in the last round
    retry_after: timedelta | None = None  # since the last round, which failed
    last: datetime | None = None  # end of the last round
    wake: threading.Event = field(default_factory=threading.Event)
    running: bool = False  # a round, and not the pause between two
    work: SupervisedWork = field(default_factory=lambda: SupervisedWork("a loop"))

    @property
    def stuck(self) -> bool:
        """Return whether a round makes no progress; a long one that deletes files or writes to the store does."""
        return self.running and self.work.idle_seconds() >= self.bound.total_seconds()

    def record_failure(self, error: Exception, now: datetime) -> None:
        """Record that a round failed, which is a finished one too; the wait doubles with each failure in a row."""
        self.failures, self.last, self.error = self.failures + 1, now, f"{type(error).__name__}: {error}"
        self.store_failed = isinstance(error, StoreUnavailable)
        most = MOST_BACKOFF_OF_STORE if self.store_failed else MOST_BACKOFF
        self.retry_after = retry_delay(self.failures, self.pause, most)

    def record_success(self, now: datetime) -> None:
        """Record that a round succeeded."""
        self.failures, self.error, self.retry_after, self.last = 0, None, None, now


class RoundListener(Protocol):
    """Receives the name, the seconds and the failure of each round of a loop."""

    def __call__(self, loop: str, seconds: float, *, failed: bool = False) -> None:
        """Handle the end of a round of the loop."""


class LoopThreads:
    """Threads that run loops until they are stopped."""

    def __init__(self, loops: Sequence[Loop], clock: Clock, emit: Listener, on_round: RoundListener) -> None:
        self.loops = loops
        self._clock, self._emit, self._on_round = clock, emit, on_round
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(loop,), name=loop.name) for loop in loops]

    def start(self) -> None:
        """Start one thread for each loop."""
        for loop, thread in zip(self.loops, self._threads, strict=True):
            loop.last = self._clock.now()
            thread.start()

    def stop(self, limit: timedelta) -> None:
        """Let each loop finish its round, and join its thread; rounds that last longer than the limit are left."""
        self._stop.set()
        for loop in self.loops:
            loop.wake.set()
        until = time.monotonic() + limit.total_seconds()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def state(self) -> Mapping[str, Mapping[str, object]]:
        """Return failures, last error and lag of each loop."""
        lags = self.lags()
        return {
            loop.name: {"failures": loop.failures, "error": loop.error, "lag_seconds": round(lags[loop.name], 3)}
            for loop in self.loops
        }

    def lags(self) -> Mapping[str, float]:
        """Return by how many seconds each loop is late."""
        now = self._clock.now()
        return {loop.name: max(0.0, (now - (loop.last or now) - loop.pause).total_seconds()) for loop in self.loops}

    def stuck(self) -> list[str]:
        """Return the loops that are stuck, each with the place where its thread is."""
        return [f"{loop.name} in {loop.work.call_site()}" for loop in self.loops if loop.stuck]

    def _run(self, loop: Loop) -> None:
        with loop.work.attached():
            while not self._stop.is_set():
                loop.wake.clear()
                loop.work.progress()
                loop.running = True
                done = self._run_round(loop)
                loop.running = False
                loop.wake.wait((loop.retry_after or (timedelta(0) if done else loop.pause)).total_seconds())

    def _run_round(self, loop: Loop) -> int:
        """Run one round and return how much it did; an error is reported, and the loop goes on."""
        began = self._clock.now()
        try:
            done = loop.body()
        except Exception as error:  # noqa: BLE001 - a fault in one round must not end the loop
            loop.record_failure(error, self._clock.now())
            details: dict[str, object] = {"loop": loop.name, "error": loop.error, "failures": loop.failures}
            if not isinstance(error, IcewrightError):
                details["traceback"] = traceback.format_exc()
            self._emit("loop_failed", details)
            self._on_round(loop.name, (self._clock.now() - began).total_seconds(), failed=True)
            return 0
        loop.record_success(self._clock.now())
        self._on_round(loop.name, (self._clock.now() - began).total_seconds())
        if done:
            for woken in loop.wakes:
                woken.wake.set()
        return done
