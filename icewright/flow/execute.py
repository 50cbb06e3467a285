"""One job: its operations in order on one table, each verified, each judged again on the table as it then is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from icewright.core import verify
from icewright.core.describe import facts_summary
from icewright.core.errors import (
    Cancelled,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    InvariantViolated,
    LeaseLost,
    Refused,
    RetryableError,
    TableNotFound,
    TableReplaced,
)
from icewright.core.policy import BREAKER, COMMIT_RETRIES, RETRIES, TIMEOUT, Operation
from icewright.core.runs import (
    REFUSED,
    JobState,
    OperationState,
    Outcome,
    backoff,
    deferred,
    failed,
    job_state,
    job_summary,
    skipped,
)
from icewright.core.steps import (
    Blocked,
    Due,
    ExpireSnapshots,
    RewriteDataFiles,
    RewritePositionDeletes,
    Unsupported,
    why,
)
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import verdict
from icewright.flow.evaluate import evaluate_and_record, read_facts
from icewright.flow.world import World
from icewright.ports import Assignment, LedgerState, RunRow

HEARTBEAT_SECONDS = 30


@dataclass(frozen=True)
class Request:
    """What to do to one table. `table_uuid` None: whatever the table is now."""

    ref: TableRef
    operations: tuple[Operation, ...]
    table_uuid: str | None = None
    by_hand: bool = False
    force: bool = False  # look past what history says: cadence, cooldowns, a last run that found nothing
    dry_run: bool = False


@dataclass(frozen=True)
class JobResult:
    """What became of a job. `job_id` is None when none was started."""

    ref: TableRef
    job_id: str | None
    state: JobState
    outcomes: tuple[Outcome, ...]
    dry_run: bool = False
    reason: str = ""

    @property
    def summary(self) -> str:
        """The operations' summaries joined, or why nothing ran."""
        return job_summary(self.outcomes) or self.reason


def execute(world: World, request: Request) -> JobResult:
    """Run one job to its end. Never raises for what goes wrong with the table: that is the result."""
    try:
        metadata = _load(world, request)
    except (TableNotFound, TableReplaced) as error:
        return JobResult(request.ref, None, JobState.SKIPPED, (), request.dry_run, str(error))
    if request.dry_run:
        outcomes = tuple(
            _operation(world, request, op, "dry-run", _Lease(world, "dry-run")) for op in request.operations
        )
        return JobResult(request.ref, None, job_state(outcomes), outcomes, dry_run=True)
    job_id = world.store.claim(request.ref, metadata.table_uuid, request.operations, world.trigger, world.clock.now())
    if job_id is None:
        return JobResult(request.ref, None, JobState.SKIPPED, (), reason="another job holds the table")
    return _run(world, replace(request, table_uuid=metadata.table_uuid), job_id)


def _run(world: World, request: Request, job_id: str) -> JobResult:
    world.tell("job_started", {"job_id": job_id, "table": str(request.ref), "operations": request.operations})
    outcomes: list[Outcome] = []
    state: JobState | None = None
    try:
        limit = timedelta(seconds=world.policy().knobs_for(request.ref, None)[TIMEOUT])
        with _heartbeat(world, job_id, limit) as lease:
            for operation in request.operations:
                try:
                    outcomes.append(_recorded(world, request, operation, job_id, lease))
                except Cancelled:
                    state = JobState.CANCELLED
                    break
        state = state or job_state(tuple(outcomes))
    finally:
        done = tuple(outcomes)
        ended = state or JobState.INTERRUPTED  # an error of ours: the next start settles what is left
        world.store.finish(job_id, ended, job_summary(done), world.clock.now())
    _after(world, request, state)
    world.tell(
        "job_finished", {"job_id": job_id, "table": str(request.ref), "state": state, "summary": job_summary(done)}
    )
    return JobResult(request.ref, job_id, state, done)


def _recorded(world: World, request: Request, operation: Operation, job_id: str, lease: _Lease) -> Outcome:
    """One operation with its before and after in the store."""
    lease.check()
    started = world.clock.now()
    world.tell("operation_started", {"job_id": job_id, "table": str(request.ref), "operation": operation})
    before = _summary(world, request.ref)
    outcome = _operation(world, request, operation, job_id, lease)
    after = _summary(world, request.ref) if outcome.state is not OperationState.SKIPPED else before
    location = after.pop("metadata_location", "")
    before.pop("metadata_location", None)
    run = RunRow(job_id, outcome, started, world.clock.now(), location, before, after)
    world.store.run_recorded(run, request.ref)
    world.tell(
        "operation_finished",
        {
            "job_id": job_id,
            "table": str(request.ref),
            "operation": operation,
            "state": outcome.state,
            "summary": outcome.summary,
        },
    )
    return outcome


def _summary(world: World, ref: TableRef) -> dict[str, Any]:
    """The table in numbers; empty when it cannot be read now, which the operation itself will say."""
    try:
        metadata = world.catalog(ref).load(ref)
        facts, _ = read_facts(world, metadata)
    except IcewrightError as error:
        return {"unreadable": str(error)}
    return {**facts_summary(facts), "metadata_location": metadata.metadata_location}


def _operation(world: World, request: Request, operation: Operation, job_id: str, lease: _Lease) -> Outcome:
    """One operation, planned again from fresh metadata when a commit is lost, up to the knob's limit."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return _attempt(world, request, operation, job_id, lease)
        except CommitConflict as error:
            limit = world.policy().knobs_for(request.ref, None)[COMMIT_RETRIES]
            if attempt > limit:
                return deferred(operation, f"lost the commit {attempt} times to other writers: {error}")
            world.clock.sleep(backoff(attempt).total_seconds())
        except (Cancelled, LeaseLost):
            raise
        except Refused as error:
            return skipped(operation, f"{REFUSED}: {error}")
        except InvariantViolated as error:
            world.store.pause(request.ref, f"verification failed: {error}")
            return failed(operation, f"{error}; the table is paused")
        except CommitStateUnknown as error:
            return failed(operation, f"{error}; nothing was cleaned up")
        except RetryableError as error:
            if attempt > world.policy().knobs_for(request.ref, None)[RETRIES]:
                return failed(operation, str(error))
            world.clock.sleep(backoff(attempt).total_seconds())
        except IcewrightError as error:
            return failed(operation, str(error))


def _attempt(world: World, request: Request, operation: Operation, job_id: str, lease: _Lease) -> Outcome:
    now = world.clock.now()
    metadata = _load(world, request)
    facts, knobs = read_facts(world, metadata)
    history = {} if request.force or request.by_hand else world.store.history(request.ref, metadata.table_uuid)
    found = verdict(operation, facts, knobs, history, now, by_hand=request.by_hand)
    match found:
        case Due(work=work):
            outcomes: list[Outcome] = []
            for step in work.steps:
                lease.check()
                base = metadata if not outcomes else _load(world, request)
                assignment = Assignment(job_id, operation, step, base, request.dry_run, lease.cancelled)
                outcomes.append(world.engine.run(assignment))
                if not request.dry_run:
                    _verify(world, request, facts, step)
            return _merged(operation, outcomes, work.notes)
        case Blocked() | Unsupported():
            return skipped(operation, why(found))
        case _:
            return skipped(operation, why(found))


def _verify(world: World, request: Request, before: TableFacts, step: Any) -> None:  # noqa: ANN401 - any step
    """What the commit must have kept, read back from the catalog."""
    after = world.catalog(request.ref).load(request.ref)
    broken: list[str] = []
    if isinstance(step, RewriteDataFiles | RewritePositionDeletes):
        broken = verify.rewrites_kept(before, after)
    if after.table_uuid != before.metadata.table_uuid:
        raise TableReplaced(f"{request.ref} was replaced while the job ran")
    if not isinstance(step, ExpireSnapshots):
        known = {r.name for r in after.refs}
        gone = [r.name for r in before.metadata.refs if r.name not in known]
        if gone and not _snapshots_removed(before.metadata, after):
            broken += [f"ref {name} is gone" for name in gone]
    if broken:
        raise InvariantViolated(f"{request.ref}: {'; '.join(broken)}")


def _snapshots_removed(before: TableMetadata, after: TableMetadata) -> bool:
    """Whether somebody else expired snapshots meanwhile: then refs may have gone with them."""
    return not set(before.by_id) <= set(after.by_id)


def _merged(operation: Operation, outcomes: Sequence[Outcome], notes: Sequence[str]) -> Outcome:
    """The steps of one operation as one outcome: numbers added, the summary said anew."""
    if len(outcomes) == 1:
        return replace(outcomes[0], notes=(*notes, *outcomes[0].notes))
    real = [o for o in outcomes if o.state is OperationState.COMMITTED] or list(outcomes[:1])
    metrics: dict[str, float] = {}
    for outcome in real:
        for name, value in outcome.metrics.items():
            metrics[name] = metrics.get(name, 0) + value
    summary = real[0].summary if len(real) == 1 else "; ".join(o.summary for o in real)
    if operation is Operation.COMPACT and len(real) > 1 and "files_merged" in metrics:
        summary = (
            f"compacted {metrics['files_merged']:g} files into {metrics['files_written']:g} "
            f"(across {metrics['bins']:g} bins)"
        )
    return replace(
        real[0],
        summary=summary,
        metrics=metrics,
        files=tuple(f for o in outcomes for f in o.files),
        statements=tuple(s for o in outcomes for s in o.statements),
        notes=(*notes, *(n for o in outcomes for n in o.notes)),
    )


def _load(world: World, request: Request) -> TableMetadata:
    metadata = world.catalog(request.ref).load(request.ref)
    if request.table_uuid is not None and metadata.table_uuid != request.table_uuid:
        raise TableReplaced(f"{request.ref} is another table now (its uuid changed): evaluate it anew")
    return metadata


def _after(world: World, request: Request, state: JobState) -> None:
    """The table as the job left it is evaluated, so that own commits are no change; too many failures pause it."""
    now = world.clock.now()
    evaluation = evaluate_and_record(world, request.ref, now)
    if state is JobState.FAILED and evaluation is not None:
        knobs = world.policy().knobs_for(request.ref, evaluation.facts.metadata)
        failures = world.store.failures(request.ref)
        if failures >= knobs[BREAKER]:
            world.store.pause(
                request.ref, f"{failures} jobs failed in a row; `icewright resume {request.ref}` when mended"
            )


class _Lease:
    """Whether the job may go on: it holds its table still, and nobody asked it to stop."""

    def __init__(self, world: World, job_id: str, limit: timedelta | None = None) -> None:
        self._world, self._job_id, self.lost = world, job_id, False
        self._until = None if limit is None else world.clock.now() + limit

    def cancelled(self) -> bool:
        return self._world.store.cancel_requested(self._job_id)

    def check(self) -> None:
        """Raises `LeaseLost` or `Cancelled`."""
        if self.lost:
            raise LeaseLost(f"job {self._job_id} does not hold its table any more")
        if self.cancelled():
            raise Cancelled(f"job {self._job_id} was asked to stop")
        if self._until is not None and self._world.clock.now() >= self._until:
            raise Cancelled(f"job {self._job_id} ran longer than execute.timeout_seconds")


@contextmanager
def _heartbeat(world: World, job_id: str, limit: timedelta) -> Iterator[_Lease]:
    """Renews the lease beside the work, which may block for long."""
    lease, stop = _Lease(world, job_id, limit), threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                lease.lost = not world.store.heartbeat(job_id, world.clock.now())
            except IcewrightError:  # the store is away for a moment: the lease outlives some beats
                continue

    thread = threading.Thread(target=beat, name=f"heartbeat {job_id}", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        stop.set()
        thread.join()


def settle_interrupted(world: World, dead: Callable[[str], bool]) -> list[str]:
    """At a start: end jobs whose process is gone, and finish planned deletions after a fresh proof."""
    said = [f"{job.ref}: job {job.job_id} was interrupted" for job in world.store.interrupted(world.clock.now(), dead)]
    for unfinished in world.store.unfinished():
        try:
            said.append(f"{unfinished.ref}: {world.engine.resume(unfinished).summary}")
        except (TableNotFound, TableReplaced) as error:  # its files are not ours any more
            states = dict.fromkeys((f.path for f in unfinished.files), LedgerState.KEPT)
            world.store.settle(unfinished.job_id, states, world.clock.now())
            said.append(str(error))
        except IcewrightError as error:  # the plan stays in the ledger for the next start
            said.append(f"{unfinished.ref}: deletions of job {unfinished.job_id} wait: {error}")
    for line in said:
        world.store.event("settled", world.clock.now(), said=line)
    return said
