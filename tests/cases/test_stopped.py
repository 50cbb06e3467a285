"""Deletions that were planned and not carried out: which of them nobody finishes, and which wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from icewright.adapters.engines.service.deletion import JobDeletion, Proved
from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.core.errors import Cancelled, StorageUnavailable
from icewright.core.runs import FileAction, JobState
from icewright.flow.reconcile import Reconciler, reconcile_interrupted
from icewright.ports import LedgerState
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace, edit, ref


@pytest.mark.parametrize("moment", [(RemoveOrphansInService, "scan"), (JobDeletion, "carry_out")])
def test_a_cancelled_orphan_removal_deletes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, moment: tuple[type, str]
) -> None:
    """Cancelled while it lists, or once all is planned: neither the job nor who settles later deletes a file."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300, 200], replacing=False)
    planted = workspace.plant(workspace.publish(craft), "data/orphan-0.parquet", "data/orphan-1.parquet")
    store, real = workspace.app.runtime.store, getattr(*moment)

    def cancelled(*args: Any, **options: Any) -> object:
        (job,) = store.jobs.list(limit=1)
        assert store.jobs.request_cancel(job.job_id, workspace.clock.now())
        return real(*args, **options)

    monkeypatch.setattr(*moment, cancelled)
    job = workspace.job(ORPHANS, remove_orphans__max_delete_ratio=1)
    assert job.state is JobState.CANCELLED
    Reconciler(workspace.app.runtime).due()
    assert all(path.exists() for path in planted)
    assert {row["state"] for row in store.ledger.files(job.job_id or "")} <= {"found", "kept"}


@pytest.mark.parametrize(("owed", "states"), [(False, {"kept"}), (True, {"planned"})])
def test_cancelled_while_the_proof_is_tried_again(workspace: Workspace, owed: bool, states: set[str]) -> None:
    """Nothing was deleted yet, however often the proof failed: only what a commit let go of goes all the same."""
    workspace.table()
    workspace.detect()
    store, deletion, now = workspace.app.runtime.store, workspace.app.engines.expire.deletion, workspace.clock.now()
    job_id = store.jobs.claim(ref(NAME), workspace.metadata().table_uuid, (EXPIRE,), workspace.app.runtime.trigger, now)
    assert job_id is not None
    planned = [FileAction("file:///lake/data/one.parquet", 1, "data")]
    store.ledger.plan(job_id, ref(NAME), planned, LedgerState.PLANNED, now)
    errors = [StorageUnavailable("throttled"), Cancelled("it was asked to stop")]

    class Failing:
        """A proof that cannot be made."""

        def prove(self, planned: Sequence[FileAction]) -> Proved:
            """Raise what is left of the errors."""
            assert planned
            raise errors.pop(0)

    with pytest.raises(Cancelled):
        JobDeletion(deletion, job_id, "file:///lake", Failing(), 1).carry_out(planned, owed=owed)
    assert {row["state"] for row in store.ledger.files(job_id)} == states


def _forbid(workspace: Workspace) -> None:
    """Somebody switches garbage collection off."""
    old = workspace.metadata_file()
    edit(old, lambda document: document["properties"].update({"gc.enabled": "false"}))
    new = old.with_name("00099-gc.metadata.json")
    new.write_bytes(old.read_bytes())
    workspace.unregister(NAME)
    workspace.register(NAME, f"file://{new}")


def _narrow(workspace: Workspace) -> None:
    """Somebody allows deletions elsewhere only."""
    allowed = workspace.app.engines.expire.guard.allowed_locations
    assert isinstance(allowed, dict)
    allowed.update(dict.fromkeys(allowed, ("file:///elsewhere",)))


@pytest.mark.parametrize(
    ("change", "reason"), [(_forbid, "gc.enabled is false now"), (_narrow, "lies outside the allowed_locations")]
)
def test_what_is_forbidden_meanwhile_waits(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, change: Any, reason: str
) -> None:
    """Planned deletions of an expiry are not finished where nothing may be deleted any more."""
    workspace.table()
    workspace.detect()

    def away(*_: object) -> None:
        raise StorageUnavailable("throttled")

    with monkeypatch.context() as patched:
        patched.setattr(JobDeletion, "delete", away)
        job = workspace.job(EXPIRE)
    change(workspace)
    before = workspace.files()
    (said,) = reconcile_interrupted(replace(workspace.app.runtime, process_has_ended=lambda _: True))
    assert reason in said
    assert workspace.files() == before
    assert {row["state"] for row in workspace.app.runtime.store.ledger.files(job.job_id or "")} == {"planned"}


def test_each_planned_file_is_looked_at(workspace: Workspace) -> None:
    """The table lies inside, and one of its files does not: that one stays, with the reason."""
    folder = workspace.table()
    guard, base = workspace.app.engines.expire.guard, workspace.metadata()
    inside, outside = f"file://{folder}/data/one.parquet", "file:///elsewhere/two.parquet"
    files = pl.DataFrame({"path": [inside, outside]})
    judged = guard.judge(guard.around(base), files, outside=True)
    assert judged.files["path"].to_list() == [inside]
    assert judged.stays == {outside: "outside the allowed_locations of catalog lake"}


def test_an_expiry_that_is_cancelled_after_its_commit_says_what_it_did(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshots are gone, and the run says so; their files are deleted by whoever settles."""
    workspace.table()
    workspace.detect()
    store, real, before = workspace.app.runtime.store, ExpireInService._deleted, len(workspace.metadata().snapshots)

    def deleted(*args: Any) -> object:
        (job,) = store.jobs.list(limit=1)
        assert store.jobs.request_cancel(job.job_id, workspace.clock.now())
        return real(*args)

    monkeypatch.setattr(ExpireInService, "_deleted", deleted)
    job = workspace.job(EXPIRE)
    assert job.state is JobState.CANCELLED
    (run,) = store.runs.list(job.job_id or "")
    gone = before - len(workspace.metadata().snapshots)
    assert (run["state"], run["metrics"]["snapshots_expired"]) == ("failed", gone)
    assert run["metrics"]["files_failed"] == len(store.ledger.files(job.job_id or "")) > 0
    Reconciler(workspace.app.runtime).due()
    assert {row["state"] for row in store.ledger.files(job.job_id or "")} == {"deleted"}
    measures = store.measures.read(workspace.clock.now(), (), ())
    totals = {total.name: number for total, number in measures.totals.items() if total.operation == EXPIRE}
    assert (totals["files_deleted"], totals["snapshots_expired"]) == (run["metrics"]["files_failed"], gone)
    assert totals["bytes_deleted"] > 0
