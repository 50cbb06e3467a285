"""One operation of a job: evaluate the table as it is, run the steps, verify the commits, retry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from icewright.core import verify
from icewright.core.branches import on_branch
from icewright.core.breakers import SHARED, UNAVAILABLE
from icewright.core.capacity import Limits
from icewright.core.cost import predicted
from icewright.core.effective import Knobs
from icewright.core.errors import (
    Cancelled,
    CommitConflict,
    CommitStateUnknown,
    FaultOwner,
    IcewrightError,
    InvariantViolated,
    LeaseLost,
    Refused,
    RetryableError,
    StorageUnavailable,
    StoreUnavailable,
    TableNotFound,
    TableReplaced,
    explained,
)
from icewright.core.policy import COMMIT_RETRIES, RETRIES, TIMEOUT, Operation
from icewright.core.runs import (
    REFUSED,
    TIME_AND_COST,
    OperationState,
    Outcome,
    backoff,
    committed,
    deferred,
    failed,
    skipped,
)
from icewright.core.steps import (
    CheckFiles,
    Due,
    ExpireSnapshots,
    NotDue,
    RemoveOrphans,
    RewriteDataFiles,
    RewritePositionDeletes,
    Step,
    TagRecoveryPoints,
    on_pool,
    why,
)
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import verdict
from icewright.core.words import count
from icewright.flow.breakers import record_fault
from icewright.flow.evaluate import measure, stored_state
from icewright.flow.lease import Lease
from icewright.flow.runtime import Runtime
from icewright.flow.unknown_commit import finish_deletions, landed_metrics
from icewright.ports import SnapshotPin, StepRequest

_WITHOUT_BASE = ExpireSnapshots | RemoveOrphans | TagRecoveryPoints | CheckFiles  # go on when snapshots expire
MAX_COMPACT_CONFLICTS = 2  # conflicts after which compaction gives way to writers


@dataclass(frozen=True)
class Request:
    """A request to run operations on one table; with `table_uuid` None, on whatever table has the name now."""

    ref: TableRef
    operations: tuple[Operation, ...]
    table_uuid: str | None = None
    manual: bool = False
    force: bool = False  # run though the table is paused
    dry_run: bool = False


class Stop(Exception):
    """Ends a job with an outcome: an invariant broke, or the job was stopped after a commit."""

    def __init__(self, outcome: Outcome, why: IcewrightError) -> None:
        self.outcome, self.why = outcome, why
        super().__init__(outcome.reason)


@dataclass
class OperationRunner:
    """Runs one operation over all its attempts and collects what each of them committed."""

    runtime: Runtime
    request: Request
    operation: Operation
    job_id: str
    lease: Lease
    knobs: Knobs
    found: TableMetadata | None = None  # the table right before, for the first attempt: loading may take long
    done: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    last_step: Step | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    base_snapshots: frozenset[int] = frozenset()  # the snapshots on which the last step began
    limits: Limits = field(default_factory=Limits)  # with prices, as the last attempt read them
    facts_before: TableFacts | None = None  # as the first attempt read them
    verified: TableMetadata | None = None  # the table after the last step's commit

    def run(self) -> Outcome:
        """Run the operation and return its outcome; a lost commit is planned again from fresh metadata, up to a limit.

        Raises `Stop` when an invariant broke, or when the job must end and something was done; else `Cancelled` or
        `LeaseLost`.
        """
        conflicts = retries = 0
        while True:
            try:
                return self._merge(self._attempt())
            except (Cancelled, LeaseLost) as error:
                raise self._stop_error(error) from error
            except CommitConflict as error:
                conflicts += 1
                if conflicts >= self._conflict_limit():
                    outcome = deferred(self.operation, f"lost the commit {conflicts} times to other writers: {error}")
                    return self._merge(outcome)
                self.runtime.clock.sleep(backoff(conflicts).total_seconds())
            except RetryableError as error:
                retries += 1
                if retries > self.knobs[RETRIES]:
                    return self._merge(self._failure(error))
                self.runtime.clock.sleep(backoff(retries).total_seconds())
            except Refused as error:
                return self._merge(skipped(self.operation, f"{REFUSED}: {error}"))
            except InvariantViolated as error:
                reason = f"{error}; {self._pause(error)}"
                raise Stop(self._merge(failed(self.operation, reason, fault=error.owner)), error) from error
            except CommitStateUnknown as error:
                return self._merge(self._resolve_unknown_commit(error))
            except IcewrightError as error:
                return self._merge(self._failure(error))
            except Exception as error:  # noqa: BLE001 - a bug in one table ends no other table's job
                return self._merge(self._failure(error))

    def _failure(self, error: Exception) -> Outcome:
        """Return the outcome of an error: deferred where something that tables share is at fault, else failed.

        Raises `LeaseLost` when another process owns the table by now, as the error is then none of the table's, and
        `StoreUnavailable` where nothing was committed: the job begins again as soon as the store answers.
        """
        try:
            self.lease.require_held()
        except LeaseLost as lease_lost:
            raise self._stop_error(lease_lost) from error
        if not isinstance(error, IcewrightError):
            return failed(self.operation, explained(error), fault=FaultOwner.ICEWRIGHT)
        if error.owner not in SHARED or self.request.dry_run:
            return failed(self.operation, str(error), fault=error.owner)
        if isinstance(error, StoreUnavailable) and not self._has_committed():
            raise error
        with suppress(StorageUnavailable):  # the breaker is not worth more than the outcome
            record_fault(self.runtime, error, self.request.ref)
        return deferred(self.operation, f"{UNAVAILABLE}: {error}", error.owner)

    def _pause(self, error: InvariantViolated) -> str:
        """Pause the table, whose files a rollback may need; return a sentence that says whether that worked."""
        try:
            self.runtime.pause_broken(self.request.ref, error)
        except StorageUnavailable as away:
            return f"the table could not be paused: {away}"
        return "the table is paused"

    def _has_committed(self) -> bool:
        return any(outcome.state is OperationState.COMMITTED for outcome in self.done)

    def _stop_error(self, error: Cancelled | LeaseLost) -> Exception:
        """Return the exception that ends the job and reports committed work; a stopped operation counts as tried."""
        reason = f"stopped: {error}"
        if self._has_committed():
            return Stop(self._merge(failed(self.operation, reason)), error)
        if isinstance(error, LeaseLost):
            return error
        deferral = replace(deferred(self.operation, reason), tried=not self.runtime.stopping())
        return Stop(self._merge(deferral), error)

    def _resolve_unknown_commit(self, error: CommitStateUnknown) -> Outcome:
        """Read the table after a lost reply and return whether the last step's commit landed, as an outcome."""
        unknown = failed(self.operation, f"{error}; nothing was cleaned up", fault=error.owner)
        try:
            current = load(self.runtime, self.request.ref, self.request.table_uuid)
        except (TableNotFound, TableReplaced) as gone:
            reason = f"the table was dropped, renamed or replaced while the commit was under way ({gone})"
            return deferred(self.operation, f"{reason}: nothing was cleaned up, as its files may be needed; {error}")
        except IcewrightError:
            return unknown
        metrics = landed_metrics(self.last_step, current, self.job_id, self.base_snapshots)
        if metrics is None:
            return unknown
        landed = "the reply to the commit was lost, but the table shows that it landed"
        outcome = committed(self.operation, landed, metrics, notes=(str(error),))
        if isinstance(self.last_step, ExpireSnapshots):
            return finish_deletions(self.runtime, self.lease, self.request.ref, current.table_uuid, outcome)
        return outcome

    def _conflict_limit(self) -> int:
        limit = self.knobs[COMMIT_RETRIES] + 1
        return min(limit, MAX_COMPACT_CONFLICTS) if self.operation is Operation.COMPACT else limit

    def _attempt(self) -> Outcome:
        request, runtime, now = self.request, self.runtime, self.runtime.clock.now()
        metadata, self.found = self.found or load(runtime, request.ref, request.table_uuid), None
        with runtime.store.reading_together():
            stored, self.limits = stored_state(runtime, metadata), runtime.limits()
        manual = request.manual
        facts, knobs = measure(runtime, stored.policy, metadata)
        facts, history = stored.with_readers(facts), stored.history
        self.facts_before = self.facts_before or facts
        if manual:
            history = {operation: last.for_manual_request() for operation, last in history.items()}
        judgement = verdict(self.operation, facts, knobs, history, now, manual=manual, pool=stored.pool)
        if not isinstance(judgement, Due):
            self.notes = list(judgement.notes) if isinstance(judgement, NotDue) else []
            return skipped(self.operation, why(judgement), tried=False)
        self.notes = list(judgement.work.notes)
        self.predicted = self.predicted or predicted(judgement)  # later attempts predict only the rest
        *first, last = judgement.work.steps
        base = metadata
        for step in first:
            self.done.append(self._step(step, base, facts, now))
            base = load(runtime, request.ref, request.table_uuid)
        return self._step(last, base, facts, now)

    def _step(self, step: Step, base: TableMetadata, facts: TableFacts, planned_at: datetime) -> Outcome:
        self.lease.check()
        dry_run, self.last_step, self.base_snapshots = self.request.dry_run, step, frozenset(base.by_id)
        self.verified = None
        step_request = StepRequest(
            self.job_id,
            self.operation,
            step,
            base,
            dry_run,
            automatic=not self.request.manual,
            planned_at=planned_at,
            check=self.lease.check,
            on_partial_result=self.done.append,
            on_progress=self._progress,
        )
        earlier = len(self.done)
        try:
            with self._pinned_base(step, base):
                outcome = self.runtime.engine.run(step_request)
        except IcewrightError:
            if any(o.state is OperationState.COMMITTED for o in self.done[earlier:]):
                self._verification_notes(facts, step)
            raise
        return outcome if dry_run else replace(outcome, notes=(*outcome.notes, *self._verification_notes(facts, step)))

    def _progress(self, numbers: Mapping[str, int]) -> None:
        if not self.request.dry_run:
            details = {"job_id": self.job_id, "operation": self.operation, **numbers}
            self.runtime.record_event("progress", self.request.ref, details)

    def _verification_notes(self, facts: TableFacts, step: Step) -> list[str]:
        try:
            return self._verify(facts, step)
        except (InvariantViolated, TableReplaced):
            raise
        except IcewrightError as error:  # the commit stands, whether verified or not
            return [f"could not be verified: {error}"]

    @contextmanager
    def _pinned_base(self, step: Step, base: TableMetadata) -> Iterator[None]:
        """Pin the snapshot that a rewrite starts from, so that no expiry removes it, even after a crash."""
        store, request, now = self.runtime.store, self.request, self.runtime.clock.now()
        branch = step.branch if isinstance(step, RewriteDataFiles) else None
        current, name = on_branch(base, branch).current_snapshot_id, SnapshotPin.rewriter(self.job_id)
        if request.dry_run or current is None or isinstance(step, _WITHOUT_BASE):
            yield
            return
        until = now + timedelta(seconds=self.knobs[TIMEOUT])
        pin = SnapshotPin(name, current, now, until, self.runtime.trigger.actor)
        if not store.pins.add(request.ref, base.table_uuid, pin, job_id=self.job_id):
            raise LeaseLost(f"job {self.job_id} does not hold its table any more")
        try:
            yield
        finally:
            try:
                store.pins.remove(request.ref, name)
            except RetryableError as error:  # a commit is not repeated for a pin
                self.notes.append(f"snapshot {current} stays pinned until {until:%Y-%m-%d %H:%M} UTC: {error}")

    def _verify(self, before: TableFacts, step: Step) -> list[str]:
        """Check the commit's invariants on the reloaded table; return notes on changes that other writers made."""
        ref = self.request.ref
        after = self.runtime.catalog(ref).load(ref)
        if after.table_uuid != before.metadata.table_uuid:
            raise TableReplaced(f"{ref} was replaced while the job ran")
        self.verified = after
        if not isinstance(step, RewriteDataFiles | RewritePositionDeletes):
            return []  # the service compares its own commits with what they replaced
        branch = step.branch if isinstance(step, RewriteDataFiles) else None
        if broken := verify.rewrite_violations(before.branches[branch] if branch else before, after, branch):
            raise InvariantViolated(f"{ref}: {'; '.join(broken)}")
        names = {r.name for r in after.refs}
        missing = [r.name for r in before.metadata.refs if r.name not in names]
        return [
            f"ref {name} is gone since the rewrite began: no rewrite drops refs, so a writer did" for name in missing
        ]

    def _merge(self, last: Outcome) -> Outcome:
        """Return the outcomes of all steps as one: metrics added, files concatenated, one summary."""
        outcomes = [*self.done, last]
        committed_outcomes = [o for o in outcomes if o.state is OperationState.COMMITTED]
        metrics: dict[str, float] = {}
        for outcome in outcomes:
            counts = outcome in committed_outcomes or (outcome is last and not committed_outcomes)
            for name, value in outcome.metrics.items():
                if counts or name in TIME_AND_COST:  # time and cost count for unsuccessful steps too
                    metrics[name] = metrics.get(name, 0) + value
        metrics |= self._money(metrics.get("gb_hours", 0.0))
        if committed_outcomes:
            metrics |= self.predicted
        skipped_after_work = bool(committed_outcomes) and last.state is OperationState.SKIPPED
        reported = committed_outcomes[-1] if skipped_after_work else last
        refused = [last.reason] if skipped_after_work and last.reason.startswith(REFUSED) else []
        return replace(
            reported,
            summary=_summary(self.operation, committed_outcomes, metrics, reported),
            metrics=metrics,
            files=tuple(f for o in outcomes for f in o.files),
            partitions=tuple(p for o in outcomes for p in o.partitions),
            statements=tuple(s for o in outcomes for s in o.statements),
            notes=(*self.notes, *(n for o in outcomes for n in o.notes), *refused),
        )

    def _money(self, gb_hours: float) -> Mapping[str, float]:
        """Return what the GB-hours cost, as a metric; nothing where no price is configured."""
        scope = self.runtime.scopes.get(self.request.ref.catalog)
        pool = scope.pool if scope is not None and self.last_step is not None and on_pool(self.last_step) else None
        money = self.limits.money(gb_hours, pool)
        return {"money": round(money, 9)} if money else {}


def _summary(
    operation: Operation, committed_outcomes: Sequence[Outcome], metrics: dict[str, float], reported: Outcome
) -> str:
    if len(committed_outcomes) > 1 and operation is Operation.COMPACT and "files_merged" in metrics:
        work = (
            f"compacted {count(int(metrics['files_merged']), 'file')} into {metrics['files_written']:g} "
            f"in {count(int(metrics['bins']), 'group')}"
        )
    else:
        work = "; ".join(o.summary for o in committed_outcomes)
    return work if reported in committed_outcomes else "; ".join(s for s in (work, reported.summary) if s)


def load(runtime: Runtime, ref: TableRef, table_uuid: str | None) -> TableMetadata:
    """Return a table's metadata. Raises `TableReplaced` when its uuid is another than the given one."""
    metadata = runtime.catalog(ref).load(ref)
    if table_uuid is not None and metadata.table_uuid != table_uuid:
        raise TableReplaced(f"{ref} is another table now (its uuid changed): evaluate it again")
    return metadata
