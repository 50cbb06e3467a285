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


class SharedClock(SystemClock):
    """The Clock port on the time of a shared server, so that leases mean the same on all machines.

    `ask` returns the server's time, or None where there is no server. Between two measurements the machine's own clock
    is trusted to run evenly.
    """

    def __init__(self, ask: Callable[[], datetime | None]) -> None:
        self._ask = ask
        self.ahead = timedelta(0)  # how far the server's clock is before this machine's
        self.measure()

    def now(self) -> datetime:
        """Return the time of the state store's server, which all processes share."""
        return super().now() + self.ahead

    def measure(self) -> None:
        """Measure the offset to the server's time anew. Errors of the call are passed on; the last offset stays."""
        before = super().now()
        server_time = self._ask()
        if server_time is not None:
            self.ahead = server_time - (before + (super().now() - before) / 2)
