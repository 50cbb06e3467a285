"""How a service stops: it takes no more work, and is there until its jobs have ended."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from icewright.app.bootstrap import application, read_config
from icewright.app.service import Service
from icewright.ports import ProcessRow
from tests.cli.workspace import Workspace

GRACE = timedelta(minutes=1)
pytestmark = pytest.mark.external  # makes a lakehouse, a store or a process for each test
SIGNAL_OF_ANOTHER_THREAD = """
import signal, threading, time
from icewright.app.service import stop_requests

main = threading.main_thread()

def deliver():
    while True:
        time.sleep(0.1)
        if open(f"/proc/self/task/{main.native_id}/stat").read().rpartition(")")[2].split()[0] == "S":
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with stop_requests() as wait_for_stop:
    threading.Thread(target=deliver, daemon=True).start()
    wait_for_stop()
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


def test_a_request_to_stop_that_the_kernel_delivers_to_another_thread_ends_the_wait() -> None:
    """A signal of a process goes to any of its threads, and interrupts none but that one."""
    done = subprocess.run([sys.executable, "-c", SIGNAL_OF_ANOTHER_THREAD], timeout=60, check=False)
    assert done.returncode in {0, -15}  # the second one ends the process at once
