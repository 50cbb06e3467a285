"""Undo of a job: what its expiry removed from the metadata returns, and its planned deletions are dropped.

The undo is a job of its own: it holds the table, so that no other job works on it. Each step may be done again. Files
are first taken from whoever would delete them, then the metadata is put back by compare-and-set, read again and
compared, and only then the ledger says that the job is undone. After a crash the same undo goes on when it is asked for
again; until then `release_abandoned_undos` lets the deletions wait as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from icewright.core.errors import (
    Cancelled,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    InvariantViolated,
    LeaseLost,
    Refused,
    UnknownOutcome,
)
from icewright.core.policy import ENABLED, ORPHAN_MODE, Operation
from icewright.core.runs import VERIFICATION_FAILED, JobState, backoff
from icewright.core.table import TableMetadata
from icewright.core.verify import restored_as_it_was, snapshot_of
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.lease import Lease, lease_heartbeat
from icewright.flow.runtime import Runtime
from icewright.flow.undoable import UNDO, Returning, ended_job, ledger_files, needed_by_later_jobs, returning, table_of
from icewright.ports import JobRow, LedgerState, Removal, RestoreSnapshots

_LIMIT = timedelta(hours=2)
_ATTEMPTS = 8  # of a commit, against other writers


@dataclass(frozen=True, slots=True)
class UndoResult:
    """What an undo brought back, or would bring back."""

    job: JobRow  # that is undone
    dry_run: bool
    back: Returning
    undone_by: str | None = None  # the job that did it

    @property
    def summary(self) -> str:
        """Return the same in a line."""
        back = self.back
        if back.already:
            return f"job {self.job.job_id} is undone already"
        restored, dropped = ("would restore", "would drop") if self.dry_run else ("restored", "dropped")
        said = []
        if back.removals:
            refs = f" and {len(back.refs)} ref(s)" if back.refs else ""
            said.append(f"{restored} {len(back.snapshots)} snapshot(s){refs}")
        if back.files:
            said.append(f"{dropped} {back.files} planned deletion(s)")
        return f"undo of job {self.job.job_id}: {', '.join(said)}"


@dataclass(slots=True)
class _Hold:
    """The table while an undo holds it."""

    job_id: str
    lease: Lease
    summary: str = ""


def undo(runtime: Runtime, job_id: str, *, dry_run: bool = False) -> UndoResult:
    """Take a job back, or say what that would bring back.

    Raises `UsageError` when there is no such job, it has not ended or leaves nothing to undo, and `Refused` when what
    it removed cannot return: then nothing is changed.
    """
    job = ended_job(runtime, job_id)
    back = returning(runtime, job)
    if dry_run or back.already:
        return UndoResult(job, dry_run, back)
    with _holding(runtime, job) as hold:
        done = UndoResult(job, dry_run, back, hold.job_id)
        hold.summary = done.summary
        taken: dict[str, Sequence[str]] = {}
        try:
            _take(runtime, job, back.removals, taken)
            for removal in back.removals:
                _put_back(runtime, job, removal, hold.lease)
        except (UnknownOutcome, LeaseLost, InvariantViolated):
            raise  # it may be committed: whoever looks at the table next says what becomes of the files
        except IcewrightError:
            for other in taken:
                runtime.store.ledger.end_undo(other, runtime.clock.now(), undone=False)
            raise
        _complete(runtime, job, back.removals)
        for other, in_use in taken.items():
            runtime.store.ledger.end_undo(other, runtime.clock.now(), undone=False, in_use=in_use)
    return done


def give_up(runtime: Runtime, job_id: str) -> int:
    """Leave the files of a job that wait to be deleted where they are, for good; returns how many."""
    job = ended_job(runtime, job_id)
    left = runtime.store.ledger.abandon(job.job_id, runtime.clock.now())
    if left:
        runtime.record_event(
            "deletions_given_up", job.ref, {"job_id": job.job_id, "files": left, "by": runtime.trigger.actor}
        )
        runtime.store.ledger.export(job.job_id)
    return left


def release_abandoned_undos(runtime: Runtime) -> tuple[list[str], list[str]]:
    """Settle undos whose process ended in the middle; says what became of them, and what is settled later and why.

    What such an undo had put back stays, and it is completed. Otherwise the deletions wait as before the undo.
    """
    done: list[str] = []
    waiting: list[str] = []
    for job_id in runtime.store.ledger.unfinished_undos():
        job = runtime.store.jobs.get(job_id)
        if job is None or job.ref.catalog not in runtime.catalogs:
            continue
        row = runtime.store.tables.get(job.ref)
        if row is not None and row.held_by:  # by the undo itself, or by a job after which there is time enough
            continue
        try:
            done.append(_released(runtime, job))
        except IcewrightError as error:  # until then nobody deletes the files
            waiting.append(f"{job.ref}: the undo of job {job_id} was interrupted and is settled later: {error}")
    return done, waiting


def _released(runtime: Runtime, job: JobRow) -> str:
    with _holding(runtime, job) as hold:
        removals = runtime.store.ledger.removals(job.job_id)
        missing = [removal for removal in removals if removal.undone_at is None]
        now = table_of(runtime, job) if missing else None
        if removals and (now is None or all(_is_back(now, removal) for removal in missing)):
            _complete(runtime, job, missing)
            hold.summary = f"completed the undo of job {job.job_id}, which was interrupted"
        else:
            runtime.store.ledger.end_undo(job.job_id, runtime.clock.now(), undone=False)
            hold.summary = f"the undo of job {job.job_id} was interrupted: its deletions wait as before"
    return f"{job.ref}: {hold.summary}"


@contextmanager
def _holding(runtime: Runtime, job: JobRow) -> Iterator[_Hold]:
    """The table for a job that undoes another."""
    ref, now = job.ref, runtime.clock.now()
    undo_id = runtime.store.jobs.claim(ref, job.table_uuid, (), runtime.trigger, now, options={UNDO: job.job_id})
    if undo_id is None:
        raise Refused(f"{ref}: another job works on the table; job {job.job_id} can be undone when that has ended")
    runtime.record_event("job_started", ref, {"job_id": undo_id, "operations": ()})
    state, summary = JobState.INTERRUPTED, ""
    with lease_heartbeat(runtime, undo_id, _LIMIT) as lease:
        hold = _Hold(undo_id, lease)
        try:
            yield hold
            state, summary = JobState.SUCCEEDED, hold.summary
        except LeaseLost as error:
            summary = str(error)
            raise
        except Cancelled as error:
            state, summary = JobState.CANCELLED, f"cancelled: {error}"
            raise
        except Exception as error:
            state, summary = JobState.FAILED, f"undo of job {job.job_id}: {error}"
            raise
        finally:
            _finish(runtime, job, undo_id, state, summary)
    runtime.record_event("job_finished", ref, {"job_id": undo_id, "state": state, "summary": summary})


def _finish(runtime: Runtime, job: JobRow, undo_id: str, state: JobState, summary: str) -> None:
    """End the undo's job, the table evaluated as it left it."""
    try:
        if state is JobState.SUCCEEDED and job.ref.catalog in runtime.catalogs:
            evaluate_and_record(runtime, job.ref, runtime.clock.now())
    finally:
        runtime.retry_idempotent(lambda: runtime.store.jobs.finish(undo_id, state, summary, runtime.clock.now()))


def _take(runtime: Runtime, job: JobRow, removals: Sequence[Removal], taken: dict[str, Sequence[str]]) -> None:
    """Take the files of the job from whoever would delete them, and those of later jobs that delete what returns.

    `taken` grows by each job whose files were taken, with those that are in use from now on. Raises `Refused` when a
    deletion has begun.
    """
    for job_id, in_use in {job.job_id: (), **needed_by_later_jobs(runtime, job, removals)}.items():
        states = runtime.store.ledger.begin_undo(job_id)
        if states.keys() & {LedgerState.DELETED, LedgerState.DELETING}:
            raise Refused(f"{job.ref}: job {job.job_id} cannot be undone: the deletions of job {job_id} have begun")
        taken[job_id] = in_use


def _put_back(runtime: Runtime, job: JobRow, removal: Removal, lease: Lease) -> None:
    """Commit what a removal took, and prove it by reading the table again.

    Raises `InvariantViolated` when something is not as it was; the table is paused then.
    """
    change = RestoreSnapshots.from_json(removal.document)
    before = _commit(runtime, job, change, lease)
    after = table_of(runtime, job)
    snapshots = tuple(map(snapshot_of, change.snapshots))
    names = change.refs.keys() - {ref.name for ref in before.refs}
    refs = {name: change.refs[name]["snapshot-id"] for name in names}
    broken = restored_as_it_was(after, snapshots, {n: s for n, s in refs.items() if s in after.by_id})
    lists = {s.manifest_list: s.snapshot_id for s in snapshots if s.manifest_list}
    broken += [f"{path} of snapshot {lists[path]} is gone" for path in lists if runtime.files.size(path) is None]
    if broken:
        said = f"{job.ref}: the undo of job {job.job_id} did not restore everything: {'; '.join(broken)}"
        runtime.retry_idempotent(lambda: runtime.store.tables.pause(job.ref, f"{VERIFICATION_FAILED}: {said}"))
        raise InvariantViolated(f"{said}; the table is paused")


def _commit(runtime: Runtime, job: JobRow, change: RestoreSnapshots, lease: Lease) -> TableMetadata:
    """Commit the change to the table as it is at that moment; returns what it was before.

    A commit of which nobody knows is tried again: what is there already is not changed.
    """
    catalog, attempt = runtime.catalog(job.ref), 1
    while True:
        base = table_of(runtime, job)
        if (said := catalog.restorable(base, change)).startswith("nothing:"):
            raise Refused(f"{job.ref}: job {job.job_id} cannot be undone; {said}")
        lease.check()
        try:
            catalog.commit(base, change)
        except (CommitConflict, CommitStateUnknown):
            if attempt == _ATTEMPTS:
                raise
            runtime.clock.sleep(backoff(attempt).total_seconds())
            attempt += 1
        else:
            return base


def _is_back(now: TableMetadata, removal: Removal) -> bool:
    change = RestoreSnapshots.from_json(removal.document)
    return {snapshot["snapshot-id"] for snapshot in change.snapshots} <= now.by_id.keys()


def _complete(runtime: Runtime, job: JobRow, removals: Sequence[Removal]) -> None:
    """Write down that the job is undone, when everything is back."""
    _do_not_repeat(runtime, job)
    now = runtime.clock.now()
    for removal in removals:
        runtime.store.ledger.close_removal(removal, now)
    runtime.store.ledger.end_undo(job.job_id, now, undone=True)
    runtime.store.ledger.export(job.job_id)
    runtime.record_event("undone", job.ref, {"job_id": job.job_id, "by": runtime.trigger.actor})


def _do_not_repeat(runtime: Runtime, job: JobRow) -> None:
    """Let a policy rule of the table say that what a person took back is not done again by itself.

    Snapshots do not expire by themselves until somebody changes the rule, and orphans are reported and not deleted.
    """
    settings: dict[str, object] = {}
    if runtime.store.ledger.removals(job.job_id):
        settings[ENABLED[Operation.EXPIRE_SNAPSHOTS].name] = False
    if Operation.REMOVE_ORPHANS in ledger_files(runtime, job).operations:
        settings[ORPHAN_MODE.name] = "report"
    author = f"{runtime.trigger.actor}, by the undo of job {job.job_id}"
    while settings:
        newest = next(iter(runtime.store.rules.versions(job.ref.parts)), None)
        before, version = (newest.settings, newest.version) if newest else ({}, 0)
        if {**before, **settings} == dict(before):
            return
        now = runtime.clock.now()
        if runtime.store.rules.put(job.ref.parts, {**before, **settings}, author, now, version) is not None:
            return
