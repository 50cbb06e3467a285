"""`icewright cycle`, and what it leaves to look at: history, show, tables, plan."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from icewright.app import output
from icewright.app.cli import main
from icewright.app.demo.tables import events, ledger, metrics, sessions, uploads
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, JobState
from icewright.core.table import TableRef
from icewright.ports import LeaseStatus, LedgerState, Pointer, Trigger
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

HISTORY = partial(metrics, commits=20, rows_per_file=2)
MANIFESTS = partial(events, manifests=12, rows_per_file=5)
JOB = {"table", "job_id", "state", "dry_run", "operations", "summary"}
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_cycle(workspace: Workspace) -> None:
    """Funnel, jobs, what waits and errors; the next one has nothing to do; history and show tell of it."""
    workspace.make(HISTORY, MANIFESTS, partial(ledger, commits=8, rows_per_file=2), partial(sessions, rows_per_file=5))
    dry = workspace("cycle", "--json", "--dry-run")
    assert dry.json.keys() == {"funnel", "jobs", "deferred", "errors"}
    assert (dry.code, dry.json["errors"]) == (0, [])
    assert all(job["dry_run"] and job["job_id"] is None for job in dry.json["jobs"])
    before = workspace.files()
    real = workspace("cycle", "--json")
    assert dry.json["funnel"] == {"tables": 4, "changed": 4, "due": 3, "run": 3}
    assert real.json["funnel"] == dry.json["funnel"] | {"changed": 3}  # the dry run has evaluated the fourth
    assert all(job.keys() == JOB for job in real.json["jobs"])
    assert {job["table"]: job["state"] for job in real.json["jobs"]} == dict.fromkeys(
        ("lake.ops.metrics", "lake.web.events", "lake.web.sessions"), "succeeded"
    )
    doomed = [file["path"] for job in dry.json["jobs"] for o in job["operations"] for file in o["files"]]
    deleted = before - workspace.files()
    assert deleted
    assert deleted <= set(doomed)
    assert workspace("cycle", "--json").json["funnel"] == {"tables": 4, "changed": 0, "due": 0, "run": 0}
    jobs = workspace("history", "--json").json["jobs"]
    assert {job["job_id"] for job in jobs} == {job["job_id"] for job in real.json["jobs"]}
    assert {job["trigger"] for job in jobs} == {"cycle"}
    listed = workspace("history", "lake.ops.metrics", "--json").json["jobs"]
    (one,) = [job for job in listed if "expire_snapshots" in job["operations"]]
    shown = workspace("show", one["job_id"][:-2], "--json").json
    assert shown["job_id"] == one["job_id"]
    assert {file["path"] for file in shown["files"] if file["state"] == "deleted"} == deleted
    (expiry,) = [run for run in shown["runs"] if run["operation"] == "expire_snapshots"]
    assert expiry["before"]["snapshots"] > expiry["after"]["snapshots"]
    text = workspace("show", one["job_id"])
    assert (text.code, "snapshots_expired" in text.out, "Traceback" in text.err) == (0, True, False)


def test_the_plan_is_what_the_cycle_runs(workspace: Workspace) -> None:
    """In the same order, with score and reason; and it changes no table."""
    workspace.make(HISTORY, MANIFESTS)
    workspace.write("policy: [{set: {remove_orphans.enabled: false}}]\n")
    before = workspace.files()
    plan = workspace("plan", "--json").json
    assert plan.keys() == {"tables", "jobs", "deferred", "errors"}
    assert before == workspace.files()
    ran = workspace("cycle", "--json").json["jobs"]
    assert [(j["table"], j["operations"]) for j in plan["jobs"]] == [
        (job["table"], [o["operation"] for o in job["operations"]]) for job in ran
    ]
    scores = [job["score"] for job in plan["jobs"]]
    assert scores == sorted(scores, reverse=True)
    assert workspace("plan").code == 0


def test_a_catalog_that_is_not_enabled(workspace: Workspace) -> None:
    """Everything that is due waits with the reason, which people read once, and the exit code is 0."""
    workspace.make(HISTORY)
    workspace.write("", enabled="false")
    result = workspace("cycle", "--json")
    assert (result.code, result.json["jobs"], result.json["funnel"]["run"]) == (0, [], 0)
    assert {d["operation"] for d in result.json["deferred"]} == {"expire_snapshots", "remove_orphans"}
    assert all(d["reason"].endswith("set catalogs.lake.enabled to true") for d in result.json["deferred"])
    assert all(d.keys() >= {"table", "operation", "reason"} for d in result.json["deferred"])
    workspace.make(partial(sessions, rows_per_file=2))
    shown = workspace("plan").out
    assert (shown.count("is not enabled"), shown.count("expire_snapshots, remove_orphans")) == (1, 1), shown


def test_a_catalog_that_does_not_answer(workspace: Workspace) -> None:
    """Exit code 1, the catalog named, and how to mend it."""
    result = workspace("cycle", "--json")
    assert (result.code, result.json["funnel"]["tables"]) == (1, 0)
    (error,) = result.json["errors"]
    assert error["source"] == "lake"
    assert "catalogs.lake.properties.uri" in error["error"]
    listed = workspace("tables")
    assert (listed.code, "catalogs.lake.properties.uri" in listed.err.replace("\n", "")) == (1, True)


def test_commands_say_on_a_terminal_which_catalogs_they_wait_for(workspace: Workspace) -> None:
    """Also those that look up one table, which the state store does not know yet."""
    waited: list[str] = []

    @contextmanager
    def waiting(catalogs: Sequence[str]) -> Iterator[None]:
        waited.extend(catalogs)
        yield

    workspace.monkeypatch.setattr(output, "waiting_for", waiting)
    asking = (
        "tables",
        "plan",
        "cycle --dry-run",
        "check",
        "run lake.a.b",
        "health lake.a.b",
        "config explain lake.a.b",
        "vacuum lake --dry-run",
    )
    for command in asking:
        workspace(*command.split())
        assert waited == ["lake"], command
        waited.clear()


def test_a_catalog_that_does_not_answer_hides_no_other(workspace: Workspace) -> None:
    """Commands that look show the tables of the others, name it, and exit with a code other than 0."""
    workspace.make(HISTORY)
    gone = (
        f"catalogs:\n  gone: {{type: sql, properties: {{uri: 'sqlite:///{workspace.home}/gone.db', warehouse: /w}}}}\n"
    )
    text = workspace.path.read_text(encoding="utf-8").replace("catalogs:\n", gone)
    workspace.path.write_text(text, encoding="utf-8")
    for command, code in (("explain", 3), ("advise", 3), ("plan", 3), ("tables", 3), ("check", 1)):
        result = workspace(command)
        assert (command, result.code, "lake" in result.out or "1 table" in result.out) == (command, code, True)
        assert "gone.db" in f"{result.out}{result.err}".replace("\n", "")
    for command in ("plan", "tables"):
        assert [error["source"] for error in workspace(command, "--json").json["errors"]] == ["gone"]
    (workspace.home / "catalog.db").rename(workspace.home / "away.db")
    assert workspace("explain").code == workspace("explain", "lake.*").code == 1
    assert [row["error"] for row in workspace("tables", "--json").json["tables"]] == [
        None
    ]  # its own file is not at fault


@pytest.mark.cases(12)
def test_an_unreadable_table_makes_the_cycle_partial(workspace: Workspace) -> None:
    """It is listed with the file that is missing; the other table is maintained."""
    workspace.make(HISTORY, MANIFESTS)
    for path in (workspace.home / "warehouse" / "web").rglob("snap-*.avro"):
        path.unlink()
    result = workspace("cycle", "--json")
    assert result.code == 3
    assert [(e["source"], "snap-" in e["error"]) for e in result.json["errors"]] == [("lake.web.events", True)]
    assert [job["table"] for job in result.json["jobs"]] == ["lake.ops.metrics"]
    rows = {row["table"]: row for row in workspace("tables", "--json").json["tables"]}
    assert rows["lake.web.events"]["state"] == "unreadable"
    assert rows["lake.web.events"]["health"] is None
    asked = (("explain", "lake.web.events"), ("advise", "lake.web.events"), ("explain",), ("explain", "lake.ops.*"))
    assert [workspace(*words).code for words in asked] == [1, 1, 3, 0]


def planned(workspace: Workspace, name: str, paths: list[str], catalog: str = "lake") -> str:
    """A job that died after it had written its deletions down."""
    store = workspace.store()
    known = next((row for row in store.tables.list() if str(row.ref) == name), None)
    ref = known.ref if known else TableRef.parse(name)
    if known is None:
        store.tables.record_listing(catalog, [Pointer(ref, "m1")], NOW)
    uuid = (known.table_uuid if known else None) or "u"
    job_id = store.jobs.claim(ref, uuid, (Operation.EXPIRE_SNAPSHOTS,), Trigger("cycle", "me", "gone:1:2"), NOW)
    assert job_id is not None
    files = [FileAction(path, None, "data") for path in paths]
    store.ledger.plan(job_id, ref, files, LedgerState.PLANNED, NOW)
    store.jobs.finish(job_id, JobState.INTERRUPTED, "", NOW)
    store.engine.dispose()
    return job_id


def orphans(workspace: Workspace) -> list[str]:
    """Files that no snapshot reaches."""
    return sorted(path for path in workspace.files() if "aborted" in path and path.endswith(".parquet"))


@pytest.mark.cases(13)
@pytest.mark.parametrize("command", [["cycle"], ["run", "lake.ops.uploads", "--op", "expire_snapshots"]], ids=str)
def test_a_dry_run_does_not_finish_deletions(workspace: Workspace, command: list[str]) -> None:
    """What an interrupted job had planned is finished by the next real run alone."""
    workspace.make(partial(uploads, old=3, young=0))
    workspace("health", "lake.ops.uploads")
    doomed = orphans(workspace)
    job_id = planned(workspace, "lake.ops.uploads", doomed)
    assert workspace(*command, "--dry-run").code == 0
    assert set(doomed) <= workspace.files()
    assert workspace(*command).code == 0
    assert not set(doomed) & workspace.files()
    assert {file["state"] for file in workspace("show", job_id, "--json").json["files"]} == {"deleted"}


def test_deletions_of_a_catalog_that_is_not_configured_any_more(workspace: Workspace) -> None:
    """They wait, and hinder nobody."""
    workspace.make(HISTORY)
    planned(workspace, "pond.ops.gone", ["file:///pond/x"], catalog="pond")
    assert workspace("cycle", "--json").code == 0
    assert workspace("run", "lake.ops.metrics", "--op", "expire_snapshots").code == 0


def test_spark_is_not_even_imported(workspace: Workspace) -> None:
    """A pass of metadata work starts no JVM and loads no PySpark: seen from a process of its own."""
    workspace.make(HISTORY)
    program = (
        "import sys; from icewright.app.cli import main\n"
        f"sys.argv = ['icewright', '--config', {str(workspace.path)!r}, 'cycle', '--json']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"run": 1' in done.stdout


def test_the_installed_command() -> None:
    """The program `icewright` lies beside Python and is the command line's `main`."""
    assert Path(sys.executable).with_name("icewright").is_file()
    (program,) = entry_points(group="console_scripts", name="icewright")
    assert program.load() is main


def test_a_job_that_runs_is_cancelled_and_one_that_ended_is_not(workspace: Workspace) -> None:
    """The messages name the job and its state."""
    (name,) = workspace.make(HISTORY)
    workspace("health", name)
    store = workspace.store()
    (row,) = store.tables.list()
    now = datetime.now(UTC)
    job_id = store.jobs.claim(row.ref, "u", (Operation.COMPACT,), Trigger("cycle", "me", "another-host:1:2"), now)
    assert job_id is not None
    result = workspace("run", name, "--op", "expire_snapshots", "--json")
    assert (result.json["state"], result.json["summary"]) == (
        "skipped",
        f"another job holds the table: wait for job {job_id}, or cancel it",
    )
    (row,) = workspace("tables", "--json").json["tables"]
    assert (row["state"], row["job"]) == ("busy", job_id)
    cancelled = workspace("cancel", job_id[:-3])
    assert (cancelled.code, cancelled.out) == (0, f"job {job_id} was asked to stop\n")
    assert store.jobs.heartbeat(job_id, now) is LeaseStatus.CANCELLED
    store.jobs.finish(job_id, JobState.CANCELLED, "", now)
    store.engine.dispose()
    late = workspace("cancel", job_id)
    assert (late.code, f"job {job_id} does not run: it is cancelled" in late.err) == (2, True)
