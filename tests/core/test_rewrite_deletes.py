"""Rewriting position deletes: when many can be merged, or some apply to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.operations import rewrite_deletes
from icewright.core.policy import Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import ConvertEqualityDeletes, Due, NotDue, RewritePositionDeletes, Verdict, on_pool
from icewright.core.table import PartitionFacts, TableMetadata
from icewright.testing import NOW, facts, knobs, metadata, partition, spec

REGIONS = metadata(specs=(spec(region="identity"),))


def _verdict(
    *partitions: PartitionFacts,
    of: TableMetadata = REGIONS,
    settings: Mapping[str, object] | None = None,
    last: LastRun | None = None,
) -> Verdict:
    return rewrite_deletes.evaluate(facts(*partitions, of=of), knobs(settings or {}), last, NOW)


def _due(verdict: Verdict) -> tuple[Due, RewritePositionDeletes]:
    assert isinstance(verdict, Due)
    assert verdict.work.operation is Operation.REWRITE_DELETES
    (step,) = verdict.work.steps
    assert isinstance(step, RewritePositionDeletes)
    return verdict, step


MERGEABLE = partition("eu", position_delete_files=6, mergeable_deletes=6)
DANGLING = partition("eu", dangling_position_deletes=2)
FEW = partition("us", position_delete_files=2, mergeable_deletes=2)
UNSAYABLE = partition(b"\x00", position_delete_files=6, mergeable_deletes=6)


def test_many_position_deletes_are_due() -> None:
    """Six files that can be merged, in the only partition that has any: no filter is needed."""
    verdict, step = _due(_verdict(MERGEABLE, partition("us")))
    assert (step.where, step.partitions, step.files) == (None, ((0, ("eu",)),), 6)
    assert step.options == {"rewrite-all": "true"}
    assert verdict.why == "6 position delete files in 1 partition, 0 of them apply to nothing"
    assert verdict.benefit > 0 < verdict.cost


def test_only_partitions_that_need_it() -> None:
    """Where others have position deletes too, a filter leaves them alone."""
    _, step = _due(_verdict(MERGEABLE, FEW))
    assert (step.where, step.partitions) == ("`region` = 'eu'", ((0, ("eu",)),))


def test_what_is_soon_due_goes_along() -> None:
    """A partition with half as many position deletes goes along in the same call; alone it waits, as does one file."""
    half = partition("us", position_delete_files=3, mergeable_deletes=3)
    verdict, step = _due(_verdict(MERGEABLE, half))
    assert (step.where, step.files, verdict.files) == (None, 9, 9)
    assert isinstance(_verdict(half), NotDue)
    one = replace(half, position_delete_files=1, mergeable_deletes=1)
    two = partition("eu", position_delete_files=2, mergeable_deletes=2)
    _, step = _due(_verdict(two, one, settings={"rewrite_deletes.min_delete_files": 2}))
    assert step.partitions == ((0, ("eu",)),)


def test_what_cannot_be_said_widens() -> None:
    """Without a filter the step is about every partition with position deletes, and names them all."""
    _, step = _due(_verdict(UNSAYABLE, FEW, partition("none")))
    assert (step.where, step.partitions) == (None, ((0, (b"\x00",)), (0, ("us",))))


@pytest.mark.cases(30)
def test_dangling_deletes_are_due() -> None:
    """Files that apply to nothing are due however few they are, unless the policy says not."""
    verdict, step = _due(_verdict(DANGLING))
    assert step.files == 2
    assert verdict.why == "2 position delete files in 1 partition, 2 of them apply to nothing"
    assert isinstance(_verdict(DANGLING, settings={"rewrite_deletes.dangling": False}), NotDue)


@pytest.mark.parametrize(
    ("one", "settings", "due"),
    [
        (FEW, {}, False),
        (FEW, {"rewrite_deletes.min_delete_files": 2}, True),
        (MERGEABLE, {"rewrite_deletes.min_delete_files": 7}, False),
        (partition("eu", position_delete_files=50), {}, False),
        (partition("eu", deletion_vectors=50), {}, False),
        (partition("eu", equality_delete_files=10, dangling_equality_deletes=9), {}, False),
    ],
)
@pytest.mark.cases(28, 40)
def test_thresholds(one: PartitionFacts, settings: Mapping[str, object], due: bool) -> None:
    """Only position delete files that share what they apply to count; vectors and few equality deletes do not."""
    assert isinstance(_verdict(one, settings=settings), Due) is due


def test_reasons() -> None:
    """Nothing to do is said with the numbers behind it."""
    assert _verdict(of=metadata([])) == NotDue("no current snapshot")
    assert _verdict(FEW) == NotDue("2 position delete files, no partition has 5 to merge")


@pytest.mark.parametrize(
    ("state", "due"),
    [
        (OperationState.COMMITTED, False),
        (OperationState.SKIPPED, False),
        (OperationState.FAILED, True),
        (OperationState.DEFERRED, True),
    ],
)
@pytest.mark.cases(85)
def test_the_last_run(state: OperationState, due: bool) -> None:
    """A table that is as the last run left it is not due, unless that run did nothing."""
    last = LastRun(Operation.REWRITE_DELETES, NOW - timedelta(days=1), state, REGIONS.metadata_location)
    assert isinstance(_verdict(MERGEABLE, last=last), Due) is due


def test_more_deletes_are_worth_more() -> None:
    """The benefit grows with what is merged and what is dropped, the cost with what is read."""
    more = partition("eu", position_delete_files=60, mergeable_deletes=60)
    both = partition("eu", position_delete_files=6, mergeable_deletes=6, dangling_position_deletes=3)
    few, many, dropped = (_due(_verdict(one))[0] for one in (MERGEABLE, more, both))
    assert few.benefit < dropped.benefit < many.benefit
    assert few.cost < dropped.cost < many.cost


UPSERTS = partition("eu", equality_delete_files=18, dangling_equality_deletes=2, data_files=30)


@pytest.mark.cases(144)
@pytest.mark.parametrize(("version", "kind"), [(2, "position deletes"), (3, "deletion vectors")])
def test_many_equality_deletes_are_due(version: int, kind: str) -> None:
    """Twenty equality delete files of a partition, dangling ones too, become positions; fewer stay."""
    verdict = _verdict(UPSERTS, partition("us", equality_delete_files=19), of=replace(REGIONS, format_version=version))
    assert isinstance(verdict, Due)
    assert verdict.work.steps == (ConvertEqualityDeletes(((0, ("eu",)),), 20, 512 << 20),)
    assert verdict.why == f"20 equality delete files in 1 partition, which become {kind}"
    assert (verdict.files, on_pool(verdict.work.steps[0])) == (20, False)
    assert verdict.benefit > 0 < verdict.cost
    few = _verdict(partition("eu", equality_delete_files=19))
    assert few == NotDue("0 position delete files, no partition has 5 to merge")


@pytest.mark.cases(144)
def test_equality_deletes_that_stay() -> None:
    """Where not all files are Parquet the equality deletes stay, and the verdict says so."""
    orc = partition("us", equality_delete_files=20, other_formats=1)
    left = "equality deletes of 1 partition stay, as not all files there are Parquet"
    verdict = _verdict(orc)
    assert isinstance(verdict, NotDue)
    assert verdict.reason.endswith(left)
    verdict = _verdict(orc, UPSERTS)
    assert isinstance(verdict, Due)
    assert verdict.work.notes == (left,)
    assert verdict.work.steps == (ConvertEqualityDeletes(((0, ("eu",)),), 20, 512 << 20),)


def test_positions_are_merged_before_equality_deletes_are_converted() -> None:
    """A refusal of the second step does not keep the first from being done."""
    verdict = _verdict(MERGEABLE, replace(UPSERTS, values=("us",)))
    assert isinstance(verdict, Due)
    assert [type(step) for step in verdict.work.steps] == [RewritePositionDeletes, ConvertEqualityDeletes]
    assert verdict.files == 26
