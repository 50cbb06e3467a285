"""From what is due to what runs: the plan over all tables, put into the queue, and the pools' limits adapted."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.plan import Active, Candidate, Limits, MaintenancePlan, PlannedJob, make_plan
from icewright.core.policy import Operation
from icewright.core.pressure import Load, adapted
from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import ProcessRow

TURN = timedelta(seconds=60)  # how long a process that plans keeps others from it
ANEW = timedelta(seconds=60)  # after which windows may have opened and cooldowns ended, though nothing else has moved


def plan_now(
    runtime: Runtime,
    catalogs: Sequence[str],
    started: int = 0,
    without: Container[tuple[TableRef, Operation]] = (),
    running: Sequence[PlannedJob] = (),
) -> MaintenancePlan:
    """Return what would start now of what is due by the last evaluations, and what waits. Nothing is changed.

    Of a pass: `started` is the number of jobs that it began already, `without` what it need not do again, and
    `running` what it has not ended, which the store may not know yet.
    """
    now = runtime.clock.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    usage = runtime.store.planning.usage(midnight)
    known = {job.ref for job in usage.active}
    unknown = [Active(j.ref, j.pool, j.operations, j.on_pool, j.cost) for j in running if j.ref not in known]
    usage = replace(usage, active=(*usage.active, *unknown), started=started)
    held = {job.ref for job in running}
    candidates = []
    for found in runtime.store.planning.candidates(catalogs):
        if not runtime.scopes[found.ref.catalog].holds(found.ref):
            continue
        candidate = replace(found, blocked="held by another job of this pass") if found.ref in held else found
        candidates.append(_placed(runtime, candidate, without))
    return make_plan(candidates, _limits(runtime), now, usage)


class Planning:
    """Planning again and again: when something that a plan is made from has moved, and now and then for the clock."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen: object = None
        self._until = self._renew = runtime.clock.now()

    def due(self) -> int:
        """Queue what the plan admits and write down what waits; returns how many jobs are new.

        One process at a time plans: two would admit more than the limits allow.
        """
        runtime, now = self._runtime, self._runtime.clock.now()
        if now >= self._renew:
            if not runtime.try_acquire_lease("plan", TURN):
                self._seen = None
                return 0
            self._renew = now + TURN / 4  # each time would be a write every few seconds, for nothing
        _adapt(runtime, now)
        seen = runtime.store.planning.change_token()
        if seen == self._seen and now < self._until:
            return 0
        plan = plan_now(runtime, sorted(runtime.scopes))
        queued = [runtime.store.jobs.enqueue(job, runtime.trigger, runtime.clock.now()) for job in plan.jobs]
        runtime.store.planning.record_deferred(plan.deferred)
        self._seen, self._until = seen, now + ANEW  # a plan that failed is made again
        return sum(job_id is not None for job_id in queued)


def _placed(runtime: Runtime, candidate: Candidate, without: Container[tuple[TableRef, Operation]]) -> Candidate:
    wishes = {op: wish for op, wish in candidate.wishes.items() if (candidate.ref, op) not in without}
    scope, blocked = runtime.scopes[candidate.ref.catalog], candidate.blocked
    if not scope.enabled:
        name = candidate.ref.catalog
        blocked = f"catalog {name} is not enabled: set catalogs.{name}.enabled to true"
    return replace(candidate, pool=scope.pool, blocked=blocked, wishes=wishes)


def _limits(runtime: Runtime) -> Limits:
    """Return the configured limits, the pools' as adapted."""
    now = runtime.store.planning.pool_limits()
    pools = {
        name: replace(pool, max_concurrent=min(pool.max_concurrent, now.get(name, pool.max_concurrent)))
        for name, pool in runtime.limits.pools.items()
    }
    return replace(runtime.limits, pools=pools)


def _adapt(runtime: Runtime, now: datetime) -> None:
    """Give each pool as many jobs as its Spark applications say that they can take."""
    limits = runtime.store.planning.pool_limits()
    processes = [row for row in runtime.store.processes.list() if now - row.heartbeat <= TURN]  # the others may be gone
    for name, pool in runtime.limits.pools.items():
        limit = limits.get(name, pool.max_concurrent)
        changed = adapted(limit, _load(name, processes), pool.max_concurrent)
        if changed != limit:
            runtime.store.planning.set_pool_limit(name, changed, now)


def _load(pool: str, processes: Sequence[ProcessRow]) -> Load | None:
    """Return what the pool's applications say together; None when none runs."""
    said = [p.details["pools"][pool] for p in processes if pool in p.details.get("pools", {})]
    if not said:
        return None
    return Load(
        sum(s["cores"] for s in said),
        sum(s["active_tasks"] for s in said),
        sum(s["pending_tasks"] for s in said),
        timedelta(seconds=max(s["longest_wait_seconds"] for s in said)),
    )
