"""Services and workers that are killed at random while writers write: nothing is lost, doubled or left undone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from icewright.core.runs import TRANSITIONS, JobState
from icewright.ports import JobRow
from tests.chaos.fleet import COMMITS, NAMESPACE, ROWS, Fleet, make_fleet
from tests.contracts.bench import new_database
from tests.nightly import NIGHTLY

pytestmark = [pytest.mark.chaos, pytest.mark.external]

KILLS = int(os.environ.get("ICEWRIGHT_CHAOS_KILLS", "30" if NIGHTLY else "8"))
TABLES = max(16, KILLS // 4)
KINDS = ("serve", "serve", "worker", "worker")
SECONDS_TO_CALM = max(400, KILLS)  # of two cores that other tests use too
KILL_EVERY_SECONDS = 2
ROOT = Path(__file__).parents[2]


class Processes:
    """The services and workers, killed and started again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._log = (fleet.home / "log").open("ab")
        self.running = [self._start(kind) for kind in KINDS]

    def kill_one(self, rng: random.Random) -> None:
        """End one at random without a word, and start another in its place."""
        number = rng.randrange(len(KINDS))
        self.running[number].kill()
        self.running[number].wait()
        self.running[number] = self._start(KINDS[number])

    def stop(self) -> list[int]:
        """Ask all of them to end; their exit codes."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in self.running]
        self._log.close()
        return codes

    def _start(self, kind: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "icewright", "--config", str(self._fleet.config), kind]
        return subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"}


@contextmanager
def writing(fleet: Fleet, first: int, seed: int) -> Iterator[list[tuple[str, int]]]:
    """A writer while the block lasts; afterwards the list has what it wrote."""
    written: list[tuple[str, int]] = []
    arguments = [str(fleet.home), str(TABLES), str(first), str(seed)]
    command = [sys.executable, "-m", "tests.chaos.writer", *arguments]
    pipe = subprocess.PIPE
    writer = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, env=_environment())
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    try:
        yield written
    finally:
        said, _ = writer.communicate(timeout=SECONDS_TO_CALM)
        assert writer.returncode == 0
        written += [(name, number) for name, number in map(json.loads, said.splitlines())]


def calm(store: SqlStore) -> bool:
    """Whether nothing is queued, nothing runs, nothing is due, and every table was judged as it is."""
    rows = store.tables.list()
    judged = all(r.metadata_location == r.evaluated_location and not r.error and r.due_since is None for r in rows)
    return (
        judged and len(rows) == TABLES and not any(j.state in (JobState.QUEUED, JobState.RUNNING) for j in jobs(store))
    )


def jobs(store: SqlStore) -> list[JobRow]:
    """Every job, oldest first."""
    return list(reversed(store.jobs.list(limit=100_000)))


@pytest.fixture
def fleet(tmp_path: Path, postgres_url: str) -> Fleet:
    """The tables, and an empty state store of the newest revision."""
    state = new_database(postgres_url)
    engine = open_database(state)
    upgrade(engine)
    engine.dispose()
    return make_fleet(tmp_path / "lake", state, new_database(postgres_url), TABLES)


def test_killed_at_random(fleet: Fleet) -> None:
    """Every table is right and readable, no two jobs ran on one at once, none was lost, and all due work is done."""
    engine = open_database(_state(fleet))
    store, rng = SqlStore(engine), random.Random(4)
    processes = Processes(fleet)
    try:
        with writing(fleet, 10_000, 1) as one, writing(fleet, 20_000, 2) as other:
            for _ in range(KILLS):
                time.sleep(KILL_EVERY_SECONDS)
                processes.kill_one(rng)
        until = time.monotonic() + SECONDS_TO_CALM
        while not calm(store) and time.monotonic() < until:
            # tables whose readers were killed twice are set aside for five minutes, which nobody waits for here
            store.tables.schedule_evaluation(list(store.tables.deadly()), datetime.now(UTC))
            time.sleep(1)
    finally:
        codes = processes.stop()
    log = (fleet.home / "log").read_text(encoding="utf-8")
    assert codes == [0] * len(KINDS), log[-3000:]
    assert calm(store), _left(store)
    assert store.ledger.unfinished(datetime.now(UTC)) == []
    _nothing_overlaps(store)
    _every_row_is_there(fleet, [*one, *other])
    assert fleet.orphans() == []
    assert store.processes.list() == [] or all(p.kind for p in store.processes.list())
    engine.dispose()


def _state(fleet: Fleet) -> str:
    return fleet.config.read_text(encoding="utf-8").splitlines()[0].removeprefix("state: ")


def _left(store: SqlStore) -> str:
    rows = store.tables.list()
    moved = [str(r.ref) for r in rows if r.metadata_location != r.evaluated_location]
    due = [(str(c.ref), [j.summary for j in store.jobs.list(c.ref)]) for c in store.planning.candidates(["lake"])]
    wrong = [(str(r.ref), r.error) for r in rows if r.error]
    open_jobs = [j for j in jobs(store) if TRANSITIONS[j.state]]
    return f"moved {moved[:5]} due {due[:5]} errors {wrong[:5]} open {open_jobs[:3]}"


def _nothing_overlaps(store: SqlStore) -> None:
    """The jobs of one table followed one another, and each came to an end."""
    by_table = defaultdict(list)
    for job in jobs(store):
        assert not TRANSITIONS[job.state], job
        if job.started is not None:
            by_table[job.ref].append(job)
    assert len(by_table) == TABLES
    for ran in by_table.values():
        ran.sort(key=lambda job: job.started or job.created)
        for first, then in pairwise(ran):
            assert first.finished is not None
            assert then.started is not None
            assert first.finished <= then.started, (first, then)


def _every_row_is_there(fleet: Fleet, written: list[tuple[str, int]]) -> None:
    """What was there at the beginning and what the writers wrote, once each, in every table; and little else."""
    assert len(written) > 20
    expected = defaultdict(list, {f"t{n:03d}": list(range(COMMITS * ROWS)) for n in range(TABLES)})
    for name, number in written:
        expected[name].append(number)
    catalog = fleet.catalog()
    for name, ids in expected.items():
        table = catalog.load_table((NAMESPACE, name))
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted(ids), name
        old = [s for s in table.metadata.snapshots if s.timestamp_ms < (time.time() - 86_400) * 1000]
        assert len(old) <= 1, name
    catalog.close()
