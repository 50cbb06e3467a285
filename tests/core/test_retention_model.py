"""Random histories: the plan is what Iceberg's rules say, read as plainly as they can be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icewright.core.operations.expire_snapshots import expiry, snapshot_expirations
from icewright.core.retention import plan_expiry
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotHold, SnapshotRef, TableMetadata
from icewright.testing import NOW, knobs, metadata, snapshot
from tests.examples import examples

AGES = st.integers(0, 12)  # few values, so that bounds are met exactly
COUNTS = st.integers(1, 5)
LIMITS = st.none() | st.integers(1, 12).map(lambda h: timedelta(hours=h))  # Iceberg knows none of 0


@st.composite
def _snapshots(draw: st.DrawFn) -> Sequence[Snapshot]:
    """Appends, rollbacks, staged commits and lines whose beginning has expired already."""
    made: list[Snapshot] = []
    for snapshot_id in range(1, draw(st.integers(1, 12)) + 1):
        parents = [None, 99, *range(1, snapshot_id)]
        parent = parents[-1] if draw(st.integers(0, 2)) else draw(st.sampled_from(parents))
        made.append(snapshot(snapshot_id, age=draw(AGES), parent_id=parent))
    return sorted(made, key=lambda s: s.timestamp) if draw(st.booleans()) else made


@st.composite
def _tables(draw: st.DrawFn) -> TableMetadata:
    snapshots = draw(_snapshots())
    ids = st.sampled_from([s.snapshot_id for s in snapshots])

    def ref(name: str, kind: RefKind) -> SnapshotRef:
        if kind is RefKind.TAG:
            return SnapshotRef(name, kind, draw(ids), max_ref_age=draw(LIMITS))
        return SnapshotRef(name, kind, draw(ids), draw(st.none() | COUNTS), draw(LIMITS), draw(LIMITS))

    main = ref(MAIN, RefKind.BRANCH)
    others = [ref(f"r{i}", draw(st.sampled_from(RefKind))) for i in range(draw(st.integers(0, 4)))]
    return metadata(snapshots=tuple(snapshots), refs=[main, *others], current_snapshot_id=main.snapshot_id)


def _line(table: TableMetadata, start: int | None) -> list[Snapshot]:
    found = {s.snapshot_id: s for s in table.snapshots}
    if start is None or start not in found:
        return []
    return [found[start], *_line(table, found[start].parent_id)]


def _kept_by_branch(
    table: TableMetadata, branch: SnapshotRef, older_than: datetime, retain_last: int, now: datetime
) -> set[int]:
    line = _line(table, branch.snapshot_id)
    count = retain_last if branch.min_snapshots_to_keep is None else branch.min_snapshots_to_keep
    cutoff = older_than if branch.max_snapshot_age is None else now - branch.max_snapshot_age
    young = takewhile(lambda s: s.timestamp >= cutoff, line[count:])
    return {s.snapshot_id for s in [*line[:count], *young]}


def _model(
    table: TableMetadata, older_than: datetime, retain_last: int, max_ref_age: timedelta | None
) -> tuple[set[int], set[str]]:
    """Snapshots that stay and refs that go."""
    time = {s.snapshot_id: s.timestamp for s in table.snapshots}
    limits = {r.name: max_ref_age if r.max_ref_age is None else r.max_ref_age for r in table.refs}
    gone = {
        r.name
        for r in table.refs
        if r.name != MAIN and (limit := limits[r.name]) is not None and NOW - time[r.snapshot_id] > limit
    }
    refs = [r for r in table.refs if r.name not in gone]
    branches = [r for r in refs if r.kind is RefKind.BRANCH]
    heads = {r.snapshot_id for r in refs}
    by_branches = [_kept_by_branch(table, b, older_than, retain_last, NOW) for b in branches]
    referenced = heads.union(*({s.snapshot_id for s in _line(table, b.snapshot_id)} for b in branches))
    loose = {s.snapshot_id for s in table.snapshots if s.snapshot_id not in referenced and s.timestamp >= older_than}
    return heads.union(loose, *by_branches), gone


@examples(250)
@given(_tables(), AGES, COUNTS, LIMITS)
def test_the_plan_is_iceberg_s(table: TableMetadata, hours: int, keep: int, max_ref_age: timedelta | None) -> None:
    """On any history with branches, tags, rollbacks and per-ref settings exactly the model's snapshots and refs go."""
    older_than = NOW - timedelta(hours=hours)
    plan = plan_expiry(table, now=NOW, older_than=older_than, retain_last=keep, max_ref_age=max_ref_age)
    kept, gone = _model(table, older_than, keep, max_ref_age)
    assert set(plan.snapshot_ids) == {s.snapshot_id for s in table.snapshots} - kept
    assert set(plan.remove_refs) == gone
    assert plan.is_empty == (not plan.snapshot_ids and not plan.remove_refs)


@examples(60)
@given(_tables(), AGES, COUNTS)
def test_every_old_snapshot_either_goes_or_is_pinned(table: TableMetadata, hours: int, keep: int) -> None:
    """Nothing is left unexplained: old snapshots are planned or pinned, young ones are never pinned."""
    older_than = NOW - timedelta(hours=hours)
    plan = plan_expiry(table, now=NOW, older_than=older_than, retain_last=keep)
    old = {s.snapshot_id for s in table.snapshots if s.timestamp < older_than}
    pinned = {one.snapshot_id for one in plan.retained}
    assert pinned == old - set(plan.snapshot_ids)
    assert all(one.by for one in plan.retained)


@examples(60)
@given(_tables(), AGES, COUNTS, LIMITS)
def test_a_second_expiry_finds_nothing(
    table: TableMetadata, hours: int, keep: int, max_ref_age: timedelta | None
) -> None:
    """Once the plan is carried out, the same rules at the same time have nothing left to do."""
    older_than = NOW - timedelta(hours=hours)
    plan = plan_expiry(table, now=NOW, older_than=older_than, retain_last=keep, max_ref_age=max_ref_age)
    after = metadata(
        snapshots=tuple(s for s in table.snapshots if s.snapshot_id not in plan.snapshot_ids),
        refs=[r for r in table.refs if r.name not in plan.remove_refs],
        current_snapshot_id=table.current_snapshot_id,
    )
    again = plan_expiry(after, now=NOW, older_than=older_than, retain_last=keep, max_ref_age=max_ref_age)
    assert again.is_empty


@examples(100)
@given(st.lists(AGES, max_size=12), st.none() | COUNTS, LIMITS, COUNTS, AGES, st.booleans())
def test_a_straight_history_is_gone_through_from_its_end(
    ages: list[int], least: int | None, age: timedelta | None, retain_last: int, hours: int, future: bool
) -> None:
    """Where main alone leads to all snapshots, looking at the oldest says the same as looking at all of them."""
    line = metadata(sorted(ages, reverse=True)) if ages else metadata(snapshots=(), current_snapshot_id=None)
    if ages:
        main = SnapshotRef(MAIN, RefKind.BRANCH, len(ages), least, age)
        line = metadata(sorted(ages, reverse=True), refs=[main])
    bent = replace(line)
    vars(bent)["is_straight"] = False
    now = NOW + timedelta(hours=7) if future else NOW
    known: Any = {"now": now, "older_than": now - timedelta(hours=hours), "retain_last": retain_last}
    assert line.is_straight == bool(ages)
    assert plan_expiry(line, **known) == plan_expiry(bent, **known)


@examples(60)
@given(_tables(), st.integers(1, 6), st.integers(1, 4), st.none() | st.integers(0, 12), st.booleans())
def test_what_people_are_told_of_snapshots_is_what_expires(
    table: TableMetadata, hours: int, retain_last: int, held: int | None, enabled: bool
) -> None:
    """One that stays for its age expires when that is said, not before; one that somebody keeps does not."""
    times = sorted(s.timestamp for s in table.snapshots)  # no clock went back
    by_id = sorted(table.snapshots, key=lambda s: s.snapshot_id)
    grown = tuple(replace(s, timestamp=at) for s, at in zip(by_id, times, strict=True))
    endless = replace(table, snapshots=grown, refs=tuple(replace(ref, max_ref_age=None) for ref in table.refs))
    kept = knobs(
        {
            "expire_snapshots.retention_hours": hours,
            "expire_snapshots.min_snapshots_to_keep": retain_last,
            "expire_snapshots.enabled": enabled,
        }
    )
    holds = () if held is None else (SnapshotHold(held, "reader a", NOW + timedelta(days=30)),)
    told = snapshot_expirations(endless, holds, kept, NOW)
    assert told.keys() == endless.by_id.keys()

    def expires(snapshot_id: int, at: datetime) -> bool:
        return snapshot_id in expiry(endless, holds, kept, at).snapshot_ids

    for snapshot_id, until in told.items():
        if not enabled:
            assert until == "expire_snapshots is switched off"
        elif isinstance(until, str):
            assert not expires(snapshot_id, NOW + timedelta(days=20))
        else:
            assert expires(snapshot_id, max(until, NOW))
            assert until <= NOW or not expires(snapshot_id, until - timedelta(seconds=2))
