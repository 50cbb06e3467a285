"""Snapshot expiry: a snapshot goes when it is beyond the count and older than the retention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core.ancestry import ancestors
from icewright.core.cost import service_cost, storage_benefit
from icewright.core.effective import Knobs
from icewright.core.policy import (
    CHECK_TOTALS,
    CLEAN_METADATA,
    DELETE_FILES,
    DELETION_DELAY,
    ENABLED,
    EXPIRE_CONCURRENCY,
    EXPIRE_ENGINE,
    MAX_PIN_AGE,
    MAX_REF_AGE,
    MIN_EXPIRY_SHARE,
    MIN_SNAPSHOTS,
    OUTSIDE,
    READER_PINS,
    RETENTION,
    Operation,
)
from icewright.core.readers import unpinned_reads
from icewright.core.retention import Expiry, just_after, plan_expiry, unused_schemas, writer_state_rule
from icewright.core.runs import LastRun
from icewright.core.steps import SWITCHED_OFF, Blocked, Due, ExpireSnapshots, NotDue, Verdict, Work
from icewright.core.table import RefKind, SnapshotHold, TableFacts, TableMetadata
from icewright.core.vacuum import collected_by, gc_enabled
from icewright.core.words import some

NOTHING = "no snapshots to expire"
_LONGEST_WAIT = timedelta(days=1)  # of an expired snapshot for others to be removed with
_READS_SHOWN = 3
_AGELESS = timedelta(days=-3650)  # a retention past which all snapshots are, also those of clocks that are ahead
_FILES_OF_A_SNAPSHOT = 3  # files that expire with it, before runs have been measured


def expiry(metadata: TableMetadata, holds: Sequence[SnapshotHold], knobs: Knobs, now: datetime) -> Expiry:
    """Return the snapshots and refs that the settings let expire now."""
    return _plan(metadata, holds, knobs, now, timedelta(hours=knobs[RETENTION]))


def _plan(
    metadata: TableMetadata, holds: Sequence[SnapshotHold], knobs: Knobs, now: datetime, retention: timedelta
) -> Expiry:
    ref_age = knobs[MAX_REF_AGE]
    return plan_expiry(
        metadata,
        now=now,
        older_than=now - retention,
        retain_last=knobs[MIN_SNAPSHOTS],
        max_ref_age=None if ref_age is None else timedelta(hours=ref_age),
        holds=(*holds, *_pinned_by_policy(metadata, knobs)),
        writers=writer_state_rule(knobs),
    )


def snapshot_expirations(
    metadata: TableMetadata, holds: Sequence[SnapshotHold], knobs: Knobs, now: datetime
) -> Mapping[int, datetime | str]:
    """Return by snapshot id when the snapshot will be old enough to expire, or else what retains it."""
    if (off := switched_off(metadata, knobs)) is not None:
        return dict.fromkeys(metadata.by_id, off)
    ageless = replace(metadata, refs=tuple(replace(ref, max_snapshot_age=None) for ref in metadata.refs))
    plan = _plan(ageless, holds, knobs, now, _AGELESS)
    ages = dict[int, timedelta]()
    for ref in (r for r in metadata.refs if r.kind is RefKind.BRANCH and r.name not in plan.remove_refs):
        age = ref.max_snapshot_age or timedelta(hours=knobs[RETENTION])
        for snapshot in ancestors(metadata, ref.snapshot_id):
            ages[snapshot.snapshot_id] = max(age, ages.get(snapshot.snapshot_id, age))
    kept = {one.snapshot_id: one.by for one in plan.retained}
    return {
        one: kept.get(one) or just_after(snapshot.timestamp, ages.get(one, timedelta(hours=knobs[RETENTION])))
        for one, snapshot in metadata.by_id.items()
    }


def _uncollected(metadata: TableMetadata) -> str | None:
    """Return why Iceberg lets nobody delete files of a table; None where it does."""
    properties = metadata.properties
    return None if gc_enabled(properties) else f"gc.{SWITCHED_OFF} on the table{collected_by(properties)}"


def switched_off(metadata: TableMetadata, knobs: Knobs) -> str | None:
    """Return why nothing of a table expires; None when it does."""
    if (uncollected := _uncollected(metadata)) is not None:
        return uncollected
    return None if knobs[ENABLED[Operation.EXPIRE_SNAPSHOTS]] else "expire_snapshots is switched off"


def _pinned_by_policy(metadata: TableMetadata, knobs: Knobs) -> Iterator[SnapshotHold]:
    """Yield the reader pins of the policy; each lasts for `max_pin_age_hours` after its snapshot's commit."""
    max_age = timedelta(hours=knobs[MAX_PIN_AGE])
    for reader, snapshot_id in knobs[READER_PINS].items():
        if snapshot := metadata.by_id.get(int(snapshot_id)):
            yield SnapshotHold(snapshot.snapshot_id, f"reader {reader}", snapshot.timestamp + max_age)


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:  # noqa: ARG001
    """Return Due when at least one snapshot or ref may go."""
    metadata = facts.metadata
    if (uncollected := _uncollected(metadata)) is not None:
        return Blocked(uncollected)
    unused = _unused(facts) if knobs[CLEAN_METADATA] else 0
    if not metadata.snapshots and not unused:
        return NotDue("no current snapshot")
    plan = expiry(metadata, facts.holds, knobs, now)
    warnings = _reader_warnings(facts, knobs, plan, now)
    if plan.is_empty and not unused:
        return NotDue(NOTHING, plan.next_expiry, (*_retained_notes(plan), *warnings), warnings)
    step = ExpireSnapshots(
        snapshot_ids=plan.snapshot_ids,
        remove_refs=plan.remove_refs,
        delete_files=knobs[DELETE_FILES],
        max_concurrent_deletes=knobs[EXPIRE_CONCURRENCY],
        by_spark=knobs[EXPIRE_ENGINE] == "spark" and not plan.is_empty,
        check_totals=knobs[CHECK_TOTALS],
        clean_metadata=knobs[CLEAN_METADATA],
        retained=plan.retained,
        losses=(*plan.lost_writers, *warnings),
        outside=knobs[OUTSIDE] == "delete",
        delay=timedelta(hours=knobs[DELETION_DELAY]),
    )
    count = len(plan.snapshot_ids)
    postponed = _postponed(plan, facts.metadata, knobs, now, warnings)
    files = _FILES_OF_A_SNAPSHOT * count + len(plan.remove_refs)
    return Due(
        Work(Operation.EXPIRE_SNAPSHOTS, (step,)),
        benefit=storage_benefit(files + unused),
        cost=service_cost(10 * count),
        why=f"{count} of {len(metadata.snapshots)} snapshots are beyond the {knobs[MIN_SNAPSHOTS]} newest "
        f"and older than {knobs[RETENTION]:g} h"
        + f"; no snapshot uses {unused} of the partition specs and schemas" * bool(unused)
        + (f"; {len(plan.remove_refs)} refs outlived" * bool(plan.remove_refs))
        + "".join(f"; {writer}" for writer in (*plan.kept_writers, *plan.lost_writers, *warnings)),
        files=files if knobs[DELETE_FILES] else 0,
        per_file=storage_benefit(1),
        postponed=postponed,
        warnings=warnings,
    )


def _reader_warnings(facts: TableFacts, knobs: Knobs, plan: Expiry, now: datetime) -> tuple[str, ...]:
    """Return a sentence for each snapshot that an unpinned reader will lose, now or as time passes."""
    holds = (*facts.holds, *_pinned_by_policy(facts.metadata, knobs))
    gone, warnings = set(plan.snapshot_ids), []
    for read in (reads := unpinned_reads(facts.metadata, facts.reads, holds, now))[:_READS_SHOWN]:
        until = read.snapshot.timestamp + timedelta(hours=knobs[RETENTION])
        when = "goes" if read.snapshot.snapshot_id in gone else f"may go from {max(until, now):%Y-%m-%d} on"
        warnings.append(f"snapshot {read.snapshot.snapshot_id} {when}: {read}")
    more = len(reads) - _READS_SHOWN
    return (*warnings, f"{more} more such snapshots") if more > 0 else tuple(warnings)


def _unused(facts: TableFacts) -> int:
    """Return how many schemas no snapshot uses, and specs where the current snapshot's manifests say so for all."""
    metadata = facts.metadata
    specs = {s.spec_id for s in metadata.specs} - {m.spec_id for m in facts.manifests} - {metadata.default_spec_id}
    return len(unused_schemas(metadata, metadata.snapshots)) + (len(specs) if len(metadata.snapshots) < 2 else 0)  # noqa: PLR2004


def _postponed(
    plan: Expiry, metadata: TableMetadata, knobs: Knobs, now: datetime, warnings: tuple[str, ...]
) -> NotDue | None:
    """Return why few expired snapshots wait for more; None when there are enough, or one has waited for a day.

    Each expiry is a commit with a metadata file of its own, so that a table with a commit each hour would get as many.
    """
    count, total = len(plan.snapshot_ids), len(metadata.snapshots)
    if plan.remove_refs or not count or count >= knobs[MIN_EXPIRY_SHARE] * total:
        return None
    oldest = min(metadata.by_id[snapshot_id].timestamp for snapshot_id in plan.snapshot_ids)
    latest = oldest + timedelta(hours=knobs[RETENTION]) + _LONGEST_WAIT
    if now >= latest:
        return None
    waits = f"only {count} of {total} snapshots would go: expiry waits for more until {latest:%Y-%m-%d %H:%M} UTC"
    return NotDue(waits, latest, warnings, warnings)


def _retained_notes(plan: Expiry) -> tuple[str, ...]:
    """Return a note on who keeps old snapshots, besides the count of the policy, most first."""
    by_reason = Counter(one.by for one in plan.retained if not one.by.startswith(("current", "one of"))).most_common()
    shown = some([f"{count} for {who}" for who, count in by_reason])
    return (f"old ones stay: {shown}",) if by_reason else ()
