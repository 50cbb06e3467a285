"""Why partitions are rewritten: order that was lost, targets that fit their size; and what no rewrite mends."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, timedelta
from typing import Any

import pytest

from icewright.core.effective import Knobs
from icewright.core.operations import compact
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import Blocked, Due, Kernel, NotDue, RewriteDataFiles, Verdict
from icewright.core.table import PartitionFacts
from icewright.core.verdicts import thresholds
from icewright.testing import NOW, facts, knobs, metadata, partition, spec

REGIONS = metadata(specs=(spec(region="identity"),))
SORT = {"compact.strategy": "sort", "compact.sort_order": "id"}
PASSED = {"max-files-to-rewrite": "5", "compression-factor": "1.5", "var-length-contribution": "16"}
FITTING: Mapping[str, Any] = {"files": 4, "mb": 500}  # files of the right size


def judged(*partitions: PartitionFacts, by: Mapping[str, object], last: LastRun | None = None) -> Verdict:
    """The verdict by these settings."""
    chosen = knobs(by)
    return compact.evaluate(facts(*partitions, of=REGIONS, by=chosen), chosen, last, NOW)


def steps(verdict: Verdict) -> list[RewriteDataFiles]:
    """What a due verdict would do."""
    assert isinstance(verdict, Due)
    return [step for step in verdict.work.steps if isinstance(step, RewriteDataFiles)]


@pytest.mark.parametrize(
    ("settings", "fields", "due"),
    [
        (SORT, {"overlap": 0.51}, True),
        (SORT, {"overlap": 0.5}, False),
        (SORT, {"overlap": None}, False),
        ({**SORT, "compact.max_overlap": 0.9}, {"overlap": 0.51}, False),
        ({**SORT, "compact.max_overlap": 0}, {"overlap": 0.0}, False),
        (SORT, {"overlap": 1.0, "files": 1}, False),  # one target's worth becomes one file
    ],
)
def test_order_that_was_lost(settings: Mapping[str, object], fields: Mapping[str, Any], due: bool) -> None:
    """Files of the right size are sorted anew when too many pairs of them overlap, and only then."""
    unsorted, other = partition("eu", **{**FITTING, **fields}), partition("us", **FITTING, overlap=0.0)
    verdict = judged(unsorted, other, by=settings)
    assert isinstance(verdict, Due) is due
    if due:
        (step,) = steps(verdict)
        assert (step.where, step.files, step.options["rewrite-all"]) == ("`region` = 'eu'", 4, "true")
        assert (step.strategy, step.sort_order) == ("sort", "id")


def test_each_cause_has_its_call() -> None:
    """Small files, deletes and lost order are mended by calls of their own, and the reasons name all three."""
    small = partition("a")
    deleted = partition("b", **FITTING, position_delete_files=4, max_deletes_of_a_file=99)
    unsorted = partition("c", **FITTING, overlap=0.8)
    verdict = judged(small, deleted, unsorted, by=SORT)
    found = steps(verdict)
    assert [step.partitions for step in found] == [(p.key,) for p in (small, deleted, unsorted)]
    assert [step.by_deletes for step in found] == [False, True, False]
    assert isinstance(verdict, Due)
    assert "1 partition out of order: up to 80% of the pairs of files overlap" in verdict.why


@pytest.mark.parametrize(
    ("settings", "passed", "kernel"),
    [
        ({}, {"max-files-to-rewrite"}, Kernel.ARROW),
        (SORT, {"max-files-to-rewrite", "compression-factor"}, Kernel.SPARK),
        ({**SORT, "compact.strategy": "zorder"}, PASSED.keys(), Kernel.SPARK),
    ],
)
def test_options_that_are_passed_on(settings: Mapping[str, object], passed: AbstractSet[str], kernel: Kernel) -> None:
    """Iceberg gets the options that it takes with the strategy; those of its sorts are left to its own path."""
    verdict = judged(partition("a"), by={**settings, "compact.options": PASSED})
    (step,) = steps(verdict)
    assert {name: step.options[name] for name in PASSED if name in step.options} == {n: PASSED[n] for n in passed}
    assert step.kernel is kernel
    assert isinstance(verdict, Due)
    assert any("each call rewrites 5 of its files at most" in note for note in verdict.work.notes)


def test_an_order_that_nobody_says() -> None:
    """A strategy that needs an order is blocked when neither policy nor table has one."""
    assert isinstance(judged(partition(), by={"compact.strategy": "zorder"}), Blocked)


AUTO = {"compact.target_file_size_mb": "auto"}


@pytest.mark.parametrize(
    ("gb", "target_mb"), [(0.1, 128), (0.99, 128), (1, 256), (3.9, 256), (4, 512), (16, 1024), (500, 1024)]
)
def test_targets_by_size(gb: float, target_mb: int) -> None:
    """`auto` gives a partition a target by its own size, and keeps the shares of the target."""
    sizes = thresholds(knobs(AUTO)).of(int(gb * 1024 * MEGABYTE))
    assert sizes.target_bytes == target_mb * MEGABYTE
    assert sizes.min_bytes == pytest.approx(0.75 * sizes.target_bytes, abs=9)
    assert sizes.max_bytes == pytest.approx(1.8 * sizes.target_bytes, abs=9)


def test_a_call_has_one_target() -> None:
    """Partitions of different targets are rewritten by different calls."""
    found = steps(judged(partition("a"), partition("b", files=400, mb=5), partition("c", files=1), by=AUTO))
    assert [step.options["target-file-size-bytes"] for step in found] == [str(128 * MEGABYTE), str(256 * MEGABYTE)]


def test_a_call_has_not_too_many_bytes() -> None:
    """A call ends with the partition that fills it; a partition that is too large alone has a call of its own."""
    made = [partition(name, files=10, mb=mb) for name, mb in (("a", 4), ("b", 4), ("c", 90), ("d", 5), ("e", 5))]
    found = steps(judged(*made, by={"compact.max_call_size_mb": 100}))
    assert [[values for _, values in step.partitions] for step in found] == [
        [("a",), ("b",)],
        [("c",)],
        [("d",), ("e",)],
    ]


def rewritten(*, hours_ago: float, policy: str = "") -> LastRun:
    """A compaction that rewrote `eu`; the table has changed since."""
    done = NOW - timedelta(hours=hours_ago)
    committed, partitions = OperationState.COMMITTED, {(0, ("eu",)): done}
    return LastRun(Operation.COMPACT, done, committed, "elsewhere", policy=policy, rewritten=partitions)


@pytest.mark.parametrize(
    ("last", "due"),
    [
        (None, True),
        (rewritten(hours_ago=20), False),
        (rewritten(hours_ago=30), True),  # written since
        (rewritten(hours_ago=20, policy=knobs({}).fingerprint), False),
        (rewritten(hours_ago=20, policy="another"), True),
    ],
)
def test_what_a_rewrite_does_not_mend(last: LastRun | None, due: bool) -> None:
    """A partition that nobody has written to since it was rewritten would come out the same: it is left, and named."""
    verdict = judged(partition("eu"), partition("us", files=1), by={}, last=last)
    assert isinstance(verdict, Due) is due
    if not due:
        assert verdict == NotDue("no files eligible for compaction; previous rewrite had no effect: region=eu")


def test_deletes_come_without_a_write() -> None:
    """New deletes make a partition due again, though its data files are as the rewrite left them."""
    deleted = partition("eu", position_delete_files=4, max_deletes_of_a_file=99)
    assert isinstance(judged(deleted, by={}, last=rewritten(hours_ago=20)), Due)


def test_defaults_are_the_fixed_point_of_a_rewrite() -> None:
    """What a rewrite leaves, one file a partition, is not due."""
    assert isinstance(compact.evaluate(facts(partition("eu", files=1), of=REGIONS), Knobs(), None, NOW), NotDue)


EVOLVED = metadata(specs=(spec(region="identity"), spec(1, region="identity", ts="day")), default_spec_id=1)


@pytest.mark.parametrize(("wanted", "due", "others"), [("current", 0, 1), (1, 0, 1), (0, 1, 0)])
def test_files_are_brought_into_the_spec_that_is_asked_for(wanted: object, due: int, others: int) -> None:
    """All files of other specs, well sized or not, and those alone, by Spark; a second run finds none."""
    chosen = knobs({"compact.output_spec_id": wanted})
    both = [partition("eu", **FITTING), partition("eu", date(2026, 1, 1), **FITTING, spec_id=1)]
    table = facts(*both, of=EVOLVED, by=chosen)
    verdict = compact.evaluate(table, chosen, None, NOW)
    (step,) = steps(verdict)
    assert step.partitions == (both[due].key,)
    assert (step.kernel, step.options["rewrite-all"], step.options["output-spec-id"]) == ("spark", "true", str(others))
    assert isinstance(verdict, Due)
    assert verdict.why == "4 files of other partition specs than compact.output_spec_id"
    assert any("other partition specs may be rewritten too" in note for note in verdict.work.notes)
    mended = facts(both[others], of=EVOLVED, by=chosen)
    assert isinstance(compact.evaluate(mended, chosen, None, NOW), NotDue)


def test_an_unknown_output_spec_is_refused() -> None:
    """The verdict names those that the table has."""
    chosen = knobs({"compact.output_spec_id": 7})
    verdict = compact.evaluate(facts(partition("eu"), of=EVOLVED, by=chosen), chosen, None, NOW)
    assert verdict == Blocked("compact.output_spec_id: the table has the partition specs 0, 1")


def test_merges_stay_in_the_spec_that_is_asked_for() -> None:
    """Small files of an earlier spec that is asked for are merged by Arrow as those of the table's own are."""
    chosen = knobs({"compact.output_spec_id": 0})
    (step,) = steps(compact.evaluate(facts(partition("eu"), of=EVOLVED, by=chosen), chosen, None, NOW))
    assert (step.kernel, step.options["output-spec-id"]) == ("arrow", "0")
    assert "rewrite-all" not in step.options


def test_all_files_are_rewritten_once_after_each_write() -> None:
    """A partition of good files goes too, until it was rewritten by the same settings and is not written any more."""
    chosen = knobs({"compact.rewrite_all": True})
    verdict = judged(
        partition("eu", **FITTING), partition("us", **{**FITTING, "files": 1}), by={"compact.rewrite_all": True}
    )
    (step,) = steps(verdict)
    assert (step.where, step.files, step.options["rewrite-all"]) == (None, 5, "true")
    assert isinstance(verdict, Due)
    assert verdict.why == "compact.rewrite_all asks for all files of 2 partitions"
    done = {(0, (name,)): NOW - timedelta(hours=hours) for name, hours in (("eu", 1), ("us", 30))}
    last = LastRun(Operation.COMPACT, NOW, OperationState.COMMITTED, "x", policy=chosen.fingerprint, rewritten=done)
    (again,) = steps(
        judged(partition("eu", **FITTING), partition("us", **FITTING), by={"compact.rewrite_all": True}, last=last)
    )
    assert again.partitions == ((0, ("us",)),)
