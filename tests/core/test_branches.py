"""Branches besides main: compacted where a policy names them, else named in the verdict where they are bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core import verify
from icewright.core.branches import chosen_branches, on_branch
from icewright.core.effective import Knobs
from icewright.core.policy import Operation
from icewright.core.runs import LastRun, OperationState
from icewright.core.steps import Due, NotDue, RewriteDataFiles, Verdict
from icewright.core.table import PartitionFacts, RefKind, Snapshot, SnapshotRef, TableFacts, TableMetadata
from icewright.core.verdicts import verdict
from icewright.testing import NOW, facts, knobs, manifests, metadata, partition, snapshot

TOTALS = {"total-data-files": "90", "total-delete-files": "3", "total-files-size": str(90 << 20)}
SMALL = partition(files=10)


def _table(summary: Mapping[str, str] = TOTALS) -> TableMetadata:
    """A table with a branch of its own commit, one without, and a tag."""
    base = metadata()
    refs = (
        SnapshotRef("main", RefKind.BRANCH, 2),
        SnapshotRef("audit", RefKind.BRANCH, 3),
        SnapshotRef("behind", RefKind.BRANCH, 1),
        SnapshotRef("v1", RefKind.TAG, 3),
    )
    return replace(base, snapshots=(*base.snapshots, snapshot(3, age=1, parent_id=1, summary=summary)), refs=refs)


def _facts(main: PartitionFacts, branch: PartitionFacts | None = None) -> TableFacts:
    table = _table()
    branches = {} if branch is None else {"audit": facts(branch, of=on_branch(table, "audit"))}
    return facts(main, of=table, branches=branches)


def _verdict(found: TableFacts, by: Knobs | None = None, last: LastRun | None = None) -> Verdict:
    history = {} if last is None else {Operation.COMPACT: last}
    return verdict(Operation.COMPACT, found, by or Knobs(), history, NOW, manual=True)


@pytest.mark.cases(143)
@pytest.mark.parametrize(
    ("patterns", "names"), [(None, []), ("*", ["audit"]), ("behind, v1", []), ("main, a?dit", ["audit"])]
)
def test_which_branches_are_compacted(patterns: str | None, names: list[str]) -> None:
    """Those that the setting names and that have commits of their own."""
    assert chosen_branches(_table(), knobs({"compact.branches": patterns} if patterns else {})) == names


@pytest.mark.cases(143)
def test_a_branch_that_flink_converts_is_left_alone() -> None:
    """Its job stops at a rewrite there, so it is neither compacted nor named; a fork of what main converted is."""
    everything = knobs({"compact.branches": "*"})
    for converted, names in ((3, []), (2, ["audit"])):
        table = _table()
        state = {"equality-convert-staging-snapshot": str(converted)}
        marked = [replace(s, writer_properties=state) if s.snapshot_id == 2 else s for s in table.snapshots]
        table = replace(table, snapshots=tuple(marked))
        assert chosen_branches(table, everything) == names
        found = _verdict(facts(partition(files=1, mb=400), of=table))
        assert isinstance(found, NotDue)
        assert any("branch audit" in note for note in found.notes) is bool(names)


@pytest.mark.cases(143)
@pytest.mark.parametrize("main", [SMALL, partition(files=1, mb=400)])
def test_a_branch_that_is_due(main: PartitionFacts) -> None:
    """Its steps come after main's, go to the branch and leave dangling deletes; the verdict says whose they are."""
    with_deletes = _facts(main, SMALL)
    with_deletes = replace(
        with_deletes, branches={name: replace(one, delete_files=2) for name, one in with_deletes.branches.items()}
    )
    found = _verdict(with_deletes)
    assert isinstance(found, Due)
    assert not [note for note in found.work.notes if "branch" in note]
    steps = [step for step in found.work.steps if isinstance(step, RewriteDataFiles)]
    assert [step.branch for step in steps] == [*([None] if main is SMALL else []), "audit"]
    assert steps[-1].options["remove-dangling-deletes"] == "false"
    assert "branch audit: 10 files of 1.0 MB" in found.why
    alone = _verdict(_facts(SMALL))
    assert isinstance(alone, Due)
    assert found.benefit == alone.benefit * len(steps)


@pytest.mark.cases(143)
def test_a_branch_is_not_what_main_is() -> None:
    """What a run did to the same partition of main says nothing of the branch, whose own rewrite counts."""
    recent = NOW - timedelta(minutes=1)
    last = LastRun(Operation.COMPACT, recent, OperationState.COMMITTED, rewritten={SMALL.key: recent})
    found = _verdict(_facts(SMALL, SMALL))
    assert isinstance(found, Due)
    both = {Operation.COMPACT: last}, {Operation.COMPACT: replace(last, rewritten_on={"audit": {SMALL.key: recent}})}
    once, twice = (verdict(Operation.COMPACT, _facts(SMALL, SMALL), Knobs(), history, NOW) for history in both)
    assert isinstance(once, Due)
    assert [step.branch for step in once.work.steps if isinstance(step, RewriteDataFiles)] == ["audit"]
    assert isinstance(twice, NotDue)


@pytest.mark.cases(143)
@pytest.mark.parametrize("main", [SMALL, partition(files=1, mb=400)])
def test_bad_branches_that_nobody_compacts(main: PartitionFacts) -> None:
    """The verdict names them with their files, due or not, until the setting names them."""
    found = _verdict(_facts(main))
    assert isinstance(found, Due | NotDue)
    notes = found.work.notes if isinstance(found, Due) else found.notes
    (note,) = [note for note in notes if "branch" in note]
    assert note.startswith(
        "branch audit has 90 data files of 1.0 MB on average and 3 delete files: set compact.branches"
    )
    good = replace(_facts(main), metadata=_table({"total-data-files": "1", "total-files-size": "9"}))
    fine = _verdict(good)
    assert isinstance(fine, Due | NotDue)
    assert "branch" not in str(fine.work.notes if isinstance(fine, Due) else fine.notes)


WAP = {"wap.id": "w1"}


@pytest.mark.parametrize(
    ("newer", "branch", "said", "waits"),
    [
        ([snapshot(3, age=30, parent_id=2)], 3, {}, None),
        ([snapshot(3, age=23, parent_id=2)], 3, {}, "branch audit"),
        ([snapshot(3, age=25, parent_id=2), snapshot(4, parent_id=3)], 4, {}, None),  # a branch that lasts
        ([snapshot(3, age=23, parent_id=1)], 3, {}, None),  # main went on
        ([snapshot(3, age=23, parent_id=2)], 3, {"execute.publish_hours": 23}, None),
        ([snapshot(3, age=23, parent_id=2)], 3, {"preset": "compliance"}, None),
        ([snapshot(3, age=-99, parent_id=2)], 3, {}, None),  # by a clock that is ahead
        ([snapshot(3, age=1, parent_id=2, summary={"icewright.job-id": "j"})], 3, {}, None),  # a sample of layouts
        ([], 2, {}, None),
        ([snapshot(3, age=1, parent_id=2, summary=WAP, operation="overwrite")], 2, {}, "the snapshot staged as w1"),
        ([snapshot(3, age=1, parent_id=2, summary=WAP)], 2, {}, None),  # an append
        ([snapshot(3, age=1, parent_id=1, summary=WAP, operation="overwrite")], 2, {}, None),
    ],
)
def test_main_stays_where_it_is_until_what_leads_on_from_it_is_published(
    newer: list[Snapshot], branch: int, said: Mapping[str, object], waits: str | None
) -> None:
    """Fast-forward and cherry-pick fail after any commit to main, so work waits for a day; a person's does not."""
    base = metadata((400, 300))
    audit = SnapshotRef("audit", RefKind.BRANCH, branch)
    table = replace(base, snapshots=(*base.snapshots, *newer), refs=(*base.refs, audit))
    settings = knobs(said)
    deletes = partition(position_delete_files=20, mergeable_deletes=20, max_deletes_of_a_file=2)
    found = facts(deletes, of=table, manifests_of=[manifests(200)])
    for operation in (Operation.COMPACT, Operation.REWRITE_DELETES, Operation.REWRITE_MANIFESTS):
        by_itself, asked = (verdict(operation, found, settings, {}, NOW, manual=manual) for manual in (False, True))
        assert isinstance(asked, Due)
        assert ("could not be published after another commit" in " ".join(asked.work.notes)) is bool(waits)
        assert isinstance(by_itself, NotDue if waits else Due), by_itself
        if isinstance(by_itself, NotDue):
            assert by_itself.reason.startswith(f"{waits} leads on from the head")
            assert by_itself.revisit == newer[0].timestamp + timedelta(hours=24)


@pytest.mark.parametrize(("age", "waits"), [(23, True), (24, False)])
def test_a_branch_of_the_catalog_is_merged_first(age: float, waits: bool) -> None:
    """Nessie merges no branch of a table that any commit has changed meanwhile; checks commit nothing."""
    unmerged = ((NOW - timedelta(hours=age), "branch etl of the catalog"),)
    found = facts(SMALL, unmerged=unmerged, manifests_of=[manifests(200)])
    settings = knobs({"recovery_points.daily": 1, "compute_statistics.enabled": True, "check.enabled": True})
    operations = Operation.COMPACT, Operation.RECOVERY_POINTS, Operation.COMPUTE_STATISTICS, Operation.CHECK
    verdicts = [verdict(operation, found, settings, {}, NOW) for operation in operations]
    assert [isinstance(each, Due) for each in verdicts] == [not waits, not waits, not waits, True], verdicts


@pytest.mark.cases(143)
def test_the_proof_of_a_branch_counts_its_own_rewrites() -> None:
    """A rewrite of main that applied deletes breaks no rule of a branch without; a lost row of the branch does."""
    before = facts(SMALL, of=on_branch(_table(), "audit"))
    counts = {"added-records": "5", "deleted-records": "9"}
    of_main = snapshot(4, parent_id=2, operation="replace", summary=counts)
    of_branch = snapshot(5, parent_id=3, operation="replace", summary=counts)
    after = _table()
    after = replace(after, snapshots=(*after.snapshots, of_main, of_branch))

    def heads(audit: int) -> TableMetadata:
        named = {"main": 4, "audit": audit}
        return replace(after, refs=tuple(SnapshotRef(name, RefKind.BRANCH, head) for name, head in named.items()))

    assert verify.rewrite_violations(before, heads(3), "audit") == []
    assert verify.rewrite_violations(before, heads(5), "audit") == ["snapshot 5 lost 4 of 9 records"]
