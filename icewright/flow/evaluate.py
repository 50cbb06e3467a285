"""Evaluation of tables. A failed read fails the whole table; facts are never incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.effective import Knobs
from icewright.core.errors import TableNotFound
from icewright.core.layering import Policy
from icewright.core.maintenance_status import MaintenanceStatus, table_status
from icewright.core.policy import ENABLED, Operation
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.flow.breakers import failing_resources, record_fault
from icewright.flow.runtime import Runtime
from icewright.ports import TableRow
from icewright.ports.rows import unseen_snapshots

MAX_CONCURRENT = 4  # tables that one process reads at the same time
BATCH = 64
ROUND = timedelta(seconds=1)  # after which evaluations that still run go on in the background
RETRY_MISSING = timedelta(hours=1)  # after which a missing table is evaluated again
CLAIM = timedelta(minutes=2)  # after which another process may evaluate what this one has not


def read_facts(runtime: Runtime, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    """Return the facts and settings of a table whose metadata is loaded."""
    return _read(runtime, runtime.policy(), metadata)


def _read(
    runtime: Runtime, policy: Policy, metadata: TableMetadata, measured: TableFacts | None = None
) -> tuple[TableFacts, Knobs]:
    knobs = policy.knobs_for(metadata.ref, metadata)
    sizes = thresholds(knobs, metadata.sort_order)
    if measured is not None and (measured.metadata, measured.thresholds) == (metadata, sizes):
        facts = measured
    else:
        facts = runtime.files.facts(metadata, sizes)
    pins = runtime.store.pins.list(metadata.ref, metadata.table_uuid)
    return replace(facts, holds=tuple(pin.hold() for pin in pins)), knobs


def evaluate_table(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation:
    """Read and evaluate one table. Raises the errors of reading."""
    return _evaluate(runtime, runtime.policy(), ref, now)


def _evaluate(
    runtime: Runtime, policy: Policy, ref: TableRef, now: datetime, measured: TableFacts | None = None
) -> Evaluation:
    metadata = runtime.catalog(ref).load(ref)
    facts, knobs = _read(runtime, policy, metadata, measured)
    registration = runtime.store.registrations.get(ref, metadata.table_uuid)
    unseen = unseen_snapshots(metadata, None if registration is None else registration.seen)
    sharing = tuple(runtime.store.tables.sharing(ref, metadata.location))
    facts = replace(facts, outside=runtime.files.outside(metadata, unseen), sharing=sharing)
    return evaluate(facts, knobs, runtime.store.runs.history(ref, metadata.table_uuid), now, runtime.calibration())


def evaluate_and_record(
    runtime: Runtime, ref: TableRef, now: datetime, measured: TableFacts | None = None
) -> Evaluation | None:
    """Evaluate a table and record the result; for an unreadable table record the reason and return None.

    Facts that were `measured` before are used where the table has not moved since.
    """
    policy = runtime.policy()
    try:
        evaluation = _evaluate(runtime, policy, ref, now, measured)
    except TableNotFound:  # dropped or renamed since it was listed; the next detection sees that
        runtime.store.tables.clear_due_work([ref], now + RETRY_MISSING)
        return None
    except Exception as error:  # noqa: BLE001 - a table that nothing can read ends no other table's evaluation
        runtime.store.tables.record_unreadable(ref, f"{type(error).__name__}: {error}", now)
        if (breaker := record_fault(runtime, error, ref)) is not None:
            runtime.store.tables.schedule_evaluation([ref], breaker.retry_at)
        runtime.emit("unreadable", {"table": str(ref), "error": str(error)})
        return None
    _reevaluate_sharing(runtime, evaluation.facts, now)
    runtime.store.tables.record_evaluation(evaluation, now, policy.knobs_for(ref, None).fingerprint)
    return evaluation


def _reevaluate_sharing(runtime: Runtime, facts: TableFacts, now: datetime) -> None:
    """Schedule the evaluation of tables that do not know yet that this one shares their location."""
    before, sharing, location = runtime.store.tables.get(facts.ref), facts.sharing, facts.metadata.location
    if sharing and (before is None or before.location != location):
        runtime.store.tables.schedule_evaluation(sharing, now)


def maintained(
    runtime: Runtime, row: TableRow, metadata: TableMetadata | None = None
) -> Mapping[Operation, MaintenanceStatus]:
    """Return the maintenance status of each operation, by its last run, its catalog's `enabled` and the settings.

    Without metadata, table properties and policies of the catalog are not considered.
    """
    scope, knobs = runtime.scopes.get(row.ref.catalog), runtime.policy().knobs_for(row.ref, metadata)
    switched_on = scope is not None and scope.enabled
    enabled = {op: switched_on and knobs[ENABLED[op]] for op in Operation}
    return table_status(runtime.store.runs.history(row.ref, row.table_uuid or ""), enabled)


def evaluate_due(runtime: Runtime, catalogs: Sequence[str]) -> list[TableRef]:
    """Evaluate all tables of the catalogs that are due, and return them. Tables out of scope are skipped."""
    evaluated: list[TableRef] = []
    with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        while (refs := _claim(runtime, catalogs, BATCH)) is not None:
            now = runtime.clock.now()
            list(pool.map(evaluate_and_record, [runtime] * len(refs), refs, [now] * len(refs)))
            evaluated += refs
    return evaluated


class Evaluator:
    """Evaluates due tables on a few threads; a table whose read hangs holds one of them, and no other table."""

    def __init__(self, runtime: Runtime, catalogs: Sequence[str]) -> None:
        self._runtime, self._catalogs = runtime, catalogs
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="evaluate")
        self._running: dict[TableRef, Future[Evaluation | None]] = {}
        self._claimed: dict[TableRef, None] = {}  # an ordered set

    def due(self) -> int:
        """Evaluate due tables for a second at most; return how many ended. The others go on in the background."""
        room = BATCH - len(self._running) - len(self._claimed)
        self._claimed |= dict.fromkeys(_claim(self._runtime, self._catalogs, room) or () if room > 0 else ())
        for ref in [ref for ref in self._claimed if ref not in self._running]:  # it may move while it is evaluated
            del self._claimed[ref]
            now = self._runtime.clock.now()
            self._running[ref] = self._pool.submit(evaluate_and_record, self._runtime, ref, now)
        wait(self._running.values(), ROUND.total_seconds())
        ended = [ref for ref, future in self._running.items() if future.done()]
        errors = [error for ref in ended if (error := self._running.pop(ref).exception()) is not None]
        if errors:
            raise errors[0]
        return len(ended)

    def close(self) -> None:
        """Begin no further evaluation; those that run are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _claim(runtime: Runtime, catalogs: Sequence[str], limit: int) -> list[TableRef] | None:
    """Claim due tables and return those to evaluate now; None when nothing is due.

    Tables out of scope, and those of a catalog that does not answer, are given back.
    """
    now = runtime.clock.now()
    rows = runtime.store.tables.claim_evaluations(
        catalogs, runtime.trigger.holder, now, now + CLAIM, limit, runtime.process_has_ended
    )
    if not rows:
        return None
    in_scope = [row.ref for row in rows if runtime.scopes[row.ref.catalog].holds(row.ref)]
    runtime.store.tables.clear_due_work(list({row.ref for row in rows} - set(in_scope)), None)
    failing = failing_resources(runtime)
    for resource, breaker in failing.items():
        waiting = [ref for ref in in_scope if resource == f"catalog {ref.catalog}" and breaker.retry_at > now]
        runtime.store.tables.schedule_evaluation(waiting, breaker.retry_at, release=True)
        in_scope = [ref for ref in in_scope if ref not in waiting]
    return in_scope
