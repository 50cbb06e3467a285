"""Detection: list the tables of catalogs and record whose metadata changed. A failing catalog stops no other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from icewright.core.breakers import is_own_limit
from icewright.core.errors import CatalogUnavailable, IcewrightError, StoreUnavailable
from icewright.core.runs import retry_delay
from icewright.flow.breakers import record_failure, record_success
from icewright.flow.runtime import Runtime
from icewright.ports import CatalogRow, Pointer
from icewright.ports.deadlines import CatalogCalls

MAX_BACKOFF = timedelta(minutes=30)
_ALIVE = timedelta(minutes=1)  # since the last heartbeat of a service whose configuration counts


@dataclass(frozen=True, slots=True)
class Detected:
    """Counts of tables in scope and of new or changed tables, and the catalogs that failed with their errors."""

    tables: int
    changed: int
    errors: tuple[tuple[str, str], ...]  # catalog, error


def detect(runtime: Runtime, catalogs: Sequence[str]) -> Detected:
    """List the tables of the catalogs, all at the same time, and record whose metadata changed."""
    calls, lanes = CatalogCalls(_limits(runtime)), ThreadPoolExecutor(max(1, len(catalogs)))
    try:
        results = list(lanes.map(lambda name: _detect_catalog(runtime, name, calls), catalogs))
    finally:
        lanes.shutdown(wait=False)  # Ctrl-C waits for no catalog
    errors = tuple(error for result in results for error in result.errors)
    return Detected(sum(result.tables for result in results), sum(result.changed for result in results), errors)


def claim_due(runtime: Runtime, busy: Container[str] = ()) -> Sequence[str]:
    """Claim the catalogs that are due to be listed, each for its own time-out, and return their names.

    A claim of one catalog ends when it is listed, whatever becomes of the others. `busy` ones are left alone.
    """
    now = runtime.clock.now()
    claimed: list[CatalogRow] = []
    free = [name for name in sorted(runtime.scopes) if name not in busy]
    for limit in {runtime.scopes[name].timeout for name in free}:
        names = [name for name in free if runtime.scopes[name].timeout == limit]
        until = now + limit + timedelta(minutes=1)
        claimed += runtime.store.catalogs.claim(names, runtime.trigger.holder, now, until)
    return [row.name for row in claimed]


class DetectionLanes:
    """Lists due catalogs, each in a thread of its own, so that a catalog that hangs holds up no other."""

    def __init__(self, runtime: Runtime, on_changed: Callable[[], None]) -> None:
        self._runtime, self._on_changed = runtime, on_changed
        self._lanes: dict[str, threading.Thread] = {}
        self._errors: deque[Exception] = deque()

    @cached_property
    def _calls(self) -> CatalogCalls:
        return CatalogCalls(_limits(self._runtime))  # reads the store, which may be away when the service starts

    def due(self) -> int:
        """Start a lane for each due catalog that has none; return 0, as `on_changed` reports changed tables.

        Raises what a lane could not record, such as `StoreUnavailable`.
        """
        if self._errors:
            raise self._errors.popleft()
        busy = {name for name, lane in self._lanes.items() if lane.is_alive()}
        for name in claim_due(self._runtime, busy):
            self._lanes[name] = threading.Thread(
                target=self._run, args=(name, self._calls), name=f"lane {name}", daemon=True
            )
            self._lanes[name].start()
        return 0

    def _run(self, name: str, calls: CatalogCalls) -> None:
        began = self._runtime.clock.now()
        try:
            detected = _detect_catalog(self._runtime, name, calls)
            if detected.changed:
                self._on_changed()
                _record_scan(self._runtime, name, detected, began)
        except Exception as error:  # noqa: BLE001 - raised again by the loop
            self._errors.append(error)


def _limits(runtime: Runtime) -> dict[str, timedelta]:
    return {name: scope.timeout for name, scope in runtime.scopes.items()}


def _detect_catalog(runtime: Runtime, name: str, calls: CatalogCalls) -> Detected:
    """List one catalog and record its changed tables; a failure is recorded and counts for the catalog's breaker."""
    scope, began = runtime.scopes[name], runtime.clock.now()
    try:
        pointers = _list_tables(runtime, name, calls)
        tables, now = runtime.store.tables, runtime.clock.now()
        changed = runtime.retry_idempotent(partial(tables.record_listing, name, pointers, now))
        _apply_policy(runtime, name)
        now = runtime.clock.now()
        runtime.retry_idempotent(partial(runtime.store.catalogs.record_read, name, began, now, now + scope.interval))
        record_success(runtime, [f"catalog {name}"])
    except StoreUnavailable:  # says nothing about the catalog
        raise
    except IcewrightError as error:
        now = runtime.clock.now()
        failures = next((row.failures for row in runtime.store.catalogs.list() if row.name == name), 0)
        runtime.store.catalogs.record_failure(
            name, str(error), now + retry_delay(failures + 1, scope.interval, MAX_BACKOFF)
        )
        runtime.store.activity.record("catalog_failed", now, catalog=name, error=str(error))
        runtime.emit("catalog_failed", {"catalog": name, "error": str(error)})
        if not is_own_limit(error):
            record_failure(runtime, f"catalog {name}", "", str(error))
        return Detected(0, 0, ((name, str(error)),))
    return Detected(sum(scope.contains(pointer.ref) for pointer in pointers), changed, ())


def _record_scan(runtime: Runtime, name: str, detected: Detected, began: datetime) -> None:
    """Record a listing that found changed tables; the others, thousands a day, leave no events."""
    due = len(runtime.store.planning.candidates([name]))
    active = runtime.store.planning.usage(began).active
    running = sum(job.ref.catalog == name for job in active)
    runtime.store.activity.record("scan_started", began, catalogs=[name])
    counts: dict[str, Any] = {"tables": detected.tables, "changed": detected.changed, "due": due, "run": running}
    runtime.store.activity.record("scan_finished", runtime.clock.now(), catalogs=[name], **counts)


def _list_tables(runtime: Runtime, name: str, calls: CatalogCalls) -> Sequence[Pointer]:
    """Return the catalog's tables. Raises `CatalogUnavailable` when the catalog does not answer in time."""
    try:
        return calls.ask(name, runtime.catalogs[name].pointers)
    except IcewrightError:
        raise
    except BaseException as error:  # a bug with one catalog fails no other catalog
        cause = f"{type(error).__name__}: {error}"
        raise CatalogUnavailable(f"catalog {name} could not be listed: unexpected {cause}") from error


def configured_policy(runtime: Runtime, name: str) -> str:
    """Return a digest of what the configuration of this process says about a catalog's tables: policy and scope."""
    policy, scope = runtime.policy(), runtime.scopes[name]
    configured = replace(policy, rules=tuple(rule for rule in policy.rules if rule.source != "store"))
    text = f"{configured.fingerprint}:{scope.namespaces}:{scope.tables}:{scope.archive}"
    return sha256(text.encode()).hexdigest()[:16]


def _apply_policy(runtime: Runtime, name: str) -> None:
    """Schedule the evaluation of tables whose settings changed with the policy or the scope of the catalog.

    Where another service that is alive has applied its own configuration, that one stays: else two services with
    different configurations would have all tables evaluated again at each of their listings.
    """
    policy, scope, now = runtime.policy(), runtime.scopes[name], runtime.clock.now()
    configured = configured_policy(runtime, name)
    stored_rules = replace(policy, rules=tuple(rule for rule in policy.rules if rule.source == "store"), guardrails=())
    fingerprint = f"{configured}:{stored_rules.fingerprint}"
    applied = next((row.policy for row in runtime.store.catalogs.list() if row.name == name), None) or ""
    applied_configuration, _, applied_rules = applied.partition(":")
    if applied_rules == stored_rules.fingerprint and (
        applied_configuration == configured or applied_configuration in _configurations_of_others(runtime, name)
    ):
        return
    rows = [row for row in runtime.store.tables.list(name) if not row.dropped and scope.contains(row.ref)]
    changed = [
        row.ref  # one without a time for its evaluation was out of scope until now
        for row in rows
        if row.evaluate_at is None or row.policy != policy.knobs_for(row.ref, None).fingerprint
    ]
    runtime.store.tables.schedule_evaluation(changed, now)
    runtime.store.catalogs.record_policy_applied(name, fingerprint, now)


def _configurations_of_others(runtime: Runtime, name: str) -> set[str]:
    """Return the digests that the other live services report of their configuration for a catalog."""
    me, now = runtime.trigger.holder, runtime.clock.now()
    return {
        row.details.get("policies", {}).get(name)
        for row in runtime.store.processes.list()
        if row.holder != me and row.kind == "service" and now - row.heartbeat <= _ALIVE
    }


def schedule_changed(runtime: Runtime, names: Sequence[str], now: datetime) -> None:
    """Schedule all changed tables for evaluation now, past the evaluation cooldown."""
    for name in names:
        rows = [row for row in runtime.store.tables.list(name) if not row.dropped]
        runtime.store.tables.schedule_evaluation(
            [r.ref for r in rows if r.metadata_location != r.evaluated_location], now
        )
