"""Which partitions compaction rewrites now, by which cause, and why it leaves the others alone."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from icewright.core import merging, rewriting
from icewright.core.effective import Knobs
from icewright.core.health import files_to_save
from icewright.core.hotness import Replacement, hot_until, is_append_stream, replacement
from icewright.core.kernel import output_spec
from icewright.core.partition_filter import admitted
from icewright.core.runs import LastRun
from icewright.core.table import PartitionFacts, TableFacts


class Cause(enum.StrEnum):
    """The reasons to rewrite a partition, the strongest first; a rewrite for one covers those below too."""

    ASKED = "asked"  # by `compact.rewrite_all`
    SPEC = "spec"
    ORDER = "order"
    DELETES = "deletes"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class PartitionRewrite:
    """A partition that is worth rewriting, and which of its files are taken."""

    cause: Cause
    partition: PartitionFacts
    files: int
    bytes: int
    saved: int  # data files fewer afterwards
    target: int  # bytes of the files that it writes
    below: int | None = None  # bytes; only smaller files are taken. None: as the cause says
    value: float | None = None  # GB-hours that readers are spared; None: worth any cost
    hot: bool = False  # a writer that only appends is still writing to it
    grows_from: datetime | None = None  # when the silence began with which its value grows; None: it does not


@dataclass(frozen=True, slots=True)
class Choice:
    """The partitions that are due for a rewrite, and those that are left alone, by reason."""

    admitted: Sequence[PartitionFacts]  # by `compact.where`
    due: tuple[PartitionRewrite, ...]
    hot: tuple[PartitionFacts, ...]  # left to their writers
    ineffective: tuple[PartitionFacts, ...]  # their previous rewrite had no effect
    not_worthwhile: tuple[tuple[PartitionFacts, float, float], ...]  # with value and cost in GB-hours
    awaiting_files: tuple[tuple[PartitionFacts, datetime], ...]  # with when their last merge would fill its files
    reads: str  # the reads that merges are valued by, in words
    revisit: datetime | None  # the next time at which a partition may become due without a commit

    def with_cause(self, *causes: Cause) -> tuple[PartitionRewrite, ...]:
        """Return the due rewrites with one of these causes."""
        return tuple(rewrite for rewrite in self.due if rewrite.cause in causes)


def choose(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Choice:
    """Return which partitions to rewrite and which not, and why."""
    partitions = admitted(facts, knobs, now)
    candidates = [partition for partition in partitions if _may_be_due(partition, knobs)]  # few of many
    choosing = _Choosing(facts, knobs, last, now, replacement(facts) if candidates else None)
    for partition in candidates:
        choosing.consider(partition)
    return choosing.choice(partitions)


@dataclass
class _Choosing:
    """Considers one partition after another, and collects what becomes of them."""

    facts: TableFacts
    knobs: Knobs
    last: LastRun | None
    now: datetime
    replaced: Replacement | None
    due: list[PartitionRewrite] = field(default_factory=list)
    hot: list[PartitionFacts] = field(default_factory=list)
    ineffective: list[PartitionFacts] = field(default_factory=list)
    not_worthwhile: list[tuple[PartitionFacts, float, float]] = field(default_factory=list)
    awaiting_files: list[tuple[PartitionFacts, datetime]] = field(default_factory=list)
    changes: list[datetime] = field(default_factory=list)  # when partitions may become due without a commit

    def consider(self, partition: PartitionFacts) -> None:
        """Decide whether a partition is rewritten now."""
        lasts = merging.files_last(partition, self.replaced, self.knobs, self.now)
        settles = merging.settles_at(partition, self.facts.metadata, self.knobs)
        settled = settles is None or settles <= self.now
        situation = merging.Situation(partition, self.facts, self.knobs, lasts, self.now, settled)
        rewrite = _rewrite(situation)
        if settles is not None and not settled and _rewrite(replace(situation, settled=True)):
            self.changes.append(settles)
        if rewrite is None:
            if not settled and (full := merging.full_at(situation)) is not None:
                self.awaiting_files.append((partition, full))
        elif not self._is_hot(partition):
            self._weigh(rewrite, settled=settled)
        elif rewrite.cause is Cause.SIZE and self._is_append_stream:
            self._weigh(replace(rewrite, hot=True), settled=settled)
        else:
            self.hot.append(partition)

    def _is_hot(self, partition: PartitionFacts) -> bool:
        cold_from = hot_until(partition, self.facts.metadata, self.knobs)
        return cold_from is not None and self.now < cold_from

    @cached_property
    def _is_append_stream(self) -> bool:
        return is_append_stream(self.facts.metadata)

    def _weigh(self, rewrite: PartitionRewrite, *, settled: bool) -> None:
        """Leave out a rewrite that had no effect when it was last tried, or that does not pay yet."""
        partition, knobs = rewrite.partition, self.knobs
        cost = merging.rewrite_gb_hours(rewrite.files, rewrite.bytes, knobs)
        again = settled and rewrite.cause is not Cause.ASKED
        in_vain = merging.was_rewritten_in_vain(partition, knobs, self.last, settled=again)
        if rewrite.cause is not Cause.DELETES and in_vain:
            self.ineffective.append(partition)
        elif rewrite.value is not None and rewrite.value < knobs[rewriting.MIN_RETURN] * cost:
            self.not_worthwhile.append((partition, rewrite.value, cost))
            spared = merging.spared_from(partition, self.replaced, knobs)
            pays = merging.pays_from(rewrite.value, cost, knobs, rewrite.grows_from, self.now)
            self.changes += [at for at in (spared, pays) if at is not None and at > self.now]
        else:
            self.due.append(rewrite)

    def choice(self, partitions: Sequence[PartitionFacts]) -> Choice:
        """Return what was decided of the partitions that `compact.where` admits."""
        revisit = min([*self.changes, *(full for _, full in self.awaiting_files)], default=None)
        return Choice(
            partitions,
            tuple(self.due),
            tuple(self.hot),
            tuple(self.ineffective),
            tuple(self.not_worthwhile),
            tuple(self.awaiting_files),
            merging.reported_reads(self.facts, self.knobs),
            revisit,
        )


def _may_be_due(partition: PartitionFacts, knobs: Knobs) -> bool:
    """Return whether the partition has files to merge, sort or repartition, or deletes to apply."""
    asked = knobs[rewriting.REWRITE_ALL] or knobs[rewriting.OUTPUT_SPEC] is not None
    return asked or partition.candidate_files > 1 or partition.overlap is not None or partition.delete_files > 0


def _rewrite(situation: merging.Situation) -> PartitionRewrite | None:
    """Return the rewrite of a partition by its strongest cause; None without one."""
    partition, facts, knobs = situation.partition, situation.facts, situation.knobs
    saved = files_to_save(partition, facts)
    causes = (
        (Cause.ASKED, knobs[rewriting.REWRITE_ALL]),
        (Cause.SPEC, knobs[rewriting.OUTPUT_SPEC] is not None and partition.spec_id != output_spec(facts, knobs)),
        (Cause.ORDER, _order_due(partition, facts, knobs)),
        (Cause.DELETES, _deletes_due(partition, knobs)),
    )
    if cause := next((cause for cause, due in causes if due and partition.data_files), None):
        target = facts.thresholds.of(partition.data_bytes).target_bytes
        return PartitionRewrite(cause, partition, partition.data_files, partition.data_bytes, saved, target)
    merge = merging.worthwhile_merge(situation)
    if merge is None:
        return None
    value = merging.merge_value(merge, situation)
    silence = None if situation.settled or merge.final else partition.last_write
    found = (merge.files, merge.bytes, merge.saved, merge.target, merge.below, value)
    return PartitionRewrite(Cause.SIZE, partition, *found, grows_from=silence)


def _deletes_due(partition: PartitionFacts, knobs: Knobs) -> bool:
    """Return whether enough rows are deleted, or so many delete files apply that no cheaper rewrite mends it."""
    if not partition.delete_files:
        return False
    ratio = max(partition.deleted_ratio, partition.max_delete_ratio_of_a_file)
    if ratio >= knobs[rewriting.DELETE_RATIO_THRESHOLD]:
        return True
    many = partition.max_deletes_of_a_file >= knobs[rewriting.DELETE_FILE_THRESHOLD]
    return many and not merging.deletes_are_merged_instead(partition, knobs)


def _order_due(partition: PartitionFacts, facts: TableFacts, knobs: Knobs) -> bool:
    """Return whether too many files overlap; never for data of one target file, which any merge sorts."""
    if partition.overlap is None or partition.data_bytes <= facts.thresholds.of(partition.data_bytes).target_bytes:
        return False
    return partition.overlap > knobs[rewriting.MAX_OVERLAP]
