"""Undo of jobs on real files: what an expiry removed is as before, planned deletions are dropped, or nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icewright.core.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    Refused,
    TableReplaced,
    UsageError,
)
from icewright.core.paths import local_path
from icewright.core.policy import ENABLED, ORPHAN_MODE, Operation
from icewright.core.runs import JobState
from icewright.flow.evaluate import evaluate_table
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.undo import give_up, release_abandoned_undos, undo
from icewright.ports import LedgerState, RestoreSnapshots
from tests.cases.house import EXPIRE, NAME, ORPHANS, House, ref
from tests.faults.taps import Call, Hook, tapped

KEPT_APART = ("metadata-log", "last-updated-ms")  # what each commit writes


def history(house: House, name: str = NAME) -> None:
    """A table of six commits, a tag and a branch on old ones, and two that outlive their age."""
    craft = house.craft(name)
    house.commits(craft, [900, 800, 700, 600, 10, 5])
    made, day = [s["snapshot-id"] for s in craft.snapshots], 86_400_000
    craft.refs |= {
        "quarter-end": {"snapshot-id": made[0], "type": "tag"},
        "outlived": {"snapshot-id": made[1], "type": "tag", "max-ref-age-ms": day},
        "old branch": {"snapshot-id": made[2], "type": "branch", "max-ref-age-ms": day, "min-snapshots-to-keep": 2},
    }
    house.publish(craft)


def expired(house: House, name: str = NAME, hours: float = 24, **more: Any) -> str:
    """The job that expired what is old on the table; its files wait."""
    done = house.job(EXPIRE, name=name, deletion__delay_hours=hours, **more)
    assert done.state is JobState.SUCCEEDED, done
    assert done.job_id is not None
    house.clock.advance(minutes=1)
    return done.job_id


def document(house: House, name: str = NAME) -> dict[str, Any]:
    """The current metadata file, without what each commit writes."""
    found = json.loads(house.metadata_file(name).read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key not in KEPT_APART}


def states(house: House, job_id: str) -> set[str]:
    """In which states the files of the job are."""
    return {file["state"] for file in house.app.runtime.store.deleted_files(job_id)}


def settled(house: House, hours: float = 0) -> list[str]:
    """What the settling says so many hours later."""
    house.clock.advance(hours=hours)
    return reconcile_interrupted(replace(house.app.runtime, process_has_ended=lambda _: True))


@contextmanager
def taps(house: House, hook: Hook) -> Iterator[None]:
    """Every call of a port goes through the hook, for a while."""
    hooks = [hook]
    tapped(house.app, lambda call: hooks[-1](call))  # noqa: PLW0108 - the hook of that moment
    yield
    hooks.append(Call.go)


def test_twelve_tables_are_as_before_their_expiry(house: House) -> None:
    """Every snapshot, tag and branch reads the same rows, the metadata is the same, and no file goes any more."""
    names = [f"sales.t{number:02d}" for number in range(12)]
    for name in names:
        history(house, name)
    before = {name: (house.read(name), document(house, name)) for name in names}
    files = house.files()
    jobs = {name: expired(house, name) for name in names}
    for name, job_id in jobs.items():
        left = house.metadata(name)
        gone = before[name][0].keys() - {str(s.snapshot_id) for s in left.snapshots} - {r.name for r in left.refs}
        assert {"outlived", "old branch"} < gone
        done = undo(house.app.runtime, job_id)
        assert {str(s.snapshot_id) for s in done.back.snapshots} | set(done.back.refs) == gone
        assert (done.back.files > 0, done.back.bytes > 0, done.back.not_restored) == (True, True, ())
        assert states(house, job_id) == {LedgerState.UNDONE}
    settled(house, hours=100)
    assert files <= house.files()
    assert {name: (house.read(name), document(house, name)) for name in names} == before


def test_a_dry_run_says_the_same_and_changes_nothing(house: House) -> None:
    """Snapshots, refs, files and bytes are those that the undo then brings back."""
    history(house)
    job_id, files, after = expired(house), house.files(), document(house)
    said = undo(house.app.runtime, job_id, dry_run=True)
    assert (house.files(), document(house)) == (files, after)
    assert states(house, job_id) == {LedgerState.PLANNED}
    assert len(house.app.runtime.store.jobs()) == 1
    done = undo(house.app.runtime, job_id)
    assert done.back == said.back
    assert (said.undone_by, done.undone_by) == (None, house.app.runtime.store.jobs()[0].job_id)


def test_the_undo_is_a_job_of_its_own(house: House) -> None:
    """It is in the history with who asked for it; the table is free and evaluated afterwards; the job's log says it."""
    history(house)
    job_id = expired(house)
    done = undo(house.app.runtime, job_id)
    store = house.app.runtime.store
    job = store.job(done.undone_by or "")
    assert job is not None
    assert (job.state, job.options, job.operations) == (JobState.SUCCEEDED, {"undo": job_id}, ())
    restored = f"undo of job {job_id}: restored 3 snapshot(s) and 2 ref(s)"
    assert job.summary == done.summary == f"{restored}, dropped {done.back.files} planned deletion(s)"
    row = store.table(ref(NAME))
    assert row is not None
    assert (row.held_by, row.evaluated_location) == (None, house.metadata().metadata_location)
    assert [event["details"]["by"] for event in store.events(job_id) if event["kind"] == "undone"] == [job.actor]
    assert [removal.undone_at for removal in store.removals(job_id)] == [house.clock.now()]


def test_a_second_undo_finds_nothing_to_do(house: House) -> None:
    """It says so, commits nothing, and is no error; nor is there an undo of the undo."""
    history(house)
    job_id = expired(house)
    first = undo(house.app.runtime, job_id)
    after = document(house)
    again = undo(house.app.runtime, job_id)
    assert again.back.already
    assert again.summary == f"job {job_id} is undone already"
    assert document(house) == after
    with pytest.raises(UsageError, match="is itself the undo of job"):
        undo(house.app.runtime, first.undone_by or "")


def test_what_was_undone_is_not_done_again_by_itself(house: House) -> None:
    """A rule of the table turns its expiry off, with who undid which job, until somebody changes the rule."""
    history(house)
    job_id = expired(house)
    knobs = {"expire_snapshots.retention_hours": 24, "expire_snapshots.min_snapshots_to_keep": 1}
    runtime = house.runtime(knobs)

    def verdict() -> str:
        evaluation = evaluate_table(
            replace(house.app.runtime, policy=_fresh(house, knobs)), ref(NAME), house.clock.now()
        )
        return str(evaluation.verdicts[EXPIRE])

    store = house.app.runtime.store
    store.put_rule(ref(NAME).parts, {"compact.enabled": False}, "anna", house.clock.now(), 0)
    undo(runtime, job_id)
    newest, first = store.rule_versions(ref(NAME).parts)
    assert newest.settings == {"compact.enabled": False, ENABLED[EXPIRE].name: False}
    assert (first.author, newest.author) == ("anna", f"{runtime.trigger.actor}, by the undo of job {job_id}")
    assert "expire_snapshots.enabled is false" in verdict()
    store.put_rule(ref(NAME).parts, {ENABLED[EXPIRE].name: True}, "anna", house.clock.now(), newest.version)
    assert "Due(" in verdict()


def _fresh(house: House, knobs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: replace(house.app.runtime.policy(), command=knobs)


def test_files_that_are_deleted_stand_against_an_undo(house: House) -> None:
    """Which files, how many, and which snapshots could not be read: the table stays as the expiry left it."""
    history(house)
    ids = {s.snapshot_id for s in house.metadata().snapshots}
    job_id = expired(house)
    gone = ids - {s.snapshot_id for s in house.metadata().snapshots}
    assert settled(house, hours=25)
    after = document(house)
    with pytest.raises(Refused, match=f"job {job_id} cannot be undone: [0-9]+ file.*deleted already") as refused:
        undo(house.app.runtime, job_id)
    assert all(str(snapshot_id) in str(refused.value) for snapshot_id in gone)
    assert document(house) == after
    assert house.app.runtime.store.jobs()[0].job_id == job_id


def test_a_file_that_somebody_else_deleted(house: House) -> None:
    """One that a snapshot needs stands against the undo, with the snapshot; one that none needs does not."""
    history(house)
    oldest = house.metadata().snapshots[1]
    job_id = expired(house)
    waiting = {f["kind"]: f["path"] for f in house.app.runtime.store.deleted_files(job_id)}
    path = Path(local_path(oldest.manifest_list or "") or "")
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(Refused, match=f"1 file.*{path.name}; without them snapshot.s. {oldest.snapshot_id} cannot"):
        undo(house.app.runtime, job_id)
    assert states(house, job_id) == {LedgerState.PLANNED}
    path.write_bytes(content)
    data = Path(local_path(waiting["data"]) or "")
    data.rename(data.with_suffix(".away"))
    with pytest.raises(Refused, match=f"{data.name}; without them snapshot"):
        undo(house.app.runtime, job_id, dry_run=True)
    data.with_suffix(".away").rename(data)
    assert undo(house.app.runtime, job_id).back.snapshots


def test_a_later_deletion_of_a_file_that_returns(house: House) -> None:
    """What a later expiry took out and waits for is needed again: it stays, and the rest of that plan goes on."""
    craft = house.craft()
    house.commits(craft, [900, 800, 10], replacing=False)
    house.publish(craft)
    before = house.read()
    first = expired(house)
    house.icebergs["lake"].load_table(tuple(NAME.split("."))).delete()
    house.clock.advance(hours=10)
    later = expired(house, hours=1, expire_snapshots__retention_hours=0.001)
    undo(house.app.runtime, first)
    shared = {f["path"] for f in house.app.runtime.store.deleted_files(later) if f["state"] == LedgerState.KEPT}
    assert shared
    assert states(house, later) == {LedgerState.KEPT, LedgerState.PLANNED}
    settled(house, hours=5)
    assert states(house, later) == {LedgerState.KEPT, LedgerState.DELETED}
    after = house.read()
    returned = {version: rows for version, rows in after.items() if version in before and version != "main"}
    assert len(returned) == 2
    assert returned == {version: before[version] for version in returned}


def test_a_later_deletion_that_took_a_file(house: House) -> None:
    """The snapshots would come back without it: refused, with the job that deleted it."""
    craft = house.craft()
    house.commits(craft, [900, 800, 10], replacing=False)
    house.publish(craft)
    first = expired(house)
    house.icebergs["lake"].load_table(tuple(NAME.split("."))).delete()
    house.clock.advance(hours=10)
    later = expired(house, hours=0, expire_snapshots__retention_hours=0.001)
    after = document(house)
    with pytest.raises(Refused, match=f"by job {later}: .*without them snapshot"):
        undo(house.app.runtime, first)
    assert document(house) == after
    assert states(house, first) == {LedgerState.PLANNED}


def test_a_writer_goes_on_meanwhile(house: House) -> None:
    """Its commits since the expiry stay, one right before the undo's commit too; and the next one goes on top."""
    history(house)
    before = house.read()
    job_id = expired(house)
    table = house.icebergs["lake"].load_table(tuple(NAME.split(".")))
    rows = table.scan().to_arrow()
    table.append(rows)
    commits: list[str] = []

    def appends(call: Call) -> Any:
        if str(call) == "catalog.commit" and len(commits) < 2:
            commits.append("the writer's")
            house.icebergs["lake"].load_table(tuple(NAME.split("."))).append(rows)
        return call.go()

    with taps(house, appends):
        undo(house.app.runtime, job_id)
    assert len(commits) == 2
    house.icebergs["lake"].load_table(tuple(NAME.split("."))).append(rows)
    after = house.read()
    assert {version: after[version] for version in before if version != "main"} == {
        version: rows for version, rows in before.items() if version != "main"
    }
    assert len(after["main"]) == 5 * len(before["main"])


def test_a_ref_whose_name_is_taken_stays_where_it_is(house: House) -> None:
    """Somebody made a tag of the same name: it is theirs, which is said before; everything else returns."""
    history(house)
    job_id = expired(house)
    table = house.icebergs["lake"].load_table(tuple(NAME.split(".")))
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "outlived").commit()
    said = undo(house.app.runtime, job_id, dry_run=True)
    assert said.back.refs == ("old branch",)
    assert any("outlived" in words for words in said.back.not_restored)
    assert undo(house.app.runtime, job_id).back == said.back
    refs = {r.name: r.snapshot_id for r in house.metadata().refs}
    assert refs["outlived"] == head.snapshot_id
    assert "old branch" in refs


def test_another_table_of_the_name(house: House) -> None:
    """What was removed cannot return into it: refused, and both the table and the plan stay as they are."""
    history(house)
    job_id = expired(house)
    house.unregister(NAME)
    house.table(salt=" again", place="elsewhere")
    after = document(house)
    with pytest.raises(TableReplaced, match="another table"):
        undo(house.app.runtime, job_id)
    assert document(house) == after
    assert states(house, job_id) == {LedgerState.PLANNED}


def test_an_undo_waits_for_the_job_that_works_on_the_table(house: House) -> None:
    """Nor is a running job undone; a job that waits in the queue gives way."""
    history(house)
    job_id = expired(house)
    runtime, store = house.app.runtime, house.app.runtime.store
    running = store.claim(ref(NAME), house.metadata().table_uuid, (EXPIRE,), runtime.trigger, house.clock.now())
    assert running is not None
    with pytest.raises(Refused, match="another job works on the table"):
        undo(runtime, job_id)
    with pytest.raises(UsageError, match=f"job {running} is running"):
        undo(runtime, running)
    with pytest.raises(UsageError, match="begins with 'nobody'"):
        undo(runtime, "nobody")
    assert states(house, job_id) == {LedgerState.PLANNED}
    store.finish(running, JobState.SUCCEEDED, "", house.clock.now())
    assert undo(runtime, job_id).undone_by


def test_planned_deletions_of_orphans_are_dropped(house: House) -> None:
    """Nothing is committed; the orphans lie there still, and are reported and not deleted from now on."""
    folder = house.table()
    planted = house.plant(folder, "data/left.parquet", "data/over.parquet")
    house.job(ORPHANS, deletion__delay_hours=24)
    job_id = house.app.runtime.store.jobs()[0].job_id
    after = document(house)
    done = undo(house.app.runtime, job_id)
    assert (done.back.files, done.back.bytes, done.back.snapshots) == (2, 2, ())
    assert done.summary == f"undo of job {job_id}: dropped 2 planned deletion(s)"
    assert states(house, job_id) == {LedgerState.FOUND, LedgerState.UNDONE}
    settled(house, hours=100)
    assert planted <= house.files()
    assert document(house) == after
    (rule,) = house.app.runtime.store.rule_versions(ref(NAME).parts)
    assert rule.settings == {ORPHAN_MODE.name: "report"}
    assert undo(house.app.runtime, job_id).back.already


def test_a_job_that_leaves_nothing_to_undo(house: House) -> None:
    """One that rewrote, and one whose orphans are gone; what a job did beside its expiry is said."""
    folder = house.table(hours=(400, 300, 200, 100))
    done = house.job(Operation.REWRITE_MANIFESTS)
    with pytest.raises(UsageError, match=r"leaves nothing to undo.*reads the same rows"):
        undo(house.app.runtime, done.job_id or "")
    house.plant(folder, "data/left.parquet")
    orphans = house.job(ORPHANS)
    with pytest.raises(UsageError, match=r"leaves nothing to undo: its 1 file\(s\) are deleted"):
        undo(house.app.runtime, orphans.job_id or "")


def test_given_up_deletions(house: House) -> None:
    """Their files lie where they are, for good; the snapshots can return still."""
    history(house)
    before = house.read()
    job_id = expired(house)
    left = give_up(house.app.runtime, job_id)
    assert left == len(house.app.runtime.store.deleted_files(job_id)) > 0
    assert give_up(house.app.runtime, job_id) == 0
    settled(house, hours=30)
    undo(house.app.runtime, job_id)
    assert house.read() == before


def test_a_commit_that_fails_for_good(house: House) -> None:
    """The files wait as before, the undo's job has failed, and the next undo does it."""
    history(house)
    job_id = expired(house)

    def loses(call: Call) -> Any:
        if str(call) == "catalog.commit":
            raise CommitConflict("somebody else was first")
        return call.go()

    with taps(house, loses), pytest.raises(CommitConflict):
        undo(house.app.runtime, job_id)
    assert states(house, job_id) == {LedgerState.PLANNED}
    newest = house.app.runtime.store.jobs()[0]
    assert (newest.state, "somebody else was first" in newest.summary) == (JobState.FAILED, True)
    assert undo(house.app.runtime, job_id).back.snapshots


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_whose_answer_was_lost(house: House, landed: bool) -> None:
    """The table says whether it is in it, and it is not made twice."""
    history(house)
    before = document(house)
    job_id = expired(house)
    calls: list[str] = []

    def lost(call: Call) -> Any:
        if str(call) == "catalog.commit":
            calls.append("commit")
            if len(calls) == 1:
                if landed:
                    call.go()
                raise CommitStateUnknown("no answer")
        return call.go()

    files = len(house.files())
    with taps(house, lost):
        undo(house.app.runtime, job_id)
    assert document(house) == before
    assert len(house.files()) == files + 1
    assert len(calls) == 2


def test_a_commit_of_which_nobody_ever_hears(house: House) -> None:
    """The files stay out of reach until the table can be read; what had landed by then is completed."""
    history(house)
    before = house.read()
    job_id = expired(house)

    def never(call: Call) -> Any:
        if str(call) == "catalog.commit":
            call.go()
            raise CommitStateUnknown("no answer")
        return call.go()

    with taps(house, never), pytest.raises(CommitStateUnknown):
        undo(house.app.runtime, job_id)
    assert states(house, job_id) == {LedgerState.UNDOING}
    (said,), _ = release_abandoned_undos(house.app.runtime)
    assert "completed the undo" in said
    assert states(house, job_id) == {LedgerState.UNDONE}
    assert house.read() == before
    assert release_abandoned_undos(house.app.runtime) == ([], [])


def test_what_is_not_as_it_was_pauses_the_table(house: House) -> None:
    """A catalog that puts back something else: nothing is deleted, and a person looks."""
    history(house)
    job_id = expired(house)

    def forges(call: Call) -> Any:
        if str(call) == "catalog.commit" and isinstance(change := call.args[1], RestoreSnapshots):
            other = [{**s, "manifest-list": f"{s['manifest-list']}.avro"} for s in change.snapshots]
            return call.real(call.args[0], replace(change, snapshots=tuple(other)))
        return call.go()

    with taps(house, forges), pytest.raises(InvariantViolated, match="the manifest list of snapshot"):
        undo(house.app.runtime, job_id)
    row = house.app.runtime.store.table(ref(NAME))
    assert row is not None
    assert row.paused
    assert "verification failed" in row.paused
    assert states(house, job_id) == {LedgerState.UNDOING}
    files = house.files()
    settled(house, hours=100)
    assert house.files() == files
