"""A real service beside catalogs that refuse or never answer: what is healthy is maintained, and it ends when asked."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from icewright.adapters.store.sql import SqlStore
from icewright.app.demo.tables import events, metrics
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.reconcile import MAX_INTERRUPTED
from tests.cli.workspace import Workspace
from tests.nightly import nightly
from tests.servers.loopback import free_port
from tests.waiting import until

pytestmark = pytest.mark.external
POLICY = """\
server: {port: 0}
detect: {interval_seconds: 2, timeout_seconds: 5}
policy: [{set: {remove_orphans.enabled: false, evaluate.cooldown_minutes: 0, deletion.delay_hours: 0}}]
"""
CATALOG = """\
  {name}:
    type: rest
    enabled: true
    properties: {{uri: "http://127.0.0.1:{port}"}}
    allowed_locations: ["{place}"]
cache:"""


METRICS, EVENTS = TableRef("lake", ("ops",), "metrics"), TableRef("lake", ("web",), "events")
DEADLY = TableRef("lake", ("ops",), "deadly")
TABLES = partial(metrics, commits=20, rows_per_file=2), partial(events, manifests=12, rows_per_file=5)


@contextmanager
def silent_server() -> Iterator[int]:
    """A server that accepts connections and never answers: its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


class Odd(BaseHTTPRequestHandler):
    """Answers every request by a page of a proxy, a part of it in each `pause` seconds."""

    pause = 0.0

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # the client waits no more
            for _ in range(40):
                self.wfile.write(b"<html>a gateway</html>")
                time.sleep(self.pause)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Slow(Odd):
    """The same in twenty seconds."""

    pause = 0.5


@contextmanager
def odd_server(handler: type[Odd] | None) -> Iterator[int]:
    """A port at which these answers come; without a handler nobody listens there."""
    if handler is None:
        yield free_port()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server.server_port
        server.shutdown()


def started(workspace: Workspace, hung_reads: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of its own, whose log is the file `log`."""
    program = "tests.integration.hung_mount" if hung_reads else "icewright"
    command = [sys.executable, "-m", program, "--config", str(workspace.path), *arguments]
    environment = {**os.environ, "HUNG_READS": hung_reads, "HUNG_FIFO": str(workspace.home / "fifo")}
    with (workspace.home / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@contextmanager
def serving(workspace: Workspace, hung_reads: str = "") -> Iterator[SqlStore]:
    """`icewright serve` as a process of its own, and the store that it works on; SIGTERM ends it."""
    service = started(workspace, hung_reads, "serve", "--slots", "1", "--grace-seconds", "5")
    until((workspace.home / "state.db").exists)
    store = workspace.store()
    try:
        until(lambda: ready(store))
        yield store
    finally:
        store.engine.dispose()
        service.send_signal(signal.SIGTERM)
        try:
            assert service.wait(30) == 0, "it ends when it is asked to"
        finally:
            service.kill()


def ready(store: SqlStore) -> bool:
    """Whether the service has begun."""
    try:
        return bool(store.processes.list())
    except Exception:  # noqa: BLE001 - its tables are being made
        return False


@pytest.fixture
def beside(workspace: Workspace) -> Callable[[str, int, str], None]:
    """Puts a REST catalog beside the healthy one: its name, its port, and where its tables lie."""

    def add(name: str, port: int, place: str) -> None:
        workspace.write(POLICY)
        text = workspace.path.read_text(encoding="utf-8")
        workspace.path.write_text(text.replace("cache:", CATALOG.format(name=name, port=port, place=place), 1), "utf-8")

    return add


def succeeded(store: SqlStore) -> bool:
    """Whether jobs of both tables of the healthy catalog came to their end."""
    return len({job.ref for job in store.jobs.list() if job.state is JobState.SUCCEEDED}) == 2


@pytest.mark.cases(104, 113)
@pytest.mark.parametrize("handler", [None, nightly(Odd), nightly(Slow)])
def test_a_catalog_that_refuses_connections_or_answers_slowly_or_garbage(
    workspace: Workspace, beside: Callable[[str, int, str], None], tmp_path: Path, handler: type[Odd] | None
) -> None:
    """Jobs of the healthy catalog succeed, none fails, none is paused, and the dead one is known as such."""
    workspace.make(*TABLES)
    with odd_server(handler) as port:
        beside("dead", port, f"file://{tmp_path}/elsewhere")
        with serving(workspace) as store:
            until(lambda: succeeded(store))
            until(lambda: bool(store.breakers.list()))
            assert not [job for job in store.jobs.list() if job.state is JobState.FAILED]
            assert not [row for row in store.tables.list() if row.paused]
            assert [breaker.resource for breaker in store.breakers.list()] == ["catalog dead"]


@pytest.mark.cases(104, 113)
def test_a_dead_catalog_whose_tables_may_share_places(
    workspace: Workspace, beside: Callable[[str, int, str], None]
) -> None:
    """Expiry of the healthy one waits and says for whom; nothing fails, and what deletes nothing goes on."""
    workspace.make(*TABLES)
    beside("dead", free_port(), f"file://{workspace.home}/warehouse")
    with serving(workspace) as store:

        def outcomes() -> dict[str, set[str]]:
            runs = [run for job in store.jobs.list() for run in store.runs.list(job.job_id)]
            return {run["operation"]: {r["state"] for r in runs if r["operation"] == run["operation"]} for run in runs}

        until(lambda: {"expire_snapshots", "rewrite_manifests"} <= outcomes().keys())
        assert outcomes()["expire_snapshots"] == {OperationState.DEFERRED}
        assert outcomes()["rewrite_manifests"] == {OperationState.COMMITTED}
        assert not [row for row in store.tables.list() if row.paused]


@pytest.mark.cases(114)
def test_a_catalog_that_never_answers(
    workspace: Workspace, beside: Callable[[str, int, str], None], tmp_path: Path
) -> None:
    """One service lists the other catalog in its interval all the while, though the hung one comes first."""
    with silent_server() as port:
        beside("aaa_hung", port, f"file://{tmp_path}/elsewhere")
        with serving(workspace) as store:
            until(lambda: any(breaker.resource == "catalog aaa_hung" for breaker in store.breakers.list()))
            workspace.make(*TABLES)
            seen: set[datetime] = set()

            def listed_four_times() -> bool:
                seen.update(row.detected_at for row in store.catalogs.list() if row.name == "lake" and row.detected_at)
                return len(seen) >= 4

            until(listed_four_times)
            until(lambda: succeeded(store))
            assert not [job for job in store.jobs.list() if job.state is JobState.FAILED]


@pytest.mark.cases(114)
def test_a_job_that_asks_a_catalog_before_anybody_knows_that_it_hangs(
    workspace: Workspace, beside: Callable[[str, int, str], None], tmp_path: Path
) -> None:
    """It waits for the catalog's time-out, and no longer."""
    workspace.make(*TABLES)
    with silent_server() as port:
        beside("aaa_hung", port, f"file://{tmp_path}/elsewhere")
        with serving(workspace) as store:
            until(lambda: succeeded(store))


@pytest.mark.cases(115)
def test_a_service_whose_job_waits_for_a_hung_catalog_ends_when_it_is_asked_to(
    workspace: Workspace, beside: Callable[[str, int, str], None]
) -> None:
    """Within the grace and 25 seconds, with the call in the log, though no thread can be killed."""
    with silent_server() as port:
        beside("aaa_hung", port, f"file://{workspace.home}/elsewhere")
        text = workspace.path.read_text(encoding="utf-8").replace("timeout_seconds: 5", "timeout_seconds: 600")
        workspace.path.write_text(text, encoding="utf-8")
        workspace.make(*TABLES)
        with serving(workspace) as store:
            expiring = {(("expire_snapshots",), JobState.RUNNING)}
            until(lambda: bool(expiring & {(job.operations, job.state) for job in store.jobs.list()}))
        log = (workspace.home / "log").read_text(encoding="utf-8")
        assert '"event": "threads_left", "hanging": ["job ' in log


def hung_mount(workspace: Workspace, settings: str) -> None:
    """Add settings of the tables in `ops`, and make the FIFO on which their reads hang."""
    workspace.write(POLICY.replace("}}]", f"}}}}, {{match: lake.ops.*, set: {{{settings}}}}}]"))
    os.mkfifo(workspace.home / "fifo")


def hung_read(workspace: Workspace) -> int | None:
    """Open the other end of a read that hangs, which hangs until this is closed; return None while nobody reads."""
    with suppress(OSError):
        return os.open(workspace.home / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    return None


@pytest.mark.cases(115)
def test_reads_that_hang_in_a_job_and_in_an_evaluation_cost_their_tables_alone(workspace: Workspace) -> None:
    """Both end by their time-outs, and say where they hang; the one slot then does the work of the healthy table."""
    workspace.make(*TABLES, partial(metrics, name="ops.unread", commits=20, rows_per_file=2))
    hung_mount(workspace, "execute.timeout_seconds: 3, evaluate.timeout_seconds: 3")
    with serving(workspace, "job /ops/metrics/,evaluation /ops/unread/") as store:
        until(lambda: bool(store.jobs.list(METRICS)) and store.jobs.list(METRICS)[-1].state is JobState.CANCELLED)
        job = store.jobs.list(METRICS)[-1]
        assert (
            "it ran longer than execute.timeout_seconds (3); its thread hangs in icewright.adapters.files"
            in job.summary
        )
        until(lambda: any(job.state is JobState.SUCCEEDED for job in store.jobs.list(EVENTS)))
        until(lambda: "did not finish within 3 s" in str(error_of(store, "unread")))
        assert not [row for row in store.tables.list() if row.paused]


@pytest.mark.cases(115)
@pytest.mark.parametrize("end", ["cancel", "SIGTERM"])
def test_a_read_that_hangs_in_a_job_is_ended_by_hand(workspace: Workspace, end: str) -> None:
    """Cancelling frees the table within seconds; SIGTERM records the end of the job before the process ends."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    hung_mount(workspace, "execute.timeout_seconds: 600")
    with serving(workspace, "job /ops/metrics/") as store:
        read = until(partial(hung_read, workspace))
        job = store.jobs.list(METRICS)[-1]
        if end == "cancel":
            assert store.jobs.request_cancel(job.job_id, datetime.now(UTC))
            until(lambda: store.jobs.list(METRICS)[-1].state is JobState.CANCELLED)
    os.close(read)
    store = workspace.store()
    job = store.jobs.list(METRICS)[-1]
    store.engine.dispose()
    reason = "it was asked to stop" if end == "cancel" else "the process that runs it stops"
    assert job.state is JobState.CANCELLED
    assert job.summary.startswith(f"cancelled: {reason}; its thread hangs in icewright.adapters.files")
    assert '"event": "threads_left", "hanging": ["job ' in (workspace.home / "log").read_text(encoding="utf-8")


def has_taken_sigint(pid: int) -> bool:
    """Whether the command ends: the next such signal is not caught any more."""
    caught = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").partition("SigCgt:")[2].split()[0]
    return not int(caught, 16) & 1 << signal.SIGINT - 1


@pytest.mark.cases(115)
@pytest.mark.parametrize("hangs", [True, False])
def test_a_cycle_that_is_interrupted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *, hangs: bool) -> None:
    """It ends its job, begins no other, and does not wait for a read that hangs; the next cycle does the work."""
    monkeypatch.setenv("STOP_SECONDS", "0.1" if hangs else "60")
    workspace.make(TABLES[0], partial(metrics, name="ops.next", commits=20, rows_per_file=2))
    hung_mount(workspace, "execute.timeout_seconds: 600")
    workspace.path.write_text(f"{workspace.path.read_text('utf-8')}limits: {{per_worker: 1}}\n", "utf-8")
    cycle, store = started(workspace, "job /ops/", "cycle"), workspace.store()

    read = until(partial(hung_read, workspace))
    cycle.send_signal(signal.SIGINT)
    if not hangs:
        until(partial(has_taken_sigint, cycle.pid))
        (workspace.home / "fifo").unlink()
        os.close(read)
    assert cycle.wait(30) == 130
    if hangs:
        (workspace.home / "fifo").unlink()
        os.close(read)
    assert (workspace.home / "log").read_text().splitlines()[-1].startswith("interrupted: ")
    (job,) = store.jobs.list()
    if not hangs:
        assert job.state is JobState.CANCELLED
        assert "the process that runs it stops" in job.summary
    assert workspace("cycle").code == 0
    assert succeeded(store)
    store.engine.dispose()


@pytest.mark.cases(115)
def test_a_web_server_that_hangs_keeps_no_service_from_ending(workspace: Workspace) -> None:
    """It gets the ten seconds of every open request, and the log says what is left."""
    port = free_port()
    workspace.write(POLICY.replace("port: 0", f"port: {port}"))
    with serving(workspace, "http"):
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        os.mkfifo(workspace.home / "fifo")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.settimeout(1)
            with pytest.raises(TimeoutError):
                connection.recv(1)
    assert '"hanging": ["http"]' in (workspace.home / "log").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_service_that_is_stopped_as_it_starts(workspace: Workspace) -> None:
    """Whenever others can see its process, SIGTERM ends it in order."""
    workspace("db", "upgrade")
    store = workspace.store()
    service = started(workspace, "", "serve", "--no-worker")
    until(lambda: bool(store.processes.list()))
    service.send_signal(signal.SIGTERM)
    assert service.wait(30) == 0
    assert store.processes.list() == []
    store.engine.dispose()


@pytest.mark.nightly
@pytest.mark.parametrize("others_die", [False, True])
def test_a_table_that_is_at_work_in_each_process_that_is_killed(workspace: Workspace, *, others_die: bool) -> None:
    """After ten times in a row it is paused, but not where a process dies that had no job of it."""
    workspace.make(partial(metrics, name="ops.deadly", commits=20, rows_per_file=2))
    hung_mount(workspace, "execute.timeout_seconds: 600")
    workspace("db", "upgrade")
    store = workspace.store()
    for number in range(1, MAX_INTERRUPTED + 1):
        idle = [started(workspace, "", "serve", "--no-worker")] if others_die and number == 1 else []
        working = started(workspace, "job /ops/deadly/", "serve", "--slots", "1")
        until(lambda number=number: len(store.jobs.list(DEADLY)) == number)  # type: ignore[misc]
        until(lambda: store.jobs.list(DEADLY)[0].state is JobState.RUNNING)
        until(lambda number=number: len(store.processes.list()) == number + others_die)  # type: ignore[misc]
        for process in (working, *idle):
            process.kill()
            process.wait()
    (workspace.home / "fifo").unlink()
    with serving(workspace):
        if others_die:
            until(lambda: store.jobs.list(DEADLY)[0].state is JobState.SUCCEEDED)
        until(lambda: [bool(row.paused) for row in store.tables.list()] == [not others_die])
    store.engine.dispose()


@pytest.mark.cases(120)
@pytest.mark.nightly
def test_a_state_that_another_program_locks_for_a_minute(workspace: Workspace) -> None:
    """The process says that it is not ready, though it can read; then all goes on, and no table or job is blamed."""
    port = free_port()
    workspace.write(POLICY.replace("port: 0", f"port: {port}"))
    workspace.make(*TABLES)
    with (
        serving(workspace) as store,
        closing(sqlite3.connect(workspace.home / "state.db", isolation_level=None)) as other,
    ):
        until(lambda: any(job.state is JobState.RUNNING for job in store.jobs.list()))
        other.execute("BEGIN EXCLUSIVE")
        seen = set[tuple[int, int]]()
        for _ in range(13):
            time.sleep(5)
            seen.add((probed(port, "healthz"), probed(port, "readyz")))
        other.execute("COMMIT")
        assert seen == {(200, 200), (200, 503)}
        until(lambda: succeeded(store))
        assert probed(port, "readyz") == 200
        assert not [job for job in store.jobs.list() if job.state is JobState.FAILED]
        assert not [row for row in store.tables.list() if row.paused or row.error]
        assert not store.breakers.list()


def probed(port: int, path: str) -> int:
    """Return the status of a probe."""
    return requests.get(f"http://127.0.0.1:{port}/{path}", timeout=10).status_code


def error_of(store: SqlStore, table: str) -> str | None:
    """Return why the table cannot be read, or None."""
    return next((row.error for row in store.tables.list() if row.ref.name == table), None)
