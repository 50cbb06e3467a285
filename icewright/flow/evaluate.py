"""Evaluation of tables. A failed read fails the whole table; facts are never incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.effective import Knobs
from icewright.core.errors import TableNotFound
from icewright.core.layering import Policy
from icewright.core.maintenance_status import MaintenanceStatus, table_status
from icewright.core.policy import ENABLED, Operation
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.flow.runtime import Runtime
from icewright.ports import TableRow
from icewright.ports.rows import unseen_snapshots

MAX_CONCURRENT = 4  # tables that one process reads at the same time
BATCH = 64
RETRY_MISSING = timedelta(hours=1)  # after which a missing table is evaluated again
CLAIM = timedelta(minutes=2)  # after which another process may evaluate what this one has not


def read_facts(runtime: Runtime, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    """Return the facts and settings of a table whose metadata is loaded."""
    return _read(runtime, runtime.policy(), metadata)


def _read(runtime: Runtime, policy: Policy, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    knobs = policy.knobs_for(metadata.ref, metadata)
    facts = runtime.files.facts(metadata, thresholds(knobs, metadata.sort_order))
    pins = runtime.store.pins.list(metadata.ref, metadata.table_uuid)
    return replace(facts, holds=tuple(pin.hold() for pin in pins)), knobs


def evaluate_table(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation:
    """Read and evaluate one table. Raises the errors of reading."""
    return _evaluate(runtime, runtime.policy(), ref, now)


def _evaluate(runtime: Runtime, policy: Policy, ref: TableRef, now: datetime) -> Evaluation:
    metadata = runtime.catalog(ref).load(ref)
    facts, knobs = _read(runtime, policy, metadata)
    registration = runtime.store.registrations.get(ref, metadata.table_uuid)
    unseen = unseen_snapshots(metadata, None if registration is None else registration.seen)
    facts = replace(facts, outside=runtime.files.outside(metadata, unseen))
    return evaluate(facts, knobs, runtime.store.runs.history(ref, metadata.table_uuid), now, runtime.calibration())


def evaluate_and_record(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation | None:
    """Evaluate a table and record the result; for an unreadable table record the reason and return None."""
    policy = runtime.policy()
    try:
        evaluation = _evaluate(runtime, policy, ref, now)
    except TableNotFound:  # dropped or renamed since it was listed; the next detection sees that
        runtime.store.tables.clear_due_work([ref], now + RETRY_MISSING)
        return None
    except Exception as error:  # noqa: BLE001 - a table that nothing can read ends no other table's evaluation
        runtime.store.tables.record_unreadable(ref, f"{type(error).__name__}: {error}", now)
        runtime.emit("unreadable", {"table": str(ref), "error": str(error)})
        return None
    runtime.store.tables.record_evaluation(evaluation, now, policy.knobs_for(ref, None).fingerprint)
    return evaluation


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


def evaluate_due(runtime: Runtime, catalogs: Sequence[str], limit: int | None = None) -> list[TableRef]:
    """Evaluate the tables that are due, at most `limit`, and return them. Tables out of scope are skipped."""
    evaluated: list[TableRef] = []
    with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        while limit is None or len(evaluated) < limit:
            now = runtime.clock.now()
            batch = BATCH if limit is None else min(BATCH, limit - len(evaluated))
            rows = runtime.store.tables.claim_evaluations(catalogs, runtime.trigger.holder, now, now + CLAIM, batch)
            if not rows:
                break
            in_scope = [row.ref for row in rows if runtime.scopes[row.ref.catalog].holds(row.ref)]
            wanted = set(in_scope)
            runtime.store.tables.clear_due_work([row.ref for row in rows if row.ref not in wanted], None)
            list(pool.map(evaluate_and_record, [runtime] * len(in_scope), in_scope, [now] * len(in_scope)))
            evaluated += in_scope
    return evaluated
