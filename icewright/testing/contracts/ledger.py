"""The contract of every store for planned deletions, their undo, and the removals of commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.core.errors import UsageError
from icewright.core.runs import FileAction, JobState
from icewright.core.table import TableRef
from icewright.ports import Intent, LedgerState, Removal, Store
from icewright.ports.views import DeletionQuery
from icewright.testing import NOW, REF
from icewright.testing.contracts.cases import COMPACT, EXPIRE, OTHER, StoreSuite, begin_expiry, record_tables, start_job

DAY = timedelta(days=1)
WRITTEN = NOW - 9 * DAY
PATHS = ("file:///w/a.parquet", "file:///w/b.parquet", "file:///w/it's %_ ☃.avro")


POND = TableRef("pond", ("sales",), "orders")


def plan_files(
    store: Store,
    paths: Sequence[str] = PATHS,
    *,
    ref: TableRef = REF,
    now: datetime = NOW,
    until: datetime | None = NOW + DAY,
) -> str:
    """Return a job that ended, with files that wait to be deleted until then."""
    job_id = begin_expiry(store, ref, now)
    files = [FileAction(path, 5, "data", WRITTEN) for path in reversed(paths)]
    store.ledger.plan(job_id, ref, files, LedgerState.PLANNED, now, until, EXPIRE)
    store.jobs.finish(job_id, JobState.SUCCEEDED, "", now)
    return job_id


def file_states(store: Store, job_id: str) -> list[str]:
    """Return the states of a job's files, by path."""
    return [file["state"] for file in store.ledger.files(job_id)]


class DeletionLedgerTests(StoreSuite):
    """Files that jobs plan to delete."""

    def test_planned_files_are_unfinished_until_they_have_a_final_state(self, store: Store) -> None:
        """Planned files are unfinished once their job ended, until deleted or kept; a final state does not change."""
        record_tables(store)
        job_id = start_job(store)
        files = [FileAction(f"s3://b/{n}%_'\"☃", n or None, "data") for n in range(1200)]
        store.ledger.plan(job_id, REF, files, LedgerState.PLANNED, NOW)
        assert store.ledger.unfinished(NOW) == []
        store.jobs.finish(job_id, JobState.INTERRUPTED, "", NOW)
        (unfinished,) = store.ledger.unfinished(NOW)
        assert (unfinished.job_id, unfinished.ref, unfinished.table_uuid, unfinished.operations) == (
            job_id,
            REF,
            "u1",
            (COMPACT, EXPIRE),
        )
        assert set(unfinished.files) == set(files)
        store.ledger.record(job_id, {f.path: LedgerState.DELETED for f in files[1:]}, NOW)
        assert [u.files for u in store.ledger.unfinished(NOW)] == [(files[0],)]
        store.ledger.record(job_id, {f.path: LedgerState.KEPT for f in files}, NOW)
        assert store.ledger.unfinished(NOW) == []
        states = [f["state"] for f in store.ledger.files(job_id)]
        assert (states.count("deleted"), states.count("kept")) == (1199, 1)

    def test_files_that_a_job_plans_again_are_planned_once(self, store: Store) -> None:
        """A further attempt at a commit plans what the first one did; what was settled since is planned anew."""
        record_tables(store, REF, OTHER)
        job_id = start_job(store)
        files = [FileAction(path, 5, "data") for path in PATHS]
        for state in (LedgerState.FOUND, LedgerState.PLANNED):
            store.ledger.plan(job_id, REF, files[:2], state, NOW)
            store.ledger.plan(job_id, REF, files, state, NOW)
        assert Counter(file_states(store, job_id)) == {LedgerState.FOUND: 3, LedgerState.PLANNED: 3}
        store.ledger.record(job_id, {PATHS[0]: LedgerState.KEPT}, NOW)
        store.ledger.plan(job_id, REF, files, LedgerState.PLANNED, NOW)
        assert Counter(file_states(store, job_id))[LedgerState.PLANNED] == 3
        store.ledger.plan(job_id, OTHER, files[:1], LedgerState.PLANNED, NOW)
        assert Counter(file_states(store, job_id))[LedgerState.PLANNED] == 4, "the same path for another table"

    def test_findings_wait_until_deleted_or_forgotten(self, store: Store) -> None:
        """An orphan that a scan found keeps its first time until any job deletes it, or it is forgotten."""
        record_tables(store, REF, OTHER)
        first, theirs = start_job(store), start_job(store, OTHER)
        orphans = [FileAction(path, 1, "data") for path in "abc"]
        store.ledger.plan(first, REF, orphans, LedgerState.FOUND, NOW)
        store.ledger.plan(theirs, OTHER, orphans, LedgerState.FOUND, NOW)
        store.jobs.finish(first, JobState.SUCCEEDED, "", NOW)
        assert store.ledger.unfinished(NOW) == []
        second = start_job(store, now=NOW + timedelta(days=1))
        store.ledger.plan(second, REF, orphans[:1], LedgerState.PLANNED, NOW)
        store.ledger.plan(second, REF, orphans[1:2], LedgerState.PLANNED, NOW)
        store.ledger.record(second, {"a": LedgerState.DELETED, "b": LedgerState.KEPT}, NOW)
        assert store.ledger.found_orphans(REF, "u1") == {"b": NOW, "c": NOW}
        store.ledger.forget_orphans(REF, ["b"])
        assert store.ledger.found_orphans(REF, "u1") == {"c": NOW}
        store.ledger.plan(second, REF, orphans[2:], LedgerState.PLANNED, NOW)
        store.ledger.forget_orphans(REF, ["c"])
        states = ["deleted", "kept", "planned"]
        assert (store.ledger.found_orphans(REF, "u1"), file_states(store, second)) == ({}, states)
        assert store.ledger.found_orphans(OTHER, "u1").keys() == {"a", "b", "c"}
        assert store.ledger.found_orphans(OTHER, "u2") == {}
        store.ledger.forget_orphans(POND, ["a"])
        assert store.ledger.found_orphans(POND, "u1") == {}

    def test_files_wait_until_their_delay_is_over(self, store: Store) -> None:
        """Files are pending from the start, and unfinished when their delay is over."""
        late, at_once = plan_files(store), plan_files(store, ref=OTHER, until=None)
        assert [u.job_id for u in store.ledger.unfinished(NOW)] == [at_once]
        assert [u.job_id for u in store.ledger.unfinished(NOW + DAY - timedelta(seconds=1))] == [at_once]
        unfinished = store.ledger.unfinished(NOW + DAY)
        assert {u.job_id: u.due_at for u in unfinished} == {late: NOW + DAY, at_once: NOW}
        assert {f.modified for u in unfinished for f in u.files} == {WRITTEN}
        waiting = {w.job_id: w for w in store.ledger.pending()}
        assert (waiting[late].files, waiting[late].bytes, waiting[late].failed) == (3, 15, 0)
        assert (waiting[late].ref, waiting[late].operations, waiting[late].planned_at) == (REF, (EXPIRE,), NOW)
        assert [waiting[job].delete_after for job in (late, at_once)] == [NOW + DAY, None]
        assert [w.job_id for w in store.ledger.pending(OTHER)] == [at_once]

    def test_a_failed_deletion_waits_longer_each_time(self, store: Store) -> None:
        """Each failure doubles the wait, up to a day; the reason is kept, and a deleted file is not tried again."""
        job_id = plan_files(store, until=None)
        now, delays = NOW, []
        for _ in range(10):
            assert store.ledger.claim(job_id, PATHS[:1]) == {PATHS[0]}
            store.ledger.record(job_id, {PATHS[0]: LedgerState.FAILED}, now, {PATHS[0]: "denied"})
            (waiting,) = store.ledger.pending(REF)
            assert (waiting.files, waiting.failed, waiting.reason, waiting.delete_after) == (3, 1, "denied", None)
            again = next(f["delete_after"] for f in store.ledger.files(job_id) if f["path"] == PATHS[0])
            delays.append(again - now)
            assert PATHS[0] not in {
                f.path for u in store.ledger.unfinished(again - timedelta(seconds=1)) for f in u.files
            }
            assert PATHS[0] in {f.path for u in store.ledger.unfinished(again) for f in u.files}
            now = again
        assert delays == [min(timedelta(minutes=5 * 2**n), DAY) for n in range(10)]
        store.ledger.record(job_id, {PATHS[0]: LedgerState.DELETED}, now)
        store.ledger.record(job_id, {PATHS[0]: LedgerState.FAILED}, now, {PATHS[0]: "denied"})
        assert file_states(store, job_id) == [LedgerState.DELETED, LedgerState.PLANNED, LedgerState.PLANNED]

    def test_files_that_fail_together_wait_each_by_its_own_failures(self, store: Store) -> None:
        """A file that has failed before waits longer than others; a file of another job does not wait."""
        job_id, other = plan_files(store, until=None), plan_files(store, ref=OTHER, until=None)
        store.ledger.record(job_id, {PATHS[1]: LedgerState.FAILED}, NOW)
        store.ledger.record(job_id, dict.fromkeys(PATHS[:2], LedgerState.FAILED), NOW)
        minutes = [
            f["delete_after"] and (f["delete_after"] - NOW) / timedelta(minutes=1) for f in store.ledger.files(job_id)
        ]
        assert minutes == [5, 10, None]
        assert file_states(store, other) == [LedgerState.PLANNED] * 3
        store.ledger.plan(
            other, OTHER, [FileAction(f"{n}", 1, "data") for n in range(1200)], LedgerState.PLANNED, NOW, None, EXPIRE
        )
        store.ledger.record(other, dict.fromkeys(map(str, range(1200)), LedgerState.FAILED), NOW)
        assert file_states(store, other).count(LedgerState.FAILED) == 1200

    def test_the_commit_that_is_about_to_be_made(self, store: Store) -> None:
        """The commit is unfinished from the end of its job until its result is known, even without any file."""
        job_id, intent = begin_expiry(store), Intent("file:///w/m1", frozenset([2**62, 1]), frozenset(["it's", "☃"]))
        plan_files(store, ref=OTHER)
        store.ledger.set_commit_intent(job_id, intent)
        assert (store.ledger.commit_intent(job_id), store.ledger.unfinished(NOW)) == (intent, [])
        store.jobs.finish(job_id, JobState.INTERRUPTED, "", NOW)
        (unfinished,) = store.ledger.unfinished(NOW)
        assert (unfinished.job_id, unfinished.files, unfinished.intent) == (job_id, (), intent)
        store.ledger.set_commit_intent(job_id, None)
        assert (store.ledger.commit_intent(job_id), store.ledger.unfinished(NOW)) == (None, [])

    def test_paths_that_wait_under_any_name_of_a_table(self, store: Store) -> None:
        """What is planned, tried, failed or undone waits; by the uuid also under other names in the catalog."""
        job_id, more = plan_files(store), ["file:///w/d", "file:///w/e"]
        store.ledger.plan(job_id, REF, [FileAction(path, 5, "data") for path in more], LedgerState.FOUND, NOW)
        store.ledger.claim(job_id, PATHS[:1])
        store.ledger.record(job_id, {PATHS[1]: LedgerState.FAILED, PATHS[2]: LedgerState.KEPT}, NOW)
        undone, pond = plan_files(store, ["file:///w/o"], ref=OTHER), plan_files(store, ["file:///w/p"], ref=POND)
        store.ledger.begin_undo(undone)
        assert sorted(store.ledger.waiting_paths(REF)) == list(PATHS[:2])
        assert sorted(store.ledger.waiting_paths(REF, "u2")) == list(PATHS[:2])
        assert sorted(store.ledger.waiting_paths(REF, "u1")) == [*PATHS[:2], "file:///w/o"]
        assert store.ledger.waiting_paths(POND, "u1") == ["file:///w/p"]
        store.ledger.abandon(pond, NOW)
        assert store.ledger.waiting_paths(POND, "u1") == []

    def test_files_of_tables_without_a_uuid_wait_under_their_own_name(self, store: Store) -> None:
        """Two tables without a uuid are never taken for one table."""
        for ref, path in ((REF, "a"), (OTHER, "b")):
            record_tables(store, ref)
            store.ledger.plan(
                start_job(store, ref, uuid=""), ref, [FileAction(path, 1, "data")], LedgerState.PLANNED, NOW
            )
        assert store.ledger.waiting_paths(REF, "") == ["a"]

    def test_waiting_files_are_of_the_operation_that_planned_them(self, store: Store) -> None:
        """Files are attributed to all operations of the job where their own is not recorded."""
        record_tables(store)
        job_id, file = start_job(store), FileAction("a", 1, "data")
        store.ledger.plan(job_id, REF, [file], LedgerState.PLANNED, NOW, None, EXPIRE)
        store.ledger.plan(job_id, REF, [replace(file, path="b")], LedgerState.PLANNED, NOW)
        assert [w.operations for w in store.ledger.pending()] == [(COMPACT, EXPIRE), (EXPIRE,)]
        store.jobs.finish(job_id, JobState.INTERRUPTED, "", NOW)
        unfinished = {u.operations: [f.path for f in u.files] for u in store.ledger.unfinished(NOW)}
        assert unfinished == {(EXPIRE,): ["a"], (COMPACT, EXPIRE): ["b"]}

    def test_an_undo_ends_for_its_own_files_alone(self, store: Store) -> None:
        """What restored snapshots need stays for good; what was settled before, or is of another job, is as it was."""
        job_id, other = plan_files(store), plan_files(store, ref=OTHER)
        plan_more = [FileAction("file:///w/z", 5, "data")]
        store.ledger.plan(job_id, REF, plan_more, LedgerState.PLANNED, NOW)
        store.ledger.record(job_id, {"file:///w/z": LedgerState.KEPT}, NOW, {"file:///w/z": "a reader"})
        for job in (job_id, other):
            store.ledger.begin_undo(job)
        store.ledger.end_undo(job_id, NOW, undone=True, in_use=[PATHS[0], "file:///w/z"])
        states = [(file["state"], file["reason"]) for file in store.ledger.files(job_id)]
        restored = "snapshots that an undo restored need it"
        undone = (LedgerState.UNDONE, None)
        assert states == [(LedgerState.KEPT, restored), undone, undone, (LedgerState.KEPT, "a reader")]
        assert file_states(store, other) == [LedgerState.UNDOING] * 3

    def test_an_undo_takes_the_files_from_deletion(self, store: Store) -> None:
        """Files of an undo cannot be claimed; they end as undone, or are planned as before."""
        job_id = plan_files(store)
        assert store.ledger.begin_undo(job_id) == {LedgerState.PLANNED: 3}
        assert store.ledger.unfinished_undos() == [job_id]
        assert store.ledger.claim(job_id, PATHS) == frozenset()
        store.ledger.record(job_id, dict.fromkeys(PATHS, LedgerState.DELETED), NOW)
        assert store.ledger.unfinished(NOW + DAY) == []
        assert store.ledger.pending() == []
        assert store.ledger.begin_undo(job_id) == {LedgerState.UNDOING: 3}
        store.ledger.end_undo(job_id, NOW, undone=False)
        assert file_states(store, job_id) == [LedgerState.PLANNED] * 3
        assert [u.job_id for u in store.ledger.unfinished(NOW + DAY)] == [job_id]
        assert store.ledger.unfinished(NOW) == []
        store.ledger.begin_undo(job_id)
        store.ledger.end_undo(job_id, NOW, undone=True)
        assert file_states(store, job_id) == [LedgerState.UNDONE] * 3
        assert store.ledger.unfinished_undos() == []
        assert store.ledger.begin_undo(job_id) == {LedgerState.UNDONE: 3}
        assert store.ledger.claim(job_id, PATHS) == frozenset()

    @pytest.mark.parametrize("done", [LedgerState.DELETING, LedgerState.DELETED])
    def test_an_undo_takes_nothing_when_a_deletion_has_begun(self, store: Store, done: str) -> None:
        """Where a file is deleted, or may be, an undo changes no state."""
        job_id = plan_files(store)
        assert store.ledger.claim(job_id, PATHS[:1]) == {PATHS[0]}
        store.ledger.record(job_id, {PATHS[0]: done}, NOW)
        before = file_states(store, job_id)
        assert store.ledger.begin_undo(job_id) == {done: 1, LedgerState.PLANNED: 2}
        assert file_states(store, job_id) == before
        assert store.ledger.unfinished_undos() == []

    def test_files_of_unknown_size(self, store: Store) -> None:
        """Files of unknown size wait as others do; planning no files plans nothing."""
        job_id = begin_expiry(store)
        store.ledger.plan(job_id, REF, [], LedgerState.PLANNED, NOW)
        assert store.ledger.files(job_id) == []
        store.ledger.plan(job_id, REF, [FileAction("a", None, "data")], LedgerState.PLANNED, NOW)
        (waiting,) = store.ledger.pending()
        assert (waiting.ref, waiting.files, waiting.bytes, waiting.reason) == (REF, 1, 0, "")

    def test_abandoned_deletions_are_never_tried_again(self, store: Store) -> None:
        """Only the waiting files of that job are given up, and an undo cannot take them any more."""
        job_id, other = plan_files(store), plan_files(store, ref=OTHER)
        store.ledger.record(job_id, {PATHS[0]: LedgerState.KEPT}, NOW)
        assert store.ledger.abandon(job_id, NOW) == 2
        assert store.ledger.abandon(job_id, NOW) == 0
        assert file_states(store, job_id) == [LedgerState.KEPT, LedgerState.GIVEN_UP, LedgerState.GIVEN_UP]
        assert [w.job_id for w in store.ledger.pending()] == [other]
        assert [u.job_id for u in store.ledger.unfinished(NOW + DAY)] == [other]
        assert store.ledger.claim(job_id, PATHS) == frozenset()
        assert store.ledger.begin_undo(job_id) == {LedgerState.KEPT: 1, LedgerState.GIVEN_UP: 2}
        assert store.ledger.unfinished_undos() == []
        store.ledger.record(job_id, {PATHS[1]: LedgerState.DELETED, PATHS[2]: LedgerState.KEPT}, NOW)  # under way then
        assert file_states(store, job_id) == [LedgerState.KEPT, LedgerState.DELETED, LedgerState.GIVEN_UP]

    def test_removals_are_listed_until_undone_or_dropped(self, store: Store) -> None:
        """Removals keep their order and document, are marked as undone, or dropped when their commit failed."""
        job_id, other = plan_files(store), plan_files(store, ref=OTHER)
        document: dict[str, Any] = {
            "snapshots": [{"snapshot-id": 2**62, "summary": {"operation": "☃"}}],
            "refs": {"a": {}},
        }
        first = Removal(job_id, "u1", "file:///w/m1", NOW, document)
        second, theirs = replace(first, metadata_location="file:///w/m2"), replace(first, job_id=other)
        for removal in (first, second, theirs, replace(first, at=NOW + DAY)):  # the last one is a further attempt
            store.ledger.record_removal(removal)
        assert store.ledger.removals(job_id) == [first, second]
        store.ledger.close_removal(first, NOW + DAY)
        undone = replace(first, undone_at=NOW + DAY)
        assert store.ledger.removals(job_id) == [undone, second]
        store.ledger.close_removal(second, None)
        assert store.ledger.removals(job_id) == [undone]
        assert store.ledger.removals(other) == [theirs]

    def test_later_deletions_of_the_same_table(self, store: Store) -> None:
        """Only files of the same table that later jobs deleted, or still plan to delete, are returned.

        It may have another name by now.
        """
        first = plan_files(store)
        later = plan_files(store, now=NOW + timedelta(hours=1))
        plan_files(store, now=NOW - timedelta(hours=2))
        renamed = plan_files(store, ref=OTHER, now=NOW + timedelta(hours=2))
        plan_files(store, ref=POND, now=NOW + timedelta(hours=2))
        of_one_job = dict.fromkeys(PATHS, LedgerState.PLANNED)
        later_states = store.ledger.later_deletions(first, NOW + timedelta(hours=1))
        assert later_states == {later: of_one_job, renamed: of_one_job}
        store.ledger.claim(later, PATHS[:2])
        store.ledger.record(later, {PATHS[0]: LedgerState.DELETED}, NOW)
        store.ledger.record(later, {PATHS[2]: LedgerState.KEPT}, NOW)
        later_states = store.ledger.later_deletions(first, NOW + timedelta(hours=1))
        assert later_states[later] == {PATHS[0]: LedgerState.DELETED, PATHS[1]: LedgerState.DELETING}

    def test_waiting_deletions_are_listed_page_by_page(self, store: Store) -> None:
        """Pages begin with the oldest job, by catalog, table or job, as far as visible; foreign cursors are refused."""
        jobs = [plan_files(store, ref=ref, now=NOW + n * DAY) for n, ref in enumerate((REF, OTHER, POND, REF))]
        listed_jobs, after = [], None
        while True:
            page = store.views.list_deletions(DeletionQuery(), None, after, 1)
            listed_jobs += [waiting.job_id for waiting in page.items]
            if (after := page.after) is None:
                break
        assert listed_jobs == jobs == [waiting.job_id for waiting in store.ledger.pending()]
        assert jobs == [unfinished.job_id for unfinished in store.ledger.unfinished(NOW + 9 * DAY)]

        def listed(query: DeletionQuery, visibility: Any = None) -> list[str]:
            return [waiting.job_id for waiting in store.views.list_deletions(query, visibility, None, 10).items]

        assert listed(DeletionQuery(ref=REF)) == [jobs[0], jobs[3]]
        assert listed(DeletionQuery(catalog="pond")) == [jobs[2]]
        assert listed(DeletionQuery(job_id=jobs[1])) == [jobs[1]]
        assert listed(DeletionQuery(), (("pond",),)) == [jobs[2]]
        with pytest.raises(UsageError, match="cursor"):
            store.views.list_deletions(DeletionQuery(), None, ("x",), 1)
