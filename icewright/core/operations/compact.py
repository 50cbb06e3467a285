"""Compaction: partitions with many small files, or with many rows deleted, and that nobody is writing to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from icewright.core import policy
from icewright.core.cost import compaction_benefit, spark_cost
from icewright.core.health import files_to_save
from icewright.core.partitions import partition_name
from icewright.core.policy import MEGABYTE, Knobs, Operation
from icewright.core.predicates import partitions_predicate
from icewright.core.runs import LastRun
from icewright.core.steps import Blocked, Due, NotDue, RewriteDataFiles, Verdict, Work
from icewright.core.table import PartitionFacts, TableFacts

NOTHING = "no files eligible for compaction"
PARTITIONS_A_CALL = 500  # longer predicates make Spark's planning slow


@dataclass(frozen=True, slots=True)
class Choice:
    """Which partitions are worth rewriting, for which cause, and which are left to their writers."""

    by_size: tuple[PartitionFacts, ...]
    by_deletes: tuple[PartitionFacts, ...]
    hot: tuple[PartitionFacts, ...]


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Due when at least one partition that is not hot is worth rewriting."""
    if facts.metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    if facts.delete_files and not knobs[policy.APPLY_DELETES]:
        return NotDue("compaction skipped: delete manifests present and apply_deletes is disabled")
    if last is not None and last.left(facts.metadata, knobs):
        return NotDue(f"{NOTHING}: the last run left the table as it is")
    choice = choose(facts, knobs, now)
    if not choice.by_size and not choice.by_deletes:
        if not choice.hot:
            return NotDue(NOTHING)
        hot = timedelta(minutes=knobs[policy.HOT_MINUTES])
        cooled = min(p.last_write + hot for p in choice.hot if p.last_write is not None)
        return NotDue(f"{NOTHING}; {_hot_note(facts, choice.hot)}", cooled)
    strategy = knobs[policy.STRATEGY]
    order = knobs[policy.SORT_ORDER] or facts.metadata.sort_order
    if strategy != "binpack" and order is None:
        return Blocked(f"strategy {strategy} needs compact.sort_order, or a sort order on the table")
    return _due(facts, knobs, choice, None if strategy == "binpack" else order)


def choose(facts: TableFacts, knobs: Knobs, now: datetime) -> Choice:
    """Sort the partitions by what should become of them."""
    by_size: list[PartitionFacts] = []
    by_deletes: list[PartitionFacts] = []
    hot: list[PartitionFacts] = []
    for partition in facts.partitions:
        deletes = _deletes_due(partition, knobs)
        if not deletes and not _size_due(partition, facts, knobs):
            continue
        if _is_hot(partition, facts, knobs, now):
            hot.append(partition)
        else:
            (by_deletes if deletes else by_size).append(partition)
    return Choice(tuple(by_size), tuple(by_deletes), tuple(hot))


def _size_due(partition: PartitionFacts, facts: TableFacts, knobs: Knobs) -> bool:
    """Iceberg's rule for a group (enough files, or more than one target's worth) and a real gain.

    The gain keeps the choice a fixed point: files that would come out as they went in are not rewritten.
    """
    target = facts.thresholds.target_bytes
    count = partition.candidate_files
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


def _is_hot(partition: PartitionFacts, facts: TableFacts, knobs: Knobs, now: datetime) -> bool:
    """An unpartitioned table is never hot: leaving it to its writer would leave it for ever."""
    if knobs[policy.HOT_PARTITIONS] == "include" or partition.last_write is None:
        return False
    partitioned = any(f.transform != "void" for f in facts.metadata.spec(partition.spec_id).fields)
    return partitioned and now - partition.last_write < timedelta(minutes=knobs[policy.HOT_MINUTES])


def _due(facts: TableFacts, knobs: Knobs, choice: Choice, order: str | None) -> Due | Blocked:
    chosen = (*choice.by_size, *choice.by_deletes)
    notes = [_hot_note(facts, choice.hot)] if choice.hot else []
    said: list[tuple[Sequence[PartitionFacts], bool, str]] = []  # partitions, by deletes, the filter that says them
    unsaid = 0
    for partitions, by_deletes in ((choice.by_size, False), (choice.by_deletes, True)):
        for batch in _batches(partitions):
            where = partitions_predicate(facts.metadata, batch)
            if where is None:
                unsaid += len(batch)
            else:
                said.append((batch, by_deletes, where))
    whole = len(chosen) == len(facts.partitions) and not (choice.by_size and choice.by_deletes)
    if choice.hot and unsaid:
        notes.append(f"{unsaid} partition(s) wait: no filter tells them apart from the hot ones")
    elif whole or unsaid:  # one call for all: a second would only meet what the first has written
        if not whole:
            notes.append(f"no filter says {unsaid} partition(s): the whole table is rewritten as due")
        by_deletes = bool(choice.by_deletes)
        step = _step(facts, knobs, order, chosen, by_deletes=by_deletes, where=None)
        return _judged(facts, choice, (replace(step, partitions=tuple(p.key for p in facts.partitions)),), notes)
    if not said:
        return Blocked("; ".join(notes))
    if any(_older_specs(facts, batch) for batch, _, _ in said):
        notes.append("files of older partition specs may be rewritten too: no filter tells them apart")
    steps = [_step(facts, knobs, order, batch, by_deletes=d, where=where) for batch, d, where in said]
    return _judged(facts, choice, tuple(steps), notes)


def _step(
    facts: TableFacts,
    knobs: Knobs,
    order: str | None,
    batch: Sequence[PartitionFacts],
    *,
    by_deletes: bool,
    where: str | None,
) -> RewriteDataFiles:
    return RewriteDataFiles(
        where=where,
        user_where=knobs[policy.WHERE],
        strategy="binpack" if knobs[policy.STRATEGY] == "binpack" else "sort",
        sort_order=_zorder(order) if knobs[policy.STRATEGY] == "zorder" else order,
        options=_options(facts, knobs, by_deletes=by_deletes),
        partitions=tuple(p.key for p in batch),
        by_deletes=by_deletes,
        files=sum(p.data_files if by_deletes else p.candidate_files for p in batch),
        bytes=sum(p.data_bytes if by_deletes else p.candidate_bytes for p in batch),
    )


def _judged(facts: TableFacts, choice: Choice, steps: tuple[RewriteDataFiles, ...], notes: Sequence[str]) -> Due:
    chosen = (*choice.by_size, *choice.by_deletes)
    removed = sum(files_to_save(p, facts) for p in chosen)
    deletes = sum(p.delete_files for p in choice.by_deletes)
    deleted_bytes = sum(p.data_bytes * p.deleted_ratio for p in choice.by_deletes)
    return Due(
        Work(Operation.COMPACT, steps, tuple(notes)),
        benefit=compaction_benefit(removed, deletes, deleted_bytes),
        cost=spark_cost(sum(s.bytes for s in steps), len(steps)),
        why="; ".join(_reasons(facts, choice)),
    )


def _older_specs(facts: TableFacts, batch: Sequence[PartitionFacts]) -> bool:
    """Whether files of an older spec that nobody chose might match a filter on the chosen partitions."""
    keys = {p.key for p in batch}
    current = facts.metadata.default_spec_id
    return any(p.spec_id != current and p.candidate_files and p.key not in keys for p in facts.partitions)


def _batches(partitions: Sequence[PartitionFacts]) -> list[tuple[PartitionFacts, ...]]:
    return [tuple(partitions[i : i + PARTITIONS_A_CALL]) for i in range(0, len(partitions), PARTITIONS_A_CALL)]


def _reasons(facts: TableFacts, choice: Choice) -> list[str]:
    reasons = []
    if choice.by_size:
        files = sum(p.candidate_files for p in choice.by_size)
        size = sum(p.candidate_bytes for p in choice.by_size) / files / MEGABYTE
        target = facts.thresholds.target_bytes / MEGABYTE
        reasons.append(
            f"{files} files of {size:.3g} MB on average in {len(choice.by_size)} partition(s), target {target:g} MB"
        )
    if choice.by_deletes:
        files = sum(p.delete_files for p in choice.by_deletes)
        share = sum(p.deleted_rows for p in choice.by_deletes) / max(1, sum(p.records for p in choice.by_deletes))
        reasons.append(f"{files} delete files for {share:.0%} of the rows in {len(choice.by_deletes)} partition(s)")
    if choice.hot:
        reasons.append(_hot_note(facts, choice.hot))
    return reasons


def _hot_note(facts: TableFacts, hot: Sequence[PartitionFacts]) -> str:
    shown = ", ".join(partition_name(facts.metadata, p.key) for p in hot[:3])
    more = f" and {len(hot) - 3} more" if len(hot) > 3 else ""  # noqa: PLR2004 - as many as are shown
    return f"hot, left to the writer: {shown}{more}"


def _zorder(order: str | None) -> str | None:
    return order if order is None or order.lower().startswith("zorder(") else f"zorder({order})"


def _options(facts: TableFacts, knobs: Knobs, *, by_deletes: bool) -> dict[str, str]:
    """The procedure's options, named as Spark's documentation does."""
    sizes = facts.thresholds
    partial = knobs[policy.PARTIAL_PROGRESS]
    equality = any(p.equality_delete_files for p in facts.partitions)
    options = {
        "target-file-size-bytes": sizes.target_bytes,
        "min-file-size-bytes": sizes.min_bytes,
        "max-file-size-bytes": sizes.max_bytes,
        "min-input-files": knobs[policy.MIN_INPUT_FILES],
        "max-file-group-size-bytes": knobs[policy.MAX_GROUP_SIZE] * MEGABYTE,
        "max-concurrent-file-group-rewrites": knobs[policy.MAX_CONCURRENT_GROUPS],
        "remove-dangling-deletes": str(knobs[policy.REMOVE_DANGLING]).lower(),
        "partial-progress.enabled": str(partial).lower(),
        # An equality delete committed meanwhile would lose its effect on outputs of the starting sequence number
        # (iceberg issue 10312); without it such a commit conflicts and is planned again.
        "use-starting-sequence-number": str(not equality).lower(),
    }
    if partial:
        options["partial-progress.max-commits"] = knobs[policy.MAX_COMMITS]
        options["partial-progress.max-failed-commits"] = knobs[policy.MAX_FAILED_COMMITS]
    if by_deletes:
        options["delete-file-threshold"] = 1
    elif knobs[policy.DELETE_RATIO_THRESHOLD] > 0:
        options["delete-ratio-threshold"] = knobs[policy.DELETE_RATIO_THRESHOLD]
    return {name: str(value) for name, value in options.items()}
