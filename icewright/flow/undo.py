"""Undo of a job: restore what its expiry removed from the metadata, and drop its planned deletions.

The undo is a job of its own: it holds the table, so that no other job works on it. Each step may be done again. Files
are first taken from whoever would delete them, then the metadata is put back by compare-and-set, read again and
compared, and only then the ledger says that the job is undone. After a crash the same undo goes on when it is asked for
again; until then `release_abandoned_undos` lets the deletions wait as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from icewright.core.errors import IcewrightError, InvariantViolated, LeaseLost, Refused, UnknownOutcome
from icewright.core.policy import ENABLED, ORPHAN_MODE, Operation
from icewright.core.table import TableMetadata
from icewright.core.verify import restored_as_it_was, snapshot_of
from icewright.core.words import count
from icewright.flow.lease import Lease
from icewright.flow.rules import change_rule
from icewright.flow.runtime import Runtime
from icewright.flow.table_job import TableJob, table_job
from icewright.flow.undoable import (
    UNDO,
    Restorable,
    ended_job,
    ledger_files,
    missing_paths,
    needed_by_later_jobs,
    restorable,
    table_of,
    under_current_name,
)
from icewright.ports import JobRow, LedgerState, Removal, RestoreSnapshots
from icewright.ports.work import catalog_context


@dataclass(frozen=True, slots=True)
class UndoResult:
    """The result of an undo, or of its dry run."""

    job: JobRow  # the job that is undone
    dry_run: bool
    back: Restorable
    undone_by: str | None = None  # id of the job that did the undo

    @property
    def summary(self) -> str:
        """Return the result in one line."""
        back = self.back
        if back.already:
            return f"job {self.job.job_id} is undone already"
        restored, dropped = ("would restore", "would drop") if self.dry_run else ("restored", "dropped")
        parts = []
        if back.removals and not (back.snapshots or back.refs):
            parts.append("all snapshots are in the table already")
        elif back.removals:
            refs = f" and {count(len(back.refs), 'ref')}" if back.refs else ""
            parts.append(f"{restored} {count(len(back.snapshots), 'snapshot')}{refs}")
        if back.files:
            parts.append(f"{dropped} {count(back.files, 'planned deletion')}")
        return f"undo of job {self.job.job_id}: {', '.join(parts)}"


def undo(runtime: Runtime, job_id: str, *, dry_run: bool = False) -> UndoResult:
    """Undo a job, or in a dry run return the result that an undo would have.

    Raises `UsageError` when there is no such job, it has not ended or leaves nothing to undo, and `Refused` when what
    it removed cannot return: then nothing is changed.
    """
    job = under_current_name(runtime, ended_job(runtime, job_id))
    with catalog_context(job.ref.catalog):
        back = restorable(runtime, job)
    if dry_run or back.already:
        return UndoResult(job, dry_run, back)
    with _undo_job(runtime, job) as undo_job:
        done = UndoResult(job, dry_run, back, undo_job.job_id)
        undo_job.summary = done.summary
        reserved: dict[str, Sequence[str]] = {}
        try:
            _reserve_files(runtime, job, back.removals, reserved)
            for removal in back.removals:
                _restore(runtime, job, removal, undo_job.lease)
        except (UnknownOutcome, LeaseLost, InvariantViolated):
            raise  # it may be committed: the reconciler reads the table and decides about the files
        except IcewrightError:
            for later_job in reserved:
                runtime.store.ledger.end_undo(later_job, runtime.clock.now(), undone=False)
            raise
        _complete(runtime, job, back.removals)
        for later_job, in_use in reserved.items():
            runtime.store.ledger.end_undo(later_job, runtime.clock.now(), undone=False, in_use=in_use)
    return done


def give_up(runtime: Runtime, job_id: str) -> int:
    """Abandon the planned deletions of a job for good; return the number of files that stay."""
    job = ended_job(runtime, job_id)
    files = runtime.store.ledger.abandon(job.job_id, runtime.clock.now())
    if files:
        runtime.record_event(
            "deletions_given_up", job.ref, {"job_id": job.job_id, "files": files, "by": runtime.trigger.actor}
        )
        runtime.store.ledger.export(job.job_id)
    return files


def release_abandoned_undos(runtime: Runtime) -> tuple[list[str], list[str]]:
    """Reconcile undos whose process died; return messages of those that are done, and of those that wait.

    What such an undo had put back stays, and it is completed. Otherwise the deletions wait as before the undo.
    """
    done: list[str] = []
    waiting: list[str] = []
    jobs = (runtime.store.jobs.get(job_id) for job_id in runtime.store.ledger.unfinished_undos())
    for job in (job for job in jobs if job is not None and _is_abandoned(runtime, job)):
        try:
            done.append(_released(runtime, under_current_name(runtime, job)))
        except IcewrightError as error:  # nothing deletes the files before
            waiting.append(f"{job.ref}: the undo of job {job.job_id} was interrupted and is settled later: {error}")
    return done, waiting


def _is_abandoned(runtime: Runtime, job: JobRow) -> bool:
    """Return whether no job holds the table of an unfinished undo: neither the undo itself nor one that ends first."""
    row = runtime.store.tables.get(job.ref)
    return job.ref.catalog in runtime.catalogs and (row is None or not row.job_id)


def _released(runtime: Runtime, job: JobRow) -> str:
    with _undo_job(runtime, job) as undo_job:
        removals = runtime.store.ledger.removals(job.job_id)
        missing = [removal for removal in removals if removal.undone_at is None]
        now = table_of(runtime, job) if missing else None
        if removals and (now is None or all(_is_restored(now, removal) for removal in missing)):
            _complete(runtime, job, missing)
            undo_job.summary = f"completed the undo of job {job.job_id}, which was interrupted"
        else:
            runtime.store.ledger.end_undo(job.job_id, runtime.clock.now(), undone=False)
            undo_job.summary = f"the undo of job {job.job_id} was interrupted: its deletions wait as before"
    return f"{job.ref}: {undo_job.summary}"


def _undo_job(runtime: Runtime, job: JobRow) -> AbstractContextManager[TableJob]:
    """Hold the table by a job of its own while another job is undone."""
    return table_job(runtime, job.ref, job.table_uuid, {UNDO: job.job_id}, f"undo of job {job.job_id}")


def _reserve_files(
    runtime: Runtime, job: JobRow, removals: Sequence[Removal], reserved: dict[str, Sequence[str]]
) -> None:
    """Stop the planned deletions of the job, and those of later jobs that would delete what returns.

    Adds each job whose deletions stop to `reserved`, with the files that are in use again. Raises `Refused` when a
    deletion has begun.
    """
    for job_id, in_use in {job.job_id: (), **needed_by_later_jobs(runtime, job, removals)}.items():
        states = runtime.store.ledger.begin_undo(job_id)
        if states.keys() & {LedgerState.DELETED, LedgerState.DELETING}:
            raise Refused(f"{job.ref}: job {job.job_id} cannot be undone: the deletions of job {job_id} have begun")
        reserved[job_id] = in_use


def _restore(runtime: Runtime, job: JobRow, removal: Removal, lease: Lease) -> None:
    """Commit the snapshots and refs of a removal back, and verify them on the reloaded table.

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
    with catalog_context(job.ref.catalog):
        gone = missing_paths(runtime, dict.fromkeys(lists))
    broken += [f"{path} of snapshot {lists[path]} is gone" for path in gone]
    if broken:
        message = f"{job.ref}: the undo of job {job.job_id} did not restore everything: {'; '.join(broken)}"
        runtime.pause_broken(job.ref, message)
        raise InvariantViolated(f"{message}; the table is paused")


def _commit(runtime: Runtime, job: JobRow, change: RestoreSnapshots, lease: Lease) -> TableMetadata:
    """Commit the change to the current table; return the metadata before the commit.

    A commit of unknown outcome is retried, as the change adds only what is missing.
    """
    catalog = runtime.catalog(job.ref)

    def attempt() -> TableMetadata:
        base = table_of(runtime, job)
        lease.check()
        catalog.commit(base, change)
        return base

    return runtime.retry_commit(attempt)


def _is_restored(now: TableMetadata, removal: Removal) -> bool:
    change = RestoreSnapshots.from_json(removal.document)
    return {snapshot["snapshot-id"] for snapshot in change.snapshots} <= now.by_id.keys()


def _complete(runtime: Runtime, job: JobRow, removals: Sequence[Removal]) -> None:
    """Record that the job is undone, after everything was restored."""
    _disable_repeat(runtime, job)
    now = runtime.clock.now()
    for removal in removals:
        runtime.store.ledger.close_removal(removal, now)
    runtime.store.ledger.end_undo(job.job_id, now, undone=True)
    runtime.store.ledger.export(job.job_id)
    runtime.record_event("undone", job.ref, {"job_id": job.job_id, "by": runtime.trigger.actor})


def _disable_repeat(runtime: Runtime, job: JobRow) -> None:
    """Set a policy rule on the table, so that what a person undid is not repeated automatically.

    Snapshots do not expire by themselves until somebody changes the rule, and orphans are reported and not deleted.
    """
    settings: dict[str, object] = {}
    if runtime.store.ledger.removals(job.job_id):
        settings[ENABLED[Operation.EXPIRE_SNAPSHOTS].name] = False
    if Operation.REMOVE_ORPHANS in ledger_files(runtime, job).operations:
        settings[ORPHAN_MODE.name] = "report"
    author = f"{runtime.trigger.actor}, by the undo of job {job.job_id}"

    def with_settings(before: Mapping[str, object]) -> Mapping[str, object] | None:
        return None if before.items() >= settings.items() else {**before, **settings}

    change_rule(runtime, job.ref.parts, author, with_settings)
