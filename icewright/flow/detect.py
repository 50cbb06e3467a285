"""Detection: list the tables of catalogs and record which moved. A failing catalog stops no other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from icewright.core.errors import CatalogUnavailable, IcewrightError
from icewright.core.runs import later
from icewright.flow.runtime import Runtime
from icewright.ports import Pointer

MOST_BACKOFF = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Detected:
    """Counts of tables in scope and of new or moved tables, and the catalogs that failed with their errors."""

    tables: int
    moved: int
    errors: tuple[tuple[str, str], ...]  # catalog, error


def detect(runtime: Runtime, catalogs: Sequence[str]) -> Detected:
    """List the tables of each catalog and record which moved."""
    tables = moved = 0
    errors: list[tuple[str, str]] = []
    failures = {row.name: row.failures for row in runtime.store.catalogs.list()}
    for name in catalogs:
        scope, began = runtime.scopes[name], runtime.clock.now()
        try:
            pointers = _list_tables(runtime, name)
            moved += runtime.store.tables.record_listing(name, pointers, runtime.clock.now())
            _apply_policy(runtime, name)
            tables += sum(scope.holds(p.ref) for p in pointers)
            now = runtime.clock.now()
            runtime.store.catalogs.record_read(name, began, now, now + scope.interval)
        except IcewrightError as error:
            errors.append((name, str(error)))
            now = runtime.clock.now()
            wait = later(failures.get(name, 0) + 1, scope.interval, MOST_BACKOFF)
            runtime.store.catalogs.record_failure(name, str(error), now + wait)
            runtime.store.activity.record("catalog_failed", now, catalog=name, error=str(error))
            runtime.emit("catalog_failed", {"catalog": name, "error": str(error)})
    return Detected(tables, moved, tuple(errors))


def detect_due(runtime: Runtime) -> Detected:
    """List the catalogs that are due and that no other process lists."""
    now = runtime.clock.now()
    until = now + max((s.timeout for s in runtime.scopes.values()), default=timedelta(0)) + timedelta(minutes=1)
    claimed = runtime.store.catalogs.claim(sorted(runtime.scopes), runtime.trigger.holder, now, until)
    return detect(runtime, [row.name for row in claimed])


def _list_tables(runtime: Runtime, name: str) -> Sequence[Pointer]:
    """Return the catalog's tables. Raises `CatalogUnavailable` when the catalog does not answer in time."""
    answer: list[Sequence[Pointer] | BaseException] = []

    def ask() -> None:
        try:
            answer.append(runtime.catalogs[name].pointers())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            answer.append(error)

    limit = runtime.scopes[name].timeout
    thread = threading.Thread(target=ask, name=f"detect {name}", daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if not answer:
        raise CatalogUnavailable(
            f"catalog {name} did not list its tables within {limit.total_seconds():g} s (detect.timeout_seconds)"
        )
    match answer[0]:
        case IcewrightError() as error:
            raise error
        case BaseException() as error:  # a fault of ours with one catalog is none of the others'
            cause = f"{type(error).__name__}: {error}"
            raise CatalogUnavailable(f"catalog {name} could not be listed: unexpected {cause}") from error
        case pointers:
            return pointers


def _apply_policy(runtime: Runtime, name: str) -> None:
    """Schedule the evaluation of tables whose settings changed with the policy or the scope of the catalog."""
    policy, scope, now = runtime.policy(), runtime.scopes[name], runtime.clock.now()
    fingerprint = f"{policy.fingerprint}:{scope.namespaces}:{scope.tables}:{scope.archive}"
    if any(row.name == name and row.policy == fingerprint for row in runtime.store.catalogs.list()):
        return
    rows = [row for row in runtime.store.tables.list(name) if not row.dropped and scope.holds(row.ref)]
    changed = [
        row.ref  # one that has no time to be looked at was out of scope until now
        for row in rows
        if row.evaluate_at is None or row.policy != policy.knobs_for(row.ref, None).fingerprint
    ]
    runtime.store.tables.schedule_evaluation(changed, now)
    runtime.store.catalogs.record_policy_applied(name, fingerprint, now)


def schedule_moved(runtime: Runtime, names: Sequence[str], now: datetime) -> None:
    """Schedule all moved tables for evaluation now, past the evaluation cooldown."""
    for name in names:
        rows = [row for row in runtime.store.tables.list(name) if not row.dropped]
        runtime.store.tables.schedule_evaluation(
            [r.ref for r in rows if r.metadata_location != r.evaluated_location], now
        )
