"""Merges by size class: what is rewritten, how often, and that a second pass finds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from math import log

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icewright.core.cost import expected_files
from icewright.core.effective import Knobs
from icewright.core.hotness import is_append_stream, replaced_after
from icewright.core.merging import Merge, Situation, best_merge, worthwhile_merge
from icewright.core.operations import compact
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.rewriting import PAYBACK
from icewright.core.runs import LastRun, OperationState
from icewright.core.sizes import SizeClass
from icewright.core.steps import Due, NotDue, RewriteDataFiles
from icewright.core.table import PartitionFacts, TableMetadata
from icewright.core.verdicts import thresholds, verdict
from icewright.testing import NOW, facts, knobs, metadata, partition, snapshot, spec
from tests.examples import examples

SIZES = thresholds(Knobs())
GROWTH = 4.0


def of_sizes(*mb: float, deleted: float = 0.0) -> PartitionFacts:
    """A partition with files of these sizes in MB, of whose rows a share is deleted."""
    sizes = sorted(int(one * MEGABYTE) for one in mb)
    small = [size for size in sizes if size < SIZES.min_bytes]
    classes = [list(group) for _, group in groupby(small, int.bit_length)]
    return partition(
        data_files=len(sizes),
        data_bytes=sum(sizes),
        candidate_files=len(small),
        candidate_bytes=sum(small),
        small=tuple(SizeClass(len(group), sum(group), group[-1]) for group in classes),
        records=1000 * len(sizes),
        deleted_rows=int(1000 * len(sizes) * deleted),
    )


def _any(_larger: Merge, _smaller: Merge | None) -> bool:
    return True


@pytest.mark.parametrize(
    ("mb", "merged"),
    [
        ([1] * 5, 5),
        ([1] * 4, None),  # fewer than compact.min_input_files
        ([1] * 5 + [100], 5),  # the large file would not become four times as large
        ([1] * 5 + [4] * 5, 10),  # 25 MB of files of at most 4
        ([200] * 3, 3),  # one file of 600 MB
        ([193] * 3, None),  # Iceberg takes fewer than five only where they have more than its target
        ([220] * 3, None),  # two files of 330 MB: one of 660 would be too large
        ([200] * 5, 5),  # two files of 500 MB are large enough for good
        ([300, 300], None),  # 600 MB rewritten to save one open
        ([130] * 4, 4),
    ],
)
def test_files_become_several_times_as_large(mb: Sequence[float], merged: int | None) -> None:
    """The classes from the smallest up are merged as far as the outputs are several times as large as their inputs."""
    merge = best_merge(of_sizes(*mb), SIZES, GROWTH, 5, _any)
    assert (merge.files if merge else None) == merged


@pytest.mark.cases(129)
@examples(200)
@given(st.lists(st.floats(0.01, 600), max_size=40), st.sampled_from([2.0, 2.4, 4.0, 8.0]), st.floats(0, 0.95))
@example([36.0] * 21 + [194.0] * 2, 8.0, 0.8)  # live rows fit into one more small file, all rows do not
def test_a_second_pass_finds_nothing(mb: list[float], growth: float, deleted: float) -> None:
    """After a merge the same rule finds nothing, whatever the sizes and however many rows are dead."""
    before = of_sizes(*mb, deleted=deleted)
    merge = best_merge(before, SIZES, growth, 5, _any)
    if merge is None:
        return
    written = int(merge.bytes * (1 - before.deleted_ratio))
    count = expected_files(written, merge.target, SIZES.min_bytes, SIZES.max_bytes)
    assert count == merge.files - merge.saved
    assert merge.final is (SIZES.min_bytes * count <= written)
    assert written <= 1.265 * SIZES.target_bytes * count
    kept = [one for one in mb if int(one * MEGABYTE) >= merge.below]
    assert best_merge(of_sizes(*kept, *[written / count / MEGABYTE] * count), SIZES, growth, 5, _any) is None


@pytest.mark.cases(130)
@examples(10)
@given(st.floats(0.5, 20), st.integers(1, 12))
def test_bytes_are_rewritten_a_few_times(mb: float, at_once: int) -> None:
    """A month of arriving files is rewritten at most log(target / size) times to the base, and once to the target."""
    files: list[float] = []
    rewritten = 0.0
    for _ in range(1000 // at_once):
        files += [mb] * at_once
        if merge := best_merge(of_sizes(*files), SIZES, GROWTH, 5, _any):
            rewritten += merge.bytes / MEGABYTE
            count = merge.files - merge.saved
            kept = [one for one in files if int(one * MEGABYTE) >= merge.below]
            files = [*kept, *[merge.bytes / MEGABYTE / count] * count]
    assert rewritten <= sum(files) * (log(512 / mb, GROWTH) + 1)


@pytest.mark.parametrize(("ratio", "larger"), [(1.8, True), (1.16, True), (1.15, False)])
def test_one_file_a_little_larger_than_the_target_spares_two_small_ones(ratio: float, larger: bool) -> None:
    """Its call has the larger target, by which Iceberg plans it, unless that is the policy's largest file or more."""
    partitions = [partition("eu", files=5, mb=115.5), partition("us", files=9, mb=100)]
    policy = knobs({"compact.max_file_size_ratio": ratio})
    found = facts(*partitions, of=metadata(specs=(spec(region="identity"),)), by=policy)
    verdict = compact.evaluate(found, policy, None, NOW)
    assert isinstance(verdict, Due)
    steps = [step for step in verdict.work.steps if isinstance(step, RewriteDataFiles)]
    targets = {key[1]: int(step.options["target-file-size-bytes"]) for step in steps for key in step.partitions}
    target = 512 * MEGABYTE
    assert targets == {("us",): target, ("eu",): int(1.15 * target) if larger else target}
    assert {step.options["max-file-size-bytes"] for step in steps} == {str(int(ratio * target))}


@pytest.mark.cases(129)
def test_outputs_are_planned_on_live_rows() -> None:
    """Where half of the rows go, Iceberg is given twice the target: its outputs have the target's size."""
    half_dead = partition(files=10, mb=500, deletion_vectors=10, deleted_rows=5000)
    found = compact.evaluate(facts(half_dead), Knobs(), None, NOW)
    assert isinstance(found, Due)
    (step,) = found.work.steps
    assert isinstance(step, RewriteDataFiles)
    assert int(step.options["target-file-size-bytes"]) == 2 * SIZES.target_bytes


@pytest.mark.parametrize(
    ("operations", "deletes", "stream"),
    [
        (["append"] * 3, False, True),
        (["append", "replace", "append"], False, True),
        (["append", "delete", "append"], False, True),  # old partitions are dropped
        (["append", "delete", "append"], True, False),
        (["append", "overwrite", "append"], False, False),
        (["delete"], False, False),
        ([], False, False),
    ],
)
def test_what_the_last_snapshots_did(operations: list[str], deletes: bool, stream: bool) -> None:
    """Writers that append and drop whole partitions are a stream; those that delete rows or overwrite are none."""
    summary = {"added-delete-files": "1"} if deletes else {}
    made = [
        snapshot(n, age=48 - 3 * n, operation=operation, summary=summary if operation == "delete" else {})
        for n, operation in enumerate(operations, 1)
    ]
    table = metadata(snapshots=tuple(made)) if made else metadata(())
    assert is_append_stream(table) is stream


@pytest.mark.cases(131)
@pytest.mark.parametrize(("operation", "due"), [("append", True), ("overwrite", False)])
def test_a_hot_partition_of_a_stream_is_merged(operation: str, due: bool) -> None:
    """Files of a hot partition are merged where writers only append, and the verdict says so; else they wait."""
    snapshots = tuple(snapshot(n, age=48 - n, operation=operation) for n in range(1, 48))
    table = metadata(snapshots=snapshots, specs=(spec(region="identity"),))
    hot = partition("eu", files=200, mb=1, last_write=NOW, first_write=NOW - timedelta(hours=2), writes=200)
    found = compact.evaluate(facts(hot, of=table), Knobs(), None, NOW)
    assert isinstance(found, Due) is due
    reason = found.why if isinstance(found, Due) else found.reason if isinstance(found, NotDue) else ""
    assert ("whose writers only append" if due else "hot, left to the writer") in reason


@pytest.mark.parametrize(("larger", "merged"), [(3, 24), (12, 36)])
def test_larger_files_wait_until_they_pay_for_themselves(larger: int, merged: int) -> None:
    """Of a stream, a few files that merges have left are not written again with the next small ones; many are."""
    snapshots = tuple(snapshot(n, age=48 - n) for n in range(1, 48))
    whole = of_sizes(*[2] * 24, *[48] * larger)
    arrived = replace(whole, first_write=NOW - timedelta(hours=3), last_write=NOW, writes=12)
    table = facts(arrived, of=metadata(snapshots=snapshots))
    merge = worthwhile_merge(Situation(arrived, table, Knobs(), timedelta(days=30), NOW, settled=False))
    assert merge is not None
    assert merge.files == merged
    asked = worthwhile_merge(
        Situation(arrived, table, knobs({"value.min_return": 0}), timedelta(days=30), NOW, settled=False)
    )
    assert asked is not None
    assert asked.files == 24 + larger


@pytest.mark.parametrize(
    ("mb", "hours", "writes", "settings", "merged", "full"),
    [
        ([8] * 48, 2, 24, {}, None, 1),  # 384 MB: in an hour they are 576, and one file
        ([8] * 72, 3, 36, {}, 72, 0),
        ([8] * 48, 2, 24, {"value.min_return": 0}, 48, 0),
        ([8] * 48, 2, 24, {"value.payback_days": 5}, 48, 0),  # 47 open files an hour cost more than a third of a file
        ([8] * 48, 2, 1, {}, 48, 0),  # a load, and no stream
        ([1] * 352, 1, 60, {}, 352, 0),  # in an hour they would be two such files
        ([1] * 12 + [80] * 4, 1, 6, {}, 12, 0),  # 332 MB, which nobody would pay for to merge again
        ([1] * 12 + [80] * 6, 20, 6, {}, 18, 0),  # by such a rate they would not be full for a day
        ([1] * 4 + [80] * 6, 1, 1, {}, None, 3),  # what rewrites have left waits for a rate
        ([1] * 4 + [80] * 6, 1, 1, {"compact.hot_max_hours": 2}, 10, 0),  # but not for commits that take longer
        ([8] * 48, 4, 24, {"compact.hot_max_hours": 1}, 48, 0),  # 80 minutes are too long
    ],
)
def test_the_last_merge_waits_until_its_files_are_full(
    mb: Sequence[float], hours: int, writes: int, settings: dict[str, object], merged: int | None, full: int
) -> None:
    """Of a stream, files that are merged for the last time wait for more, as long as that spares more than it costs.

    The verdict says until when.
    """
    snapshots = tuple(snapshot(n, age=48 - n) for n in range(1, 48))
    arrived = replace(of_sizes(*mb), first_write=NOW - timedelta(hours=hours), last_write=NOW, writes=writes)
    policy, table = knobs(settings), facts(arrived, of=metadata(snapshots=snapshots))
    lasts = timedelta(days=policy[PAYBACK])
    merge = worthwhile_merge(Situation(arrived, table, policy, lasts, NOW, settled=False))
    assert (None if merge is None else merge.files) == merged
    if merge is None:
        found = compact.evaluate(table, policy, None, NOW)
        assert isinstance(found, NotDue)
        assert found.revisit == NOW + timedelta(hours=full)
        assert f"fills its files, expected by {found.revisit:%Y-%m-%d %H:%M} UTC" in found.reason


@pytest.mark.cases(131)
@pytest.mark.parametrize(("commits", "due"), [(20, True), (19, False)])
def test_many_commits_tell_of_a_stream_before_hours_have_passed(commits: int, due: bool) -> None:
    """A new stream is merged as soon as it has committed so often that its rate is known."""
    snapshots = tuple(snapshot(n, age=(commits - n) / 60) for n in range(1, commits + 1))
    table = metadata(snapshots=snapshots, specs=(spec(region="identity"),))
    hot = partition("eu", files=400, mb=1, last_write=NOW, first_write=NOW - timedelta(hours=1), writes=commits)
    assert isinstance(compact.evaluate(facts(hot, of=table), Knobs(), None, NOW), Due) is due


def test_what_does_not_pay_is_not_due() -> None:
    """A merge that spares its readers less than it costs is not due, unless a person asks; runs teach what it costs."""
    chosen = knobs({"value.reads_per_day": 0.001})
    found = verdict(Operation.COMPACT, facts(partition(files=10, mb=30)), chosen, {}, NOW)
    assert isinstance(found, NotDue)
    assert "GB-hours of reads for" in found.reason
    assert "of work, and value.min_return asks for 4 times as much" in found.reason
    runs = [{"gb_hours": 1.0, "gb_hours_predicted": 0.01, "cost_factor": 1.0}] * 2
    dear = LastRun(Operation.COMPACT, NOW, OperationState.COMMITTED, recent=runs)
    slow = knobs({"value.reads_per_day": 0.5})
    small = facts(partition(files=10, mb=1))
    assert isinstance(verdict(Operation.COMPACT, small, slow, {}, NOW), Due)
    assert isinstance(verdict(Operation.COMPACT, small, slow, {Operation.COMPACT: dear}, NOW), NotDue)
    asked = verdict(Operation.COMPACT, facts(partition(files=10, mb=30)), chosen, {}, NOW, manual=True)
    assert isinstance(asked, Due)
    free = knobs({"value.reads_per_day": 0.001, "value.min_return": 0})
    assert isinstance(verdict(Operation.COMPACT, facts(partition(files=10, mb=30)), free, {}, NOW), Due)


@pytest.mark.parametrize(
    ("queries", "settings", "due"),
    [
        (None, {}, False),  # three reads a day, a prior, spare half of what the merge must
        (5.5, {}, False),
        (8.5, {}, True),
        (None, {"value.reads_per_day": 8.5}, True),
        (5.5, {"value.reads_per_day": 8.5}, True),
        (8.5, {"value.reads_per_day": 5.5}, False),  # whoever knows better than the reports says so
    ],
)
def test_reported_reads_decide_what_pays(queries: float | None, settings: dict[str, object], due: bool) -> None:
    """Queries that engines reported take the place of the prior, and verdicts say so; a number of a policy stands."""
    table, chosen = facts(partition(files=10, mb=200), queries=queries), knobs({"value.payback_days": 15, **settings})
    found = verdict(Operation.COMPACT, table, chosen, {}, NOW)
    assert isinstance(found, Due) is due
    told = found.why if isinstance(found, Due) else found.reason if isinstance(found, NotDue) else ""
    by_reports = queries is not None and not settings
    assert ("as engines reported" in told) is by_reports
    assert (f"at {queries} reads a day" in told) is by_reports


def _overwritten(share: int) -> TableMetadata:
    """A table of whose bytes writers have overwritten so many percent every hour for two days."""
    said = {"removed-files-size": str(share), "added-files-size": str(share), "total-files-size": "100"}
    made = tuple(snapshot(n, age=48 - n, operation="overwrite", summary=said) for n in range(1, 48))
    return metadata(snapshots=made, specs=(spec(region="identity"),))


@pytest.mark.parametrize(
    ("share", "quiet", "due"),
    [
        (0, 9, True),
        (10, 9, False),  # the merged files would be overwritten after ten hours
        (10, 29, False),
        (10, 31, True),  # nobody overwrites this partition any more
        (1, 9, True),  # they last for four days
    ],
)
def test_what_is_soon_overwritten_is_not_merged(share: int, quiet: int, due: bool) -> None:
    """A merge counts the reads until writers overwrite its files, as they have done so far; old partitions stay."""
    written = NOW - timedelta(hours=quiet)
    one = partition("eu", files=6, mb=130, last_write=written, first_write=written, writes=1)
    found = compact.evaluate(facts(one, of=_overwritten(share)), knobs({"value.reads_per_day": 20}), None, NOW)
    assert isinstance(found, Due) is due
    if isinstance(found, NotDue):  # it is looked at again although nobody writes any more
        assert "does not pay" in found.reason
        assert found.revisit is not None
        assert timedelta(hours=30) <= found.revisit - written < timedelta(hours=31)


@pytest.mark.parametrize(
    ("quiet", "others", "due"),
    [
        (5, 10, False),
        (7, 10, True),  # three times the fifth of the table that was written since then, in the ten hours for all of it
        (7, 7, False),  # all partitions were written at once: any may be next
    ],
)
def test_partitions_before_those_that_are_overwritten_are_merged(quiet: float, others: float, due: bool) -> None:
    """Where writers take away what they wrote of late, as of the current day, the days before are soon spared."""
    one, *newer = (
        partition(region, files=6, mb=130, last_write=NOW - timedelta(hours=age), writes=1)
        for region, age in (("eu", quiet), ("us", 0))
    )
    older = partition("asia", files=16, mb=390, last_write=NOW - timedelta(hours=others), writes=1)
    found = facts(one, *newer, older, of=_overwritten(10))
    assert isinstance(compact.evaluate(found, knobs({"value.reads_per_day": 20}), None, NOW), Due) is due


@pytest.mark.parametrize(("ran", "due"), [(29, True), (31, False)])
def test_a_partition_that_is_spared_after_the_last_run_is_merged(ran: float, due: bool) -> None:
    """Although that run left the table as it is, and nobody has written since."""
    written = NOW - timedelta(hours=32)
    one = partition("eu", files=6, mb=130, last_write=written, first_write=written, writes=1)
    found = facts(one, of=_overwritten(10))
    last = LastRun(
        Operation.COMPACT, written + timedelta(hours=ran), OperationState.COMMITTED, found.metadata.metadata_location
    )
    assert isinstance(compact.evaluate(found, Knobs(), last, NOW), Due) is due


@pytest.mark.parametrize(
    ("operation", "removed", "added", "total", "hours", "lasts"),
    [
        ("overwrite", "50", "50", "100", 48, 96),
        ("delete", "50", "", "50", 48, 96),  # PyIceberg appends what replaces it by a snapshot of its own
        ("delete", "100", "", "0", 48, 48),
        ("replace", "50", "50", "100", 48, None),  # a rewrite, of which the rows live on
        ("overwrite", "50", "50", "100", 3, None),  # too short a history
        ("overwrite", "x", "", "100", 48, None),
        ("overwrite", "9" * 5000, "", "1", 48, None),
        ("overwrite", "", "50", "100", 48, None),
        ("delete", "1", "", "9" * 18, 48, 1e6),  # next to nothing: a century
    ],
)
def test_how_long_files_last(
    operation: str, removed: str, added: str, total: str, hours: float, lasts: float | None
) -> None:
    """As long as writers take to remove as much as there is; nobody knows where they do not, or write no numbers."""
    said = {"removed-files-size": removed, "added-files-size": added, "total-files-size": total}
    made = [snapshot(1, age=hours), snapshot(2, age=1, operation=operation, summary=said), snapshot(3, age=0)]
    assert replaced_after(metadata(snapshots=tuple(made))) == (None if lasts is None else timedelta(hours=lasts))


@pytest.mark.cases(134)
def test_the_cheaper_operation_mends_delete_files() -> None:
    """Ten partition-wide delete files with few rows are merged; 500 GB of data are not rewritten for them."""
    wide = partition(
        files=1000, mb=500, position_delete_files=10, mergeable_deletes=10, max_deletes_of_a_file=10, deleted_rows=100
    )
    found = facts(wide, delete_files=10, deleted_rows=100)
    assert isinstance(verdict(Operation.COMPACT, found, Knobs(), {}, NOW), NotDue)
    assert isinstance(verdict(Operation.REWRITE_DELETES, found, Knobs(), {}, NOW), Due)
    only = knobs({"rewrite_deletes.enabled": False})
    assert isinstance(verdict(Operation.COMPACT, found, only, {}, NOW), Due)


@pytest.mark.cases(134)
@pytest.mark.parametrize(
    ("deletes", "compacts", "due"), [(9, True, False), (10, True, True), (10, False, False), (40, False, True)]
)
def test_deletes_that_compaction_leaves_are_merged_though_the_policy_asks_for_more(
    deletes: int, compacts: bool, due: bool
) -> None:
    """The data would else be rewritten every ten delete files, where the policy wants to merge them but every forty."""
    wide = partition(files=1000, mb=500, position_delete_files=deletes, max_deletes_of_a_file=deletes, deleted_rows=100)
    found = facts(replace(wide, mergeable_deletes=deletes), delete_files=deletes, deleted_rows=100)
    policy = knobs({"rewrite_deletes.min_delete_files": 40, "compact.enabled": compacts})
    assert not isinstance(verdict(Operation.COMPACT, found, policy, {}, NOW), Due)
    assert isinstance(verdict(Operation.REWRITE_DELETES, found, policy, {}, NOW), Due) is due


@pytest.mark.cases(136)
def test_expiry_goes_in_batches() -> None:
    """A few expired snapshots wait for more, for a day at most; a person who asks for it need not wait."""
    hourly = facts(of=metadata([170, 169, *range(167, 0, -1)]))
    found = verdict(Operation.EXPIRE_SNAPSHOTS, hourly, Knobs(), {}, NOW)
    assert isinstance(found, NotDue)
    assert "waits for more" in found.reason
    assert found.revisit == NOW + timedelta(hours=22)
    assert isinstance(verdict(Operation.EXPIRE_SNAPSHOTS, hourly, Knobs(), {}, NOW + timedelta(hours=22)), Due)
    assert isinstance(verdict(Operation.EXPIRE_SNAPSHOTS, hourly, Knobs(), {}, NOW, manual=True), Due)


@pytest.mark.cases(131)
@pytest.mark.parametrize(
    ("files", "mb", "load", "idle"), [(400, 0.02, 0.1, 1), (6, 40, 0, 30)], ids=["commits of minutes", "one commit"]
)
@pytest.mark.parametrize("values", [(), ("eu",)], ids=["whole", "partition"])
def test_a_writer_that_has_stopped_is_no_stream(
    files: int, mb: float, load: float, idle: float, values: tuple[str, ...]
) -> None:
    """The files of a load are merged when its silence lets them pay, not when the table has been quiet for a week."""
    end = NOW - timedelta(hours=idle)
    snapshots = tuple(snapshot(n, age=idle + (400 - n) / 3600) for n in range(1, 401))
    table = metadata(snapshots=snapshots, specs=(spec(**({"region": "identity"} if values else {})),))
    begin = end - timedelta(hours=load)
    loaded = partition(*values, files=files, mb=mb, last_write=end, first_write=begin, writes=files if load else 1)
    early = compact.evaluate(facts(loaded, of=table), Knobs(), None, end + timedelta(minutes=1))
    assert isinstance(early, NotDue)
    assert "does not pay yet" in early.reason
    assert "of work, and value.min_return asks for 4 times as much" in early.reason
    assert isinstance(compact.evaluate(facts(loaded, of=table), Knobs(), None, NOW), Due)


@pytest.mark.parametrize(
    ("files", "mb", "load", "hours"), [(400, 0.02, 0.1, 1), (8, 0.02, 0.1, 3), (40, 8, 0, 6), (6, 40, 0, 29)]
)
def test_a_load_that_has_ended_is_looked_at_until_it_pays(files: int, mb: float, load: float, hours: float) -> None:
    """Not a day later: no commit tells that its files last, so verdicts say when to look again, at most hourly."""
    snapshots = tuple(snapshot(n, age=(400 - n) / 3600) for n in range(1, 401))
    begin = NOW - timedelta(hours=load)
    whole = partition(files=files, mb=mb, last_write=NOW, first_write=begin, writes=files if load else 1)
    loaded = facts(whole, of=metadata(snapshots=snapshots))
    at, looks = NOW + timedelta(minutes=1), 0
    while isinstance(found := verdict(Operation.COMPACT, loaded, Knobs(), {}, at), NotDue):
        assert "does not pay yet" in found.reason
        assert found.revisit is not None
        assert found.revisit - at >= timedelta(hours=1)
        at, looks = found.revisit, looks + 1
    assert isinstance(found, Due)
    assert 1 <= looks <= 5
    assert at - NOW <= timedelta(hours=hours, minutes=2)


@pytest.mark.cases(130)
@pytest.mark.parametrize(
    ("mb", "quiet", "reads", "due"),
    [
        ([0.05] * 4 + [0.15], 0.5, "auto", False),
        ([0.05] * 4 + [0.15], 0.5, 3, False),
        ([0.05] * 4 + [0.15], 0.5, 40, True),
        ([0.05] * 4 + [0.15], 4.5, 3, False),
        ([0.05] * 4 + [0.15], 4.5, 40, True),
        ([300.0] * 8, 4.5, 4, False),
        ([300.0] * 8, 4.5, 400, True),
        ([300.0] * 8, 0.5, 400, False),  # not twice as large, and more will come
    ],
)
def test_files_of_a_table_that_is_read_a_lot_need_not_grow_as_much(
    mb: Sequence[float], quiet: float, reads: float | str, due: bool
) -> None:
    """The reads beyond the prior pay several times over for a merge that grows twofold, or a settled one."""
    written = NOW - timedelta(hours=quiet)
    first = written - timedelta(hours=30)
    one = replace(of_sizes(*mb), values=("eu",), first_write=first, last_write=written, writes=4)
    found = facts(one, of=metadata(specs=(spec(region="identity"),)))
    policy = knobs({"value.reads_per_day": reads})
    assert isinstance(compact.evaluate(found, policy, None, NOW), Due) is due


@pytest.mark.cases(130)
@pytest.mark.parametrize("ran", [None, 1], ids=["never run", "left by the last run"])
@pytest.mark.parametrize(
    ("mb", "quiet", "due"),
    [
        ([0.05] * 4 + [0.2], 12, False),
        ([0.05] * 4 + [0.2], 15, True),  # 0.6 days, in which readers would have been spared four times the call
        ([1.0] * 4 + [350], 8 * 24, False),
        ([1.0] * 4 + [350], 9 * 24, True),
        ([0.05] * 3 + [0.2], 10_000, False),  # fewer than compact.min_input_files
    ],
)
def test_small_files_beside_a_larger_one_are_merged_when_their_silence_pays(
    mb: Sequence[float], quiet: float, due: bool, ran: float | None
) -> None:
    """The larger file would not grow enough while others may arrive; a partition that was left is likely to stay so."""
    written = NOW - timedelta(hours=quiet)
    one = replace(of_sizes(*mb), values=("eu",), first_write=written, last_write=written, writes=4)
    found = facts(one, of=metadata(specs=(spec(region="identity"),)))
    finished = written + timedelta(hours=ran or 0)
    last = LastRun(Operation.COMPACT, finished, OperationState.COMMITTED, found.metadata.metadata_location)
    assert isinstance(compact.evaluate(found, Knobs(), last if ran else None, NOW), Due) is due
