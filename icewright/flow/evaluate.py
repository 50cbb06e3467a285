"""Evaluation of tables. A failed read fails the whole table; facts are never incomplete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from icewright.core.branches import chosen_branches, on_branch
from icewright.core.breakers import FIRST_WAIT
from icewright.core.cost import Experience
from icewright.core.effective import Knobs
from icewright.core.errors import (
    MemoryBusy,
    MetadataUnreadable,
    PackagesMissing,
    StorageHangs,
    StoreUnavailable,
    TableNotFound,
)
from icewright.core.layering import Policy
from icewright.core.policy import PUBLISH_HOURS, Operation
from icewright.core.rewriting import PRIOR_READS
from icewright.core.runs import History
from icewright.core.table import SnapshotHold, TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.flow.breakers import record_fault
from icewright.flow.runtime import Runtime
from icewright.ports import Merging
from icewright.ports.memory import ROOM
from icewright.ports.rows import unseen_snapshots
from icewright.ports.work import catalog_context, progress

_SHOWN = 4000  # characters of an error, which may repeat what the metadata says
RETRY_MISSING = timedelta(hours=1)  # after which a missing table is evaluated again


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the store has of a table at one moment: policy, readers, runs, and what its pool taught."""

    policy: Policy
    holds: tuple[SnapshotHold, ...]  # snapshots that readers have pinned
    reads: Mapping[int, datetime]  # by snapshot, its last read that engines reported
    queries: float | None  # a day, as engines reported
    history: History
    pool: Mapping[Operation, Experience]

    def with_readers(self, facts: TableFacts) -> TableFacts:
        """Return the facts with what readers have pinned and read."""
        return replace(facts, holds=self.holds, reads=self.reads, queries=self.queries)


def stored_state(runtime: Runtime, metadata: TableMetadata) -> StoredState:
    """Return what the store has of a table, read in one transaction."""
    store, ref = runtime.store, metadata.ref
    with store.reading_together():
        reported = store.inbox.reported_reads(ref)
        queries = None if reported is None else reported.expected(PRIOR_READS, runtime.clock.now())
        history, pool = store.runs.history(ref, metadata.table_uuid), runtime.calibration(ref.catalog)
        holds, reads = store.pins.holds(metadata), store.pins.reads(ref)
        return StoredState(runtime.policy(), holds, reads, queries, history, pool)


def measure(
    runtime: Runtime, policy: Policy, metadata: TableMetadata, measured: TableFacts | None = None
) -> tuple[TableFacts, Knobs]:
    """Return the facts of a table, without readers, and its settings; facts that were `measured` before may do."""
    knobs = policy.knobs_for(metadata.ref, metadata)
    sizes = thresholds(knobs, metadata.sort_order)
    if measured is not None and (measured.metadata, measured.thresholds) == (metadata, sizes):
        facts = measured
    else:
        facts = runtime.files.facts(metadata, sizes)
    chosen = chosen_branches(metadata, knobs)
    branches = {name: runtime.files.facts(on_branch(metadata, name), sizes) for name in chosen}
    catalog, wait = runtime.catalog(metadata.ref), timedelta(hours=knobs[PUBLISH_HOURS])
    unmerged = catalog.unmerged(metadata, runtime.clock.now() - wait) if wait and isinstance(catalog, Merging) else ()
    return replace(facts, branches=branches, unmerged=tuple(unmerged)), knobs


def evaluate_table(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation:
    """Read and evaluate one table. Raises the errors of reading."""
    return _evaluate(runtime, ref, now)[0]


def _evaluate(
    runtime: Runtime, ref: TableRef, now: datetime, measured: TableFacts | None = None
) -> tuple[Evaluation, Policy]:
    metadata, store = runtime.catalog(ref).load(ref) if measured is None else measured.metadata, runtime.store
    with store.reading_together():
        stored = stored_state(runtime, metadata)
        registration = store.registrations.get(ref, metadata.table_uuid)
        sharing = tuple(store.tables.sharing(ref, metadata.location))
    facts, knobs = measure(runtime, stored.policy, metadata, measured)
    unseen = unseen_snapshots(metadata, None if registration is None else registration.seen)
    with catalog_context(ref.catalog):
        outside = runtime.files.outside(metadata, unseen)
    facts = replace(stored.with_readers(facts), outside=outside, sharing=sharing)
    return evaluate(facts, knobs, stored.history, now, stored.pool), stored.policy


def evaluate_and_record(
    runtime: Runtime, ref: TableRef, now: datetime, measured: TableFacts | None = None, patience: float | None = None
) -> Evaluation | None:
    """Evaluate a table and record the result; for an unreadable table record the reason and return None.

    Facts that were just `measured` need no second look: where the table has moved since, the next detection sees it. A
    table that waits for memory longer than `patience`, in seconds, is put off, and None is returned. Raises
    `StoreUnavailable` and `PackagesMissing`: they say nothing of the table.
    """
    try:
        with ROOM.table(patience):
            evaluation, policy = _evaluate(runtime, ref, now, measured)
    except MemoryBusy:
        runtime.store.tables.schedule_evaluation([ref], runtime.clock.now() + FIRST_WAIT, release=True)
        return None
    except TableNotFound:  # dropped or renamed since it was listed; the next detection sees that
        runtime.store.tables.clear_due_work([ref], now + RETRY_MISSING)
        return None
    except (StoreUnavailable, PackagesMissing):
        raise
    except Exception as error:  # noqa: BLE001 - a table that nothing can read ends no other table's evaluation
        progress()  # raises in a thread that was given up
        record_unreadable(runtime, ref, error, now)
        return None
    _reevaluate_sharing(runtime, evaluation.facts, now)
    try:
        runtime.store.tables.record_evaluation(evaluation, now, policy.knobs_for(ref, None).fingerprint)
    except (OverflowError, ValueError) as error:  # what the metadata says is more than any store can hold
        record_unreadable(runtime, ref, error, now)
        return None
    return evaluation


def evaluate_now(runtime: Runtime, ref: TableRef) -> Evaluation:
    """Evaluate a table, record the result and return it. Raises `MetadataUnreadable` when that is not possible."""
    evaluation = evaluate_and_record(runtime, ref, runtime.clock.now())
    if evaluation is None:
        row = runtime.store.tables.get(ref)
        error = row.error if row is not None else None
        raise MetadataUnreadable(f"{ref} cannot be evaluated: {error or 'it was dropped'}")
    return evaluation


def record_unreadable(runtime: Runtime, ref: TableRef, error: Exception, now: datetime) -> None:
    """Record why a table cannot be read, for the breaker of what it needs too, and tell the listener."""
    runtime.store.tables.record_unreadable(ref, f"{type(error).__name__}: {error}"[:_SHOWN], now)
    breaker = record_fault(runtime, error, ref)
    if breaker is not None and not isinstance(error, StorageHangs):  # each try may cost a thread
        runtime.store.tables.schedule_evaluation([ref], breaker.retry_at)
    runtime.emit("unreadable", {"table": str(ref), "error": str(error)[:_SHOWN]})


def _reevaluate_sharing(runtime: Runtime, facts: TableFacts, now: datetime) -> None:
    """Schedule the evaluation of tables that do not know yet that this one shares their location."""
    if not facts.sharing:
        return
    before = runtime.store.tables.get(facts.ref)
    if before is None or before.location != facts.metadata.location:
        runtime.store.tables.schedule_evaluation(facts.sharing, now)
