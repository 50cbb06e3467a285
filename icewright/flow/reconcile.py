"""After processes that ended without a word: their jobs are ended, and planned deletions finished by a fresh proof."""

from __future__ import annotations

from datetime import timedelta

from icewright.core.errors import IcewrightError, TableNotFound, TableReplaced
from icewright.core.policy import ENABLED, Operation
from icewright.core.runs import JobState
from icewright.flow.breaker import break_off
from icewright.flow.runtime import Runtime
from icewright.flow.undo import release_abandoned_undos
from icewright.ports import MANUAL, LedgerState, Unfinished

MOST_INTERRUPTED = 10  # jobs in a row: what ends its process so often must not be tried for ever
TURN = timedelta(minutes=2)  # how long a process that settles keeps others from it
SILENT = timedelta(days=1)  # after which a process that says nothing is forgotten


def reconcile_interrupted(runtime: Runtime) -> list[str]:
    """End jobs whose process is gone, and finish planned deletions after a fresh proof. Says what was done."""
    done = end_interrupted(runtime)
    released, waiting = release_abandoned_undos(runtime)
    done += released
    for unfinished in runtime.store.ledger.unfinished(runtime.clock.now()):
        finished, said = _resumed(runtime, unfinished)
        (done if finished else waiting).append(said)
    for line in done:
        runtime.store.activity.record("reconciled", runtime.clock.now(), said=line)
    return done + waiting


def end_interrupted(runtime: Runtime) -> list[str]:
    """End jobs whose process is gone, and delete nothing. Says which."""
    done: list[str] = []
    for job in runtime.store.jobs.end_interrupted(runtime.clock.now(), runtime.process_has_ended):
        done.append(f"{job.ref}: job {job.job_id} was interrupted")
        break_off(runtime, job.ref, JobState.INTERRUPTED, MOST_INTERRUPTED, "were interrupted")
    return done


class Reconciler:
    """Settling again and again: one process at a time, and nothing told twice."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told: frozenset[str] = frozenset()

    def due(self) -> int:
        """Settle what there is; returns 0, for what is left then waits for its reason to end."""
        runtime = self._runtime
        if not runtime.try_acquire_lease("reconcile", TURN):
            return 0
        runtime.store.processes.release_claims(runtime.process_has_ended)
        said = reconcile_interrupted(runtime)
        for line in said:
            if line not in self._told:
                runtime.emit("reconciled", {"said": line})
        self._told = frozenset(said)
        _let_go(runtime)
        ended = [p for p in runtime.store.processes.list() if runtime.clock.now() - p.heartbeat > SILENT]
        runtime.store.processes.deregister([p.holder for p in ended])
        return 0


def _let_go(runtime: Runtime) -> None:
    """Cancel what waits for catalogs that nobody looks after: it would keep its place in the limits for ever."""
    now, rows = runtime.clock.now(), runtime.store.catalogs.list()
    lost = [row.name for row in rows if row.left(runtime.scopes, now)]
    for job in runtime.store.jobs.queued(lost) if lost else ():
        runtime.store.jobs.request_cancel(job.job_id, now)
        said = f"{job.ref}: job {job.job_id} was cancelled, as catalog {job.ref.catalog} is not configured any more"
        runtime.store.activity.record("reconciled", now, said=said)


def _resumed(runtime: Runtime, unfinished: Unfinished) -> tuple[bool, str]:
    """Return whether the deletions came to an end, and what there is to say."""
    waiting = f"{unfinished.ref}: deletions planned by job {unfinished.job_id} wait"
    row = runtime.store.tables.get(unfinished.ref)
    if row is not None and row.paused:  # a broken invariant, perhaps: the files may be what a rollback needs
        return False, f"{waiting}: the table is paused ({row.paused})"
    if unfinished.ref.catalog not in runtime.catalogs:
        return False, f"{waiting}: catalog {unfinished.ref.catalog} is not configured any more"
    try:
        if _switched_off(runtime, unfinished):
            return False, f"{waiting}: orphans of the table are not removed any more"
        outcome = runtime.engine.resume(unfinished)
    except (TableNotFound, TableReplaced) as error:  # its files are not ours any more
        states = dict.fromkeys((f.path for f in unfinished.files), LedgerState.KEPT)
        runtime.store.ledger.record(unfinished.job_id, states, runtime.clock.now())
        runtime.store.ledger.set_commit_intent(unfinished.job_id, None)
        return True, str(error)
    except IcewrightError as error:  # the plan stays in the ledger for the next time
        return False, f"{waiting}: {error}"
    except Exception as error:  # noqa: BLE001 - a fault of ours with one table keeps no other's plans waiting
        return False, f"{waiting}: unexpected {type(error).__name__}: {error}"
    runtime.store.runs.record_resumed(unfinished.ref.catalog, outcome)
    return True, f"{unfinished.ref}: {outcome.summary}"


def _switched_off(runtime: Runtime, unfinished: Unfinished) -> bool:
    """Whether the files are orphans, which no commit owes anybody, of a table where nothing does so by itself now.

    Of a job that did more, some of them may be what an expiry let go of.
    """
    ref, job = unfinished.ref, runtime.store.jobs.get(unfinished.job_id)
    manual = job is not None and job.trigger == MANUAL
    if manual or unfinished.operations != (Operation.REMOVE_ORPHANS,) or ref.catalog in runtime.vacuums:
        return False
    scope, metadata = runtime.scopes[ref.catalog], runtime.catalogs[ref.catalog].load(ref)
    enabled = runtime.policy().knobs_for(ref, metadata)[ENABLED[Operation.REMOVE_ORPHANS]]
    return not (enabled and scope.enabled and scope.holds(ref))
