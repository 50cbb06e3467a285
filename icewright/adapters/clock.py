"""The clock: the only place that reads the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class SystemClock:
    """The Clock port on the time of this machine."""

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Block the thread for this number of seconds."""
        time.sleep(seconds)


def _seconds_since_boot() -> float:
    """Return seconds that no correction of the machine's time changes, and that go on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SharedClock(SystemClock):
    """The Clock port on the time of a shared server, so that leases mean the same on all machines.

    `ask` returns the server's time, or None where there is no server. Between two measurements the seconds since boot
    are added to what the server said last: a jump of the machine's time changes nothing.
    """

    def __init__(self, ask: Callable[[], datetime | None], seconds: Callable[[], float] = _seconds_since_boot) -> None:
        self._ask, self._seconds = ask, seconds
        self._measured: tuple[datetime, float] | None = None  # the server's time, and the seconds then
        self.measure()

    def now(self) -> datetime:
        """Return the time of the state store's server, which all processes share; without one the machine's."""
        if self._measured is None:
            return super().now()
        server_time, seconds = self._measured
        return server_time + timedelta(seconds=self._seconds() - seconds)

    def measure(self) -> None:
        """Ask the server for its time anew. Errors of the call are passed on; what was measured last stays."""
        before = self._seconds()
        server_time = self._ask()
        if server_time is not None:
            self._measured = server_time, (before + self._seconds()) / 2
