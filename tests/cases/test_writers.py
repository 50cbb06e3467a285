"""Who writes to a table sets its properties, and is not who runs the platform."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icewright.core.guardrails import parse_guardrail
from icewright.core.layering import PolicyRule
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from icewright.flow.vacuum import vacuum
from tests.cases.workspace import EXPIRE, NAME, ORPHANS, Workspace, edit, ref

GREEDY = {
    "icewright.remove_orphans.mode": "delete",
    "icewright.remove_orphans.older_than_hours": "24",
    "icewright.remove_orphans.max_delete_ratio": "1",
    "icewright.remove_orphans.every_hours": "1",
    "icewright.deletion.delay_hours": "0",
    "icewright.importance": "critical",
    "icewright.impact.probe": "no query",
    "icewright.properties.allow": "*",
}


def _greedy(workspace: Workspace) -> None:
    """A table whose writer asks for everything, with files of others in its place."""
    folder = workspace.table()
    workspace.plant(folder, "landing/theirs.csv", days=5)
    edit(workspace.metadata_file(), lambda document: document["properties"].update(GREEDY))
    workspace.detect()


def _under(workspace: Workspace, *rules: PolicyRule, guardrails: tuple[str, ...] = ()) -> Runtime:
    runtime = workspace.runtime()
    bounds = tuple(parse_guardrail("guardrails", text) for text in guardrails)
    policy = replace(runtime.policy(), rules=rules, guardrails=bounds)
    return replace(runtime, policy=lambda: policy)


@pytest.mark.cases(151)
def test_a_writer_does_not_override_the_safety_of_the_platform(workspace: Workspace) -> None:
    """A cycle lists the files and deletes none; the properties do not stop the expiry of the table either."""
    _greedy(workspace)
    before = workspace.files()
    result = run_cycle(
        _under(workspace, PolicyRule((), {"expire_snapshots.enabled": False, "rewrite_manifests.enabled": False})),
        ["lake"],
    )
    (job,) = result.jobs
    (scan,) = job.outcomes
    assert (scan.operation, scan.metrics["orphans_found"]) == (ORPHANS, 1)
    assert workspace.files() == before
    settings = {"expire_snapshots.retention_hours": 24, "expire_snapshots.min_snapshots_to_keep": 1}
    runtime = _under(workspace, PolicyRule((), {**settings, "deletion.delay_hours": 0}))
    assert execute(runtime, Request(ref(NAME), (EXPIRE,), manual=True)).state is JobState.SUCCEEDED
    assert (workspace.home / "warehouse/sales/orders/landing/theirs.csv").exists()


@pytest.mark.cases(151)
def test_a_rule_of_the_catalog_opens_what_a_writer_may_set(workspace: Workspace) -> None:
    """Whoever trusts the writers of a namespace says so there."""
    _greedy(workspace)
    edit(workspace.metadata_file(), lambda document: document["properties"].pop("icewright.impact.probe"))
    allow = PolicyRule(("lake", "sales"), {"properties.allow": "remove_orphans.*, deletion.*"})
    scan = execute(_under(workspace, allow), Request(ref(NAME), (ORPHANS,), manual=True))
    assert scan.state is JobState.SUCCEEDED
    assert not (workspace.home / "warehouse/sales/orders/landing/theirs.csv").exists()


@pytest.mark.parametrize("mode", ["report", "confirm"])
@pytest.mark.cases(151)
def test_a_writer_asks_a_vacuum_for_more_caution(workspace: Workspace, mode: str) -> None:
    """A vacuum deletes where nobody says what orphan removal may do; a table that says less gets less."""
    theirs, mine = workspace.table("sales.theirs"), workspace.table()
    edit(
        workspace.metadata_file(),
        lambda document: document["properties"].update({"icewright.remove_orphans.mode": mode}),
    )
    files = [*workspace.plant(theirs, "data/lost.parquet"), *workspace.plant(mine, "data/lost.parquet")]
    vacuum(workspace.runtime({"deletion.delay_hours": 0}), "lake")
    assert [file.exists() for file in files] == [False, True]


@pytest.mark.parametrize(
    "rules",
    [
        (PolicyRule((), {"properties.allow": "*"}),),
        (PolicyRule((), {"remove_orphans.mode": "delete"}),),
        (PolicyRule(("lake", "sales", "orders"), {"preset": "compliance"}, "store"),),
        (),
    ],
)
@pytest.mark.cases(151)
def test_a_guardrail_of_the_mode_holds_whoever_sets_it(workspace: Workspace, rules: tuple[PolicyRule, ...]) -> None:
    """Properties, rules, presets, `--set` and the vacuum that deletes by itself: nothing but a list comes of them."""
    _greedy(workspace)
    edit(workspace.metadata_file(), lambda document: document["properties"].pop("icewright.impact.probe"))
    runtime = _under(workspace, *rules, guardrails=("remove_orphans.mode in report, confirm",))
    policy = replace(runtime.policy(), command={"remove_orphans.mode": "delete"})
    for by in (runtime, replace(runtime, policy=lambda: policy)):
        execute(by, Request(ref(NAME), (Operation.REMOVE_ORPHANS,), manual=True))
    vacuum(runtime, "lake")
    assert (workspace.home / "warehouse/sales/orders/landing/theirs.csv").exists()
