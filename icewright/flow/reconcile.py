"""Reconciliation after crashes: end the jobs of dead processes, and finish planned deletions after a new proof."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from icewright.core.effective import Knobs
from icewright.core.errors import IcewrightError, TableNotFound, TableReplaced
from icewright.core.policy import ENABLED, ORPHAN_MODE, OUTSIDE, Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.breakers import forget_unused, pause_after_failures
from icewright.flow.runtime import Runtime
from icewright.flow.undo import release_abandoned_undos
from icewright.flow.undoable import current_name
from icewright.ports import JOB_LEASE, MANUAL, LedgerState, Unfinished

MAX_INTERRUPTED = 10  # jobs in a row after which the table is paused, if it alone can be what ends processes
_LAST_HEARTBEAT = timedelta(seconds=30)  # before the end of a process: it sends one every ten seconds
LEASE = timedelta(minutes=2)  # on reconciling, so that one process reconciles at a time
RENAME_LIMIT = timedelta(days=7)  # after they are due, for which deletions wait for their table under another name
FORGET_AFTER = timedelta(days=1)  # after which a silent process is deregistered


def reconcile_interrupted(runtime: Runtime) -> list[str]:
    """End jobs of dead processes, and finish planned deletions after a new proof; return what was done or waits."""
    done = end_interrupted(runtime)
    released, waiting = release_abandoned_undos(runtime)
    done += released
    for unfinished in runtime.store.ledger.unfinished(runtime.clock.now()):
        finished, message = _resume_deletions(runtime, unfinished)
        (done if finished else waiting).append(message)
    for line in done:
        runtime.store.activity.record("reconciled", runtime.clock.now(), said=line)
    return done + waiting


def end_interrupted(runtime: Runtime) -> list[str]:
    """End jobs of dead processes without deleting anything; return one sentence for each."""
    done: list[str] = []
    for job in runtime.store.jobs.end_interrupted(runtime.clock.now(), runtime.process_has_ended):
        done.append(f"{job.ref}: job {job.job_id} was interrupted")
        if _is_in_every_crash(runtime, job.ref):
            pause_after_failures(runtime, job.ref, JobState.INTERRUPTED, MAX_INTERRUPTED, "were interrupted")
    return done


def _is_in_every_crash(runtime: Runtime, ref: TableRef) -> bool:
    """Return whether every process that crashed since the table's first lost job ran a job of the table.

    Otherwise something else ends processes: a machine that goes, or memory that others use up.
    """
    lost = [job for job in runtime.store.jobs.list(ref, MAX_INTERRUPTED) if job.state is JobState.INTERRUPTED]
    holders, now = {job.holder for job in lost}, runtime.clock.now()
    since = min((job.started or job.created for job in lost), default=now) - _LAST_HEARTBEAT
    return not any(
        process.heartbeat >= since
        and process.holder not in holders
        and (runtime.process_has_ended(process.holder) or now - process.heartbeat > JOB_LEASE)
        for process in runtime.store.processes.list()
    )


class Reconciler:
    """Reconciles repeatedly, one process at a time, and reports each message once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reported: frozenset[str] = frozenset()

    def due(self) -> int:
        """Reconcile once; return 0, as what is left cannot go on at once."""
        runtime = self._runtime
        if not runtime.try_acquire_lease("reconcile", LEASE):
            return 0
        runtime.store.processes.release_claims(runtime.process_has_ended, runtime.clock.now())
        messages = reconcile_interrupted(runtime)
        for message in messages:
            if message not in self._reported:
                runtime.emit("reconciled", {"said": message})
        self._reported = frozenset(messages)
        _cancel_abandoned(runtime)
        forget_unused(runtime, FORGET_AFTER)
        ended = [p for p in runtime.store.processes.list() if runtime.clock.now() - p.heartbeat > FORGET_AFTER]
        runtime.store.processes.deregister([p.holder for p in ended])
        return 0


def _cancel_abandoned(runtime: Runtime) -> None:
    """Cancel queued jobs of catalogs that no process has configured, which would use up the limits for ever."""
    now, rows = runtime.clock.now(), runtime.store.catalogs.list()
    abandoned = [row.name for row in rows if row.is_abandoned(runtime.scopes, now)]
    for job in runtime.store.jobs.queued(abandoned) if abandoned else ():
        runtime.store.jobs.request_cancel(job.job_id, now)
        message = f"{job.ref}: job {job.job_id} was cancelled, as catalog {job.ref.catalog} is not configured any more"
        runtime.store.activity.record("reconciled", now, said=message)


def _resume_deletions(runtime: Runtime, unfinished: Unfinished) -> tuple[bool, str]:
    """Try to finish a job's planned deletions; return whether they ended, and a message."""
    waiting = f"{unfinished.ref}: deletions planned by job {unfinished.job_id} wait"
    if (pause := runtime.store.fleet.get()) is not None:
        return False, f"{waiting}: {pause}"
    if unfinished.ref.catalog not in runtime.catalogs:
        return False, f"{waiting}: catalog {unfinished.ref.catalog} is not configured any more"
    try:
        former_ref = unfinished.ref
        unfinished = replace(unfinished, ref=current_name(runtime, unfinished.ref, unfinished.table_uuid))
        for row in map(runtime.store.tables.get, {former_ref, unfinished.ref}):
            if row is not None and row.paused:  # perhaps for a broken invariant: a rollback may need the files
                return False, f"{waiting}: the table is paused ({row.paused})"
        knobs = _knobs(runtime, unfinished)
        if knobs is not None and (why := _orphans_stay(runtime, unfinished, knobs)):
            return False, f"{waiting}: {why}; `icewright give-up {unfinished.job_id}` drops them"
        outcome = runtime.engine.resume(unfinished, outside=knobs is None or knobs[OUTSIDE] == "delete")
    except (TableNotFound, TableReplaced) as error:  # the table was dropped, replaced or renamed
        if _may_be_renamed(runtime, unfinished):
            return False, f"{waiting}: {error}; the table may have a name that was not read yet"
        states = dict.fromkeys((f.path for f in unfinished.files), LedgerState.KEPT)
        runtime.store.ledger.record(unfinished.job_id, states, runtime.clock.now(), dict.fromkeys(states, str(error)))
        runtime.store.ledger.set_commit_intent(unfinished.job_id, None)
        return True, str(error)
    except IcewrightError as error:  # the plan stays in the ledger and is retried
        return False, f"{waiting}: {error}"
    except Exception as error:  # noqa: BLE001 - a bug with one table delays no other
        return False, f"{waiting}: unexpected {type(error).__name__}: {error}"
    runtime.store.runs.record_resumed(unfinished.ref.catalog, outcome)
    return True, f"{unfinished.ref}: {outcome.summary}"


def _may_be_renamed(runtime: Runtime, unfinished: Unfinished) -> bool:
    """Return whether a table of the catalog, as last listed, has the job's uuid or was not read yet.

    The answer is no once the deletions are overdue by `RENAME_LIMIT`: a table that cannot be read is never read.
    """
    uuid, catalog = unfinished.table_uuid, unfinished.ref.catalog
    if unfinished.due_at is None or runtime.clock.now() - unfinished.due_at > RENAME_LIMIT:
        return False
    uuids = {(r.ref, r.metadata_location): r.table_uuid for r in runtime.store.registrations.list()}
    rows = runtime.store.tables.list(catalog)
    return any(uuids.get((row.ref, row.metadata_location), uuid) == uuid for row in rows if not row.dropped)


def _knobs(runtime: Runtime, unfinished: Unfinished) -> Knobs | None:
    """Return the table's settings as they are now, with those that the job was given; None where branches are vacuumed.

    What the policy allowed when the files were planned, it need not allow any more.
    """
    ref, job = unfinished.ref, runtime.store.jobs.get(unfinished.job_id)
    if ref.catalog in runtime.vacuums:
        return None
    policy, own = runtime.policy(), job.options.get("set", {}) if job is not None else {}
    policy = replace(policy, command={**own, **policy.command})
    return policy.knobs_for(ref, runtime.catalogs[ref.catalog].load(ref))


def _orphans_stay(runtime: Runtime, unfinished: Unfinished, knobs: Knobs) -> str:
    """Return why orphans of a table are not removed any more; blank when they are.

    Files of a job that also expired snapshots are always deleted, as a commit has released them.
    """
    if unfinished.operations != (Operation.REMOVE_ORPHANS,):
        return ""
    if knobs[ORPHAN_MODE] == "report":
        return f"{ORPHAN_MODE.name} is report now"
    job, scope = runtime.store.jobs.get(unfinished.job_id), runtime.scopes[unfinished.ref.catalog]
    if job is not None and job.trigger == MANUAL:
        return ""
    removed = knobs[ENABLED[Operation.REMOVE_ORPHANS]] and scope.enabled and scope.contains(unfinished.ref)
    return "" if removed else "orphans of the table are not removed any more"
