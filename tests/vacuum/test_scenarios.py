"""The scenarios that users of vacuum know, on a real Nessie: what can be read afterwards, and which files are gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import obstore
import pyarrow as pa
import pytest

from icewright.app.service import running
from icewright.core.effective import Knobs
from icewright.core.errors import Refused
from icewright.core.operations import expire_snapshots
from icewright.core.runs import JobState
from icewright.core.steps import why
from icewright.core.table import TableRef
from icewright.core.vacuum import EMPTY, NONE, PER_REF, UNSUPPORTED
from icewright.core.verdicts import thresholds
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import JobResult
from tests.vacuuming import GRACE, NessieWorkspace, summaries
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


@pytest.mark.cases(138, 141)
def test_states_of_streaming_writers_stay(workspace: NessieWorkspace) -> None:
    """On main and on a branch a stopped Flink job finds its checkpoint, and its files that no commit names yet."""
    table = workspace.native_table("t")
    for number, checkpoint in enumerate(("5", "6", None, None)):
        state = {"flink.job-id": "j1", "flink.max-committed-checkpoint-id": checkpoint} if checkpoint else {}
        table.append(pa.table({"id": [number]}), snapshot_properties=state)
        workspace.put(table)
        if checkpoint == "6":
            workspace.branch("side")
    uncommitted = f"{table.location().removeprefix('s3://lake/')}/data/00000-0-c.parquet"
    obstore.put(workspace.bucket, uncommitted, b"PAR1")
    cutoff = _moment(workspace)
    workspace.clock.time = workspace.now() + GRACE + timedelta(minutes=5)
    workspace.cutoff(cutoff)
    dry = workspace.vacuum(dry_run=True)
    notes = [note for job in dry.jobs for o in job.outcomes for note in o.notes]
    assert any(note.startswith("main: snapshots stay for Flink job j1, checkpoint 6, until") for note in notes)
    assert any("stay for Flink job j1, checkpoint 6, which may commit them" in note for note in notes)
    assert workspace.vacuum().state is JobState.SUCCEEDED
    assert uncommitted in workspace.files()
    for branch, count in (("main", 3), ("side", 1)):
        found = workspace.metadata("t", branch)["snapshots"]
        assert [s["summary"].get("flink.max-committed-checkpoint-id") for s in found] == ["6", None, None][:count]
    assert workspace.rest_rows("t", "main") == [0, 1, 2, 3]
    workspace.cutoff(cutoff + timedelta(microseconds=1))
    said = "policy: [{set: {expire_snapshots.writer_state_days: 0, deletion.delay_hours: 0}}]\n"
    result = workspace.vacuum(extra=said)
    notes = [note for job in result.jobs for o in job.outcomes for note in o.notes]
    assert any("the state of Flink job j1, checkpoint 6 goes" in note for note in notes)
    assert uncommitted not in workspace.files()
    assert len(workspace.metadata("t")["snapshots"]) == 1


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


@pytest.mark.parametrize("native", [False, True])
def test_a_branch_older_than_the_cutoff_keeps_its_head(workspace: NessieWorkspace, *, native: bool) -> None:
    """Its newest snapshot can be read, though everything on it is old."""
    table = workspace.native_table("t")
    if native:
        workspace.native_append(table, 1)
        workspace.native_append(table, 2)
        workspace.branch("old")
    else:
        workspace.rest_table("t", 0)
        workspace.rest_append("t", 1)
        workspace.rest_append("t", 2)
        workspace.branch("old")
    workspace.cutoff(_moment(workspace))
    for number in (3, 4):
        workspace.native_append(table, number) if native else workspace.rest_append("t", number)
    result = workspace.vacuum()
    assert result.state is JobState.SUCCEEDED, summaries(result)
    assert workspace.rest_rows("t", "old") == [1, 2]
    assert workspace.rest_rows("t", "main") == [1, 2, 3, 4]
    if native:  # one commit for each branch that had old snapshots
        assert [len(workspace.metadata("t", ref)["snapshots"]) for ref in ("main", "old")] == [2, 1]


def test_a_table_dropped_on_main_lives_on_its_branch(workspace: NessieWorkspace) -> None:
    """Nothing that the branch reads goes; what only main's dead versions had does."""
    workspace.rest_table("t", 2)
    workspace.branch("kept")
    workspace.rest_append("t", 7)
    main_only = workspace.content("t").metadata_location.removeprefix("s3://lake/")
    workspace.drop("t")
    workspace.rest_table("u", 1)
    workspace.cutoff(_moment(workspace))
    result = workspace.vacuum(extra="policy: [{set: {deletion.delay_hours: 0, remove_orphans.max_delete_ratio: 1}}]\n")
    assert result.state is JobState.SUCCEEDED, summaries(result)
    assert workspace.rest_rows("t", "kept") == [0, 1]
    assert main_only not in workspace.files()
    assert [job.ref.name for job in result.jobs] == ["t@kept", "u"]
    assert result.counts.num_tables == 2


def test_a_table_dropped_before_the_cutoff_everywhere_is_left_alone(workspace: NessieWorkspace) -> None:
    """The limitation of the documentation: nobody knows its place any more."""
    workspace.rest_table("t", 2)
    workspace.rest_table("u", 1)
    workspace.drop("t")
    kept = {f for f in workspace.files() if "/t_" in f}
    workspace.cutoff(_moment(workspace))
    workspace.vacuum()
    assert {f for f in workspace.files() if "/t_" in f} == kept


def test_a_tag_pins_what_it_shows(workspace: NessieWorkspace) -> None:
    """Its head's snapshot stays; the history behind it does not."""
    table = workspace.native_table("t")
    for number in (1, 2):
        workspace.native_append(table, number)
    workspace.branch("v1", tag=True)
    for number in (3, 4):
        workspace.native_append(table, number)
    workspace.cutoff(_moment(workspace))
    result = workspace.vacuum()
    assert workspace.rest_rows("t", "v1") == [1, 2]
    assert workspace.rest_rows("t", "main") == [1, 2, 3, 4]
    assert result.counts.num_live_references == 2
    assert len(workspace.metadata("t")["snapshots"]) == 1
    assert len(workspace.metadata("t", "v1")["snapshots"]) == 2  # a tag's commits are immutable
    lists = [f for f in workspace.files() if "/snap-" in f]
    assert len(lists) == 2


def test_branches_keep_as_many_snapshots_as_their_tables_say(workspace: NessieWorkspace) -> None:
    """Eleven snapshots on both: five stay on main, two on the other."""
    table = workspace.native_table("t", **{"history.expire.min-snapshots-to-keep": "5"})
    for number in range(11):
        workspace.native_append(table, number)
    workspace.branch("other")
    with table.transaction() as changes:
        changes.set_properties({"history.expire.min-snapshots-to-keep": "2"})
    workspace.put(table, "other")
    workspace.cutoff(_moment(workspace))
    result = workspace.vacuum()
    assert [len(workspace.metadata("t", ref)["snapshots"]) for ref in ("main", "other")] == [5, 2]
    assert result.counts.num_expired_snapshots == 9
    assert workspace.rest_rows("t", "main") == workspace.rest_rows("t", "other") == list(range(11))


def test_a_table_of_the_rest_side_keeps_its_newest_snapshots(workspace: NessieWorkspace) -> None:
    """Its history is in Nessie's commits: the newest of them stay readable beyond the cut-off."""
    workspace.rest_table("t", 0, **{"history.expire.min-snapshots-to-keep": "3"})
    commits = []
    for number in range(5):
        workspace.rest_append("t", number)
        commits.append(workspace.client.reference("main").hash)
    workspace.cutoff(_moment(workspace))
    workspace.vacuum()
    assert workspace.rest_rows("t", f"main@{commits[2]}") == [0, 1, 2]
    assert len([f for f in workspace.files() if "/snap-" in f]) == 3


def test_max_snapshot_age_lengthens_the_cutoff_for_one_table(workspace: NessieWorkspace) -> None:
    """The larger of the two values holds, and for the other table the catalog's."""
    workspace.rest_table("long", 2, **{"history.expire.max-snapshot-age-ms": str(10 * 86_400_000)})
    workspace.rest_table("plain", 2)
    workspace.cutoff("PT24H")  # the clock of the house is two days ahead
    result = workspace.vacuum()
    lists = [f for f in workspace.files() if "/snap-" in f]
    assert (sum("/long_" in f for f in lists), sum("/plain_" in f for f in lists)) == (2, 1)
    assert "1 day" in result.cutoff


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


@pytest.mark.cases(66)
def test_files_of_the_grace_period_stay(workspace: NessieWorkspace) -> None:
    """Whatever is dead: a writer may be about to commit them. They go when they are old enough."""
    workspace.rest_table("t", 3)
    workspace.clock.time = workspace.now() + GRACE - timedelta(minutes=5)
    workspace.cutoff("PT0S")
    before = workspace.files()
    result = workspace.vacuum()
    assert (result.files, workspace.files()) == (0, before)
    workspace.clock.time += timedelta(minutes=10)
    assert workspace.vacuum().files > 0


def test_a_live_file_that_goes_by_two_names_stays(workspace: NessieWorkspace) -> None:
    """The table has it elsewhere, as a gateway may name it; what lies in its place under that name may be the same."""
    name = workspace.rest_table("t", 1)
    table = workspace.rest().load_table(name)
    content = workspace.bytes(next(iter(table.scan().plan_files())).file.file_path)
    place, elsewhere = f"{table.location().removeprefix('s3://lake/')}/data", f"elsewhere/{workspace.space}/one.parquet"
    for path in (elsewhere, f"{place}/ONE.parquet", f"{place}/two.parquet"):
        obstore.put(workspace.bucket, path, content)
    table.add_files([f"s3://lake/{elsewhere}"])
    workspace.clock.time = workspace.now() + GRACE + timedelta(minutes=5)
    workspace.cutoff("PT48H")
    result = workspace.vacuum()
    gone = {f.path.removeprefix("s3://lake/") for job in result.jobs for o in job.outcomes for f in o.files}
    assert f"{place}/two.parquet" in gone
    assert f"{place}/ONE.parquet" in workspace.files()
    assert workspace.rest_rows("t", "main") == [0, 0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"defaultCutoffPolicy": "NONE"}, NONE),
        ({}, EMPTY),
        ({"defaultCutoffPolicy": "20"}, UNSUPPORTED),
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
