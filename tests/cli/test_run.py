"""`icewright run`: one table by hand, in-service operations on real files."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import Any

import pytest

from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.app.demo.tables import clicks, events, ledger, metrics, shared, uploads
from icewright.core.words import count, figure
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

JOB = {"table", "job_id", "state", "dry_run", "operations", "summary"}
OPERATION = {"operation", "state", "reason", "summary", "metrics"}
DELETE_ORPHANS = (
    *("--op", "remove_orphans", "--set", "remove_orphans.mode=delete"),
    *("--set", "deletion.delay_hours=0", "--json"),
)
HISTORY = partial(metrics, commits=20, rows_per_file=2)
ODD = 'ops.it\'s `a` "b" ü 100% [x]'
QUOTED = 'lake.ops.`it\'s ``a`` "b" ü 100% [x]`'


def only(document: Any) -> Any:
    """The one operation of a job."""
    assert document.keys() == JOB
    (operation,) = document["operations"]
    assert operation.keys() >= OPERATION
    return operation


def test_an_interrupted_run_says_what_becomes_of_it(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is one sentence and exit code 130; the job is interrupted, and the next run does the work."""
    (name,) = workspace.make(HISTORY)

    def pressed(*_: Any) -> None:
        logging.getLogger("py4j").error("KeyboardInterrupt while sending command.", exc_info=KeyboardInterrupt())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ExpireInService, "run", pressed)
        stopped = workspace("run", name, "--op", "expire_snapshots")
    assert stopped.code == 130
    assert stopped.err.count("\n") == 4, "three events and the sentence"
    assert "interrupted: `icewright history`" in stopped.err
    (job,) = workspace("history", name, "--json").json["jobs"]
    assert job["state"] == "interrupted"
    assert workspace("run", name, "--op", "expire_snapshots", "--json").json["state"] == "succeeded"


@pytest.mark.cases(73, 74)
def test_expiry_deletes_exactly_what_the_dry_run_lists(workspace: Workspace) -> None:
    """The dry run changes nothing; the real run deletes its list; a second one finds nothing."""
    (name,) = workspace.make(HISTORY)
    before = workspace.files()
    dry = workspace("run", name, "--op", "expire_snapshots", "--dry-run", "--json")
    operation = only(dry.json)
    assert (dry.code, dry.json["job_id"], dry.json["dry_run"], dry.json["state"]) == (0, None, True, "succeeded")
    assert operation["state"] == "planned"
    assert workspace.files() == before
    listed = {file["path"] for file in operation["files"]}
    assert {file["kind"] for file in operation["files"]} == {"data", "manifest", "manifest list"}
    assert all(file.keys() == {"path", "bytes", "kind"} for file in operation["files"])
    real = workspace("run", name, "--op", "expire_snapshots", "--json")
    done = only(real.json)
    assert (real.code, real.json["state"], done["state"], "files" in done) == (0, "succeeded", "committed", False)
    assert before - workspace.files() == listed
    assert [path for path in workspace.files() - before if not path.endswith(".metadata.json")] == []
    metrics_ = done["metrics"]
    assert metrics_.keys() >= {"snapshots_expired", "files_deleted", "bytes_deleted", "duration_ms", "gb_hours"}
    expired = metrics_["snapshots_expired"]
    assert done["summary"] == f"expired {count(expired, 'snapshot')}, deleted {count(len(listed), 'unreferenced file')}"
    assert real.json["summary"] == f"expire_snapshots: {done['summary']}"
    again = workspace("run", name, "--op", "expire_snapshots", "--json")
    assert (again.code, again.json["state"], again.json["summary"]) == (
        0,
        "skipped",
        "expire_snapshots: no snapshots to expire",
    )


def test_files_are_listed_on_demand(workspace: Workspace) -> None:
    """`--files` lists what a real run deleted; `--set` is for this run alone."""
    (name,) = workspace.make(HISTORY)
    sets = ["--set", "expire_snapshots.min_snapshots_to_keep=1", "--set", "expire_snapshots.retention_hours=1"]
    sets += ["--set", "deletion.delay_hours=0"]
    result = workspace("run", name, "--op", "expire_snapshots", *sets, "--files", "--json")
    operation = only(result.json)
    assert len(operation["files"]) == operation["metrics"]["files_deleted"] > 0
    assert not {file["path"] for file in operation["files"]} & workspace.files()


@pytest.mark.cases(66, 73)
def test_orphans_are_reported_and_then_deleted(workspace: Workspace) -> None:
    """Mode `report` deletes nothing; mode `delete` deletes exactly the old ones, and not the young."""
    (name,) = workspace.make(partial(uploads, old=3, young=2))
    before = workspace.files()
    report = only(workspace("run", name, "--op", "remove_orphans", "--json").json)
    assert report["summary"] == "found 6 orphan files, mode report removes none"
    assert workspace.files() == before
    delete = ["run", name, *DELETE_ORPHANS]
    listed = {file["path"] for file in only(workspace(*delete, "--dry-run").json)["files"]}
    said = only(workspace(*delete).json)
    assert said["summary"] == "removed 6 orphan files"
    assert said["metrics"].keys() >= {"orphans_found", "orphans_removed", "bytes_deleted", "files_scanned", "gb_hours"}
    assert before - workspace.files() == listed
    assert only(workspace(*delete).json)["summary"] == "removed 0 orphan files"


@pytest.mark.cases(63)
def test_a_shared_location_is_refused(workspace: Workspace) -> None:
    """A skip with the reason, exit code 1 where it was asked for, and every file is there."""
    (name,) = workspace.make(partial(shared, old=2))
    before = workspace.files()
    result = workspace("run", name, *DELETE_ORPHANS)
    operation = only(result.json)
    assert (result.code, result.json["state"], operation["state"]) == (1, "skipped", "skipped")
    assert "refused" in operation["reason"]
    assert workspace.files() == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_inventory_of_another_place_is_refused(workspace: Workspace, *, dry_run: bool) -> None:
    """Set for one run or by a rule, exit code 1 tells a script that nothing was looked for; other work is partial."""
    (name,) = workspace.make(partial(events, manifests=12, rows_per_file=5))
    inventory = workspace.home / "inventory.csv"
    inventory.write_text("key,size,last_modified\nelsewhere/t/a.parquet,11,2026-11-01T12:30:00Z\n")
    setting = f"remove_orphans.inventory=file://{inventory}"
    more = ("--dry-run", "--json") if dry_run else ("--json",)
    before = workspace.files()
    result = workspace("run", name, "--op", "remove_orphans", "--set", setting, *more)
    assert (result.code, result.json["state"]) == (1, "skipped")
    assert "inventory_elsewhere" in only(result.json)["reason"]
    workspace("config", "set", name, setting, "remove_orphans.mode=delete")
    assert workspace("run", name, "--op", "remove_orphans", *more).code == 1
    assert workspace.files() == before
    assert workspace("run", name, "--op", "rewrite_manifests,remove_orphans", *more).code == 3


@pytest.mark.cases(72)
def test_gc_enabled_false_forbids_deletion(workspace: Workspace) -> None:
    """By hand too; manifests may still be rewritten."""
    (name,) = workspace.make(partial(ledger, commits=8, rows_per_file=2))
    before = workspace.files()
    for operation in ("expire_snapshots", "remove_orphans"):
        result = workspace("run", name, "--op", operation, "--json")
        assert (result.code, only(result.json)["reason"]) == (0, "gc.enabled is false on the table")
    assert workspace.files() == before


def test_manifests_are_rewritten(workspace: Workspace) -> None:
    """In-service, with the summary and the metrics of the reference."""
    (name,) = workspace.make(partial(events, manifests=12, rows_per_file=5))
    result = workspace("run", name, "--op", "rewrite_manifests", "--json")
    operation = only(result.json)
    assert operation["summary"] == "rewrote 12 manifests into 1 (12 entries)"
    assert operation["metrics"].keys() >= {"manifests_rewritten", "manifests_written", "entries_total", "duration_ms"}
    again = only(workspace("run", name, "--op", "rewrite_manifests", "--json").json)
    assert again["reason"] == "only 1 data manifest, below threshold of 5"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("canonical", ["rewrite_manifests", "expire_snapshots"]),
        ("seaweedfs", ["expire_snapshots", "rewrite_manifests"]),
    ],
)
def test_operations_run_in_the_order_of_the_policy(workspace: Workspace, order: str, expected: list[str]) -> None:
    """Whatever order they are asked for in."""
    (name,) = workspace.make(HISTORY)
    for asked in (expected, expected[::-1]):
        result = workspace("run", name, "--op", ",".join(asked), "--set", f"order={order}", "--dry-run", "--json")
        assert [o["operation"] for o in result.json["operations"]] == expected


@pytest.mark.cases(59)
def test_an_odd_name(workspace: Workspace) -> None:
    """Quotes, backticks, blanks, brackets, Unicode and percent signs, on the command line and in paths."""
    assert workspace.make(partial(metrics, name=ODD, commits=20, rows_per_file=2)) == [QUOTED]
    before = workspace.files()
    assert [row["table"] for row in workspace("tables", "--json").json["tables"]] == [QUOTED]
    assert workspace("explain", QUOTED, "--json").json["table"] == QUOTED
    result = workspace("run", QUOTED, "--op", "expire_snapshots,remove_orphans", "--json")
    assert (result.code, result.json["table"], result.json["state"]) == (0, QUOTED, "succeeded")
    assert [o["state"] for o in result.json["operations"]] == ["committed", "committed"]
    assert len(before - workspace.files()) == result.json["operations"][0]["metrics"]["files_deleted"] > 0
    assert QUOTED in workspace("history", QUOTED).out.replace("\n", "")
    assert workspace("pause", QUOTED, "--reason", '[bold]it\'s[/] "odd"').out == (
        f'{QUOTED} is paused: [bold]it\'s[/] "odd"\n'
    )
    assert workspace("config", "set", QUOTED, "importance=low").code == 0
    knobs = {k["knob"]: k for k in workspace("config", "explain", QUOTED, "--json").json["knobs"]}
    assert (knobs["importance"]["value"], knobs["importance"]["level"]) == ("low", "table")


def test_people_see_the_same(workspace: Workspace) -> None:
    """Without --json: the operation, its state and summary, and with --dry-run the files with their paths."""
    (name,) = workspace.make(HISTORY)
    result = workspace("run", name, "--op", "expire_snapshots", "--dry-run")
    assert f"{name}: dry run, nothing was changed" in result.out
    assert "would expire" in result.out
    listed = workspace("run", name, "--op", "expire_snapshots", "--dry-run", "--json").json["operations"][0]["files"]
    text = "".join(result.out.split())
    assert listed[0]["path"].rpartition("/")[2] in text
    assert "Traceback" not in result.out + result.err


def test_a_broken_table_fails_with_the_file_in_the_message(workspace: Workspace) -> None:
    """A missing manifest list: exit code 1, the path named, and nothing deleted."""
    (name,) = workspace.make(HISTORY)
    for path in (workspace.home / "warehouse").rglob("snap-*.avro"):
        path.unlink()
    before = workspace.files()
    result = workspace("run", name, "--op", "expire_snapshots,remove_orphans", "--json")
    assert (result.code, result.json["state"]) == (1, "failed")
    assert all("snap-" in o["reason"] and "missing" in o["reason"] for o in result.json["operations"])
    assert before == workspace.files()
    health = workspace("health", name)
    assert (health.code, "snap-" in health.err) == (1, True)


def test_a_partial_job_has_exit_code_3(workspace: Workspace) -> None:
    """One operation failed, another one did its work."""
    (name,) = workspace.make(partial(clicks, commits=12, rows_per_file=2))
    old = min((workspace.home / "warehouse").rglob("snap-*.avro"), key=lambda path: path.stat().st_mtime)
    old.write_bytes(b"Obj\x01broken")
    result = workspace("run", name, "--op", "rewrite_manifests,expire_snapshots", "--json")
    assert {o["operation"]: o["state"] for o in result.json["operations"]} == {
        "rewrite_manifests": "committed",
        "expire_snapshots": "failed",
    }
    assert (result.code, result.json["state"]) == (3, "partial")


def test_a_paused_table_is_not_run_by_accident(workspace: Workspace) -> None:
    """The message says how to go on; --force goes on; --dry-run may look."""
    (name,) = workspace.make(HISTORY)
    workspace("pause", name, "--reason", "looking")
    result = workspace("run", name, "--op", "expire_snapshots")
    assert (
        result.code,
        f"{name} is paused (looking): `icewright resume {name}`, or run with --force" in result.err,
    ) == (
        2,
        True,
    )
    assert workspace("run", name, "--op", "expire_snapshots", "--dry-run").code == 0
    assert workspace("run", name, "--op", "expire_snapshots", "--force").code == 0


def test_show_tells_what_a_rewrite_did_for_readers(workspace: Workspace) -> None:
    """The time of planning before and after it, in the document and in the table of changes."""
    (name,) = workspace.make(partial(events, manifests=12, rows_per_file=5))
    job_id = workspace("run", name, "--op", "rewrite_manifests", "--json").json["job_id"]
    (run,) = workspace("show", job_id, "--json").json["runs"]
    before, after = run["before"], run["after"]
    assert (before["manifests"], after["manifests"]) == (12, 1)
    assert before["planning_ms"] > 0 < after["planning_ms"]
    shown = workspace("show", job_id).out
    assert re.search(rf"planning_ms +{figure(before['planning_ms'])} +{figure(after['planning_ms'])}\b", shown)


def test_costs_are_money_where_a_gb_hour_has_a_price(workspace: Workspace) -> None:
    """What is due, what ran and what a simulation spends is told in money too; without a price nothing is."""
    (name,) = workspace.make(HISTORY)
    bare = workspace("explain", name, "--json").json["verdicts"]
    assert not any("cost_money" in found for found in bare)
    workspace.write("limits: {gb_hour_price: 4.0}\npools: {default: {gb_hour_price: 40.0}}\n")
    due = [v for v in workspace("explain", name, "--json").json["verdicts"] if v["verdict"] == "due"]
    prices = {"compact": 40.0, "rewrite_deletes": 40.0}
    assert due
    for found in due:
        price = prices.get(found["operation"], 4.0)
        assert found["cost_money"] == pytest.approx(price * found["cost_gb_hours"], abs=1e-4)
    assert "in money" in workspace("explain", name).out
    run = only(workspace("run", name, "--op", "expire_snapshots", "--json").json)["metrics"]
    assert run["money"] == pytest.approx(4.0 * run["gb_hours"], rel=1e-3)
    (listed,) = workspace("history", name, "--json").json["jobs"]
    shown = workspace("show", listed["job_id"], "--json").json
    for job in (listed, shown):
        assert (job["gb_hours"], job["gb_hours_driver"], job["money"]) == (run["gb_hours"], 0, run["money"])
    assert "in money" in workspace("show", listed["job_id"]).out
    simulated = workspace("simulate", "--table", name, "--compare", "config", "--json").json
    assert simulated["gb_hour_price"] == 40.0
    assert "money with readers" in workspace("simulate", "--table", name, "--compare", "config").out
