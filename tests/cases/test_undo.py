"""Undo of jobs on real files: what an expiry removed is as before, planned deletions are dropped, or nothing is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icewright.adapters.engines.service.deletion import Proved
from icewright.adapters.engines.service.proof import TableProof
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
from icewright.core.runs import FileAction, JobState, OperationState
from icewright.core.words import count
from icewright.flow.evaluate import evaluate_table
from icewright.flow.evaluator import evaluate_due
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.undo import give_up, release_abandoned_undos, undo
from icewright.ports import LedgerState, RestoreSnapshots, SnapshotPin
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace, edit, ref
from tests.faults.interceptors import Call, Hook, tapped

KEPT_APART = ("metadata-log", "last-updated-ms")  # what each commit writes


def history(workspace: Workspace, name: str = NAME) -> None:
    """A table of six commits, a tag and a branch on old ones, and two that outlive their age."""
    craft = workspace.craft(name)
    workspace.commits(craft, [900, 800, 700, 600, 10, 5])
    made, day = [s["snapshot-id"] for s in craft.snapshots], 86_400_000
    craft.refs |= {
        "quarter-end": {"snapshot-id": made[0], "type": "tag"},
        "outlived": {"snapshot-id": made[1], "type": "tag", "max-ref-age-ms": day},
        "old branch": {"snapshot-id": made[2], "type": "branch", "max-ref-age-ms": day, "min-snapshots-to-keep": 2},
    }
    workspace.publish(craft)


def expired(workspace: Workspace, name: str = NAME, hours: float = 24, **more: Any) -> str:
    """The job that expired what is old on the table; its files wait."""
    done = workspace.job(EXPIRE, name=name, deletion__delay_hours=hours, **more)
    assert done.state is JobState.SUCCEEDED, done
    assert done.job_id is not None
    workspace.clock.advance(minutes=1)
    return done.job_id


def document(workspace: Workspace, name: str = NAME) -> dict[str, Any]:
    """The current metadata file, without what each commit writes."""
    found = json.loads(workspace.metadata_file(name).read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key not in KEPT_APART}


def states(workspace: Workspace, job_id: str) -> set[str]:
    """In which states the files of the job are."""
    return {file["state"] for file in workspace.app.runtime.store.ledger.files(job_id)}


def exported(workspace: Workspace, job_id: str) -> set[str]:
    """In which states the files of the job are by its exported ledger."""
    return set(pq.read_table(workspace.home / "cache" / "ledger" / f"{job_id}.parquet")["state"].to_pylist())


def settled(workspace: Workspace, hours: float = 0) -> list[str]:
    """What the settling says so many hours later."""
    workspace.clock.advance(hours=hours)
    return reconcile_interrupted(replace(workspace.app.runtime, process_has_ended=lambda _: True))


@contextmanager
def taps(workspace: Workspace, hook: Hook) -> Iterator[None]:
    """Every call of a port goes through the hook, for a while."""
    hooks = [hook]
    tapped(workspace.app, lambda call: hooks[-1](call))  # noqa: PLW0108 - the hook of that moment
    yield
    hooks.append(Call.go)


def test_twelve_tables_are_as_before_their_expiry(workspace: Workspace) -> None:
    """Every snapshot, tag and branch reads the same rows, the metadata is the same, and no file goes any more."""
    names = [f"sales.t{number:02d}" for number in range(12)]
    for name in names:
        history(workspace, name)
    before = {name: (workspace.read(name), document(workspace, name)) for name in names}
    files = workspace.files()
    jobs = {name: expired(workspace, name) for name in names}
    for name, job_id in jobs.items():
        left = workspace.metadata(name)
        gone = before[name][0].keys() - {str(s.snapshot_id) for s in left.snapshots} - {r.name for r in left.refs}
        assert {"outlived", "old branch"} < gone
        done = undo(workspace.app.runtime, job_id)
        assert {str(s.snapshot_id) for s in done.back.snapshots} | set(done.back.refs) == gone
        assert (done.back.files > 0, done.back.bytes > 0, done.back.not_restored) == (True, True, ())
        assert states(workspace, job_id) == {LedgerState.UNDONE}
    settled(workspace, hours=100)
    assert files <= workspace.files()
    assert {name: (workspace.read(name), document(workspace, name)) for name in names} == before


def test_a_dry_run_says_the_same_and_changes_nothing(workspace: Workspace) -> None:
    """Snapshots, refs, files and bytes are those that the undo then brings back."""
    history(workspace)
    job_id, files, after = expired(workspace), workspace.files(), document(workspace)
    said = undo(workspace.app.runtime, job_id, dry_run=True)
    assert (workspace.files(), document(workspace)) == (files, after)
    assert states(workspace, job_id) == {LedgerState.PLANNED}
    assert len(workspace.app.runtime.store.jobs.list()) == 1
    done = undo(workspace.app.runtime, job_id)
    assert done.back == said.back
    assert (said.undone_by, done.undone_by) == (None, workspace.app.runtime.store.jobs.list()[0].job_id)


def test_the_undo_is_a_job_of_its_own(workspace: Workspace) -> None:
    """It is in the history with who asked for it; the table is free and evaluated afterwards; the job's log says it."""
    history(workspace)
    job_id = expired(workspace)
    done = undo(workspace.app.runtime, job_id)
    store = workspace.app.runtime.store
    job = store.jobs.get(done.undone_by or "")
    assert job is not None
    assert (job.state, job.options, job.operations) == (JobState.SUCCEEDED, {"undo": job_id}, ())
    restored = f"undo of job {job_id}: restored 3 snapshots and 2 refs"
    assert job.summary == done.summary == f"{restored}, dropped {count(done.back.files, 'planned deletion')}"
    row = store.tables.get(ref(NAME))
    assert row is not None
    assert (row.job_id, row.evaluated_location) == (None, workspace.metadata().metadata_location)
    assert [event["details"]["by"] for event in store.activity.list(job_id) if event["kind"] == "undone"] == [job.actor]
    assert [removal.undone_at for removal in store.ledger.removals(job_id)] == [workspace.clock.now()]
    assert exported(workspace, job_id) == {LedgerState.UNDONE}


def test_files_that_return_are_looked_for_by_calls_for_many(workspace: Workspace) -> None:
    """Where storage is far, a call for each of a thousand manifest lists takes a minute."""
    history(workspace)
    job_id, calls = expired(workspace), list[str]()

    def noted(call: Call) -> Any:
        calls.append(str(call))
        return call.go()

    with taps(workspace, noted):
        undo(workspace.app.runtime, job_id)
    assert "files.stat" in calls
    assert "files.size" not in calls


def test_a_second_undo_finds_nothing_to_do(workspace: Workspace) -> None:
    """It says so, commits nothing, and is no error; nor is there an undo of the undo."""
    history(workspace)
    job_id = expired(workspace)
    first = undo(workspace.app.runtime, job_id)
    after = document(workspace)
    again = undo(workspace.app.runtime, job_id)
    assert (again.back.already, again.undone_by) == (True, None)
    assert again.summary == f"job {job_id} is undone already"
    assert document(workspace) == after
    with pytest.raises(UsageError, match="is itself the undo of job"):
        undo(workspace.app.runtime, first.undone_by or "")


def test_an_undo_that_the_store_has_forgotten(workspace: Workspace) -> None:
    """The store is restored from a backup of before it: the same undo finds its snapshots in the table, and says so."""
    history(workspace)
    job_id = expired(workspace)
    with closing(sqlite3.connect(workspace.home / "state.db")) as store, closing(sqlite3.connect(":memory:")) as backup:
        store.backup(backup)
        first = undo(workspace.app.runtime, job_id)
        after = document(workspace)
        backup.backup(store)
    for dry_run in (True, False):
        again = undo(workspace.app.runtime, job_id, dry_run=dry_run)
        dropped = f"{'would drop' if dry_run else 'dropped'} {count(first.back.files, 'planned deletion')}"
        assert again.summary == f"undo of job {job_id}: all snapshots are in the table already, {dropped}"
        assert (again.back.snapshots, again.back.refs, document(workspace)) == ((), (), after)
    assert undo(workspace.app.runtime, job_id).back.already


def test_what_was_undone_is_not_done_again_by_itself(workspace: Workspace) -> None:
    """A rule of the table turns its expiry off, with who undid which job, until somebody changes the rule."""
    history(workspace)
    job_id = expired(workspace)
    knobs = {"expire_snapshots.retention_hours": 24, "expire_snapshots.min_snapshots_to_keep": 1}
    runtime = workspace.runtime(knobs)

    def verdict() -> str:
        evaluation = evaluate_table(
            replace(workspace.app.runtime, policy=_fresh(workspace, knobs)), ref(NAME), workspace.clock.now()
        )
        return str(evaluation.verdicts[EXPIRE])

    store = workspace.app.runtime.store
    store.rules.put(ref(NAME).parts, {"compact.enabled": False}, "anna", workspace.clock.now(), 0)
    undo(runtime, job_id)
    newest, first = store.rules.versions(ref(NAME).parts)
    assert newest.settings == {"compact.enabled": False, ENABLED[EXPIRE].name: False}
    assert (first.author, newest.author) == ("anna", f"{runtime.trigger.actor}, by the undo of job {job_id}")
    assert "expire_snapshots.enabled is false" in verdict()
    store.rules.put(ref(NAME).parts, {ENABLED[EXPIRE].name: True}, "anna", workspace.clock.now(), newest.version)
    assert "Due(" in verdict()


def _fresh(workspace: Workspace, knobs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: replace(workspace.app.runtime.policy(), command=knobs)


def test_files_that_are_deleted_stand_against_an_undo(workspace: Workspace) -> None:
    """Which files, how many, and which snapshots could not be read: the table stays as the expiry left it."""
    history(workspace)
    ids = {s.snapshot_id for s in workspace.metadata().snapshots}
    job_id = expired(workspace)
    gone = ids - {s.snapshot_id for s in workspace.metadata().snapshots}
    assert settled(workspace, hours=25)
    after = document(workspace)
    with pytest.raises(Refused, match=f"job {job_id} cannot be undone: [0-9]+ file.*deleted already") as refused:
        undo(workspace.app.runtime, job_id)
    assert all(str(snapshot_id) in str(refused.value) for snapshot_id in gone)
    assert document(workspace) == after
    assert workspace.app.runtime.store.jobs.list()[0].job_id == job_id


def test_a_file_that_somebody_else_deleted(workspace: Workspace) -> None:
    """One that a snapshot needs stands against the undo, with the snapshot, as does another one of its name."""
    history(workspace)
    oldest = workspace.metadata().snapshots[1]
    job_id = expired(workspace)
    waiting = {f["kind"]: f["path"] for f in workspace.app.runtime.store.ledger.files(job_id)}
    path = Path(local_path(oldest.manifest_list or "") or "")
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(Refused, match=f"1 file.*{path.name}; without them snapshots {oldest.snapshot_id} cannot"):
        undo(workspace.app.runtime, job_id)
    assert states(workspace, job_id) == {LedgerState.PLANNED}
    path.write_bytes(content)
    data = Path(local_path(waiting["data"]) or "")
    data.rename(data.with_suffix(".away"))
    with pytest.raises(Refused, match=f"{data.name}; without them snapshot"):
        undo(workspace.app.runtime, job_id, dry_run=True)
    data.write_bytes(b"another file of this name")
    with pytest.raises(Refused, match=f"1 file.*written anew.*{data.name}; without them snapshot"):
        undo(workspace.app.runtime, job_id)
    data.with_suffix(".away").rename(data)
    assert undo(workspace.app.runtime, job_id).back.snapshots


def test_a_later_deletion_of_a_file_that_returns(workspace: Workspace) -> None:
    """What a later expiry took out and waits for is needed again: it stays, and the rest of that plan goes on."""
    craft = workspace.craft()
    workspace.commits(craft, [900, 800, 10], replacing=False)
    workspace.publish(craft)
    before = workspace.read()
    first = expired(workspace)
    workspace.icebergs["lake"].load_table(tuple(NAME.split("."))).delete()
    workspace.clock.advance(hours=10)
    later = expired(workspace, hours=1, expire_snapshots__retention_hours=0.001)
    undo(workspace.app.runtime, first)
    shared = {f["path"] for f in workspace.app.runtime.store.ledger.files(later) if f["state"] == LedgerState.KEPT}
    assert shared
    assert states(workspace, later) == {LedgerState.KEPT, LedgerState.PLANNED}
    settled(workspace, hours=5)
    assert states(workspace, later) == {LedgerState.KEPT, LedgerState.DELETED}
    after = workspace.read()
    returned = {version: rows for version, rows in after.items() if version in before and version != "main"}
    assert len(returned) == 2
    assert returned == {version: before[version] for version in returned}


def test_a_later_deletion_that_took_a_file(workspace: Workspace) -> None:
    """The snapshots would come back without it: refused, with the job that deleted it."""
    craft = workspace.craft()
    workspace.commits(craft, [900, 800, 10], replacing=False)
    workspace.publish(craft)
    first = expired(workspace)
    workspace.icebergs["lake"].load_table(tuple(NAME.split("."))).delete()
    workspace.clock.advance(hours=10)
    later = expired(workspace, hours=0, expire_snapshots__retention_hours=0.001)
    after = document(workspace)
    with pytest.raises(Refused, match=f"by job {later}: .*without them snapshot"):
        undo(workspace.app.runtime, first)
    assert document(workspace) == after
    assert states(workspace, first) == {LedgerState.PLANNED}


def test_a_writer_goes_on_meanwhile(workspace: Workspace) -> None:
    """Its commits since the expiry stay, one right before the undo's commit too; and the next one goes on top."""
    history(workspace)
    before = workspace.read()
    job_id = expired(workspace)
    table = workspace.icebergs["lake"].load_table(tuple(NAME.split(".")))
    rows = table.scan().to_arrow()
    table.append(rows)
    commits: list[str] = []

    def appends(call: Call) -> Any:
        if str(call) == "catalog.commit" and len(commits) < 2:
            commits.append("the writer's")
            workspace.icebergs["lake"].load_table(tuple(NAME.split("."))).append(rows)
        return call.go()

    with taps(workspace, appends):
        undo(workspace.app.runtime, job_id)
    assert len(commits) == 2
    workspace.icebergs["lake"].load_table(tuple(NAME.split("."))).append(rows)
    after = workspace.read()
    assert {version: after[version] for version in before if version != "main"} == {
        version: rows for version, rows in before.items() if version != "main"
    }
    assert len(after["main"]) == 5 * len(before["main"])


def test_a_ref_whose_name_is_taken_stays_where_it_is(workspace: Workspace) -> None:
    """Somebody made a tag of the same name: it is theirs, which is said before; everything else returns."""
    history(workspace)
    job_id = expired(workspace)
    table = workspace.icebergs["lake"].load_table(tuple(NAME.split(".")))
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "outlived").commit()
    said = undo(workspace.app.runtime, job_id, dry_run=True)
    assert said.back.refs == ("old branch",)
    assert any("outlived" in words for words in said.back.not_restored)
    assert undo(workspace.app.runtime, job_id).back == said.back
    refs = {r.name: r.snapshot_id for r in workspace.metadata().refs}
    assert refs["outlived"] == head.snapshot_id
    assert "old branch" in refs


def test_another_table_of_the_name(workspace: Workspace) -> None:
    """What was removed cannot return into it: refused, and both the table and the plan stay as they are."""
    history(workspace)
    job_id = expired(workspace)
    workspace.unregister(NAME)
    workspace.table(salt=" again", place="elsewhere")
    after = document(workspace)
    with pytest.raises(TableReplaced, match="another table"):
        undo(workspace.app.runtime, job_id)
    assert document(workspace) == after
    assert states(workspace, job_id) == {LedgerState.PLANNED}


def test_what_cannot_return_any_more_when_it_is_committed(workspace: Workspace) -> None:
    """The table began anew after the undo had looked at it: the commit refuses, and the files wait as before."""
    history(workspace)
    job_id = expired(workspace)

    def begins_anew(call: Call) -> Any:
        done = call.go()
        if str(call) == "catalog.unrestorable":
            edit(workspace.metadata_file(), lambda document: document.update({"last-sequence-number": 0}))
        return done

    files = workspace.files()
    with taps(workspace, begins_anew), pytest.raises(Refused, match="which began anew"):
        undo(workspace.app.runtime, job_id)
    assert workspace.files() == files
    assert states(workspace, job_id) == {LedgerState.PLANNED}


def test_an_undo_waits_for_the_job_that_works_on_the_table(workspace: Workspace) -> None:
    """Nor is a running job undone; a job that waits in the queue gives way."""
    history(workspace)
    job_id = expired(workspace)
    runtime, store = workspace.app.runtime, workspace.app.runtime.store
    running = store.jobs.claim(
        ref(NAME), workspace.metadata().table_uuid, (EXPIRE,), runtime.trigger, workspace.clock.now()
    )
    assert running is not None
    with pytest.raises(Refused, match="another job holds the table"):
        undo(runtime, job_id)
    with pytest.raises(UsageError, match=f"job {running} is running"):
        undo(runtime, running)
    with pytest.raises(UsageError, match="begins or ends with 'nobody'"):
        undo(runtime, "nobody")
    assert states(workspace, job_id) == {LedgerState.PLANNED}
    store.jobs.finish(running, JobState.SUCCEEDED, "", workspace.clock.now())
    assert undo(runtime, job_id).undone_by


def test_planned_deletions_of_orphans_are_dropped(workspace: Workspace) -> None:
    """Nothing is committed; the orphans lie there still, and are reported and not deleted from now on."""
    folder = workspace.table()
    planted = workspace.plant(folder, "data/left.parquet", "data/over.parquet")
    workspace.job(ORPHANS, deletion__delay_hours=24)
    job_id = workspace.app.runtime.store.jobs.list()[0].job_id
    after = document(workspace)
    done = undo(workspace.app.runtime, job_id)
    assert (done.back.files, done.back.bytes, done.back.snapshots) == (2, 2, ())
    assert done.summary == f"undo of job {job_id}: dropped 2 planned deletions"
    assert states(workspace, job_id) == {LedgerState.FOUND, LedgerState.UNDONE}
    settled(workspace, hours=100)
    assert planted <= workspace.files()
    assert document(workspace) == after
    (rule,) = workspace.app.runtime.store.rules.versions(ref(NAME).parts)
    assert rule.settings == {ORPHAN_MODE.name: "report"}
    assert undo(workspace.app.runtime, job_id).back.already


def test_a_job_that_leaves_nothing_to_undo(workspace: Workspace) -> None:
    """One that rewrote, and one whose orphans are gone; what a job did beside its expiry is said."""
    folder = workspace.table(hours=(400, 300, 200, 100))
    done = workspace.job(Operation.REWRITE_MANIFESTS)
    with pytest.raises(UsageError, match=r"leaves nothing to undo.*reads the same rows"):
        undo(workspace.app.runtime, done.job_id or "")
    workspace.plant(folder, "data/left.parquet")
    orphans = workspace.job(ORPHANS)
    with pytest.raises(UsageError, match=r"leaves nothing to undo: 1 file deleted"):
        undo(workspace.app.runtime, orphans.job_id or "")


def test_given_up_deletions(workspace: Workspace) -> None:
    """Their files lie where they are, for good; the snapshots can return still."""
    history(workspace)
    before = workspace.read()
    job_id = expired(workspace)
    left = give_up(workspace.app.runtime, job_id)
    assert left == len(workspace.app.runtime.store.ledger.files(job_id)) > 0
    assert give_up(workspace.app.runtime, job_id) == 0
    events = [e for e in workspace.app.runtime.store.activity.list(job_id) if e["kind"] == "deletions_given_up"]
    assert [(e["details"]["files"], e["details"]["by"]) for e in events] == [
        (left, workspace.app.runtime.trigger.actor)
    ]
    assert exported(workspace, job_id) == {LedgerState.GIVEN_UP}
    settled(workspace, hours=30)
    undo(workspace.app.runtime, job_id)
    assert workspace.read() == before


def test_files_that_are_given_up_while_they_are_proved_stay(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between proof and deletion each file is claimed, so that a person who gives them up then saves them."""
    history(workspace)
    job_id, real = expired(workspace), TableProof.prove

    def meanwhile(proof: TableProof, planned: Sequence[FileAction]) -> Proved:
        proved = real(proof, planned)
        assert proved.free
        give_up(workspace.app.runtime, job_id)
        return proved

    files = workspace.files()
    monkeypatch.setattr(TableProof, "prove", meanwhile)
    settled(workspace, hours=30)
    assert states(workspace, job_id) == {LedgerState.GIVEN_UP}
    assert workspace.files() >= files


def test_a_planned_file_that_is_gone_already_counts_as_deleted(workspace: Workspace) -> None:
    """Whoever deleted a planned file first, nothing waits for it any more, and the other files go."""
    history(workspace)
    job_id = expired(workspace)
    first, *others = [Path(local_path(f["path"]) or "") for f in workspace.app.runtime.store.ledger.files(job_id)]
    first.unlink()
    settled(workspace, hours=30)
    assert states(workspace, job_id) == {LedgerState.DELETED}
    assert not any(path.exists() for path in others)


def test_a_commit_that_fails_for_good(workspace: Workspace) -> None:
    """The files wait as before, the undo's job has failed, and the next undo does it."""
    history(workspace)
    job_id = expired(workspace)

    def loses(call: Call) -> Any:
        if str(call) == "catalog.commit":
            raise CommitConflict("somebody else was first")
        return call.go()

    with taps(workspace, loses), pytest.raises(CommitConflict):
        undo(workspace.app.runtime, job_id)
    assert states(workspace, job_id) == {LedgerState.PLANNED}
    newest = workspace.app.runtime.store.jobs.list()[0]
    assert (newest.state, "somebody else was first" in newest.summary) == (JobState.FAILED, True)
    assert undo(workspace.app.runtime, job_id).back.snapshots


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_whose_answer_was_lost(workspace: Workspace, landed: bool) -> None:
    """The table says whether it is in it, and it is not made twice."""
    history(workspace)
    before = document(workspace)
    job_id = expired(workspace)
    calls: list[str] = []

    def lost(call: Call) -> Any:
        if str(call) == "catalog.commit":
            calls.append("commit")
            if len(calls) == 1:
                if landed:
                    call.go()
                raise CommitStateUnknown("no answer")
        return call.go()

    files = len(workspace.files())
    with taps(workspace, lost):
        undo(workspace.app.runtime, job_id)
    assert document(workspace) == before
    assert len(workspace.files()) == files + 1
    assert len(calls) == 2


def test_a_commit_of_which_nobody_ever_hears(workspace: Workspace) -> None:
    """The files stay out of reach until the table can be read; what had landed by then is completed."""
    history(workspace)
    before = workspace.read()
    job_id = expired(workspace)

    def never(call: Call) -> Any:
        if str(call) == "catalog.commit":
            call.go()
            raise CommitStateUnknown("no answer")
        return call.go()

    with taps(workspace, never), pytest.raises(CommitStateUnknown):
        undo(workspace.app.runtime, job_id)
    assert states(workspace, job_id) == {LedgerState.UNDOING}
    (said,), _ = release_abandoned_undos(workspace.app.runtime)
    assert "completed the undo" in said
    assert states(workspace, job_id) == {LedgerState.UNDONE}
    assert workspace.read() == before
    assert release_abandoned_undos(workspace.app.runtime) == ([], [])


def test_what_is_not_as_it_was_pauses_the_table(workspace: Workspace) -> None:
    """A catalog that puts back something else: nothing is deleted, and a person looks."""
    history(workspace)
    job_id = expired(workspace)

    def forges(call: Call) -> Any:
        if str(call) == "catalog.commit" and isinstance(change := call.args[1], RestoreSnapshots):
            other = [{**s, "manifest-list": f"{s['manifest-list']}.avro"} for s in change.snapshots]
            return call.real(call.args[0], replace(change, snapshots=tuple(other)))
        return call.go()

    with taps(workspace, forges), pytest.raises(InvariantViolated, match="the manifest list of snapshot"):
        undo(workspace.app.runtime, job_id)
    row = workspace.app.runtime.store.tables.get(ref(NAME))
    assert row is not None
    assert row.paused
    assert "verification failed" in row.paused
    assert states(workspace, job_id) == {LedgerState.UNDOING}
    files = workspace.files()
    settled(workspace, hours=100)
    assert workspace.files() == files


@pytest.mark.parametrize("swapped", [False, True])
def test_planned_deletions_follow_a_renamed_table(workspace: Workspace, *, swapped: bool) -> None:
    """The files of a renamed table wait until its new name was read, also where another table has the old one."""
    history(workspace)
    job_id, renamed = expired(workspace), "sales.renamed"
    planned = [Path(local_path(f["path"]) or "") for f in workspace.app.runtime.store.ledger.files(job_id)]
    workspace.icebergs["lake"].rename_table(NAME, renamed)
    if swapped:
        workspace.table(place="warehouse2", salt="anew")
    rows, files = workspace.read(renamed), workspace.files()
    lines = settled(workspace, hours=30)  # the store has the old name
    workspace.detect()
    lines += settled(workspace)  # and the new one, but nobody has read the table
    assert (states(workspace, job_id), workspace.files()) == ({LedgerState.PLANNED}, files), lines
    evaluate_due(workspace.app.runtime, ["lake"])
    lines = settled(workspace)
    assert states(workspace, job_id) == {LedgerState.DELETED}, lines
    assert files - workspace.files() == frozenset(planned)
    assert workspace.read(renamed) == rows


def test_a_renamed_table_gets_back_what_its_expiry_removed(workspace: Workspace) -> None:
    """What waits under the earlier name is no orphan of the new one, and the undo finds the table there."""
    history(workspace)
    before = workspace.read()
    job = expired(workspace)
    workspace.icebergs["lake"].rename_table(NAME, "sales.renamed")
    workspace.detect()
    workspace.run(ORPHANS, name="sales.renamed", remove_orphans__max_delete_ratio=1)
    done = undo(workspace.app.runtime, job)
    assert (done.job.ref, workspace.read("sales.renamed")) == (ref("sales.renamed"), before)
    settled(workspace, hours=100)
    assert workspace.read("sales.renamed") == before


def test_a_pin_follows_a_renamed_table(workspace: Workspace) -> None:
    """A reader's snapshot stays under the new name, until the reader releases it there."""
    workspace.table()
    workspace.detect()
    table, pins, now = workspace.metadata(), workspace.app.runtime.store.pins, workspace.clock.now()
    pin = SnapshotPin("reader x", table.snapshots[0].snapshot_id, now, now + timedelta(days=9), "me")
    assert pins.add(ref(NAME), table.table_uuid, pin)
    workspace.icebergs["lake"].rename_table(NAME, "sales.renamed")
    before = workspace.read("sales.renamed")
    workspace.run(EXPIRE, name="sales.renamed")
    assert workspace.read("sales.renamed") == before
    evaluate_due(workspace.app.runtime, ["lake"])
    assert pins.remove(ref("sales.renamed"), pin.reader)
    assert workspace.run(EXPIRE, name="sales.renamed").state is OperationState.COMMITTED
