"""Which snapshots and refs go: Iceberg's rules, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.core.ancestry import ancestors
from icewright.core.retention import Expiry, plan_expiry, unused_schemas
from icewright.core.table import MAIN, RefKind, SnapshotHold, SnapshotRef, TableMetadata
from icewright.testing import NOW, lineage, metadata, snapshot

HOUR = timedelta(hours=1)


def _tag(name: str, snapshot_id: int, **more: Any) -> SnapshotRef:
    return SnapshotRef(name, RefKind.TAG, snapshot_id, **more)


def _branch(name: str, snapshot_id: int, **more: Any) -> SnapshotRef:
    return SnapshotRef(name, RefKind.BRANCH, snapshot_id, **more)


def _plan(table: TableMetadata, *, hours: float = 24, keep: int = 1, ref_hours: float | None = None) -> Expiry:
    ref_age = None if ref_hours is None else ref_hours * HOUR
    return plan_expiry(table, now=NOW, older_than=NOW - hours * HOUR, retain_last=keep, max_ref_age=ref_age)


@pytest.mark.cases(1)
def test_a_tag_keeps_its_snapshot() -> None:
    """Everything older than now goes down to one snapshot, but not the one that a tag names, which says so."""
    plan = _plan(metadata([50, 40, 30], refs=[_tag("v1", 2)]), hours=0)
    assert plan.snapshot_ids == (1,)
    assert {one.snapshot_id: one.by for one in plan.retained}[2] == "head of tag v1"


@pytest.mark.cases(2)
def test_a_branch_keeps_its_own_count() -> None:
    """A branch with min-snapshots-to-keep keeps its head and as many ancestors, whatever the default is."""
    table = metadata(
        snapshots=(*lineage([90, 80]), *lineage([70, 60, 50], first_id=10, parent_id=2)),
        current_snapshot_id=2,
        refs=[_branch("audit", 12, min_snapshots_to_keep=2)],
    )
    assert _plan(table).snapshot_ids == (1, 10)


@pytest.mark.cases(3)
def test_a_branch_keeps_by_its_own_age() -> None:
    """Ancestors younger than the branch's max-snapshot-age stay, older ones beyond the count go."""
    table = metadata(
        snapshots=lineage([90, 60, 30, 5]), refs=[_branch(MAIN, 4, max_snapshot_age=70 * HOUR, min_snapshots_to_keep=1)]
    )
    plan = _plan(table)
    assert plan.snapshot_ids == (1,)
    assert [one.snapshot_id for one in plan.retained] == [2, 3]


@pytest.mark.cases(3)
def test_a_branch_may_keep_shorter_than_the_default() -> None:
    """A branch's own age counts even where it is shorter than the default."""
    table = metadata(snapshots=lineage([20, 10, 1]), refs=[_branch(MAIN, 3, max_snapshot_age=5 * HOUR)])
    assert _plan(table).snapshot_ids == (1, 2)


@pytest.mark.parametrize("others", [[], [_tag("first", 1)]])  # main alone is planned without its history
def test_an_age_of_nothing_is_no_age(others: list[SnapshotRef]) -> None:
    """The policy decides for a branch whose own age is none that Iceberg's library writes."""
    table = metadata(snapshots=lineage([20, 10, 1]), refs=[_branch(MAIN, 3, max_snapshot_age=0 * HOUR), *others])
    assert _plan(table, hours=48).snapshot_ids == ()


@pytest.mark.parametrize(
    ("ref", "ref_hours", "removed"),
    [
        (_tag("old", 1, max_ref_age=40 * HOUR), None, ("old",)),
        (_branch("old", 1, max_ref_age=40 * HOUR), None, ("old",)),
        (_tag("old", 1, max_ref_age=60 * HOUR), 40, ()),
        (_tag("old", 1, max_ref_age=0 * HOUR), 40, ()),  # Iceberg's library writes no such age, and loads none
        (_tag("old", 1), 40, ("old",)),
        (_tag("old", 1), 50, ()),
        (_tag("old", 1), None, ()),
    ],
)
@pytest.mark.cases(4)
def test_refs_are_outlived(ref: SnapshotRef, ref_hours: float | None, removed: tuple[str, ...]) -> None:
    """A tag or branch past its own max-ref-age, else the given one, goes, and its snapshot with it."""
    table = metadata(snapshots=(snapshot(1, age=50), snapshot(2, age=1)), current_snapshot_id=2, refs=[ref])
    plan = _plan(table, ref_hours=ref_hours)
    assert plan.remove_refs == removed
    assert plan.snapshot_ids == ((1,) if removed else ())


@pytest.mark.cases(4)
def test_main_is_never_outlived() -> None:
    """However old its head is, and whatever it says itself, main stays."""
    table = metadata([500, 400], refs=[_branch(MAIN, 2, max_ref_age=HOUR)])
    assert _plan(table, ref_hours=1).remove_refs == ()
    assert _plan(table, ref_hours=1).snapshot_ids == (1,)


@pytest.mark.cases(4)
def test_an_outlived_ref_goes_alone() -> None:
    """When a snapshot is kept for another cause, the plan has the ref only, and is not empty."""
    plan = _plan(metadata([50, 1], refs=[_tag("old", 1, max_ref_age=HOUR)]), keep=5)
    assert (plan.snapshot_ids, plan.remove_refs, plan.is_empty) == ((), ("old",), False)


@pytest.mark.cases(5)
def test_no_head_is_ever_planned() -> None:
    """What a remaining ref names is not removed, even when every count and age says so."""
    table = metadata([90, 80, 70], refs=[_tag("a", 1), _branch("b", 2, min_snapshots_to_keep=1)])
    assert _plan(table, hours=0).is_empty


@pytest.mark.cases(6)
def test_a_new_tag_changes_the_plan() -> None:
    """Planned again from metadata in which somebody has tagged a planned snapshot, the plan leaves it out."""
    before = metadata([50, 40, 30])
    assert _plan(before).snapshot_ids == (1, 2)
    assert _plan(metadata([50, 40, 30], refs=[_tag("late", 1)])).snapshot_ids == (2,)


@pytest.mark.cases(7)
def test_snapshots_outside_any_ref() -> None:
    """After a rollback, what no ref leads to stays while it is young, whatever the count, and goes when it is old."""
    rolled_back = (*lineage([90]), snapshot(2, age=50, parent_id=1), snapshot(3, age=2, parent_id=1))
    table = metadata(snapshots=rolled_back, current_snapshot_id=1)
    assert _plan(table, keep=100).snapshot_ids == (2,)


@pytest.mark.parametrize(("kind", "expired"), [(RefKind.TAG, (1,)), (RefKind.BRANCH, ())])
@pytest.mark.cases(7)
def test_parents_of_a_tag_are_not_referenced(kind: RefKind, expired: tuple[int, ...]) -> None:
    """A tag holds one snapshot; a branch holds its history, and keeps the count of it."""
    table = metadata(
        snapshots=(*lineage([90, 80]), snapshot(3, age=1)), current_snapshot_id=3, refs=[SnapshotRef("r", kind, 2)]
    )
    assert _plan(table, keep=2).snapshot_ids == expired


@pytest.mark.cases(8)
def test_a_staged_snapshot_waits_for_its_publication() -> None:
    """A write-audit-publish snapshot is in no branch, and stays as long as the retention gives it."""
    staged = snapshot(3, age=23, parent_id=2, summary={"operation": "append", "wap.id": "w1"})
    table = metadata(snapshots=(*lineage([40, 30]), staged), current_snapshot_id=2)
    plan = _plan(table)
    assert plan.snapshot_ids == (1,)
    staged_reason = "staged as w1, not published yet, younger than the retention"
    assert [(one.snapshot_id, one.by) for one in plan.retained] == [(2, "current snapshot"), (3, staged_reason)]
    assert plan.next_expiry == NOW + timedelta(hours=1, seconds=1)
    assert 3 in _plan(table, hours=22).snapshot_ids


@pytest.mark.cases(8, 9)
def test_only_old_snapshots_and_staged_ones_need_a_reason() -> None:
    """A published copy, a snapshot as old as the retention and a younger one outside of any ref are kept silently."""
    published = snapshot(3, age=1, parent_id=1, summary={"operation": "append", "published-wap-id": "w2"})
    copy = snapshot(2, age=20, parent_id=1, summary={"operation": "append", "wap.id": "w2"})
    staged = snapshot(4, age=2, parent_id=1, summary={"operation": "append", "wap.id": "w4"})
    outside = (snapshot(5, age=24, parent_id=1), snapshot(6, age=2, parent_id=1))
    table = metadata(snapshots=(*lineage([20]), copy, published, staged, *outside), current_snapshot_id=3)
    plan = _plan(table)
    assert plan.is_empty
    assert [one.snapshot_id for one in plan.retained] == [4]


@pytest.mark.cases(9)
def test_the_staged_copy_of_a_published_snapshot_goes() -> None:
    """After a cherry-pick the staged snapshot expires by age, the published one is main's head and stays."""
    published = snapshot(3, age=1, parent_id=1, summary={"operation": "append", "source-snapshot-id": "2"})
    table = metadata(snapshots=(*lineage([90]), snapshot(2, age=80, parent_id=1), published))
    assert _plan(table, keep=2).snapshot_ids == (2,)


@pytest.mark.parametrize("keep", [3, 4, 10**9])
@pytest.mark.cases(15, 89)
def test_a_count_that_covers_all_expires_nothing(keep: int) -> None:
    """With at least as many to keep as there are, there is nothing to commit."""
    assert _plan(metadata([90, 80, 70]), hours=0, keep=keep).is_empty


@pytest.mark.cases(17)
def test_both_age_and_count_must_be_passed() -> None:
    """Three old snapshots stay where five are to be kept; five young ones stay where one is."""
    assert _plan(metadata([300, 200, 100]), keep=5).is_empty
    assert _plan(metadata([5, 4, 3, 2, 1]), keep=1).is_empty


@pytest.mark.cases(18)
def test_an_empty_table_has_nothing_to_expire() -> None:
    """No snapshot, no plan, no error."""
    plan = _plan(metadata([]))
    assert (plan.is_empty, plan.retained, plan.next_expiry) == (True, (), None)


def test_the_bound_itself_is_kept() -> None:
    """A snapshot exactly as old as the retention stays, as in Iceberg."""
    assert _plan(metadata([24, 1])).snapshot_ids == ()
    assert _plan(metadata([24.001, 1])).snapshot_ids == (1,)


def test_walking_stops_at_the_first_that_goes() -> None:
    """Behind an old ancestor a younger one, by a skewed clock, goes too: Iceberg walks no further."""
    assert _plan(metadata([10, 50, 1])).snapshot_ids == (1, 2)


def test_every_old_snapshot_that_stays_says_why() -> None:
    """Pins name the current snapshot, heads, counts and ages; young snapshots need no cause."""
    table = metadata(
        snapshots=(*lineage([90, 80, 70]), *lineage([60, 50], first_id=10), snapshot(20, age=40), snapshot(21, age=2)),
        current_snapshot_id=3,
        refs=[_branch("b", 11, min_snapshots_to_keep=1, max_snapshot_age=100 * HOUR), _tag("t", 20)],
    )
    assert [(one.snapshot_id, one.by) for one in _plan(table, keep=2).retained] == [
        (2, "one of the 2 newest of branch main"),
        (3, "current snapshot"),
        (10, "younger than the retention of branch b"),
        (11, "head of branch b"),
        (20, "head of tag t"),
    ]


def test_the_first_reason_to_keep_a_snapshot_is_shown() -> None:
    """Heads come before counts and ages, and main before other branches."""
    table = metadata([90, 80, 70, 60], refs=[_tag("t", 2), _branch("b", 3, max_snapshot_age=100 * HOUR)])
    assert [(one.snapshot_id, one.by) for one in _plan(table, keep=4).retained] == [
        (1, "one of the 4 newest of branch main"),
        (2, "head of tag t"),
        (3, "head of branch b"),
        (4, "current snapshot"),
    ]
    assert [one.by for one in _plan(table).retained][:2] == ["younger than the retention of branch b", "head of tag t"]


def test_a_circle_of_parents_ends() -> None:
    """Broken metadata whose snapshots are each other's parents does not hang the walk."""
    table = metadata(snapshots=(snapshot(1, parent_id=2), snapshot(2, parent_id=1)))
    assert [s.snapshot_id for s in ancestors(table, 2)] == [2, 1]
    assert not list(ancestors(table, 99))


def test_when_the_next_snapshot_goes() -> None:
    """The oldest snapshot that its age alone keeps goes as soon as the retention has passed."""
    plan = _plan(metadata([30, 20, 10, 2]))
    assert plan.next_expiry == NOW + timedelta(hours=4, seconds=1)
    assert _plan(metadata([3, 2]), keep=2).next_expiry is None


@pytest.mark.parametrize(("name", "age", "own", "wait"), [(MAIN, 2, 3, 1), (MAIN, 30, 32, 2)])
def test_when_the_next_snapshot_of_a_branch_with_its_own_age_goes(name: str, age: int, own: int, wait: int) -> None:
    """The time is reckoned by the retention that keeps the snapshot, be it shorter or longer than the default."""
    plan = _plan(metadata([age, 1], refs=[_branch(name, 2, max_snapshot_age=own * HOUR)]))
    assert plan.next_expiry is not None
    assert timedelta(0) < plan.next_expiry - (NOW + wait * HOUR) <= timedelta(minutes=1)


def test_a_name_is_no_cause() -> None:
    """A branch called `younger` is kept for what it is: nothing goes by time alone."""
    apart = (snapshot(1, age=3), snapshot(2, age=2))
    assert _plan(metadata(snapshots=apart, refs=[_branch("younger", 1)]), keep=2).next_expiry is None


@pytest.mark.cases(89)
def test_an_endless_age_of_a_branch_keeps_all() -> None:
    """The largest age that can be said means for ever, not an error and not now."""
    table = metadata([24 * 365 * 30, 1], refs=[_branch(MAIN, 2, max_snapshot_age=timedelta.max)])
    assert _plan(table).is_empty
    assert _plan(table).next_expiry == datetime.max.replace(tzinfo=NOW.tzinfo)


def test_a_held_snapshot_stays_with_all_that_came_after_it() -> None:
    """Whoever reads on from a snapshot needs it and every one up to the heads; the preview says who that is."""
    table = metadata([90, 80, 70, 60])
    until = NOW + HOUR
    plan = plan_expiry(
        table, now=NOW, older_than=NOW - 24 * HOUR, retain_last=1, holds=[SnapshotHold(2, "reader flink", until)]
    )
    assert plan.snapshot_ids == (1,)
    assert [(one.snapshot_id, one.by) for one in plan.retained] == [
        (2, "reader flink"),
        (3, "reader flink, which is behind it"),
        (4, "current snapshot"),
    ]
    assert plan.next_expiry == until


@pytest.mark.parametrize("hold", [SnapshotHold(2, "reader late", NOW), SnapshotHold(99, "reader lost", NOW + HOUR)])
def test_holds_that_count_no_more(hold: SnapshotHold) -> None:
    """A hold that aged out, or that names a snapshot which the table has not, keeps nothing."""
    line = (snapshot(1, age=90, parent_id=99), snapshot(2, age=80, parent_id=1), snapshot(3, age=70, parent_id=2))
    table = metadata(snapshots=line)
    plan = plan_expiry(table, now=NOW, older_than=NOW - 24 * HOUR, retain_last=1, holds=[hold])
    assert plan.snapshot_ids == (1, 2)


def test_a_hold_on_a_branch_keeps_that_branch_alone() -> None:
    """Descendants are those of the held snapshot: another line goes on expiring."""
    table = metadata(
        snapshots=(*lineage([90, 80, 10]), *lineage([70, 60, 50], first_id=10, parent_id=1)),
        current_snapshot_id=3,
        refs=[_branch("audit", 12, min_snapshots_to_keep=1)],
    )
    plan = plan_expiry(
        table, now=NOW, older_than=NOW - 24 * HOUR, retain_last=1, holds=[SnapshotHold(10, "reader", NOW + HOUR)]
    )
    assert plan.snapshot_ids == (1, 2)


@pytest.mark.parametrize("order", [(0, 0, 0, 0, 0), (1, 2, 4, 3, 5)])
def test_a_hold_keeps_descendants_whose_numbers_and_times_are_in_another_order(order: tuple[int, ...]) -> None:
    """Format v1 has no sequence numbers, and a writer's clock may be behind that of its parent's writer."""
    line = lineage([90, 80, 60, 70, 50])
    table = metadata(snapshots=tuple(replace(s, sequence_number=n) for s, n in zip(line, order, strict=True)))
    hold = SnapshotHold(2, "reader flink", NOW + HOUR)
    plan = plan_expiry(table, now=NOW, older_than=NOW - 24 * HOUR, retain_last=1, holds=[hold])
    assert plan.snapshot_ids == (1,)


@pytest.mark.parametrize(("ids", "gone"), [((1, 2, 3, 3), (1, 2)), ((1, 2, 3, 4, 3), (1, 2, 4))])
def test_the_current_snapshot_stays_where_its_id_repeats(ids: tuple[int, ...], gone: tuple[int, ...]) -> None:
    """Also in a history in which each snapshot is the parent of the next, as a hostile or broken writer leaves it."""
    line = [snapshot(one, age=90 - n, parent_id=ids[n - 1] if n else None) for n, one in enumerate(ids)]
    assert _plan(metadata(snapshots=tuple(line))).snapshot_ids == gone


@pytest.mark.parametrize(
    ("current", "named", "unused"), [(1, (0, 2), {3}), (1, (), {0, 2, 3}), (1, (0, None), set()), (None, (0, 2), set())]
)
def test_schemas_that_nothing_uses(current: int | None, named: tuple[int | None, ...], unused: set[int]) -> None:
    """The table's own stays, and all stay where it, or a snapshot, does not say which schema is meant."""
    line = tuple(replace(s, schema_id=one) for s, one in zip(lineage([9] * len(named)), named, strict=True))
    schema = {"fields": []} if current is None else {"schema-id": current, "fields": []}
    table = metadata(schema=schema, schema_ids=(0, 1, 2, 3))
    assert unused_schemas(table, line) == unused
