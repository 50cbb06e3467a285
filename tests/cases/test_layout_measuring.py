"""Layouts measured on a branch of a sample: what the branch holds, that it goes, and what is decided by the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table import Table

from icewright.adapters.engines.service.layout_sample import LayoutSample, SampleBranch
from icewright.core.capacity import CatalogLimits, Limits, PoolLimits
from icewright.core.errors import CommitConflict, Refused
from icewright.core.integrity import CheckLevel
from icewright.core.layout import (
    MEASURED_ON,
    LayoutDecision,
    LayoutReport,
    LayoutVerdict,
    Measurement,
    RowLayout,
)
from icewright.core.runs import JobState
from icewright.core.steps import Due
from icewright.core.table import TableMetadata
from icewright.flow.evaluate import evaluate_table
from icewright.flow.layout import apply_layout, measure_layouts, predict_layouts
from icewright.flow.limits import CurrentLimits
from icewright.ports import MeasureRequest
from tests.cases.conftest import ground, workspace
from tests.cases.test_layouts import ROWS, rule, spread
from tests.cases.workspace import EXPIRE, NAME, Workspace, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]

WHOLE = 1 << 30
_NO_LIMITS = Limits()


def loaded(workspace: Workspace) -> TableMetadata:
    """The table as the catalog has it."""
    return workspace.app.runtime.catalog(ref(NAME)).load(ref(NAME))


def sampled(
    workspace: Workspace, limit: int = WHOLE, base: TableMetadata | None = None, job: str = "job"
) -> SampleBranch:
    """A branch of a sample of so many bytes at most."""
    runtime = workspace.app.runtime
    catalog = runtime.catalog(ref(NAME))
    return LayoutSample(runtime.files, workspace.clock, catalog, base or loaded(workspace), job).commit(limit)


@dataclass
class Measured:
    """Icewright's engine, but for Spark: it makes the branch, and is told what the filters read there."""

    workspace: Workspace
    share: float  # of the bytes, by each promising layout
    happens: Iterator[Callable[[], Any]]  # while it measures

    def measure_layouts(self, request: MeasureRequest) -> LayoutReport:
        """Make the branch of the sample, and measure the same by each layout."""
        sampled(self.workspace, request.sample_bytes, job=request.job_id)
        request.charge(min(0.25, request.max_gb_hours))
        next(self.happens, lambda: None)()
        report = request.report
        figures: dict[RowLayout | None, float] = {None: 1.0, **dict.fromkeys(report.promising, self.share)}
        trials = (
            replace(trial, measured=Measurement(round(figures[trial.layout] * report.most_bytes), 0.1))
            if trial.layout in figures
            else trial
            for trial in report.trials
        )
        return replace(report, trials=tuple(trials), measuring="all")

    def __getattr__(self, name: str) -> object:
        return getattr(self.workspace.app.runtime.engine, name)


def decided(
    workspace: Workspace,
    share: float,
    *happens: Callable[[], Any],
    dry_run: bool = False,
    limits: Limits = _NO_LIMITS,
) -> LayoutDecision:
    """What is decided where Spark reads this share of the bytes by each promising layout."""
    engine: Any = Measured(workspace, share, iter(happens))
    current = CurrentLimits(limits)
    runtime = replace(workspace.runtime({"layout.apply": True}), engine=engine, limits=current)
    return apply_layout(runtime, ref(NAME), ["customer = 'c017'"], 100, dry_run=dry_run)[1]


def branch(workspace: Workspace) -> list[str]:
    """The branch of the sample, where there is one."""
    return [one.name for one in loaded(workspace).refs if one.name == MEASURED_ON]


def paths(table: Table, snapshot_id: int) -> set[str]:
    """The files that PyIceberg plans for a snapshot."""
    return {task.file.file_path for task in table.scan(snapshot_id=snapshot_id).plan_files()}


def test_a_sample_is_a_branch_of_some_of_main_s_files(workspace: Workspace) -> None:
    """Main does not move, no data is written, the metadata has no fault, and PyIceberg reads the sample's rows."""
    table = spread(workspace)
    before, head = loaded(workspace), table.current_snapshot()
    assert head is not None
    data = paths(table, head.snapshot_id)
    made = sampled(workspace, sum(task.file.file_size_in_bytes for task in table.scan().plan_files()) // 2)
    table = table.refresh()
    after = loaded(workspace)
    assert after.current_snapshot_id == before.current_snapshot_id
    assert set(before.refs) < set(after.refs)
    assert 0 < made.files < len(data)
    assert len(paths(table, made.snapshot_id)) == made.files
    assert paths(table, made.snapshot_id) < data
    assert made.records == ROWS * made.files // len(data)
    assert table.scan(snapshot_id=made.snapshot_id).to_arrow().num_rows == made.records
    assert made.share == pytest.approx(made.files / len(data), rel=0.1)
    report = workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS)
    assert (report.faults, report.snapshots) == ((), len(before.snapshots) + 1)


def test_what_no_sample_can_be_made_of_is_refused(workspace: Workspace) -> None:
    """Where files larger than the sample have all bytes, or most, there is no branch, and the setting is named."""
    table = spread(workspace)
    with pytest.raises(Refused, match=r"as 0 of its 8 data files, .*layout\.sample_mb"):
        sampled(workspace, 100)
    rows, largest = table.scan().to_arrow(), max(task.file.file_size_in_bytes for task in table.scan().plan_files())
    with table.transaction() as change:
        change.remove_properties("write.target-file-size-bytes")
    for _ in range(4):
        table.append(rows)
    with pytest.raises(Refused, match=r"as 8 of its 12 data files, with"):
        sampled(workspace, largest)
    assert branch(workspace) == []


def test_a_sample_of_a_table_that_changes_is_a_conflict(workspace: Workspace) -> None:
    """The branch is made of exactly the state that was read, or not at all, and no file of it is left."""
    table = spread(workspace)
    base = loaded(workspace)
    table.append(table.scan().to_arrow().slice(0, 1))
    with pytest.raises(CommitConflict):
        sampled(workspace, base=base)
    assert branch(workspace) == []


@pytest.mark.parametrize(("share", "verdict"), [(0.2, LayoutVerdict.APPLY), (0.95, LayoutVerdict.KEEP)])
def test_what_spark_measures_decides(workspace: Workspace, share: float, verdict: LayoutVerdict) -> None:
    """A layout that was predicted to pay is applied if it reads less on the branch, which goes in any case."""
    spread(workspace)
    predicted = decided(workspace, share, dry_run=True)
    assert (predicted.verdict, rule(workspace)) == (LayoutVerdict.MEASURE, {})
    assert "Spark would try it first" in predicted.reason
    assert len(loaded(workspace).snapshots) == 8, "a dry run makes nothing"
    found = decided(workspace, share)
    assert found.verdict is verdict
    assert ("Spark read 100% of a sample, 20% by" in found.reason) is (verdict is LayoutVerdict.APPLY)
    assert ("no other layout is clearly better, as Spark measured" in found.reason) is (verdict is LayoutVerdict.KEEP)
    assert bool(rule(workspace)) is (verdict is LayoutVerdict.APPLY)
    assert (branch(workspace), len(loaded(workspace).snapshots)) == ([], 9)
    if verdict is LayoutVerdict.KEEP:
        again = decided(workspace, 0.2)
        assert (again.verdict, "tries again from" in again.reason) == (LayoutVerdict.KEEP, True)
        assert len(loaded(workspace).snapshots) == 9, "nothing is written day after day"
    (job,) = workspace.app.runtime.store.jobs.list(ref(NAME))
    assert (job.state, job.work, job.summary) == (JobState.SUCCEEDED, "layouts", "measured all")
    assert (workspace.app.runtime.store.jobs.result(job.job_id) or {})["trials"][0]["measured"]["seconds"] == 0.1
    workspace.clock.time += timedelta(days=8)
    if verdict is LayoutVerdict.KEEP:
        assert decided(workspace, 0.2).verdict is LayoutVerdict.APPLY, "filters may have changed"


def test_the_branch_goes_whatever_happens(workspace: Workspace) -> None:
    """An error leaves none; a crash leaves one, which the next run drops, as an expiry does after a day."""
    spread(workspace)

    class Killed(BaseException):
        """A kill is no error."""

    def fail() -> None:
        raise Refused("no executor answers")

    with pytest.raises(Refused, match="no executor answers"):
        decided(workspace, 0.2, fail)
    assert (branch(workspace), rule(workspace)) == ([], {})
    left = sampled(workspace, job="of a process that was killed")
    assert branch(workspace) == [MEASURED_ON]
    workspace.clock.time = left.table.by_id[left.snapshot_id].timestamp + timedelta(days=2)
    verdict = evaluate_table(workspace.app.runtime, ref(NAME), workspace.clock.now()).verdicts[EXPIRE]
    assert isinstance(verdict, Due)
    assert MEASURED_ON in str(verdict.work.steps)
    assert decided(workspace, 0.2).verdict is LayoutVerdict.APPLY
    assert branch(workspace) == []


def test_a_writer_meanwhile_is_no_obstacle(workspace: Workspace) -> None:
    """A lost commit of the branch is tried again on the new state; commits during the measuring stay on main."""
    table = spread(workspace)
    row = table.scan().to_arrow().slice(0, 1)

    def lose() -> None:
        raise CommitConflict("a writer was first")

    assert decided(workspace, 0.2, lose, lambda: table.refresh().append(row)).verdict is LayoutVerdict.APPLY
    assert branch(workspace) == []
    assert table.refresh().scan().to_arrow().num_rows == ROWS + 1


def test_another_s_branch_of_this_name_stays(workspace: Workspace) -> None:
    """With a commit of its own it is somebody's: nothing is measured, and nothing is applied."""
    table = spread(workspace)
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, MEASURED_ON).commit()
    table.refresh().append(table.scan().to_arrow().slice(0, 1), branch=MEASURED_ON)
    with pytest.raises(Refused, match="this one is not Icewright's"):
        decided(workspace, 0.2)
    assert (branch(workspace), rule(workspace)) == ([MEASURED_ON], {})


def test_measuring_counts_in_the_budgets_of_the_day(workspace: Workspace) -> None:
    """No more is spent than pool and catalog have left, where nothing is left nothing runs, and what fails counts."""
    spread(workspace)

    def fail() -> None:
        raise Refused("no executor answers")

    def decide(limits: Limits, *happens: Callable[[], Any]) -> LayoutDecision:
        return decided(workspace, 0.95, *happens, limits=limits)

    limits = Limits(pools={"default": PoolLimits(1, 0.3)})
    with pytest.raises(Refused, match="no executor answers"):
        decide(limits, fail)
    with pytest.raises(Refused, match=r"catalog lake has used up its 0\.25 GB-hours today"):
        decide(Limits(catalogs={"lake": CatalogLimits(gb_hours_per_day=0.25)}))
    assert len(loaded(workspace).snapshots) == 9, "nothing is made in vain"
    assert decide(limits).verdict is LayoutVerdict.KEEP
    midnight = workspace.clock.now().replace(hour=0, minute=0, second=0)
    assert workspace.app.runtime.store.planning.usage(midnight).spent_by_pool == {"default": pytest.approx(0.3)}
    with pytest.raises(Refused, match=r"pool default has used up its 0\.3 GB-hours today"):
        measure_layouts(
            replace(workspace.runtime(), limits=CurrentLimits(limits)),
            predict_layouts(workspace.app.runtime, ref(NAME), ["customer = 'c017'"]),
            ["customer = 'c017'"],
        )
