"""Filters of lists, options that add up, and settings that are taken back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app import output
from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.cli.completing import (
    complete_catalog,
    complete_job,
    complete_knob,
    complete_operation,
    complete_scope,
    complete_table,
)
from icewright.app.demo.tables import metrics, sessions
from icewright.core.table import TableRef
from icewright.ports import Pointer
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

HISTORY = partial(metrics, commits=20, rows_per_file=2)
METRICS, SESSIONS = "lake.ops.metrics", "lake.web.sessions"
DAY = timedelta(days=1)
BASH = """
eval "$(_ICEWRIGHT_COMPLETE=source_bash icewright)"
COMP_WORDS=(icewright explain lake.o) COMP_CWORD=2
_icewright_completion icewright
echo "${COMPREPLY[@]}"
"""


def names(workspace: Workspace, *options: str) -> list[str]:
    """The tables that `icewright tables` lists with these options."""
    return [row["table"] for row in workspace("tables", "--json", *options).json["tables"]]


def test_lists_are_filtered(workspace: Workspace) -> None:
    """Tables by namespace, state, due operation and number; verdicts that are due; jobs by state, operation and age."""
    workspace.make(HISTORY, partial(sessions, rows_per_file=5))
    explained, every = workspace("explain").out, workspace("explain", "--all").out
    assert ("expire_snapshots" in explained, "recovery_points" in explained) == (True, False)
    assert ("recovery_points" in every, "Nothing is due" in explained) == (True, False)
    due = workspace("explain", METRICS, "--json").json
    since, first_from = (datetime.fromisoformat(due[name]) for name in ("due_since", "goes_first_from"))
    assert (
        first_from - since,
        f"before all others from {first_from:%Y-%m-%d %H:%M:%S}" in workspace("explain", METRICS).out,
    ) == (DAY, True)
    assert names(workspace) == [METRICS, SESSIONS]
    assert names(workspace, "--namespace", "web") == [SESSIONS]
    assert names(workspace, "--state", "due") == [METRICS, SESSIONS]
    workspace("pause", METRICS)
    assert names(workspace, "--state", "paused") == [METRICS]
    assert names(workspace, "--state", "paused", "--state", "due") == [METRICS, SESSIONS]
    workspace("resume", METRICS)
    assert names(workspace, "--operation", "expire_snapshots") == [METRICS]
    assert names(workspace, "--limit", "1") == [METRICS]
    plan = workspace("plan", "--namespace", "web", "--json").json
    assert {one["table"] for one in (*plan["jobs"], *plan["deferred"])} == {SESSIONS}
    assert [one["table"] for one in workspace("explain", "--namespace", "web", "--json").json] == [SESSIONS]
    assert [one["table"] for one in workspace("explain", "lake.w*", "--json").json] == [SESSIONS]
    assert "lake.x*: no table matches" in workspace("explain", "lake.x*").err
    workspace("run", METRICS, "--op", "expire_snapshots")
    workspace("run", METRICS, "--op", "remove_orphans", "--set", "remove_orphans.mode=delete")

    def jobs(*options: str) -> list[list[str]]:
        return [job["operations"] for job in workspace("history", "--json", *options).json["jobs"]]

    assert jobs() == [["remove_orphans"], ["expire_snapshots"]]
    assert jobs("--operation", "expire_snapshots") == [["expire_snapshots"]]
    assert jobs("--state", "failed") == []
    assert jobs("--since", "1h") == jobs()
    assert jobs("--since", "2200-01-01") == []
    assert jobs("--limit", "1") == [["remove_orphans"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tables", "--state", "sick"), "--state sick: there is no such state; there is: healthy, due"),
        (("tables", "--namespace", "wep"), "--namespace wep: no table is there; did you mean web?"),
        (("plan", "--namespace", "wab"), "--namespace wab: no table is there; did you mean web?"),
        (("explain", "--namespace", "x"), "--namespace x: no table is there; known are web"),
        (("tables", "--namespace", ""), "--namespace: name a namespace, or leave the option out"),
        (("tables", "--operation", ""), "--operation : there is no such operation"),
        (("history", ""), "'' is not a table name"),
        (("tables", "--catalog", ""), "there is no catalog with a blank name"),
        (("tables", "--sort", "colour"), "--sort colour: there is no such column; there is: name, health"),
        (("history", "--state", "sick"), "--state sick: there is no such state; there is: queued, running"),
        (("history", "--since", "soon"), "--since soon: write an age such as 24h or 7d, or a date"),
        (("history", "--since", "999999w"), "--since 999999w: write an age such as 24h or 7d, or a date"),
        (("alerts", "--limit", str(2**63)), "Input should be less than or equal to"),
        (("acknowledge", str(2**63)), "Input should be less than or equal to"),
        (("plan", "--operation", "vacuum"), "--operation vacuum: there is no such operation; there is: expire_rows"),
        (("config", "unset", "lake", "order"), "the store has no rule lake"),
        (("advise", "--recorded"), "name a table, and either --filters FILE of its queries or --recorded"),
        (("--server", "http://nowhere", "advise", SESSIONS, "--recorded", "--apply"), "leave out --apply"),
        (("advise", SESSIONS, "--recorded"), f"{SESSIONS}: no scan report of the last 30 days has a filter"),
    ],
)
def test_wrong_filters_are_named(workspace: Workspace, arguments: tuple[str, ...], message: str) -> None:
    """The message says what there is, and the exit code is that of a wrong call."""
    workspace.make(partial(sessions, rows_per_file=5))
    result = workspace(*arguments)
    assert (result.code, message in result.err) == (2, True)


@pytest.mark.cases(145)
def test_operations_add_up(workspace: Workspace) -> None:
    """`--op a --op b` runs both in the order of the policy, as `--op a,b` does."""
    workspace.make(HISTORY)
    options = ("--op", "remove_orphans", "--op", "expire_snapshots", "--dry-run", "--json")
    operations = workspace("run", METRICS, *options).json["operations"]
    assert [one["operation"] for one in operations] == ["expire_snapshots", "remove_orphans"]


def test_stored_knobs_are_unset(workspace: Workspace) -> None:
    """One knob goes and the others stay; without a name the whole rule goes, and there is nothing more to unset."""
    workspace.make(partial(sessions, rows_per_file=5))
    workspace("config", "set", "lake.web", "importance=high", "compact.min_input_files=9")
    assert workspace("config", "unset", "lake.web", "order").code == 2
    assert workspace("config", "unset", "lake.web", "importance", "--json").json["unset"] == {"importance": "high"}

    def value(knob: str) -> tuple[object, str]:
        knobs = {k["knob"]: k for k in workspace("config", "explain", SESSIONS, "--json").json["knobs"]}
        return knobs[knob]["value"], knobs[knob]["level"]

    assert value("importance") == ("normal", "default")
    assert value("compact.min_input_files")[0] == 9
    assert workspace("config", "unset", "lake.web").out == "lake.web: unset compact.min_input_files\n"
    assert value("compact.min_input_files")[1] == "default"
    assert workspace("config", "unset", "lake.web").code == 2


def test_a_catalog_is_set_in_the_place_of_the_file(workspace: Workspace) -> None:
    """One option after the other, each beside what was set before, until all is as configured; without one it reads."""
    workspace.make(partial(sessions, rows_per_file=5))
    file = {"enabled": True, "namespaces": "", "tables": "", "detect_interval_seconds": 60}
    assert workspace("config", "catalog", "lake", "--json").json == {"name": "lake", **file, "configuration": None}
    workspace("config", "catalog", "lake", "--tables", "s*", "--interval", "600")
    now = workspace("config", "catalog", "lake", "--enabled", "no", "--json").json
    changed = {"enabled": False, "tables": "s*", "detect_interval_seconds": 600}
    assert now == {"name": "lake", **file, **changed, "configuration": file}
    shown = workspace("config", "catalog", "lake").out
    assert "in the place of the configuration's: enabled, * / *, every 60 s" in shown
    assert "not enabled: run `icewright config catalog lake --enabled yes`" in " ".join(workspace("plan").out.split())
    assert workspace("config", "catalog", "lake", "--as-configured", "--json").json["configuration"] is None
    assert workspace("config", "catalog", "lake", "--as-configured", "--enabled", "no").code == 2
    assert "there is no catalog pond; there is: lake" in workspace("config", "catalog", "pond").err


def test_limits_are_set_in_the_place_of_the_file(workspace: Workspace) -> None:
    """What is set holds in the next process, beside what the file says, until it is unset; a fault sets nothing."""
    set_limits = workspace("config", "limits", "limits.global=9", "pools.default.gb_hours_per_day=2.5", "--json").json
    assert (set_limits["version"], set_limits["items"][0]["value"]) == (1, 9)
    assert re.search(r"limits.global +9 +4\b", workspace("config", "limits").out)
    wrong = workspace("config", "limits", "limits.global=0", "limits.per_worker=3")
    assert (wrong.code, "limits.global: '0' is not" in wrong.err, "limits.per_worker: there" in wrong.err) == (2, 1, 1)
    kept = workspace("config", "limits", "--unset", "limits.global", "--json").json["items"]
    assert [(item["name"], item["value"]) for item in kept if item["stored"]] == [
        ("pools.default.gb_hours_per_day", 2.5)
    ]
    assert workspace("config", "limits", "--unset", "limits.global").code == 2


def test_a_list_longer_than_the_terminal_is_shown_by_a_pager(workspace: Workspace) -> None:
    """Neither what fits, nor a document, nor what goes into a pipe; where there is no such pager it is printed."""
    pages, environment = workspace.home / "paged", workspace.monkeypatch.setenv
    environment("PAGER", f"tee {pages}")
    assert "limits.gb_month_price" in workspace("config", "limits").out
    workspace.monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    workspace.monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    workspace.monkeypatch.setattr(output.console(), "_height", 20)
    assert workspace("tables").out == "Tables: none\n"
    assert workspace("config", "limits", "--json").json["version"] == 0
    assert not pages.exists()
    assert workspace("config", "limits").out == ""
    assert "limits.gb_month_price" in pages.read_text(encoding="utf-8")
    environment("PAGER", "no-such-program")
    assert "limits.gb_month_price" in workspace("config", "limits").out


def test_names_complete_in_the_shell(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the store knows are offered, but none that a shell expands; without a configuration none is."""
    workspace.make(HISTORY, partial(sessions, rows_per_file=5))
    job = workspace("run", METRICS, "--op", "expire_snapshots", "--json").json["job_id"]
    assert complete_table("lake.o") == [METRICS]
    assert complete_catalog("") == ["lake"]
    assert (complete_scope("lake.o"), complete_scope("p")) == ([METRICS], ["platform"])
    monkeypatch.setenv("ICEWRIGHT_CONFIG", str(workspace.path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert subprocess.check_output(["bash", "--norc", "-c", BASH], text=True) == f"{METRICS}\n"
    assert (complete_job(job[:8]), complete_job("x")) == ([job], [])
    store = workspace.store()
    odd = ("größe", r"\$(id)", "id.x", "a b", "it's", "x;id", "x|id", "x&", "st*r", "~", "x\nid")  # zsh runs the second
    pointers = [Pointer(TableRef("other", ("a",), name), "file:///1.json") for name in odd]
    store.tables.record_listing("other", pointers, datetime.now(UTC))
    store.engine.dispose()
    assert complete_table("other") == ["other.a.größe"]
    monkeypatch.setattr("icewright.app.cli.base.OPTIONS.config", "nowhere.yaml")
    assert complete_table("lake") == []
    assert complete_operation("rewrite_") == ["rewrite_deletes", "rewrite_manifests"]
    assert complete_knob("compact.min_input") == ["compact.min_input_files"]


def test_advice_on_tables(workspace: Workspace) -> None:
    """A table that is written every moment is advised on, in words and as JSON; another has no advice."""
    workspace.make(partial(metrics, commits=2, rows_per_file=2), sessions)
    catalog = SqlCatalog("lake", **pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"]))
    table = catalog.load_table("ops.metrics")
    rows = table.scan().to_arrow()
    for _ in range(12):
        table.append(rows)
    catalog.close()
    documents = {one["table"]: one["advice"] for one in workspace("advise", "--json").json}
    assert [advice["kind"] for advice in documents[METRICS]] == ["frequent_commits"]
    assert documents[SESSIONS] == []
    assert "commit larger batches" in workspace("advise", METRICS).out
    assert "no advice on 1 table" in workspace("advise", SESSIONS).out


def test_layouts_are_applied_by_command(workspace: Workspace) -> None:
    """What is decided stands below the trials, in words and as JSON; without filters or permission nothing is tried."""
    (name,) = workspace.make(partial(metrics, commits=2, rows_per_file=2))
    filters = workspace.home / "filters.txt"
    filters.write_text("# of a dashboard\n", encoding="utf-8")
    asked = ("advise", name, "--filters", str(filters))
    assert "has no filter" in workspace(*asked).err
    filters.write_text("load > 0\n", encoding="utf-8")
    assert "go with --apply" in workspace(*asked, "--dry-run").err
    assert "--filters FILE" in workspace("advise", name, "--apply").err
    refused = workspace(*asked, "--apply")
    assert (refused.code, "layout.apply is false" in refused.err) == (1, True)
    workspace.write("policy: [{set: {layout.apply: true}}]\n")
    assert workspace(*asked, "--apply", "--json").json["verdict"] == "keep"
    assert "would keep: the filters read" in workspace(*asked, "--apply", "--dry-run").out


def test_a_check_of_all_tables(workspace: Workspace) -> None:
    """The exit code is 1 when a file is at fault; the table, the file and the snapshots that need it are named."""
    workspace.make(HISTORY, sessions)
    assert workspace("check").code == 0
    lost = min((workspace.home / "warehouse" / "ops" / "metrics").rglob("data/**/*.parquet"))
    lost.unlink()
    checked = workspace("check", "--json")
    assert checked.code == 1
    faults = {one["table"]: one["faults"] for one in checked.json}
    assert faults[SESSIONS] == []
    (fault,) = faults[METRICS]
    assert (fault["kind"], fault["path"].endswith(lost.name), bool(fault["snapshot_ids"])) == ("missing", True, True)
    assert lost.name in workspace("check", METRICS).out


def test_a_table_that_cannot_be_read_hides_no_fault_of_another(workspace: Workspace) -> None:
    """A check of a catalog goes on after it, says why, and ends with 1; a name without a dot is a catalog."""
    workspace.make(HISTORY, sessions)
    for metadata in (workspace.home / "warehouse" / "ops" / "metrics").rglob("*.metadata.json"):
        metadata.unlink()
    next((workspace.home / "warehouse" / "web" / "sessions").rglob("data/**/*.parquet")).unlink()
    checked = workspace("check", "lake", "--json")
    assert checked.code == 1
    assert {one["table"]: (one["error"] is None, len(one["faults"])) for one in checked.json} == {
        METRICS: (False, 0),
        SESSIONS: (True, 1),
    }
    assert "metadata.json" in workspace("check").out
    assert workspace("check", "pond").code == 2
