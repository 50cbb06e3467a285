"""How a service stops: it takes no more work, and is there until its jobs have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta

import pytest

from icewright.app.bootstrap import application, read_config
from icewright.app.service import Service
from icewright.ports import ProcessRow
from tests.cli.workspace import Workspace

GRACE = timedelta(minutes=1)
pytestmark = pytest.mark.external  # makes a lakehouse, a store or a process for each test
SIGNALLED = """
import signal, sys, threading, time
from icewright.app.interrupts import interruptible, stop_requests

number, here = signal.Signals[sys.argv[1]], sys.argv[2] == "main"
main, program = threading.main_thread(), sys.argv[3]

def deliver():
    while True:
        time.sleep(0.1)
        if open(f"/proc/self/task/{main.native_id}/stat").read().rpartition(")")[2].split()[0] == "S":
            signal.pthread_kill(main.ident if here else threading.get_ident(), number)
            return

def waits():
    signal.siginterrupt(number, False)  # as Polars does
    threading.Thread(target=deliver, daemon=True).start()

if program == "service":
    with stop_requests("engine") as wait_for_stop:
        waits()
        wait_for_stop()
else:
    with interruptible(lambda: print("timed out", flush=True)):
        if program == "pyspark":
            signal.signal(number, signal.default_int_handler)
        try:
            waits()
            threading.Event().wait()
        except KeyboardInterrupt:
            print("interrupted")
"""


@pytest.mark.parametrize(("grace", "waits", "beats"), [(60, [False, False, True], 2), (0, [False, False], 0)])
def test_a_service_that_waits_for_its_jobs_is_alive(
    workspace: Workspace, grace: int, waits: list[bool], beats: int
) -> None:
    """Others must not take its jobs for those of a dead process, nor raise an alert."""
    with application(read_config(workspace.path), kind="service") as app:
        service, alive = Service(app, kind="service", slots=1), app.runtime.store.processes.record_heartbeat
        told: list[str] = []
        service.start()
        service.loops.stop(GRACE)
        worker = service.worker
        assert worker is not None

        def beat(row: ProcessRow) -> bool:
            told.append(row.holder)
            return alive(row)

        worker.wait = lambda timeout: waits.pop(0)  # type: ignore[method-assign]
        app.runtime.store.processes.record_heartbeat = beat  # type: ignore[method-assign]
        service.stop(timedelta(seconds=grace))
        assert len(told) == beats
        assert waits == []
        assert app.runtime.store.processes.list() == []


@pytest.mark.parametrize(
    ("name", "thread", "program", "code"),
    [
        ("SIGTERM", "another", "service", 0),
        ("SIGINT", "another", "command", 130),
        ("SIGINT", "main", "command", 130),
        ("SIGTERM", "another", "command", -15),
        ("SIGINT", "another", "pyspark", 130),
    ],
)
def test_a_signal_ends_the_wait_whichever_thread_has_it(name: str, thread: str, program: str, code: int) -> None:
    """A signal of a process goes to any of its threads, and interrupts none but that one, or not even that one.

    The terminal of a command shows its cursor again, which progress bars hide.
    """
    terminal, stderr = os.openpty()
    command = [sys.executable, "-c", SIGNALLED, name, thread, program]
    done = subprocess.run(command, timeout=60, check=False, stdout=subprocess.PIPE, stderr=stderr)
    os.close(stderr)
    said, shown = b"" if program == "service" else b"interrupted\n", b""
    with suppress(OSError):  # its end
        while more := os.read(terminal, 1000):
            shown += more
    os.close(terminal)
    assert (done.returncode, done.stdout, set(shown.split(b"\x1b[?25h"))) == (code, said, {b""})
    assert (b"\x1b" in shown) == bool(said)
