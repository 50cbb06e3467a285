"""The scenarios that users of vacuum know, on a real Nessie: what can be read afterwards, and which files are gone."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from icewright.core.errors import Refused
from icewright.core.runs import JobState
from icewright.core.vacuum import EMPTY, NONE, PER_REF, UNSUPPORTED
from tests.vacuuming import GRACE, NessieHouse, summaries

pytestmark = pytest.mark.external


def _moment(house: NessieHouse) -> datetime:
    """A moment between two commits."""
    time.sleep(0.02)  # commits are stamped by the server: nothing else keeps them apart
    now = house.now()
    time.sleep(0.02)
    return now


@pytest.mark.cases(74, 94)
@pytest.mark.parametrize("native", [False, True])
def test_snapshots_older_than_the_cutoff(house: NessieHouse, *, native: bool) -> None:
    """S1 and S2 go; the commits after the cut-off can be read, and a second run finds nothing."""
    if native:
        table = house.native_table("t")
        commits = [house.native_append(table, number) for number in (1, 2)]
        cutoff = _moment(house)
        commits += [house.native_append(table, number) for number in (3, 4)]
    else:
        house.rest_table("t")
        commits = []
        for number in (1, 2, 3, 4):
            house.rest_append("t", number)
            commits.append(house.client.reference("main").hash)
            if number == 2:
                cutoff = _moment(house)
    house.cutoff(cutoff)
    before = house.files()
    dry = house.vacuum(dry_run=True)
    assert house.files() == before
    result = house.vacuum()
    assert result.state is JobState.SUCCEEDED, summaries(result)
    said = {f.path.removeprefix("s3://lake/") for job in result.jobs for o in job.outcomes for f in o.files}
    assert (
        said
        == before - house.files()
        == {f.path.removeprefix("s3://lake/") for job in dry.jobs for o in job.outcomes for f in o.files}
    )
    assert result.files == len(said) > 0
    assert result.counts.num_table_expiry == 1
    assert result.counts.num_live_references == 1
    assert house.rest_rows("t", "main") == [1, 2, 3, 4]
    assert house.rest_rows("t", f"main@{commits[2]}") == [1, 2, 3]
    with pytest.raises(Exception, match=r"(?i)no such key|not found|404|path does not exist|NoSuchKey|does not exist"):
        house.rest_rows("t", f"main@{commits[0]}")
    if native:
        assert len(house.metadata("t")["snapshots"]) == 2
    house.cutoff(cutoff + timedelta(microseconds=1))
    assert house.vacuum().files == 0


@pytest.mark.parametrize("native", [False, True])
def test_a_branch_older_than_the_cutoff_keeps_its_head(house: NessieHouse, *, native: bool) -> None:
    """Its newest snapshot can be read, though everything on it is old."""
    table = house.native_table("t")
    if native:
        house.native_append(table, 1)
        house.native_append(table, 2)
        house.branch("old")
    else:
        house.rest_table("t", 0)
        house.rest_append("t", 1)
        house.rest_append("t", 2)
        house.branch("old")
    house.cutoff(_moment(house))
    for number in (3, 4):
        house.native_append(table, number) if native else house.rest_append("t", number)
    result = house.vacuum()
    assert result.state is JobState.SUCCEEDED, summaries(result)
    assert house.rest_rows("t", "old") == [1, 2]
    assert house.rest_rows("t", "main") == [1, 2, 3, 4]
    if native:  # one commit for each branch that had old snapshots
        assert [len(house.metadata("t", ref)["snapshots"]) for ref in ("main", "old")] == [2, 1]


def test_a_table_dropped_on_main_lives_on_its_branch(house: NessieHouse) -> None:
    """Nothing that the branch reads goes; what only main's dead versions had does."""
    house.rest_table("t", 2)
    house.branch("kept")
    house.rest_append("t", 7)
    main_only = house.content("t").metadata_location.removeprefix("s3://lake/")
    house.drop("t")
    house.rest_table("u", 1)
    house.cutoff(_moment(house))
    result = house.vacuum(extra="policy: [{set: {deletion.delay_hours: 0, remove_orphans.max_delete_ratio: 1}}]\n")
    assert result.state is JobState.SUCCEEDED, summaries(result)
    assert house.rest_rows("t", "kept") == [0, 1]
    assert main_only not in house.files()
    assert [job.ref.name for job in result.jobs] == ["t@kept", "u"]
    assert result.counts.num_tables == 2


def test_a_table_dropped_before_the_cutoff_everywhere_is_left_alone(house: NessieHouse) -> None:
    """The limitation of the documentation: nobody knows its place any more."""
    house.rest_table("t", 2)
    house.rest_table("u", 1)
    house.drop("t")
    kept = {f for f in house.files() if "/t_" in f}
    house.cutoff(_moment(house))
    house.vacuum()
    assert {f for f in house.files() if "/t_" in f} == kept


def test_a_tag_pins_what_it_shows(house: NessieHouse) -> None:
    """Its head's snapshot stays; the history behind it does not."""
    table = house.native_table("t")
    for number in (1, 2):
        house.native_append(table, number)
    house.branch("v1", tag=True)
    for number in (3, 4):
        house.native_append(table, number)
    house.cutoff(_moment(house))
    result = house.vacuum()
    assert house.rest_rows("t", "v1") == [1, 2]
    assert house.rest_rows("t", "main") == [1, 2, 3, 4]
    assert result.counts.num_live_references == 2
    assert len(house.metadata("t")["snapshots"]) == 1
    assert len(house.metadata("t", "v1")["snapshots"]) == 2  # a tag's commits are immutable
    lists = [f for f in house.files() if "/snap-" in f]
    assert len(lists) == 2


def test_branches_keep_as_many_snapshots_as_their_tables_say(house: NessieHouse) -> None:
    """Eleven snapshots on both: five stay on main, two on the other."""
    table = house.native_table("t", **{"history.expire.min-snapshots-to-keep": "5"})
    for number in range(11):
        house.native_append(table, number)
    house.branch("other")
    with table.transaction() as changes:
        changes.set_properties({"history.expire.min-snapshots-to-keep": "2"})
    house.put(table, "other")
    house.cutoff(_moment(house))
    result = house.vacuum()
    assert [len(house.metadata("t", ref)["snapshots"]) for ref in ("main", "other")] == [5, 2]
    assert result.counts.num_expired_snapshots == 9
    assert house.rest_rows("t", "main") == house.rest_rows("t", "other") == list(range(11))


def test_a_table_of_the_rest_side_keeps_its_newest_snapshots(house: NessieHouse) -> None:
    """Its history is in Nessie's commits: the newest of them stay readable beyond the cut-off."""
    house.rest_table("t", 0, **{"history.expire.min-snapshots-to-keep": "3"})
    commits = []
    for number in range(5):
        house.rest_append("t", number)
        commits.append(house.client.reference("main").hash)
    house.cutoff(_moment(house))
    house.vacuum()
    assert house.rest_rows("t", f"main@{commits[2]}") == [0, 1, 2]
    assert len([f for f in house.files() if "/snap-" in f]) == 3


def test_max_snapshot_age_lengthens_the_cutoff_for_one_table(house: NessieHouse) -> None:
    """The larger of the two values holds, and for the other table the catalog's."""
    house.rest_table("long", 2, **{"history.expire.max-snapshot-age-ms": str(10 * 86_400_000)})
    house.rest_table("plain", 2)
    house.cutoff("PT24H")  # the clock of the house is two days ahead
    result = house.vacuum()
    lists = [f for f in house.files() if "/snap-" in f]
    assert (sum("/long_" in f for f in lists), sum("/plain_" in f for f in lists)) == (2, 1)
    assert "1 day" in result.cutoff


def test_gc_enabled_of_a_user_keeps_everything(house: NessieHouse) -> None:
    """Nessie's own default of the same property does not."""
    said = house.native_table("said", **{"write.metadata.delete-after-commit.enabled": "true"})
    default = house.native_table("default")
    for number in (1, 2, 3):
        house.native_append(said, number)
        house.native_append(default, number)
    before = {f for f in house.files() if "/said/" in f}
    house.cutoff(_moment(house))
    house.vacuum()
    assert {f for f in house.files() if "/said/" in f} == before
    assert [len(house.metadata(name)["snapshots"]) for name in ("said", "default")] == [3, 1]


def test_a_policy_keeps_a_table(house: NessieHouse) -> None:
    """`vacuum.enabled` says for any table what gc.enabled cannot say."""
    house.rest_table("t", 3)
    before = house.files()
    house.cutoff(_moment(house))
    house.vacuum(extra="policy:\n  - {match: lake.*.t, set: {vacuum.enabled: false, deletion.delay_hours: 0}}\n")
    assert house.files() == before


def test_an_instant_acts_once(house: NessieHouse) -> None:
    """Later runs by the same instant do nothing; a dry run does not count."""
    house.rest_table("t", 3)
    house.cutoff(_moment(house))
    house.vacuum(dry_run=True)
    assert house.vacuum().files > 0
    again = house.vacuum()
    assert (again.state, again.files) == (JobState.SKIPPED, 0)
    assert "acts once" in again.reason
    house.cutoff(_moment(house))
    assert house.vacuum().reason == ""


@pytest.mark.cases(66)
def test_files_of_the_grace_period_stay(house: NessieHouse) -> None:
    """Whatever is dead: a writer may be about to commit them. They go when they are old enough."""
    house.rest_table("t", 3)
    house.clock.time = house.now() + GRACE - timedelta(minutes=5)
    house.cutoff("PT0S")
    before = house.files()
    result = house.vacuum()
    assert (result.files, house.files()) == (0, before)
    house.clock.time += timedelta(minutes=10)
    assert house.vacuum().files > 0


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
def test_faulty_policies_change_nothing(house: NessieHouse, config: dict[str, Any], message: str) -> None:
    """The words are those of the documentation, from a policy that stands in Nessie."""
    import requests

    body: Any = {"config": {"type": "GARBAGE_COLLECTOR", **config}}
    said = requests.post(f"{house.server.api}/config/repository", json=body, timeout=30)
    assert said.ok, said.text
    with pytest.raises(Refused) as caught:
        house.vacuum()
    assert message in str(caught.value)
