"""What every state store does for deletions that wait, their undo, and what an expiry removed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest

from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from icewright.core.errors import UsageError
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState
from icewright.core.table import TableRef
from icewright.ports import LedgerState, Pointer, Removal, Trigger
from icewright.ports.views import DeletionQuery
from icewright.testing import NOW, REF

OTHER = TableRef("lake", ("sales",), "other")
POND = TableRef("pond", ("sales",), "orders")
EXPIRE, ORPHANS = Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS
ME = Trigger("manual", "me", "host:1:2")
DAY = timedelta(days=1)
PATHS = ("file:///w/a.parquet", "file:///w/b.parquet", "file:///w/it's %_ ☃.avro")


def begin(store: SqlStore, ref: TableRef = REF, now: datetime = NOW, operation: Operation = EXPIRE) -> str:
    """A running job on the table."""
    store.tables.record_listing(ref.catalog, [Pointer(ref, "m1")], now)
    job_id = store.jobs.claim(ref, "u1", (operation,), ME, now)
    assert job_id is not None
    return job_id


def planned(
    store: SqlStore,
    paths: Sequence[str] = PATHS,
    *,
    ref: TableRef = REF,
    now: datetime = NOW,
    until: datetime | None = NOW + DAY,
) -> str:
    """A job that ended, whose files wait to be deleted until then."""
    job_id = begin(store, ref, now)
    store.ledger.plan(
        job_id, ref, [FileAction(path, 5, "data") for path in paths], LedgerState.PLANNED, now, until, EXPIRE
    )
    store.jobs.finish(job_id, JobState.SUCCEEDED, "", now)
    return job_id


def states(store: SqlStore, job_id: str) -> list[str]:
    """The states of the job's files in their order."""
    return [file["state"] for file in store.ledger.files(job_id)]


def test_files_wait_until_their_time(store: SqlStore) -> None:
    """They are listed as waiting from the start, and are due when the delay is over; those without a delay at once."""
    late, at_once = planned(store), planned(store, ref=OTHER, until=None)
    assert [u.job_id for u in store.ledger.unfinished(NOW)] == [at_once]
    assert [u.job_id for u in store.ledger.unfinished(NOW + DAY - timedelta(seconds=1))] == [at_once]
    assert {u.job_id for u in store.ledger.unfinished(NOW + DAY)} == {late, at_once}
    waiting = {w.job_id: w for w in store.ledger.pending()}
    assert (waiting[late].files, waiting[late].bytes, waiting[late].failed) == (3, 15, 0)
    assert (waiting[late].ref, waiting[late].operations, waiting[late].planned_at) == (REF, (EXPIRE,), NOW)
    assert [waiting[job].delete_after for job in (late, at_once)] == [NOW + DAY, None]
    assert [w.job_id for w in store.ledger.pending(OTHER)] == [at_once]


def test_a_failed_deletion_is_tried_again_later_each_time(store: SqlStore) -> None:
    """Longer after each failure, a day at most; the reason is told, and a file that is gone is not tried again."""
    job_id = planned(store, until=None)
    now, waits = NOW, []
    for _ in range(10):
        assert store.ledger.claim(job_id, PATHS[:1]) == {PATHS[0]}
        store.ledger.record(job_id, {PATHS[0]: LedgerState.FAILED}, now, {PATHS[0]: "denied"})
        (waiting,) = store.ledger.pending(REF)
        assert (waiting.files, waiting.failed, waiting.reason) == (3, 1, "denied")
        again = next(f["delete_after"] for f in store.ledger.files(job_id) if f["path"] == PATHS[0])
        waits.append(again - now)
        assert PATHS[0] not in {f.path for u in store.ledger.unfinished(again - timedelta(seconds=1)) for f in u.files}
        assert PATHS[0] in {f.path for u in store.ledger.unfinished(again) for f in u.files}
        now = again
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (timedelta(minutes=5), DAY)
    store.ledger.record(job_id, {PATHS[0]: LedgerState.DELETED}, now)
    store.ledger.record(job_id, {PATHS[0]: LedgerState.FAILED}, now, {PATHS[0]: "denied"})
    assert states(store, job_id) == [LedgerState.DELETED, LedgerState.PLANNED, LedgerState.PLANNED]


def test_an_undo_takes_the_files_from_whoever_would_delete_them(store: SqlStore) -> None:
    """Until it ends: then they are undone for good, or wait as before; begun again, it finds what it had taken."""
    job_id = planned(store)
    assert store.ledger.begin_undo(job_id) == {LedgerState.PLANNED: 3}
    assert store.ledger.unfinished_undos() == [job_id]
    assert store.ledger.claim(job_id, PATHS) == frozenset()
    store.ledger.record(job_id, dict.fromkeys(PATHS, LedgerState.DELETED), NOW)
    assert store.ledger.unfinished(NOW + DAY) == []
    assert store.ledger.pending() == []
    assert store.ledger.begin_undo(job_id) == {LedgerState.UNDOING: 3}
    store.ledger.end_undo(job_id, NOW, undone=False)
    assert states(store, job_id) == [LedgerState.PLANNED] * 3
    assert [u.job_id for u in store.ledger.unfinished(NOW + DAY)] == [job_id]
    assert store.ledger.unfinished(NOW) == []
    store.ledger.begin_undo(job_id)
    store.ledger.end_undo(job_id, NOW, undone=True)
    assert states(store, job_id) == [LedgerState.UNDONE] * 3
    assert store.ledger.unfinished_undos() == []
    assert store.ledger.begin_undo(job_id) == {LedgerState.UNDONE: 3}
    assert store.ledger.claim(job_id, PATHS) == frozenset()


@pytest.mark.parametrize("done", [LedgerState.DELETING, LedgerState.DELETED])
def test_an_undo_takes_nothing_when_a_deletion_has_begun(store: SqlStore, done: str) -> None:
    """A file that is gone, or may be gone, has no way back: every file stays as it is, and the caller is told."""
    job_id = planned(store)
    assert store.ledger.claim(job_id, PATHS[:1]) == {PATHS[0]}
    store.ledger.record(job_id, {PATHS[0]: done}, NOW)
    before = states(store, job_id)
    assert store.ledger.begin_undo(job_id) == {done: 1, LedgerState.PLANNED: 2}
    assert states(store, job_id) == before
    assert store.ledger.unfinished_undos() == []


def test_what_a_person_gives_up_is_not_tried_any_more(store: SqlStore) -> None:
    """Waiting files alone are given up, those of one job alone; an undo has nothing to take then."""
    job_id, other = planned(store), planned(store, ref=OTHER)
    store.ledger.record(job_id, {PATHS[0]: LedgerState.KEPT}, NOW)
    assert store.ledger.abandon(job_id, NOW) == 2
    assert store.ledger.abandon(job_id, NOW) == 0
    assert states(store, job_id) == [LedgerState.KEPT, LedgerState.GIVEN_UP, LedgerState.GIVEN_UP]
    assert [w.job_id for w in store.ledger.pending()] == [other]
    assert [u.job_id for u in store.ledger.unfinished(NOW + DAY)] == [other]
    assert store.ledger.claim(job_id, PATHS) == frozenset()
    assert store.ledger.begin_undo(job_id) == {LedgerState.KEPT: 1, LedgerState.GIVEN_UP: 2}
    assert store.ledger.unfinished_undos() == []


def test_what_a_commit_removes_is_remembered(store: SqlStore) -> None:
    """In order, with its document as it was; it is undone once, or forgotten when its commit came to nothing."""
    job_id, other = planned(store), planned(store, ref=OTHER)
    document: dict[str, Any] = {"snapshots": [{"snapshot-id": 2**62, "summary": {"operation": "☃"}}], "refs": {"a": {}}}
    first = Removal(job_id, "u1", "file:///w/m1", NOW, document)
    second, theirs = replace(first, metadata_location="file:///w/m2"), replace(first, job_id=other)
    for removal in (first, second, theirs):
        store.ledger.record_removal(removal)
    assert store.ledger.removals(job_id) == [first, second]
    store.ledger.close_removal(second, None)
    store.ledger.close_removal(first, NOW + DAY)
    assert store.ledger.removals(job_id) == [replace(first, undone_at=NOW + DAY)]
    assert store.ledger.removals(other) == [theirs]


def test_later_deletions_of_the_same_table(store: SqlStore) -> None:
    """Files that other jobs planned since then and took, or still mean to take; not other tables', nor what stays."""
    first = planned(store)
    later = planned(store, now=NOW + timedelta(hours=2))
    planned(store, now=NOW - timedelta(hours=2))
    planned(store, ref=OTHER, now=NOW + timedelta(hours=2))
    assert store.ledger.later_deletions(first, NOW + timedelta(hours=1)) == {
        later: dict.fromkeys(PATHS, LedgerState.PLANNED),
    }
    store.ledger.claim(later, PATHS[:2])
    store.ledger.record(later, {PATHS[0]: LedgerState.DELETED}, NOW)
    store.ledger.record(later, {PATHS[2]: LedgerState.KEPT}, NOW)
    found = store.ledger.later_deletions(first, NOW + timedelta(hours=1))
    assert found == {later: {PATHS[0]: LedgerState.DELETED, PATHS[1]: LedgerState.DELETING}}


def test_waiting_deletions_are_listed_page_by_page(store: SqlStore) -> None:
    """The oldest job first, by catalog, table or job, within sight; a cursor of another list is refused."""
    jobs = [planned(store, ref=ref, now=NOW + n * DAY) for n, ref in enumerate((REF, OTHER, POND, REF))]
    found, after = [], None
    while True:
        page = store.views.list_deletions(DeletionQuery(), None, after, 1)
        found += [waiting.job_id for waiting in page.items]
        if (after := page.after) is None:
            break
    assert found == jobs == [waiting.job_id for waiting in store.ledger.pending()]

    def listed(query: DeletionQuery, sight: Any = None) -> list[str]:
        return [waiting.job_id for waiting in store.views.list_deletions(query, sight, None, 10).items]

    assert listed(DeletionQuery(ref=REF)) == [jobs[0], jobs[3]]
    assert listed(DeletionQuery(catalog="pond")) == [jobs[2]]
    assert listed(DeletionQuery(job_id=jobs[1])) == [jobs[1]]
    assert listed(DeletionQuery(), (("pond",),)) == [jobs[2]]
    with pytest.raises(UsageError, match="cursor"):
        store.views.list_deletions(DeletionQuery(), None, ("x",), 1)


ROUNDS = 5
MANY = tuple(f"file:///w/{n:04d}.parquet" for n in range(800))


@pytest.mark.cases(80)
def test_of_an_undo_and_a_deletion_in_two_processes_one_gets_the_files(store: SqlStore) -> None:
    """Never both, and never each a part: round after round, over many files."""
    jobs = [planned(store, MANY, ref=TableRef("lake", ("s",), f"t{n}"), until=None) for n in range(ROUNDS)]
    context = multiprocessing.get_context("spawn")
    address = store.engine.url.render_as_string(hide_password=False)
    with ProcessPoolExecutor(2, context, _meet, (context.Barrier(2, timeout=60),)) as pool:
        deleting, undoing = pool.submit(_deletes, address, jobs), pool.submit(_undoes, address, jobs)
        started, seen = deleting.result(), undoing.result()
    for job_id, claimed, found in zip(jobs, started, seen, strict=True):
        undone = not found.keys() & {LedgerState.DELETING, LedgerState.DELETED}
        assert claimed == (0 if undone else len(MANY)), (claimed, found)
        assert set(states(store, job_id)) == {LedgerState.UNDOING if undone else LedgerState.DELETING}


_together: Barrier


def _meet(barrier: Barrier) -> None:
    global _together  # noqa: PLW0603 - a process of its own
    _together = barrier


def _deletes(address: str, jobs: Sequence[str]) -> list[int]:
    """How many files of each job could be claimed for deletion."""
    store, claimed = SqlStore(open_database(address)), []
    for job_id in jobs:
        _together.wait()
        claimed.append(len(store.ledger.claim(job_id, MANY[::-1])))
    return claimed


def _undoes(address: str, jobs: Sequence[str]) -> list[Mapping[str, int]]:
    """What the undo of each job found."""
    store, found = SqlStore(open_database(address)), []
    for job_id in jobs:
        _together.wait()
        found.append(store.ledger.begin_undo(job_id))
    return found
