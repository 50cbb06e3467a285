"""What others do while a job is undone, and undos that nobody ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icewright.core.errors import CommitConflict, InvariantViolated, LeaseLost, Refused
from icewright.core.paths import local_path
from icewright.core.policy import ENABLED
from icewright.core.runs import JobState
from icewright.flow.undo import release_abandoned_undos, undo
from icewright.ports import LedgerState, RestoreSnapshots
from tests.cases.test_undo import document, expired, history, states, taps
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace, ref
from tests.faults.interceptors import Call


def test_a_deletion_that_begins_after_the_look_at_it(workspace: Workspace) -> None:
    """The undo ends before it commits anything, and what is being deleted goes on."""
    history(workspace)
    job_id = expired(workspace)
    ledger, after = workspace.app.runtime.store.ledger, document(workspace)
    first = ledger.files(job_id)[0]["path"]

    def claims(call: Call) -> Any:
        if str(call) == "store.ledger.begin_undo":
            ledger.claim(job_id, [first])
        return call.go()

    with taps(workspace, claims), pytest.raises(Refused, match=f"the deletions of job {job_id} have begun"):
        undo(workspace.app.runtime, job_id)
    assert document(workspace) == after
    assert states(workspace, job_id) == {LedgerState.DELETING, LedgerState.PLANNED}


def test_an_undo_whose_table_was_taken_over_commits_nothing(workspace: Workspace) -> None:
    """Its process was given up, and another job has the table by now: that one decides about the files."""
    history(workspace)
    job_id, commits = expired(workspace), list[str]()
    jobs, after = workspace.app.runtime.store.jobs, document(workspace)

    def taken(call: Call) -> Any:
        if str(call) != "catalog.commit":
            return call.go()
        commits.append(str(call))
        job = jobs.list()[0]
        jobs.finish(job.job_id, JobState.INTERRUPTED, "its process ended", workspace.clock.now())
        assert jobs.claim(job.ref, job.table_uuid, (), workspace.app.runtime.trigger, workspace.clock.now())
        raise CommitConflict("a writer was first")

    with taps(workspace, taken), pytest.raises(LeaseLost):
        undo(workspace.app.runtime, job_id)
    assert (len(commits), document(workspace)) == (1, after)
    assert states(workspace, job_id) == {LedgerState.UNDOING}


def test_a_rule_that_somebody_writes_meanwhile_stays(workspace: Workspace) -> None:
    """The undo adds to it, writes no second version of what a rule says already, and leaves other rules alone."""
    history(workspace)
    job_id, rules, now = expired(workspace), workspace.app.runtime.store.rules, workspace.clock.now()
    rules.put(("lake",), {"compact.enabled": True}, "anna", now, 0)
    written: list[object] = []

    def writes(call: Call) -> Any:
        if str(call) == "store.rules.put" and not written:
            written.append(rules.put(ref(NAME).parts, {"compact.enabled": False}, "anna", now, 0))
        return call.go()

    with taps(workspace, writes):
        undo(workspace.app.runtime, job_id)
    newest, first = rules.versions(ref(NAME).parts)
    assert first.settings == {"compact.enabled": False}
    assert newest.settings == {"compact.enabled": False, ENABLED[EXPIRE].name: False}
    undo(workspace.app.runtime, expired(workspace))
    assert rules.versions(ref(NAME).parts) == [newest, first]


def test_what_did_not_return_pauses_the_table(workspace: Workspace) -> None:
    """A ref that the catalog left out, and a manifest list that went with the commit; the pause says both."""
    history(workspace)
    job_id = expired(workspace)

    def forgets(call: Call) -> Any:
        if str(call) != "catalog.commit" or not isinstance(change := call.args[1], RestoreSnapshots):
            return call.go()
        done = call.real(call.args[0], replace(change, refs={}))
        Path(local_path(change.snapshots[0]["manifest-list"]) or "").unlink()
        return done

    with taps(workspace, forgets), pytest.raises(InvariantViolated) as broken:
        undo(workspace.app.runtime, job_id)
    row = workspace.app.runtime.store.tables.get(ref(NAME))
    assert row is not None
    for text in (str(broken.value), row.paused or ""):
        assert "did not restore everything" in text
        assert "outlived" in text
        assert "is gone" in text
    assert states(workspace, job_id) == {LedgerState.UNDOING}


def test_undos_that_nobody_ended(workspace: Workspace) -> None:
    """Those that can be settled are, whatever stands against others: a foreign catalog, a job, a lost table."""
    runtime, now = workspace.app.runtime, workspace.clock.now()
    names = [f"sales.t{number}" for number in range(4)]
    for name in names[:3]:
        history(workspace, name)
    folder = workspace.table(names[3])
    workspace.plant(folder, "data/left.parquet")
    foreign = workspace.craft("sales.away", catalog="pond", place="pond")
    workspace.commits(foreign, [900, 800, 10, 5])
    workspace.publish(foreign)
    workspace.job(EXPIRE, name="sales.away", catalog="pond", deletion__delay_hours=24)
    away = runtime.store.jobs.list()[0].job_id
    held, lost, waits = (expired(workspace, name) for name in names[:3])
    workspace.job(ORPHANS, name=names[3], deletion__delay_hours=24)
    orphans = runtime.store.jobs.list()[0].job_id
    for job_id in (away, held, lost, waits, orphans):
        runtime.store.ledger.begin_undo(job_id)
    assert runtime.store.jobs.claim(ref(names[0]), workspace.metadata(names[0]).table_uuid, (), runtime.trigger, now)
    workspace.metadata_file(names[1]).unlink()
    lake_alone = replace(runtime, catalogs={"lake": runtime.catalogs["lake"]})
    done, waiting = release_abandoned_undos(lake_alone)
    assert sorted(done) == sorted(
        f"{ref(name)}: the undo of job {job_id} was interrupted: its deletions wait as before"
        for name, job_id in ((names[2], waits), (names[3], orphans))
    )
    (said,) = waiting
    assert said.startswith(f"{ref(names[1])}: the undo of job {lost} was interrupted and is settled later: ")
    assert [states(workspace, job_id) for job_id in (away, held, lost)] == [{LedgerState.UNDOING}] * 3
    assert states(workspace, waits) == {LedgerState.PLANNED}
    assert states(workspace, orphans) == {LedgerState.PLANNED, LedgerState.FOUND}
