"""From a table's name to its evaluation. A failed read fails the whole table, never an emptier answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.errors import TableNotFound
from icewright.core.layering import Policy
from icewright.core.maintenance_status import MaintenanceStatus, table_status
from icewright.core.policy import ENABLED, Knobs, Operation
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.flow.world import World
from icewright.ports import TableRow
from icewright.ports.rows import FIRST_LOOK

AT_ONCE = 4  # tables that one process reads at the same time
BATCH = 64
GONE = timedelta(hours=1)  # after which a table that was not there is looked at again
CLAIM = timedelta(minutes=2)  # after which another process may evaluate what this one has not


def read_facts(world: World, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    """Facts and knobs of a table whose metadata is at hand."""
    return _read(world, world.policy(), metadata)


def _read(world: World, policy: Policy, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    knobs = policy.knobs_for(metadata.ref, metadata)
    facts = world.files.facts(metadata, thresholds(knobs, metadata.sort_order))
    held = world.store.pins(metadata.ref, metadata.table_uuid)
    return replace(facts, holds=tuple(pin.hold() for pin in held)), knobs


def evaluate_table(world: World, ref: TableRef, now: datetime) -> Evaluation:
    """Read and judge one table. Raises what reading raises."""
    return _judged(world, world.policy(), ref, now)


def _judged(world: World, policy: Policy, ref: TableRef, now: datetime) -> Evaluation:
    metadata = world.catalog(ref).load(ref)
    facts, knobs = _read(world, policy, metadata)
    row = world.store.table(ref)
    if row is None or row.table_uuid != metadata.table_uuid:  # once: later snapshots are looked at while they are new
        earlier = world.files.outside(metadata, metadata.snapshots[-FIRST_LOOK:])
        facts = replace(facts, outside=tuple(dict.fromkeys((*facts.outside, *earlier))))
    return evaluate(facts, knobs, world.store.history(ref, metadata.table_uuid), now, world.typical())


def evaluate_and_record(world: World, ref: TableRef, now: datetime) -> Evaluation | None:
    """Read, judge and write down; a table that cannot be read is written down as such, with the reason."""
    policy = world.policy()
    try:
        evaluation = _judged(world, policy, ref, now)
    except TableNotFound:  # dropped since it was listed, which the next detection sees, or renamed for a moment
        world.store.forget_due([ref], now + GONE)
        return None
    except Exception as error:  # noqa: BLE001 - a table that nothing can read ends no other table's evaluation
        world.store.unreadable(ref, f"{type(error).__name__}: {error}", now)
        world.tell("unreadable", {"table": str(ref), "error": str(error)})
        return None
    world.store.evaluated(evaluation, now, policy.knobs_for(ref, None).fingerprint)
    return evaluation


def maintained(
    world: World, row: TableRow, metadata: TableMetadata | None = None
) -> Mapping[Operation, MaintenanceStatus]:
    """How each operation of a table stands, by its last run, its catalog's master switch and its knobs.

    Without metadata, what the table's own properties and its catalog's policies switch off is not seen.
    """
    scope, knobs = world.scopes.get(row.ref.catalog), world.policy().knobs_for(row.ref, metadata)
    switched_on = scope is not None and scope.enabled
    enabled = {op: switched_on and knobs[ENABLED[op]] for op in Operation}
    return table_status(world.store.history(row.ref, row.table_uuid or ""), enabled)


def evaluate_due(world: World, catalogs: Sequence[str], most: int | None = None) -> list[TableRef]:
    """Evaluate the tables whose time has come, at most so many, and say which. What is out of scope waits."""
    done: list[TableRef] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while most is None or len(done) < most:
            now = world.clock.now()
            limit = BATCH if most is None else min(BATCH, most - len(done))
            rows = world.store.claim_evaluations(catalogs, world.trigger.holder, now, now + CLAIM, limit)
            if not rows:
                break
            mine = [row.ref for row in rows if world.scopes[row.ref.catalog].holds(row.ref)]
            wanted = set(mine)
            world.store.forget_due([row.ref for row in rows if row.ref not in wanted], None)
            list(pool.map(evaluate_and_record, [world] * len(mine), mine, [now] * len(mine)))
            done += mine
    return done
