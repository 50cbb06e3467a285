"""Restoring: which state a person means, and what comes of returning to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icewright.core.cadence import Cadence
from icewright.core.errors import UsageError
from icewright.core.recovery import RecoveryPoint
from icewright.core.restore import TableHistory, plan_restore, resolve, state_at, tag_before, total_rows
from icewright.core.table import RefKind, SnapshotRef, TableMetadata
from icewright.testing import NOW, lineage, metadata, snapshot

DAY = datetime(2026, 11, 21, tzinfo=UTC)  # of NOW, which is noon
HOURLY = {7: 1, 9: 2, 10: 3}  # the snapshot of each point
LOG = TableHistory(((DAY.replace(hour=11), 9), (DAY.replace(hour=11, minute=30), 8)), {})


def at(hour: int, minute: int = 0) -> datetime:
    """A time of the day of NOW."""
    return DAY.replace(hour=hour, minute=minute)


def table(hours: Mapping[int, int], days: Mapping[datetime, int] | None = None) -> TableMetadata:
    """A table with recovery points at hours and at days."""
    points = [RecoveryPoint(Cadence.HOURLY, at(hour), snapshot_id) for hour, snapshot_id in hours.items()]
    points += [RecoveryPoint(Cadence.DAILY, day, snapshot_id) for day, snapshot_id in (days or {}).items()]
    return metadata(snapshots=lineage(range(9, 0, -1)), refs=[point.tag for point in points])


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (at(11, 30), 8),  # by the log
        (at(11, 29), 9),
        (at(11), 9),
        (at(10, 59), None),  # no full hour
        (at(10), 3),  # the last point's own hour
        (at(9, 30), None),
        (at(9), 2),
        (at(8), 1),  # the state lasted until the next point
        (at(6), None),  # before the first hourly point, and no full day
        (DAY, 5),
        (DAY - timedelta(days=1), 4),
    ],
)
def test_the_state_at_a_moment(moment: datetime, expected: int | None) -> None:
    """The log knows each moment, and points know the full hours, days, weeks and months until the next one."""
    known = table(HOURLY, {DAY - timedelta(days=1): 4, DAY: 5})
    assert state_at(known, LOG, moment, NOW) == expected


def test_after_the_last_point_nothing_is_known() -> None:
    """The table may have changed since, and the point after it may not have been made yet."""
    assert [state_at(table({7: 1}), LOG, at(hour), NOW) for hour in (7, 8)] == [1, None]


def test_a_commit_may_still_land_before_a_moment_that_has_just_gone() -> None:
    """Two minutes after the full hour its state is settled."""
    known, empty = table(HOURLY), TableHistory((), {})
    assert [state_at(known, empty, at(10), at(10, minute)) for minute in (0, 1, 2)] == [None, None, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", 4),
        ("hourly-2026-11-21T09", 2),
        ("icewright-hourly-2026-11-21T08", 1),
        ("2026-11-21T09:00", 2),
        ("2026-11-21T11:00+02:00", 2),
        ("2026-11-21T12:00", 8),
        ("main", 9),
        ("7", 7),
        ("70", 6),
    ],
)
def test_what_a_person_names(text: str, expected: int) -> None:
    """An id, a ref of a number that is no id, a point with or without its tag, and a time in any zone.

    A tag that is called as a snapshot's id leads nobody who names the snapshot to another one.
    """
    known = table(HOURLY)
    known = replace(known, refs=(*known.refs, *(SnapshotRef(name, RefKind.TAG, 6) for name in ("7", "70"))))
    assert resolve(known, LOG, text, NOW).snapshot_id == expected


def test_a_point_is_known_by_its_tag_before_its_moment_is_settled() -> None:
    """Who names it means the tag."""
    point = "hourly-2026-11-21T10"
    assert resolve(table(HOURLY), TableHistory((), {}), point, at(10, 1)).snapshot_id == HOURLY[10]


@pytest.mark.parametrize(
    ("hours", "text", "words"),
    [
        (HOURLY, "2026-11-21T13:00", "2026-11-21T13:00 is not yet past"),
        (HOURLY, "77", "has no snapshot 77 any more; its recovery points are icewright-hourly-2026-11-21T10, "),
        (HOURLY, "2026-11-21T06:00", "the state of lake.sales.orders at 2026-11-21T06:00 is not known any more; its"),
        (HOURLY, "2026-11-21T06:00", "and its history begins at 2026-11-2"),
        (HOURLY, "9" * 19, "has no snapshot 9999999999999999999 any more"),
        (HOURLY, "9" * 5_000, "has no snapshot, tag or branch '9999"),
        (HOURLY, "0001-01-01T00:00:00+14:00", "and it is no time such as"),
        (HOURLY, "yesterday", "has no snapshot, tag or branch 'yesterday', and it is no time such as"),
        ({}, "77", "any more; it has no recovery points$"),
        (dict.fromkeys(range(5), 1), "77", "2026-11-21T01, icewright-hourly-2026-11-21T00$"),
        (dict.fromkeys(range(7), 1), "77", "2026-11-21T03, icewright-hourly-2026-11-21T02 and 2 more$"),
    ],
)
def test_what_is_not_known(hours: Mapping[int, int], text: str, words: str) -> None:
    """The error names what can be returned to."""
    with pytest.raises(UsageError, match=words):
        resolve(table(hours), LOG, text, NOW)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows another zone than UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_a_time_without_a_zone_is_in_utc() -> None:
    """Whatever the machine's own zone is."""
    assert resolve(table(HOURLY), LOG, "2026-11-21T09:00", NOW).snapshot_id == 2


def test_a_table_without_a_log_has_no_beginning() -> None:
    """The error says nothing of it."""
    with pytest.raises(UsageError, match=r"is not known any more; it has no recovery points$"):
        resolve(table({}), TableHistory((), {}), "2026-11-21T09:00", NOW)


@pytest.mark.usefixtures("tokyo")
def test_the_tag_of_the_state_before() -> None:
    """Its name has the time in UTC and is free; its age is 30 days from now on, in whole seconds."""
    head, name = (
        snapshot(2, timestamp=NOW - timedelta(hours=2, milliseconds=1)),
        "icewright-before-restore-2026-11-21T120000",
    )
    age, known = timedelta(days=30, hours=2), metadata(snapshots=(head,))
    for taken, free in (("other", name), (name, f"{name}-2"), (f"{name}-2", f"{name}-3")):
        known = replace(known, refs=(*known.refs, SnapshotRef(taken, RefKind.TAG, 2)))
        assert tag_before("restore", known, head, NOW) == SnapshotRef(free, RefKind.TAG, 2, max_ref_age=age)


def test_the_tag_of_a_state_of_the_future() -> None:
    """A clock that ran ahead made the head: the tag has an age all the same, as Iceberg loads no table without."""
    head = snapshot(2, timestamp=NOW + timedelta(days=40))
    assert tag_before("restore", metadata(snapshots=(head,)), head, NOW).max_ref_age == timedelta(days=30)


@pytest.mark.parametrize(
    ("summary", "rows"), [({"total-records": "7"}, 7), ({"total-records": "9" * 5_000}, None), ({}, None)]
)
def test_rows_that_a_writer_counted(summary: Mapping[str, str], rows: int | None) -> None:
    """Where it did not count, or wrote no number, nobody knows."""
    assert total_rows(snapshot(1, summary=summary)) == rows


def _schema(*fields: tuple[int, str], nested: Sequence[tuple[int, str]] = ()) -> Mapping[str, Any]:
    columns: list[Mapping[str, Any]] = [
        {"id": i, "name": name, "required": False, "type": "long"} for i, name in fields
    ]
    inner = [{"id": i, "name": name, "required": False, "type": "long"} for i, name in nested]
    struct = {"id": 50, "name": "s", "required": False, "type": {"type": "struct", "fields": inner}}
    return {"type": "struct", "schema-id": 0, "fields": [*columns, *([struct] if inner else [])]}


def test_streaming_writers_whose_commits_leave_are_named() -> None:
    """A Flink job that starts from its later checkpoint fails then, and a Spark stream writes its batch again."""
    flink = {"flink.job-id": "j1", "flink.max-committed-checkpoint-id": "6"}
    before, *rest = lineage([9, 8, 7, 6])
    after = [replace(s, writer_properties=flink if s.snapshot_id == 3 else {}) for s in rest]
    known = metadata(snapshots=(replace(before, writer_properties={"mz-frontier": "1"}), *after))
    for target, names in ((1, 1), (2, 1), (3, 0), (4, 0)):
        notes = plan_restore(known, TableHistory((), {}), known.by_id[target], NOW).notes
        assert len(notes) == names, target
        assert all(note.startswith("the last commit of Flink job j1, checkpoint 6 leaves main: ") for note in notes)
    topics = {f"kafka.connect.offsets.t{number}": "{}" for number in range(6)}
    many = metadata(snapshots=(before, *(replace(s, writer_properties=topics) for s in rest)))
    (note,) = plan_restore(many, TableHistory((), {}), before, NOW).notes
    assert [f"t{number}" in note for number in range(6)] == [True] * 5 + [False], note
    assert " and 1 more leaves main: " in note


def test_what_a_restore_changes() -> None:
    """Main goes to the target, commits leave or return, and columns that differ in the target's schema are named."""
    head, then = _schema((1, "id"), (2, "new"), (3, "b"), nested=[(5, "x")]), _schema((1, "id"), (3, "a"), (4, "gone"))
    snapshots = (*lineage([9, 8, 7]), snapshot(4, age=6, parent_id=1, schema_id=1))
    known = metadata(snapshots=snapshots, current_snapshot_id=3, schema=head)
    plan = plan_restore(known, TableHistory((), {0: _schema(), 1: then}), snapshots[3], NOW)
    assert ([s.snapshot_id for s in plan.leaving], [s.snapshot_id for s in plan.returning]) == ([3, 2], [4])
    assert ([(ref.name, ref.snapshot_id) for ref in plan.refs], plan.already) == (
        [("main", 4), ("icewright-before-restore-2026-11-21T120000", 3)],
        False,
    )
    assert plan.notes == (
        "column new was added since: it stays, and the restored rows have no value in it",
        "column a was renamed since: it stays b",
        "column gone was dropped since: it stays dropped",
        "column s.x was added since: it stays, and the restored rows have no value in it",
        "column s was added since: it stays, and the restored rows have no value in it",
    )
    assert plan_restore(known, TableHistory((), {}), snapshots[2], NOW).notes == ()
    assert len(plan_restore(known, TableHistory((), {0: then}), snapshots[2], NOW).notes) == len(plan.notes)
    assert plan_restore(known, TableHistory((), {}), snapshots[2], NOW).already


def test_an_empty_table_returns_nowhere() -> None:
    """There is no state before to keep."""
    with pytest.raises(UsageError, match=r"lake\.sales\.orders has no current snapshot"):
        plan_restore(metadata(current_snapshot_id=None), LOG, snapshot(1), NOW)
