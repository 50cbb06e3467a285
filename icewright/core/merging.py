"""Choose the small files of a partition that are worth merging now, by size class and by the cost saved for readers.

The rule is that of universal compaction in RocksDB (its wiki, Universal Compaction) and of other log-structured stores:
files are merged from the smallest up, and only into files at least `compact.growth` times as large as the largest that
is taken. So each byte is rewritten at most log(target / arriving size) times to that base, and never for its own tail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from icewright.core import policy, rewriting
from icewright.core.cost import (
    DELETE_FILE_BYTES,
    OPEN_COST_MB,
    READ_MB_PER_GB_HOUR,
    REWRITES,
    RewriteSpeed,
    expected_files,
    spark_cost,
    spark_gb_hours,
)
from icewright.core.effective import Knobs
from icewright.core.hotness import (
    MIN_WRITES_FOR_INTERVAL,
    Replacement,
    history_span,
    is_rate_known,
    is_whole_table,
    last_written,
    quiet_time,
)
from icewright.core.policy import Operation
from icewright.core.runs import LastRun
from icewright.core.sizes import SizeClass
from icewright.core.steps import Kernel
from icewright.core.table import PartitionFacts, TableFacts, TableMetadata, Thresholds
from icewright.core.words import decimal, figure

FINAL_GROWTH = 2.4  # least growth of a last merge: to the target, or in a partition that has settled
_SETTLED_TABLE = timedelta(days=7)  # without a write, after which a table that is one partition has settled
_LARGER_TARGET = 1.15  # times the target, where outputs would else be one more and too small to be left alone
_SAME_SIZE_RATIO = 0.75  # files are of one size if the largest is at most a third larger than their average
_HOT_READ_GROWTH = 2.0  # least growth in a partition that is written to, where reads are many
_ABUNDANT = 3  # times the return asked for, by the reads beyond the prior: then a merge waits for less growth
_SPARED = 3  # times as much as was written since is taken away: then a partition is none of those that are overwritten
_MOST_SHORT = 100.0  # times its value that a merge may need, beyond which only a daily look tells
_REQUESTS_PER_FILE = 2  # to open a Parquet file: its footer and its first row group


@dataclass(frozen=True, slots=True)
class Merge:
    """Small files of one partition that are merged together: all below a size."""

    files: int
    bytes: int  # of the files as they are, dead rows included
    below: int  # bytes; smaller files are taken
    saved: int  # files fewer after the merge
    target: int  # bytes of the files that it writes
    final: bool  # the outputs are large enough to be left alone for good

    @property
    def outputs(self) -> int:
        """Return how many files the merge writes."""
        return self.files - self.saved


# whether the first of two merges is worth it instead of the second, which takes fewer files, or instead of none
Pays = Callable[[Merge, Merge | None], bool]


@dataclass(frozen=True, slots=True)
class Situation:
    """What merges of a partition are valued by."""

    partition: PartitionFacts
    facts: TableFacts
    knobs: Knobs
    lasts: timedelta  # how long merged files stay at most (`files_last`)
    now: datetime
    settled: bool  # whether nobody is taken to write to the partition any more


def worthwhile_merge(situation: Situation) -> Merge | None:
    """Return the merge that the settings allow, of all size classes that pay for themselves; None if there is none.

    Larger files that are taken along are written again for each time that smaller ones arrive. They wait until they
    are so many that their own readers pay for it, or until nobody has written for so long that the merge would have
    paid by now: a partition that has been left for a time is taken to be left for as long again. Where a table is read
    so much more than the prior says that the merge pays several times over, it waits for less growth.
    """
    partition, facts, knobs, settled = situation.partition, situation.facts, situation.knobs, situation.settled

    def pays(larger: Merge, smaller: Merge | None) -> bool:
        saved = larger.saved - (smaller.saved if smaller is not None else 0)
        if not settled and _wait(larger, saved, situation) is not None:
            return False
        if smaller is None:
            return True
        added = merge_value(larger, situation) * saved / max(1, larger.saved)
        cost = rewrite_gb_hours(larger.files - smaller.files, larger.bytes - smaller.bytes, knobs)
        return added >= knobs[rewriting.MIN_RETURN] * cost

    sizes, least_files = facts.thresholds.of(partition.data_bytes), knobs[rewriting.MIN_INPUT_FILES]
    growth = min(FINAL_GROWTH, knobs[rewriting.GROWTH]) if settled else knobs[rewriting.GROWTH]
    merge = best_merge(partition, sizes, growth, least_files, pays)
    beyond = 1 - rewriting.PRIOR_READS / max(rewriting.PRIOR_READS, reads_per_day(facts, knobs))  # a share of the reads
    if merge is not None or partition.last_write is None or not (settled or beyond):
        return merge
    least_growth = 1.0 if settled else min(_HOT_READ_GROWTH, growth)
    merge = best_merge(partition, sizes, least_growth, least_files, pays)
    if merge is None:
        return None
    asked = knobs[rewriting.MIN_RETURN] * _speed(knobs).gb_hours(merge.files, merge.bytes)
    if settled and asked <= merge_value(merge, replace(situation, lasts=situation.now - partition.last_write)):
        return merge
    value = beyond * merge_value(merge, situation)
    value *= 1.0 if settled else (least_growth - 1) / growth  # by less growth the next merge comes sooner
    return merge if value > _ABUNDANT * asked else None


def best_merge(
    partition: PartitionFacts, sizes: Thresholds, growth: float, least_files: int, pays: Pays
) -> Merge | None:
    """Return the merge of the most size classes, from the smallest up, that keeps to the growth; None if none does.

    A class is taken along only where that `pays`.

    Sizes are planned on live rows: deleted ones are not written again. As in Iceberg's planner a group needs
    `least_files`, or two files with more than one target's worth. Files that the next pass would merge with the outputs
    are taken at once, so that a second pass finds nothing.
    """
    growth = min(growth, _SAME_SIZE_RATIO * least_files)  # a policy that asks for two files means two of one size
    live = 1.0 - partition.deleted_ratio
    classes = size_classes(partition)
    merge = _merge_of_classes(classes, live, sizes, growth, least_files, pays)
    while merge is not None:
        next_merge = _merge_of_classes(_after(merge, classes, live, sizes), 1.0, sizes, growth, least_files, pays)
        if next_merge is None or next_merge.below <= merge.below:  # it would take no more files
            break
        taken = [size_class for size_class in classes if size_class.largest < next_merge.below]
        files, size = sum(c.files for c in taken), sum(c.bytes for c in taken)
        larger = _merge(files, size, next_merge.below, live, sizes)
        if not pays(larger, merge):
            break
        merge = larger
    return merge


def _merge_of_classes(
    classes: Sequence[SizeClass], live: float, sizes: Thresholds, growth: float, least_files: int, pays: Pays
) -> Merge | None:
    """Return the merge of the most classes that keeps to the growth and pays; `live` is the share of rows that stay."""
    best: Merge | None = None
    files = size = 0
    for number, size_class in enumerate(classes, 1):
        files, size = files + size_class.files, size + size_class.bytes
        below = sizes.min_bytes if number == len(classes) else min(size_class.limit, sizes.min_bytes)
        merge = _merge(files, size, below, live, sizes)
        if files < 2 or not (files >= least_files or size > merge.target):  # noqa: PLR2004 - no merge of one
            continue
        needed = min(FINAL_GROWTH, growth) if merge.final else growth
        if merge.saved > 0 and int(size * live) >= needed * live * size_class.largest * merge.outputs:
            best = merge if pays(merge, best) else best
    return best


def _merge(files: int, size: int, below: int, live: float, sizes: Thresholds) -> Merge:
    """Return the merge of so many files and bytes, with the files that it is expected to write.

    Its target is larger where they are one fewer by that, and large enough to be left alone.
    """
    written, target, larger = int(size * live), sizes.target_bytes, int(_LARGER_TARGET * sizes.target_bytes)
    outputs, fewer = (expected_files(written, each, sizes.min_bytes, sizes.max_bytes) for each in (target, larger))
    if larger < sizes.max_bytes and sizes.min_bytes * fewer <= written < sizes.min_bytes * outputs:
        outputs, target = fewer, larger
    return Merge(files, size, below, files - outputs, target, final=written >= sizes.min_bytes * outputs)


def full_at(situation: Situation) -> datetime | None:
    """Return by when the files of a last merge are expected to be full, where it waits for that; else None."""
    waits: list[timedelta] = []
    partition, knobs = situation.partition, situation.knobs

    def pays(larger: Merge, _smaller: Merge | None) -> bool:
        wait = _wait(larger, larger.saved, situation)
        if wait is not None:
            waits.append(wait)
        return False

    sizes = situation.facts.thresholds.of(partition.data_bytes)
    best_merge(partition, sizes, knobs[rewriting.GROWTH], knobs[rewriting.MIN_INPUT_FILES], pays)
    return situation.now + min(waits) if waits else None


def _wait(merge: Merge, saved: int, situation: Situation) -> timedelta | None:
    """Return how long a merge whose files no later one would pay for waits until what arrives fills them; None: not.

    Files of three quarters of the target are a third more files for as long as they last. That is weighed against the
    files, saved by no smaller merge, that are open meanwhile. How many reads there are matters to neither.
    """
    partition, facts, knobs, now = situation.partition, situation.facts, situation.knobs, situation.now
    missing = merge.outputs * merge.target - merge.bytes
    if missing <= 0 or not knobs[rewriting.MIN_RETURN] or not is_rate_known(facts.metadata):
        return None
    if not merge.final and _is_merged_again(merge, missing / merge.target, situation):
        return None
    longest_wait = timedelta(hours=knobs[rewriting.HOT_MAX_HOURS])
    first, arrived = partition.first_write, size_classes(partition)[0]
    if first is None or first >= now or partition.writes < MIN_WRITES_FOR_INTERVAL:
        until_rate = MIN_WRITES_FOR_INTERVAL * history_span(facts.metadata) / max(1, len(facts.metadata.snapshots) - 1)
        has_arrived = partition.last_write is not None and merge.files == arrived.files
        return None if has_arrived or until_rate > longest_wait else until_rate
    wait = max(timedelta(minutes=knobs[rewriting.HOT_MINUTES]), missing / max(1, arrived.bytes) * (now - first))
    growth = 1 + wait / (now - first) * arrived.bytes / merge.bytes
    pays = saved * wait < _fewer_outputs(merge, growth, facts.thresholds.of(partition.data_bytes)) * situation.lasts
    return wait if wait <= longest_wait and pays else None


def _is_merged_again(merge: Merge, fewer: float, situation: Situation) -> bool:
    """Return whether a later merge with other files, which leaves so many fewer files, pays for the outputs."""
    knobs, days = situation.knobs, situation.lasts / timedelta(days=1)
    spared = reads_per_day(situation.facts, knobs) * days * opening_gb_hours(knobs) * fewer
    return spared >= knobs[rewriting.MIN_RETURN] * rewrite_gb_hours(merge.outputs, merge.bytes, knobs)


def _fewer_outputs(merge: Merge, growth: float, sizes: Thresholds) -> float:
    """Return how many output files fewer the same rows have when files and bytes have grown so many times."""
    later = _merge(int(merge.files * growth), int(merge.bytes * growth), merge.below, 1.0, sizes)
    return merge.outputs - later.outputs / growth


def _after(merge: Merge, classes: Sequence[SizeClass], live: float, sizes: Thresholds) -> tuple[SizeClass, ...]:
    """Return the size classes after a merge: the classes that remain, with the outputs if they are still small."""
    outputs, written = merge.outputs, int(merge.bytes * live)
    small = [c for c in classes if c.largest >= merge.below]
    if outputs and (each := written // outputs) < sizes.min_bytes:
        same = next((c for c in small if c.largest.bit_length() == each.bit_length()), SizeClass(0, 0, 0))
        merged = SizeClass(same.files + outputs, same.bytes + written, max(same.largest, each))
        small = sorted([*(c for c in small if c is not same), merged], key=lambda c: c.largest)
    return tuple(small)


def size_classes(partition: PartitionFacts) -> tuple[SizeClass, ...]:
    """Return the size classes of the candidate files; a single class of average files if the facts have none."""
    if partition.small or not partition.candidate_files:
        return partition.small
    average = partition.candidate_bytes // partition.candidate_files
    return (SizeClass(partition.candidate_files, partition.candidate_bytes, average),)


def settles_at(partition: PartitionFacts, metadata: TableMetadata, knobs: Knobs) -> datetime | None:
    """Return from when on nobody is taken to write to the partition any more; None if no snapshot tells of writers."""
    if is_whole_table(partition, metadata):
        written = last_written(metadata)
        return None if written is None else written + _SETTLED_TABLE
    return None if partition.last_write is None else partition.last_write + quiet_time(partition, knobs)


def was_rewritten_in_vain(partition: PartitionFacts, knobs: Knobs, last: LastRun | None, *, settled: bool) -> bool:
    """Return whether the same policy rewrote the partition since its last write: another run would do the same.

    A partition that was still written to then may be merged once more when it has settled, by a lower growth.
    """
    if last is None or last.policy not in ("", knobs.fingerprint):
        return False
    rewritten_at = last.rewritten.get(partition.key)
    if rewritten_at is None or (partition.last_write is not None and partition.last_write > rewritten_at):
        return False
    if not settled or partition.last_write is None:
        return True
    return rewritten_at >= partition.last_write + quiet_time(partition, knobs)


def files_last(partition: PartitionFacts, replaced: Replacement | None, knobs: Knobs, now: datetime) -> timedelta:
    """Return how long a merged file of the partition is taken to stay: `value.payback_days`, unless it is overwritten.

    Where writers overwrite, it stays as long as they take for all of the table, or as long as nobody has written to its
    partition.
    """
    payback, spared = timedelta(days=knobs[rewriting.PAYBACK]), spared_from(partition, replaced, knobs)
    if replaced is None or partition.last_write is None or spared is None or spared <= now:
        return payback
    return min(payback, max(replaced.table, now - partition.last_write))


def spared_from(partition: PartitionFacts, replaced: Replacement | None, knobs: Knobs) -> datetime | None:
    """Return from when on the partition is taken to be none of those that writers overwrite; None if they do not.

    By then they have taken away three times as much as it and all that was written since. Of partitions that are
    overwritten at random one in twenty stays for so long; where only the newest are, the others are soon spared.
    """
    if replaced is None or partition.last_write is None:
        return None
    return partition.last_write + min(
        _SPARED * replaced.since[partition.last_write], timedelta(days=knobs[rewriting.PAYBACK])
    )


def merge_value(merge: Merge, situation: Situation) -> float:
    """Return the GB-hours that the readers of the merged files are spared until their next rewrite.

    A query opens each file for `OPEN_COST_MB` of scan work and a few requests. A settled partition stays as it is as
    long as its files last; in one that is written, the files are merged again when `compact.growth` times as much has
    arrived, at the rate of the files that no rewrite has taken yet.
    """
    partition, facts, knobs, horizon = situation.partition, situation.facts, situation.knobs, situation.lasts
    if not (situation.settled or merge.final or not is_rate_known(facts.metadata)):
        horizon = min(horizon, _until_next(merge, partition, facts.metadata, knobs, situation.now))
        if not is_whole_table(partition, facts.metadata):
            horizon = min(horizon, timedelta(hours=knobs[rewriting.HOT_MAX_HOURS]))
    queries = reads_per_day(facts, knobs) * (horizon / timedelta(days=1))
    return queries * merge.saved * opening_gb_hours(knobs)


def reads_per_day(facts: TableFacts, knobs: Knobs) -> float:
    """Return the whole reads of the table a day: those that the policy says, else those reported, else a prior."""
    asked = knobs[rewriting.READS_PER_DAY]
    if not isinstance(asked, str):
        return asked
    return rewriting.PRIOR_READS if facts.queries is None else facts.queries


def reported_reads(facts: TableFacts, knobs: Knobs) -> str:
    """Return the phrase with the reported reads that merges are valued by; empty where no reports count."""
    if facts.queries is None or knobs[rewriting.READS_PER_DAY] != "auto":
        return ""
    return f", at {figure(facts.queries)} reads a day as engines reported"


def opening_gb_hours(knobs: Knobs) -> float:
    """Return the GB-hours of a reader that opens a file, with what the requests for it cost."""
    requests = _REQUESTS_PER_FILE * knobs[rewriting.REQUEST_PRICE] / max(1e-9, knobs[rewriting.GB_HOUR_PRICE])
    return OPEN_COST_MB / READ_MB_PER_GB_HOUR + requests


def does_not_pay(value: float, cost: float, knobs: Knobs) -> str:
    """Return the reason that a merge spares readers too few GB-hours for what it costs."""
    asked = f"{rewriting.MIN_RETURN.name} asks for {knobs[rewriting.MIN_RETURN]:g} times as much"
    return f"{decimal(value)} GB-hours of reads for {decimal(cost)} of work, and {asked}"


def rewrite_gb_hours(files: int, size: int, knobs: Knobs) -> float:
    """Return the GB-hours that a rewrite of so many files and bytes adds to a call that runs anyway."""
    speed = _speed(knobs)
    return spark_gb_hours(speed.seconds(files, size) - speed.call)


def _speed(knobs: Knobs) -> RewriteSpeed:
    return REWRITES[Kernel.SPARK if knobs[rewriting.KERNEL] == Kernel.SPARK else Kernel.ARROW]


def deletes_are_merged_instead(partition: PartitionFacts, knobs: Knobs) -> bool:
    """Return whether compaction leaves many delete files to `rewrite_deletes`, which mends them for less."""
    return (
        knobs[policy.ENABLED[Operation.REWRITE_DELETES]]
        and partition.max_deletes_of_a_file >= knobs[rewriting.DELETE_FILE_THRESHOLD]
        and partition.equality_delete_files < knobs[rewriting.DELETE_FILE_THRESHOLD]
        and partition.mergeable_deletes >= max(2, partition.position_delete_files)
        and spark_cost(partition.data_bytes) > 2 * spark_cost(partition.position_delete_files * DELETE_FILE_BYTES)
    )


def pays_from(value: float, cost: float, knobs: Knobs, written: datetime | None, now: datetime) -> datetime | None:
    """Return when a merge that does not pay yet may pay: its value grows while its writer is silent.

    `written` is the last write before that silence; None where time alone adds nothing.
    """
    if written is None or value <= 0:
        return None
    short = min(knobs[rewriting.MIN_RETURN] * cost / value - 1, _MOST_SHORT)
    return now + max(timedelta(minutes=knobs[rewriting.HOT_MINUTES]), (now - written) * short)


def _until_next(
    merge: Merge, partition: PartitionFacts, metadata: TableMetadata, knobs: Knobs, now: datetime
) -> timedelta:
    """Return how long it takes until so much has arrived that the merged files are merged again.

    The time since the last write counts: a writer that has stopped leaves its files for as long as it stays away.
    """
    first, last = partition.first_write, partition.last_write
    if first is None or last is None or first == last or partition.writes < 2:  # noqa: PLR2004 - one commit has no rate
        interval = history_span(metadata) / max(1, len(metadata.snapshots) - 1)
        quiet = timedelta(minutes=knobs[rewriting.HOT_MINUTES])
        return knobs[rewriting.GROWTH] * max(interval, quiet, now - (last or now))
    arrived = size_classes(partition)[0]
    return (now - first) * (knobs[rewriting.GROWTH] * merge.bytes / max(1, arrived.bytes))
