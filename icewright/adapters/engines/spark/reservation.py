"""The memory that a pool's application reserves over the time: what jobs are charged, and what passes without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from icewright.core import cost

Memory = Callable[[], float | None]  # GB that the application reserves now; None: it does not tell


class Charge(NamedTuple):
    """The GB-hours of a job, and the driver's part of them."""

    gb_hours: float = 0.0
    driver: float = 0.0


@dataclass
class Reservation:
    """Share what an application reserves among the jobs that run at the same time. Thread-safe."""

    clock: Callable[[], float] = time.monotonic
    _jobs: int = field(default=0, init=False)
    _at: float = field(default=0.0, init=False)
    _memory: float | None = field(default=None, init=False)  # at that time; None where it is not known
    _driver: float = field(default=0.0, init=False)  # GB of that memory
    _per_job: Charge = field(default=Charge(), init=False)  # of a job that had run all the time
    _idle: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def idle_gb_hours(self) -> float:
        """Return what was reserved without a job, the start of applications among it."""
        with self._lock:
            waits = self._memory is not None and not self._jobs
            return self._idle + (cost.gb_hours(self.clock() - self._at, self._memory or 0.0) if waits else 0.0)

    def started(self, memory: float | None, since: float, driver: float = 0.0) -> None:
        """Note that an application has started, since when it reserves its memory, and how much is its driver's."""
        with self._lock:
            self._memory, self._at, self._driver = memory, since, driver

    def ended(self) -> None:
        """Note that the application has ended: it reserves nothing more."""
        self._account(None, 0)

    @contextmanager
    def job(self, memory: Memory) -> Iterator[Callable[[], Charge | None]]:
        """Count a job as running; the yielded function returns what it is charged by now."""
        begin, known = self._account(memory(), 1)

        def charged() -> Charge | None:
            now, known_now = self._account(memory(), 0)
            if not (known and known_now):
                return None
            return Charge(now.gb_hours - begin.gb_hours, now.driver - begin.driver)

        try:
            yield charged
        finally:
            self._account(memory(), -1)

    def _account(self, memory: float | None, jobs: int) -> tuple[Charge, bool]:
        """Account for the time until now, and return what each job is charged since the begin, if it is known.

        Executors come and go: between two looks the memory counts as their mean.
        """
        with self._lock:
            now = self.clock()
            if self._memory is not None:
                passed, until_now = now - self._at, self._memory if memory is None else memory
                reserved = cost.gb_hours(passed, (self._memory + until_now) / 2)
                if self._jobs:
                    total, driver = self._per_job
                    share = passed / self._jobs
                    self._per_job = Charge(total + reserved / self._jobs, driver + cost.gb_hours(share, self._driver))
                else:
                    self._idle += reserved
            self._at, self._jobs = now, self._jobs + jobs
            self._memory = memory
            return self._per_job, memory is not None
