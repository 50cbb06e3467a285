"""Compaction: partitions with many small files, many rows deleted or the order lost, and that nobody is writing to."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from icewright.core import policy
from icewright.core.cost import OPEN_COST_MB, compaction_benefit, spark_cost
from icewright.core.effective import Knobs
from icewright.core.health import files_to_save
from icewright.core.hotness import hot_until
from icewright.core.kernel import Kernels, kernels
from icewright.core.partitions import partition_name
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.predicates import partitions_predicate
from icewright.core.runs import LastRun
from icewright.core.steps import Blocked, Due, Kernel, NotDue, RewriteDataFiles, Verdict, Work
from icewright.core.table import PartitionFacts, TableFacts

NOTHING = "no files eligible for compaction"
PARTITIONS_A_CALL = 500  # longer predicates make Spark's planning slow
_SHOWN = 3


class Cause(enum.StrEnum):
    """Why a partition is rewritten, the strongest first: what is rewritten for one is mended for those below too."""

    ORDER = "order"
    DELETES = "deletes"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which partitions are worth rewriting, for which cause, and which are left as they are."""

    due: tuple[tuple[Cause, PartitionFacts], ...]
    hot: tuple[PartitionFacts, ...]  # left to their writers
    stuck: tuple[PartitionFacts, ...]  # whose previous rewrite had no effect

    def by(self, *causes: Cause) -> tuple[PartitionFacts, ...]:
        """Return the partitions that are rewritten for one of these causes."""
        return tuple(partition for cause, partition in self.due if cause in causes)


_Groups = dict[tuple[Cause, int, Kernel], list[PartitionFacts]]  # by cause, target and kernel


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Due when at least one partition that is not hot is worth rewriting."""
    if facts.metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    if facts.delete_files and not knobs[policy.APPLY_DELETES]:
        return NotDue("compaction skipped: delete manifests present and apply_deletes is disabled")
    if last is not None and last.left(facts.metadata, knobs):
        return NotDue(f"{NOTHING}: the last run left the table as it is")
    choice = choose(facts, knobs, last, now)
    if not choice.due:
        cooled = [moment for p in choice.hot if (moment := hot_until(p, facts.metadata, knobs)) is not None]
        return NotDue("; ".join([NOTHING, *_left_out(facts, choice)]), min(cooled, default=None))
    strategy = knobs[policy.STRATEGY]
    order = written_order(knobs, facts.metadata.sort_order)
    if strategy != "binpack" and order is None:
        return Blocked(f"strategy {strategy} needs compact.sort_order, or a sort order on the table")
    return _due(facts, knobs, choice, order)


def choose(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Choice:
    """Sort the partitions by what should become of them."""
    due: list[tuple[Cause, PartitionFacts]] = []
    hot: list[PartitionFacts] = []
    stuck: list[PartitionFacts] = []
    for partition in facts.partitions:
        if partition.candidate_files < 2 and partition.overlap is None and not partition.delete_files:  # noqa: PLR2004
            continue  # as most are: nothing to merge, to sort or to apply
        cause = _cause(partition, facts, knobs)
        if cause is None:
            continue
        cools = hot_until(partition, facts.metadata, knobs)
        if cools is not None and now < cools:
            hot.append(partition)
        elif cause is not Cause.DELETES and _to_no_avail(partition, knobs, last):
            stuck.append(partition)
        else:
            due.append((cause, partition))
    return Choice(tuple(due), tuple(hot), tuple(stuck))


def _cause(partition: PartitionFacts, facts: TableFacts, knobs: Knobs) -> Cause | None:
    if _order_due(partition, facts, knobs):
        return Cause.ORDER
    if _deletes_due(partition, knobs):
        return Cause.DELETES
    return Cause.SIZE if _size_due(partition, facts, knobs) else None


def _size_due(partition: PartitionFacts, facts: TableFacts, knobs: Knobs) -> bool:
    """Iceberg's rule for a group (enough files, or more than one target's worth) and a real gain.

    The gain keeps the choice a fixed point: files that would come out as they went in are not rewritten.
    """
    count = partition.candidate_files
    target = facts.thresholds.of(partition.data_bytes).target_bytes
    enough = count >= knobs[policy.MIN_INPUT_FILES] or (count > 1 and partition.candidate_bytes > target)
    return enough and partition.candidate_bytes / count < target / 2 and files_to_save(partition, facts) > 0


def _deletes_due(partition: PartitionFacts, knobs: Knobs) -> bool:
    if not partition.delete_files:
        return False
    ratio = max(partition.deleted_ratio, partition.max_delete_ratio_of_a_file)
    return (
        partition.max_deletes_of_a_file >= knobs[policy.DELETE_FILE_THRESHOLD]
        or ratio >= knobs[policy.DELETE_RATIO_THRESHOLD]
    )


def _order_due(partition: PartitionFacts, facts: TableFacts, knobs: Knobs) -> bool:
    """Return a partition of one target's worth becomes one file, which is sorted whenever it is written."""
    if partition.overlap is None or partition.data_bytes <= facts.thresholds.of(partition.data_bytes).target_bytes:
        return False
    return partition.overlap > knobs[policy.MAX_OVERLAP]


def _to_no_avail(partition: PartitionFacts, knobs: Knobs, last: LastRun | None) -> bool:
    """Whether it was rewritten by the same policy, and nobody has written to it since: it would come out the same."""
    if last is None or last.policy not in ("", knobs.fingerprint):
        return False
    done = last.rewritten.get(partition.key)
    return done is not None and (partition.last_write is None or partition.last_write <= done)


def _due(facts: TableFacts, knobs: Knobs, choice: Choice, order: str | None) -> Due | Blocked:
    chosen = [partition for _, partition in choice.due]
    choosing = kernels(facts, chosen, knobs, order)
    if choosing.refused is not None:
        return Blocked(choosing.refused)
    notes = [*_left_out(facts, choice), *choosing.why]
    steps: list[RewriteDataFiles] = []
    unsaid = 0
    groups = _groups(facts, choice, choosing)
    most = knobs[policy.MAX_CALL_SIZE] * MEGABYTE
    for cause, batch in _batches(groups, most):
        where = partitions_predicate(facts.metadata, batch)
        if where is None:
            unsaid += len(batch)
        else:
            steps.append(_step(facts, knobs, order, batch, cause, where, choosing))
    causes = {cause for cause, _ in choice.due}
    held = sum(_rewritten_bytes(partition, cause) for cause, partition in choice.due)
    whole = len(chosen) == len(facts.partitions) and len(groups) == 1 and held <= most
    if (choice.hot or choice.stuck) and unsaid:
        notes.append(f"{unsaid} partition(s) wait: no filter tells them apart from those that are left out")
    elif whole or unsaid:  # one call for all: a second would only meet what the first has written
        if not whole:
            notes.append(f"no filter says {unsaid} partition(s): the whole table is rewritten as due")
        strongest = next(cause for cause in Cause if cause in causes)
        step = _step(facts, knobs, order, chosen, strongest, None, choosing)
        return _judged(facts, choice, (replace(step, partitions=tuple(p.key for p in facts.partitions)),), notes)
    if not steps:
        return Blocked("; ".join(notes))
    if any(_older_specs(facts, step) for step in steps):
        notes.append("files of older partition specs may be rewritten too: no filter tells them apart")
    return _judged(facts, choice, tuple(steps), notes)


def _groups(facts: TableFacts, choice: Choice, choosing: Kernels) -> _Groups:
    """Return the partitions by cause, target and kernel, the weakest cause first."""
    groups: _Groups = {}
    for cause, partition in choice.due:
        target = facts.thresholds.of(partition.data_bytes).target_bytes
        groups.setdefault((cause, target, choosing.by_partition[partition.key]), []).append(partition)
    weakest_first = [*reversed(Cause)]
    return dict(sorted(groups.items(), key=lambda one: (weakest_first.index(one[0][0]), *one[0][1:])))


def _batches(groups: _Groups, most: int) -> Iterable[tuple[Cause, list[PartitionFacts]]]:
    """Yield the partitions of one call each: one cause and one target, neither too many nor too many bytes."""
    for (cause, _, _), group in groups.items():
        batch: list[PartitionFacts] = []
        held = 0
        for partition in group:
            size = _rewritten_bytes(partition, cause)
            if batch and (held + size > most or len(batch) == PARTITIONS_A_CALL):
                yield cause, batch
                batch, held = [], 0
            batch.append(partition)
            held += size
        yield cause, batch


def _rewritten_bytes(partition: PartitionFacts, cause: Cause) -> int:
    return partition.candidate_bytes if cause is Cause.SIZE else partition.data_bytes


def _step(
    facts: TableFacts,
    knobs: Knobs,
    order: str | None,
    batch: Sequence[PartitionFacts],
    cause: Cause,
    where: str | None,
    choosing: Kernels,
) -> RewriteDataFiles:
    return RewriteDataFiles(
        where=where,
        user_where=knobs[policy.WHERE],
        strategy="binpack" if knobs[policy.STRATEGY] == "binpack" else "sort",
        sort_order=order,
        options=_options(facts, knobs, batch, cause),
        partitions=tuple(p.key for p in batch),
        by_deletes=cause is Cause.DELETES,
        files=sum(p.candidate_files if cause is Cause.SIZE else p.data_files for p in batch),
        bytes=sum(_rewritten_bytes(p, cause) for p in batch),
        kernel=choosing.of(batch),
        may_fall_back=knobs[policy.KERNEL] == "auto",
        memory_bytes=knobs[policy.TASK_MEMORY] * MEGABYTE,
    )


def _judged(facts: TableFacts, choice: Choice, steps: tuple[RewriteDataFiles, ...], notes: Sequence[str]) -> Due:
    removed = sum(files_to_save(partition, facts) for _, partition in choice.due)
    by_deletes = choice.by(Cause.DELETES)
    deletes = sum(p.delete_files for p in by_deletes)
    deleted_bytes = sum(p.data_bytes * p.deleted_ratio for p in by_deletes)
    unsorted_bytes = sum(p.data_bytes * (p.overlap or 0) for p in choice.by(Cause.ORDER))
    return Due(
        Work(Operation.COMPACT, steps, tuple(notes)),
        benefit=compaction_benefit(removed, deletes, deleted_bytes + unsorted_bytes),
        cost=spark_cost(sum(s.bytes for s in steps), len(steps)),
        why="; ".join([*_reasons(facts, choice), *_left_out(facts, choice)]),
        files=removed + deletes,
        per_file=OPEN_COST_MB,
    )


def _older_specs(facts: TableFacts, step: RewriteDataFiles) -> bool:
    """Return whether files of an older spec that nobody chose might match a filter on the chosen partitions."""
    keys = set(step.partitions)
    current = facts.metadata.default_spec_id
    return any(p.spec_id != current and p.candidate_files and p.key not in keys for p in facts.partitions)


def _reasons(facts: TableFacts, choice: Choice) -> list[str]:
    reasons = []
    if by_size := choice.by(Cause.SIZE):
        files = sum(p.candidate_files for p in by_size)
        size = sum(p.candidate_bytes for p in by_size) / files / MEGABYTE
        targets = sorted({facts.thresholds.of(p.data_bytes).target_bytes for p in by_size})
        target = " to ".join(f"{t / MEGABYTE:g}" for t in dict.fromkeys((targets[0], targets[-1])))
        reasons.append(f"{files} files of {size:.3g} MB on average in {len(by_size)} partition(s), target {target} MB")
    if by_deletes := choice.by(Cause.DELETES):
        files = sum(p.delete_files for p in by_deletes)
        share = sum(p.deleted_rows for p in by_deletes) / max(1, sum(p.records for p in by_deletes))
        reasons.append(f"{files} delete files for {share:.0%} of the rows in {len(by_deletes)} partition(s)")
    if by_order := choice.by(Cause.ORDER):
        worst = max(p.overlap or 0 for p in by_order)
        reasons.append(
            f"{len(by_order)} partition(s) lost their order: up to {worst:.0%} of the pairs of files overlap"
        )
    return reasons


def _left_out(facts: TableFacts, choice: Choice) -> list[str]:
    said = (("hot, left to the writer", choice.hot), ("previous rewrite had no effect", choice.stuck))
    return [f"{why}: {_named(facts, partitions)}" for why, partitions in said if partitions]


def _named(facts: TableFacts, partitions: Sequence[PartitionFacts]) -> str:
    shown = ", ".join(partition_name(facts.metadata, p.key) for p in partitions[:_SHOWN])
    return f"{shown} and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else shown


def written_order(knobs: Knobs, table_order: str | None) -> str | None:
    """Return the policy's order, else the table's own, as Spark's procedure takes it; none for binpack."""
    order = knobs[policy.SORT_ORDER] or table_order
    if knobs[policy.STRATEGY] == "binpack" or order is None:
        return None
    zorder = knobs[policy.STRATEGY] == "zorder" and not order.lower().startswith("zorder(")
    return f"zorder({order})" if zorder else order


def _options(facts: TableFacts, knobs: Knobs, batch: Sequence[PartitionFacts], cause: Cause) -> dict[str, str]:
    """Return the procedure's options, named as Spark's documentation does."""
    sizes = facts.thresholds.of(max(p.data_bytes for p in batch))
    held = sum(_rewritten_bytes(p, cause) for p in batch)
    partial = knobs[policy.PARTIAL_PROGRESS] and held >= knobs[policy.PARTIAL_FROM] * MEGABYTE
    equality = any(p.equality_delete_files for p in facts.partitions)
    options = {
        "target-file-size-bytes": sizes.target_bytes,
        "min-file-size-bytes": sizes.min_bytes,
        "max-file-size-bytes": sizes.max_bytes,
        "min-input-files": knobs[policy.MIN_INPUT_FILES],
        "max-file-group-size-bytes": knobs[policy.MAX_GROUP_SIZE] * MEGABYTE,
        "max-concurrent-file-group-rewrites": knobs[policy.MAX_CONCURRENT_GROUPS],
        "remove-dangling-deletes": str(knobs[policy.REMOVE_DANGLING] and facts.delete_files > 0).lower(),
        "partial-progress.enabled": str(partial).lower(),
        # An equality delete committed meanwhile would lose its effect on outputs of the starting sequence number
        # (iceberg issue 10312); without it such a commit conflicts and is planned again.
        "use-starting-sequence-number": str(not equality).lower(),
    }
    if partial:
        options["partial-progress.max-commits"] = knobs[policy.MAX_COMMITS]
        options["partial-progress.max-failed-commits"] = knobs[policy.MAX_FAILED_COMMITS]
    if cause is Cause.ORDER:
        options["rewrite-all"] = "true"
    elif cause is Cause.DELETES:
        options["delete-file-threshold"] = 1
    elif knobs[policy.DELETE_RATIO_THRESHOLD] > 0:
        options["delete-ratio-threshold"] = knobs[policy.DELETE_RATIO_THRESHOLD]
    return {name: str(value) for name, value in options.items()}
