"""Branches other than main: those that compaction is asked to rewrite, and those that it leaves with bad files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core import rewriting
from icewright.core.ancestry import ancestors, newer_than
from icewright.core.effective import Knobs
from icewright.core.layering import matches_any
from icewright.core.policy import PUBLISH_HOURS
from icewright.core.runs import JOB_ID, LastRun
from icewright.core.steps import Blocked, CheckFiles, Due, NotDue, RewriteDataFiles, Step, Verdict, moves_main
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotRef, TableFacts, TableMetadata
from icewright.core.words import byte_size
from icewright.core.writer_state import newest_states, staged_ids, summary_number

_SHOWN = 3
Evaluate = Callable[[TableFacts, Knobs, LastRun | None, datetime], Verdict]


def on_branch(metadata: TableMetadata, branch: str | None) -> TableMetadata:
    """Return the metadata as readers of the branch see them: its head is the current snapshot. None: as they are."""
    if branch is None:
        return metadata
    heads = (ref.snapshot_id for ref in metadata.refs if ref.kind is RefKind.BRANCH and ref.name == branch)
    return replace(metadata, current_snapshot_id=next(heads, None))


def chosen_branches(metadata: TableMetadata, knobs: Knobs) -> list[str]:
    """Return the branches with commits of their own that `compact.branches` names."""
    patterns = knobs[rewriting.BRANCHES]
    return [ref.name for ref in _own_branches(metadata) if patterns and matches_any(patterns, ref.name)]


def on_all_branches(evaluate: Evaluate) -> Evaluate:
    """Return the function that evaluates main, and each branch that the policy names, by the function of one branch."""

    def joined(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
        branches = {
            name: evaluate(branch, knobs, last and last.on_branch(name), now) for name, branch in facts.branches.items()
        }
        return _with_branches(evaluate(facts, knobs, last, now), facts, branches, knobs)

    return joined


def after_publication(due: Due, facts: TableFacts, knobs: Knobs, now: datetime) -> Due:
    """Return the verdict, postponed where its commits would keep others from publishing what they have written."""
    steps, wait = due.work.steps, timedelta(hours=knobs[PUBLISH_HOURS])
    unpublished = _unpublished(facts.metadata) if any(moves_main(step) for step in steps) else ()
    unmerged = facts.unmerged if not all(isinstance(step, CheckFiles) for step in steps) else ()
    waiting = [(since, what) for since, what in (*unpublished, *unmerged) if abs(now - since) < wait]
    if not waiting:
        return due
    since, what = max(waiting)
    why = f"{what} leads on from the head and could not be published after another commit"
    until = f"execute.publish_hours waits until {since + wait:%Y-%m-%d %H:%M} UTC"
    work = replace(due.work, notes=(*due.work.notes, why))
    return replace(due, work=work, postponed=NotDue(f"{why}: {until}", since + wait))


def _unpublished(metadata: TableMetadata) -> Iterator[tuple[datetime, str]]:
    """Yield what Iceberg publishes only while main's head stays the same, and since when it is there.

    That are branches, by fast-forward, and snapshots that were staged. Those that append can be published on any head.
    """
    if (head := metadata.current_snapshot_id) is None:
        return
    for ref in metadata.refs:
        if ref.kind is RefKind.BRANCH and (found := newer_than(metadata, ref.snapshot_id, {head})):
            first = found[1][-1:]
            yield from ((s.timestamp, f"branch {ref.name}") for s in first if JOB_ID not in s.summary)
    for snapshot_id, wap_id in staged_ids(metadata).items():
        snapshot = metadata.by_id[snapshot_id]
        if snapshot.parent_id == head and snapshot.operation != "append":
            yield snapshot.timestamp, f"the snapshot staged as {wap_id}"


def _with_branches(main: Verdict, facts: TableFacts, branches: Mapping[str, Verdict], knobs: Knobs) -> Verdict:
    """Return the verdict on main joined with those on other branches; notes name branches that are left as they are."""
    if not isinstance(main, Due | NotDue):
        return main
    due = {name: found for name, found in branches.items() if isinstance(found, Due)}
    notes = [f"branch {name}: {found.reason}" for name, found in branches.items() if isinstance(found, Blocked)]
    notes += _neglected(facts, knobs)
    if not due:
        return _noted(main, notes) if notes else main
    parts = [*([main] if isinstance(main, Due) else []), *due.values()]
    first, values = parts[0], [part.value for part in parts if part.value is not None]
    steps = [*(main.work.steps if isinstance(main, Due) else ())]
    steps += [_on(step, name) for name, found in due.items() for step in found.work.steps]
    all_notes = (*(note for part in parts for note in part.work.notes), *notes)
    return replace(
        first,
        work=replace(first.work, steps=tuple(steps), notes=tuple(dict.fromkeys(all_notes))),
        benefit=sum(part.benefit for part in parts),
        cost=sum(part.cost for part in parts),
        why="; ".join(
            [*([main.why] if isinstance(main, Due) else []), *(f"branch {name}: {d.why}" for name, d in due.items())]
        ),
        files=sum(part.files for part in parts),
        value=sum(values) if len(values) == len(parts) else None,
    )


def _on(step: Step, branch: str) -> Step:
    """Return the step on a branch. Iceberg removes dangling deletes of main alone."""
    if not isinstance(step, RewriteDataFiles):
        return step
    return replace(step, branch=branch, options={**step.options, "remove-dangling-deletes": "false"})


def _noted(verdict: Due | NotDue, notes: Sequence[str]) -> Verdict:
    if isinstance(verdict, NotDue):
        return replace(verdict, notes=(*verdict.notes, *notes))
    return replace(verdict, work=replace(verdict.work, notes=(*verdict.work.notes, *notes)))


def _own_branches(metadata: TableMetadata) -> list[SnapshotRef]:
    """Return the branches besides main whose heads are not in main's history.

    A branch whose commits Flink converts into commits to main is left out: its job fails on rewritten data files.
    """
    branches = [ref for ref in metadata.refs if ref.kind is RefKind.BRANCH and ref.name != MAIN]
    if not branches or metadata.current_snapshot_id is None:
        return branches
    of_main = {snapshot.snapshot_id: snapshot for snapshot in ancestors(metadata, metadata.current_snapshot_id)}
    converted = {state.converted for state in newest_states(of_main.values(), ())} - of_main.keys()
    own = [ref for ref in branches if ref.snapshot_id not in of_main]
    return [r for r in own if converted.isdisjoint(s.snapshot_id for s in ancestors(metadata, r.snapshot_id))]


def _neglected(facts: TableFacts, knobs: Knobs) -> list[str]:
    """Return a note for branches that nothing compacts and that have small files or deletes by their heads' totals."""
    heads = ((r, facts.metadata.by_id.get(r.snapshot_id)) for r in _own_branches(facts.metadata))
    left = [(ref, head) for ref, head in heads if ref.name not in facts.branches and head is not None]
    bad = [text for ref, head in left if (text := _bad_files(ref, head, facts, knobs)) is not None]
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return [f"{'; '.join(bad[:_SHOWN])}{more}: set compact.branches to compact branches too"] if bad else []


def _bad_files(ref: SnapshotRef, head: Snapshot, facts: TableFacts, knobs: Knobs) -> str | None:
    names = ("total-data-files", "total-delete-files", "total-files-size")
    files, deletes, size = (summary_number(head, name) for name in names)
    small = files >= knobs[rewriting.MIN_INPUT_FILES] and size < files * facts.thresholds.of(size).min_bytes
    if not small and not deletes:
        return None
    average = f"{byte_size(size / files)} on average" if files else "no size"
    return f"branch {ref.name} has {files} data files of {average} and {deletes} delete files"
