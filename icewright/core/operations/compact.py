"""Compaction: rewriting partitions that have many small files, many deleted rows or lost their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from icewright.core import merging, rewriting
from icewright.core.compaction import Cause, Choice, PartitionRewrite, choose
from icewright.core.cost import OPEN_COST_MB, REWRITES, compaction_benefit
from icewright.core.effective import Knobs
from icewright.core.kernel import Kernels, counting, kernels, option_notes, output_spec, passed_options, written_order
from icewright.core.partitions import partition_name
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.predicates import partitions_predicate
from icewright.core.runs import LastRun
from icewright.core.steps import Blocked, Due, Kernel, NotDue, RewriteDataFiles, Verdict, Work
from icewright.core.table import PartitionFacts, TableFacts
from icewright.core.words import byte_size, count, some

NOTHING = "no files eligible for compaction"
PARTITIONS_A_CALL = 500  # longer predicates make Spark's planning slow
_MOST_DEAD = 0.5  # share of dead rows that the target of outputs is corrected for


_Groups = dict[tuple[Cause, int, int, Kernel], list[PartitionRewrite]]  # by cause, target, size limit and kernel


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Return Due when at least one partition is worth rewriting now."""
    if facts.metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    if facts.delete_files and not knobs[rewriting.APPLY_DELETES]:
        return NotDue("compaction skipped: delete manifests present and apply_deletes is disabled")
    choice = choose(facts, knobs, last, now)
    if not choice.due:
        return NotDue("; ".join([NOTHING, *_left_out(facts, choice, knobs)]), choice.revisit)
    if last is not None and last.leaves_nothing(facts.metadata, knobs):
        left = {rewrite.partition.key for rewrite in choose(facts, knobs, last, last.finished).due}
        if all(rewrite.partition.key in left for rewrite in choice.due):  # time has made nothing else due since
            return NotDue(f"{NOTHING}: the last run left the table as it is", choice.revisit)
    strategy = knobs[rewriting.STRATEGY]
    order = written_order(knobs, facts.metadata.sort_order)
    if strategy != "binpack" and order is None:
        return Blocked(f"strategy {strategy} needs compact.sort_order, or a sort order on the table")
    return _due(facts, knobs, choice, order)


def _due(facts: TableFacts, knobs: Knobs, choice: Choice, order: str | None) -> Due | Blocked:
    chosen = [rewrite.partition for rewrite in choice.due]
    engines = kernels(facts, chosen, knobs, order)
    if engines.refused is not None:
        return Blocked(engines.refused)
    notes = [*_left_out(facts, choice, knobs), *engines.why, *option_notes(knobs)]
    groups = _groups(choice, engines)
    max_bytes = knobs[rewriting.MAX_CALL_SIZE] * MEGABYTE
    calls = [
        (batch, partitions_predicate(facts.metadata, [rewrite.partition for rewrite in batch]))
        for batch in _batches(groups, max_bytes)
    ]
    steps = [_step(facts, knobs, order, batch, where, engines) for batch, where in calls if where is not None]
    inexpressible = sum(len(batch) for batch, where in calls if where is None)
    one_call = len(groups) == 1 and sum(rewrite.bytes for rewrite in choice.due) <= max_bytes
    whole_table = len(chosen) == len(choice.admitted) and one_call
    if (choice.hot or choice.ineffective) and inexpressible:
        notes.append(f"{count(inexpressible, 'partition')} left to later: no filter tells them apart from the rest")
    elif whole_table or inexpressible:  # one call for all: a second would only meet what the first has written
        if not whole_table:
            notes.append(f"no filter says {count(inexpressible, 'partition')}: the whole table is rewritten as due")
        strongest = min((rewrite.cause for rewrite in choice.due), key=[*Cause].index)
        batch = [replace(rewrite, cause=strongest) for rewrite in choice.due]
        step = _step(facts, knobs, order, batch, None, engines)
        return _verdict(facts, knobs, choice, (replace(step, partitions=tuple(p.key for p in choice.admitted)),), notes)
    if not steps:
        return Blocked("; ".join(notes))
    if any(_other_specs(facts, step) for step in steps):
        notes.append("files of other partition specs may be rewritten too: no filter tells them apart")
    return _verdict(facts, knobs, choice, tuple(steps), notes)


def _groups(choice: Choice, engines: Kernels) -> _Groups:
    """Return the rewrites that one call can do, by what they have in common, the weakest cause first."""
    groups: _Groups = {}
    for rewrite in choice.due:
        key = (rewrite.cause, rewrite.target, rewrite.below or 0, engines.by_partition[rewrite.partition.key])
        groups.setdefault(key, []).append(rewrite)
    weakest_first = [*reversed(Cause)]
    return dict(sorted(groups.items(), key=lambda item: (weakest_first.index(item[0][0]), *item[0][1:])))


def _batches(groups: _Groups, max_bytes: int) -> Iterator[list[PartitionRewrite]]:
    """Yield the rewrites of one call each: of one group, neither too many partitions nor too many bytes."""
    for group in groups.values():
        batch: list[PartitionRewrite] = []
        size = 0
        for rewrite in group:
            if batch and (size + rewrite.bytes > max_bytes or len(batch) == PARTITIONS_A_CALL):
                yield batch
                batch, size = [], 0
            batch.append(rewrite)
            size += rewrite.bytes
        yield batch


def _step(
    facts: TableFacts,
    knobs: Knobs,
    order: str | None,
    batch: Sequence[PartitionRewrite],
    where: str | None,
    engines: Kernels,
) -> RewriteDataFiles:
    return RewriteDataFiles(
        where=where,
        user_where=knobs[rewriting.WHERE],
        strategy="binpack" if knobs[rewriting.STRATEGY] == "binpack" else "sort",
        sort_order=order,
        options={**_options(facts, knobs, batch), **passed_options(knobs, order)},
        partitions=tuple(rewrite.partition.key for rewrite in batch),
        by_deletes=batch[0].cause is Cause.DELETES,
        files=sum(rewrite.files for rewrite in batch),
        bytes=sum(rewrite.bytes for rewrite in batch),
        kernel=engines.of(rewrite.partition for rewrite in batch),
        may_fall_back=knobs[rewriting.KERNEL] == "auto",
        memory_bytes=knobs[rewriting.TASK_MEMORY] * MEGABYTE,
        counting=counting(facts, knobs),
        properties=engines.properties,
    )


def _verdict(
    facts: TableFacts, knobs: Knobs, choice: Choice, steps: tuple[RewriteDataFiles, ...], notes: Sequence[str]
) -> Due:
    saved = sum(rewrite.saved for rewrite in choice.due)
    by_deletes = [rewrite.partition for rewrite in choice.with_cause(Cause.DELETES)]
    delete_files = sum(p.delete_files for p in by_deletes)
    deleted_bytes = sum(p.data_bytes * p.deleted_ratio for p in by_deletes)
    unsorted_bytes = sum(r.bytes * (r.partition.overlap or 0) for r in choice.with_cause(Cause.ORDER))
    values = [rewrite.value for rewrite in choice.due if rewrite.value is not None]
    return Due(
        Work(Operation.COMPACT, steps, tuple(notes)),
        benefit=compaction_benefit(saved, delete_files, deleted_bytes + unsorted_bytes),
        cost=sum(REWRITES[s.kernel].gb_hours(s.files, s.bytes) for s in steps),
        why="; ".join([*_reasons(facts, choice), *_left_out(facts, choice, knobs)]),
        files=saved + delete_files,
        per_file=OPEN_COST_MB,
        value=sum(values) if len(values) == len(choice.due) else None,
        grows_from=max((r.grows_from for r in choice.due if r.grows_from is not None), default=None),
    )


def _other_specs(facts: TableFacts, step: RewriteDataFiles) -> bool:
    """Return whether files of another spec that nobody chose might match a filter on the chosen partitions."""
    keys = set(step.partitions)
    exact = {facts.metadata.default_spec_id} & {spec_id for spec_id, _ in keys}
    every = step.options.get("rewrite-all") == "true"
    return any(p.spec_id not in exact and (p.candidate_files or every) and p.key not in keys for p in facts.partitions)


def _reasons(facts: TableFacts, choice: Choice) -> list[str]:
    reasons = []
    if by_size := choice.with_cause(Cause.SIZE):
        files = sum(rewrite.files for rewrite in by_size)
        size = sum(rewrite.bytes for rewrite in by_size) / files
        targets = sorted({facts.thresholds.of(r.partition.data_bytes).target_bytes for r in by_size})
        target = " to ".join(byte_size(target) for target in dict.fromkeys((targets[0], targets[-1])))
        merged = f"{files} files of {byte_size(size)} on average in {count(len(by_size), 'partition')}"
        reasons.append(f"{merged}, target {target}{choice.reads}")
        if hot := sum(rewrite.hot for rewrite in by_size):
            reasons.append(
                f"{count(hot, 'hot partition')} among them, whose writers only append: they do not conflict with it"
            )
    if by_deletes := [rewrite.partition for rewrite in choice.with_cause(Cause.DELETES)]:
        files = sum(p.delete_files for p in by_deletes)
        share = sum(p.deleted_rows for p in by_deletes) / max(1, sum(p.records for p in by_deletes))
        reasons.append(f"{files} delete files for {share:.0%} of the rows in {count(len(by_deletes), 'partition')}")
    if asked := choice.with_cause(Cause.ASKED):
        reasons.append(f"compact.rewrite_all asks for all files of {count(len(asked), 'partition')}")
    if by_spec := choice.with_cause(Cause.SPEC):
        reasons.append(f"{sum(r.files for r in by_spec)} files of other partition specs than compact.output_spec_id")
    if by_order := choice.with_cause(Cause.ORDER):
        worst = max(rewrite.partition.overlap or 0 for rewrite in by_order)
        reasons.append(
            f"{count(len(by_order), 'partition')} out of order: up to {worst:.0%} of the pairs of files overlap"
        )
    return reasons


def _left_out(facts: TableFacts, choice: Choice, knobs: Knobs) -> list[str]:
    """Return why partitions are left as they are, each reason with their names."""
    reasons = (("hot, left to the writer", choice.hot), ("previous rewrite had no effect", choice.ineffective))
    texts = [f"{reason}: {_named(facts, partitions)}" for reason, partitions in reasons if partitions]
    if choice.not_worthwhile:
        partitions, values, costs = zip(*choice.not_worthwhile, strict=True)
        balance = merging.does_not_pay(sum(values), sum(costs), knobs)
        texts.append(f"does not pay yet{choice.reads}, {balance}: {_named(facts, partitions)}")
    if choice.awaiting_files:
        partitions, full = zip(*choice.awaiting_files, strict=True)
        wait = f"last merge waits until what arrives fills its files, expected by {min(full):%Y-%m-%d %H:%M} UTC"
        texts.append(f"{wait}: {_named(facts, partitions)}")
    return texts


def _named(facts: TableFacts, partitions: Sequence[PartitionFacts]) -> str:
    return some([partition_name(facts.metadata, p.key) for p in partitions])


def _options(facts: TableFacts, knobs: Knobs, batch: Sequence[PartitionRewrite]) -> dict[str, str]:
    """Return the procedure's options, named as Spark's documentation does."""
    cause = batch[0].cause
    sizes = facts.thresholds.of(max(rewrite.partition.data_bytes for rewrite in batch))
    target = max(rewrite.target for rewrite in batch)
    if cause is Cause.DELETES:
        sizes = sizes.scaled(target := _target_for_live_rows(target, batch))
    below = max(rewrite.below or sizes.min_bytes for rewrite in batch)
    rewritten = sum(rewrite.bytes for rewrite in batch)
    partial = knobs[rewriting.PARTIAL_PROGRESS] and rewritten >= knobs[rewriting.PARTIAL_FROM] * MEGABYTE
    options = {
        "target-file-size-bytes": target,
        "min-file-size-bytes": min(below, sizes.min_bytes),
        "max-file-size-bytes": sizes.max_bytes,
        "min-input-files": knobs[rewriting.MIN_INPUT_FILES],
        "max-file-group-size-bytes": knobs[rewriting.MAX_GROUP_SIZE] * MEGABYTE,
        "max-concurrent-file-group-rewrites": knobs[rewriting.MAX_CONCURRENT_GROUPS],
        "remove-dangling-deletes": str(knobs[rewriting.REMOVE_DANGLING] and facts.delete_files > 0).lower(),
        "partial-progress.enabled": str(partial).lower(),
        # Iceberg's commit may drop an equality delete that came meanwhile and applies to outputs of the starting
        # sequence number (its issue 10312); without it such a commit conflicts. Arrow has its own way for these.
        "use-starting-sequence-number": "false",
    }
    if partial:
        options["partial-progress.max-commits"] = knobs[rewriting.MAX_COMMITS]
        options["partial-progress.max-failed-commits"] = knobs[rewriting.MAX_FAILED_COMMITS]
    if knobs[rewriting.OUTPUT_SPEC] is not None:
        options["output-spec-id"] = output_spec(facts, knobs)
    if cause in (Cause.ASKED, Cause.SPEC, Cause.ORDER):
        options["rewrite-all"] = "true"
    elif cause is Cause.DELETES:
        options["delete-file-threshold"] = 1
    elif knobs[rewriting.DELETE_RATIO_THRESHOLD] > 0:
        options["delete-ratio-threshold"] = knobs[rewriting.DELETE_RATIO_THRESHOLD]
    return {name: str(value) for name, value in options.items()}


def _target_for_live_rows(target: int, batch: Sequence[PartitionRewrite]) -> int:
    """Return the target of a rewrite that drops rows: Iceberg plans its outputs on the bytes that it reads.

    With the plain target they would come out too small, and the next pass would merge them again. Rows that deletes
    name are an upper bound of those that go, so the correction is bounded too.
    """
    rows, deleted = (sum(getattr(r.partition, name) for r in batch) for name in ("records", "deleted_rows"))
    live = 1 - min(_MOST_DEAD, deleted / rows if rows else 0.0)
    return int(target / live)
