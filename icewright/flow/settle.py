"""After processes that ended without a word: their jobs are ended, and planned deletions finished by a fresh proof."""

from __future__ import annotations

from datetime import timedelta

from icewright.core.errors import IcewrightError, TableNotFound, TableReplaced
from icewright.core.policy import ENABLED, Operation
from icewright.core.runs import JobState
from icewright.flow.breaker import break_off
from icewright.flow.undo import release_abandoned_undos
from icewright.flow.world import World
from icewright.ports import BY_HAND, LedgerState, Unfinished

MOST_INTERRUPTED = 10  # jobs in a row: what ends its process so often must not be tried for ever
TURN = timedelta(minutes=2)  # how long a process that settles keeps others from it
SILENT = timedelta(days=1)  # after which a process that says nothing is forgotten


def settle_interrupted(world: World) -> list[str]:
    """End jobs whose process is gone, and finish planned deletions after a fresh proof. Says what was done."""
    done: list[str] = []
    waiting: list[str] = []
    for job in world.store.interrupted(world.clock.now(), world.dead):
        done.append(f"{job.ref}: job {job.job_id} was interrupted")
        break_off(world, job.ref, JobState.INTERRUPTED, MOST_INTERRUPTED, "were interrupted")
    released, left = release_abandoned_undos(world)
    done += released
    waiting += left
    for unfinished in world.store.unfinished(world.clock.now()):
        finished, said = _resumed(world, unfinished)
        (done if finished else waiting).append(said)
    for line in done:
        world.store.event("settled", world.clock.now(), said=line)
    return done + waiting


class Settling:
    """Settling again and again: one process at a time, and nothing told twice."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: frozenset[str] = frozenset()

    def due(self) -> int:
        """Settle what there is; returns 0, for what is left then waits for its reason to end."""
        world = self._world
        if not world.turn("settle", TURN):
            return 0
        world.store.abandon(world.dead)
        said = settle_interrupted(world)
        for line in said:
            if line not in self._told:
                world.tell("settled", {"said": line})
        self._told = frozenset(said)
        _let_go(world)
        ended = [p for p in world.store.processes() if world.clock.now() - p.heartbeat > SILENT]
        world.store.gone([p.holder for p in ended])
        return 0


def _let_go(world: World) -> None:
    """Cancel what waits for catalogs that nobody looks after: it would keep its place in the limits for ever."""
    now, rows = world.clock.now(), world.store.catalogs()
    lost = [row.name for row in rows if row.left(world.scopes, now)]
    for job in world.store.queued(lost) if lost else ():
        world.store.request_cancel(job.job_id, now)
        said = f"{job.ref}: job {job.job_id} was cancelled, as catalog {job.ref.catalog} is not configured any more"
        world.store.event("settled", now, said=said)


def _resumed(world: World, unfinished: Unfinished) -> tuple[bool, str]:
    """Whether the deletions came to an end, and what there is to say."""
    waiting = f"{unfinished.ref}: deletions planned by job {unfinished.job_id} wait"
    row = world.store.table(unfinished.ref)
    if row is not None and row.paused:  # a broken invariant, perhaps: the files may be what a rollback needs
        return False, f"{waiting}: the table is paused ({row.paused})"
    if unfinished.ref.catalog not in world.catalogs:
        return False, f"{waiting}: catalog {unfinished.ref.catalog} is not configured any more"
    try:
        if _switched_off(world, unfinished):
            return False, f"{waiting}: orphans of the table are not removed any more"
        outcome = world.engine.resume(unfinished)
    except (TableNotFound, TableReplaced) as error:  # its files are not ours any more
        states = dict.fromkeys((f.path for f in unfinished.files), LedgerState.KEPT)
        world.store.settle(unfinished.job_id, states, world.clock.now())
        world.store.intend(unfinished.job_id, None)
        return True, str(error)
    except IcewrightError as error:  # the plan stays in the ledger for the next time
        return False, f"{waiting}: {error}"
    except Exception as error:  # noqa: BLE001 - a fault of ours with one table keeps no other's plans waiting
        return False, f"{waiting}: unexpected {type(error).__name__}: {error}"
    world.store.work_finished(unfinished.ref.catalog, outcome)
    return True, f"{unfinished.ref}: {outcome.summary}"


def _switched_off(world: World, unfinished: Unfinished) -> bool:
    """Whether the files are orphans, which no commit owes anybody, of a table where nothing does so by itself now.

    Of a job that did more, some of them may be what an expiry let go of.
    """
    ref, job = unfinished.ref, world.store.job(unfinished.job_id)
    by_hand = job is not None and job.trigger == BY_HAND
    if by_hand or unfinished.operations != (Operation.REMOVE_ORPHANS,) or ref.catalog in world.vacuums:
        return False
    scope, metadata = world.scopes[ref.catalog], world.catalogs[ref.catalog].load(ref)
    enabled = world.policy().knobs_for(ref, metadata)[ENABLED[Operation.REMOVE_ORPHANS]]
    return not (enabled and scope.enabled and scope.holds(ref))
