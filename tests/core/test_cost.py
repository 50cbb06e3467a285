"""What work costs and saves, and the fixed point that keeps a rewritten partition from being due again."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from icewright.core import cost, policy
from icewright.core.cost import calibrated, expected_files, typical_factors
from icewright.core.health import files_to_save
from icewright.core.operations import compact
from icewright.core.policy import MEGABYTE, Knobs, Operation
from icewright.core.steps import Due, NotDue
from icewright.core.table import PartitionFacts, Thresholds
from icewright.core.verdicts import thresholds
from icewright.testing import NOW, facts, knobs, partition


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (99, 1),
        (100, 1),
        (109, 1),  # 10 % over the target is fine
        (111, 2),  # one file would be too large
        (176, 2),  # the remainder is no candidate
        (175, 2),  # it would be one, but one file cannot hold all
        (200, 2),
        (1000, 10),
        (1050, 10),  # the remainder is spread
        (1076, 11),
        (1099, 11),
    ],
)
def test_expected_files(size: int, expected: int) -> None:
    """A remainder is a file of its own when it is no candidate again, or when spreading it makes others too large."""
    assert expected_files(size, 100, 75, 180) == expected


@given(st.integers(0, 10**13), st.integers(1, 10**10), st.floats(0, 1), st.floats(1, 10))
def test_expected_files_have_about_the_target_s_size(size: int, target: int, least: float, most: float) -> None:
    """There is at least one file, none is above the largest size, and never more than one beyond what is needed."""
    files = expected_files(size, target, int(target * least), int(target * most))
    assert 1 <= files <= math.ceil(size / target) + 1
    assert size / files <= max(target * most, target)


def test_costs_grow_with_the_work() -> None:
    """More bytes, more jobs and more files cost more, and nothing is free."""
    assert 0 < cost.spark_cost(0) < cost.spark_cost(MEGABYTE) < cost.spark_cost(MEGABYTE, jobs=2)
    assert 0 < cost.service_cost(0) < cost.service_cost(1)
    assert cost.gb_hours(3600, 2) == 2


def test_metadata_work_never_pays_for_spark() -> None:
    """The service does in place what Spark would take a session for."""
    assert cost.service_cost(1000) < cost.spark_cost(0) / 10


def test_benefits_grow_with_what_is_saved() -> None:
    """Every file, delete file and deleted byte that a scan is spared counts."""
    least = cost.compaction_benefit(1, 0, 0)
    assert 0 < least < cost.compaction_benefit(1, 1, 0) < cost.compaction_benefit(1, 1, MEGABYTE)
    assert 0 < cost.storage_benefit(1) < cost.storage_benefit(1, MEGABYTE) < least


@st.composite
def _partitions(draw: st.DrawFn, sizes: Thresholds) -> PartitionFacts:
    """Some candidates of any size, beside files of the right size."""
    count = draw(st.integers(0, 20))
    size = draw(st.integers(0, sizes.target_bytes * 3 * count))
    good = draw(st.integers(0, 3))
    return partition(
        data_files=count + good,
        data_bytes=size + good * sizes.target_bytes,
        candidate_files=count,
        candidate_bytes=size,
    )


@st.composite
def _knobs(draw: st.DrawFn) -> Knobs:
    return knobs(
        {
            policy.TARGET_FILE_SIZE.name: draw(st.sampled_from([0.001, 1, 100, 512])),
            policy.MIN_FILE_SIZE_RATIO.name: draw(st.sampled_from([0, 0.1, 0.5, 0.75, 0.99, 1])),
            policy.MAX_FILE_SIZE_RATIO.name: draw(st.sampled_from([1, 1.01, 1.1, 1.8, 10])),
            policy.MIN_INPUT_FILES.name: draw(st.integers(2, 6)),
        }
    )


@settings(max_examples=150, deadline=None)
@given(st.data(), _knobs())
def test_nothing_to_save_is_nothing_to_do(data: st.DataObject, found: Knobs) -> None:
    """A partition whose rewrite would leave as many files as there are is never due."""
    one = data.draw(_partitions(thresholds(found)))
    table = facts(one, by=found)
    assume(files_to_save(one, table) == 0)
    assert isinstance(compact.evaluate(table, found, None, NOW), NotDue)


@settings(max_examples=150, deadline=None)
@given(st.data(), _knobs())
def test_a_rewritten_partition_is_not_due_again(data: st.DataObject, found: Knobs) -> None:
    """After the candidates of a due partition became the expected number of equal files, it is due no more."""
    sizes = thresholds(found)
    one = data.draw(_partitions(sizes))
    assume(isinstance(compact.evaluate(facts(one, by=found), found, None, NOW), Due))
    count = expected_files(one.candidate_bytes, sizes.target_bytes, sizes.min_bytes, sizes.max_bytes)
    each, rest = divmod(one.candidate_bytes, count)
    candidates = [s for s in [each + 1] * rest + [each] * (count - rest) if not sizes.min_bytes <= s <= sizes.max_bytes]
    after = partition(
        data_files=one.data_files - one.candidate_files + count,
        data_bytes=one.data_bytes,
        candidate_files=len(candidates),
        candidate_bytes=sum(candidates),
    )
    assert isinstance(compact.evaluate(facts(after, by=found), found, None, NOW), NotDue)


@pytest.mark.parametrize(
    ("metrics", "factor"),
    [
        ({}, 1.0),
        ({"gb_hours": 4.0, "gb_hours_predicted": 1.0, "cost_factor": 1.0}, 2.0),
        ({"gb_hours": 4.0, "gb_hours_predicted": 4.0, "cost_factor": 3.0}, 3.0),
        ({"gb_hours": 0.25, "gb_hours_predicted": 1.0, "cost_factor": 4.0}, 2.0),
        ({"gb_hours": 0.0, "gb_hours_predicted": 1.0, "cost_factor": 4.0}, 4.0),
        ({"gb_hours": 1e9, "gb_hours_predicted": 1e-9, "cost_factor": 1.0}, 100.0),
        ({"gb_hours": 1e-9, "gb_hours_predicted": 1e9, "cost_factor": 1.0}, 0.01),
    ],
)
def test_predictions_learn(metrics: dict[str, float], factor: float) -> None:
    """The factor moves half of the way to what the last run really took, within bounds; a right one stays."""
    assert list(calibrated(3.0, metrics)) == pytest.approx([3.0 * factor, factor])


def test_what_is_typical() -> None:
    """The median of what predictions without any correction were off by, of operations of which three tables tell."""

    def ran(real: float, said: float, factor: float = 1.0) -> dict[str, float]:
        return {"gb_hours": real, "gb_hours_predicted": said, "cost_factor": factor}

    compactions = [ran(2.0, 1.0), ran(9.0, 1.0), ran(3.0, 2.0, factor=2.0), ran(0.0, 1.0), {}]
    few = [ran(5.0, 1.0), ran(5.0, 1.0)]
    runs = [*((Operation.COMPACT, run) for run in compactions), *((Operation.EXPIRE_SNAPSHOTS, run) for run in few)]
    assert typical_factors(runs) == {Operation.COMPACT: 3.0}
