"""The service over a real lakehouse: it maintains, shares its store with others, outlives its store's absence, ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import requests
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from icewright.adapters.clock import SystemClock
from icewright.adapters.store.database import open_database
from icewright.adapters.store.upgrading import upgrade
from icewright.app.bootstrap import Application, application, read_config
from icewright.app.demo.tables import events, metrics
from icewright.app.service import Service, running
from icewright.core.runs import JobState
from icewright.flow.evaluator import evaluate_due
from icewright.flow.queue import plan_now
from tests.cli.workspace import Workspace
from tests.contracts.bench import new_database
from tests.flow.bench import detect_due
from tests.waiting import until

pytestmark = pytest.mark.external
GRACE = timedelta(seconds=30)
POLICY = """\
detect: {interval_seconds: 1}
policy: [{set: {remove_orphans.enabled: false, evaluate.cooldown_minutes: 0}}]
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Workspace:
    """A lakehouse with a table whose snapshots are old, and one with many manifests."""
    made = Workspace(tmp_path / "house", monkeypatch, capsys)
    made.write(POLICY)
    made.make(partial(metrics, commits=20, rows_per_file=2), partial(events, manifests=12, rows_per_file=5))
    return made


@pytest.fixture
def postgres_house(workspace: Workspace, postgres_url: str) -> tuple[Workspace, str]:
    """The same with its state in PostgreSQL, and the URL of that database."""
    state = new_database(postgres_url)
    engine = open_database(state)
    upgrade(engine)
    engine.dispose()
    text = workspace.path.read_text(encoding="utf-8")
    workspace.path.write_text(text.replace("state: sqlite:///state.db", f"state: {state}"), encoding="utf-8")
    return workspace, state


@dataclass
class AheadClock(SystemClock):
    """A clock that is ahead of this machine's."""

    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        """Return the time of the machine, moved ahead."""
        return super().now() + self.ahead


def maintained(app: Application) -> bool:
    """Whether both tables were worked on, and nothing is left to do."""
    rows = app.runtime.store.tables.list()
    ended = {job.ref for job in app.runtime.store.jobs.list() if job.state is JobState.SUCCEEDED}
    return len(ended) == 2 and all(row.due_since is None and row.job_id is None for row in rows)


def test_it_maintains_by_itself(workspace: Workspace) -> None:
    """From what the catalog lists to tables with nothing due, and nothing of it is left when it has stopped."""
    with application(read_config(workspace.path), kind="service") as app:
        with running(app, kind="service", slots=2, grace=GRACE):
            until(lambda: maintained(app))
            until(lambda: app.runtime.store.processes.list()[0].details["busy"] == 0, "a heartbeat after the last job")
            (process,) = app.runtime.store.processes.list()
            assert (process.kind, process.slots) == ("service", 2)
        assert app.runtime.store.processes.list() == []
        assert {job.trigger for job in app.runtime.store.jobs.list()} == {"service"}
    assert workspace("plan", "--json").json["jobs"] == []


@pytest.mark.cases(132)
def test_what_waited_too_long_goes_before_what_is_worth_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one slot, a table that nobody minds has its turn once its bound is over; within it the others go first."""
    workspace = Workspace(tmp_path, monkeypatch, capsys)
    bounds = "limits: {global: 1, max_wait_hours: {low: 30, critical: 90}}\ndetect: {interval_seconds: 1}\n"
    hot = '{match: "lake.web.hot*", set: {importance: critical}}'
    workspace.write(bounds + "policy: [{set: {remove_orphans.enabled: false, importance: low}}, " + hot + "]\n")
    names = ["web.hot1", "web.hot2", "web.hot3", "web.cold"]
    workspace.make(*(partial(events, name=name, manifests=12, rows_per_file=2) for name in names))
    clock = AheadClock()
    with application(read_config(workspace.path), kind="service", clock=clock) as app:
        runtime, jobs = app.runtime, app.runtime.store.jobs
        detect_due(runtime)
        evaluate_due(runtime, ["lake"])
        for ahead, first in ((29, "hot"), (31, "cold")):
            clock.ahead = timedelta(hours=ahead)
            (planned,) = plan_now(runtime, ["lake"]).jobs
            assert planned.ref.name.startswith(first)
        with running(app, kind="service", slots=1, grace=GRACE):
            until(lambda: sum(job.state is JobState.SUCCEEDED for job in jobs.list()) == len(names))
        assert [job.ref.name for job in jobs.list()][-1] == "cold"


def test_a_service_that_only_plans_and_workers_that_only_run(postgres_house: tuple[Workspace, str]) -> None:
    """Any number of each on one PostgreSQL: no job runs twice, and who runs it is written down."""
    workspace, _ = postgres_house
    with ExitStack() as stack:
        apps = [stack.enter_context(application(read_config(workspace.path), kind="service")) for _ in range(4)]
        kinds = [("service", 0), ("service", 0), ("worker", 1), ("worker", 1)]
        for number, (app, (kind, slots)) in enumerate(zip(apps, kinds, strict=True)):
            object.__setattr__(app.runtime.trigger, "holder", f"elsewhere:{number}:1")  # processes of their own
            stack.enter_context(running(app, kind=kind, slots=slots, grace=GRACE))
        until(lambda: maintained(apps[0]))
        jobs = apps[0].runtime.store.jobs.list()
        assert {job.holder for job in jobs} <= {"elsewhere:2:1", "elsewhere:3:1"}
        assert len({job.ref for job in jobs}) == len(jobs) == 2


def test_it_outlives_its_store(postgres_house: tuple[Workspace, str]) -> None:
    """While the database refuses everybody its loops fail and say so; afterwards the work is done."""
    workspace, state = postgres_house
    with application(read_config(workspace.path), kind="service") as app:
        refused(state, connections=False)
        service = Service(app, kind="service", slots=2)
        service.loops.start()
        until(lambda: all(loop.failures for loop in service.loops.loops if loop.name in ("detect", "evaluate", "work")))
        refused(state, connections=True)
        until(lambda: maintained(app))
        service.stop(GRACE)


@pytest.mark.cases(120)
def test_a_worker_whose_database_is_away_at_start_and_read_only_later(postgres_house: tuple[Workspace, str]) -> None:
    """It waits, and says so; its probe tells when the database takes no writes or answers nothing, and when it does."""
    workspace, state = postgres_house
    refused(state, connections=False)
    command = [sys.executable, "-m", "icewright", "--config", str(workspace.path), "worker", "--probe-port", "0"]
    log = workspace.home / "log"
    with log.open("wb") as out:
        worker = subprocess.Popen([*command, "--grace-seconds", "1"], stdout=out, stderr=out)
    try:
        until(lambda: '"event": "waiting_for_store"' in log.read_text("utf-8"))
        refused(state, connections=True)
        until(lambda: '"event": "started"' in log.read_text("utf-8"))
        (address,) = re.findall(r'"address": "([^"]+)"', log.read_text("utf-8"))
        until(lambda: status(f"{address}/readyz") == 200)
        read_only(state, "on")
        until(lambda: status(f"{address}/readyz") == 503)
        assert status(f"{address}/healthz") == 200
        assert worker.poll() is None
        read_only(state, "off")
        until(lambda: status(f"{address}/readyz") == 200)
        with locked(state):
            said = requests.get(f"{address}/readyz", timeout=20).json()  # a statement waits 30 s for a lock
            assert said["errors"] == ["the state store has not answered within 3 s"]
        until(lambda: status(f"{address}/readyz") == 200)
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.cases(120)
def test_jobs_go_on_after_a_database_was_read_only(postgres_house: tuple[Workspace, str]) -> None:
    """Its loops fail meanwhile, and say so; nothing is lost."""
    workspace, state = postgres_house
    with application(read_config(workspace.path), kind="service") as app:
        read_only(state, "on")
        service = Service(app, kind="service", slots=2)
        service.loops.start()
        until(lambda: all(loop.failures for loop in service.loops.loops if loop.name in ("detect", "evaluate", "work")))
        assert service.faults() == [
            "state: the database takes no writes: is it a standby, or a file without the right to write it?"
        ]
        read_only(state, "off")
        until(lambda: maintained(app))
        service.stop(GRACE)


@pytest.mark.cases(120)
@pytest.mark.parametrize(("name", "write"), [("heartbeat", "UPDATE ON processes"), ("detect", "INSERT ON catalogs")])
def test_a_state_that_is_read_and_takes_no_writes_is_not_ready(workspace: Workspace, name: str, write: str) -> None:
    """As on a full disk, where some writes still find room: the process says so, until the first that lands."""
    with application(read_config(workspace.path), kind="service") as app:
        service = Service(app, kind="service", slots=1)
        (writing,) = (loop for loop in service.loops.loops if loop.name == name)
        service.start()
        database = sa.create_engine(f"sqlite:///{workspace.home}/state.db")
        refuse = f"CREATE TRIGGER full BEFORE {write} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        for statement, faults in ((refuse, 1), ("DROP TRIGGER full", 0)):
            with database.begin() as connection:
                connection.exec_driver_sql(statement)
            until(lambda faults=faults: writing.wake.set() or len(service.faults()) == faults)  # type: ignore[misc, func-returns-value]
        service.stop(GRACE)
        database.dispose()


def status(url: str) -> int:
    """Return the status of a GET."""
    return int(requests.get(url, timeout=10).status_code)


def read_only(state: str, on: str) -> None:
    """Let the database take no writes, or take them again; connections end, as in a failover."""
    url = make_url(state)
    engine = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{url.database}" SET default_transaction_read_only = {on}')
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        connection.exec_driver_sql(ends, (url.database,))
    engine.dispose()


@contextmanager
def locked(state: str) -> Iterator[None]:
    """Nobody reads the schema's revision, as while the database is migrated."""
    engine = sa.create_engine(state)
    with engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE")
        yield
    engine.dispose()


def refused(state: str, *, connections: bool) -> None:
    """Let the database refuse everybody, or nobody any more."""
    url = make_url(state)
    engine = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        said = "true" if connections else "false"
        connection.exec_driver_sql(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS {said}')
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        if not connections:
            connection.exec_driver_sql(ends, (url.database,))
    engine.dispose()
