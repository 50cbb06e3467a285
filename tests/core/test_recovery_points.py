"""Recovery points: which states get tags, which tags are retired, and which tags are nobody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.cadence import Cadence
from icewright.core.operations.recovery_points import evaluate
from icewright.core.policy import Operation
from icewright.core.recovery import LATE_COMMITS, PointPlan, RecoveryPoint, next_time, plan_points, point_of, points
from icewright.core.runs import LastRun, OperationState
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.work import begin
from icewright.core.steps import Due, NotDue, TagRecoveryPoints
from icewright.core.table import MAIN, RefKind, SnapshotRef, TableMetadata
from icewright.testing import NOW, REF, facts, knobs, metadata

HOUR = timedelta(hours=1)
POINT = RecoveryPoint(Cadence.HOURLY, NOW, 2)  # NOW is a full hour


def moment(text: str) -> datetime:
    """A time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cadence", "start", "following", "label"),
    [
        (Cadence.HOURLY, "2026-12-31T23:00", "2027-01-01T00:00", "2026-12-31T23"),
        (Cadence.DAILY, "2026-12-31T00:00", "2027-01-01T00:00", "2026-12-31"),
        (Cadence.WEEKLY, "2026-12-28T00:00", "2027-01-04T00:00", "2026-W53"),
        (Cadence.MONTHLY, "2026-12-01T00:00", "2027-01-01T00:00", "2026-12"),
    ],
)
def test_the_calendar(cadence: Cadence, start: str, following: str, label: str) -> None:
    """A moment lies in an hour, day, week and month, whose beginnings have labels that can be read back."""
    found = cadence.start(moment("2026-12-31T23:59:59.999"))
    assert (found, cadence.following(found)) == (moment(start), moment(following))
    assert (cadence.label(found), cadence.parse(label)) == (label, found)
    assert cadence.newest(2, moment(following)) == [found, moment(following)]


@pytest.mark.parametrize("label", ["", "2026-1", "2026-13", "2026-11-25T1", "2026-W60", "2026-W1", "2026-11-31", "x"])
@pytest.mark.parametrize("cadence", list(Cadence))
def test_labels_of_nothing(cadence: Cadence, label: str) -> None:
    """Text that names no beginning, or spells it in another way, is no label."""
    assert cadence.parse(label) is None


@pytest.mark.parametrize(
    "ref",
    [
        replace(POINT.tag, snapshot_id=1),
        replace(POINT.tag, max_ref_age=None),
        replace(POINT.tag, max_ref_age=timedelta(days=36500)),
        replace(POINT.tag, kind=RefKind.BRANCH),
        replace(POINT.tag, name="icewright-hourly-2026-11-21T11"),
        replace(POINT.tag, name="icewright-yearly-2026"),
        replace(POINT.tag, min_snapshots_to_keep=1),
        SnapshotRef(MAIN, RefKind.BRANCH, 2),
    ],
)
def test_refs_that_are_not_icewrights(ref: SnapshotRef) -> None:
    """A tag that was moved, replaced or made by others under such a name is no recovery point."""
    assert point_of(POINT.tag) == POINT
    assert point_of(ref) is None


def test_a_state_that_lasts_has_one_tag() -> None:
    """The states at the last full hours get tags, each named by the first hour at which it was the state."""
    of = metadata([30, 4.5, 2.5, 0.1])
    plan = plan_points(of, {Cadence.HOURLY: 6, Cadence.DAILY: 2}, NOW + LATE_COMMITS, None)
    assert [(p.name, p.snapshot_id) for p in plan.make] == [
        ("icewright-hourly-2026-11-21T07", 1),
        ("icewright-hourly-2026-11-21T08", 2),
        ("icewright-hourly-2026-11-21T10", 3),
        ("icewright-hourly-2026-11-21T12", 4),
        ("icewright-daily-2026-11-21", 1),
    ]
    assert not plan.retire


def test_an_hour_that_may_still_change_waits() -> None:
    """A commit lands after the time that it states: the state of an hour is known minutes later."""
    of = metadata([2.5, 0.1])
    early, late = (plan_points(of, {Cadence.HOURLY: 1}, NOW + by, None) for by in (timedelta(), LATE_COMMITS))
    assert [p.snapshot_id for p in early.make] == [1]
    assert [p.snapshot_id for p in late.make] == [2]


@pytest.mark.parametrize(
    ("since", "made"), [(None, ["T10", "T11", "T12"]), (NOW - 0.7 * HOUR, ["T12"]), (NOW - HOUR, ["T11", "T12"])]
)
def test_the_past_is_tagged_once(since: datetime | None, made: list[str]) -> None:
    """The first run tags what history still knows; a later one that finds no point makes those since the last run."""
    of = metadata([9, 2.5, 1.5, 0.5])
    plan = plan_points(of, {Cadence.HOURLY: 3}, NOW + LATE_COMMITS, since)
    assert [p.name[-3:] for p in plan.make] == made


def test_times_that_were_missed_are_made_up_for() -> None:
    """After an outage the hours since the newest point get their tags, and a point that somebody dropped does not."""
    newest = RecoveryPoint(Cadence.HOURLY, NOW - 3 * HOUR, 2)
    of = metadata([9, 4.5, 2.5, 0.5], refs=[newest.tag])
    plan = plan_points(of, {Cadence.HOURLY: 9}, NOW + LATE_COMMITS, NOW)
    assert [(p.time, p.snapshot_id) for p in plan.make] == [(NOW - 2 * HOUR, 3), (NOW, 4)]


def test_no_time_from_before_a_rollback_gets_the_state_after_it() -> None:
    """A quiet table has one point for many hours; when main is set back, those stay its, as long as nobody commits."""
    newest = RecoveryPoint(Cadence.HOURLY, NOW - 5 * HOUR, 2)
    back = SnapshotRef(MAIN, RefKind.BRANCH, 1)
    of = replace(metadata([5, 5.5], refs=[newest.tag, back]), last_updated=NOW - HOUR)
    plan = plan_points(of, {Cadence.HOURLY: 9}, NOW + LATE_COMMITS, NOW - 5 * HOUR)
    assert [(p.time, p.snapshot_id) for p in plan.make] == [(NOW - HOUR, 1)]
    of = replace(metadata([9, 5.5, 0.5], refs=[newest.tag, replace(back, snapshot_id=3)]), last_updated=NOW)
    of = replace(of, snapshots=(*of.snapshots[:2], replace(of.snapshots[2], parent_id=1)))
    plan = plan_points(of, {Cadence.HOURLY: 9}, NOW + LATE_COMMITS, NOW - 5 * HOUR)
    assert [(p.time, p.snapshot_id) for p in plan.make] == [(NOW, 3)]


@pytest.mark.parametrize(
    ("ages", "retired"),
    [
        ([6, 5, 4], [6, 5]),  # that of 4 hours ago covers the oldest of the hours, which is 3 hours ago
        ([3, 2, 1], []),
        ([90], []),  # it is the state of all of them
        ([90, 2], []),
        ([90, 3], [90]),
    ],
)
def test_a_point_goes_when_a_later_one_covers_the_oldest_time(ages: list[int], retired: list[int]) -> None:
    """Of the points from before the oldest time only the newest stays: it is the state of that time."""
    known = [RecoveryPoint(Cadence.HOURLY, NOW - age * HOUR, n) for n, age in enumerate(ages, 1)]
    of = metadata([age + 0.5 for age in ages], refs=[p.tag for p in known])
    plan = plan_points(of, {Cadence.HOURLY: 4}, NOW + LATE_COMMITS, NOW)
    assert [NOW - p.time for p in plan.retire] == [age * HOUR for age in retired]


@pytest.mark.parametrize("known", [True, False])
def test_a_clock_that_ran_ahead_stops_no_points(*, known: bool) -> None:
    """A point of a time that has not come is retired, and neither it nor a run of such a time hinders other points."""
    early = RecoveryPoint(Cadence.HOURLY, NOW + HOUR, 2)
    of = metadata([9, 2.5, 0.05], refs=[SnapshotRef(MAIN, RefKind.BRANCH, 3), *([early.tag] if known else [])])
    plan = plan_points(of, {Cadence.HOURLY: 2}, NOW + LATE_COMMITS, NOW + 9000 * HOUR)
    assert ([(p.time, p.snapshot_id) for p in plan.make][-1:], plan.retire) == ([(NOW, 3)], (early,) * known)
    of = applied(of, plan)
    assert plan_points(of, {Cadence.HOURLY: 2}, NOW + LATE_COMMITS, NOW + 9000 * HOUR) == PointPlan()


def test_a_cadence_that_is_not_asked_for_any_more_is_retired() -> None:
    """With other points still asked for, those of a count of 0 go."""
    hourly, daily = RecoveryPoint(Cadence.HOURLY, NOW, 2), RecoveryPoint(Cadence.DAILY, NOW.replace(hour=0), 1)
    of = metadata([24, 2], refs=[hourly.tag, daily.tag])
    assert plan_points(of, {Cadence.DAILY: 1}, NOW, NOW) == PointPlan(retire=(hourly,))


def test_a_name_that_others_use_stays_theirs() -> None:
    """A tag or branch of the name of a point is neither moved nor retired, and the verdict says so."""
    theirs = SnapshotRef("icewright-hourly-2026-11-21T12", RefKind.BRANCH, 1)
    of = metadata([24, 2], refs=[theirs])
    assert plan_points(of, {Cadence.HOURLY: 1}, NOW + LATE_COMMITS, None) == PointPlan(taken=(theirs.name,))
    found = evaluate(facts(of=of), knobs({"recovery_points.hourly": 1}), None, NOW + LATE_COMMITS)
    assert isinstance(found, NotDue)
    assert found.notes == (f"tag {theirs.name} is not Icewright's, and stays as it is",)


def test_the_proof_of_a_tag_stays_what_it_is() -> None:
    """Later versions of Icewright know the tags of earlier ones by it."""
    assert POINT.tag.max_ref_age == timedelta(days=94816829, seconds=24951, microseconds=944000)


@pytest.mark.parametrize(
    ("counts", "minutes", "following"),
    [
        ({}, 0, None),
        ({Cadence.HOURLY: 0}, 0, None),
        ({Cadence.HOURLY: 1}, 30, HOUR + LATE_COMMITS),
        ({Cadence.HOURLY: 1}, 1, LATE_COMMITS),  # the last hour's commits may still land
        ({Cadence.HOURLY: 1}, 2, HOUR + LATE_COMMITS),
        ({Cadence.HOURLY: 1}, 59, HOUR + LATE_COMMITS),
        ({Cadence.HOURLY: 0, Cadence.DAILY: 1}, 30, 12 * HOUR + LATE_COMMITS),
    ],
)
def test_when_the_next_point_may_be_made(
    counts: Mapping[Cadence, int], minutes: int, following: timedelta | None
) -> None:
    """After the next of the times that is asked for, and what may land late."""
    found = next_time(counts, NOW + timedelta(minutes=minutes))
    assert found == (None if following is None else NOW + following)


def test_what_is_not_made_hinders_no_other_point() -> None:
    """Neither a cadence without a count, nor a name that others use, nor another branch before main."""
    branch = SnapshotRef("a", RefKind.BRANCH, 1)
    theirs = SnapshotRef("icewright-weekly-2026-W47", RefKind.TAG, 1)
    of = metadata([30, 2.5, 1.5], refs=[branch, SnapshotRef(MAIN, RefKind.BRANCH, 3), theirs])
    plan = plan_points(of, {Cadence.HOURLY: 0, Cadence.DAILY: 1, Cadence.WEEKLY: 1}, NOW + LATE_COMMITS, None)
    assert [(p.cadence, p.snapshot_id) for p in plan.make] == [(Cadence.DAILY, 1)]
    taken = SnapshotRef("icewright-hourly-2026-11-21T10", RefKind.BRANCH, 1)
    of = metadata([30, 2.5, 1.5], refs=[branch, SnapshotRef(MAIN, RefKind.BRANCH, 3), taken])
    plan = plan_points(of, {Cadence.HOURLY: 3}, NOW + LATE_COMMITS, None)
    assert ([p.snapshot_id for p in plan.make], plan.taken) == ([3], (taken.name,))


def test_after_a_rollback_the_states_of_both_lines_have_points() -> None:
    """A point of what was rolled back stays for its time, and the next hour gets the state that main returned to."""
    bad = RecoveryPoint(Cadence.HOURLY, NOW - HOUR, 2)
    of = metadata([5, 1.5], refs=[SnapshotRef(MAIN, RefKind.BRANCH, 1), bad.tag], current_snapshot_id=1)
    plan = plan_points(of, {Cadence.HOURLY: 2}, NOW + LATE_COMMITS, NOW)
    assert plan == PointPlan(make=(RecoveryPoint(Cadence.HOURLY, NOW, 1),))


def applied(of: TableMetadata, plan: PointPlan) -> TableMetadata:
    """The table after the plan."""
    gone = {p.name for p in plan.retire}
    return replace(of, refs=(*(r for r in of.refs if r.name not in gone), *(p.tag for p in plan.make)))


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=30),
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(Cadence), st.integers(0, 5), min_size=1),
)
def test_every_time_that_is_asked_for_can_be_returned_to(
    gaps: list[int], waits: list[int], counts: Mapping[Cadence, int]
) -> None:
    """Whenever runs come: the newest point up to a time since the first run is its state, and no point is too many."""
    commits = [NOW + sum(gaps[: n + 1]) * timedelta(minutes=17) for n in range(len(gaps))]
    of, now, since = metadata([]), NOW, None
    for wait in waits:
        now += wait * timedelta(minutes=43)
        there = [c for c in commits if c <= now]
        new = metadata([(NOW - c) / HOUR for c in there]) if there else of
        of = replace(new, refs=(*(r for r in new.refs if r.name == MAIN), *(p.tag for p in points(of))))
        of = applied(of, plan_points(of, counts, now, since))
        since = now if there else None
        assert plan_points(of, counts, now, since) == PointPlan()
        for cadence, count in counts.items():
            found = [p for p in points(of) if p.cadence is cadence]
            assert len(found) <= count
            for time in cadence.newest(count, now - LATE_COMMITS) if count else ():
                state = sum(c <= time for c in commits)  # the snapshot ids count from 1
                covering = [p.snapshot_id for p in found if p.time <= time]
                assert covering[-1:] == ([state] if state else [])


def test_verdicts() -> None:
    """Off without a count; due with what lacks and what is past; else looked at again after the next full hour."""
    of = metadata([3, 2])
    off = evaluate(facts(of=of), knobs({}), None, NOW)
    assert isinstance(off, NotDue)
    assert off.reason.startswith(
        "recovery_points is off unless a policy sets recovery_points.hourly, recovery_points.daily"
    )
    asked = knobs({"recovery_points.hourly": 3})
    found = evaluate(facts(of=of), asked, None, NOW + LATE_COMMITS)
    assert isinstance(found, Due)
    (step,) = found.work.steps
    assert isinstance(step, TagRecoveryPoints)
    assert found.why == "states without a tag: 1 hourly"
    last = LastRun(Operation.RECOVERY_POINTS, NOW, OperationState.COMMITTED, worked=NOW)
    done = evaluate(facts(of=applied(of, PointPlan(step.make))), asked, last, NOW + LATE_COMMITS)
    assert done == NotDue("the times that are asked for are covered by 1 recovery point", NOW + HOUR + LATE_COMMITS)
    assert evaluate(facts(of=metadata([])), asked, None, NOW) == NotDue("no current snapshot")


def test_a_simulated_table_gets_its_points() -> None:
    """A simulation makes and retires the tags, so that its policies cost what they would."""
    table = SimulatedTable(REF)
    table.commit(NOW, "append")
    step = TagRecoveryPoints((RecoveryPoint(Cadence.HOURLY, NOW, 1),), ())
    begin(table, step, NOW).end(NOW)
    assert [p.time for p in points(table.metadata())] == [NOW]
    begin(table, TagRecoveryPoints((), step.make), NOW).end(NOW)
    assert points(table.metadata()) == []
