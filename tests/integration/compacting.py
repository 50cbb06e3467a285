"""One compaction with its proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icewright.core.policy import Operation
from icewright.core.runs import OperationState, Outcome
from icewright.core.steps import Due
from tests.integration.bench import Bench, paths

KNOBS: Mapping[str, object] = {
    "compact.min_input_files": 2,
    "compact.delete_file_threshold": 1,
    "rewrite_deletes.min_delete_files": 2,
    "compact.hot_minutes": 10,
}


@dataclass(frozen=True)
class Round:
    """One compaction with what the table was before and is after it."""

    outcome: Outcome
    before: frozenset[tuple[int, str]]
    after: frozenset[tuple[int, str]]

    @property
    def removed(self) -> frozenset[str]:
        """Data files that are not live any more."""
        return paths(p for content, p in self.before - self.after if content == 0)


def compacted(bench: Bench, name: str, knobs: Mapping[str, object] = KNOBS) -> Round:
    """Compact by hand; rows stay, and exactly the files that the dry run listed are rewritten."""
    read, before, files = bench.read(name), bench.live(name), bench.files(name)
    result = bench.run(name, Operation.COMPACT, knobs, dry_run=True)
    assert bench.files(name) == files
    done = bench.run(name, Operation.COMPACT, knobs)
    assert done.state is OperationState.COMMITTED, done
    found = Round(done, before, bench.live(name))
    assert bench.read(name) == read
    listed = paths(f.path for f in result.files if f.kind == "data")
    assert listed == found.removed, (
        f"listed only {sorted(listed - found.removed)}, rewritten only {sorted(found.removed - listed)} "
        f"by {done.statements}, notes {done.notes}"
    )
    rewritten = paths(f.path for f in done.files if f.kind == "data")
    assert rewritten == found.removed, sorted(rewritten ^ found.removed)
    assert done.metrics["files_merged"] == len(found.removed)
    return found


def at_rest(bench: Bench, name: str, knobs: Mapping[str, object] = KNOBS) -> None:
    """After at most one more round neither rewriting is due, and a run changes nothing."""
    verdict = bench.evaluate(name, knobs).verdicts[Operation.COMPACT]
    if isinstance(verdict, Due):
        compacted(bench, name, knobs)
    verdicts = bench.evaluate(name, knobs).verdicts
    for operation in (Operation.COMPACT, Operation.REWRITE_DELETES):
        assert not isinstance(verdicts[operation], Due), verdicts[operation]
