"""Vacuum of a catalog: remove old snapshots and unreachable files of all its tables, with one result.

A catalog with branches is vacuumed over all branches; any other by expiry and orphan removal of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from icewright.core.breakers import CLOCK_WENT_BACK
from icewright.core.errors import (
    AccessDenied,
    Cancelled,
    FileMissing,
    IcewrightError,
    InvariantViolated,
    LeaseLost,
    Refused,
    UsageError,
    explained,
)
from icewright.core.layering import Policy, PolicyRule
from icewright.core.policy import MEGABYTE, ORPHAN_MODE, TIMEOUT, VACUUM_ENABLED, WINDOWS, Operation
from icewright.core.runs import JobState, OperationState, Outcome, failed, job_state
from icewright.core.steps import SWITCHED_OFF
from icewright.core.table import TableMetadata
from icewright.core.windows import closed
from icewright.flow.detect import Detected, detect
from icewright.flow.execute import JobResult, execute
from icewright.flow.lease import Lease, why_unclaimed
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from icewright.flow.vacuum_lease import RUNNING, renew_vacuum_lease, vacuum_lease
from icewright.ports import Pointer, RunRow, Survey, Vacuum, VacuumOf
from icewright.ports.work import catalog_context

VACUUMED = (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS)


@dataclass
class Counts:
    """Counters of one vacuum; the field names are the keys of its JSON output."""

    num_tables: int = 0
    num_total_snapshots: int = 0
    num_table_expiry: int = 0
    num_expired_snapshots: int = 0
    num_access_denied: int = 0
    num_not_found: int = 0
    num_partial_failures: int = 0
    num_live_references: int = 0
    num_live_contents: int = 0
    num_files_scanned: int = 0
    num_files_failed: int = 0
    num_files_waiting: int = 0  # for the end of `deletion.delay_hours`
    commit_scan_time: float = 0.0
    iceberg_commit_time: float = 0.0

    def failure(self, error: Exception) -> None:
        """Count a table that could not be vacuumed."""
        self.num_partial_failures += 1
        self.num_access_denied += isinstance(error, AccessDenied)
        self.num_not_found += isinstance(error, FileMissing)


@dataclass(frozen=True)
class VacuumResult:
    """The result of vacuuming one catalog."""

    catalog: str
    dry_run: bool
    jobs: tuple[JobResult, ...]
    counts: Counts
    cutoff: str = ""  # the cut-off with its source; blank: each table has its own
    reason: str = ""  # why nothing was done
    files: int = 0
    bytes: int = 0
    errors: tuple[tuple[str, str], ...] = field(default=())

    @property
    def megabytes(self) -> int:
        """Return the deleted bytes as whole megabytes."""
        return round(self.bytes / MEGABYTE)

    def answer(self) -> dict[str, Any]:
        """Return the result without its jobs, as every output and the activity log have it."""
        return {
            "catalog": self.catalog,
            "state": str(self.state),
            "reason": self.reason,
            "cutoff": self.cutoff,
            "deleted_files_count": self.files,
            "deleted_files_total_size_mb": self.megabytes,
            "deleted_bytes": self.bytes,
            "metrics": asdict(self.counts),
            "errors": [{"subject": subject, "error": error} for subject, error in self.errors],
        }

    @property
    def state(self) -> JobState:
        """Return the state of the vacuum as a whole."""
        states = {job.state for job in self.jobs}
        if self.errors or states - {JobState.SUCCEEDED, JobState.SKIPPED}:
            successful = states & {JobState.SUCCEEDED, JobState.PARTIAL, JobState.SKIPPED}
            return JobState.PARTIAL if successful else JobState.FAILED
        return JobState.SUCCEEDED if JobState.SUCCEEDED in states else JobState.SKIPPED


def vacuum(
    runtime: Runtime,
    catalog: str,
    *,
    dry_run: bool = False,
    automatic: bool = False,
    asking: AbstractContextManager[None] | None = None,
) -> VacuumResult:
    """Vacuum one catalog; `automatic`: nobody asked for it. Its tables are listed within `asking`.

    Raises `Refused` when its cut-off policy is faulty, another process vacuums it or everything is paused, and
    `LeaseLost` when another vacuum began while this one made no progress.
    """
    if catalog not in runtime.catalogs:
        raise UsageError(f"there is no catalog {catalog}; there is: {', '.join(sorted(runtime.catalogs))}")
    if not dry_run and (pause := runtime.store.fleet.get()) is not None:
        raise Refused(f"catalog {catalog} is not vacuumed: {pause}")
    with catalog_context(catalog), vacuum_lease(runtime, catalog, dry_run=dry_run):
        branched, within = runtime.vacuums.get(catalog), asking or nullcontext()
        if branched is None:
            with within:
                detected = detect(runtime, [catalog])
            result = _vacuum_tables(runtime, catalog, detected, dry_run=dry_run)
        else:
            with within:
                survey = branched.survey(runtime.clock.now())
            result = _vacuum_branches(runtime, catalog, branched, survey, dry_run=dry_run, automatic=automatic)
    if not dry_run:
        runtime.store.catalogs.record_vacuumed(catalog, runtime.clock.now())
        runtime.store.activity.record("vacuumed", runtime.clock.now(), None, **result.answer())
    return result


def vacuum_due(runtime: Runtime, catalogs: Sequence[str], *, dry_run: bool = False) -> list[VacuumResult]:
    """Vacuum each enabled catalog with branches that was last vacuumed long enough ago; return the results.

    A vacuum that the cut-off policy refuses is tried again after the same time, one that fails with the next call. A
    catalog that is being vacuumed already is left out.
    """
    if runtime.store.fleet.get() is not None:
        return []
    last = {row.name: row.vacuumed_at for row in runtime.store.catalogs.list()}
    results = []
    for name in catalogs:
        every, ended, now = runtime.scopes[name].vacuum_every, last.get(name), runtime.clock.now()
        if every is None or not runtime.scopes[name].enabled:
            continue
        if ended is not None and -CLOCK_WENT_BACK <= now - ended < every:
            continue
        if closed(runtime.policy().knobs_of_catalog(name)[WINDOWS], now) is not None:
            continue
        try:
            results.append(vacuum(runtime, name, dry_run=dry_run, automatic=True))
        except Exception as error:  # noqa: BLE001 - a bug in one catalog ends no other's vacuum
            if isinstance(error, Refused) and error.code == RUNNING:
                continue
            if isinstance(error, Refused) and not dry_run:
                runtime.store.catalogs.record_vacuumed(name, now)
            runtime.emit("vacuum_failed", {"catalog": name, "error": explained(error)})
            results.append(_unread_catalog(name, explained(error), dry_run=dry_run))
    return results


def _unread_catalog(catalog: str, error: str, *, dry_run: bool) -> VacuumResult:
    """Return the result for a catalog that could not be looked at."""
    return VacuumResult(catalog, dry_run, (), Counts(num_partial_failures=1), errors=((catalog, error),))


def _vacuum_tables(runtime: Runtime, catalog: str, detected: Detected, *, dry_run: bool) -> VacuumResult:
    """Run expiry and orphan removal on every table in scope, past cooldowns and cadence."""
    if error := dict(detected.errors).get(catalog):
        return _unread_catalog(catalog, error, dry_run=dry_run)
    scope = runtime.scopes[catalog]
    counts, jobs = Counts(), []
    for row in runtime.store.tables.list(catalog):
        if row.dropped or not scope.contains(row.ref):
            continue
        counts.num_tables += 1
        if not dry_run:
            renew_vacuum_lease(runtime, catalog)
        try:
            metadata = runtime.catalog(row.ref).load(row.ref)
            deleting = _with_deletion(runtime, metadata)
            counts.num_total_snapshots += len(metadata.snapshots)
        except IcewrightError as unreadable:
            counts.failure(unreadable)
            jobs.append(JobResult(row.ref, None, JobState.FAILED, (), dry_run, str(unreadable)))
            continue
        if not deleting.policy().knobs_for(row.ref, metadata)[VACUUM_ENABLED]:
            jobs.append(JobResult(row.ref, None, JobState.SKIPPED, (), dry_run, f"vacuum.{SWITCHED_OFF}"))
            continue
        job = execute(deleting, Request(row.ref, VACUUMED, manual=True, dry_run=dry_run))
        counts.num_partial_failures += job.state in (JobState.FAILED, JobState.PARTIAL)
        jobs.append(job)
    return _result(catalog, counts, jobs, dry_run=dry_run)


def _with_deletion(runtime: Runtime, metadata: TableMetadata) -> Runtime:
    """Return the runtime with orphan removal in mode `delete` for a table, unless a rule or a property sets another.

    A table's property may ask for less than `delete`, not for more than a rule says.
    """
    now = runtime.policy()
    if now.knobs_for(metadata.ref, metadata).is_set(ORPHAN_MODE):
        return runtime
    by_default = replace(now, rules=(PolicyRule((), {ORPHAN_MODE.name: "delete"}, "vacuum"), *now.rules))
    mode = by_default.knobs_for(metadata.ref, metadata)[ORPHAN_MODE]

    def policy() -> Policy:
        configured = runtime.policy()
        return replace(configured, command={ORPHAN_MODE.name: mode, **configured.command})

    return replace(runtime, policy=policy)


def _vacuum_branches(
    runtime: Runtime, catalog: str, vacuum: Vacuum, survey: Survey, *, dry_run: bool, automatic: bool
) -> VacuumResult:
    """Vacuum every live table over all branches and tags."""
    counts = Counts(
        num_tables=len(survey.tables),
        num_total_snapshots=sum(len(table.snapshots) for table in survey.tables),
        num_live_references=len(survey.references),
        num_live_contents=sum(len(table.versions) for table in survey.tables),
        commit_scan_time=survey.seconds,
    )
    cutoff = f"{survey.policy} ({survey.policy.source})"
    instant = survey.policy.instant
    applied = {row.name: row.vacuumed for row in runtime.store.catalogs.list()}.get(catalog)
    if instant is not None and applied == instant.isoformat():
        reason = f"the cut-off {applied} has been acted on already: a time-based cut-off acts once"
        return VacuumResult(catalog, dry_run, (), counts, cutoff, reason)
    if not dry_run:
        _record_listing(runtime, catalog, survey)
    jobs = [
        _vacuum_table(runtime, vacuum, VacuumOf(table, survey, "dry-run", dry_run, automatic), counts)
        for table in survey.tables
        if runtime.scopes[catalog].contains(table.ref)
    ]
    result = _result(catalog, counts, jobs, dry_run=dry_run)
    if instant is not None and not dry_run and not counts.num_partial_failures:
        runtime.store.catalogs.record_cutoff_applied(catalog, instant.isoformat(), runtime.clock.now())
    return replace(result, cutoff=cutoff)


def _record_listing(runtime: Runtime, catalog: str, survey: Survey) -> None:
    """Record every live table in the store, also those that exist on other branches only."""
    pointers = {p.ref: p for p in runtime.catalogs[catalog].pointers()}
    for table in survey.tables:
        place = max(c.metadata_location for c in table.versions)
        pointers.setdefault(table.ref, Pointer(table.ref, place))
    runtime.store.tables.record_listing(catalog, list(pointers.values()), runtime.clock.now())


def _vacuum_table(runtime: Runtime, branched: Vacuum, work: VacuumOf, counts: Counts) -> JobResult:
    """Vacuum one table as a job and return its result."""
    table = work.table
    if not work.dry_run:
        renew_vacuum_lease(runtime, table.ref.catalog)
    if table.problem:  # no job is started, as nothing is changed
        counts.num_partial_failures += 1
        counts.num_access_denied += table.denied
        counts.num_not_found += table.missing
        return JobResult(table.ref, None, JobState.FAILED, (), work.dry_run, table.problem)
    row, pause = runtime.store.tables.get(table.ref), runtime.store.fleet.get()
    paused = str(pause) if pause is not None else f"paused: {row.paused}" if row is not None and row.paused else ""
    if paused:
        return JobResult(table.ref, None, JobState.SKIPPED, (), work.dry_run, paused)
    if work.dry_run:
        outcomes: list[Outcome] = []
        for operation, run in _runs(branched):
            outcomes += [] if _failed(outcomes) else [_attempt(runtime, partial(run, work), operation, counts)]
        return JobResult(table.ref, None, job_state(tuple(outcomes)), tuple(outcomes), dry_run=True)
    job_id = runtime.store.jobs.claim(table.ref, table.table_uuid, VACUUMED, runtime.trigger, runtime.clock.now())
    if job_id is None:
        return JobResult(table.ref, None, JobState.SKIPPED, (), reason=why_unclaimed(runtime, table.ref))
    return _run_job(runtime, branched, replace(work, job_id=job_id), counts)


def _runs(branched: Vacuum) -> Sequence[tuple[Operation, Callable[[VacuumOf], Outcome]]]:
    return ((Operation.EXPIRE_SNAPSHOTS, branched.expire), (Operation.REMOVE_ORPHANS, branched.sweep))


def _run_job(runtime: Runtime, branched: Vacuum, work: VacuumOf, counts: Counts) -> JobResult:
    ref, job_id = work.table.ref, work.job_id
    runtime.emit("job_started", {"job_id": job_id, "table": str(ref), "operations": VACUUMED})
    outcomes: list[Outcome] = []
    state, reason = JobState.INTERRUPTED, ""
    try:
        limit = timedelta(seconds=runtime.policy().knobs_for(ref, None)[TIMEOUT])
        with Lease(runtime, job_id, limit).heartbeat() as lease:
            for operation, run in _runs(branched):
                if _failed(outcomes):
                    break
                outcomes.append(_run_operation(runtime, work, lease, operation, run, counts))
        state = job_state(tuple(outcomes))
    except Cancelled as error:
        state, reason = JobState.CANCELLED, f"cancelled: {error}"
    except LeaseLost as error:
        reason = str(error)
    finally:
        result = JobResult(ref, job_id, state, tuple(outcomes), reason=reason)
        runtime.store.jobs.finish(job_id, state, result.summary, runtime.clock.now())
    runtime.emit("job_finished", {"job_id": job_id, "table": str(ref), "state": state, "summary": result.summary})
    return result


def _failed(outcomes: Sequence[Outcome]) -> bool:
    """Return whether an operation on the table failed, after which none of its files is deleted."""
    return any(outcome.state is OperationState.FAILED for outcome in outcomes)


def _run_operation(
    runtime: Runtime,
    work: VacuumOf,
    lease: Lease,
    operation: Operation,
    run: Callable[[VacuumOf], Outcome],
    counts: Counts,
) -> Outcome:
    """Run one operation, record it in the history, and return its outcome."""
    lease.check()
    started = runtime.clock.now()
    details: Mapping[str, Any] = {"job_id": work.job_id, "table": str(work.table.ref), "operation": operation}
    runtime.emit("operation_started", details)

    def check() -> None:
        lease.check()
        renew_vacuum_lease(runtime, work.table.ref.catalog)

    within = partial(run, replace(work, check=check))
    outcome = _attempt(runtime, within, operation, counts, partial(_after_failure, runtime, work, lease))
    row = RunRow(work.job_id, outcome, started, runtime.clock.now(), "", "", {}, {})
    runtime.store.runs.record(row, work.table.ref)
    runtime.emit("operation_finished", {**details, "state": outcome.state, "summary": outcome.summary})
    return outcome


def _after_failure(runtime: Runtime, work: VacuumOf, lease: Lease, error: Exception) -> None:
    """Pause a table whose rows were not kept. Raises `LeaseLost` when another process owns the table by now."""
    if not isinstance(error, InvariantViolated):
        lease.require_held()
        return
    runtime.pause_broken(work.table.ref, error)


def _attempt(
    runtime: Runtime,
    run: Callable[[], Outcome],
    operation: Operation,
    counts: Counts,
    on_failure: Callable[[Exception], None] = lambda _: None,
) -> Outcome:
    """Run the operation and return its outcome with its time; only a lost lease or a cancellation is raised."""
    started = runtime.clock.now()
    try:
        outcome = run()
    except (Cancelled, LeaseLost):
        raise
    except Refused as error:
        return Outcome(operation, OperationState.SKIPPED, f"refused: {error}", f"refused: {error}")
    except Exception as error:  # noqa: BLE001 - a bug in one table ends no other table's vacuum
        counts.failure(error)
        on_failure(error)
        return failed(operation, explained(error))
    milliseconds = round((runtime.clock.now() - started).total_seconds() * 1000)
    return replace(outcome, metrics={**outcome.metrics, "duration_ms": milliseconds}) if outcome.metrics else outcome


def _result(catalog: str, counts: Counts, jobs: Sequence[JobResult], *, dry_run: bool) -> VacuumResult:
    """Add up the jobs and return the result of the vacuum."""
    files = size = 0
    for job in jobs:
        expired = sum(int(o.metrics.get("snapshots_expired", 0)) for o in job.outcomes)
        counts.num_expired_snapshots += expired
        counts.num_table_expiry += expired > 0
        for outcome in job.outcomes:
            counts.num_files_scanned += int(outcome.metrics.get("files_scanned", 0))
            counts.num_files_failed += int(outcome.metrics.get("files_failed", 0))
            if outcome.operation is Operation.EXPIRE_SNAPSHOTS:
                counts.iceberg_commit_time += outcome.metrics.get("duration_ms", 0) / 1000
            counts.num_files_waiting += int(outcome.metrics.get("files_waiting", 0))
            files += int(outcome.metrics.get("files_deleted", outcome.metrics.get("orphans_removed", 0)))
            size += int(outcome.metrics.get("bytes_deleted", 0))
    return VacuumResult(catalog, dry_run, tuple(jobs), counts, files=files, bytes=size)
