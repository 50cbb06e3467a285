"""Order: sorted and z-ordered tables come to rest sorted, lose their order by appends, and are not sorted in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from icewright.core.errors import Refused
from icewright.core.integrity import CheckLevel
from icewright.core.layout import LayoutDecision, LayoutReport, LayoutTrial, LayoutVerdict
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due, NotDue
from icewright.flow.detect import detect
from icewright.flow.layout import apply_layout, measure_layouts, predict_layouts
from icewright.ports.views import JobQuery
from icewright.testing import FixedClock
from tests.integration.bench import Bench
from tests.integration.compacting import at_rest, compacted
from tests.integration.tables import backdate_all, create, insert

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

SMALL: Mapping[str, object] = {
    "compact.min_input_files": 2,
    "compact.hot_partitions": "include",
    "compact.target_file_size_mb": 0.05,
}
BY_ID = {**SMALL, "compact.strategy": "sort", "compact.sort_order": "id"}


def fill(bench: Bench, quoted: str, rows: int, *, files: int, part: str = "'a'") -> None:
    """Rows in no order, spread over so many files, each of which holds about all there is."""
    bench.sql(
        f"INSERT INTO {quoted} SELECT /*+ REPARTITION({files}) */ id, cast(id * 7919 % 1000 AS INT), "  # noqa: S608 - quoted
        f"concat('common-', sha2(cast(id AS STRING), 256)), {part} FROM range({rows})"
    )


def made(bench: Bench, name: str, properties: Mapping[str, str] | None = None) -> str:
    """A table with a column to sort by, one to z-order by, and texts that fill files."""
    spread = {"write.distribution-mode": "none", "write.spark.fanout.enabled": "true", **(properties or {})}
    return create(bench, name, "id bigint, x int, said string, part string", "part", spread)


def overlap(bench: Bench, name: str, knobs: Mapping[str, object]) -> float | None:
    """Of the only partition."""
    (one,) = bench.evaluate(name, knobs).facts.partitions
    return one.overlap


@pytest.mark.parametrize(
    ("strategy", "order", "sorted_overlap"),
    [("sort", "id", 0.1), ("sort", "x DESC, id", 0.1), ("zorder", "id, x", 0.5)],
)
def test_order_is_made_and_kept(
    strategy: str, order: str, sorted_overlap: float, bench: Bench, new_name: Callable[[str], str]
) -> None:
    """Files of the right size that overlap are sorted; then nothing is due, until appends have undone the order."""
    name = new_name("order")
    quoted = made(bench, name)
    fill(bench, quoted, 6000, files=8)
    backdate_all(bench, name, 50, 40)
    knobs = {**SMALL, "compact.strategy": strategy, "compact.sort_order": order}
    assert (overlap(bench, name, knobs) or 0) > 0.9
    verdict = bench.evaluate(name, knobs).verdicts[Operation.COMPACT]
    assert isinstance(verdict, Due)
    assert "out of order" in verdict.why
    compacted(bench, name, knobs)
    assert (overlap(bench, name, knobs) or 0) <= sorted_overlap
    at_rest(bench, name, knobs)
    fill(bench, quoted, 6000, files=8)
    assert isinstance(bench.evaluate(name, knobs).verdicts[Operation.COMPACT], Due)


def test_the_table_s_own_order(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Without `compact.sort_order` a table is sorted by its own order."""
    name = new_name("own")
    quoted = made(bench, name)
    fill(bench, quoted, 6000, files=8)
    bench.sql(f"ALTER TABLE {quoted} WRITE LOCALLY ORDERED BY x, id")
    backdate_all(bench, name, 50, 40)
    knobs = {**SMALL, "compact.strategy": "sort"}
    compacted(bench, name, knobs)
    assert (overlap(bench, name, knobs) or 0) <= 0.1
    at_rest(bench, name, knobs)


def test_sorting_in_vain_is_done_once(bench: Bench, new_name: Callable[[str], str]) -> None:
    """A partition whose bounds never tell its files apart is sorted once, then named and left until it is written."""
    name = new_name("vain")
    quoted = made(bench, name, {"write.metadata.metrics.column.said": "truncate(3)"})
    fill(bench, quoted, 6000, files=8)
    backdate_all(bench, name, 50, 40)
    knobs = {**SMALL, "compact.strategy": "sort", "compact.sort_order": "said"}
    compacted(bench, name, knobs)
    assert overlap(bench, name, knobs) == 1.0
    insert(bench, quoted, "(1, 1, 'other', 'b')")
    found = bench.evaluate(name, knobs).verdicts[Operation.COMPACT]
    assert isinstance(found, NotDue)
    assert found.reason == "no files eligible for compaction; previous rewrite had no effect: part=a"
    fill(bench, quoted, 100, files=3)
    assert isinstance(bench.evaluate(name, knobs).verdicts[Operation.COMPACT], Due)


def test_targets_fit_partitions(bench: Bench, new_name: Callable[[str], str]) -> None:
    """With `auto` small partitions become one file each, and the table comes to rest."""
    name = new_name("auto")
    quoted = made(bench, name)
    fill(bench, quoted, 2000, files=4, part="array('a', 'b')[id % 2]")
    backdate_all(bench, name, 50, 40)
    knobs = {**SMALL, "compact.target_file_size_mb": "auto"}
    done = compacted(bench, name, knobs)
    assert done.outcome.metrics["files_written"] == 2
    assert sorted(change.partition for change in done.outcome.partitions) == ["part=a", "part=b"]
    assert all(change.files_in == 4 and change.files_out == 1 for change in done.outcome.partitions)
    at_rest(bench, name, knobs)


@pytest.mark.cases(93)
def test_sorted_small_files_are_merged_in_order(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Small files of a sorted table are merged as always, and the job tells what it cost and what was predicted."""
    name = new_name("merged")
    quoted = made(bench, name)
    for _ in range(3):
        fill(bench, quoted, 50, files=1)
    backdate_all(bench, name, 50, 40)
    done = compacted(bench, name, BY_ID).outcome
    assert done.state is OperationState.COMMITTED
    whole = 2 * done.metrics["duration_ms"] / 3_600_000  # of the JVM's 2 GB; Spark works for a part of the time
    assert whole / 10 < done.metrics["gb_hours"] < whole * 1.01
    assert 0 < done.metrics["gb_hours_used"] < 2 * done.metrics["gb_hours"]
    assert 0 < done.metrics["gb_hours_driver"] <= done.metrics["gb_hours"]
    assert done.metrics["gb_hours_predicted"] > 0
    again = bench.evaluate(name, BY_ID).verdicts[Operation.COMPACT]
    assert isinstance(again, NotDue)


def measured(report: LayoutReport) -> Sequence[LayoutTrial]:
    """The trials that Spark ran, with what it read."""
    assert report.measured is not None
    return report.measured.trials


def test_an_applied_layout_is_written_watched_and_taken_back(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Spark reads a quarter on a branch, and less by Bloom filters; compaction writes it, and other queries end it."""
    name = new_name("advised")
    properties = {"write.target-file-size-bytes": "60000", "format-version": "3", "write.delete.mode": "merge-on-read"}
    properties["write.parquet.dict-encoding-enabled.column.x"] = "false"  # a person's: no layout has other ones
    quoted = made(bench, name, properties)
    fill(bench, quoted, 6000, files=8)
    bench.sql(f"DELETE FROM {quoted} WHERE id < 3")  # noqa: S608 - quoted
    backdate_all(bench, name, 50, 40)

    def decided(filters: str, days: float = 0, hours: float = 0.5) -> LayoutDecision:
        """What is done about the layout after so many days, with so many GB-hours."""
        runtime = bench.with_knobs({"layout.apply": True, "layout.measure_gb_hours": hours})
        later = replace(runtime, clock=FixedClock(datetime.now(UTC) + timedelta(days=days)))
        return apply_layout(later, bench.ref(name), [filters], 50)[1]

    detect(bench.runtime, ["lake"])
    sums = "count(*), sum(hash(id, x)), sum(hash(id, _row_id))"
    rows = bench.sql(f"SELECT {sums} FROM {quoted}")  # noqa: S608 - quoted
    with pytest.raises(Refused, match=r"no layout was measured, .*layout.measure_gb_hours is 0$"):
        decided("x = 17", hours=0)
    before, first = bench.metadata(name), decided("x = 17")
    assert first.verdict is LayoutVerdict.APPLY
    assert "Spark read 100% of a sample, 25% by sort by x" in first.reason
    (job, *_) = bench.runtime.store.jobs.list(bench.ref(name))
    as_it_is, by_x = (trial["measured"] for trial in (bench.runtime.store.jobs.result(job.job_id) or {})["trials"])
    (item,) = bench.runtime.store.views.list_jobs(JobQuery(job_id=job.job_id), None, None, 1).items
    assert 0 < item.gb_hours < 0.5
    assert as_it_is["bytes_read"] > 3 * by_x["bytes_read"] > 0 < by_x["seconds"]
    after = bench.metadata(name)
    assert (after.refs, after.current_snapshot_id) == (before.refs, before.current_snapshot_id)
    assert bench.runtime.engine.check(bench.ref(name), CheckLevel.ENTRIES).faults == ()
    written = [s for s in after.snapshots if s.snapshot_id not in before.by_id]
    assert [(s.operation, s.summary["total-records"]) for s in written] == [("delete", "6000"), ("replace", "5997")]
    versions = (f"SELECT {sums} FROM {quoted} VERSION AS OF {s.snapshot_id}" for s in written)  # noqa: S608 - quoted
    assert list(map(bench.sql, versions)) == [rows, rows]
    either = (f"x = 17 or said = 'common-{sha256(b'543').hexdigest()}'",)  # neither order of rows serves both
    report = measure_layouts(bench.runtime, predict_layouts(bench.runtime, bench.ref(name), either), either)
    assert [(str(trial.layout), round(trial.bytes_read / report.table_bytes, 2)) for trial in measured(report)] == [
        ("None", 1.0),
        ("z-order by x, said", 0.75),
        ("z-order by x, said, Bloom filters of x, said", 0.5),
        ("z-order by x, said, dictionaries of said", 0.75),  # no dictionary of texts that never repeat pays
    ]
    *_, plain, with_blooms = (s for s in bench.metadata(name).snapshots if s.operation == "replace")
    assert plain.parent_id == with_blooms.parent_id, "each is written from the sample, into as many files"
    assert "no compaction" in decided("x = 17", 8).reason
    compacted(bench, name, SMALL)
    watched = decided("x = 17", 6)
    assert (watched.verdict, "judged from" in watched.reason) == (LayoutVerdict.KEEP, True)
    helped = decided("x = 17", 8)
    assert (helped.verdict, "no other layout is clearly better" in helped.reason) == (LayoutVerdict.KEEP, True), helped
    assert float(helped.reason.split("read ")[1].split("%")[0]) < 25
    other = decided("said > 'a'", 8)
    assert (other.verdict, "does not help" in other.reason) == (LayoutVerdict.TAKE_BACK, True), other
    at_rest(bench, name, SMALL)
    assert decided("x = 17", 9).verdict is LayoutVerdict.KEEP
