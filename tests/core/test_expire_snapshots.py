"""Expiry: when it is due, why not, and what it asks for. Which snapshots go is retention's."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.cost import service_cost, storage_benefit
from icewright.core.effective import Knobs
from icewright.core.operations import expire_snapshots
from icewright.core.policy import Operation
from icewright.core.steps import Blocked, Due, ExpireSnapshots, NotDue, RetainedSnapshot, Verdict
from icewright.core.table import MAIN, RefKind, SnapshotHold, SnapshotRef, TableMetadata
from icewright.testing import NOW, facts, knobs, lineage, manifests, metadata, spec

WEEK = 168
MANY = [WEEK + 10 - i for i in range(10)]


def _verdict(table: TableMetadata, found: Knobs | None = None) -> Verdict:
    return expire_snapshots.evaluate(facts(of=table), found or Knobs(), None, NOW)


def _step(verdict: Verdict) -> ExpireSnapshots:
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, ExpireSnapshots)
    return step


def test_old_snapshots_beyond_the_count_are_due() -> None:
    """Ten old snapshots of which five are kept: five go, in-service, by the default retention."""
    verdict = _verdict(metadata(MANY))
    step = _step(verdict)
    assert step.snapshot_ids == (1, 2, 3, 4, 5)
    assert (step.delete_files, step.max_concurrent_deletes, step.by_spark) == (True, 16, False)
    assert isinstance(verdict, Due)
    assert verdict.work.operation is Operation.EXPIRE_SNAPSHOTS
    assert verdict.benefit > 0 < verdict.cost
    assert verdict.why == "5 of 10 snapshots are beyond the 5 newest and older than 168 h"


@pytest.mark.parametrize(
    ("ages", "share", "waits"),
    [
        ([WEEK + 3, 2, 1, 0], 0.26, True),  # one of four has expired, three hours ago
        ([WEEK + 3, 2, 1, 0], 0.25, False),
        ([WEEK + 23.9, 2, 1, 0], 0.9, True),
        ([WEEK + 24, 2, 1, 0], 0.9, False),  # for a day
        ([WEEK + 3, WEEK + 2, WEEK + 1, 0], 0.8, True),
        ([WEEK + 24, WEEK + 2, WEEK + 1, 0], 0.8, False),
    ],
)
def test_few_expired_snapshots_wait_for_more(ages: list[float], share: float, waits: bool) -> None:
    """Until they are a share of all, or the oldest of them has waited for a day; the verdict says until when."""
    verdict = _verdict(
        metadata(ages), knobs({"expire_snapshots.min_share": share, "expire_snapshots.min_snapshots_to_keep": 1})
    )
    assert isinstance(verdict, Due)
    assert (verdict.postponed is not None) is waits
    if verdict.postponed is not None:
        until = NOW + timedelta(hours=WEEK + 24 - ages[0])
        expired = sum(age >= WEEK for age in ages)
        why = f"only {expired} of 4 snapshots would go: expiry waits for more until {until:%Y-%m-%d %H:%M} UTC"
        assert verdict.postponed == NotDue(why, until)


def test_until_when_each_snapshot_stays() -> None:
    """By the longest age of the branches that stay; heads stay as long as their refs."""
    hour = timedelta(hours=1)
    refs = (
        SnapshotRef(MAIN, RefKind.BRANCH, 4, max_snapshot_age=400 * hour),
        SnapshotRef("dev", RefKind.BRANCH, 2),
        SnapshotRef("outlived", RefKind.BRANCH, 3, max_snapshot_age=9_000 * hour, max_ref_age=hour),
    )
    table, second = metadata(snapshots=lineage([300, 200, 100, 1]), refs=refs), timedelta(seconds=1)
    keep_one = knobs({"expire_snapshots.min_snapshots_to_keep": 1})
    assert expire_snapshots.snapshot_expirations(table, (), keep_one, NOW) == {
        1: NOW + 100 * hour + second,
        2: "head of branch dev",
        3: NOW + 300 * hour + second,
        4: "current snapshot",
    }
    off = expire_snapshots.snapshot_expirations(table, (), knobs({"expire_snapshots.enabled": False}), NOW)
    assert off == dict.fromkeys(range(1, 5), "expire_snapshots is switched off")
    forbidden = replace(table, properties={"gc.enabled": "false"})
    assert expire_snapshots.snapshot_expirations(forbidden, (), keep_one, NOW)[1] == "gc.enabled is false on the table"


def test_a_ref_that_is_outlived_waits_for_nothing() -> None:
    """It would keep its name, and its snapshots, longer than its owner said."""
    tag = SnapshotRef("tmp", RefKind.TAG, 4, max_ref_age=timedelta(hours=1))
    few = knobs({"expire_snapshots.min_share": 0.9, "expire_snapshots.min_snapshots_to_keep": 1})
    verdict = _verdict(metadata([WEEK + 3, 4, 3, 2], refs=(tag,)), few)
    assert isinstance(verdict, Due)
    assert (verdict.postponed, _step(verdict).remove_refs, _step(verdict).snapshot_ids) == (None, ("tmp",), (1,))


@pytest.mark.cases(18)
def test_no_snapshot() -> None:
    """A table that nobody has written to has nothing to expire."""
    assert _verdict(metadata([])) == NotDue("no current snapshot")


@pytest.mark.parametrize("ages", [[WEEK + 5] * 5, [5, 4, 3, 2, 1, 0]])
@pytest.mark.cases(15, 17, 93)
def test_nothing_to_expire(ages: list[float]) -> None:
    """Old ones within the count, or many that are young, are not due."""
    verdict = _verdict(metadata(ages))
    assert isinstance(verdict, NotDue)
    assert verdict.reason == "no snapshots to expire"


def test_when_to_look_again() -> None:
    """When time alone lets the next snapshot go, the verdict says when."""
    verdict = _verdict(metadata([WEEK - 2, *range(6, 0, -1)]))
    assert isinstance(verdict, NotDue)
    assert verdict.revisit is not None
    assert timedelta(0) < verdict.revisit - (NOW + timedelta(hours=2)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("value", "blocked"), [("false", True), ("FALSE", True), ("no", True), (" true", True), ("True", False)]
)
@pytest.mark.cases(72)
def test_gc_disabled(value: str, blocked: bool) -> None:
    """A table that forbids garbage collection is left alone, whatever the policy says: `true` alone allows it."""
    verdict = _verdict(metadata(MANY, properties={"gc.enabled": value}))
    assert isinstance(verdict, Blocked) is blocked
    assert isinstance(verdict, Due) is not blocked


def test_knobs_reach_the_step() -> None:
    """Retention, counts, concurrency and engine are the policy's."""
    found = knobs(
        {
            "expire_snapshots.retention_hours": 2,
            "expire_snapshots.min_snapshots_to_keep": 1,
            "expire_snapshots.delete_files": False,
            "expire_snapshots.max_concurrent_deletes": 3,
            "expire_snapshots.engine": "spark",
            "expire_snapshots.clean_expired_metadata": True,
            "expire_snapshots.outside_location": "delete",
            "deletion.delay_hours": 5,
            "execute.check_totals": False,
        }
    )
    table = metadata([4, 3, 2.5, 1, 0.5], refs=[SnapshotRef("v1", RefKind.TAG, 2)])
    assert _step(_verdict(table, found)) == ExpireSnapshots(
        snapshot_ids=(1, 3),
        remove_refs=(),
        delete_files=False,
        max_concurrent_deletes=3,
        by_spark=True,
        check_totals=False,
        clean_metadata=True,
        retained=(RetainedSnapshot(2, "head of tag v1"),),
        outside=True,
        delay=timedelta(hours=5),
    )


@pytest.mark.parametrize(
    ("ages", "more", "due"),
    [
        ([1], {"schema_ids": (0, 1)}, True),
        ([1, 0.5], {"schema_ids": (0, 1)}, True),
        ([], {"schema_ids": (0, 1)}, True),
        ([1], {"schema_ids": (0,)}, False),
        ([1], {"specs": (spec(), spec(1, id="identity"))}, True),
        ([1, 0.5], {"specs": (spec(), spec(1, id="identity"))}, False),  # the other snapshot may use it
    ],
)
def test_unused_specs_and_schemas_are_due_alone(ages: list[float], more: dict[str, Any], due: bool) -> None:
    """The service removes them, whichever engine expires snapshots; without the knob nothing is due."""
    table = metadata(ages, schema={"schema-id": 0, "fields": []}, **more)
    table = replace(table, snapshots=tuple(replace(s, schema_id=0) for s in table.snapshots))
    found = _verdict(
        table, knobs({"expire_snapshots.clean_expired_metadata": True, "expire_snapshots.engine": "spark"})
    )
    assert isinstance(found, Due) is due
    if due:
        step = _step(found)
        assert (step.snapshot_ids, step.clean_metadata, step.by_spark) == ((), True, False)
    assert isinstance(_verdict(table), NotDue)


@pytest.mark.parametrize(("used", "unused"), [((), 2), ((1,), 1), ((0, 1, 2), 0)])
def test_specs_that_a_manifest_or_the_next_writer_needs_stay(used: tuple[int, ...], unused: int) -> None:
    """Each other spec is counted, is worth a file, and the reason says how many there are."""
    table = metadata([1], specs=(spec(), spec(1, id="identity"), spec(2, id="bucket[4]")))
    found = facts(of=table, manifests_of=[manifests(spec_id=one) for one in used])
    verdict = expire_snapshots.evaluate(found, knobs({"expire_snapshots.clean_expired_metadata": True}), None, NOW)
    assert isinstance(verdict, Due) is bool(unused)
    if isinstance(verdict, Due):
        assert verdict.benefit == storage_benefit(unused)
        assert f"uses {unused} of" in verdict.why


def test_by_default_files_elsewhere_stay_and_all_files_wait_a_day() -> None:
    """What a policy does not say is the safe side."""
    step = _step(_verdict(metadata(MANY)))
    assert (step.outside, step.delay, step.clean_metadata) == (False, timedelta(days=1), False)
    assert step.check_totals


@pytest.mark.parametrize(("delete_files", "files"), [(True, 16), (False, 0)])
def test_what_an_expiry_is_worth(delete_files: bool, files: int) -> None:
    """Three files for each of five snapshots and one for the tag, which a run says afterwards how many they were."""
    table = metadata(MANY, refs=[SnapshotRef("old", RefKind.TAG, 1)])
    said = {"expire_snapshots.max_ref_age_hours": 24, "expire_snapshots.delete_files": delete_files}
    verdict = _verdict(table, knobs(said))
    assert isinstance(verdict, Due)
    assert (verdict.files, verdict.per_file) == (files, storage_benefit(1))
    assert (verdict.benefit, verdict.cost) == (storage_benefit(16), service_cost(50))


def test_snapshots_that_somebody_reads_stay() -> None:
    """A hold of the store and a reader that the policy names each keep their snapshot and what came after it."""
    table = metadata(MANY)
    hold = SnapshotHold(5, "somebody", NOW + timedelta(hours=1))
    held = expire_snapshots.evaluate(facts(of=table, holds=(hold,)), Knobs(), None, NOW)
    assert _step(held).snapshot_ids == (1, 2, 3, 4)
    pinned = knobs({"expire_snapshots.reader_pins": {"etl": "4", "gone": "77"}})
    assert _step(_verdict(table, pinned)).snapshot_ids == (1, 2, 3)


@pytest.mark.parametrize(("hours", "gone"), [(WEEK + 7, (1, 2, 3, 4, 5)), (WEEK + 8, (1, 2, 3))])
def test_a_reader_s_pin_ends(hours: int, gone: tuple[int, ...]) -> None:
    """So long after the commit of its snapshot, which is `WEEK + 7` hours old."""
    said = {"expire_snapshots.reader_pins": {"etl": "4"}, "expire_snapshots.max_pin_age_hours": hours}
    assert _step(_verdict(metadata(MANY), knobs(said))).snapshot_ids == gone


def _tagged(count: int) -> TableMetadata:
    tags = [SnapshotRef(f"v{number}", RefKind.TAG, number) for number in range(1, count + 1)]
    return metadata([300 - i for i in range(count)] + [5, 4, 3, 2, 1], refs=tags)


@pytest.mark.parametrize(
    ("tags", "notes"),
    [
        (0, ()),
        (2, ("old ones stay: 1 for head of tag v1, 1 for head of tag v2",)),
        (3, ("old ones stay: 1 for head of tag v1, 1 for head of tag v2, 1 for head of tag v3",)),
        (4, ("old ones stay: 1 for head of tag v1, 1 for head of tag v2, 1 for head of tag v3 and 1 more",)),
        (5, ("old ones stay: 1 for head of tag v1, 1 for head of tag v2, 1 for head of tag v3 and 2 more",)),
    ],
)
def test_who_keeps_old_snapshots(tags: int, notes: tuple[str, ...]) -> None:
    """When nothing goes, three of those who keep old snapshots are named, and how many more there are."""
    verdict = _verdict(_tagged(tags))
    assert isinstance(verdict, NotDue)
    assert verdict.notes == notes


def test_what_the_count_keeps_is_nobody_s() -> None:
    """The policy's own count, and the current snapshot, are no answer to who keeps old ones."""
    verdict = _verdict(metadata([WEEK + 5] * 5))
    assert isinstance(verdict, NotDue)
    assert verdict.notes == ()


@pytest.mark.cases(4)
def test_an_outlived_ref_alone_is_due() -> None:
    """A tag past its age is work though no snapshot goes, and is worth something, or it would wait for ever."""
    table = metadata([50, 1], refs=[SnapshotRef("old", RefKind.TAG, 1)])
    verdict = _verdict(table, knobs({"expire_snapshots.max_ref_age_hours": 24}))
    assert _step(verdict).remove_refs == ("old",)
    assert isinstance(verdict, Due)
    assert "1 refs outlived" in verdict.why
    assert verdict.benefit > 0


def test_the_states_of_writers_reach_the_step() -> None:
    """One that stays keeps newer ones too; one that is past its days is lost, and both are told."""
    line = lineage([24 * age for age in (90, 40, 20, 10, 1)])
    states = {1: {"flink.job-id": "old", "flink.max-committed-checkpoint-id": "1"}}
    states[3] = {"flink.job-id": "new", "flink.max-committed-checkpoint-id": "6"}
    of = metadata(snapshots=tuple(replace(s, writer_properties=states.get(s.snapshot_id, {})) for s in line))
    verdict = _verdict(of, knobs({"expire_snapshots.min_snapshots_to_keep": 1}))
    assert isinstance(verdict, Due)
    assert _step(verdict).snapshot_ids == (1, 2)
    (lost,) = _step(verdict).losses
    assert verdict.why.endswith(f"; {lost}")
    assert "; snapshots stay for Flink job new, checkpoint 6" in verdict.why
