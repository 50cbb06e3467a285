"""The archive over both databases, with real tables: what goes, what is there afterwards, and two who do it at once."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from icewright.adapters.archive import IcebergArchive
from icewright.adapters.catalogs.bounded import load_bounded_catalog
from icewright.adapters.clock import SystemClock
from icewright.adapters.store.archive import SqlOldHistory
from icewright.adapters.store.database import open_database
from icewright.adapters.store.schema import EVENTS
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from icewright.core.errors import LeaseLost
from icewright.flow.archive import Archiving, archive_batches
from icewright.flow.runtime import Runtime
from icewright.ports import Trigger
from icewright.ports.archive import SOURCES
from tests.contracts.bench import Bench, by_pyiceberg, local
from tests.flow.bench import Bench as Fakes
from tests.flow.history import TABLE_OF, JobSpec, Key, keys, seed

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

AFTER = timedelta(days=30)
LONG_AGO = 40.0
JOBS = [
    JobSpec(days=45 - n % 10, deletions=("deleted", "kept") * (n % 3), runs=(("expire_snapshots", "committed", "p"),))
    for n in range(12)
]


@pytest.fixture
def store(bench: Bench) -> Iterator[SqlStore]:
    """A store in the catalog's own kind of database, with twelve old jobs, and events."""
    where = bench.uri if "postgresql" in bench.uri else f"sqlite:///{bench.warehouse.parent}/state.db"
    opened = SqlStore(open_database(where))
    upgrade(opened.engine)
    seed(opened.engine, JOBS, [LONG_AGO + n for n in range(20)] + [1.0], [LONG_AGO, None], now=SystemClock().now())
    yield opened
    opened.engine.dispose()


@contextmanager
def archiving(bench: Bench, store: SqlStore) -> Iterator[Archiving]:
    """Both sides, in batches of twelve."""
    archive = IcebergArchive("lake", partial(load_bounded_catalog, "lake", bench.client), ("icewright",))
    with closing(archive):
        yield Archiving(SqlOldHistory(store.db, most_rows=12), archive, AFTER)


def runtime(store: SqlStore, number: int = 1) -> Runtime:
    """A process of its own, by the real clock."""
    return replace(Fakes(store).runtime(), clock=SystemClock(), trigger=Trigger("cycle", "me", f"host:{number}:1"))


def in_the_archive(bench: Bench) -> list[Key]:
    """Every row of the tables."""
    found = []
    for source in SOURCES:
        key = next(iter(TABLE_OF[source].primary_key.columns)).name
        rows = bench.read("icewright", source).scan().to_arrow()
        found += [(source, value) for value in rows[key].to_pylist()]
    return found


@by_pyiceberg
def test_all_that_is_old_goes(bench: Bench, store: SqlStore) -> None:
    """Every kind of row, each once, into tables of every column; a second pass finds nothing."""
    before, old = keys(store.engine), datetime.now(UTC) - AFTER
    with archiving(bench, store) as both:
        waiting = both.history.waiting(old)
        assert waiting == {"deletions": 20, "runs": 10, "jobs": 10, "events": 20, "alerts": 1}
        batches = list(archive_batches(runtime(store), both, old))
        assert list(archive_batches(runtime(store), both, old)) == []
    assert {s: sum(b.rows for b in batches if b.source == s) for s in SOURCES} == waiting
    went = in_the_archive(bench)
    assert len(went) == len(set(went)) == sum(waiting.values())
    assert set(went) == before - keys(store.engine)
    assert {n for s, n in keys(store.engine) if s == "jobs"} == {"job-9", "job-11"}
    for source, table in TABLE_OF.items():
        columns = {column.name for column in table.columns if column.name != "table_id"}
        assert {f.name for f in bench.read("icewright", source).schema().fields} == columns | {"batch", "table_name"}


@local  # the same code writes through PyIceberg elsewhere, each time with many commits
def test_two_at_once(bench: Bench, store: SqlStore) -> None:
    """Processes that archive at the same time, and try again while another does: each row goes once."""
    before, old, together = keys(store.engine), datetime.now(UTC) - AFTER, threading.Barrier(3)

    def again_and_again(number: int) -> int:
        done = 0
        together.wait()
        with archiving(bench, store) as both:
            while any(both.history.waiting(old).values()):
                with suppress(LeaseLost):
                    done += sum(batch.rows for batch in archive_batches(runtime(store, number), both, old))
        return done

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(again_and_again, range(3))) == 61
    went = in_the_archive(bench)
    assert len(went) == len(set(went)) == 61
    assert set(went) == before - keys(store.engine)


def peak() -> int:
    """The most memory that this process has had, in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


def archive_many(home: str, events: int) -> list[int]:
    """Archive so many events in a process of its own; its peak after each batch."""
    bench = Bench(f"sqlite:///{home}/catalog.db", Path(home))
    store = SqlStore(open_database(f"sqlite:///{home}/state.db"))
    upgrade(store.engine)
    now = SystemClock().now()
    details = {"said": "so much has happened " * 8}
    rows = ({"at": now - timedelta(days=33, seconds=n), "kind": "looked", "details": details} for n in range(events))
    with store.engine.begin() as connection:
        while chunk := list(itertools.islice(rows, 10_000)):
            connection.execute(sa.insert(EVENTS), chunk)
    with closing(
        IcebergArchive("lake", partial(load_bounded_catalog, "lake", bench.client), ("icewright",))
    ) as archive:
        both = Archiving(SqlOldHistory(store.db), archive, AFTER)
        peaks = [peak() for _ in archive_batches(runtime(store), both, now - AFTER)]
    store.engine.dispose()
    assert bench.read("icewright", "events").scan().count() == events
    bench.close()
    return peaks


@pytest.mark.external
def test_a_long_history_takes_little_memory(tmp_path: Path) -> None:
    """A hundred thousand events go in batches: the last takes no more memory than the second."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        peaks = pool.apply(archive_many, (str(tmp_path), 100_000))
    assert len(peaks) == 5
    assert peaks[-1] - peaks[1] < 40
    assert peaks[-1] < 500
