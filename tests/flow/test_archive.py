"""Old history is moved exactly once, wherever the process ends; what the store works with stays."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from icewright.adapters.store.archive import SqlOldHistory
from icewright.adapters.store.database import open_database
from icewright.adapters.store.schema import ARCHIVES, EVENTS
from icewright.adapters.store.sql import SqlStore
from icewright.core.errors import CommitStateUnknown, InvariantViolated, LeaseLost
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.flow.archive import Archiving, archive_batches, archive_due
from icewright.ports import Batch, Trigger
from icewright.testing import NOW
from tests.examples import examples
from tests.flow.bench import Bench
from tests.flow.history import Crashed, Crashing, JobSpec, Key, MemoryArchive, keys, readings, seed

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

AFTER = timedelta(days=30)
OLD = NOW - AFTER
LONG_AGO = 40.0
ages = st.sampled_from([0.5, 10.0, 29.9, 30.1, LONG_AGO, 60.0])
runs = st.tuples(
    st.sampled_from([str(op) for op in Operation][:3]),
    st.sampled_from(["committed", "skipped", "failed", "deferred", "untried"]),
    st.sampled_from(["p1", "p2"]),
)
specs = st.builds(
    JobSpec,
    table=st.integers(0, 1),
    days=ages,
    state=st.sampled_from([str(s) for s in JobState if s not in (JobState.QUEUED, JobState.RUNNING)]),
    runs=st.lists(runs, max_size=3).map(tuple),
    deletions=st.lists(
        st.sampled_from(["planned", "found", "deleted", "deleted", "failed", "kept", "left"]), max_size=3
    ).map(tuple),
    uuid=st.sampled_from(["u1", "u1", "u2"]),
) | st.builds(JobSpec, table=st.integers(0, 1), days=st.none(), state=st.sampled_from(["running", "queued"]))
crashes = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=4)
weather = st.lists(st.sampled_from(["fine", "conflict", "landed", "lost"]), max_size=4)


@contextmanager
def opened(empty: Path) -> Iterator[Bench]:
    """A bench over a store in memory."""
    store = SqlStore(open_database("sqlite:///:memory:"))
    with closing(sqlite3.connect(empty)) as source, store.engine.connect() as connection:
        target: Any = connection.connection.driver_connection
        source.backup(target)
    try:
        yield Bench(store)
    finally:
        store.engine.dispose()


def archiving(bench: Bench, archive: MemoryArchive, **small: int) -> Archiving:
    """Both sides, in small batches."""
    return Archiving(SqlOldHistory(bench.store.db, **{"most_rows": 3, **small}), archive, AFTER)


def crash(bench: Bench, both: Archiving, at: int, *, after: bool) -> None:
    """Archive until the call of this number, and die there."""
    counter = itertools.count()

    def crashing(port: Any) -> Any:
        return Crashing(port, counter, at, after)

    parts = {name: crashing(part) for name, part in vars(bench.store).items() if name != "db"}
    runtime = bench.runtime(store=SimpleNamespace(**parts))
    crashes = replace(both, history=crashing(both.history), archive=crashing(both.archive))
    try:
        for _ in archive_batches(runtime, crashes, OLD):
            pass
    except Crashed:
        pass


@examples(20)
@given(
    jobs=st.lists(specs, max_size=8),
    later=st.lists(specs, max_size=3),
    events=st.lists(ages, max_size=8),
    alerts=st.lists(ages | st.none(), max_size=4),
    crashes=crashes,
    weather=weather,
)
def test_every_row_is_in_one_place(
    empty_store: Path,
    jobs: list[JobSpec],
    later: list[JobSpec],
    events: list[float],
    alerts: list[float | None],
    crashes: list[tuple[int, bool]],
    weather: list[str],
) -> None:
    """Whatever the history, wherever passes crash and replies are lost.

    No row is ever lost, none is ever in the archive twice; after a pass that came to its end none is in both places,
    and every decision is made from the same as before.
    """
    with opened(empty_store) as bench:
        engine, archive = bench.store.engine, MemoryArchive(weather)
        both = archiving(bench, archive)
        seed(engine, jobs, events, alerts)
        everything = keys(engine)
        for number, (at, after) in enumerate(crashes):
            crash(bench, both, at, after=after)
            everywhere(bench, archive, everything)
            if not number:  # life goes on before somebody starts the service again
                seed(engine, later, [0.1, LONG_AGO], [LONG_AGO], first=len(jobs))
                everything |= keys(engine)
        before = readings(bench.store, NOW)
        for _ in archive_batches(bench.runtime(), both, OLD):
            pass
        everywhere(bench, archive, everything)
        assert not keys(engine) & archive.counted().keys()
        assert not any(both.history.waiting(OLD).values())
        assert readings(bench.store, NOW) == before


def test_a_failure_is_kept_until_a_job_of_the_same_table_ended_well(empty_store: Path) -> None:
    """Jobs of an earlier table of the name say nothing of this one, and are history themselves."""
    with opened(empty_store) as bench:
        archive = MemoryArchive([])
        mine = [JobSpec(0, 60.0, state, (), (), "u1") for state in ("succeeded", "succeeded", "failed")]
        others = [JobSpec(0, 50.0, "failed", (), (), "u2"), JobSpec(0, 0.5, "succeeded", (), (), "u2")]
        seed(bench.store.engine, [*mine, *others])
        before = readings(bench.store, NOW)
        for _ in archive_batches(bench.runtime(), archiving(bench, archive), OLD):
            pass
        assert readings(bench.store, NOW) == before
        assert [(job.table_uuid, job.state) for job in bench.store.jobs.list()] == [
            ("u2", JobState.SUCCEEDED),
            ("u1", JobState.FAILED),
            ("u1", JobState.SUCCEEDED),
        ]


def everywhere(bench: Bench, archive: MemoryArchive, everything: set[Key]) -> None:
    """Each row is in the archive once, or else in the store; children have their parents."""
    counted = archive.counted()
    assert set(counted.values()) <= {1}
    assert keys(bench.store.engine) | counted.keys() == everything
    with bench.store.engine.connect() as connection:
        assert connection.exec_driver_sql("pragma foreign_key_check").all() == []


def gone(bench: Bench, **history: Any) -> set[Key]:
    """What one pass moves of a history."""
    seed(bench.store.engine, **history)
    archive = MemoryArchive()
    for _ in archive_batches(bench.runtime(), archiving(bench, archive), OLD):
        pass
    return set(archive.counted())


def test_a_job_goes_with_all_that_it_left(bench: Bench) -> None:
    """Its runs and settled deletions go too; a newer job with a run of the operation takes its place."""
    old = JobSpec(deletions=("deleted", "kept", "given up", "left"))
    went = gone(bench, jobs=[old, JobSpec(days=1)])
    assert went == {("jobs", "job-0"), ("runs", 1), *(("deletions", n) for n in range(1, 5))}


def test_a_result_goes_with_its_job(bench: Bench) -> None:
    """What a job found or made is not archived; it is read as long as the job is in the store."""
    seed(bench.store.engine, jobs=[JobSpec(), JobSpec(days=1)])
    for job in ("job-0", "job-1"):
        bench.store.jobs.record_result(job, {"job": job})
    for _ in archive_batches(bench.runtime(), archiving(bench, MemoryArchive()), OLD):
        pass
    assert [bench.store.jobs.result(job) for job in ("job-0", "job-1")] == [None, {"job": "job-1"}]


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(JobSpec(deletions=("deleted", "planned")), id="deletions that are to be finished"),
        pytest.param(JobSpec(deletions=("deleted", "failed")), id="deletions that are tried again"),
        pytest.param(JobSpec(deletions=("found", "deleted")), id="findings that wait"),
        pytest.param(JobSpec(runs=(("rewrite_deletes", "skipped", "p1"),)), id="the last run of an operation"),
        pytest.param(JobSpec(days=None, state="running"), id="a job that runs"),
        pytest.param(JobSpec(days=29.9), id="a job that is not old"),
        pytest.param(JobSpec(table=1, state="failed", runs=()), id="failures in a row"),
        pytest.param(JobSpec(table=1, runs=()), id="the last job that ended well"),
    ],
)
def test_what_is_worked_with_stays(bench: Bench, kept: JobSpec) -> None:
    """A job that decisions are made from stays whole, and its neighbour goes."""
    went = gone(bench, jobs=[JobSpec(), kept, JobSpec(days=1)])
    assert {name for source, name in went if source == "jobs"} == {"job-0"}


def test_recent_compactions_stay(bench: Bench) -> None:
    """Twenty of the last one's policy: what they rewrote is not rewritten again. Older ones and others go."""
    other = JobSpec(days=100, runs=(("compact", "committed", "p2"),))
    compactions = [JobSpec(days=80 - n, runs=(("compact", "committed", "p1"),)) for n in range(23)]
    went = gone(bench, jobs=[other, *compactions])
    assert {name for source, name in went if source == "jobs"} == {"job-0", "job-1", "job-2", "job-3"}


def test_runs_of_an_earlier_table_go(bench: Bench) -> None:
    """A table that was dropped and made again has no use for them, but for its compactions, which count on."""
    earlier = JobSpec(uuid="u0", runs=(("expire_snapshots", "committed", "p1"),))
    assert ("jobs", "job-0") in gone(bench, jobs=[earlier, JobSpec(days=1)])


def test_events_and_alerts(bench: Bench) -> None:
    """Old events and alerts that were resolved long ago go; open alerts stay however old they are."""
    went = gone(bench, events=[LONG_AGO, 29.0], alerts=[LONG_AGO, None, 1.0])
    assert went == {("events", 1), ("alerts", 1)}


def test_what_is_written_of_a_row(bench: Bench) -> None:
    """Every column, with the batch and the table's name; JSON as text."""
    seed(bench.store.engine, [JobSpec(), JobSpec(days=1)])
    archive = MemoryArchive()
    batches = list(archive_batches(bench.runtime(), archiving(bench, archive), OLD))
    rows = {source: table.to_pylist()[0] for source, table in archive.batches.values()}
    assert [batch.source for batch in batches] == ["runs", "jobs"]
    run = rows["runs"]
    assert (run["batch"], run["table_name"], run["job_id"]) == (batches[0].batch_id, "lake.sales.t0", "job-0")
    assert (run["finished"], run["gb_hours"]) == (NOW - timedelta(days=LONG_AGO), 0.5)
    assert (run["statements"], run["before"]) == ("[\"CALL 'ü'\"]", '{"files": 2}')
    assert (rows["jobs"]["cancel_requested"], rows["jobs"]["state"]) == (False, "succeeded")


def test_one_process_at_a_time(bench: Bench) -> None:
    """Another that holds the lease keeps this one from archiving; once it is silent for long, its batch is taken up."""
    seed(bench.store.engine, events=[LONG_AGO] * 4)
    archive = MemoryArchive()
    both, other = archiving(bench, archive), replace(bench.runtime(), trigger=Trigger("cycle", "you", "host:2:2"))
    stopped = archive_batches(other, both, OLD)
    next(stopped)
    with pytest.raises(LeaseLost, match="another process archives now"):
        next(archive_batches(bench.runtime(), both, OLD))
    assert archive_due(bench.runtime(), both) == 0
    bench.clock.advance(minutes=11)
    assert [batch.rows for batch in archive_batches(bench.runtime(), both, OLD)] == [1]
    with pytest.raises(StopIteration):
        next(stopped)
    assert len(archive.counted()) == 4


def test_a_source_has_one_batch_at_a_time(bench: Bench) -> None:
    """Two that plan at once would have the same rows: the second is refused, by the database in the last resort."""
    seed(bench.store.engine, events=[LONG_AGO] * 4)
    history = SqlOldHistory(bench.store.db, most_rows=3)
    assert history.plan("events", OLD, NOW) is not None
    with pytest.raises(LeaseLost, match="another process archives events"):
        history.plan("events", OLD, NOW)
    values = {"batch": "b", "source": "events", "before": OLD, "rows": [1], "state": "planned", "at": NOW}
    with pytest.raises(sa.exc.IntegrityError), bench.store.engine.begin() as connection:
        connection.execute(sa.insert(ARCHIVES).values(**values))


def test_by_itself_whole_days_go(bench: Bench) -> None:
    """One batch a call, of what was old at midnight UTC; then no more until the next midnight, whoever asks."""
    seed(bench.store.engine, events=[30.1, 30.49, 30.51, LONG_AGO])  # it is noon
    both = archiving(bench, archive := MemoryArchive(), most_rows=1)
    assert [archive_due(bench.runtime(), both) for _ in range(3)] == [1, 1, 0]
    assert len(archive.counted()) == 2
    seed(bench.store.engine, events=[LONG_AGO])
    other = replace(bench.runtime(), trigger=Trigger("cycle", "you", "host:2:2"))
    assert archive_due(other, both) == 0
    assert [batch.rows for batch in archive_batches(bench.runtime(), both, OLD)] == [
        1,
        1,
        1,
    ]  # by hand whatever is old goes
    bench.clock.advance(hours=12)
    seed(bench.store.engine, events=[LONG_AGO])
    assert [archive_due(other, both) for _ in range(2)] == [1, 0]
    assert len(archive.counted()) == 6


def test_a_batch_ends_before_it_is_too_large(bench: Bench) -> None:
    """So many characters of JSON end a batch, as so many rows do; a row larger than that goes alone."""
    seed(bench.store.engine, events=[LONG_AGO] * 6)
    sizes = [
        batch.rows
        for batch in archive_batches(bench.runtime(), archiving(bench, MemoryArchive(), most_characters=30), OLD)
        if batch.source == "events"
    ]
    assert sizes == [2, 2, 2]
    seed(bench.store.engine, events=[LONG_AGO] * 2)
    alone = archive_batches(bench.runtime(), archiving(bench, MemoryArchive(), most_characters=1), OLD)
    assert [batch.rows for batch in alone] == [1, 1]


def test_a_reply_that_is_lost_again_and_again(bench: Bench) -> None:
    """The pass ends with the error and the batch stays planned; the next settles it."""
    seed(bench.store.engine, events=[LONG_AGO])
    archive = MemoryArchive(["lost"] * 5)
    both = archiving(bench, archive)
    with pytest.raises(CommitStateUnknown):
        next(archive_batches(bench.runtime(), both, OLD))
    waits = [0.05, 0.1, 0.2, 0.4]
    assert all(wait <= slept <= wait + 0.05 for wait, slept in zip(waits, bench.clock.slept, strict=True))
    assert [batch.written for batch in both.history.unfinished()] == [False]
    assert keys(bench.store.engine) == {("events", 1)}
    assert [batch.rows for batch in archive_batches(bench.runtime(), both, OLD)] == [1]
    assert keys(bench.store.engine) == set()


def test_rows_that_somebody_deleted(bench: Bench) -> None:
    """A planned row that is gone from the store stops the archive: a part of a batch is no batch."""
    seed(bench.store.engine, events=[LONG_AGO] * 3)
    both = archiving(bench, archive := MemoryArchive())
    assert both.history.plan("events", OLD, NOW) is not None
    with bench.store.engine.begin() as connection:
        connection.execute(sa.delete(EVENTS).where(EVENTS.c.id == 2))
    with pytest.raises(InvariantViolated, match=r"1 of the 3 rows of archive batch .* are gone from the store"):
        next(archive_batches(bench.runtime(), both, OLD))
    assert not archive.batches


def test_what_is_not_written_is_not_pruned(bench: Bench) -> None:
    """Pruning a planned batch, or one for the second time, deletes nothing."""
    seed(bench.store.engine, events=[LONG_AGO] * 2)
    history = SqlOldHistory(bench.store.db, most_rows=1)
    batch = history.plan("events", OLD, NOW)
    assert isinstance(batch, Batch)
    history.prune(batch)
    assert len(keys(bench.store.engine)) == 2
    history.written(batch)
    history.prune(batch)
    history.prune(batch)
    assert keys(bench.store.engine) == {("events", 2)}


def test_archiving_is_told(bench: Bench) -> None:
    """Each batch is an event."""
    seed(bench.store.engine, events=[LONG_AGO] * 4)
    done = list(archive_batches(bench.runtime(), archiving(bench, MemoryArchive()), OLD))
    told = [(e["source"], e["rows"], e["batch"]) for e in bench.events("archived")]
    assert told == [("events", b.rows, b.batch_id) for b in done]
    said = [event["details"] for event in bench.store.activity.list() if event["kind"] == "archived"]
    assert [(d["rows"], d["batch"]) for d in reversed(said)] == [(b.rows, b.batch_id) for b in done]


def test_no_id_is_given_twice(bench: Bench) -> None:
    """Rows that come after all earlier ones were archived have ids of their own."""
    archive = MemoryArchive()
    for _ in range(2):
        seed(bench.store.engine, events=[LONG_AGO], alerts=[LONG_AGO])
        for _ in archive_batches(bench.runtime(), archiving(bench, archive), OLD):
            pass
    assert set(archive.counted().values()) == {1}
    assert len(archive.counted()) == 4
