"""Compaction: when it is due, why not, and what it asks the engine for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from icewright.core import rewriting
from icewright.core.effective import Knobs
from icewright.core.errors import ConfigError
from icewright.core.operations import compact
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import Blocked, Due, Kernel, NotDue, RewriteDataFiles, Verdict
from icewright.core.table import PartitionFacts, TableFacts
from icewright.testing import NOW, facts, knobs, metadata, partition, spec
from icewright.testing.builders import SCHEMA

REGIONS = metadata(specs=(spec(region="identity"),))


def _verdict(table: TableFacts, found: Knobs | None = None, last: LastRun | None = None) -> Verdict:
    return compact.evaluate(table, found or Knobs(), last, NOW)


def _due(table: TableFacts, found: Knobs | None = None) -> tuple[Due, list[RewriteDataFiles]]:
    verdict = _verdict(table, found)
    assert isinstance(verdict, Due)
    assert verdict.work.operation is Operation.COMPACT
    steps = [step for step in verdict.work.steps if isinstance(step, RewriteDataFiles)]
    assert len(steps) == len(verdict.work.steps) > 0
    return verdict, steps


def _last(state: OperationState, location: str = metadata().metadata_location) -> LastRun:
    return LastRun(Operation.COMPACT, NOW - timedelta(days=1), state, location)


def test_many_small_files_are_due() -> None:
    """Ten files of 1 MB become one: the whole unpartitioned table, with its benefit and cost."""
    verdict, (step,) = _due(facts(partition(files=10)))
    assert (step.where, step.files, step.bytes, step.strategy, step.by_deletes) == (
        None,
        10,
        10 * MEGABYTE,
        "binpack",
        False,
    )
    assert verdict.benefit == pytest.approx(36)
    assert verdict.cost > 0
    assert verdict.why == "10 files of 1.0 MB on average in 1 partition, target 512.0 MB"


@pytest.mark.parametrize(("codec", "kernel"), [("lz4", Kernel.SPARK), ("LZ4_RAW", Kernel.ARROW)])
def test_arrow_writes_no_framed_lz4(codec: str, kernel: Kernel) -> None:
    """Parquet's LZ4 is framed as Hadoop does it; what Arrow calls so is LZ4_RAW, which old readers do not know."""
    table = facts(partition(files=10), of=metadata(properties={"write.parquet.compression-codec": codec}))
    assert [step.kernel for step in _due(table)[1]] == [kernel]


@pytest.mark.parametrize(
    ("files", "mb", "due"),
    [
        (4, 1, False),
        (5, 1, True),
        (2, 300, False),
        (3, 200, True),  # become one of 600 MB
        (3, 220, False),  # would become two of 330 MB: not 2.4 times as large
        (4, 140, True),  # more than one target's worth, though fewer than five
        (3, 150, False),
        (100, 512, False),
        (100, 300, False),  # the average is above half of the target
        (1, 5000, False),
        (10, 383, False),
        (0, 0, False),
    ],
)
def test_sizes(files: int, mb: float, due: bool) -> None:
    """Enough candidates, or more than one target's worth, an average below half of the target, and a gain."""
    assert isinstance(_verdict(facts(partition(files=files, mb=mb))), Due) is due


@pytest.mark.parametrize(
    ("table", "settings", "reason"),
    [
        (facts(), {}, "no files eligible for compaction"),
        (facts(partition(files=4)), {}, "no files eligible for compaction"),
        (facts(partition(files=5), of=metadata([])), {}, "no current snapshot"),
        (
            facts(partition(deletion_vectors=1)),
            {"compact.apply_deletes": False},
            "compaction skipped: delete manifests present and apply_deletes is disabled",
        ),
        (
            facts(partition(dangling_equality_deletes=1)),
            {"compact.apply_deletes": False},
            "compaction skipped: delete manifests present and apply_deletes is disabled",
        ),
    ],
)
@pytest.mark.cases(93)
def test_reasons_word_for_word(table: TableFacts, settings: Mapping[str, object], reason: str) -> None:
    """Why nothing is compacted, in the specification's words."""
    assert _verdict(table, knobs(settings)) == NotDue(reason)


def test_without_deletes_apply_deletes_does_not_matter() -> None:
    """A table without delete files is compacted whatever the knob says."""
    _due(facts(partition()), knobs({"compact.apply_deletes": False}))


@pytest.mark.parametrize("state", [OperationState.COMMITTED, OperationState.SKIPPED])
@pytest.mark.cases(85, 86)
def test_own_commit_is_no_cause(state: OperationState) -> None:
    """As long as the table is as the last run left it, there is nothing more to gain."""
    verdict = _verdict(facts(partition()), last=_last(state))
    assert isinstance(verdict, NotDue)
    assert verdict.reason.startswith("no files eligible for compaction")
    _due(facts(partition()))
    assert isinstance(_verdict(facts(partition()), last=_last(state, "elsewhere")), Due)


@pytest.mark.parametrize("state", [OperationState.FAILED, OperationState.DEFERRED])
def test_a_run_that_did_nothing_is_tried_again(state: OperationState) -> None:
    """A run that failed or gave way left the work undone: the table is still due, though nothing has changed."""
    assert isinstance(_verdict(facts(partition()), last=_last(state)), Due)


@pytest.mark.parametrize(
    ("one", "settings", "due"),
    [
        (partition(files=1, mb=512, position_delete_files=1, deleted_rows=300), {}, True),
        (partition(files=1, mb=512, position_delete_files=1, deleted_rows=299), {}, False),
        (partition(files=1, mb=512, deletion_vectors=1, max_delete_ratio_of_a_file=0.3), {}, True),
        (partition(files=1, mb=512, equality_delete_files=10, max_deletes_of_a_file=10), {}, True),
        (partition(files=1, mb=512, equality_delete_files=10, max_deletes_of_a_file=9), {}, False),
        (partition(files=1, mb=512, dangling_position_deletes=9), {}, False),
        (partition(files=1, mb=512, deletion_vectors=1), {"compact.delete_ratio_threshold": 0}, True),
        (partition(files=1, mb=512), {"preset": "compliance"}, False),
        (partition(files=1, mb=512, equality_delete_files=1), {"preset": "compliance"}, True),
    ],
)
def test_deletes(one: PartitionFacts, settings: Mapping[str, object], due: bool) -> None:
    """Many delete files on one data file, or many rows deleted, make a partition due whatever its files' sizes."""
    assert isinstance(_verdict(facts(one), knobs(settings)), Due) is due


def test_a_partition_with_deletes_is_rewritten_whole() -> None:
    """By deletes all files count, and Spark is told to take every file that has a delete."""
    one = partition("eu", files=2, mb=512, position_delete_files=3, deleted_rows=1000)
    verdict, (step,) = _due(facts(one, partition("us", files=1), of=REGIONS))
    assert (step.by_deletes, step.files, step.bytes) == (True, 2, 1024 * MEGABYTE)
    assert step.options["delete-file-threshold"] == "1"
    assert "delete-ratio-threshold" not in step.options
    assert verdict.why == "3 delete files for 50% of the rows in 1 partition"
    assert verdict.benefit == pytest.approx(3 * 4 + 512)


def test_only_partitions_that_need_it() -> None:
    """The filter names the partitions by size and by deletes, each in a step of its own; healthy ones are left."""
    table = facts(
        partition("eu"),
        partition("us", files=1),
        partition("asia", files=1, mb=512, deletion_vectors=1, deleted_rows=500),
        of=REGIONS,
    )
    verdict, steps = _due(table)
    assert [(s.where, s.partitions, s.by_deletes) for s in steps] == [
        ("`region` = 'eu'", ((0, ("eu",)),), False),
        ("`region` = 'asia'", ((0, ("asia",)),), True),
    ]
    assert verdict.why.count("in 1 partition") == 2


def test_all_partitions_need_no_filter() -> None:
    """When every partition is to be rewritten for one cause, nothing has to be said."""
    _, (step,) = _due(facts(partition("eu"), partition("us"), of=REGIONS))
    assert step.where is None
    assert len(step.partitions) == 2


def test_what_cannot_be_said_widens() -> None:
    """A partition that no filter can name makes the step the whole table's, and the verdict says so."""
    verdict, (step,) = _due(facts(partition(b"\x00"), partition("us", files=1), of=REGIONS))
    assert step.where is None
    assert "no filter says 1 partition: the whole table is rewritten as due" in verdict.work.notes


def test_many_partitions_are_parted_into_steps() -> None:
    """No filter names more partitions than Spark plans well, and none is lost."""
    made = [partition(f"p{i}") for i in range(1101)]
    _, steps = _due(facts(*made, partition("healthy", files=1), of=REGIONS))
    assert [len(step.partitions) for step in steps] == [500, 500, 101]
    assert {key for step in steps for key in step.partitions} == {p.key for p in made}
    (whole,) = _due(facts(*made, of=REGIONS))[1]
    assert whole.where is None


def test_a_policy_s_filter_is_kept_apart() -> None:
    """Free text from a policy travels beside the partitions' filter, so that it is checked before it is used."""
    text = "id > 5 or id < 0"
    _, (step,) = _due(facts(partition("eu"), partition("us", files=1), of=REGIONS), knobs({"compact.where": text}))
    assert (step.where, step.user_where) == ("`region` = 'eu'", text)
    _, (alone,) = _due(facts(partition()), knobs({"compact.where": text}))
    assert (alone.where, alone.user_where) == (None, text)
    assert _due(facts(partition()))[1][0].user_where is None


@pytest.mark.parametrize(
    ("named", "table_order", "strategy", "order"),
    [
        ({}, "id ASC NULLS LAST", "binpack", None),
        ({"compact.strategy": "sort"}, "id ASC NULLS LAST", "sort", "id ASC NULLS LAST"),
        ({"compact.strategy": "sort", "compact.sort_order": "ts"}, "id ASC NULLS LAST", "sort", "ts"),
        ({"compact.strategy": "zorder", "compact.sort_order": "id, ts"}, None, "sort", "zorder(id, ts)"),
        ({"compact.strategy": "zorder", "compact.sort_order": "ZOrder(id, ts)"}, None, "sort", "ZOrder(id, ts)"),
    ],
)
def test_strategies(named: Mapping[str, object], table_order: str | None, strategy: str, order: str | None) -> None:
    """Sorting takes the policy's order, else the table's; z-order is a sort order to Spark."""
    _, (step,) = _due(facts(partition(), of=metadata(sort_order=table_order)), knobs(named))
    assert (step.strategy, step.sort_order) == (strategy, order)


@pytest.mark.parametrize(
    ("named", "columns"),
    [(None, []), ("region, id", ["id", "region"]), ("id,nobody,ratio,flag", ["id"])],
)
def test_bloom_filters_of_a_policy(named: str | None, columns: list[str]) -> None:
    """Columns that the table has and that filters can tell apart; of another one the whole step would go to Spark."""
    fields = [
        *SCHEMA["fields"],
        *({"id": n, "name": name, "type": kind, "required": False} for n, (name, kind) in enumerate(
            [("ratio", "double"), ("flag", "boolean"), ("inner", {"type": "struct", "fields": []})], 7
        )),
    ]  # fmt: skip
    table = facts(partition(), of=metadata(schema={**SCHEMA, "fields": fields}))
    _, (step,) = _due(table, knobs({"compact.bloom_filters": named}))
    assert step.properties == {f"write.parquet.bloom-filter-enabled.column.{name}": "true" for name in columns}
    size = {"write.parquet.dict-size-bytes": "16777216"} if columns else {}
    _, (step,) = _due(table, knobs({"compact.dictionaries": named}))
    assert step.properties == {f"write.parquet.dict-encoding-enabled.column.{name}": "true" for name in columns} | size


@pytest.mark.parametrize(("said", "written"), [("1048576", "16777216"), ("33554432", "33554432"), ("many", "16777216")])
def test_dictionaries_of_a_policy_are_no_smaller_than_the_table_s(said: str, written: str) -> None:
    """What the table's own property allows stays allowed."""
    table = facts(partition(), of=metadata(properties={"write.parquet.dict-size-bytes": said}))
    _, (step,) = _due(table, knobs({"compact.dictionaries": "id"}))
    assert step.properties["write.parquet.dict-size-bytes"] == written


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_sorting_by_nothing_is_blocked(strategy: str) -> None:
    """Somebody has to say by what."""
    verdict = _verdict(facts(partition()), knobs({"compact.strategy": strategy}))
    assert verdict == Blocked(f"strategy {strategy} needs compact.sort_order, or a sort order on the table")


@pytest.mark.parametrize("order", ["gone, id", "zorder(id, gone)"])
def test_sorting_by_a_column_that_went_is_blocked(order: str) -> None:
    """Spark would fail at it each time."""
    verdict = _verdict(facts(partition()), knobs({"compact.strategy": "sort", "compact.sort_order": order}))
    assert verdict == Blocked("compact.sort_order: the table has no column gone")


ALWAYS: Mapping[str, Any] = {"compact.partial_progress_from_mb": 0}


@pytest.mark.parametrize(
    ("named", "option", "value"),
    [
        ({}, "target-file-size-bytes", str(512 * MEGABYTE)),
        ({}, "min-file-size-bytes", str(384 * MEGABYTE)),
        ({}, "max-file-size-bytes", str(int(512 * MEGABYTE * 1.8))),
        ({"compact.min_input_files": 3}, "min-input-files", "3"),
        ({"compact.max_file_group_size_mb": 100}, "max-file-group-size-bytes", str(100 * MEGABYTE)),
        ({"compact.max_concurrent_file_group_rewrites": 2}, "max-concurrent-file-group-rewrites", "2"),
        ({"compact.remove_dangling_deletes": False}, "remove-dangling-deletes", "false"),
        ({**ALWAYS}, "partial-progress.enabled", "true"),
        ({}, "partial-progress.enabled", "false"),  # ten megabytes
        ({"compact.partial_progress_from_mb": 10}, "partial-progress.enabled", "true"),
        ({**ALWAYS, "compact.max_commits": 4}, "partial-progress.max-commits", "4"),
        ({**ALWAYS, "compact.max_failed_commits": 0}, "partial-progress.max-failed-commits", "0"),
        ({**ALWAYS, "compact.partial_progress": False}, "partial-progress.max-commits", None),
        ({"compact.delete_ratio_threshold": 0.1}, "delete-ratio-threshold", "0.1"),
        ({"compact.delete_ratio_threshold": 0}, "delete-ratio-threshold", None),
    ],
)
def test_every_knob_reaches_spark(named: Mapping[str, Any], option: str, value: str | None) -> None:
    """Options are those of `rewrite_data_files`, as text."""
    found = knobs(named)
    _, (step,) = _due(facts(partition(), by=found), found)
    assert step.options.get(option) == value


@pytest.mark.cases(20, 33, 137, 144)
@pytest.mark.parametrize(("keys", "positions"), [(0, 0), (1, 0), (0, 1)])
def test_deletes_and_the_starting_sequence_number(keys: int, positions: int) -> None:
    """Outputs take a new sequence number, whatever deletes are about: late ones conflict, and applied ones go."""
    with_deletes = partition("us", files=1, equality_delete_files=keys, position_delete_files=positions)
    _, (step,) = _due(facts(partition("eu"), with_deletes, of=REGIONS))
    assert step.options["use-starting-sequence-number"] == "false"
    assert step.options["remove-dangling-deletes"] == str(keys + positions > 0).lower()


@pytest.mark.parametrize("value", [10.0**n for n in range(15)])
@pytest.mark.cases(89)
def test_options_are_longs(value: float) -> None:
    """Whatever group size the knob takes is a number that Spark can read."""
    try:
        found = knobs({rewriting.MAX_GROUP_SIZE.name: value})
    except ConfigError:
        return
    _, (step,) = _due(facts(partition()), found)
    assert int(step.options["max-file-group-size-bytes"]) < 2**63
