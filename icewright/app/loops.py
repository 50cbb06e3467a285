"""Loops: each does its part again and again in a thread of its own, whatever becomes of the others."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from icewright.core.errors import IcewrightError
from icewright.core.runs import later
from icewright.flow.runtime import Listener
from icewright.ports import Clock

MOST_BACKOFF = timedelta(minutes=5)


@dataclass
class Loop:
    """One part of the service. `body` says how much it did: after work it looks again at once, else after a pause."""

    name: str
    pause: timedelta
    body: Callable[[], int]
    wakes: Sequence[Loop] = ()  # who has something to do when this one did something
    failures: int = 0  # in a row
    error: str | None = None
    last: datetime | None = None  # when it last came to its end
    wake: threading.Event = field(default_factory=threading.Event)

    @property
    def stuck_after(self) -> timedelta:
        """Return a loop that has not come round for so long has stopped."""
        return max(timedelta(minutes=10), 10 * self.pause)


class RoundListener(Protocol):
    """Hears of each round: the loop's name, how long it took, and whether it failed."""

    def __call__(self, loop: str, seconds: float, *, failed: bool = False) -> None:
        """A round came to its end."""
        ...


class LoopThreads:
    """Loops that run until they are stopped."""

    def __init__(self, loops: Sequence[Loop], clock: Clock, tell: Listener, ran: RoundListener) -> None:
        self.loops = loops
        self._clock, self._tell, self._ran = clock, tell, ran
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(loop,), name=loop.name) for loop in loops]

    def start(self) -> None:
        """Start one thread for each loop."""
        for loop, thread in zip(self.loops, self._threads, strict=True):
            loop.last = self._clock.now()
            thread.start()

    def stop(self) -> None:
        """Let each end what it does, and end."""
        self._stop.set()
        for loop in self.loops:
            loop.wake.set()
        for thread in self._threads:
            thread.join()

    def state(self) -> Mapping[str, Mapping[str, object]]:
        """Return what there is to say of each."""
        late = self.lags()
        return {
            loop.name: {"failures": loop.failures, "error": loop.error, "lag_seconds": round(late[loop.name], 3)}
            for loop in self.loops
        }

    def lags(self) -> Mapping[str, float]:
        """By how many seconds each is late."""
        now = self._clock.now()
        return {loop.name: max(0.0, (now - (loop.last or now) - loop.pause).total_seconds()) for loop in self.loops}

    def stuck(self) -> list[str]:
        """Loops that have not come round for long."""
        now = self._clock.now()
        return [loop.name for loop in self.loops if now - (loop.last or now) > loop.stuck_after]

    def _run(self, loop: Loop) -> None:
        while not self._stop.is_set():
            loop.wake.clear()
            wait = loop.pause if not self._once(loop) else timedelta(0)
            if loop.failures:
                wait = later(loop.failures, loop.pause, MOST_BACKOFF)
            loop.wake.wait(wait.total_seconds())

    def _once(self, loop: Loop) -> int:
        """Return one round; what goes wrong is told, and the loop goes on."""
        began = self._clock.now()
        try:
            done = loop.body()
        except Exception as error:  # noqa: BLE001 - a fault in one round must not end the loop
            loop.failures, loop.last = loop.failures + 1, self._clock.now()  # it came round, though in vain
            loop.error = f"{type(error).__name__}: {error}"
            details: dict[str, object] = {"loop": loop.name, "error": loop.error, "failures": loop.failures}
            if not isinstance(error, IcewrightError):
                details["traceback"] = traceback.format_exc()
            self._tell("loop_failed", details)
            self._ran(loop.name, (self._clock.now() - began).total_seconds(), failed=True)
            return 0
        loop.failures, loop.error, loop.last = 0, None, self._clock.now()
        self._ran(loop.name, (loop.last - began).total_seconds())
        if done:
            for other in loop.wakes:
                other.wake.set()
        return done
