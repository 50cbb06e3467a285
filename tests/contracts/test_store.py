"""What every state store does: tables, claims, history, the deletion ledger. See `icewright.ports.Store`."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from icewright.adapters.store.jobs import LEASE
from icewright.adapters.store.schema import EVENTS, POLICIES
from icewright.adapters.store.sql import SqlStore
from icewright.core.effective import Knobs
from icewright.core.layering import PolicyRule
from icewright.core.partitions import partition_text
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState, OperationState, Outcome, PartitionChange
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation, evaluate
from icewright.ports import LeaseStatus, LedgerState, Pointer, RunRow, SnapshotPin, TableRow, Trigger
from icewright.testing import NOW, REF, facts, metadata

OTHER = TableRef("lake", ("sales",), "other")
ODD = [
    TableRef("lake", ("a.b", "c"), "d.e"),
    TableRef("lake", ("a",), "b.c.d.e"),
    TableRef("lake", ("it's",), 'dou"ble'),
    TableRef("lake", ("grün", "表"), "e\u0301 ☃"),
    TableRef("lake", ("100%",), "a_b%c :x"),
    TableRef("lake", ("100%",), "aXbYc :x"),
    TableRef("lake", ("[1]", '","'), "back`tick\\ {}"),
]
EXPIRE, COMPACT = Operation.EXPIRE_SNAPSHOTS, Operation.COMPACT
ME = Trigger("cycle", "me", "host:1:2")


def judged(ref: TableRef = REF, uuid: str = "u1", at: str = "m1", now: datetime = NOW) -> Evaluation:
    """An evaluation of a small table, for which an orphan scan is due."""
    made = metadata(ref=ref, table_uuid=uuid, metadata_location=at, location="file:///w/t")
    return evaluate(facts(of=made), Knobs(), {}, now)


def see(store: SqlStore, *names: TableRef, at: str = "m1", now: datetime = NOW) -> int:
    """The catalog lists these tables and no other."""
    return store.tables.record_listing("lake", [Pointer(name, at) for name in names or (REF,)], now)


def row(store: SqlStore, ref: TableRef = REF) -> TableRow:
    """What the store knows of the table."""
    return next(r for r in store.tables.list() if r.ref == ref)


def start(store: SqlStore, ref: TableRef = REF, now: datetime = NOW, uuid: str = "u1") -> str:
    """Claim the table."""
    job_id = store.jobs.claim(ref, uuid, (COMPACT, EXPIRE), ME, now)
    assert job_id is not None
    return job_id


def ran(job_id: str, operation: Operation = EXPIRE, now: datetime = NOW, **more: float) -> RunRow:
    """One operation's record."""
    outcome = Outcome(operation, OperationState.COMMITTED, "", "done", more, statements=("CALL 1",), notes=("n",))
    return RunRow(job_id, outcome, now, now, "m2", "p1", {"files": 2}, {"files": 1})


def test_detection_tells_new_moved_and_dropped(store: SqlStore) -> None:
    """New and moved tables are counted, the same again is not, a dropped one keeps its row, and may come back."""
    assert [see(store, REF, OTHER), see(store, REF, OTHER), see(store, REF, OTHER, at="m2")] == [2, 0, 2]
    assert see(store, OTHER, at="m2") == 0
    assert row(store).dropped
    assert not row(store, OTHER).dropped
    assert see(store, REF, OTHER, at="m2") == 1
    assert not row(store).dropped
    store.tables.record_listing("pond", [], NOW)
    assert not any(r.dropped for r in store.tables.list())


def test_a_dropped_table_is_not_due_and_a_returned_one_is_looked_at(store: SqlStore) -> None:
    """What was due of a dropped table waits no more; when the same table returns, it counts as changed."""
    see(store)
    store.tables.record_evaluation(judged(), NOW)
    assert row(store).due_since == NOW
    store.tables.record_listing("lake", [], NOW)
    assert row(store).due_since is None
    see(store)
    assert row(store).evaluated_location != row(store).metadata_location


def test_an_evaluation_is_kept(store: SqlStore) -> None:
    """Health, times and verdicts of the last evaluation; `due_since` stays that of the first that found it due."""
    see(store)
    store.tables.record_evaluation(judged(), NOW)
    later = NOW + timedelta(hours=1)
    store.tables.record_evaluation(judged(now=later, at="m2"), later)
    known, said = row(store), store.tables.evaluation(REF)
    assert (known.table_uuid, known.location, known.metadata_location) == ("u1", "file:///w/t", "m2")
    assert (known.evaluated_location, known.evaluated_at, known.due_since) == ("m2", later, NOW)
    assert said is not None
    assert said["health"] == known.health == 100
    assert [v["operation"] for v in said["verdicts"]] == list(Operation)


def test_of_an_unreadable_table_nothing_is_done_and_its_health_is_unknown(store: SqlStore) -> None:
    """The reason is kept until the table can be read again; since when something is due stays for longer."""
    see(store)
    store.tables.record_evaluation(judged(), NOW)
    store.tables.record_unreadable(REF, "MetadataUnreadable: m1 is missing", NOW)
    known = row(store)
    assert (known.error, known.health, known.due_since) == ("MetadataUnreadable: m1 is missing", None, NOW)
    assert store.planning.candidates(["lake"]) == []
    later = NOW + timedelta(hours=1)
    store.tables.record_evaluation(judged(now=later), later)
    assert (row(store).error, row(store).due_since) == (None, NOW)
    assert [found.due_since for found in store.planning.candidates(["lake"])] == [NOW]


def test_a_table_that_moved_while_it_could_not_be_read_is_read_again_soon(store: SqlStore) -> None:
    """The listing came after the reading had begun; else it is tried again in an hour."""
    see(store, REF, OTHER)
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    claimed = store.tables.claim_evaluations(["lake"], "me", NOW, NOW + hour, 10)
    assert {known.ref for known in claimed} == {REF, OTHER}
    store.tables.schedule_evaluation([REF], NOW + minute)
    for ref in (REF, OTHER):
        store.tables.record_unreadable(ref, "throttled", NOW)
    assert (row(store).evaluate_at, row(store, OTHER).evaluate_at) == (NOW + minute, NOW + hour)


def test_a_table_that_is_not_ours_is_due_for_nothing(store: SqlStore) -> None:
    """Nor is anything wrong with it; it may come back."""
    see(store, REF, OTHER)
    store.tables.record_evaluation(judged(), NOW)
    store.tables.record_unreadable(REF, "broken", NOW)
    store.tables.record_evaluation(judged(OTHER), NOW)
    store.tables.clear_due_work([REF, TableRef("lake", ("no",), "such")], NOW + timedelta(hours=1))
    known = row(store)
    assert (known.error, known.due_since, known.evaluate_at) == (None, None, NOW + timedelta(hours=1))
    assert [found.ref for found in store.planning.candidates(["lake"])] == [OTHER]


def test_an_older_evaluation_overwrites_no_newer_one(store: SqlStore) -> None:
    """Though the newer one comes to its end while the older has looked at the row, and not written it yet."""
    see(store)
    later, begun = NOW + timedelta(minutes=1), list[Future[None]]()

    with ThreadPoolExecutor(1) as thread:

        @sa.event.listens_for(store.engine, "before_cursor_execute")
        def _meanwhile(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
            if statement.startswith("UPDATE tables") and not begun:
                begun.append(thread.submit(store.tables.record_evaluation, judged(at="m2", now=later), later))
                wait(begun, 1)  # it waits in turn, where the row is locked

        store.tables.record_evaluation(judged(), NOW)
    begun[0].result()
    assert (row(store).evaluated_location, row(store).evaluated_at) == ("m2", later)


def test_a_run_that_is_told_twice_is_written_once(store: SqlStore) -> None:
    """The answer to the first may have been lost; another run of the operation in the job is another."""
    see(store)
    job_id = start(store)
    for run in (ran(job_id), ran(job_id), ran(job_id, COMPACT), ran(job_id, now=NOW + timedelta(minutes=1))):
        store.runs.record(run, REF)
    assert [(run["operation"], run["finished"]) for run in store.runs.list(job_id)] == [
        (EXPIRE, NOW),
        (COMPACT, NOW),
        (EXPIRE, NOW + timedelta(minutes=1)),
    ]


def test_work_that_teaches_is_of_many_tables(store: SqlStore) -> None:
    """The newest run of each, though one table has more runs than are asked for."""
    names = [TableRef("lake", ("sales",), f"t{number}") for number in range(4)]
    see(store, *names)
    for number, ref in enumerate((*names, *[names[0]] * 5)):
        now = NOW + timedelta(minutes=number)
        job_id = start(store, ref, now=now)
        store.runs.record(ran(job_id, COMPACT, now, n=number), ref)
        store.jobs.finish(job_id, JobState.SUCCEEDED, "", now)
    assert store.runs.work_done(NOW, 3) == [(COMPACT, {"n": 8}), (COMPACT, {"n": 3}), (COMPACT, {"n": 2})]


def test_a_recreated_table_begins_anew(store: SqlStore) -> None:
    """Another uuid under the name voids history, findings and waiting time of the earlier table."""
    see(store)
    store.tables.record_evaluation(judged(), NOW)
    job_id = start(store)
    store.runs.record(ran(job_id), REF)
    store.ledger.plan(job_id, REF, [FileAction("f", 1, "data")], LedgerState.FOUND, NOW)
    store.jobs.finish(job_id, JobState.SUCCEEDED, "", NOW)
    assert store.runs.history(REF, "u1").keys() == {EXPIRE}
    assert store.runs.history(REF, "u2") == {}
    later = NOW + timedelta(days=1)
    store.tables.record_evaluation(judged(uuid="u2", now=later), later)
    assert store.ledger.found_orphans(REF, "u1") == {}
    assert row(store).due_since == later


@pytest.mark.cases(80)
@pytest.mark.parametrize("workers", [2, 16])
def test_of_those_who_claim_at_once_one_wins(store: SqlStore, workers: int) -> None:
    """Claims are compare-and-set, round after round."""
    see(store)
    barrier = Barrier(workers)

    def claim(number: int) -> str | None:
        barrier.wait()
        return store.jobs.claim(REF, "u1", (EXPIRE,), Trigger("cycle", "me", f"host:{number}:0"), NOW)

    with ThreadPoolExecutor(workers) as pool:
        for _ in range(3):
            won = [job_id for job_id in pool.map(claim, range(workers)) if job_id is not None]
            assert len(won) == 1
            assert row(store).held_by == won[0]
            store.jobs.finish(won[0], JobState.SUCCEEDED, "", NOW)


def test_a_job_that_ended_stays_ended(store: SqlStore) -> None:
    """`finish` frees the table once; whoever comes later changes neither the state nor the next job's hold."""
    see(store)
    first = start(store)
    store.jobs.finish(first, JobState.SUCCEEDED, "done", NOW)
    second = start(store, now=NOW + timedelta(seconds=1))
    store.jobs.finish(first, JobState.FAILED, "late", NOW)
    assert store.jobs.heartbeat(first, NOW) is LeaseStatus.LOST
    assert not store.jobs.request_cancel(first, NOW)
    ended = store.jobs.get(first)
    assert ended is not None
    assert (ended.state, ended.summary, row(store).held_by) == (JobState.SUCCEEDED, "done", second)
    assert [job.job_id for job in store.jobs.list(REF)] == [second, first]
    assert [job.job_id for job in store.jobs.list(limit=1)] == [second]


def test_interrupted_jobs(store: SqlStore) -> None:
    """A lease that ran out, or a dead holder, ends a job and frees its table; a heartbeat keeps it."""
    names = [TableRef("lake", ("sales",), name) for name in ("old", "beating", "dead")]
    see(store, *names)
    old, beating, dead = (start(store, name) for name in names)
    late = NOW + LEASE + timedelta(seconds=1)
    assert store.jobs.end_interrupted(NOW + LEASE, lambda _: False) == []
    assert store.jobs.heartbeat(beating, late) is LeaseStatus.HELD
    assert store.jobs.heartbeat(dead, late) is LeaseStatus.HELD
    assert [job.job_id for job in store.jobs.end_interrupted(late, lambda _: False)] == [old]
    assert store.jobs.heartbeat(old, late) is LeaseStatus.LOST
    store.jobs.finish(beating, JobState.SUCCEEDED, "", late)
    assert [job.job_id for job in store.jobs.end_interrupted(late, lambda holder: holder == ME.holder)] == [dead]
    found = store.jobs.get(dead)
    assert found is not None
    assert found.state is JobState.INTERRUPTED
    assert all(r.held_by is None for r in store.tables.list())


def test_cancel_and_pause(store: SqlStore) -> None:
    """A request to stop is seen by the job alone; a table is paused with its reason, and resumed."""
    see(store)
    job_id = start(store)
    assert store.jobs.heartbeat(job_id, NOW) is LeaseStatus.HELD
    assert store.jobs.request_cancel(job_id, NOW)
    assert store.jobs.heartbeat(job_id, NOW) is LeaseStatus.CANCELLED
    assert not store.jobs.request_cancel("nobody", NOW)
    assert store.tables.pause(REF, "by hand")
    assert row(store).paused == "by hand"
    assert store.tables.pause(REF, None)
    assert row(store).paused is None
    assert not store.tables.pause(TableRef("lake", ("x",), "y"), "by hand")


def test_failures_in_a_row(store: SqlStore) -> None:
    """Failed jobs since the last that did not fail; cancelled ones do not count, and other tables' neither."""
    see(store, REF, OTHER)
    counts = []
    states = ["failed", "failed", "cancelled", "failed", "succeeded", "failed", "partial"]
    for number, state in enumerate(states):
        for ref in (REF, OTHER):
            now = NOW + timedelta(minutes=number)
            store.jobs.finish(start(store, ref, now), JobState(state if ref == REF else "failed"), "", now)
        counts.append(store.jobs.count_consecutive(REF, JobState.FAILED))
    assert counts == [1, 2, 2, 3, 0, 1, 0]
    assert store.jobs.count_consecutive(OTHER, JobState.FAILED) == 7


def test_history_has_the_last_run_of_each_operation(store: SqlStore) -> None:
    """With state, time, metrics and the metadata file that the run left; runs come back in full."""
    see(store)
    job_id = start(store)
    later = NOW + timedelta(hours=1)
    for run in (ran(job_id, n=1), ran(job_id, COMPACT), ran(job_id, now=later, n=2)):
        store.runs.record(run, REF)
    history = store.runs.history(REF, "u1")
    assert {op: (r.finished, r.metrics, r.metadata_location) for op, r in history.items()} == {
        EXPIRE: (later, {"n": 2}, "m2"),
        COMPACT: (NOW, {}, "m2"),
    }
    runs = store.runs.list(job_id)
    assert [r["operation"] for r in runs] == [EXPIRE, COMPACT, EXPIRE]
    assert {**runs[0]}.items() >= {"before": {"files": 2}, "after": {"files": 1}, "statements": ["CALL 1"]}.items()


def test_history_has_what_compactions_rewrote(store: SqlStore) -> None:
    """For sizes or order, by the policy of the last; not what was left, deleted from, or made by another policy."""
    see(store)
    job_id = start(store)
    day = partition_text([date(2026, 1, 2)])
    rewritten = {
        "a": (PartitionChange("p=a", '0 ["a"]', 9, 90, 1, 80), PartitionChange("d", f"1 {day}", 2, 9, 2, 9)),
        "b": (PartitionChange("p=b", '0 ["b"]', 9, 90, 1, 80, by_deletes=True),),
        "c": (PartitionChange("p=c", '0 ["c"]', 0, 0, 3, 80), PartitionChange("p=a", '0 ["a"]', 3, 9, 3, 9)),
    }
    for hours, changes in enumerate(rewritten.values()):
        run = ran(job_id, COMPACT, now=NOW + timedelta(hours=hours))
        store.runs.record(replace(run, outcome=replace(run.outcome, partitions=changes)), REF)
    others = (("files_left", 4, ""), ("n", 1, "another"))
    for metric, value, policy in others:
        run = ran(job_id, COMPACT, now=NOW, **{metric: value})
        gone = (PartitionChange("p=z", '0 ["z"]', 9, 90, 1, 80),)
        store.runs.record(replace(run, policy=policy or run.policy, outcome=replace(run.outcome, partitions=gone)), REF)
    store.runs.record(ran(job_id, COMPACT, now=NOW), REF)
    found = store.runs.history(REF, "u1")[COMPACT].rewritten
    assert found == {(0, ("a",)): NOW + timedelta(hours=2), (1, (date(2026, 1, 2),)): NOW}


def test_the_ledger(store: SqlStore) -> None:
    """Plans are unfinished once their job ended, until they are settled; a settled file does not change again."""
    see(store)
    job_id = start(store)
    files = [FileAction(f"s3://b/{n}%_'\"☃", n or None, "data") for n in range(1200)]
    store.ledger.plan(job_id, REF, files, LedgerState.PLANNED, NOW)
    assert store.ledger.unfinished(NOW) == []
    store.jobs.finish(job_id, JobState.INTERRUPTED, "", NOW)
    (left,) = store.ledger.unfinished(NOW)
    assert (left.job_id, left.ref, left.table_uuid, left.operations) == (job_id, REF, "u1", (COMPACT, EXPIRE))
    assert set(left.files) == set(files)
    store.ledger.record(job_id, {f.path: LedgerState.DELETED for f in files[1:]}, NOW)
    assert [u.files for u in store.ledger.unfinished(NOW)] == [(files[0],)]
    store.ledger.record(job_id, {f.path: LedgerState.KEPT for f in files}, NOW)
    assert store.ledger.unfinished(NOW) == []
    states = [f["state"] for f in store.ledger.files(job_id)]
    assert (states.count("deleted"), states.count("kept")) == (1199, 1)


def test_findings(store: SqlStore) -> None:
    """What a scan found waits with its first time, until it is deleted by whichever job, or forgotten."""
    see(store, REF, OTHER)
    first, theirs = start(store), start(store, OTHER)
    found = [FileAction(path, 1, "data") for path in "abc"]
    store.ledger.plan(first, REF, found, LedgerState.FOUND, NOW)
    store.ledger.plan(theirs, OTHER, found, LedgerState.FOUND, NOW)
    store.jobs.finish(first, JobState.SUCCEEDED, "", NOW)
    assert store.ledger.unfinished(NOW) == []
    second = start(store, now=NOW + timedelta(days=1))
    store.ledger.plan(second, REF, found[:1], LedgerState.PLANNED, NOW)
    store.ledger.record(second, {"a": LedgerState.DELETED}, NOW)
    assert store.ledger.found_orphans(REF, "u1") == {"b": NOW, "c": NOW}
    store.ledger.forget_orphans(REF, ["b"])
    assert store.ledger.found_orphans(REF, "u1") == {"c": NOW}
    assert store.ledger.found_orphans(OTHER, "u1").keys() == {"a", "b", "c"}


def test_rules_have_versions(store: SqlStore) -> None:
    """The newest version of a scope holds; earlier ones stay, with author and time."""
    rules = [
        PolicyRule(("lake", "a.b"), {"compact.where": "x = '☃'"}),
        PolicyRule((), {"preset": "streaming"}),
        PolicyRule((), {}),
    ]
    for number, rule in enumerate(rules):
        store.rules.put(rule.match, rule.settings, f"author {number}", NOW, None)
    assert set(map(str, store.rules.list())) == {"lake.a.b", "platform"}
    assert [(r.match, r.settings, r.source) for r in store.rules.list()] == [
        (("lake", "a.b"), {"compact.where": "x = '☃'"}, "store"),
        ((), {}, "store"),
    ]
    with store.engine.begin() as connection:
        kept = connection.execute(sa.select(POLICIES).order_by(POLICIES.c.id)).all()
    assert [(k.version, k.author, k.at) for k in kept] == [(n, f"author {i}", NOW) for i, n in enumerate((1, 1, 2))]


@pytest.mark.cases(59)
def test_odd_names_are_told_apart(store: SqlStore) -> None:
    """Dots, quotes, percent signs, underscores, Unicode: each name has its own row, jobs and findings."""
    assert see(store, *ODD) == len(ODD)
    jobs = {ref: start(store, ref) for ref in ODD}
    for ref, job_id in jobs.items():
        store.tables.record_evaluation(judged(ref), NOW)
        store.ledger.plan(job_id, ref, [FileAction(f"{ref}", 1, "data")], LedgerState.FOUND, NOW)
        store.tables.pause(ref, str(ref))
        store.activity.record("odd", NOW, ref, name=str(ref))
    for ref, job_id in jobs.items():
        assert [job.job_id for job in store.jobs.list(ref)] == [job_id]
        assert store.ledger.found_orphans(ref, "u1").keys() == {row(store, ref).paused} == {str(ref)}
        said = store.tables.evaluation(ref)
        assert said is not None
        assert said["table"] == str(ref)
    with store.engine.begin() as connection:
        assert [e.details["name"] for e in connection.execute(sa.select(EVENTS))] == [str(ref) for ref in ODD]


def test_times_come_back_in_utc(store: SqlStore) -> None:
    """Whatever zone a time was given in, microseconds kept."""
    given = datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
    see(store)
    found = store.jobs.get(start(store, now=given))
    assert found is not None
    assert found.created == given
    assert found.created.tzinfo is UTC


def test_a_job_by_the_beginning_of_its_id(store: SqlStore) -> None:
    """A beginning that one job alone has is enough; percent sign and underscore are no wildcards."""
    see(store, REF, OTHER)
    first, second = start(store), start(store, OTHER)
    found = [store.jobs.get(text) for text in (first, second[:-1], first[:8], "%", "_" * len(first), "nobody")]
    assert [job and job.job_id for job in found] == [first, second, None, None, None, None]


def _known(store: SqlStore) -> str:
    """A table that the store knows, its uuid."""
    store.tables.record_listing("lake", [Pointer(REF, "m1")], NOW)
    return "uuid-1"


def test_pins(store: SqlStore) -> None:
    """A reader holds one snapshot, which a later pin moves; released it is gone; another table's uuid has none."""
    uuid = _known(store)
    first = SnapshotPin("reader a", 2**62, NOW, NOW + timedelta(hours=1), "me")
    second, other = replace(first, snapshot_id=7), replace(first, reader="reader b")
    assert all(store.pins.add(REF, uuid, pin) for pin in (first, other, second))
    assert list(store.pins.list(REF, uuid)) == [other, second]
    assert list(store.pins.list(REF, "another")) == []
    assert store.pins.remove(REF, "reader a")
    assert not store.pins.remove(REF, "reader a")
    assert list(store.pins.list(REF, uuid)) == [other]
    assert not store.pins.add(OTHER, uuid, first), "a table that nobody knows"
    assert list(store.pins.list(OTHER, uuid)) == []


def test_nothing_is_pinned_while_a_job_works(store: SqlStore) -> None:
    """An expiry may be about to commit: only the job itself may pin, until it is done."""
    uuid = _known(store)
    pin = SnapshotPin("reader a", 1, NOW, NOW + timedelta(hours=1), "me")
    job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
    assert job is not None
    assert not store.pins.add(REF, uuid, pin)
    assert not store.pins.add(REF, uuid, pin, job_id="another")
    assert store.pins.add(REF, uuid, replace(pin, reader="the job"), job_id=job)
    store.jobs.finish(job, JobState.SUCCEEDED, "", NOW)
    assert store.pins.add(REF, uuid, pin)
    assert [p.reader for p in store.pins.list(REF, uuid)] == ["the job", "reader a"]


def test_the_ledger_as_parquet(store: SqlStore, tmp_path: Path) -> None:
    """Every file of a job with its state and times; where nothing can be written, the answer says so."""
    uuid = _known(store)
    job = store.jobs.claim(REF, uuid, [EXPIRE], ME, NOW)
    assert job is not None
    files = [FileAction("file:///t/a b", 5, "data"), FileAction("file:///t/m", None, "manifest list")]
    store.ledger.plan(job, REF, files, LedgerState.PLANNED, NOW)
    store.ledger.record(job, {"file:///t/a b": LedgerState.DELETED}, NOW + timedelta(seconds=3))
    store.ledger.exports = tmp_path / "made" / "here"
    said = store.ledger.export(job)
    assert said == f"ledger: {tmp_path}/made/here/{job}.parquet"
    rows = pq.read_table(said.removeprefix("ledger: ")).to_pylist()
    assert [(r["table"], r["path"], r["bytes"], r["kind"], r["state"]) for r in rows] == [
        (str(REF), "file:///t/a b", 5, "data", "deleted"),
        (str(REF), "file:///t/m", None, "manifest list", "planned"),
    ]
    assert [(r["planned_at"], r["settled_at"]) for r in rows] == [(NOW, NOW + timedelta(seconds=3)), (NOW, None)]
    (tmp_path / "taken").touch()
    store.ledger.exports = tmp_path / "taken"
    assert "could not be exported" in store.ledger.export(job)
