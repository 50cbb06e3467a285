"""What runs really took corrects what the next is reckoned to take, whatever became of others in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.errors import CommitConflict, MetadataUnreadable
from icewright.core.policy import Operation
from icewright.core.runs import JobState, Outcome, committed, failed, skipped
from icewright.core.steps import Due
from icewright.core.table import TableRef
from icewright.flow.calibration import Calibration
from icewright.flow.evaluate import evaluate_and_record
from icewright.ports import AddSnapshot, StepRequest
from icewright.testing import REF
from tests.flow.bench import COMPACT, Bench

TAKEN = 0.01  # GB-hours, many times what is reckoned for so small a table


def _due(bench: Bench) -> Due:
    """A writer appended small files, and it is some hours later."""
    base = bench.catalogs["lake"].load(REF)
    snapshot = bench.replacement(base) | {"summary": {"operation": "append", "added-records": "10"}}
    bench.catalogs["lake"].commit(base, AddSnapshot(snapshot, "main"))
    bench.rot()
    bench.clock.advance(hours=2)
    evaluation = evaluate_and_record(bench.runtime(), REF, bench.clock.now())
    assert evaluation is not None
    found = evaluation.verdicts[Operation.COMPACT]
    assert isinstance(found, Due)
    return found


def _fails(request: StepRequest) -> Outcome:
    return failed(request.operation, "no space left on device")


def _loses(_assignment: StepRequest) -> Outcome:
    raise CommitConflict("a writer was first")


@pytest.fixture(autouse=True)
def _merge_whatever_it_costs(bench: Bench) -> None:
    """Let small tables be due whose runs are said to cost a lot."""
    bench.settings["value.min_return"] = 0


@pytest.fixture
def works(bench: Bench) -> Callable[[StepRequest], Outcome]:
    """The engine's work as ever, and what it took."""
    bench.settings["impact.planning"] = False
    bench.table()
    ordinary = bench.engine.function
    return lambda request: replace(ordinary(request), metrics={"gb_hours": TAKEN})


@pytest.mark.parametrize("then", [_fails, _loses])
def test_a_run_that_came_to_nothing_unlearns_nothing(
    bench: Bench, works: Callable[[StepRequest], Outcome], then: Callable[[StepRequest], Outcome]
) -> None:
    """A failure, or a commit lost to writers, makes the table no cheaper than it was known to be."""
    bench.engine.function = works
    for _ in range(6):
        _due(bench)
        bench.run(COMPACT, manual=False)
    known = _due(bench)
    assert known.cost == pytest.approx(TAKEN, rel=0.2)
    bench.engine.function = then
    bench.run(COMPACT, manual=False)
    again = _due(bench)
    assert (again.cost, again.factors.cost) == (known.cost, known.factors.cost)


def test_runs_by_hand_teach_like_others(bench: Bench, works: Callable[[StepRequest], Outcome]) -> None:
    """Two runs are enough to know what the table takes, one of them by hand."""
    bench.engine.function = works
    costs = []
    for turn in range(8):
        costs.append(_due(bench).cost)
        bench.run(COMPACT, manual=turn % 2 == 0)
    assert max(costs[:2]) < TAKEN / 10
    assert costs[2:] == pytest.approx([TAKEN] * 6, rel=0.1)


def test_a_commit_whose_reply_was_lost_unlearns_nothing(bench: Bench, works: Callable[[StepRequest], Outcome]) -> None:
    """Nobody knows what it took, and the factor stays."""
    bench.engine.function = works
    for _ in range(6):
        _due(bench)
        bench.run(COMPACT, manual=False)
    known = _due(bench)
    bench.engine.function = lambda request: committed(request.operation, "it landed", {})
    bench.run(COMPACT, manual=False)
    assert _due(bench).factors.cost == pytest.approx(known.factors.cost, rel=1e-5)


def test_a_run_that_saved_less_makes_the_next_worth_less(bench: Bench) -> None:
    """By the files that went, until a run removes as many as were expected; failures in between teach nothing."""
    bench.settings["impact.planning"] = False
    bench.table()
    first = _due(bench)
    little = {"files_merged": first.files / 2, "files_written": first.files / 4}
    bench.engine.function = lambda request: committed(request.operation, "half of it", little)
    bench.run(COMPACT, manual=False)
    less = _due(bench)
    assert (less.benefit, less.files) == pytest.approx((first.benefit / 2, first.files / 2), rel=1e-5)
    bench.engine.function = _fails
    bench.run(COMPACT, manual=False)
    assert _due(bench).benefit == less.benefit
    as_said = {"files_merged": less.files + 1, "files_written": 1}
    bench.engine.function = lambda request: committed(request.operation, "as was said", as_said)
    bench.run(COMPACT, manual=False)
    assert _due(bench).benefit == pytest.approx(less.benefit, rel=1e-5)


def test_work_that_came_to_nothing_has_cost_its_time(bench: Bench) -> None:
    """It counts against the day's budget; the job has failed all the same, and not in part."""
    bench.rot(bench.table())

    def fails(request: StepRequest) -> Outcome:
        lost = {"gb_hours": TAKEN, "duration_ms": 1000.0}
        request.on_partial_result(skipped(request.operation, "nothing was committed", metrics=lost))
        raise MetadataUnreadable("no space left on device")

    bench.engine.function = fails
    result = bench.run(COMPACT)
    assert (result.state, result.outcomes[0].metrics["gb_hours"]) == (JobState.FAILED, TAKEN)
    assert bench.store.planning.usage(bench.clock.now() - timedelta(hours=1)).spent_by_catalog == {"lake": TAKEN}


def test_a_table_without_runs_begins_with_what_others_taught(
    bench: Bench, works: Callable[[StepRequest], Outcome]
) -> None:
    """Once five runs on the pool tell the same, on however few tables; those of another pool tell nothing."""
    bench.engine.function = works
    refs = [bench.table(f"t{number}") for number in range(3)]
    new = refs.pop()
    calibration = Calibration(bench.store.runs, bench.clock, {"lake": "big", "other": "small"})

    def cost(ref: TableRef) -> float:
        bench.rot(ref)
        evaluation = evaluate_and_record(bench.runtime(calibration=calibration), ref, bench.clock.now())
        assert evaluation is not None
        found = evaluation.verdicts[Operation.COMPACT]
        assert isinstance(found, Due)
        return found.cost

    uncalibrated = cost(new)
    for ref in (refs * 3)[:5]:
        bench.rot(ref)
        bench.run(COMPACT, ref=ref)
        bench.clock.advance(hours=2)
        known = cost(new)
    assert known == pytest.approx(TAKEN, rel=0.01) != uncalibrated
    assert calibration("other") == {}
