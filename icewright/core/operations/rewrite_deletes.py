"""Delete files: position deletes merged when many and dropped when dangling, equality deletes turned into positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from icewright.core.cost import OPEN_COST_MB, conversion_gb_hours, spark_cost
from icewright.core.effective import Knobs
from icewright.core.merging import deletes_are_merged_instead
from icewright.core.policy import ENABLED, MEGABYTE, Operation
from icewright.core.predicates import partitions_predicate
from icewright.core.rewriting import DANGLING, MIN_DELETE_FILES, MIN_EQUALITY_DELETES, TASK_MEMORY
from icewright.core.runs import LastRun
from icewright.core.steps import ConvertEqualityDeletes, Due, NotDue, RewritePositionDeletes, Step, Verdict, Work
from icewright.core.table import FORMAT_V3, PartitionFacts, TableFacts
from icewright.core.words import count

_FEWEST_TO_MERGE = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """A step for delete files of one kind: how many files go, what that costs in GB-hours, and why it is due."""

    step: Step
    removed: int
    cost: float
    why: str


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:  # noqa: ARG001
    """Return Due when a partition has many delete files of one kind, or position deletes that apply to nothing."""
    if facts.metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    if last is not None and last.leaves_nothing(facts.metadata, knobs):
        return NotDue("the last run left the table as it is")
    many = [p for p in facts.partitions if _equality_deletes(p) >= knobs[MIN_EQUALITY_DELETES]]
    converted = [p for p in many if not p.other_formats]
    notes = () if len(converted) == len(many) else (_left_out(len(many) - len(converted)),)
    merge, conversion = _merge(facts, knobs), _conversion(facts, knobs, converted) if converted else None
    parts = [part for part in (merge, conversion) if part is not None]
    if not parts:
        files, least = sum(p.position_delete_files for p in facts.partitions), knobs[MIN_DELETE_FILES]
        return NotDue("; ".join((f"{files} position delete files, no partition has {least} to merge", *notes)))
    work = Work(Operation.REWRITE_DELETES, tuple(part.step for part in parts), notes)
    removed, cost = sum(part.removed for part in parts), sum(part.cost for part in parts)
    why = "; ".join((*(part.why for part in parts), *notes))
    return Due(work, OPEN_COST_MB * removed, cost, why, files=removed, per_file=OPEN_COST_MB)


def _merge(facts: TableFacts, knobs: Knobs) -> _Part | None:
    """Return the merge of position deletes, or None where no partition has enough of them.

    As many as would make compaction due are merged though the policy asks for more, as that costs less.
    Partitions with half as many position deletes are taken along: a call of their own soon after costs more than that.
    """
    least, also_dangling, compacts = knobs[MIN_DELETE_FILES], knobs[DANGLING], knobs[ENABLED[Operation.COMPACT]]
    with_deletes = [p for p in facts.partitions if p.position_delete_files or p.dangling_position_deletes]

    def having(deletes: float) -> Sequence[PartitionFacts]:
        return [
            p
            for p in with_deletes
            if p.mergeable_deletes >= deletes
            or (also_dangling and p.dangling_position_deletes)
            or (compacts and deletes_are_merged_instead(p, knobs))
        ]

    if not having(least):
        return None
    merged = having(min(least, max(_FEWEST_TO_MERGE, least / 2)))
    where = None if len(merged) == len(with_deletes) else partitions_predicate(facts.metadata, merged)
    files = sum(p.position_delete_files + p.dangling_position_deletes for p in merged)
    dangling = sum(p.dangling_position_deletes for p in merged)
    keys = tuple(p.key for p in (merged if where is not None else with_deletes))
    return _Part(
        RewritePositionDeletes(where, {"rewrite-all": "true"}, keys, files),
        sum(p.mergeable_deletes for p in merged) + dangling,
        spark_cost(files * 64 * 1024),
        f"{files} position delete files in {count(len(merged), 'partition')}, {dangling} of them apply to nothing",
    )


def _conversion(facts: TableFacts, knobs: Knobs, converted: Sequence[PartitionFacts]) -> _Part:
    """Return the conversion of the equality deletes of some partitions."""
    # one of an unpartitioned spec is counted in each partition
    files = min(sum(map(_equality_deletes, converted)), facts.delete_files)
    kind = "deletion vectors" if facts.metadata.format_version >= FORMAT_V3 else "position deletes"
    return _Part(
        ConvertEqualityDeletes(tuple(p.key for p in converted), files, knobs[TASK_MEMORY] * MEGABYTE),
        files,
        conversion_gb_hours(files, sum(p.data_files for p in converted)),
        f"{files} equality delete files in {count(len(converted), 'partition')}, which become {kind}",
    )


def _equality_deletes(partition: PartitionFacts) -> int:
    return partition.equality_delete_files + partition.dangling_equality_deletes


def _left_out(partitions: int) -> str:
    return f"equality deletes of {count(partitions, 'partition')} stay, as not all files there are Parquet"
