"""Requests to stop the process by a signal, heard whatever the main thread waits for.

The kernel may deliver a signal to a thread that is being started, and nothing then interrupts a lock that the main
thread waits for (signal(7), curio#118). With Polars no signal SIGINT does, as its handler has such calls go on
(polars#21739). Either way Python writes a byte into a pipe, which another thread, or the main thread, reads.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from icewright.core.errors import requires_extra

INTERRUPTED = 130  # Typer's exit code for Ctrl-C, about which it prints nothing
STOP_SECONDS = 10.0  # for all but a service's running jobs: cancelled ones, requests, pools and the store
_WAKE, _WAKE_SECONDS = signal.SIGURG, 0.1  # a signal that does nothing but interrupt the call that a thread waits in
requested = threading.Event()  # set: the command must end, and its jobs too

os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))  # a child's signals are not its parent's


@contextmanager
def interruptible(at_end: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise `KeyboardInterrupt` in the block; a second one ends the process at once.

    The process ends with the block then, after SIGTERM by that signal, as its parent expects. Where the block itself
    waits for a thread that hangs, `at_end` is called and the process ends after `STOP_SECONDS`.
    """
    main, taken = threading.main_thread().ident or 0, 0
    requested.clear()

    def interrupt(number: int) -> None:
        nonlocal taken
        taken = number
        requested.set()
        raise KeyboardInterrupt

    def watch(wait: Callable[[], int]) -> None:
        if not (number := wait()):
            return
        requested.set()  # PySpark may have put a handler of its own in the place of ours
        _show_cursor()
        until = time.monotonic() + STOP_SECONDS
        while (left := until - time.monotonic()) > 0:
            if not taken:
                signal.pthread_kill(main, _WAKE)
            time.sleep(min(left, _WAKE_SECONDS))
        at_end()
        os._exit(128 + number)  # as a shell tells it

    previous = signal.signal(_WAKE, lambda *_: None)
    with _hearing((signal.SIGINT, signal.SIGTERM), interrupt) as (wait, end_wait):
        watching = threading.Thread(target=watch, args=(wait,), name="interrupts", daemon=True)
        watching.start()
        try:
            yield
        finally:
            if not requested.is_set():
                end_wait()
                watching.join()
                signal.signal(_WAKE, previous)
            else:
                sys.stdout.flush()
                _show_cursor()
                if taken == signal.SIGTERM:
                    signal.raise_signal(signal.SIGTERM)
                os._exit(INTERRUPTED)  # without a wait for threads that hang


def _show_cursor() -> None:
    """Show a terminal's cursor again, which a progress bar hides that may not come to its end."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h")


@contextmanager
def stop_requests(extra: str) -> Iterator[Callable[[], object]]:
    """Yield a function that waits for SIGTERM, SIGINT or SIGHUP; a second one ends the process at once.

    Raises `UsageError` with the `extra` that the process needs where Polars is missing.
    """
    with requires_extra(extra, "a service or worker"):
        import polars as pl  # noqa: F401, PLC0415 - loaded later, it would interrupt the threads of jobs by Ctrl-C

    with _hearing((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), lambda _: None) as (wait, _):
        yield wait


@contextmanager
def _hearing(
    numbers: Sequence[int], handle: Callable[[int], None]
) -> Iterator[tuple[Callable[[], int], Callable[[], object]]]:
    """Yield a function that waits for one of the signals and returns its number, and one that makes it return 0.

    The main thread handles the first signal; a second one ends the process as if it were killed. Ignored ones stay so.
    """
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)

    def handle_first(number: int, _frame: object) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_DFL)
        handle(number)

    def wait() -> int:
        while (number := os.read(receiver, 1)[0]) not in (0, *heard):
            pass
        return number

    previous = {number: signal.signal(number, handle_first) for number in heard}
    former = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    try:
        yield wait, partial(os.write, sender, b"\0")
    finally:
        signal.set_wakeup_fd(former)
        os.close(receiver)
        os.close(sender)
        for number, handler in previous.items():
            if signal.getsignal(number) is handle_first:
                signal.signal(number, handler)
