"""States of streaming writers: which snapshots each writer walks when it starts again, and how long they stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.policy import WRITER_STATE_DAYS, WRITER_STATE_KEYS
from icewright.core.retention import (
    Expiry,
    expired_by_iceberg,
    kept_writer_states,
    plan_expiry,
    uncommitted_files,
    writer_state_rule,
)
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotRef, TableMetadata
from icewright.core.writer_state import WriterStateRule, newest_states, total_files
from icewright.testing import NOW, knobs, lineage, metadata, snapshot
from tests.examples import examples

DAY = timedelta(days=1)
RULE = WriterStateRule(30 * DAY)
FLINK = {"flink.job-id": "j1", "flink.operator-id": "sink", "flink.max-committed-checkpoint-id": "6"}
_CHECKPOINT = "flink.max-committed-checkpoint-id"
SPARK = {"spark.sql.streaming.queryId": "q1", "spark.sql.streaming.epochId": "4"}
OFFSETS = "kafka.connect.offsets.control-iceberg.cg-connect"
KAFKA = {OFFSETS: '{"0": 111}', "kafka.connect.commit-id": "c1", "kafka.connect.valid-through-ts": "2026-01-01T00:00Z"}


def days(ages: Sequence[float], states: Mapping[int, Mapping[str, str]], **more: Any) -> TableMetadata:
    """Return a table with one snapshot for each age in days, ids from 1, and writers' properties by snapshot id."""
    line = lineage([24 * age for age in ages])
    made = [replace(s, writer_properties=states.get(s.snapshot_id, {})) for s in line]
    return metadata(snapshots=tuple(made), **more)


def plan(table: TableMetadata, rule: WriterStateRule | None = RULE, *, keep: int = 1) -> Expiry:
    """Return the expiry by a retention of one day."""
    return plan_expiry(table, now=NOW, older_than=NOW - DAY, retain_last=keep, writers=rule)


@pytest.mark.cases(138, 139, 140)
@pytest.mark.parametrize(
    ("properties", "writer"),
    [
        (FLINK, "Flink job j1, checkpoint 6"),
        ({k: v for k, v in FLINK.items() if k != "flink.operator-id"}, "Flink job j1, checkpoint 6"),
        (SPARK, "Spark stream q1, epoch 4"),
        ({OFFSETS: '{"0": 111}'}, 'Kafka Connect control-iceberg.cg-connect, offsets {"0": 111}'),
        ({"redpanda.commit-metadata": '{"offset":7,"cluster":"c"}'}, 'Redpanda {"offset":7,"cluster":"c"}'),
        ({"risingwave.commit.epoch": "9"}, "RisingWave, epoch 9"),
        ({"fluss-offsets": "s3://f/0.offsets"}, "Fluss, offsets s3://f/0.offsets"),
        ({"automq.commit.id": "u1"}, "AutoMQ, commit u1"),
        ({"mz-frontier": "[9]", "mz-sink-version": "1"}, "Materialize, frontier [9]"),
        ({"kafka.connect.valid-through-ts": "12:00"}, "Kafka Connect, valid through 12:00"),
        ({"kafka.connect.vtts": "99"}, "Kafka Connect, valid through 99"),
        ({"acme.offset.7": "x"}, "writer key acme.offset.7, x"),
        ({"acme[0].7": "x"}, "writer key acme[0].7, x"),
    ],
)
def test_the_newest_state_of_a_writer_stays_with_all_that_is_newer(properties: Mapping[str, str], writer: str) -> None:
    """Older states and what lies before them expire; the preview names writer, progress and end of the hold."""
    table = days([9, 8, 7, 6, 5], {2: properties, 3: properties})
    found = plan(table, replace(RULE, keys=("acme.offset.*", "acme[0].?")))
    assert found.snapshot_ids == (1, 2)
    last = f"{writer}, until {NOW + 23 * DAY:%Y-%m-%d}"
    assert [(one.snapshot_id, one.by) for one in found.retained] == [
        (3, last),
        (4, f"{last}, which is behind it"),
        (5, "current snapshot"),
    ]
    assert found.kept_writers == (f"snapshots stay for {last}",)
    assert found.next_expiry is not None
    assert timedelta(0) < found.next_expiry - (NOW + 23 * DAY) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "properties",
    [
        {"flink.job-id": "j1"},  # Flink walks on past a snapshot without a checkpoint
        {"spark.sql.streaming.epochId": "4"},
        {"kafka.connect.commit-id": "c1", "kafka.connect.task-id": "t"},
        {"acme.offset": "9"},
    ],
)
def test_what_no_writer_looks_for_keeps_nothing(properties: Mapping[str, str]) -> None:
    """Keys that end no writer's walk hold no snapshot."""
    assert plan(days([9, 8, 7], {1: properties, 2: properties})).snapshot_ids == (1, 2)


def test_each_job_operator_query_and_key_has_a_state_of_its_own() -> None:
    """A newer state of another writer does not stand for this one's."""
    other_operator, other_job = {**FLINK, "flink.operator-id": "b"}, {**FLINK, "flink.job-id": "j2"}
    other_query = {**SPARK, "spark.sql.streaming.queryId": "q2"}
    states = (FLINK, other_operator, other_job, SPARK, other_query, {OFFSETS: "{}"}, {f"{OFFSETS}-2": "{}"})
    for older in states:
        for newer in states:
            gone = (1,) if older != newer else (1, 2)
            assert plan(days([9, 8, 7, 6], {2: older, 3: newer})).snapshot_ids == gone


@pytest.mark.parametrize(
    ("age", "max_age", "gone"), [(29.9, 30, False), (30 + 1 / 86_400, 30, True), (3, 2, True), (3, 0, True)]
)
def test_a_state_is_kept_for_so_long_after_its_commit(age: float, max_age: int, gone: bool) -> None:
    """When the time is over the plan says whose state goes; 0 days keep no state."""
    table = days([40, age, 2, 1.5], {2: FLINK})
    found = plan(table, WriterStateRule(max_age * DAY))
    assert found.snapshot_ids == ((1, 2, 3) if gone else (1,))
    last = f"{NOW - age * DAY:%Y-%m-%d}"
    lost = f"the state of Flink job j1, checkpoint 6 goes, its last commit was on {last}"
    assert found.lost_writers == ((lost,) if gone else ())


def test_a_branch_keeps_its_own_walk_alone() -> None:
    """Each branch keeps from its head back to its newest state; what only another branch has after that expires."""
    audit = SnapshotRef("audit", RefKind.BRANCH, 11)
    fork = [snapshot(10, age=24 * 8.5, parent_id=2, writer_properties=FLINK), snapshot(11, age=24 * 8.4, parent_id=10)]
    main = days([10, 9, 8, 7, 6], {2: FLINK, 4: FLINK}).snapshots
    table = metadata(snapshots=(*main, *fork), current_snapshot_id=5, refs=[audit])
    assert plan(table).snapshot_ids == (1, 2, 3)
    assert plan(table, None).snapshot_ids == (1, 2, 3, 4, 10)


def test_what_flink_has_not_converted_stays_on_its_branch() -> None:
    """Flink walks the staging branch back to what it converted last: that and all newer ones stay with the marker."""
    staging = SnapshotRef("staging", RefKind.BRANCH, 13)
    fork = lineage([24 * age for age in (8.9, 8.8, 8.7, 8.6)])
    line = [replace(s, snapshot_id=s.snapshot_id + 9, parent_id=(s.parent_id or -7) + 9) for s in fork]
    marker = {"equality-convert-staging-snapshot": "11"}
    main = days([10, 9, 8, 7, 6], {3: {"equality-convert-staging-snapshot": "10"}, 4: marker}).snapshots
    table = metadata(snapshots=(*main, *line), current_snapshot_id=5, refs=[staging])
    found = plan(table)
    assert found.snapshot_ids == (1, 2, 3, 10)
    by = {one.snapshot_id: one.by for one in found.retained}
    said = f"Flink's conversion of equality deletes, staging snapshot 11, until {NOW + 23 * DAY:%Y-%m-%d}"
    assert (by[4], by[11], by[12]) == (said, *[f"{said}, which goes on from there"] * 2)
    assert plan(table, WriterStateRule(timedelta(0))).snapshot_ids == (1, 2, 3, 4, 10, 11, 12)
    strange = [replace(s, writer_properties={next(iter(marker)): "x"}) if s.snapshot_id == 4 else s for s in main]
    table = metadata(snapshots=(*strange, *line), current_snapshot_id=5, refs=[staging])
    assert plan(table).snapshot_ids == (1, 2, 3, 10, 11, 12)


def test_a_branch_with_a_state_outlives_its_age() -> None:
    """A branch past its max-ref-age stays as long as a writer's state on it does, and then says that it goes."""
    audit = SnapshotRef("audit", RefKind.BRANCH, 2, max_ref_age=DAY)
    line = (snapshot(1, age=24 * 9), snapshot(2, age=24 * 8, parent_id=1, writer_properties=FLINK), snapshot(3, age=1))
    table = metadata(snapshots=line, current_snapshot_id=3, refs=[audit])
    assert plan(table).remove_refs == ()
    tagged = replace(audit, kind=RefKind.TAG)
    assert plan(metadata(snapshots=line, current_snapshot_id=3, refs=[tagged])).remove_refs == ("audit",)
    assert plan(table, WriterStateRule(8 * DAY - timedelta(seconds=1))).remove_refs == ("audit",)
    over = plan(table, WriterStateRule(7 * DAY))
    assert (over.remove_refs, over.snapshot_ids, len(over.lost_writers)) == (("audit",), (1, 2), 1)


def test_spark_would_expire_by_the_age_of_a_branch_alone() -> None:
    """Spark's procedure expires unasked what is past a ref's own age, and nothing where refs set none."""
    main = SnapshotRef(MAIN, RefKind.BRANCH, 4, max_snapshot_age=DAY, min_snapshots_to_keep=1)
    states: dict[int, Mapping[str, str]] = {2: FLINK}
    assert plan(days([9, 8, 7, 6], states, refs=[main])).snapshot_ids == (1,)
    assert expired_by_iceberg(days([9, 8, 7, 6], states, refs=[main]), NOW).snapshot_ids == (1, 2, 3)
    assert expired_by_iceberg(days([9, 8, 7, 6], states), NOW).is_empty
    old = days([9, 1], {}, refs=[SnapshotRef("v1", RefKind.TAG, 1)], properties={"history.expire.max-ref-age-ms": "1"})
    assert expired_by_iceberg(old, NOW).remove_refs == ("v1",)
    endless = replace(old, properties={"history.expire.max-ref-age-ms": "9" * 400})
    assert expired_by_iceberg(endless, NOW).remove_refs == ()


def test_iceberg_counts_every_snapshot_of_a_branch() -> None:
    """Spark's procedure keeps one snapshot, or as many as the table's property says, and counts rewrites among them."""
    main = SnapshotRef(MAIN, RefKind.BRANCH, 4, max_snapshot_age=DAY)
    table = days([9, 8, 7, 6], {}, refs=[main])
    assert expired_by_iceberg(table, NOW).snapshot_ids == (1, 2, 3)
    ours: dict[str, Any] = {"operation": "replace", "summary": {"icewright.job-id": "j"}}
    rewritten = tuple(replace(s, **ours) if s.snapshot_id > 2 else s for s in table.snapshots)
    kept = {"history.expire.min-snapshots-to-keep": "2"}
    assert expired_by_iceberg(replace(table, snapshots=rewritten, properties=kept), NOW).snapshot_ids == (1, 2)


def test_a_state_that_a_rollback_left_on_no_branch_goes_told() -> None:
    """It has the retention of other such snapshots; a newer state of the same writer on a branch makes it needless."""
    rolled_back = snapshot(9, age=24 * 4, parent_id=2, writer_properties={**FLINK, _CHECKPOINT: "7"})
    main = days([9, 8, 3], {2: FLINK}).snapshots
    table = metadata(snapshots=(*main, rolled_back), current_snapshot_id=3)
    lost = f"the state of Flink job j1, checkpoint 7 goes, its last commit was on {NOW - 4 * DAY:%Y-%m-%d}"
    found = plan(table)
    assert (found.snapshot_ids, found.lost_writers) == ((1, 9), (f"{lost}, which is on no branch any more",))
    went_on = (*main[:2], replace(main[2], writer_properties=FLINK, sequence_number=10), rolled_back)
    assert plan(replace(table, snapshots=went_on)).lost_writers == ()
    young = replace(rolled_back, timestamp=NOW)
    assert plan(replace(table, snapshots=(*main, young))).lost_writers == ()


def test_a_tag_and_a_newer_state_lose_no_writer() -> None:
    """A writer starts from a branch: a state that only a tag leads to, or that a newer one follows, is not missed."""
    table = days([9, 8, 7, 6, 5], {1: FLINK, 4: FLINK}, refs=[SnapshotRef("t", RefKind.TAG, 2)])
    found = plan(table)
    assert (found.snapshot_ids, found.lost_writers, len(found.kept_writers)) == ((1, 3), (), 1)
    assert [s.snapshot_id for s in kept_writer_states(table, RULE, NOW)] == [4]
    assert kept_writer_states(days([1, 0], {2: FLINK}), WriterStateRule(timedelta(0)), NOW) == []
    assert plan(replace(table, refs=(*table.refs, SnapshotRef("u", RefKind.TAG, 4)))).kept_writers == ()


def test_own_rewrites_do_not_count_among_the_newest() -> None:
    """Compaction does not push the commits of writers out; a count of 1 keeps the head alone."""
    ours: dict[str, Any] = {"operation": "replace", "summary": {"icewright.job-id": "j"}}
    line = lineage([24 * age for age in (9, 8, 7, 6, 5, 4, 3)])
    made = tuple(replace(s, **ours) if s.snapshot_id in {5, 6, 7} else s for s in line)
    foreign = tuple(replace(s, operation="replace") for s in line)
    erased = tuple(replace(s, operation="overwrite") for s in made)
    for counted in (foreign, erased):
        assert plan(metadata(snapshots=counted), None, keep=3).snapshot_ids == (1, 2, 3, 4)
    for snapshots in (made, made[::-1]):  # a history that is not in order takes the long way
        table = metadata(snapshots=snapshots, current_snapshot_id=7)
        assert plan(table, None, keep=3).snapshot_ids == (1,)
        assert set(plan(table, None, keep=1).snapshot_ids) == {1, 2, 3, 4, 5, 6}


_STATES = st.dictionaries(st.integers(1, 12), st.sampled_from([FLINK, SPARK, KAFKA, {**FLINK, **KAFKA}]))


def _walk(newest_first: Sequence[Snapshot], table: Expiry, key: str) -> Snapshot | None:
    """Go as writers do: parent by parent to the first snapshot with the key; None where a parent is gone first."""
    for one in newest_first:
        if one.snapshot_id in table.snapshot_ids:
            return None
        if key in one.writer_properties:
            return one
    return None


@examples(150)
@given(st.lists(st.floats(0.5, 60), min_size=1, max_size=12), _STATES, st.integers(0, 40), st.integers(1, 4))
def test_every_writer_finds_its_state_again(
    ages: list[float], states: dict[int, dict[str, str]], max_age: int, keep: int
) -> None:
    """On any history each walk ends where it ended before, unless the state is past its time: then the plan says so."""
    table = days(sorted(ages, reverse=True), states)
    found = plan(table, WriterStateRule(max_age * DAY), keep=keep)
    line = table.snapshots[::-1]
    for key in {key for s in line for key in s.writer_properties} - {"kafka.connect.commit-id"}:
        before = next(s for s in line if key in s.writer_properties)
        lost = _walk(line, found, key) != before
        assert not lost or (NOW - before.timestamp >= max_age * DAY and found.lost_writers)
    bent = replace(table)
    vars(bent)["is_straight"] = False
    assert plan(bent, WriterStateRule(max_age * DAY), keep=keep).snapshot_ids == found.snapshot_ids


def test_writers_without_number_and_names_without_end_are_told_in_short() -> None:
    """A summary may have any keys: verdicts, jobs and pages that tell of them stay small, and every state stays."""
    keys = {f"{OFFSETS}-{number}-{'x' * 900}": "{}" for number in range(1000)}
    lost, kept = plan(days([40, 39, 2, 1.5], {1: keys})), plan(days([40, 9, 8, 2, 1.5], {2: keys, 3: FLINK}))
    assert (lost.lost_writers[-1], kept.snapshot_ids) == ("980 more such writers", (1,))
    long = {**FLINK, "flink.job-id": "j" * 1000}
    (said,) = plan(days([9, 8, 7], {2: long})).kept_writers
    assert max(map(len, (said, *lost.lost_writers))) < 300
    assert (len(lost.lost_writers), len(kept.kept_writers)) == (21, 2)
    for writers, more in ((20, []), (21, ["1 more such writers"])):
        some = dict(list(keys.items())[:writers])
        assert list(plan(days([40, 39, 2, 1.5], {1: some})).lost_writers[20:]) == more


def test_newest_states_are_told_once() -> None:
    """A writer with many commits has one newest state, at its depth below the head; pages name those that stay."""
    table = days([5, 4, 3, 2], {1: FLINK, 2: FLINK, 3: SPARK})
    states = newest_states(table.snapshots[::-1], ())
    assert [(s.snapshot.snapshot_id, s.depth) for s in states] == [(3, 1), (2, 2)]
    shown = kept_writer_states(table, WriterStateRule(3.5 * DAY), NOW)
    assert [(s.snapshot_id, s.by) for s in shown] == [(3, f"Spark stream q1, epoch 4, until {NOW + DAY / 2:%Y-%m-%d}")]


@pytest.mark.parametrize(("data", "total"), [("3", 4), ("9" * 5_000, None), ("x", None), (None, None)])
def test_files_that_a_summary_counts(data: str | None, total: int | None) -> None:
    """Numbers that no table reaches, and words, count nothing."""
    summary = {"total-delete-files": "1"} | ({} if data is None else {"total-data-files": data})
    assert total_files(snapshot(1, summary=summary)) == total


@pytest.mark.parametrize(("keys", "patterns"), [(None, ()), (" app.*, ,offset", ("app.*", "offset"))])
def test_where_the_policy_looks_for_states_of_writers(keys: str | None, patterns: tuple[str, ...]) -> None:
    """Patterns stand with commas between; blanks among them are no patterns."""
    found = knobs({WRITER_STATE_DAYS.name: 3} | ({WRITER_STATE_KEYS.name: keys} if keys else {}))
    assert writer_state_rule(found) == WriterStateRule(timedelta(days=3), patterns)


@pytest.mark.parametrize(
    ("ages", "states", "hours", "who"),
    [
        ([9, 4], {}, 72, ""),
        ([9, 4], {1: FLINK}, 217, "Flink job j1, checkpoint 6, which may commit them when it starts again, until 20"),
        ([9, 4], {1: SPARK}, 72, ""),  # whose files are written again
        ([9, 4], {1: SPARK, 2: FLINK}, 97, "Flink job j1"),
        ([9, 4], {1: FLINK, 2: {OFFSETS: "{}"}}, 217, "Flink job j1"),
        ([9, 4], {1: FLINK | {OFFSETS: "{}"}}, 217, "Flink job j1"),
        ([9, 71 / 24], {2: FLINK}, 72, ""),
        ([31, 4], {1: FLINK}, 72, ""),  # whose state is kept no more
    ],
)
def test_since_when_files_may_be_those_of_a_stopped_writer(
    ages: Sequence[float], states: Mapping[int, Mapping[str, str]], hours: float, who: str
) -> None:
    """From an hour before the oldest state of those that commit files later; and nothing is called old later on."""
    since, notes = uncommitted_files([days(ages, states)], RULE, NOW, NOW - 3 * DAY)
    assert since == NOW - timedelta(hours=hours)
    assert [note.partition(" stay for ")[2][: len(who)] for note in notes] == [who] * bool(who)
