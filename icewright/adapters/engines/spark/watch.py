"""Cancellation of blocking Spark work when the job is cancelled or loses its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from icewright.core.errors import Cancelled, IcewrightError, LeaseLost
from icewright.ports.work import current_work

LOOK_SECONDS = 1.0


@contextmanager
def watched(
    check: Callable[[], None],
    cancel: Callable[[], None],
    every: float = LOOK_SECONDS,
    tasks: Callable[[], tuple[int, int, int] | None] = lambda: None,
) -> Iterator[None]:
    """Poll `check` while the block runs; when it raises `Cancelled` or `LeaseLost`, call `cancel`.

    `tasks` are the application's cores, active and pending tasks. A change of them is progress of the work, and so is a
    task that runs, however long, as Spark itself gives up executors without heartbeats; None, for unknown, counts too.

    The cancellation is repeated at every poll, as a procedure whose job was cancelled continues with the next job. The
    error of `check` is raised at the end, also when the block ends without an error: with partial progress a procedure
    returns the number of failed groups.
    """
    over, why = threading.Event(), list[IcewrightError]()
    work, last = current_work(), _known(tasks)

    def look() -> None:
        nonlocal last
        while not over.wait(every):
            if work is not None and ((now := _known(tasks)) is None or now[1] or now != last):
                last = now
                work.progress()
            if not why:
                try:
                    check()
                except (Cancelled, LeaseLost) as error:
                    why.append(error)
                except IcewrightError:  # the store is away for a moment: the lease outlives some looks
                    continue
            if why:
                cancel()

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        raise (why[0] if why else error) from error
    finally:
        over.set()
        thread.join()
    if why:
        raise why[0]


def _known(tasks: Callable[[], tuple[int, int, int] | None]) -> tuple[int, int, int] | None:
    """Return the state of the application's tasks; None when the application does not tell, as it has died."""
    try:
        return tasks()
    except Exception:  # noqa: BLE001 - the work meets the same error, and polling must go on
        return None
