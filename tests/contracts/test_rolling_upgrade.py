"""Rolling upgrades on PostgreSQL: old and new processes side by side, and a migration while work is claimed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from icewright.adapters.store import revisions
from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from icewright.core.errors import SchemaMismatch, StorageUnavailable
from icewright.core.runs import JobState
from icewright.ports import FleetPause
from icewright.testing import NOW
from icewright.testing.contracts.cases import enqueue_jobs, record_tables, table_refs
from tests.contracts.bench import new_database
from tests.waiting import until

pytestmark = pytest.mark.external

ROOT = Path(__file__).parents[2]
NEXT = "9999"  # the revision of a newer version
CONFIG = """\
state: {state}
catalogs:
  lake: {{type: sql, enabled: true, properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "file://{home}/w"}}}}
server: {{port: 0}}
cache: {{folder: "{home}/cache"}}
"""
MIGRATION = """\
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{newest}"


def upgrade() -> None:
    for name in ("jobs", "tables"):
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("new", sa.Text()))
"""


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    """A migrated store in PostgreSQL."""
    engine = open_database(new_database(postgres_url))
    upgrade(engine)
    yield SqlStore(engine)
    engine.dispose()


def set_revision(store: SqlStore, revision: str) -> None:
    """Let the store have the schema revision of another version, after the claims that began before it.

    The lock is the migration's: without it a claim could read the old revision, and take a job after the change.
    """
    with store.engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :to"), {"to": revision})


@contextmanager
def processes(home: Path, store: SqlStore, *kinds: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run `icewright` processes of these kinds until the block ends."""
    url = store.engine.url.render_as_string(hide_password=False)
    config = home / "icewright.yaml"
    config.write_text(CONFIG.format(home=home, state=url), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"}
    with (home / "log").open("wb") as log:
        command = [sys.executable, "-m", "icewright", "--config", str(config)]
        running = [
            subprocess.Popen([*command, kind], cwd=ROOT, stdout=log, stderr=log, env=environment) for kind in kinds
        ]
        try:
            yield running
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait(60)


@pytest.mark.cases(116)
def test_old_and_new_processes_share_a_store_in_both_orders(
    tmp_path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever revision the store has, only processes of that version take jobs; the others say why they do not.

    A drained process ends by itself.
    """
    refs = table_refs(2)
    record_tables(store, *refs)
    known = revisions.newest_revision()
    store.fleet.begin(FleetPause("until the schema is another", "test", NOW))
    with processes(tmp_path, store, "serve", "worker") as running:
        until(lambda: {row.kind for row in store.processes.list()} == {"service", "worker"})
        jobs = enqueue_jobs(store, refs)
        set_revision(store, NEXT)
        store.fleet.end()

        def faults() -> list[Any]:
            return [row.details["faults"] for row in store.processes.list()]

        until(lambda: all(reasons and NEXT in reasons[0] for reasons in faults()))
        assert states(store, jobs) == {JobState.QUEUED}, "the old processes took a job on the new schema"
        log = (tmp_path / "log").read_text(encoding="utf-8")
        assert log.count('"not_ready"') == 2
        monkeypatch.setattr(revisions, "newest_revision", lambda: NEXT)  # this process is of the new version
        (first,) = store.jobs.dequeue("new:1:1", ["lake"], NOW, 1)
        store.jobs.finish(first.job_id, JobState.SUCCEEDED, "by the new version", NOW)
        set_revision(store, known)  # the new version has come before the migration
        with pytest.raises(SchemaMismatch, match=f"revision {known}, and this process knows {NEXT}"):
            store.jobs.dequeue("new:1:1", ["lake"], NOW, 1)
        until(lambda: JobState.QUEUED not in states(store, jobs))
        (worker,) = [row.holder for row in store.processes.list() if row.kind == "worker"]
        assert store.processes.request_drain(worker, NOW)
        until(lambda: running[1].poll() == 0)
        assert [row.kind for row in store.processes.list()] == ["service"]


def states(store: SqlStore, jobs: list[str]) -> set[JobState]:
    """The states of jobs."""
    return {row.state for row in store.jobs.list() if row.job_id in jobs}


@pytest.mark.cases(116)
def test_the_schema_of_another_version_may_lack_what_a_claim_reads(store: SqlStore) -> None:
    """An old process tells the revision, not the database's error about a column that a migration removed."""
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE jobs DROP COLUMN intent"))
    with pytest.raises(StorageUnavailable, match="intent"):
        store.jobs.dequeue("old:1:1", ["lake"], NOW, 1)
    set_revision(store, NEXT)
    with pytest.raises(SchemaMismatch, match=NEXT):
        store.jobs.dequeue("old:1:1", ["lake"], NOW, 1)


@pytest.mark.cases(116)
@pytest.mark.parametrize("earlier", [0, 20], ids=["parsed", "prepared"])
def test_a_claim_that_waits_for_a_migration_holds_no_lock(store: SqlStore, earlier: int) -> None:
    """A migration that has the revision gets all other tables, so neither waits for the other."""
    for _ in range(earlier):  # the driver prepares a statement, and the server then keeps its plan
        store.jobs.dequeue("old:1:1", ["lake"], NOW, 1)
    with store.engine.connect() as migration, ThreadPoolExecutor(1) as other:
        migration.execute(sa.text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))
        claim = other.submit(store.jobs.dequeue, "old:1:1", ["lake"], NOW, 1)
        waiting = sa.text("SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'alembic_version'::regclass")
        until(lambda: migration.execute(waiting).scalar() is not None)
        migration.execute(sa.text("LOCK TABLE jobs, tables IN ACCESS EXCLUSIVE MODE NOWAIT"))
        migration.rollback()
        assert claim.result(30) == []


@pytest.mark.cases(116)
def test_a_migration_waits_for_running_claims_and_loses_none(
    tmp_path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While workers claim and end jobs the schema changes in one step; each job is in one state, and nothing fails."""
    refs = table_refs(40)
    record_tables(store, *refs)
    versions = tmp_path / "migrations" / "versions"
    known = revisions.newest_revision()
    shutil.copytree(revisions.MIGRATIONS, tmp_path / "migrations")
    (versions / f"v{NEXT}_next.py").write_text(MIGRATION.format(newest=known), encoding="utf-8")
    monkeypatch.setattr(revisions, "MIGRATIONS", tmp_path / "migrations")
    of_new = threading.local()
    monkeypatch.setattr(revisions, "newest_revision", lambda: NEXT if getattr(of_new, "it", False) else known)
    ended: Counter[str] = Counter()
    under_load = threading.Event()

    def work(number: int) -> None:
        """Plan, take and end jobs as an old worker does, until the schema is another."""
        holder, mine = f"old:{number}:1", refs[number::4]
        while True:
            try:
                enqueue_jobs(store, mine)
                for job in store.jobs.dequeue(holder, ["lake"], NOW, 4):
                    store.jobs.heartbeat(job.job_id, NOW)
                    store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)
                    ended["jobs"] += 1
            except SchemaMismatch:
                ended["mismatch"] += 1
                return
            except StorageUnavailable as error:
                ended[str(error)] += 1
                return
            if ended["jobs"] > 100:
                under_load.set()

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for worker in workers:
        worker.start()
    assert under_load.wait(30)
    upgrade(store.engine)
    for worker in workers:
        worker.join(30)
    assert {key for key in ended if key != "jobs"} == {"mismatch"}, ended
    of_new.it = True
    left = store.jobs.dequeue("new:1:1", ["lake"], NOW, 100)
    for job in left:
        store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)
    assert {row.state for row in store.jobs.list(limit=100_000)} == {JobState.SUCCEEDED}
    assert all(row.job_id is None for row in store.tables.list())
