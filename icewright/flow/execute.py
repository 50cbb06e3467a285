"""One job: its operations in order on one table, each with its before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from icewright.core.describe import facts_summary
from icewright.core.effective import Knobs
from icewright.core.errors import Cancelled, IcewrightError, LeaseLost, StorageUnavailable, TableNotFound, TableReplaced
from icewright.core.policy import BREAKER, ORDER, ORDERS, TIMEOUT, WINDOWS, Operation
from icewright.core.runs import JobState, OperationState, Outcome, deferred, job_state, job_summary
from icewright.core.table import TableFacts, TableRef
from icewright.core.verdicts import thresholds
from icewright.core.windows import closed
from icewright.flow.breaker import break_off
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.impact import REWRITES, Measuring
from icewright.flow.lease import NoLease, lease_heartbeat
from icewright.flow.operation import OperationRunner, Request, Stop, load
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, JobRow, RunRow

_LOOK = timedelta(hours=1)  # at a table on which nothing is done


@dataclass(frozen=True)
class JobResult:
    """What became of a job. `job_id` is None when none was started; `reason` says why, or why it ended early."""

    ref: TableRef
    job_id: str | None
    state: JobState
    outcomes: tuple[Outcome, ...]
    dry_run: bool = False
    reason: str = ""

    @property
    def summary(self) -> str:
        """Return the operations' summaries joined, and why it ended early."""
        return "; ".join(text for text in (job_summary(self.outcomes), self.reason) if text)


def execute(runtime: Runtime, request: Request) -> JobResult:
    """Run one job to its end. Never raises for what goes wrong with the table: that is the result."""

    def no_job(state: JobState, reason: str) -> JobResult:
        return JobResult(request.ref, None, state, (), request.dry_run, reason)

    try:
        metadata = load(runtime, request)
        knobs = runtime.policy().knobs_for(request.ref, metadata)
    except (TableNotFound, TableReplaced) as error:
        return no_job(JobState.SKIPPED, str(error))
    except IcewrightError as error:
        return no_job(JobState.FAILED, str(error))
    order = ORDERS[knobs[ORDER]]
    operations = tuple(sorted(request.operations, key=order.index))
    request = replace(request, operations=operations, table_uuid=metadata.table_uuid)
    if request.dry_run:
        outcomes = tuple(OperationRunner(runtime, request, op, "dry-run", NoLease(), knobs).run() for op in operations)
        return JobResult(request.ref, None, job_state(outcomes), outcomes, dry_run=True)
    against = _out_of_bounds(runtime, request) or _held_up(runtime, request, knobs)  # a pass may have begun long ago
    if against is not None:
        return no_job(JobState.SKIPPED, against)
    pool = runtime.scopes[request.ref.catalog].pool
    job_id = runtime.store.jobs.claim(
        request.ref, metadata.table_uuid, operations, runtime.trigger, runtime.clock.now(), pool
    )
    if job_id is None:
        return no_job(JobState.SKIPPED, "another job holds the table")
    return _run(runtime, request, job_id, knobs)


def execute_taken(runtime: Runtime, job: JobRow) -> JobResult:
    """Run a job that waited in the queue and was taken from it; the table is judged as it is now."""
    options = dict(job.options)
    if options.get("set"):
        policy = runtime.policy
        runtime = replace(runtime, policy=lambda: replace(policy(), command=options["set"]))
    manual, force = job.trigger == MANUAL, bool(options.get("force"))
    request = Request(job.ref, job.operations, job.table_uuid, manual=manual, force=force)
    try:
        metadata = load(runtime, request)
        knobs = runtime.policy().knobs_for(request.ref, metadata)
    except IcewrightError as error:
        gone = isinstance(error, TableNotFound | TableReplaced)
        state = JobState.SKIPPED if gone else JobState.FAILED
        return _not_begun(runtime, job, state, str(error))
    order = ORDERS[knobs[ORDER]]
    request = replace(request, operations=tuple(sorted(request.operations, key=order.index)))
    if (against := _out_of_bounds(runtime, request)) is not None:  # whoever planned it knows another configuration
        _put_off(runtime, request, request.operations, job.job_id, knobs, against)
        return _not_begun(runtime, job, JobState.CANCELLED, against)
    if (against := _held_up(runtime, request, knobs)) is not None:
        return _not_begun(runtime, job, JobState.CANCELLED, against)
    return _run(runtime, request, job.job_id, knobs)


def _held_up(runtime: Runtime, request: Request, knobs: Knobs) -> str | None:
    """Return what has come up since the job was queued, because of which it waits."""
    row = runtime.store.tables.get(request.ref)
    if row is not None and row.paused and not request.force:
        return f"paused: {row.paused}"
    return None if request.manual else closed(knobs[WINDOWS], runtime.clock.now())


def _out_of_bounds(runtime: Runtime, request: Request) -> str | None:
    """Return why nothing may be done to the table by itself."""
    scope, catalog = runtime.scopes[request.ref.catalog], request.ref.catalog
    if request.manual:
        return None
    if not scope.enabled:
        return f"catalog {catalog} is not enabled any more"
    return None if scope.holds(request.ref) else f"the table is not in the scope of catalog {catalog} any more"


def _not_begun(runtime: Runtime, job: JobRow, state: JobState, reason: str) -> JobResult:
    result = JobResult(job.ref, job.job_id, state, (), reason=reason)
    with lease_heartbeat(runtime, job.job_id, _LOOK):
        _finished(runtime, job.job_id, result)
    return result


def _put_off(
    runtime: Runtime, request: Request, operations: Sequence[Operation], job_id: str, knobs: Knobs, reason: str
) -> list[Outcome]:
    """Operations that were not begun and cool down all the same: else they would be planned again at once."""
    now, outcomes = runtime.clock.now(), [deferred(operation, reason) for operation in operations]
    for outcome in outcomes:
        run = RunRow(job_id, outcome, now, now, "", knobs.fingerprint, {}, {})
        runtime.retry_idempotent(partial(runtime.store.runs.record, run, request.ref))
    return outcomes


def _run(runtime: Runtime, request: Request, job_id: str, knobs: Knobs) -> JobResult:
    runtime.record_event("job_started", request.ref, {"job_id": job_id, "operations": request.operations})
    outcomes: list[Outcome] = []
    state: JobState | None = None
    reason = ""
    with lease_heartbeat(runtime, job_id, timedelta(seconds=knobs[TIMEOUT])) as lease:
        try:
            measuring = Measuring(runtime, job_id, lease, knobs)
            for operation in request.operations:
                outcome = _recorded(request, operation, measuring)
                outcomes.append(outcome)  # one by one: what is done stays told when the next raises
            state = job_state(tuple(outcomes))
        except (Stop, Cancelled, LeaseLost) as error:
            outcomes += [error.outcome] if isinstance(error, Stop) else []
            state, reason = _ended(error.why if isinstance(error, Stop) else error, outcomes)
            if state is JobState.CANCELLED and not runtime.stopping():
                left = request.operations[len(outcomes) :]
                outcomes += _put_off(runtime, request, left, job_id, knobs, reason)
        except StorageUnavailable:  # nobody can be told how it ended: whoever settles says so
            raise
        except Exception as error:  # a fault of ours is a failure: the same would begin again at once, and for ever
            state, reason = JobState.FAILED, f"unexpected {type(error).__name__}: {error}"
            raise
        finally:
            ended = state or JobState.INTERRUPTED  # the process ends: the next start settles what is left
            result = JobResult(request.ref, job_id, ended, tuple(outcomes), reason=reason)
            _finished(_as_ever(runtime) if request.manual else runtime, job_id, result)
    runtime.record_event("job_finished", request.ref, {"job_id": job_id, "state": ended, "summary": result.summary})
    return result


def _ended(error: IcewrightError, outcomes: Sequence[Outcome]) -> tuple[JobState, str]:
    """Return what a job that ended early came to, and why where its outcomes do not say."""
    match error:
        case Cancelled():
            return JobState.CANCELLED, f"cancelled: {error}"
        case LeaseLost():
            return JobState.INTERRUPTED, str(error)
    return job_state(tuple(outcomes)), ""


def _recorded(request: Request, operation: Operation, measuring: Measuring) -> Outcome:
    """Return one operation with its before and after in the store."""
    runtime, job_id, lease, knobs = measuring.runtime, measuring.job_id, measuring.lease, measuring.knobs
    lease.check()
    started = runtime.clock.now()
    who: dict[str, Any] = {"job_id": job_id, "operation": operation}
    runtime.record_event("operation_started", request.ref, who)
    before, old = _numbers(runtime, request.ref, knobs)
    attempts = OperationRunner(runtime, request, operation, job_id, lease, knobs)
    stop: Stop | None = None
    try:
        outcome = attempts.run()
    except Stop as stopped:
        outcome, stop = stopped.outcome, stopped
    after, new = (dict(before), old)
    if outcome.state is not OperationState.SKIPPED:
        after, new = _numbers(runtime, request.ref, knobs)
    location = after.pop("metadata_location", "")
    before.pop("metadata_location", None)
    rewrote = operation in REWRITES and outcome.state is OperationState.COMMITTED and stop is None
    finished = runtime.clock.now()
    if rewrote and old is not None and new is not None:
        impact = measuring.of(attempts.tried, old, new)
        before, after = {**before, **impact.before}, {**after, **impact.after}
        outcome = replace(outcome, notes=(*outcome.notes, *impact.notes))
    run = RunRow(job_id, outcome, started, finished, location, knobs.fingerprint, before, after)
    runtime.retry_idempotent(partial(runtime.store.runs.record, run, request.ref))
    runtime.record_event("operation_finished", request.ref, {**who, "state": outcome.state, "summary": outcome.summary})
    if stop is not None:
        raise stop
    return outcome


def _numbers(runtime: Runtime, ref: TableRef, knobs: Knobs) -> tuple[dict[str, Any], TableFacts | None]:
    """The table in numbers; why there are none when it cannot be read now, which the operation itself will say."""
    try:
        metadata = runtime.catalog(ref).load(ref)
        facts = runtime.files.facts(metadata, thresholds(knobs, metadata.sort_order))
    except Exception as error:  # noqa: BLE001 - whatever it is, the operation will meet it too
        return {"unreadable": str(error)}, None
    return {**facts_summary(facts), "metadata_location": metadata.metadata_location}, facts


def _as_ever(runtime: Runtime) -> Runtime:
    """Without the knobs that somebody set for one job alone."""
    policy = runtime.policy
    return replace(runtime, policy=lambda: replace(policy(), command={}))


def _finished(runtime: Runtime, job_id: str, result: JobResult) -> None:
    """The job's end; too many failures pause the table.

    The table is evaluated as the job left it, so that own commits are no change; and while it is held still, as
    whoever plans in between would go by what was true before the job.
    """
    evaluation = None
    try:
        if result.state is not JobState.INTERRUPTED:
            evaluation = evaluate_and_record(runtime, result.ref, runtime.clock.now())
    finally:
        runtime.retry_idempotent(
            lambda: runtime.store.jobs.finish(job_id, result.state, result.summary, runtime.clock.now())
        )
    if result.state is JobState.FAILED:
        metadata = evaluation.facts.metadata if evaluation is not None else None
        limit = runtime.policy().knobs_for(result.ref, metadata)[BREAKER]
        break_off(runtime, result.ref, result.state, limit, "failed")
