"""Jobs: run operations in order on one table, and record the table before and after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from icewright.core.breakers import SHARED, UNAVAILABLE, resources
from icewright.core.describe import facts_summary
from icewright.core.effective import Knobs
from icewright.core.errors import (
    Cancelled,
    FaultOwner,
    IcewrightError,
    LeaseLost,
    StorageUnavailable,
    StoreUnavailable,
    TableNotFound,
    TableReplaced,
    explained,
)
from icewright.core.layering import Policy
from icewright.core.policy import BREAKER, ON_POOL, ORDER, ORDERS, STALL, TIMEOUT, WINDOWS, WINDOWS_END, Operation
from icewright.core.runs import JobState, OperationState, Outcome, deferred, job_fault, job_state, job_summary
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, thresholds
from icewright.core.windows import closed, closes
from icewright.flow.breakers import claim_probes, hanging_call, pause_after_failures, record_fault, record_success
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.impact import REWRITES, Measuring
from icewright.flow.lease import Lease, NoLease, why_unclaimed
from icewright.flow.operation import OperationRunner, Request, Stop, load
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, JobRow, RunRow
from icewright.ports.work import WorkState, catalog_context

HANGS_AFTER = 5.0  # seconds without progress, after which a thread is said to hang


@dataclass(frozen=True)
class JobResult:
    """The result of a job. `job_id` is None when none was started; `reason` says why, or why the job ended early."""

    ref: TableRef
    job_id: str | None
    state: JobState
    outcomes: tuple[Outcome, ...]
    dry_run: bool = False
    reason: str = ""
    fault: FaultOwner | None = None  # whose fault it was that no operation ran

    @property
    def summary(self) -> str:
        """Return the summaries of the operations, and why the job ended early."""
        return "; ".join(text for text in (job_summary(self.outcomes), self.reason) if text)


def execute(runtime: Runtime, request: Request) -> JobResult:
    """Run one job to its end; errors of the table are part of the result and are not raised."""

    def no_job(state: JobState, reason: str) -> JobResult:
        return JobResult(request.ref, None, state, (), request.dry_run, reason)

    if runtime.stopping():
        return no_job(JobState.SKIPPED, "the process stops")
    if (unavailable := _unavailable(runtime, request)) is not None:
        return no_job(JobState.SKIPPED, unavailable)
    try:
        metadata = load(runtime, request.ref, request.table_uuid)
        policy, paused = _policy_and_pause(runtime, request)
        knobs = policy.knobs_for(request.ref, metadata)
    except (TableNotFound, TableReplaced) as error:
        return no_job(JobState.SKIPPED, str(error))
    except IcewrightError as error:
        if error.owner in SHARED and not request.dry_run and not request.manual:
            record_fault(runtime, error, request.ref)
            return no_job(JobState.SKIPPED, f"{UNAVAILABLE}: {error}")
        return no_job(JobState.FAILED, str(error))
    request = replace(request, operations=_in_order(request, knobs), table_uuid=metadata.table_uuid)
    if request.dry_run:
        runners = (OperationRunner(runtime, request, op, "dry-run", NoLease(), knobs) for op in request.operations)
        outcomes = tuple(runner.run() for runner in runners)
        return JobResult(request.ref, None, job_state(outcomes), outcomes, dry_run=True)
    reason = _out_of_bounds(runtime, request) or paused or _closed(runtime, request, knobs)  # the plan may be old
    if reason is not None:
        return no_job(JobState.SKIPPED, reason)
    now, pool = runtime.clock.now(), runtime.scopes[request.ref.catalog].pool
    options = {"set": dict(policy.command)} if policy.command else None
    with runtime.store.writing_together():
        job_id = runtime.store.jobs.claim(
            request.ref, metadata.table_uuid, request.operations, runtime.trigger, now, pool, options
        )
        if job_id is not None:
            runtime.store.activity.record("job_started", now, request.ref, **_started(request, job_id))
    if job_id is None:
        return no_job(JobState.SKIPPED, why_unclaimed(runtime, request.ref))
    with Lease(runtime, job_id, timedelta(seconds=knobs[TIMEOUT])).heartbeat() as lease:
        return _run_job(runtime, request, metadata, job_id, knobs, lease)


def execute_within(runtime: Runtime, request: Request, job_id: str, lease: Lease) -> JobResult:
    """Run operations as a part of a job that holds the table already, and that goes on after them."""
    knobs = runtime.policy().knobs_for(request.ref, load(runtime, request.ref, request.table_uuid))
    operations = _Operations(runtime, request, job_id, lease, knobs)
    try:
        for operation in _in_order(request, knobs):
            operations.run(operation)
    except Stop as stop:
        if isinstance(stop.why, Cancelled | LeaseLost):
            raise stop.why from stop
    outcomes = tuple(operations.outcomes)
    return JobResult(request.ref, job_id, job_state(outcomes), outcomes)


def execute_dequeued(runtime: Runtime, job: JobRow, lease: Lease | None = None) -> JobResult:
    """Run a dequeued job under its lease; the table is evaluated again, as it is now."""
    with (lease or Lease(runtime, job.job_id, timedelta(seconds=TIMEOUT.default))).heartbeat() as renewed:
        return _execute_dequeued(runtime, job, renewed)


def _execute_dequeued(runtime: Runtime, job: JobRow, lease: Lease) -> JobResult:
    options = dict(job.options)
    if options.get("set"):
        runtime = runtime.with_settings(options["set"])
    manual, force = job.trigger == MANUAL, bool(options.get("force"))
    request = Request(job.ref, job.operations, job.table_uuid, manual=manual, force=force)
    with suppress(IcewrightError):  # it is met again below
        _set_limits(lease, runtime.policy().knobs_for(job.ref, None))  # reading the table may hang, too
    if (unavailable := _unavailable(runtime, request)) is not None:
        return _release(runtime, job, unavailable)
    try:
        metadata = load(runtime, request.ref, request.table_uuid)
        policy, paused = _policy_and_pause(runtime, request)
        knobs = policy.knobs_for(request.ref, metadata)
    except StoreUnavailable:
        raise
    except IcewrightError as error:
        if error.owner in SHARED:
            record_fault(runtime, error, request.ref)
            return _release(runtime, job, f"{UNAVAILABLE}: {error}")
        missing = isinstance(error, TableNotFound | TableReplaced)
        state = JobState.SKIPPED if missing else JobState.FAILED
        return _end_unstarted(runtime, job, state, str(error), error.owner)
    request = replace(request, operations=_in_order(request, knobs))
    if (reason := _out_of_bounds(runtime, request)) is not None:  # the planner had another configuration
        defer(runtime, request.ref, request.operations, job.job_id, knobs.fingerprint, reason)
        return _end_unstarted(runtime, job, JobState.CANCELLED, reason)
    if (reason := paused or _closed(runtime, request, knobs)) is not None:
        return _end_unstarted(runtime, job, JobState.CANCELLED, reason)
    with suppress(StorageUnavailable):  # a failed report must not end the work
        runtime.store.activity.record("job_started", runtime.clock.now(), job.ref, **_started(request, job.job_id))
    return _run_job(runtime, request, metadata, job.job_id, knobs, lease)


def _started(request: Request, job_id: str) -> Mapping[str, Any]:
    """Return the details of the event that a job has started."""
    return {"job_id": job_id, "operations": request.operations}


def _in_order(request: Request, knobs: Knobs) -> tuple[Operation, ...]:
    """Return the operations in the order in which the policy has them run."""
    return tuple(sorted(request.operations, key=ORDERS[knobs[ORDER]].index))


def _set_limits(lease: Lease, knobs: Knobs, closing: datetime | None = None) -> None:
    lease.set_limits(timedelta(seconds=knobs[TIMEOUT]), timedelta(seconds=knobs[STALL]), closing)


def _policy_and_pause(runtime: Runtime, request: Request) -> tuple[Policy, str | None]:
    """Return the policy, and why fleet or table are paused, though the job was planned; None when they are not."""
    with runtime.store.reading_together():
        policy, pause, row = runtime.policy(), runtime.store.fleet.get(), runtime.store.tables.get(request.ref)
    if pause is not None:
        return policy, str(pause)
    return policy, f"paused: {row.paused}" if row is not None and row.paused and not request.force else None


def _closed(runtime: Runtime, request: Request, knobs: Knobs) -> str | None:
    """Return why no maintenance window is open for the job; None when one is."""
    return None if request.manual else closed(knobs[WINDOWS], runtime.clock.now())


def _out_of_bounds(runtime: Runtime, request: Request) -> str | None:
    """Return why the table is not maintained automatically; None when it is."""
    scope, catalog = runtime.scopes[request.ref.catalog], request.ref.catalog
    if request.manual:
        return None
    if not scope.enabled:
        return f"catalog {catalog} is not enabled any more"
    return None if scope.contains(request.ref) else f"the table is not in the scope of catalog {catalog} any more"


def _unavailable(runtime: Runtime, request: Request) -> str | None:
    """Return which catalog, storage place or pool the job must wait for; None when it may begin, perhaps as a probe."""
    if request.manual or request.dry_run:
        return None
    pool = runtime.scopes[request.ref.catalog].pool if ON_POOL & set(request.operations) else None
    return claim_probes(runtime, request.ref, pool)


def _release(runtime: Runtime, job: JobRow, reason: str) -> JobResult:
    """Give a queued job's table back without reading the table, as what the job needs does not answer."""
    result = JobResult(job.ref, job.job_id, JobState.CANCELLED, (), reason=reason)
    finish = partial(runtime.store.jobs.finish, job.job_id, result.state, result.summary, runtime.clock.now())
    runtime.retry_idempotent(finish)
    return result


def _end_unstarted(
    runtime: Runtime, job: JobRow, state: JobState, reason: str, fault: FaultOwner | None = None
) -> JobResult:
    result = JobResult(job.ref, job.job_id, state, (), reason=reason, fault=fault)
    _finish(runtime, job.job_id, result)
    return result


def defer(
    runtime: Runtime, ref: TableRef, operations: Sequence[Operation], job_id: str, policy: str, reason: str
) -> list[Outcome]:
    """Record operations as deferred, so that their cooldown begins and they are not planned again at once."""
    now, outcomes = runtime.clock.now(), [deferred(operation, reason) for operation in operations]
    for outcome in outcomes:
        run = RunRow(job_id, outcome, now, now, "", policy, {}, {})
        runtime.retry_idempotent(partial(runtime.store.runs.record, run, ref))
    return outcomes


def _run_job(
    runtime: Runtime, request: Request, base: TableMetadata, job_id: str, knobs: Knobs, lease: Lease
) -> JobResult:
    bounded = not request.manual and knobs[WINDOWS_END] == "cancel"
    _set_limits(lease, knobs, closes(knobs[WINDOWS], runtime.clock.now()) if bounded else None)
    runtime.emit("job_started", {"table": str(request.ref), **_started(request, job_id)})
    state, reason, fault = JobState.INTERRUPTED, "", None  # so it stays where the process ends: the reconciler goes on
    operations = _Operations(runtime, request, job_id, lease, knobs, base)
    outcomes = operations.outcomes
    try:
        for operation in request.operations:
            operations.run(operation)
        state = job_state(tuple(outcomes))
    except (Stop, Cancelled, LeaseLost) as error:
        state, reason = _state_after_error(error.why if isinstance(error, Stop) else error, outcomes)
        if state is JobState.CANCELLED and not runtime.stopping():
            unstarted = request.operations[len(outcomes) :]
            outcomes += defer(runtime, request.ref, unstarted, job_id, knobs.fingerprint, reason)
    except StorageUnavailable as error:  # the store is away
        reason, fault = f"stopped: {error}", error.owner
        raise
    except Exception as error:  # a bug is a failure, so that the job does not begin again at once for ever
        state, reason = JobState.FAILED, explained(error)
        raise
    finally:
        result = JobResult(request.ref, job_id, state, tuple(outcomes), reason=reason, fault=fault)
        # the settings of a manual request are those of its job alone
        _finish(runtime.with_settings({}) if request.manual else runtime, job_id, result, operations.latest)
    return result


def _state_after_error(error: IcewrightError, outcomes: Sequence[Outcome]) -> tuple[JobState, str]:
    """Return the state of a job that ended early, and the reason where its outcomes do not give one."""
    match error:
        case Cancelled():
            return JobState.CANCELLED, f"cancelled: {error}"
        case LeaseLost():
            return JobState.INTERRUPTED, str(error)
    return job_state(tuple(outcomes)), ""


@dataclass
class _Operations:
    """The operations of one job: each is run, measured and recorded before the next begins."""

    runtime: Runtime
    request: Request
    job_id: str
    lease: Lease
    knobs: Knobs
    base: TableMetadata | None = None  # as the job found the table: its first operation does not load it again
    latest: TableFacts | None = None  # of the table after the last operation
    outcomes: list[Outcome] = field(default_factory=list)  # also of the operation that stopped the job

    def __post_init__(self) -> None:
        self._measuring = Measuring(self.runtime, self.job_id, self.lease, self.knobs)

    def run(self, operation: Operation) -> None:
        """Run one operation and record its outcome with the table before and after. Raises as its runner does."""
        runtime, ref = self.runtime, self.request.ref
        started = runtime.clock.now()
        details: dict[str, Any] = {"job_id": self.job_id, "operation": operation}
        runtime.record_with_event(self.lease.check, "operation_started", ref, details)
        runner = OperationRunner(runtime, self.request, operation, self.job_id, self.lease, self.knobs, self.base)
        self.base, stop = None, None
        try:
            outcome = runner.run()
        except Stop as stopped:
            outcome, stop = stopped.outcome, stopped
        old = new = runner.facts_before
        before = after = {"unreadable": outcome.reason} if old is None else facts_summary(old)
        if outcome.state is not OperationState.SKIPPED:
            after, new = self._measure(runner.verified)
        self.latest, finished = new, runtime.clock.now()
        rewrote = operation in REWRITES and outcome.state is OperationState.COMMITTED and stop is None
        if rewrote and old is not None and new is not None:
            with catalog_context(ref.catalog):
                impact = self._measuring.of(runner.last_step, old, new)
            before, after = {**before, **impact.before}, {**after, **impact.after}
            outcome = replace(outcome, notes=(*outcome.notes, *impact.notes))
        location = new.metadata.metadata_location if new is not None else ""
        run = RunRow(self.job_id, outcome, started, finished, location, self.knobs.fingerprint, before, after)
        details |= {"state": outcome.state, "summary": outcome.summary}
        record = partial(runtime.store.runs.record, run, ref)
        runtime.record_with_event(record, "operation_finished", ref, details)
        self.outcomes.append(outcome)
        if stop is not None:
            raise stop

    def _measure(self, metadata: TableMetadata | None) -> tuple[dict[str, Any], TableFacts | None]:
        """Return the table's metrics for the run record and its facts; `unreadable` and None when reading fails.

        The table is loaded where its metadata is not given.
        """
        try:
            metadata = metadata or self.runtime.catalog(self.request.ref).load(self.request.ref)
            facts = self.runtime.files.facts(metadata, thresholds(self.knobs, metadata.sort_order))
        except Exception as error:  # noqa: BLE001 - the operation has failed with the same error
            return {"unreadable": str(error)}, None
        return dict(facts_summary(facts)), facts


def _finish(runtime: Runtime, job_id: str, result: JobResult, measured: TableFacts | None = None) -> None:
    """End the job, and pause the table after too many failures.

    The table is evaluated first, while the job holds it: so own commits are no change, and no plan is made from facts
    of before the job. What the job has measured after its last operation is not read again.
    """
    evaluation, fault = None, result.fault or job_fault(result.outcomes)
    try:
        if result.state is not JobState.INTERRUPTED:
            evaluation = runtime.retry_idempotent(
                lambda: evaluate_and_record(runtime, result.ref, runtime.clock.now(), measured)
            )
    finally:
        answered = _answered(runtime, result, evaluation) if result.outcomes and fault not in SHARED else ()
        close_breakers = partial(record_success, runtime, answered)
        runtime.finish_job(result.ref, job_id, result.state, result.summary, fault, close_breakers)
    if result.state is JobState.FAILED and fault in (None, FaultOwner.TABLE):
        metadata = evaluation.facts.metadata if evaluation is not None else None
        limit = runtime.policy().knobs_for(result.ref, metadata)[BREAKER]
        pause_after_failures(runtime, result.ref, result.state, limit, "failed")


def _answered(runtime: Runtime, result: JobResult, evaluation: Evaluation | None) -> Sequence[str]:
    """Return the resources that a job has used, as its operations ended by the state of the table alone."""
    location = evaluation.facts.metadata.location if evaluation is not None else None
    worked = {outcome.operation for outcome in result.outcomes if outcome.state is OperationState.COMMITTED}
    pool = runtime.scopes[result.ref.catalog].pool if ON_POOL & worked else None
    return resources(result.ref, location, pool)


def end_interrupted_job(runtime: Runtime, job: JobRow, error: Exception, fault: FaultOwner) -> None:
    """End a job that has no thread any more, or got none, and evaluate its table again, once the store answers.

    Where that takes longer than a write is retried, the reconciler ends the job.
    """
    also = partial(_evaluate_again, runtime, job.ref)
    runtime.finish_job(job.ref, job.job_id, JobState.INTERRUPTED, f"stopped: {error}", fault, also)


def _evaluate_again(runtime: Runtime, ref: TableRef) -> None:
    runtime.store.tables.schedule_evaluation([ref], runtime.clock.now())


def end_abandoned_job(runtime: Runtime, job: JobRow, reason: Cancelled | LeaseLost, work: WorkState) -> None:
    """End a job that was given up, release its table, and record the operations that it had not ended as deferred.

    Where the thread of the work hangs, the call counts as a failure of what was called, for its breaker.
    A job that does not hold its table any more keeps the end that others gave to it. May be repeated, as the store may
    be away.
    """
    row = runtime.store.jobs.get(job.job_id)
    if row is None or row.state is not JobState.RUNNING:
        return
    hangs = work.idle_seconds >= HANGS_AFTER
    message = f"{reason}; its thread hangs in {work.site or 'a call outside of Icewright'}" if hangs else str(reason)
    cancelled = isinstance(reason, Cancelled)
    if not runtime.stopping():
        ended = {run["operation"] for run in runtime.store.runs.list(job.job_id)}
        remaining = [operation for operation in job.operations if operation not in ended]
        defer(runtime, job.ref, remaining, job.job_id, "", message)
    error = hanging_call(f"{job.ref}: {message}", work.site)
    summary = f"{'cancelled' if cancelled else 'stopped'}: {message}"
    state, fault = JobState.CANCELLED if cancelled else JobState.INTERRUPTED, error.owner if hangs else None
    runtime.finish_job(job.ref, job.job_id, state, summary, fault, partial(_evaluate_again, runtime, job.ref))
    if hangs:
        with suppress(StoreUnavailable):  # the job has ended, even if the breaker is not recorded
            record_fault(runtime, error, job.ref)
