"""The contract of every store for jobs: each table has one open job, each job is dequeued once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

import pytest

from icewright.core.capacity import Priority
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.tally import Total
from icewright.ports import JOB_LEASE, LeaseStatus, Store, Trigger
from icewright.testing import NOW, REF
from icewright.testing.contracts.cases import (
    EXPIRE,
    ME,
    MINUTE,
    OTHER,
    PLANNER,
    WORKER,
    StoreSuite,
    concurrently,
    enqueue_jobs,
    planned_job,
    record_tables,
    start_job,
    table_refs,
    table_row,
)


class JobQueueTests(StoreSuite):
    """The queue of jobs and the leases of running ones."""

    def test_the_best_job_is_taken_first(self, store: Store) -> None:
        """Jobs are taken best score first, and belong to the worker that took them."""
        tables = table_refs(5)
        record_tables(store, *tables)
        jobs = enqueue_jobs(store, tables)
        first = store.jobs.dequeue(WORKER, ["lake"], NOW + MINUTE, 2)
        assert [job.job_id for job in first] == [jobs[4], jobs[3]]
        assert [(job.state, job.holder, job.started) for job in first] == [(JobState.RUNNING, WORKER, NOW + MINUTE)] * 2
        assert len(store.jobs.dequeue("other:1:1", ["lake"], NOW, 10)) == 3
        assert not store.jobs.dequeue(WORKER, ["lake"], NOW, 10)
        assert not store.jobs.dequeue(WORKER, ["pond"], NOW, 10)

    def test_manual_jobs_come_first_and_then_what_has_waited(self, store: Store) -> None:
        """A priority counts more than any score; a job that was queued long ago is promoted."""
        tables = table_refs(4)
        record_tables(store, *tables)
        first = store.jobs.enqueue(planned_job(tables[0]), PLANNER, NOW)
        best = store.jobs.enqueue(planned_job(tables[1], 1e15), PLANNER, NOW + MINUTE)
        due = replace(planned_job(tables[2], 2.0), priority=Priority.OVERDUE)
        overdue = store.jobs.enqueue(due, PLANNER, NOW + MINUTE)
        asked = replace(planned_job(tables[3], 0.0), priority=Priority.MANUAL)
        manual = store.jobs.enqueue(asked, PLANNER, NOW + MINUTE)
        for _ in range(2):
            store.jobs.promote(NOW)
        priorities = {job.ref: job.priority for job in store.planning.usage(NOW).active}
        assert priorities == dict(
            zip(tables, (Priority.OVERDUE, Priority.VALUE, Priority.OVERDUE, Priority.MANUAL), strict=True)
        )
        jobs = [job for _ in range(4) for job in store.jobs.dequeue(WORKER, ["lake"], NOW + MINUTE, 1)]
        assert [job.job_id for job in jobs] == [manual, overdue, first, best]

    def test_concurrent_workers_share_the_queue(self, store: Store) -> None:
        """No job is taken twice and none is left, however many workers take at the same time."""
        tables = table_refs(40)
        record_tables(store, *tables)
        jobs = enqueue_jobs(store, tables)

        def work(number: int) -> list[str]:
            job_ids: list[str] = []
            while batch := store.jobs.dequeue(f"w:{number}:1", ["lake"], NOW, 3):
                job_ids += [job.job_id for job in batch]
            return job_ids

        counts = Counter(job_id for job_ids in concurrently(6, work) for job_id in job_ids)
        assert counts == Counter(dict.fromkeys(jobs, 1))

    def test_a_table_is_queued_once(self, store: Store) -> None:
        """When many queue a job for one table at the same time, one succeeds, and none does while that job is open."""
        record_tables(store, REF)
        for _ in range(3):
            enqueued = concurrently(6, lambda _: store.jobs.enqueue(planned_job(REF), PLANNER, NOW))
            (job_id,) = [job for job in enqueued if job is not None]
            assert store.jobs.enqueue(planned_job(REF), PLANNER, NOW) is None
            (job,) = store.jobs.dequeue(WORKER, ["lake"], NOW, 9)
            assert job.job_id == job_id
            store.jobs.finish(job.job_id, JobState.SUCCEEDED, "", NOW)

    def test_unknown_and_dropped_tables_are_not_queued(self, store: Store) -> None:
        """A job needs a table that its catalog lists."""
        assert store.jobs.enqueue(planned_job(REF), PLANNER, NOW) is None
        record_tables(store, REF)
        store.tables.record_listing("lake", [], NOW)
        assert store.jobs.enqueue(planned_job(REF), PLANNER, NOW) is None

    def test_a_claim_replaces_a_queued_job_and_never_a_running_one(self, store: Store) -> None:
        """When a claim and a dequeue race, one succeeds; claiming a table cancels its queued job."""
        record_tables(store, REF)
        for _ in range(5):
            (queued,) = enqueue_jobs(store, [REF])
            claim, took = concurrently(
                2,
                lambda number: (
                    store.jobs.dequeue(WORKER, ["lake"], NOW, 1)
                    if number
                    else store.jobs.claim(REF, "u", (EXPIRE,), PLANNER, NOW)
                ),
            )
            assert (claim is None) == bool(took)
            row = store.tables.get(REF)
            assert row is not None
            assert row.job_id == (queued if took else claim)
            stored = store.jobs.get(queued)
            assert stored is not None
            assert stored.state is (JobState.RUNNING if took else JobState.CANCELLED)
            store.jobs.finish(str(row.job_id), JobState.SUCCEEDED, "", NOW)

    def test_cancelling_ends_queued_jobs_and_asks_running_ones(self, store: Store) -> None:
        """A queued job ends at once, a running one is asked, an ended one is refused; each is counted once."""
        tables = table_refs(2)
        record_tables(store, *tables)
        first, second = enqueue_jobs(store, tables)
        assert store.jobs.request_cancel(first, NOW)
        stored = store.jobs.get(first)
        assert stored is not None
        assert (stored.state, stored.finished) == (JobState.CANCELLED, NOW)
        (job,) = store.jobs.dequeue(WORKER, ["lake"], NOW, 9)
        assert job.job_id == second
        assert store.jobs.request_cancel(second, NOW)
        assert store.jobs.heartbeat(second, NOW) is LeaseStatus.CANCELLED
        store.jobs.finish(second, JobState.CANCELLED, "", NOW)
        assert not store.jobs.request_cancel(second, NOW)
        assert [row.job_id for row in store.tables.list()] == [None, None]
        assert store.measures.read(NOW, (), ()).totals == {Total("jobs", label="cancelled"): 2}

    def test_only_running_jobs_are_interrupted(self, store: Store) -> None:
        """A job that is queued for days is not interrupted: its lease begins when it is taken."""
        tables = table_refs(2)
        record_tables(store, *tables)
        enqueue_jobs(store, tables)
        late = NOW + timedelta(days=3)
        assert store.jobs.end_interrupted(late, lambda _: True) == []
        (job,) = store.jobs.dequeue(WORKER, ["lake"], late, 1)
        assert store.jobs.end_interrupted(late + JOB_LEASE, lambda _: False) == []
        (lost,) = store.jobs.end_interrupted(late + JOB_LEASE + MINUTE, lambda _: False)
        assert lost.job_id == job.job_id
        row = store.tables.get(job.ref)
        assert row is not None
        assert (row.job_id, row.evaluate_at) == (None, late + JOB_LEASE + MINUTE)

    def test_leases_from_before_the_clock_was_set_back_begin_anew(self, store: Store) -> None:
        """A job whose process lives goes on, and one whose process has died unseen frees its table as ever."""
        names = table_refs(2)
        record_tables(store, *names)
        beating, silent = (start_job(store, name) for name in names)
        set_back = NOW - timedelta(days=1)
        assert store.jobs.end_interrupted(set_back, lambda _: False) == []
        late = set_back + JOB_LEASE + MINUTE
        assert store.jobs.heartbeat(beating, late) is LeaseStatus.HELD
        assert [job.job_id for job in store.jobs.end_interrupted(late, lambda _: False)] == [silent]

    @pytest.mark.parametrize("workers", [2, 16])
    def test_one_of_concurrent_claims_wins(self, store: Store, workers: int) -> None:
        """When many claim one table at the same time, one succeeds, in every round."""
        record_tables(store)
        barrier = Barrier(workers)

        def claim(number: int) -> str | None:
            barrier.wait()
            return store.jobs.claim(REF, "u1", (EXPIRE,), Trigger("cycle", "me", f"host:{number}:0"), NOW)

        with ThreadPoolExecutor(workers) as pool:
            for _ in range(3):
                won = [job_id for job_id in pool.map(claim, range(workers)) if job_id is not None]
                assert len(won) == 1
                assert table_row(store).job_id == won[0]
                store.jobs.finish(won[0], JobState.SUCCEEDED, "", NOW)

    def test_a_job_that_ended_stays_ended(self, store: Store) -> None:
        """A second end changes neither the state of the job nor the hold of the next job on the table."""
        record_tables(store)
        first = start_job(store)
        store.jobs.finish(first, JobState.SUCCEEDED, "done", NOW)
        second = start_job(store, now=NOW + timedelta(seconds=1))
        store.jobs.finish(first, JobState.FAILED, "late", NOW)
        assert store.jobs.heartbeat(first, NOW) is LeaseStatus.LOST
        assert not store.jobs.request_cancel(first, NOW)
        ended = store.jobs.get(first)
        assert ended is not None
        assert (ended.state, ended.summary, table_row(store).job_id) == (JobState.SUCCEEDED, "done", second)
        assert [job.job_id for job in store.jobs.list(REF)] == [second, first]
        assert [job.job_id for job in store.jobs.list(limit=1)] == [second]

    def test_jobs_without_a_heartbeat_or_a_live_holder_are_interrupted(self, store: Store) -> None:
        """An expired lease or a dead holder ends a job and releases its table; a heartbeat renews the lease."""
        names = [TableRef("lake", ("sales",), name) for name in ("old", "beating", "dead")]
        record_tables(store, *names)
        old, beating, dead = (start_job(store, name) for name in names)
        late = NOW + JOB_LEASE + timedelta(seconds=1)
        assert store.jobs.end_interrupted(NOW + JOB_LEASE, lambda _: False) == []
        assert store.jobs.heartbeat(beating, late) is LeaseStatus.HELD
        assert store.jobs.heartbeat(dead, late) is LeaseStatus.HELD
        assert [job.job_id for job in store.jobs.end_interrupted(late, lambda _: False)] == [old]
        assert store.jobs.heartbeat(old, late) is LeaseStatus.LOST
        store.jobs.finish(beating, JobState.SUCCEEDED, "", late)
        assert [job.job_id for job in store.jobs.end_interrupted(late, lambda holder: holder == ME.holder)] == [dead]
        stored = store.jobs.get(dead)
        assert stored is not None
        assert stored.state is JobState.INTERRUPTED
        assert all(r.job_id is None for r in store.tables.list())

    def test_a_cancel_request_reaches_the_job_at_its_next_heartbeat(self, store: Store) -> None:
        """The heartbeat reports the request to cancel; pausing a table stores its reason."""
        record_tables(store)
        job_id = start_job(store)
        assert store.jobs.heartbeat(job_id, NOW) is LeaseStatus.HELD
        assert store.jobs.request_cancel(job_id, NOW)
        assert store.jobs.heartbeat(job_id, NOW) is LeaseStatus.CANCELLED
        assert not store.jobs.request_cancel("nobody", NOW)
        assert store.tables.pause(REF, "by hand")
        assert table_row(store).paused == "by hand"
        assert store.tables.pause(REF, None)
        assert table_row(store).paused is None
        assert not store.tables.pause(TableRef("lake", ("x",), "y"), "by hand")
        store.tables.pause_many([REF, TableRef("lake", ("x",), "y")], "a migration")
        assert table_row(store).paused == "a migration"
        store.tables.pause_many([REF], None)
        assert table_row(store).paused is None

    def test_failures_in_a_row_are_counted_per_table(self, store: Store) -> None:
        """Failures count since the last job that did not fail; cancelled jobs do not interrupt the row."""
        record_tables(store, REF, OTHER)
        counts = []
        states = ["failed", "failed", "cancelled", "failed", "succeeded", "failed", "partial"]
        for number, state in enumerate(states):
            for ref in (REF, OTHER):
                now = NOW + timedelta(minutes=number)
                store.jobs.finish(start_job(store, ref, now), JobState(state if ref == REF else "failed"), "", now)
            counts.append(store.jobs.count_consecutive(REF, JobState.FAILED))
        assert counts == [1, 2, 2, 3, 0, 1, 0]
        assert store.jobs.count_consecutive(OTHER, JobState.FAILED) == 7

    def test_a_unique_part_of_an_id_is_enough(self, store: Store) -> None:
        """A prefix that one job has, or what follows the last dash, finds it; % and underscore are no wildcards."""
        record_tables(store, REF, OTHER)
        first = start_job(store)
        assert store.jobs.get("") is None  # though one job alone begins with it
        second = start_job(store, OTHER)
        texts = (first, second[:-1], second[-8:], first[:8], "%", "_" * len(first), "nobody")
        stored = [store.jobs.get(text) for text in texts]
        assert [job and job.job_id for job in stored] == [first, second, second, None, None, None, None]

    def test_a_job_has_one_result(self, store: Store) -> None:
        """The result is JSON with times as text; recording it again replaces it, and other jobs have none."""
        record_tables(store, REF, OTHER)
        job, other = start_job(store), start_job(store, OTHER)
        assert store.jobs.result(job) is None
        store.jobs.record_result(job, {"rows": 1})
        store.jobs.record_result(job, {"rows": 2, "until": NOW, "places": ("tag",), "path": "a\0b"})
        assert store.jobs.result(job) == {"rows": 2, "until": NOW.isoformat(), "places": ["tag"], "path": "a\0b"}
        assert store.jobs.result(other) is None
