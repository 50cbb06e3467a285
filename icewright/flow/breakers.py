"""Circuit breakers: of a table, which its own failures pause, and of the catalogs, storage and pools that tables share.

The breakers of shared resources are kept in the store, as the process that plans and those that work must agree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from icewright.core.breakers import (
    PROBE_LIMIT,
    SHARED,
    Breaker,
    BreakerState,
    after_failure,
    faulty_resource,
    is_shared_fault,
    resources,
)
from icewright.core.errors import (
    CatalogUnavailable,
    EngineUnavailable,
    IcewrightError,
    StorageHangs,
    StorageUnavailable,
    TerminalError,
)
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.words import in_shell
from icewright.flow.runtime import Runtime
from icewright.ports import TableRow
from icewright.ports.work import CallSite, WorkState

_STORAGE_CALLS = ("icewright.adapters.files.local", "icewright.adapters.files.obj", "icewright.adapters.files.stor")
_CALLERS: Mapping[str, Callable[[str], IcewrightError]] = {
    "icewright.adapters.files.": StorageHangs,
    "icewright.adapters.catalogs.": CatalogUnavailable,
    "icewright.adapters.engines.spark.": EngineUnavailable,
    "icewright.adapters.engines.arrow.": EngineUnavailable,
}


def pause_after_failures(runtime: Runtime, ref: TableRef, state: JobState, limit: int, ending: str) -> None:
    """Pause the table when its last `limit` jobs ended in this state by its own faults."""
    count = runtime.store.jobs.count_consecutive(ref, state)
    row = runtime.store.tables.get(ref)
    if count >= limit and row is not None and not row.paused:
        runtime.store.tables.pause(
            ref, f"{count} jobs {ending} in a row; `icewright resume {in_shell(ref)}` when it is fixed"
        )
        runtime.record_event("paused", ref, {"jobs": count, "state": state})


def failing_resources(runtime: Runtime) -> Mapping[str, Breaker]:
    """Return the breakers that are not closed, by resource."""
    now = runtime.clock.now()
    return {b.resource: b for b in runtime.store.breakers.list() if b.state(now) is not BreakerState.CLOSED}


def record_fault(runtime: Runtime, error: Exception, ref: TableRef) -> Breaker | None:
    """Count an error for the breaker of the shared resource at fault; return it, None for other errors."""
    if not isinstance(error, IcewrightError) or error.owner not in SHARED:
        return None
    row = runtime.store.tables.get(ref)
    resource = faulty_resource(error, ref, location_of(row), runtime.scopes[ref.catalog].pool)
    return None if resource is None else record_failure(runtime, resource, str(ref), str(error))


def hanging_call(message: str, site: CallSite | None) -> IcewrightError:
    """Return the error of a call that never returns, by the part of the program that made the call."""
    module = "" if site is None else site.module
    return next((error for part, error in _CALLERS.items() if module.startswith(part)), TerminalError)(message)


def hangs_in_storage(site: CallSite | None) -> bool:
    """Return whether a thread is in a call of the storage, and not in work on what was read."""
    return site is not None and site.module.startswith(_STORAGE_CALLS)


def awaited_resource(runtime: Runtime, work: WorkState, ref: TableRef) -> str | None:
    """Return the catalog or storage place whose answer the work on a table waits for; None for other work."""
    error = hanging_call("", work.site)
    if not isinstance(error, CatalogUnavailable) and not hangs_in_storage(work.site):
        return None
    return faulty_resource(error, ref, location_of(runtime.store.tables.get(ref)), "")


def record_wait(runtime: Runtime, work: WorkState, ref: TableRef) -> None:
    """Count a call of the table's catalog or storage that has not returned yet for the breaker, as if it had failed."""
    error = hanging_call(f"{work.name} waits for an answer since {work.idle_seconds:.0f} s", work.site)
    if isinstance(error, CatalogUnavailable) or hangs_in_storage(work.site):
        with suppress(StorageUnavailable):  # the breaker is not worth more than the look at others
            record_fault(runtime, error, ref)


def record_failure(runtime: Runtime, resource: str, subject: str, error: str) -> Breaker:
    """Count a failure of a resource; a blank `subject` says that the resource itself failed, which opens it."""
    recorded = False
    while not recorded:
        last = next((b for b in runtime.store.breakers.list() if b.resource == resource), None)
        now = runtime.clock.now()
        breaker = after_failure(last, resource, subject, error, now, random.random())  # noqa: S311 - jitter
        recorded = runtime.store.breakers.record(breaker, last)
    if breaker.state(now) is BreakerState.OPEN and (last is None or last.state(now) is BreakerState.CLOSED):
        runtime.store.activity.record("breaker_opened", now, resource=resource, error=error)
        runtime.emit("breaker_opened", {"resource": resource, "error": error})
    return breaker


def record_success(runtime: Runtime, answered: Collection[str]) -> None:
    """Close the breakers of resources that have answered, and evaluate the tables that waited for them."""
    if not answered:
        return
    now = runtime.clock.now()
    breakers = {breaker.resource: breaker for breaker in runtime.store.breakers.list()}
    for resource in breakers.keys() & set(answered):
        if not runtime.store.breakers.close(resource) or breakers[resource].state(now) is BreakerState.CLOSED:
            continue
        _evaluate_waiting(runtime, resource, now)
        runtime.store.activity.record("breaker_closed", now, resource=resource)
        runtime.emit("breaker_closed", {"resource": resource})


def claim_probes(runtime: Runtime, ref: TableRef, pool: str | None) -> str | None:
    """Return why a job on the table may not begin; None when it may, perhaps as the probe of a failing resource."""
    now, failing = runtime.clock.now(), failing_resources(runtime)
    if not failing:
        return None
    needed = resources(ref, location_of(runtime.store.tables.get(ref)), pool)
    for breaker in [failing[resource] for resource in needed if resource in failing]:
        if breaker.state(now) is BreakerState.OPEN:
            return breaker.reason
        if not runtime.store.breakers.claim_probe(breaker.resource, now, now + PROBE_LIMIT):
            return f"{breaker.reason}; another job probes it now"
    return None


def forget_unused(runtime: Runtime, after: timedelta) -> None:
    """Close breakers that nothing has probed for so long: no configured table needs the resource any more."""
    now = runtime.clock.now()
    for breaker in runtime.store.breakers.list():
        if now - breaker.retry_at > after:
            runtime.store.breakers.close(breaker.resource)


def location_of(row: TableRow | None) -> str | None:
    """Return a path in the storage of a table: its location, or its metadata file before the first evaluation."""
    return None if row is None else row.location or row.metadata_location


def _evaluate_waiting(runtime: Runtime, resource: str, now: datetime) -> None:
    """Schedule the tables that shared resources kept from an evaluation, and those of the catalog that have changed."""
    waiting = [
        row.ref
        for catalog in runtime.scopes
        for row in runtime.store.tables.list(catalog)
        if (row.error is not None and is_shared_fault(row.error))
        or (resource == f"catalog {catalog}" and not row.dropped and row.metadata_location != row.evaluated_location)
    ]
    runtime.store.tables.schedule_evaluation(waiting, now)
