"""Restore on real files: what PyIceberg reads afterwards, what stays reachable, and what stops it."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType

from icewright.core.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvariantViolated,
    LeaseLost,
    Refused,
    TerminalError,
    UsageError,
)
from icewright.core.policy import Operation
from icewright.core.recovery import points
from icewright.core.runs import JobState
from icewright.core.table import RefKind, SnapshotRef, TableMetadata
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.restore import RestoreResult, carry_out, restore
from icewright.ports import SetRefs
from tests.cases.workspace import EXPIRE, NAME, SCHEMA, Workspace, ref

pytestmark = pytest.mark.usefixtures("at_noon")

AGES = (9.0, 5.0, 2.0, 0.5)
OTHER = "sales.payments"


def go(workspace: Workspace, to: str, *names: str, dry_run: bool = False) -> list[RestoreResult]:
    """Restore tables of the lake."""
    workspace.detect()
    return restore(workspace.app.runtime, [ref(name) for name in names or (NAME,)], to, dry_run=dry_run)


def iceberg(workspace: Workspace, name: str = NAME) -> Table:
    """The table as PyIceberg loads it."""
    return workspace.icebergs["lake"].load_table(tuple(name.split(".")))


def commit(workspace: Workspace, base: TableMetadata, index: int) -> None:
    """Let somebody else move main to another snapshot of the table."""
    main = next(each for each in base.refs if each.name == "main")
    moved = SetRefs((type(main)(main.name, main.kind, base.snapshots[index].snapshot_id),))
    workspace.app.runtime.catalogs["lake"].commit(base, moved)


@pytest.mark.parametrize("minutes", [0, 29, 31, 119, 121, 299, 301, 539])
def test_a_time_means_the_state_that_iceberg_reads_then(workspace: Workspace, minutes: int) -> None:
    """Main has the snapshot of time travel to that time, whose rows it reads; nothing else has changed."""
    workspace.table(hours=AGES)
    at, before = workspace.clock.now() - timedelta(minutes=minutes), workspace.read()
    then = iceberg(workspace).snapshot_as_of_timestamp(round(at.timestamp() * 1000))
    assert then is not None
    (said,), (done,) = (go(workspace, at.isoformat(), dry_run=dry) for dry in (True, False))
    assert (said.plan.target, said.plan.tag) == (done.plan.target, done.plan.tag)
    after = workspace.read()
    assert after["main"] == before[str(then.snapshot_id)]
    assert {version: after[version] for version in before if version != "main"} == {
        version: before[version] for version in before if version != "main"
    }
    assert done.plan.already is (minutes < 30) is (done.job_id is None)
    assert len(done.plan.leaving) == sum(hours * 60 < minutes for hours in AGES)


@pytest.mark.parametrize("late_ms", [0, 20_000])
def test_a_later_commit_counts_whatever_its_clock_says(workspace: Workspace, late_ms: int) -> None:
    """The log says which commit came last, of one millisecond or of clocks that differ by less than Iceberg refuses."""
    craft = workspace.craft()
    workspace.commits(craft, (5, 4, 3))

    def skew(document: dict[str, Any]) -> None:
        for earlier, later in pairwise(document["snapshot-log"]):
            later["timestamp-ms"] = document["snapshot-log"][0]["timestamp-ms"] - late_ms
            assert earlier["snapshot-id"] != later["snapshot-id"]

    workspace.publish(craft, skew)
    at = workspace.clock.now()
    then = iceberg(workspace).snapshot_as_of_timestamp(round(at.timestamp() * 1000))
    (said,) = go(workspace, at.isoformat(), dry_run=True)
    assert then is not None
    assert (said.plan.target.snapshot_id, said.plan.already) == (then.snapshot_id, True)


def test_a_restore_is_taken_back_by_another(workspace: Workspace) -> None:
    """The tag that it made has the state before, through an expiry; the way back says which commits return."""
    workspace.table(hours=(900, 800, 700, 600))
    before, first = workspace.read(), workspace.metadata().snapshots[0].snapshot_id
    (done,) = go(workspace, str(first))
    assert "3 commits leave main, 1 row before, 1 after; the state before has tag icewright-before-" in done.summary
    for end in ("head", "target"):  # a writer need not count rows
        bare: Any = {end: replace(getattr(done.plan, end), summary={})}
        assert "main; the state before has" in replace(done, plan=replace(done.plan, **bare)).summary
    (job,) = workspace.app.runtime.store.jobs.list()
    assert (job.job_id, job.options["restore"]) == (done.job_id, str(first))
    workspace.clock.advance(days=29)
    workspace.run(EXPIRE)
    (back,) = go(workspace, done.plan.tag.name)
    assert [s.snapshot_id for s in back.plan.returning] == [done.plan.head.snapshot_id]
    assert workspace.read()["main"] == before["main"]
    workspace.clock.advance(days=2)
    workspace.run(EXPIRE)
    assert done.plan.tag not in workspace.metadata().refs


def test_points_of_a_set_are_one_moment(workspace: Workspace) -> None:
    """The name of a point means the state at its time in every table, also where another point covers that time."""
    workspace.table(NAME, hours=AGES)
    workspace.table(OTHER, hours=(30.0, 0.5))
    for name in (NAME, OTHER):
        workspace.run(Operation.RECOVERY_POINTS, name=name, recovery_points__hourly=12)
    before = {name: workspace.read(name) for name in (NAME, OTHER)}
    label = f"hourly-{workspace.clock.now() - timedelta(hours=4):%Y-%m-%dT%H}"
    names = {p.name for name in (NAME, OTHER) for p in points(workspace.metadata(name))}
    assert f"icewright-{label}" not in names
    done = go(workspace, label, NAME, OTHER)
    for result, name, number in zip(done, (NAME, OTHER), (1, 0), strict=True):
        assert result.plan.target == result.plan.metadata.snapshots[number]
        assert workspace.read(name)["main"] == before[name][str(result.plan.target.snapshot_id)]


def test_a_table_to_which_nobody_has_committed_is_no_obstacle_to_a_set(workspace: Workspace) -> None:
    """It is at every moment what it is now; alone it has nothing to return to."""
    workspace.table(hours=AGES)
    workspace.icebergs["lake"].create_table(OTHER, SCHEMA)
    first = workspace.metadata().snapshots[0]
    (done,) = go(workspace, first.timestamp.isoformat(), NAME, OTHER)
    assert done.plan.target == first
    with pytest.raises(UsageError, match="not known any more"):
        go(workspace, first.timestamp.isoformat(), OTHER)


def test_when_the_log_is_gone_points_tell(workspace: Workspace) -> None:
    """After an expiry the log begins anew, and the points still know the full hours between them; no other time."""
    workspace.table(hours=(90.0, 9.0, 8.95, 8.9, 0.5))
    knobs: dict[str, Any] = {"recovery_points__hourly": 12, "expire_snapshots__retention_hours": 1}
    workspace.job(Operation.RECOVERY_POINTS, EXPIRE, **knobs)
    known = {p.time: p.snapshot_id for p in points(workspace.metadata())}
    first, second = sorted(known)[:2]
    for moment in (first, second - timedelta(hours=1), second):
        (said,) = go(workspace, moment.isoformat(), dry_run=True)
        assert said.plan.target.snapshot_id == known[first if moment < second else second]
    for moment in (first - timedelta(hours=1), second - timedelta(minutes=1)):
        with pytest.raises(UsageError, match="not known any more; its recovery points are icewright-hourly-"):
            go(workspace, moment.isoformat(), dry_run=True)


@pytest.mark.parametrize("to", ["nothing", "4711", "hourly-2026-11-25", "9999-01-01", "2001-01-01"])
def test_states_that_do_not_exist(workspace: Workspace, to: str) -> None:
    """The error says what was asked for and what there is; nothing is changed."""
    workspace.table(hours=AGES)
    before = workspace.metadata()
    with pytest.raises(UsageError, match=to if to != "4711" else "no snapshot 4711"):
        go(workspace, to)
    assert workspace.metadata() == before


@pytest.mark.parametrize("kind", ["data", "manifest", "manifest list"])
def test_no_restore_to_a_state_whose_files_are_gone(workspace: Workspace, kind: str) -> None:
    """One missing file of one table stops the set before anything is changed; a dry run says the same."""
    workspace.table(NAME, hours=AGES)
    workspace.table(OTHER, hours=AGES)
    target, runtime = workspace.metadata(OTHER).snapshots[1], workspace.app.runtime
    manifest = next(m for m in runtime.files.manifests(target) if m.live_files)
    (live,) = (row for batch in runtime.files.live_files([manifest]) for row in batch["path"].to_pylist())
    runtime.files.delete(
        [{"data": live, "manifest": manifest.path, "manifest list": target.manifest_list or ""}[kind]], 1
    )
    before = [workspace.metadata(name) for name in (NAME, OTHER)]
    to = (workspace.clock.now() - timedelta(hours=4)).isoformat()
    for dry_run in (True, False):
        with pytest.raises(
            Refused, match=r"sales\.payments: snapshot \d+ cannot be restored: 1 of its files.*\bfiles_are_gone\b"
        ):
            go(workspace, to, NAME, OTHER, dry_run=dry_run)
    assert [workspace.metadata(name) for name in (NAME, OTHER)] == before
    (done,) = go(workspace, str(before[1].snapshots[0].snapshot_id), OTHER)
    assert done.plan.target == before[1].snapshots[0], "what other states need does not matter"
    runtime.files.delete([done.plan.target.manifest_list or ""], 1)
    (again,) = go(workspace, str(done.plan.target.snapshot_id), OTHER)
    assert again.plan.already, "nothing is changed, whatever is gone"


def hooked(monkeypatch: pytest.MonkeyPatch, workspace: Workspace, hook: Any) -> None:
    """Call `hook(commit, base, change)` in place of the lake's commit."""
    kind = type(workspace.app.runtime.catalogs["lake"])
    real = kind.commit
    monkeypatch.setattr(
        kind, "commit", lambda this, base, change: hook(lambda base, change: real(this, base, change), base, change)
    )


def crash_at(number: int, *, before: bool) -> Any:
    """The hook of a process that ends at its commit of this number, before or after it is made."""
    seen: list[Any] = []

    def crash(commit_: Any, base: Any, change: Any) -> Any:
        seen.append(change)
        if before and len(seen) == number:
            raise KeyboardInterrupt
        done = commit_(base, change)
        if len(seen) == number:
            raise KeyboardInterrupt
        return done

    return crash


def test_a_writer_in_between_loses_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that moves main before the restore's stops it, and stays; the set ends there and says so."""
    workspace.table(OTHER, hours=AGES)
    workspace.table(hours=AGES)
    base = workspace.metadata()
    seen: list[Any] = []

    def overtaken(commit_: Any, base: Any, change: Any) -> Any:
        if not seen and base.ref == ref(NAME):
            seen.append(
                commit_(
                    base,
                    SetRefs((change.refs[0].__class__("main", change.refs[0].kind, base.snapshots[2].snapshot_id),)),
                )
            )
        return commit_(base, change)

    hooked(monkeypatch, workspace, overtaken)
    told = f"a writer has committed snapshot {base.snapshots[2].snapshot_id} since.*; restored already: lake.{OTHER}; "
    with pytest.raises(Refused, match=told) as refused:
        go(workspace, f"{base.snapshots[0].timestamp:%Y-%m-%dT%H:%M:%S}", OTHER, NAME)
    assert refused.value.code == "overtaken"
    assert workspace.metadata().metadata_location == seen[0].metadata_location
    states = {str(job.ref): job.state for job in workspace.app.runtime.store.jobs.list()}
    assert states == {f"lake.{OTHER}": JobState.SUCCEEDED, f"lake.{NAME}": JobState.FAILED}


def test_a_set_whose_last_table_was_overtaken_is_not_begun(workspace: Workspace) -> None:
    """A writer who came after the plan stops the set before any table is changed."""
    plans = []
    for name in (NAME, OTHER):
        workspace.table(name, hours=AGES)
        first = workspace.metadata(name).snapshots[0].snapshot_id
        plans += [result.plan for result in go(workspace, str(first), name, dry_run=True)]
    commit(workspace, workspace.metadata(OTHER), 2)
    before = [workspace.metadata(name) for name in (NAME, OTHER)]
    with pytest.raises(Refused) as refused:
        carry_out(workspace.app.runtime, plans)
    assert "restored already" not in str(refused.value)
    assert [workspace.metadata(name) for name in (NAME, OTHER)] == before


@pytest.mark.parametrize("wrong", ["the tag is not made", "another tag is lost", "main leads elsewhere"])
def test_a_catalog_that_does_something_else(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """The table is paused, as nobody knows what else went wrong, and the message names the ref."""
    workspace.table(hours=AGES)
    base = workspace.metadata()
    tag = SnapshotRef("theirs", RefKind.TAG, base.snapshots[0].snapshot_id)
    workspace.app.runtime.catalogs["lake"].commit(base, SetRefs((tag,)))

    def otherwise(commit_: Any, base: Any, change: Any) -> Any:
        main, tag = change.refs
        made = {"the": (main,), "main": (replace(main, snapshot_id=base.snapshots[0].snapshot_id), tag)}
        lost = frozenset({"theirs"} if "lost" in wrong else ())
        return commit_(base, SetRefs(made.get(wrong.split(maxsplit=1)[0], change.refs), lost))

    hooked(monkeypatch, workspace, otherwise)
    told = {"the": "tag icewright-before-.* is not as it was set", "another": "ref theirs changed"}
    what = told.get(wrong.split(maxsplit=1)[0], "branch main is not as it was set")
    with pytest.raises(InvariantViolated, match=rf"the restore went wrong: {what}; the table is paused"):
        go(workspace, str(base.snapshots[1].snapshot_id))
    (row,) = workspace.app.runtime.store.tables.list()
    assert "the restore went wrong" in str(row.paused)


def test_commits_that_never_land_are_given_up(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times another writer is first."""
    workspace.table(hours=AGES)
    tried: list[Any] = []

    def conflicts(_: Any, __: Any, change: Any) -> Any:
        tried.append(change)
        assert len(tried) < 9
        raise CommitConflict("a writer was first")

    hooked(monkeypatch, workspace, conflicts)
    with pytest.raises(CommitConflict, match=r"^a writer was first$"):  # no other table was restored before
        go(workspace, str(workspace.metadata().snapshots[0].snapshot_id))
    assert len(tried) == 8


@pytest.mark.parametrize("lost", [False, True])
def test_a_writer_right_after_it_goes_on(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *, lost: bool) -> None:
    """A commit on top of the restored state is no fault of the restore, also where its own reply was lost."""
    workspace.table(hours=AGES)
    target, seen = workspace.metadata().snapshots[0].snapshot_id, list[Any]()

    def followed(commit_: Any, base: Any, change: Any) -> Any:
        done = commit_(base, change)
        if not seen:
            seen.append(change)
            iceberg(workspace).append(pa.table({"id": [1], "part": ["x"]}, SCHEMA.as_arrow()))
            if lost:
                raise CommitStateUnknown("no answer came")
        return done

    hooked(monkeypatch, workspace, followed)
    go(workspace, str(target))
    after = workspace.metadata()
    assert after.current_snapshot is not None
    assert after.current_snapshot.parent_id == target
    assert len(after.refs) == 2


@pytest.mark.parametrize("theirs", ["a tag", "a tag less", "a column"])
def test_what_leaves_main_alone_does_not_stop_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """Another commit that leaves main as it is makes the first attempt conflict, and the second lands on it."""
    workspace.table(hours=AGES)
    base = workspace.metadata()
    old = SnapshotRef("old", RefKind.TAG, base.snapshots[1].snapshot_id)
    workspace.app.runtime.catalogs["lake"].commit(base, SetRefs((old,)))
    target, seen = workspace.metadata().snapshots[0].snapshot_id, list[Any]()

    def overtaken(commit_: Any, base: Any, change: Any) -> Any:
        if not seen:
            seen.append(change)
            match theirs:
                case "a tag":
                    commit_(base, SetRefs((replace(old, name="theirs"),)))
                case "a tag less":
                    commit_(base, SetRefs((), frozenset({"old"})))
                case _:
                    iceberg(workspace).update_schema().add_column("note", StringType()).commit()
        return commit_(base, change)

    hooked(monkeypatch, workspace, overtaken)
    go(workspace, str(target))
    after = workspace.metadata()
    assert (after.current_snapshot_id, len(after.refs)) == (target, {"a tag": 4, "a tag less": 2}.get(theirs, 3))


@pytest.mark.parametrize("theirs", ["a tag of the name", "the tag itself", "main"])
def test_half_of_it_by_somebody_else_stays(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    """A tag of the name that the state before was to get, or main where it was to go: the restore is refused."""
    workspace.table(hours=AGES)
    first, second = (s.snapshot_id for s in workspace.metadata().snapshots[:2])
    seen: list[Any] = []

    def overtaken(commit_: Any, base: Any, change: Any) -> Any:
        main, tag = change.refs
        made = {"a tag of the name": replace(tag, snapshot_id=second), "the tag itself": tag, "main": main}[theirs]
        if not seen:
            seen.append(commit_(base, SetRefs((made,))))
        return commit_(base, change)

    hooked(monkeypatch, workspace, overtaken)
    refused = (
        f"a writer has committed snapshot {first} since" if theirs == "main" else "there is a tag icewright-before-"
    )
    with pytest.raises(Refused, match=refused):
        go(workspace, str(first))
    assert workspace.metadata().metadata_location == seen[0].metadata_location


def test_a_worker_that_was_given_up_commits_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that comes back after another ended its job and took the table leaves the table as it is."""
    workspace.table(hours=AGES)
    before, jobs = workspace.metadata(), workspace.app.runtime.store.jobs

    def taken(commit_: Any, base: Any, change: Any) -> Any:
        job, *others = jobs.list()
        if others:
            return commit_(base, change)
        jobs.finish(job.job_id, JobState.INTERRUPTED, "its process ended", workspace.clock.now())
        assert jobs.claim(job.ref, job.table_uuid, (), workspace.app.runtime.trigger, workspace.clock.now())
        raise CommitConflict("a writer was first")

    hooked(monkeypatch, workspace, taken)
    with pytest.raises(LeaseLost):
        go(workspace, str(before.snapshots[0].snapshot_id))
    assert workspace.metadata() == before
    assert {job.state for job in jobs.list()} == {JobState.INTERRUPTED, JobState.RUNNING}


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_reply(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    """Whether the commit landed is read from the table: it is made once, and one tag."""
    workspace.table(hours=AGES)
    target, seen = workspace.metadata().snapshots[0].snapshot_id, list[Any]()

    def lost(commit_: Any, base: Any, change: Any) -> Any:
        if seen or landed:
            done = commit_(base, change)
        if not seen:
            seen.append(change)
            raise CommitStateUnknown("no answer came")
        return done

    hooked(monkeypatch, workspace, lost)
    go(workspace, str(target))
    after = workspace.metadata()
    assert (after.current_snapshot_id, len(after.refs)) == (target, 2)
    assert len(after.metadata_log) == 1


@pytest.mark.parametrize("place", ["before the first", "after the first", "before the second", "after the second"])
def test_a_crash_leaves_each_table_whole(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Each table is as it was or restored, with the state before tagged; the same restore then brings all there."""
    for name in (NAME, OTHER):
        workspace.table(name, hours=AGES)
    to = (workspace.clock.now() - timedelta(hours=4)).isoformat()
    before = {name: workspace.read(name)["main"] for name in (NAME, OTHER)}
    number = 1 if place.endswith("first") else 2
    with monkeypatch.context() as patched:
        hooked(patched, workspace, crash_at(number, before=place.startswith("before")))
        with pytest.raises(KeyboardInterrupt):
            go(workspace, to, NAME, OTHER)
    restored = {"before the first": 0, "after the first": 1, "before the second": 1, "after the second": 2}[place]
    for number, name in enumerate((NAME, OTHER)):
        now = workspace.read(name)
        tagged = [rows for tag, rows in now.items() if tag.startswith("icewright-before-")]
        assert tagged == ([before[name]] if number < restored else [])
        assert (now["main"] == before[name]) is (number >= restored)
    reconcile_interrupted(workspace.app.runtime)
    done = go(workspace, to, NAME, OTHER)
    assert [result.plan.already for result in done] == [number < restored for number in range(2)]
    assert all(workspace.metadata(n).current_snapshot == workspace.metadata(n).snapshots[1] for n in (NAME, OTHER))


def test_two_restores_at_once(workspace: Workspace) -> None:
    """One holds the table, and the other is refused or finds it done; main leads where one of them wanted it."""
    workspace.table(hours=AGES)
    targets = [s.snapshot_id for s in workspace.metadata().snapshots[:2]]
    workspace.detect()
    failed: list[TerminalError] = []

    def one(target: int) -> None:
        try:
            restore(workspace.app.runtime, [ref(NAME)], str(target))
        except TerminalError as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = workspace.metadata()
    assert after.current_snapshot_id in targets
    assert len(failed) + len(after.metadata_log) == 2


def test_columns_that_changed_are_named(workspace: Workspace) -> None:
    """The schema stays as it is: the plan says which columns of the restored rows read otherwise."""
    workspace.table(hours=AGES)
    table = iceberg(workspace)
    with table.update_schema() as schema:
        schema.add_column("note", schema._schema.find_type("part"))
        schema.delete_column("part")
        schema.rename_column("id", "number")
    (said,) = go(workspace, str(workspace.metadata().snapshots[0].snapshot_id), dry_run=True)
    assert said.plan.notes == (
        "column id was renamed since: it stays number",
        "column part was dropped since: it stays dropped",
        "column note was added since: it stays, and the restored rows have no value in it",
    )
