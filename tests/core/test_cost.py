"""What work costs and saves, and the fixed point that keeps a rewritten partition from being due again."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icewright.core import cost, rewriting
from icewright.core.cost import Experience, calibrated, expected_files, experience, learned, predicted
from icewright.core.effective import Knobs
from icewright.core.health import files_to_save
from icewright.core.operations import compact
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.steps import Due, Factors, NotDue, Work
from icewright.core.table import PartitionFacts, Thresholds
from icewright.core.verdicts import thresholds
from icewright.testing import NOW, facts, knobs, partition
from tests.examples import examples


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
    assert 0 < cost.spark_cost(0) < cost.spark_cost(MEGABYTE) < cost.spark_cost(2 * MEGABYTE)
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
    size = draw(st.just(sizes.target_bytes * count) | st.integers(0, sizes.target_bytes * 3 * count))
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
            rewriting.TARGET_FILE_SIZE.name: draw(st.sampled_from([0.001, 1, 100, 512])),
            rewriting.MIN_FILE_SIZE_RATIO.name: draw(st.sampled_from([0, 0.1, 0.5, 0.75, 0.99, 1])),
            rewriting.MAX_FILE_SIZE_RATIO.name: draw(st.sampled_from([1, 1.01, 1.1, 1.8, 10])),
            rewriting.MIN_INPUT_FILES.name: draw(st.integers(2, 6)),
        }
    )


@examples(150)
@given(st.data(), _knobs())
def test_nothing_to_save_is_nothing_to_do(data: st.DataObject, found: Knobs) -> None:
    """A partition whose rewrite would leave as many files as there are is never due."""
    one = data.draw(_partitions(thresholds(found)))
    table = facts(one, by=found)
    assume(files_to_save(one, table) == 0)
    assert isinstance(compact.evaluate(table, found, None, NOW), NotDue)


@examples(150)
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


def _ran(took: float, said: float, factor: float = 1.0) -> dict[str, float]:
    return {"gb_hours": took, "gb_hours_predicted": said, "cost_factor": factor}


def _due(cost: float, operation: str = "compact") -> Due:
    return Due(Work(Operation(operation), ()), 1.0, cost, "many files")


@pytest.mark.parametrize(
    ("runs", "modelled", "factor"),
    [
        ([], 1.0, 1.0),
        ([_ran(4.0, 1.0)], 1.0, 1.0),  # one run may have been a cold start
        ([_ran(4.0, 1.0), _ran(4.4, 1.0)], 1.0, 4.0),
        ([_ran(2.0, 1.0), _ran(2.2, 2.0, 2.0), _ran(90.0, 1.0)], 1.0, 2.0),  # the cold start was the oldest
        ([_ran(0.0, 1.0), {}, _ran(3.0, 1.0), _ran(3.0, 1.0)], 1.0, 3.0),  # what tells nothing is left out
        ([_ran(1e9, 1e-9)] * 3, 1.0, 100.0),
        ([_ran(1e-9, 1e9)] * 3, 1.0, 0.01),
        ([_ran(12.0 + n, n) for n in (1, 2, 3, 4, 5)], 4.0, 4.0),  # 12 in each, and what the model says
        ([_ran(12.0 + n, n) for n in (1, 2, 3, 4, 5)], 50.0, 3.4),  # larger than any: as the largest
        ([_ran(12.0 + n, n) for n in (1, 2, 3, 4, 5)], 0.5, 13.0),  # smaller than any: as the smallest
        ([_ran(2.0 * n, n) for n in (1, 2, 3, 4, 5)], 50.0, 2.0),  # nothing fixed
        ([_ran(n, 1.0) for n in (1, 2, 3, 4, 5)], 2.0, 3.0),  # one size
        ([_ran(2.0, 1.0)] * 3 + [_ran(50.0, 1.0)] * 20, 1.0, 2.0),  # a pool that has changed is learned by three runs
    ],
)
def test_predictions_learn(runs: list[dict[str, float]], modelled: float, factor: float) -> None:
    """The median of the last runs corrects the model, within bounds; of five, a part is told that each takes."""
    assert learned(_due(modelled), runs, Experience()).cost == pytest.approx(factor)


@pytest.mark.cases(135)
@pytest.mark.parametrize(("every", "scatter", "smallest"), [(1, 0.3, 0.5), (20, 0.3, 0.1), (1000, 0.35, 0.1)])
@pytest.mark.parametrize("off", [1 / 48, 0.3, 1.0, 7.0, 48.0])
def test_predictions_are_within_twice_the_cost_after_five_runs(
    off: float, every: int, scatter: float, smallest: float
) -> None:
    """Nine of ten runs after the fifth take half to twice what was predicted, warm ones or all, whatever the pool.

    A cold process takes longer, whatever the size: in each run by a command, in few by a service.
    """
    draw, runs, near, warm = Random(7), list[dict[str, float]](), 0, 0
    for number in range(405):
        modelled, cold = draw.uniform(smallest, 10), number % every == 0
        took = (modelled * off + 20 * cold) * draw.lognormvariate(0, scatter)
        factor = learned(_due(modelled), runs, Experience()).cost
        if number >= 5 and (not cold or every == 1):
            warm, near = warm + 1, near + (0.5 <= took / (modelled * factor) <= 2)
        runs = [_ran(took, modelled * factor, factor), *runs]
    assert near >= 0.9 * warm


@pytest.mark.parametrize(
    ("operation", "metrics", "factor"),
    [
        ("compact", {}, 1.0),
        ("compact", {"files_merged": 50, "files_written": 5}, 1.0),  # nobody knows what was expected
        ("compact", {"files_predicted": 45.0}, 1.0),  # nobody knows what came of it
        ("compact", {"files_predicted": 45.0, "files_merged": 50, "files_written": 5}, 1.0),
        ("compact", {"files_predicted": 80.0, "files_merged": 25, "files_written": 9, "delete_files_removed": 4}, 0.5),
        ("compact", {"files_predicted": 9.0, "files_merged": 5, "files_written": 7}, 0.1),  # more than before
        ("rewrite_deletes", {"files_predicted": 16.0, "files_rewritten": 6, "files_written": 2}, 0.5),
        ("rewrite_manifests", {"files_predicted": 2.0, "manifests_rewritten": 10, "manifests_written": 2}, 2.0),
        ("expire_snapshots", {"files_predicted": 30.0, "files_deleted": 270, "benefit_factor": 2.0}, 6.0),
        ("expire_snapshots", {"files_predicted": 30.0, "files_deleted": 0, "benefit_factor": 0.5}, 0.05),
        ("expire_snapshots", {"files_predicted": 30.0, "files_deleted": 10, "files_failed": 20}, 1.0),
        ("expire_snapshots", {"files_predicted": 30.0, "files_deleted": 0, "benefit_factor": 0.01}, 0.01),
        ("remove_orphans", {"files_predicted": 30.0, "orphans_removed": 3}, 1.0),
    ],
)
def test_what_is_saved_is_learned_too(operation: str, metrics: dict[str, float], factor: float) -> None:
    """As files that went, beside those that were expected to go; a run that saved nothing counts less, not as zero."""
    assert learned(_due(1.0, operation), [metrics], Experience()).benefit == pytest.approx(factor)


def test_a_prediction_is_corrected_and_kept() -> None:
    """Whatever was predicted once more, and came to pass, leaves both factors as they are."""
    work = Work(Operation.COMPACT, ())
    due = Due(work, 100.0, 0.5, "many files", files=20, per_file=4.0)  # 80 of the 100, the rest is rows
    found = calibrated(due, Factors(cost=3.0, benefit=0.5))
    assert (found.benefit, found.cost, found.files) == (60.0, 1.5, 10.0)
    as_said = {**predicted(found), "gb_hours": 1.5, "files_merged": 12, "files_written": 2}
    assert learned(due, [as_said, as_said], Experience()) == found.factors
    unsorted = Due(work, 1.0, 0.5, "unsorted", factors=Factors(benefit=0.2))
    assert learned(unsorted, [predicted(unsorted)], Experience()).benefit == 0.2
    orphans = Due(Work(Operation.REMOVE_ORPHANS, ()), 1.0, 0.5, "never scanned")
    assert predicted(orphans).keys() == {"gb_hours_predicted", "cost_factor"}


def test_what_a_pool_teaches() -> None:
    """Five runs on any tables tell one without runs what a pool takes: a fixed part, and so many times the model."""

    def saved(real: int, said: float, factor: float = 1.0) -> dict[str, float]:
        return {"files_deleted": real, "files_predicted": said, "benefit_factor": factor}

    compactions = [_ran(3 * (12.0 + n), n) for n in (1, 2, 3, 4, 5)]
    expiries = [saved(8, 2.0, factor=0.5), saved(0, 3.0), *[saved(60, 30.0)] * 3, {}, _ran(0.0, 1.0)]
    four = [(Operation.COMPACT, run) for run in compactions[:4]]
    assert experience(four) == {Operation.COMPACT: Experience()}
    others = [(Operation.EXPIRE_SNAPSHOTS, run) for run in expiries]
    pool = experience([*four, (Operation.COMPACT, compactions[4]), *others])
    assert pool[Operation.EXPIRE_SNAPSHOTS] == Experience(benefit=2.0)
    of_pool = pool[Operation.COMPACT]
    for modelled in (1.0, 4.0):
        assert learned(_due(modelled), [], of_pool).cost * modelled == pytest.approx(3 * (12 + modelled))
    wide = [_ran(6 * (12.0 + n), n) for n in (1, 5, 2)]  # of a table that takes twice as long as others
    assert learned(_due(4.0), wide, of_pool).cost * 4.0 == pytest.approx(6 * (12 + 4.0))
    assert learned(_due(4.0), wide[:1], of_pool) == learned(_due(4.0), [], of_pool)  # one may have been a cold start
