"""From a table's name to its evaluation. A failed read fails the whole table, never an emptier answer."""

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

AT_ONCE = 4  # tables that one process reads at the same time
BATCH = 64
GONE = timedelta(hours=1)  # after which a table that was not there is looked at again
CLAIM = timedelta(minutes=2)  # after which another process may evaluate what this one has not


def read_facts(runtime: Runtime, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    """Facts and knobs of a table whose metadata is at hand."""
    return _read(runtime, runtime.policy(), metadata)


def _read(runtime: Runtime, policy: Policy, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    knobs = policy.knobs_for(metadata.ref, metadata)
    facts = runtime.files.facts(metadata, thresholds(knobs, metadata.sort_order))
    held = runtime.store.pins.list(metadata.ref, metadata.table_uuid)
    return replace(facts, holds=tuple(pin.hold() for pin in held)), knobs


def evaluate_table(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation:
    """Read and judge one table. Raises what reading raises."""
    return _judged(runtime, runtime.policy(), ref, now)


def _judged(runtime: Runtime, policy: Policy, ref: TableRef, now: datetime) -> Evaluation:
    metadata = runtime.catalog(ref).load(ref)
    facts, knobs = _read(runtime, policy, metadata)
    known = runtime.store.registrations.get(ref, metadata.table_uuid)
    unseen = unseen_snapshots(metadata, None if known is None else known.seen)
    facts = replace(facts, outside=runtime.files.outside(metadata, unseen))
    return evaluate(facts, knobs, runtime.store.runs.history(ref, metadata.table_uuid), now, runtime.calibration())


def evaluate_and_record(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation | None:
    """Read, judge and write down; a table that cannot be read is written down as such, with the reason."""
    policy = runtime.policy()
    try:
        evaluation = _judged(runtime, policy, ref, now)
    except TableNotFound:  # dropped since it was listed, which the next detection sees, or renamed for a moment
        runtime.store.tables.clear_due_work([ref], now + GONE)
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
    """Return how each operation of a table stands, by its last run, its catalog's master switch and its knobs.

    Without metadata, what the table's own properties and its catalog's policies switch off is not seen.
    """
    scope, knobs = runtime.scopes.get(row.ref.catalog), runtime.policy().knobs_for(row.ref, metadata)
    switched_on = scope is not None and scope.enabled
    enabled = {op: switched_on and knobs[ENABLED[op]] for op in Operation}
    return table_status(runtime.store.runs.history(row.ref, row.table_uuid or ""), enabled)


def evaluate_due(runtime: Runtime, catalogs: Sequence[str], most: int | None = None) -> list[TableRef]:
    """Evaluate the tables whose time has come, at most so many, and say which. What is out of scope waits."""
    done: list[TableRef] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while most is None or len(done) < most:
            now = runtime.clock.now()
            limit = BATCH if most is None else min(BATCH, most - len(done))
            rows = runtime.store.tables.claim_evaluations(catalogs, runtime.trigger.holder, now, now + CLAIM, limit)
            if not rows:
                break
            mine = [row.ref for row in rows if runtime.scopes[row.ref.catalog].holds(row.ref)]
            wanted = set(mine)
            runtime.store.tables.clear_due_work([row.ref for row in rows if row.ref not in wanted], None)
            list(pool.map(evaluate_and_record, [runtime] * len(mine), mine, [now] * len(mine)))
            done += mine
    return done
