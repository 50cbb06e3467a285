"""Orphan removal and time: whatever is young, of unknown age or from the future stays, and no setting turns it."""

from __future__ import annotations

import json
import os

import pytest

from icewright.core.errors import ConfigError
from icewright.core.layering import parse_settings
from icewright.core.runs import OperationState
from icewright.core.steps import Due
from icewright.flow.evaluate import evaluate_table
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.ports import StepRequest
from icewright.testing import NOW
from tests.cases.workspace import EXPIRE, KNOBS_OF, NAME, ORPHANS, Workspace, ref

LONG_MAX = 2**63 - 1
TWENTY_YEARS = 24 * 366 * 20


@pytest.mark.cases(66, 68)
def test_the_grace_period_to_the_second(workspace: Workspace) -> None:
    """Files one second younger than the grace period stay, one second older ones go; the future is young."""
    folder = workspace.table()
    second = 1 / 86_400
    workspace.plant(folder, "data/in-flight.parquet", days=3 - second)
    workspace.plant(folder, "data/on-the-dot.parquet", days=3)
    workspace.plant(folder, "data/in-an-hour.parquet", days=-1 / 24)
    workspace.plant(folder, "data/in-a-century.parquet", days=-36_500)
    workspace.removes(workspace.plant(folder, "data/old.parquet", days=3 + second))


@pytest.mark.cases(66)
def test_the_grace_period_begins_with_the_scan(workspace: Workspace) -> None:
    """However long listing and comparing take, what was young when the run began stays."""
    folder = workspace.table()
    (young,) = workspace.plant(folder, "data/young.parquet", days=2.9)
    old = workspace.plant(folder, "data/old.parquet")
    workspace.detect()
    runtime = workspace.runtime(KNOBS_OF[ORPHANS])
    evaluation = evaluate_table(runtime, ref(NAME), workspace.clock.now())
    found = evaluation.verdicts[ORPHANS]
    assert isinstance(found, Due)
    job_id = runtime.store.jobs.claim(ref(NAME), evaluation.facts.metadata.table_uuid, (ORPHANS,), runtime.trigger, NOW)
    assert job_id
    workspace.clock.advance(days=10)
    done = runtime.engine.run(StepRequest(job_id, ORPHANS, found.work.steps[0], evaluation.facts.metadata))
    assert {f.path for f in done.files} == {f"file://{path}" for path in old}
    assert young.exists()


@pytest.mark.cases(68)
def test_files_of_unknown_age(workspace: Workspace) -> None:
    """What cannot say when it was written, such as a link whose target has its own time, stays."""
    folder = workspace.table()
    (target,) = workspace.plant(workspace.home / "warehouse" / "outside", "target.parquet")
    for name, where in (("link.parquet", target), ("dangling.parquet", target.with_name("gone"))):
        (folder / "data" / name).symlink_to(where)
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))
    assert target.exists()


@pytest.mark.cases(57, 68)
def test_files_that_links_lead_to(workspace: Workspace) -> None:
    """Live files that somebody moved to another folder of the table, or another name, with a link left behind."""
    craft = workspace.craft()
    files = [craft.data({"id": [number], "part": ["a"]}) for number in range(2)]
    craft.commit(workspace.clock.now(), files)
    folder = workspace.publish(craft)
    (folder / "cold").mkdir()
    for file, moved in zip(files, ["cold/x.parquet", "data/moved.parquet"], strict=True):
        file.path.rename(folder / moved)
        file.path.symlink_to(f"../{moved}")
    workspace.removes(workspace.plant(folder, "data/orphan.parquet"))
    assert workspace.read()


@pytest.mark.cases(68)
@pytest.mark.parametrize("hours", [-1, -24 * 40])
def test_a_clock_that_is_slow(workspace: Workspace, hours: float) -> None:
    """A service whose clock is behind the writers' takes files for younger than they are, never for older."""
    folder = workspace.table()
    workspace.plant(folder, "data/now.parquet", days=0)
    orphans = workspace.plant(folder, "data/orphan.parquet", days=30)
    workspace.clock.advance(hours=hours)
    workspace.finds(orphans if hours == -1 else [])


@pytest.mark.cases(68, 89)
def test_odd_times_of_files(workspace: Workspace) -> None:
    """Times beyond 2038 and beyond the year 9999 are young; those that storage without times says tell no age."""
    folder = workspace.table()
    gone = workspace.plant(folder, "data/orphan.parquet")
    for seconds in (2**31, 2**33, 253_402_300_800, 0, -86_400, 1):
        (odd,) = workspace.plant(folder, f"data/{seconds}.parquet")
        os.utime(odd, (seconds, seconds))
    workspace.removes(gone | {odd})


@pytest.mark.cases(89, "T11")
def test_the_longest_grace_period(workspace: Workspace) -> None:
    """The greatest age that the knob takes lets nothing go, though it is longer ago than any file is."""
    folder = workspace.table()
    workspace.plant(folder, "data/old.parquet", days=365 * 10)
    workspace.finds([], remove_orphans__older_than_hours=TWENTY_YEARS)


@pytest.mark.cases(66, 89, "T11")
def test_a_grace_period_out_of_bounds(workspace: Workspace) -> None:
    """Below a day, negative or beyond all sense: refused in a policy, and as a table property it stops the table."""
    name = "icewright.remove_orphans.older_than_hours"
    workspace.plant(workspace.table(), "data/orphan.parquet", days=1000)
    for value in ("23", "0", "-72", str(TWENTY_YEARS + 1), str(LONG_MAX), "1e999", "NaN"):
        with pytest.raises(ConfigError, match="older_than_hours"):
            parse_settings("policy[0].set", {"remove_orphans.older_than_hours": value})
        workspace.faulty(ORPHANS, name, value)


LITTLE = {"expire_snapshots.min_snapshots_to_keep": 1, "expire_snapshots.retention_hours": 24}
ENDLESS = {
    "history.expire.max-snapshot-age-ms": ("expire_snapshots.retention_hours", LONG_MAX),
    "history.expire.min-snapshots-to-keep": ("expire_snapshots.min_snapshots_to_keep", 2**31 - 1),
    "max-snapshot-age-ms": ("", LONG_MAX),
    "min-snapshots-to-keep": ("", 2**31 - 1),
}


@pytest.mark.cases(89, "T11", "T20")
def test_endless_retention_expires_nothing(workspace: Workspace) -> None:
    """Iceberg's largest numbers, on the table or on main, mean for ever: nothing is expired, nothing is committed."""
    workspace.table()
    workspace.detect()
    plain = workspace.metadata_file().read_text()
    for name, (knob, value) in ENDLESS.items():
        document = json.loads(plain)
        if knob:
            document["properties"][name] = str(value)
        else:
            document["refs"]["main"][name] = value
        workspace.metadata_file().write_text(json.dumps(document))
        files, runtime = workspace.files(), workspace.runtime({k: v for k, v in LITTLE.items() if k != knob})
        (done,) = execute(runtime, Request(ref(NAME), (EXPIRE,), manual=True)).outcomes
        assert (done.state, done.reason) == (OperationState.SKIPPED, "no snapshots to expire"), name
        assert workspace.files() == files


@pytest.mark.cases(89)
def test_senseless_retention_stops_the_table(workspace: Workspace) -> None:
    """A negative or wordy age of the table is a fault by name, not an age of nothing."""
    workspace.table()
    for value in ("-1", "0", "a week", ""):
        workspace.faulty(EXPIRE, "history.expire.max-snapshot-age-ms", value)
