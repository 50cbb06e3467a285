"""Recovery points on real files: what is tagged can be read, expiry keeps it, and what others tagged is theirs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from icewright.adapters.engines.service.recovery_points import tag_recovery_points
from icewright.core.cadence import Cadence
from icewright.core.errors import LeaseLost
from icewright.core.policy import Operation
from icewright.core.recovery import RecoveryPoint, points
from icewright.core.runs import OperationState
from icewright.core.steps import TagRecoveryPoints
from icewright.core.table import RefKind, SnapshotRef
from icewright.flow.restore import point_costs
from icewright.ports import SetRefs, StepRequest
from tests.cases.workspace import EXPIRE, KNOBS_OF, NAME, Workspace

pytestmark = pytest.mark.usefixtures("at_noon")

POINTS = Operation.RECOVERY_POINTS
COMMITTED, SKIPPED = OperationState.COMMITTED, OperationState.SKIPPED
HOURLY: dict[str, Any] = {"recovery_points__hourly": 4}


def tags(workspace: Workspace) -> dict[str, int]:
    """The recovery points with the numbers of the commits that they lead to, from 1."""
    found = workspace.metadata()
    return {p.name: [s.snapshot_id for s in found.snapshots].index(p.snapshot_id) + 1 for p in points(found)}


def test_a_dry_run_says_what_the_run_does(workspace: Workspace) -> None:
    """The states of the last hours get tags that PyIceberg reads; no file but the metadata is written."""
    workspace.table(hours=(9, 3.5, 2.5, 0.5))
    files = workspace.files()
    result = workspace.run(POINTS, dry_run=True, **HOURLY)
    assert workspace.files() == files
    done = workspace.run(POINTS, **HOURLY)
    assert result.notes == tuple(note.replace("made", "would make") for note in done.notes)
    assert (done.state, done.metrics["points_made"], done.metrics["points_retired"]) == (COMMITTED, 3, 0)
    day = f"{workspace.clock.now():icewright-hourly-%Y-%m-%dT}"
    assert tags(workspace) == {f"{day}08": 1, f"{day}09": 2, f"{day}10": 3}
    assert [path.name for path in workspace.files() - files if not path.name.endswith(".metadata.json")] == []
    read = workspace.read()
    assert all(read[p.name] == read[str(p.snapshot_id)] for p in points(workspace.metadata()))


def test_a_quiet_table_gets_no_commits(workspace: Workspace) -> None:
    """Days later the state is the same, and so is the metadata file."""
    workspace.table(hours=(9, 3.5))
    assert workspace.run(POINTS, **HOURLY).metrics["points_made"] == 2
    before = workspace.metadata()
    workspace.clock.advance(hours=2.9)
    dry = workspace.run(POINTS, dry_run=True, **HOURLY)
    assert dry.summary == "would make 0 recovery points, retire 1"
    done = workspace.run(POINTS, **HOURLY)
    assert (done.summary, done.metrics["points_retired"]) == ("made 0 recovery points, retired 1", 1)
    assert [note.split(" of ")[0][:26] for note in done.notes] == ["retired icewright-hourly-2"]  # that of 9 hours ago
    after = workspace.metadata()
    assert after.metadata_log[-1] == before.metadata_location
    workspace.clock.advance(days=3)
    assert workspace.run(POINTS, **HOURLY).state is SKIPPED
    assert workspace.metadata() == after


def test_one_job_tags_before_it_expires(workspace: Workspace) -> None:
    """The states that have points stay and read what they read, whatever the age that the policy gives to refs."""
    workspace.table(hours=(400, 300, 200, 100))
    before = workspace.read()
    knobs: dict[str, Any] = {"recovery_points__daily": 7, "expire_snapshots__max_ref_age_hours": 24}
    job = workspace.job(POINTS, EXPIRE, **knobs)
    assert [outcome.state for outcome in job.outcomes] == [COMMITTED, COMMITTED]
    assert sorted(tags(workspace).values()) == [1, 2]  # of those that are left
    after = workspace.read()
    assert after == {name: before.get(name, rows) for name, rows in after.items()}
    assert len(after) == 2 + 2 + 1
    workspace.clock.advance(days=10)
    assert workspace.run(POINTS, recovery_points__daily=7).metrics["points_retired"] == 1
    assert workspace.run(EXPIRE).metrics["snapshots_expired"] == 1


@pytest.mark.parametrize("how", ["moved", "replaced", "of a branch"])
def test_what_others_tagged_is_theirs(workspace: Workspace, how: str) -> None:
    """A tag that somebody moved, or set under the name of a point, is never retired, and no run moves it back."""
    workspace.table(hours=(9, 3.5))
    workspace.run(POINTS, **HOURLY)
    oldest, _ = points(workspace.metadata())
    base = workspace.metadata()
    theirs = {
        "moved": replace(oldest.tag, snapshot_id=base.snapshots[-1].snapshot_id),
        "replaced": replace(oldest.tag, max_ref_age=None),
        "of a branch": replace(oldest.tag, kind=RefKind.BRANCH),
    }[how]
    workspace.app.runtime.catalogs["lake"].commit(base, SetRefs((theirs,)))
    workspace.clock.advance(days=2)
    workspace.run(POINTS, recovery_points__hourly=1)
    assert theirs in workspace.metadata().refs


def test_a_commit_in_between_is_planned_on(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag that somebody sets just before the commit makes it conflict; the next attempt leaves that tag alone."""
    workspace.table(hours=(9, 3.5))
    catalog = workspace.app.runtime.catalogs["lake"]
    once: list[Any] = []
    commit, name = type(catalog).commit, f"{workspace.clock.now():icewright-hourly-%Y-%m-%dT09}"
    theirs = SnapshotRef(name, RefKind.TAG, workspace.metadata().snapshots[0].snapshot_id)

    def overtaken(this: Any, base: Any, change: Any) -> Any:
        if not once:
            once.append(commit(this, base, SetRefs((theirs,))))
        return commit(this, base, change)

    monkeypatch.setattr(type(catalog), "commit", overtaken)
    done = workspace.run(POINTS, **HOURLY)
    assert (done.state, done.metrics["points_made"]) == (COMMITTED, 2)
    refs = {r.name: r for r in workspace.metadata().refs}
    assert refs[name] == theirs
    assert len(refs) == 4
    assert any(name in note for note in done.notes)


@pytest.mark.parametrize(
    ("lost", "words"), [("point", r"point icewright-hourly-.* was not made"), ("tag", "theirs")], ids=["point", "tag"]
)
def test_a_commit_that_went_wrong_pauses_the_table(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, lost: str, words: str
) -> None:
    """A catalog that loses a point, or a tag of others, is seen on the reloaded table."""
    workspace.table(hours=(9, 3.5))
    catalog = workspace.app.runtime.catalogs["lake"]
    base = workspace.metadata()
    catalog.commit(base, SetRefs((SnapshotRef("theirs", RefKind.TAG, base.snapshots[0].snapshot_id),)))
    commit = type(catalog).commit

    def losing(this: Any, base: Any, change: Any) -> Any:
        wrong = SetRefs(change.refs[1:]) if lost == "point" else SetRefs(change.refs, frozenset({"theirs"}))
        return commit(this, base, wrong)

    monkeypatch.setattr(type(catalog), "commit", losing)
    done = workspace.run(POINTS, **HOURLY)
    assert done.state is OperationState.FAILED
    assert re.search(rf"sales.orders: recovery_points broke the table: .*{words}", done.reason)
    assert "the table is paused" in done.reason


def test_a_job_that_lost_its_table_tags_nothing(workspace: Workspace) -> None:
    """It is asked for its lease right before the commit; a dry run makes none."""
    workspace.table(hours=(9, 3.5))
    base, catalog = workspace.metadata(), workspace.app.runtime.catalogs["lake"]
    step = TagRecoveryPoints((RecoveryPoint(Cadence.HOURLY, workspace.clock.now(), base.snapshots[0].snapshot_id),), ())

    def lost() -> None:
        raise LeaseLost("another job has the table")

    request = StepRequest("j1", POINTS, step, base, dry_run=False, check=lost)
    with pytest.raises(LeaseLost):
        tag_recovery_points(catalog, request, step)
    done = tag_recovery_points(catalog, replace(request, dry_run=True), step)
    assert done.state is COMMITTED
    assert workspace.metadata() == base


def test_points_cost_what_nothing_else_keeps(workspace: Workspace) -> None:
    """The bytes are those that an expiry deletes once the points are dropped: of one alone, and of all together."""
    craft = workspace.craft()
    one, two, brief, after, three, four = (craft.data({"id": [n], "part": ["p"]}) for n in range(6))
    ages = [workspace.clock.now() - timedelta(hours=hours) for hours in (240, 192, 150, 149, 144, 2)]
    first = craft.commit(ages[0], [one])
    craft.commit(ages[1], [two])
    passing = craft.commit(ages[2], [brief])  # no point, so that it expires whatever becomes of the points
    craft.commit(ages[3], [after], replaced=passing)
    third = craft.commit(ages[4], [three], replaced=first)
    craft.commit(ages[5], [four], replaced=third)
    folder = workspace.publish(craft)
    workspace.job(Operation.RECOVERY_POINTS, recovery_points__daily=12)
    settings = {k: v for k, v in KNOBS_OF[EXPIRE].items() if k.startswith("expire")}
    knobs, base = workspace.runtime(settings), workspace.metadata()
    found = points(base)
    assert len({point.snapshot_id for point in found}) == 3
    costs = point_costs(knobs, base)
    assert point_costs(workspace.runtime({"expire_snapshots.retention_hours": 9999}), base).bytes == 0
    own = replace(base, properties={f"icewright.{name}": str(value) for name, value in settings.items()})
    assert point_costs(workspace.app.runtime, own) == costs
    others = tuple(SnapshotRef(f"kept-{p.name}", RefKind.TAG, p.snapshot_id) for p in found)
    assert point_costs(knobs, replace(base, refs=base.refs + others)).bytes == 0
    for off in (workspace.runtime({**settings, "expire_snapshots.enabled": False}), knobs):
        ungathered = base if off is not knobs else replace(base, properties={"gc.enabled": "false"})
        assert point_costs(off, ungathered).bytes == 0
    workspace.run(EXPIRE)
    alone = costs.of(found[-1])
    assert costs.of(found[0]) == 0  # the next one has its file too
    for dropped, said in ((found[-1:], alone), (found[:-1], costs.bytes - alone)):
        tags = workspace.icebergs["lake"].load_table(tuple(NAME.split("."))).manage_snapshots()
        for point in dropped:
            tags = tags.remove_tag(point.name)
        tags.commit()
        before = sizes(folder)
        workspace.run(EXPIRE)
        assert sum(before[path] for path in before.keys() - sizes(folder).keys()) == said > 0
    assert point_costs(knobs, workspace.metadata()).bytes == 0


def sizes(folder: Path) -> dict[str, int]:
    """The bytes of data files and manifests; those of manifest lists nobody writes down."""
    files = (path for path in folder.rglob("*.*") if path.suffix in (".parquet", ".avro"))
    return {str(path): path.stat().st_size for path in files if not path.name.startswith("snap-")}
