"""One operation of a job: judged on the table as it is, carried out step by step, verified, tried again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from icewright.core import verify
from icewright.core.cost import predicted
from icewright.core.effective import Knobs
from icewright.core.errors import (
    Cancelled,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    InvariantViolated,
    LeaseLost,
    Refused,
    RetryableError,
    StorageUnavailable,
    TableReplaced,
)
from icewright.core.policy import COMMIT_RETRIES, RETRIES, TIMEOUT, Operation
from icewright.core.runs import (
    JOB_ID,
    REFUSED,
    TIME_AND_COST,
    VERIFICATION_FAILED,
    FileAction,
    OperationState,
    Outcome,
    backoff,
    committed,
    deferred,
    failed,
    skipped,
)
from icewright.core.steps import (
    Due,
    ExpireSnapshots,
    NotDue,
    RemoveOrphans,
    RewriteDataFiles,
    RewritePositionDeletes,
    Step,
    why,
)
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import verdict
from icewright.flow.evaluate import read_facts
from icewright.flow.lease import Lease
from icewright.flow.runtime import Runtime
from icewright.ports import LedgerState, SnapshotPin, StepRequest, Unfinished

YIELD_AFTER = 2  # conflicts after which compaction gives way to the writer


@dataclass(frozen=True)
class Request:
    """What to do to one table. `table_uuid` None: whatever the table is now."""

    ref: TableRef
    operations: tuple[Operation, ...]
    table_uuid: str | None = None
    manual: bool = False
    force: bool = False  # run though the table is paused
    dry_run: bool = False


class Stop(Exception):
    """The job ends with this outcome: an invariant broke, or it was stopped when some work was committed."""

    def __init__(self, outcome: Outcome, why: IcewrightError) -> None:
        self.outcome, self.why = outcome, why
        super().__init__(outcome.reason)


@dataclass
class OperationRunner:
    """One operation over all its attempts; what earlier attempts committed is kept."""

    runtime: Runtime
    request: Request
    operation: Operation
    job_id: str
    lease: Lease
    knobs: Knobs
    done: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tried: Step | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    known: frozenset[int] = frozenset()  # the snapshots on which the last step began

    def run(self) -> Outcome:
        """Return the outcome. A lost commit is planned again from fresh metadata, up to the knob's limit.

        Raises `Stop` when an invariant broke, or when the job must end and something was done; else `Cancelled` or
        `LeaseLost`.
        """
        conflicts = retries = 0
        while True:
            try:
                return self._merged(self._attempt())
            except (Cancelled, LeaseLost) as error:
                raise self._stopped(error) from error
            except CommitConflict as error:
                conflicts += 1
                if conflicts >= self._most_conflicts():
                    lost = deferred(self.operation, f"lost the commit {conflicts} times to other writers: {error}")
                    return self._merged(lost)
                self.runtime.clock.sleep(backoff(conflicts).total_seconds())
            except RetryableError as error:
                retries += 1
                if retries > self.knobs[RETRIES]:
                    return self._merged(failed(self.operation, str(error)))
                self.runtime.clock.sleep(backoff(retries).total_seconds())
            except Refused as error:
                return self._merged(skipped(self.operation, f"{REFUSED}: {error}"))
            except InvariantViolated as error:
                raise Stop(self._merged(failed(self.operation, f"{error}; {self._paused(error)}")), error) from error
            except CommitStateUnknown as error:
                return self._merged(self._settled(error))
            except IcewrightError as error:
                return self._merged(failed(self.operation, str(error)))
            except Exception as error:  # noqa: BLE001 - a fault of ours in one table ends no other table's job
                return self._merged(failed(self.operation, f"unexpected {type(error).__name__}: {error}"))

    def _paused(self, error: InvariantViolated) -> str:
        """Pause the table, whose files may be what a rollback needs; says whether it is."""
        pause = partial(self.runtime.store.tables.pause, self.request.ref, f"{VERIFICATION_FAILED}: {error}")
        try:
            self.runtime.retry_idempotent(pause)
        except StorageUnavailable as away:
            return f"the table could not be paused: {away}"
        return "the table is paused"

    def _stopped(self, error: Cancelled | LeaseLost) -> Exception:
        """What was done is told; and what somebody stopped has been tried, so that it does not begin again at once."""
        said = f"stopped: {error}"
        if any(outcome.state is OperationState.COMMITTED for outcome in self.done):
            return Stop(self._merged(failed(self.operation, said)), error)
        if isinstance(error, LeaseLost):
            return error
        deferral = replace(deferred(self.operation, said), tried=not self.runtime.stopping())
        return Stop(self._merged(deferral), error)

    def _settled(self, error: CommitStateUnknown) -> Outcome:
        """After a lost reply: what the table itself says of the last step's commit."""
        step, unknown = self.tried, failed(self.operation, f"{error}; nothing was cleaned up")
        try:
            now = load(self.runtime, self.request)
        except IcewrightError:
            return unknown
        landed = "the reply to the commit was lost, but the table shows that it landed"
        if any(s.summary.get(JOB_ID) == self.job_id and s.snapshot_id not in self.known for s in now.snapshots):
            return committed(self.operation, landed, {}, notes=(str(error),))
        if not isinstance(step, ExpireSnapshots) or set(step.snapshot_ids) & now.by_id.keys():
            return unknown
        metrics = {"snapshots_expired": len(step.snapshot_ids), "refs_removed": len(step.remove_refs)}
        return self._finished(now.table_uuid, committed(self.operation, landed, metrics, notes=(str(error),)))

    def _finished(self, table_uuid: str, expired: Outcome) -> Outcome:
        """Carry out the deletions that the expiry had planned."""
        rows = self.runtime.store.ledger.files(self.job_id)
        mine = [r for r in rows if r["state"] == LedgerState.PLANNED]
        delayed = [r for r in mine if r["delete_after"] is not None]
        files = tuple(FileAction(r["path"], r["bytes"], r["kind"], r["modified"]) for r in mine if r not in delayed)
        intent, since = self.runtime.store.ledger.commit_intent(self.job_id), self.runtime.clock.now()
        if not files and intent is None:
            return expired
        planned = Unfinished(self.job_id, self.request.ref, table_uuid, (self.operation,), files, since, intent)
        try:
            done = self.runtime.engine.resume(planned)
        except IcewrightError as error:
            waiting = f"{len(files)} planned deletion(s) wait for the next start: {error}"
            metrics = {**expired.metrics, "files_failed": len(files)}
            return replace(expired, metrics=metrics, notes=(*expired.notes, waiting))
        summary, notes = f"{expired.summary}; {done.summary}", (*expired.notes, *done.notes)
        return replace(
            expired, summary=summary, metrics={**expired.metrics, **done.metrics}, files=done.files, notes=notes
        )

    def _most_conflicts(self) -> int:
        limit = self.knobs[COMMIT_RETRIES] + 1
        return min(limit, YIELD_AFTER) if self.operation is Operation.COMPACT else limit

    def _attempt(self) -> Outcome:
        request, runtime, now = self.request, self.runtime, self.runtime.clock.now()
        metadata = load(runtime, request)
        facts, knobs = read_facts(runtime, metadata)
        history = runtime.store.runs.history(request.ref, metadata.table_uuid)
        if request.manual:
            history = {operation: last.as_asked() for operation, last in history.items()}
        typical, manual = runtime.calibration(), request.manual
        found = verdict(self.operation, facts, knobs, history, now, manual=manual, typical=typical)
        if not isinstance(found, Due):
            self.notes = list(found.notes) if isinstance(found, NotDue) else []
            return skipped(self.operation, why(found), tried=False)
        self.notes = list(found.work.notes)
        self.predicted = self.predicted or predicted(found)  # what later attempts find is what earlier ones left
        *first, last = found.work.steps
        base = metadata
        for step in first:
            self.done.append(self._step(step, base, facts))
            base = load(runtime, request)
        return self._step(last, base, facts)

    def _step(self, step: Step, base: TableMetadata, facts: TableFacts) -> Outcome:
        self.lease.check()
        dry_run, self.tried, self.known = self.request.dry_run, step, frozenset(base.by_id)
        assignment = StepRequest(
            self.job_id,
            self.operation,
            step,
            base,
            dry_run,
            automatic=not self.request.manual,
            check=self.lease.check,
            on_partial_result=self.done.append,
            on_progress=self._progress,
        )
        done = len(self.done)
        try:
            with self._held(step, base):
                outcome = self.runtime.engine.run(assignment)
        except IcewrightError:
            if any(o.state is OperationState.COMMITTED for o in self.done[done:]):
                self._verified(facts, step)
            raise
        return outcome if dry_run else replace(outcome, notes=(*outcome.notes, *self._verified(facts, step)))

    def _progress(self, numbers: Mapping[str, int]) -> None:
        if not self.request.dry_run:
            details = {"job_id": self.job_id, "operation": self.operation, **numbers}
            self.runtime.record_event("progress", self.request.ref, details)

    def _verified(self, facts: TableFacts, step: Step) -> list[str]:
        try:
            return self._verify(facts, step)
        except (InvariantViolated, TableReplaced):
            raise
        except IcewrightError as error:  # what was committed stays what was done
            return [f"could not be verified: {error}"]

    @contextmanager
    def _held(self, step: Step, base: TableMetadata) -> Iterator[None]:
        """While a rewrite runs, the snapshot that it began on stays, whoever expires, even when its process dies."""
        store, request, now = self.runtime.store, self.request, self.runtime.clock.now()
        current, name = base.current_snapshot_id, f"the running rewrite of job {self.job_id}"
        if request.dry_run or current is None or isinstance(step, ExpireSnapshots | RemoveOrphans):
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
            except RetryableError as error:  # what was committed is what was done: never tried again for a pin
                self.notes.append(f"snapshot {current} stays pinned until {until:%Y-%m-%d %H:%M} UTC: {error}")

    def _verify(self, before: TableFacts, step: Step) -> list[str]:
        """Return what the commit must have kept, read back from the catalog; what a writer may have done is a note."""
        ref = self.request.ref
        after = self.runtime.catalog(ref).load(ref)
        if after.table_uuid != before.metadata.table_uuid:
            raise TableReplaced(f"{ref} was replaced while the job ran")
        if not isinstance(step, RewriteDataFiles | RewritePositionDeletes):
            return []  # the service compares its own commits with what they replaced
        if broken := verify.rewrite_violations(before, after):
            raise InvariantViolated(f"{ref}: {'; '.join(broken)}")
        known = {r.name for r in after.refs}
        gone = [r.name for r in before.metadata.refs if r.name not in known]
        return [f"ref {name} is gone since the rewrite began: no rewrite drops refs, so a writer did" for name in gone]

    def _merged(self, last: Outcome) -> Outcome:
        """Return the steps' outcomes as one: numbers added, files listed together, the summary said anew."""
        outcomes = [*self.done, last]
        real = [o for o in outcomes if o.state is OperationState.COMMITTED]
        metrics: dict[str, float] = {}
        for outcome in outcomes:
            said = outcome in real or (outcome is last and not real)
            for name, value in outcome.metrics.items():
                if said or name in TIME_AND_COST:  # what came to nothing has cost its time all the same
                    metrics[name] = metrics.get(name, 0) + value
        if real:
            metrics |= self.predicted
        skipped_after_work = bool(real) and last.state is OperationState.SKIPPED
        kept = real[-1] if skipped_after_work else last
        refused = [last.reason] if skipped_after_work and last.reason.startswith(REFUSED) else []
        return replace(
            kept,
            summary=_summary(self.operation, real, metrics, kept),
            metrics=metrics,
            files=tuple(f for o in outcomes for f in o.files),
            partitions=tuple(p for o in outcomes for p in o.partitions),
            statements=tuple(s for o in outcomes for s in o.statements),
            notes=(*self.notes, *(n for o in outcomes for n in o.notes), *refused),
        )


def _summary(operation: Operation, real: Sequence[Outcome], metrics: dict[str, float], kept: Outcome) -> str:
    if len(real) > 1 and operation is Operation.COMPACT and "files_merged" in metrics:
        said = (
            f"compacted {metrics['files_merged']:g} files into {metrics['files_written']:g} "
            f"(across {metrics['bins']:g} bins)"
        )
    else:
        said = "; ".join(o.summary for o in real)
    return said if kept in real else "; ".join(s for s in (said, kept.summary) if s)


def load(runtime: Runtime, request: Request) -> TableMetadata:
    """Return the table's metadata. Raises `TableReplaced` when it is another table than was asked for."""
    metadata = runtime.catalog(request.ref).load(request.ref)
    if request.table_uuid is not None and metadata.table_uuid != request.table_uuid:
        raise TableReplaced(f"{request.ref} is another table now (its uuid changed): evaluate it anew")
    return metadata
