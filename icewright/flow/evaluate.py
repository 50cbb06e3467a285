"""From a table's name to its evaluation. A failed read fails the whole table, never an emptier answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from icewright.core.errors import TableNotFound
from icewright.core.policy import Knobs
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.flow.world import World


def read_facts(world: World, metadata: TableMetadata) -> tuple[TableFacts, Knobs]:
    """Facts and knobs of a table whose metadata is at hand."""
    knobs = world.policy().knobs_for(metadata.ref, metadata)
    facts = world.files.facts(metadata, thresholds(knobs, metadata.sort_order))
    held = world.store.pins(metadata.ref, metadata.table_uuid)
    return replace(facts, holds=tuple(pin.hold() for pin in held)), knobs


def evaluate_table(world: World, ref: TableRef, now: datetime) -> Evaluation:
    """Read and judge one table. Raises what reading raises."""
    metadata = world.catalog(ref).load(ref)
    facts, knobs = read_facts(world, metadata)
    return evaluate(facts, knobs, world.store.history(ref, metadata.table_uuid), now)


def evaluate_and_record(world: World, ref: TableRef, now: datetime) -> Evaluation | None:
    """Read, judge and write down; a table that cannot be read is written down as such, with the reason."""
    try:
        evaluation = evaluate_table(world, ref, now)
    except TableNotFound:
        return None  # dropped since it was listed; the next detection sees it
    except Exception as error:  # noqa: BLE001 - a table that nothing can read ends no other table's evaluation
        world.store.unreadable(ref, f"{type(error).__name__}: {error}", now)
        world.tell("unreadable", {"table": str(ref), "error": str(error)})
        return None
    world.store.evaluated(evaluation, now, world.policy().knobs_for(ref, None).fingerprint)
    return evaluation
