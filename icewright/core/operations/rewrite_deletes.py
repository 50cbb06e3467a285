"""Position delete files: merged when many, dropped when they apply to nothing any more."""

from __future__ import annotations

from datetime import datetime

from icewright.core.cost import OPEN_COST_MB, spark_cost
from icewright.core.effective import Knobs
from icewright.core.policy import DANGLING, MIN_DELETE_FILES, Operation
from icewright.core.predicates import partitions_predicate
from icewright.core.runs import LastRun
from icewright.core.steps import Due, NotDue, RewritePositionDeletes, Verdict, Work
from icewright.core.table import TableFacts
from icewright.core.words import count


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:  # noqa: ARG001
    """Return Due when a partition has many position delete files, or files that apply to nothing."""
    if facts.metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    least = knobs[MIN_DELETE_FILES]
    if last is not None and last.left(facts.metadata, knobs):
        return NotDue("the last run left the table as it is")
    also_dangling = knobs[DANGLING]
    with_deletes = [p for p in facts.partitions if p.position_delete_files or p.dangling_position_deletes]
    chosen = [
        p for p in with_deletes if p.mergeable_deletes >= least or (also_dangling and p.dangling_position_deletes)
    ]
    if not chosen:
        files = sum(p.position_delete_files for p in with_deletes)
        return NotDue(f"{files} position delete files, no partition has {least} to merge")
    where = None if len(chosen) == len(with_deletes) else partitions_predicate(facts.metadata, chosen)
    files = sum(p.position_delete_files + p.dangling_position_deletes for p in chosen)
    dangling = sum(p.dangling_position_deletes for p in chosen)
    keys = tuple(p.key for p in (chosen if where is not None else with_deletes))
    step = RewritePositionDeletes(where=where, options={"rewrite-all": "true"}, partitions=keys, files=files)
    removed = sum(p.mergeable_deletes for p in chosen) + dangling
    return Due(
        Work(Operation.REWRITE_DELETES, (step,)),
        benefit=OPEN_COST_MB * removed,
        cost=spark_cost(files * 64 * 1024),
        why=f"{files} position delete files in {count(len(chosen), 'partition')}, {dangling} of them apply to nothing",
        files=removed,
        per_file=OPEN_COST_MB,
    )
