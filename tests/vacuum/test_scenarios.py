"""The scenarios that users of vacuum know, on a real Nessie: what can be read afterwards, and which files are gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from icewright.app.service import running
from icewright.core.effective import Knobs
from icewright.core.errors import Refused
from icewright.core.operations import expire_snapshots
from icewright.core.runs import JobState
from icewright.core.steps import why
from icewright.core.table import TableRef
from icewright.core.vacuum import EMPTY, PER_REF
from icewright.core.verdicts import thresholds
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import JobResult
from tests.vacuuming import NessieWorkspace, summaries
from tests.waiting import until

pytestmark = pytest.mark.external

VACUUM_ALONE = (
    "policy:\n  - {set: {compact.enabled: false, rewrite_manifests.enabled: false, deletion.delay_hours: 0}}\n"
)


def _moment(workspace: NessieWorkspace) -> datetime:
    """A moment between two commits."""
    time.sleep(0.02)  # commits are stamped by the server: nothing else keeps them apart
    now = workspace.now()
    time.sleep(0.02)
    return now


@pytest.mark.cases(74, 94)
@pytest.mark.parametrize("native", [False, True])
def test_snapshots_older_than_the_cutoff(workspace: NessieWorkspace, *, native: bool) -> None:
    """S1 and S2 go; the commits after the cut-off can be read, and a second run finds nothing."""
    if native:
        table = workspace.native_table("t")
        commits = [workspace.native_append(table, number) for number in (1, 2)]
        cutoff = _moment(workspace)
        commits += [workspace.native_append(table, number) for number in (3, 4)]
    else:
        workspace.rest_table("t")
        commits = []
        for number in (1, 2, 3, 4):
            workspace.rest_append("t", number)
            commits.append(workspace.client.reference("main").hash)
            if number == 2:
                cutoff = _moment(workspace)
    workspace.cutoff(cutoff)
    before = workspace.files()
    dry = workspace.vacuum(dry_run=True)
    assert workspace.files() == before
    result = workspace.vacuum()
    assert result.state is JobState.SUCCEEDED, summaries(result)
    said = {f.path.removeprefix("s3://lake/") for job in result.jobs for o in job.outcomes for f in o.files}
    assert (
        said
        == before - workspace.files()
        == {f.path.removeprefix("s3://lake/") for job in dry.jobs for o in job.outcomes for f in o.files}
    )
    assert result.files == len(said) > 0
    assert result.counts.num_table_expiry == 1
    assert result.counts.num_live_references == 1
    assert workspace.rest_rows("t", "main") == [1, 2, 3, 4]
    assert workspace.rest_rows("t", f"main@{commits[2]}") == [1, 2, 3]
    with pytest.raises(Exception, match=r"(?i)no such key|not found|404|path does not exist|NoSuchKey|does not exist"):
        workspace.rest_rows("t", f"main@{commits[0]}")
    if native:
        assert len(workspace.metadata("t")["snapshots"]) == 2
    workspace.cutoff(cutoff + timedelta(microseconds=1))
    assert workspace.vacuum().files == 0


@pytest.mark.cases(7)
def test_a_staged_snapshot_stays_while_it_is_young(workspace: NessieWorkspace) -> None:
    """No branch or tag leads to it, and no commit of Nessie has it as the current one: what it reads is there."""
    table = workspace.native_table("t")
    workspace.native_append(table, 0)
    workspace.native_append(table, 1)
    head, cutoff = table.metadata.current_snapshot_id or 0, _moment(workspace)
    table.append(pa.table({"id": [2]}), snapshot_properties={"wap.id": "audit"})
    staged = table.metadata.current_snapshot_id
    table.manage_snapshots().rollback_to_snapshot(head).commit()
    workspace.put(table)
    workspace.cutoff(cutoff)
    assert workspace.vacuum().files
    assert {s["snapshot-id"] for s in workspace.metadata("t")["snapshots"]} == {head, staged}
    assert sorted(table.scan(snapshot_id=staged).to_arrow()["id"].to_pylist()) == [0, 1, 2]
    workspace.cutoff(_moment(workspace))
    assert workspace.vacuum().files
    assert [s["snapshot-id"] for s in workspace.metadata("t")["snapshots"]] == [head]
    assert workspace.rest_rows("t", "main") == [0, 1]


@pytest.mark.cases(146, 149)
def test_cycles_and_services_vacuum_by_themselves_once_a_day(workspace: NessieWorkspace) -> None:
    """With branches and tags the files go that `vacuum` would delete, and no table is vacuumed again the same day."""
    workspace.rest_table("t", 2)
    workspace.branch("dev")
    workspace.rest_append("t", 7, "dev")
    workspace.rest_append("t", 3)
    workspace.branch("v1", tag=True)
    for number in (4, 8):
        workspace.rest_append("t", number)
    workspace.cutoff(_moment(workspace))
    before = workspace.files()

    def files(jobs: Sequence[JobResult]) -> set[str]:
        return {f.path.removeprefix("s3://lake/") for job in jobs for o in job.outcomes for f in o.files}

    def cycle(*, dry_run: bool = False) -> set[str]:
        with workspace.opened(extra=VACUUM_ALONE) as app:
            return files(run_cycle(app.runtime, ["lake"], dry_run=dry_run).jobs)

    def vacuumed() -> bool:
        return bool(served.runtime.store.views.list_activity("vacuumed", None, None, 1).items)

    named = files(workspace.vacuum(dry_run=True).jobs)
    assert named == cycle(dry_run=True) != set()
    with (
        workspace.opened(extra=VACUUM_ALONE, kind="service") as served,
        running(served, kind="service", slots=1, grace=timedelta(seconds=30)),
    ):
        until(vacuumed, "the service vacuums")
    assert named == before - workspace.files()
    heads = {ref: workspace.rest_rows("t", ref) for ref in ("main", "dev", "v1")}
    assert heads == {"main": [0, 1, 3, 4, 8], "dev": [0, 1, 7], "v1": [0, 1, 3]}
    assert cycle() == set()
    workspace.rest_append("t", 5)
    workspace.clock.advance(days=1)
    workspace.cutoff("PT24H")
    assert cycle() == before - workspace.files() - named != set()


@pytest.mark.cases(148)
def test_gc_enabled_of_a_user_keeps_everything(workspace: NessieWorkspace) -> None:
    """Nessie's own default of the same property does not, and the verdict tells who deletes the files."""
    said = workspace.native_table("said", **{"write.metadata.delete-after-commit.enabled": "true"})
    default = workspace.native_table("default")
    for number in (1, 2, 3):
        workspace.native_append(said, number)
        workspace.native_append(default, number)
    before = {f for f in workspace.files() if "/said/" in f}
    workspace.cutoff(_moment(workspace))
    workspace.vacuum()
    assert {f for f in workspace.files() if "/said/" in f} == before
    assert [len(workspace.metadata(name)["snapshots"]) for name in ("said", "default")] == [3, 1]
    with workspace.opened() as app:
        catalog = app.runtime.catalogs["lake"]
        reasons = {}
        for name in ("said", "default"):
            metadata = catalog.load(TableRef("lake", (workspace.space,), name))
            found = app.runtime.files.facts(metadata, thresholds(Knobs()))
            reasons[name] = why(expire_snapshots.evaluate(found, Knobs(), None, workspace.now()))
    assert reasons == {
        "said": "gc.enabled is false on the table: its user keeps all files, from vacuum of the catalog too",
        "default": "gc.enabled is false on the table: vacuum of the catalog does it, which sees all branches",
    }


def test_a_policy_keeps_a_table(workspace: NessieWorkspace) -> None:
    """`vacuum.enabled` says for any table what gc.enabled cannot say."""
    workspace.rest_table("t", 3)
    before = workspace.files()
    workspace.cutoff(_moment(workspace))
    workspace.vacuum(extra="policy:\n  - {match: lake.*.t, set: {vacuum.enabled: false, deletion.delay_hours: 0}}\n")
    assert workspace.files() == before


def test_an_instant_acts_once(workspace: NessieWorkspace) -> None:
    """Later runs by the same instant do nothing; a dry run does not count."""
    workspace.rest_table("t", 3)
    workspace.cutoff(_moment(workspace))
    workspace.vacuum(dry_run=True)
    assert workspace.vacuum().files > 0
    again = workspace.vacuum()
    assert (again.state, again.files) == (JobState.SKIPPED, 0)
    assert "acts once" in again.reason
    workspace.cutoff(_moment(workspace))
    assert workspace.vacuum().reason == ""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, EMPTY),
        (
            {
                "defaultCutoffPolicy": "PT48H",
                "perRefCutoffPolicies": [{"referenceNamePattern": "main", "policy": "PT1H"}],
            },
            PER_REF,
        ),
        ({"defaultCutoffPolicy": "PT48H", "newFilesGracePeriod": "PT1H"}, "must be at least 24 hours"),
    ],
)
def test_faulty_policies_change_nothing(workspace: NessieWorkspace, config: dict[str, Any], message: str) -> None:
    """The words are those of the documentation, from a policy that stands in Nessie."""
    import requests

    body: Any = {"config": {"type": "GARBAGE_COLLECTOR", **config}}
    response = requests.post(f"{workspace.server.api}/config/repository", json=body, timeout=30)
    assert response.ok, response.text
    with pytest.raises(Refused) as caught:
        workspace.vacuum()
    assert message in str(caught.value)
