"""Planning: admit due operations of all tables into the queue, and adapt the concurrency of pools."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.breakers import Breaker, BreakerState, resources
from icewright.core.cadence import Cadence
from icewright.core.capacity import Candidate, DueOperation, Limits, Load, adapted
from icewright.core.plan import MaintenancePlan, PlannedJob, make_plan
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.flow.breakers import failing_resources, location_of
from icewright.flow.runtime import Runtime
from icewright.ports import FleetPause, ProcessRow

LEASE = timedelta(seconds=60)  # on planning, so that one process plans at a time
PROMOTE_AFTER = timedelta(hours=1)  # a queued job goes ahead of those that are queued by their score later
REPLAN_AFTER = timedelta(seconds=60)  # though no input changed, as windows open and cooldowns end


def plan_now(
    runtime: Runtime,
    catalogs: Sequence[str],
    started: int = 0,
    without: Container[tuple[TableRef, Operation]] = (),
    running: Sequence[PlannedJob] = (),
) -> MaintenancePlan:
    """Plan from the last evaluations; return the jobs that may start now and what is deferred. Nothing is changed.

    For a cycle: `started` is the number of jobs that it has begun, `without` the operations that it has tried, and
    `running` its unfinished jobs, which the store may not know yet.
    """
    now = runtime.clock.now()
    midnight = Cadence.DAILY.start(now)
    usage = runtime.store.planning.usage(midnight)
    stored = {job.ref for job in usage.active}
    unstored = [job.active() for job in running if job.ref not in stored]
    failing = failing_resources(runtime)  # jobs that wait for a catalog or a storage use nothing that others need
    active = [job for job in (*usage.active, *unstored) if not (failing and _needs(runtime, job.ref, failing))]
    usage = replace(usage, active=tuple(active), started=started)
    running_refs = {job.ref for job in running}
    pause = runtime.store.fleet.get()
    candidates = [
        _with_catalog_settings(runtime, candidate, without, running_refs, pause)
        for candidate in runtime.store.planning.candidates(catalogs)
        if runtime.scopes[candidate.ref.catalog].contains(candidate.ref)
    ]
    return make_plan(_without_unavailable(runtime, candidates, failing, now), _limits(runtime), now, usage)


def _needs(runtime: Runtime, ref: TableRef, failing: Container[str]) -> bool:
    """Return whether a job on the table waits for a catalog or a storage place."""
    needed = resources(ref, location_of(runtime.store.tables.get(ref)), None)
    return any(resource in failing for resource in needed)


class Planning:
    """Plans repeatedly: when an input of the plan has changed, and once a minute for windows and cooldowns."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._planned_from: object = None
        self._replan_at = self._renew_lease_at = runtime.clock.now()

    def due(self) -> int:
        """Queue the jobs of a new plan and record what is deferred; return how many jobs were queued.

        One process at a time plans, as two would admit more than the limits allow.
        """
        runtime, now = self._runtime, self._runtime.clock.now()
        if now >= self._renew_lease_at:
            if not runtime.try_acquire_lease("plan", LEASE):
                self._planned_from = None
                return 0
            self._renew_lease_at = now + LEASE / 4  # renewing at each call would write every few seconds
        _adapt(runtime, now)
        breakers = failing_resources(runtime)
        inputs = (runtime.store.planning.change_token(), tuple(breakers), runtime.limits())
        if inputs == self._planned_from and now < self._replan_at:
            return 0
        runtime.store.jobs.promote(now - PROMOTE_AFTER)
        plan = plan_now(runtime, sorted(runtime.scopes))
        queued = [runtime.store.jobs.enqueue(job, runtime.trigger, runtime.clock.now()) for job in plan.jobs]
        runtime.store.planning.record_deferred(plan.deferred)
        retries = [breaker.retry_at for breaker in breakers.values() if breaker.retry_at > now]
        self._replan_at = min([now + REPLAN_AFTER, *retries])
        self._planned_from = inputs  # set last, so that a failed plan is made again
        return sum(job_id is not None for job_id in queued)


def _with_catalog_settings(
    runtime: Runtime,
    candidate: Candidate,
    without: Container[tuple[TableRef, Operation]],
    running: Container[TableRef],
    pause: FleetPause | None,
) -> Candidate:
    """Return the candidate with its pool and the reason that blocks it, without operations that the cycle has tried."""
    due = {op: operation for op, operation in candidate.due_operations.items() if (candidate.ref, op) not in without}
    scope, blocked = runtime.scopes[candidate.ref.catalog], candidate.blocked
    if candidate.ref in running:
        blocked = "held by another job of this pass"
    if not scope.enabled:
        name = candidate.ref.catalog
        blocked = f"catalog {name} is not enabled: {scope.enabling(name)}"
    if pause is not None:
        blocked = str(pause)
    return replace(candidate, pool=scope.pool, blocked=blocked, due_operations=due)


def _without_unavailable(
    runtime: Runtime, candidates: Sequence[Candidate], failing: Mapping[str, Breaker], now: datetime
) -> Sequence[Candidate]:
    """Block the operations that need a failing catalog, storage place or pool, but for one probe of each."""
    if not failing:
        return candidates
    locations: dict[TableRef, str | None] = {}
    if any(resource.startswith("storage ") for resource in failing):
        names = {candidate.ref.catalog for candidate in candidates}
        locations = {row.ref: location_of(row) for name in names for row in runtime.store.tables.list(name)}
    probes: dict[str, TableRef] = {}

    def blocked(candidate: Candidate, operation: DueOperation) -> str | None:
        ready = candidate.blocked is None and (operation.cooled is None or operation.cooled <= now)
        pool = candidate.pool if operation.on_pool else None
        for resource in resources(candidate.ref, locations.get(candidate.ref), pool):
            breaker = failing.get(resource)
            if breaker is None:
                continue
            if breaker.state(now) is BreakerState.OPEN:
                return breaker.reason
            if ready and probes.setdefault(resource, candidate.ref) != candidate.ref:
                return f"{breaker.reason}; another job probes it first"
        return None

    return [
        replace(
            candidate,
            due_operations={
                op: replace(due_operation, blocked=blocked(candidate, due_operation))
                for op, due_operation in candidate.due_operations.items()
            },
        )
        for candidate in candidates
    ]


def _limits(runtime: Runtime) -> Limits:
    """Return the current limits, with those of pools as adapted."""
    now, limits = runtime.store.planning.pool_limits(), runtime.limits()
    pools = {
        name: replace(pool, max_concurrent=min(pool.max_concurrent, now.get(name, pool.max_concurrent)))
        for name, pool in limits.pools.items()
    }
    return replace(limits, pools=pools)


def _adapt(runtime: Runtime, now: datetime) -> None:
    """Adapt the concurrency limit of each pool to the load that its Spark applications report."""
    limits = runtime.store.planning.pool_limits()
    # the others may be gone
    processes = [row for row in runtime.store.processes.list() if now - row.heartbeat <= LEASE]
    for name, pool in runtime.limits().pools.items():
        limit = limits.get(name, pool.max_concurrent)
        changed = adapted(limit, _load(name, processes), pool.max_concurrent)
        if changed != limit:
            runtime.store.planning.set_pool_limit(name, changed, now)


def _load(pool: str, processes: Sequence[ProcessRow]) -> Load | None:
    """Return the load of all the pool's applications together; None when none runs."""
    loads = [p.details["pools"][pool] for p in processes if pool in p.details.get("pools", {})]
    if not loads:
        return None
    return Load(
        sum(s["cores"] for s in loads),
        sum(s["active_tasks"] for s in loads),
        sum(s["pending_tasks"] for s in loads),
        timedelta(seconds=max(s["longest_wait_seconds"] for s in loads)),
    )
