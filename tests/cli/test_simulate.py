"""Commands that try policies out: simulate, config test."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from icewright.app import simulating
from icewright.app.bootstrap import application, read_config
from icewright.app.demo.tables import metrics
from icewright.app.simulating import _ticks
from icewright.core.table import TableRef
from icewright.testing.contracts.inbox import push, record_all, scan
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

SMALL = ("simulate", "--tables", "12", "--days", "2")
COMMITS = [
    {"at": f"2026-01-05T{hour:02}:10:00Z", "table": "lake.sales.orders", "files": 6, "bytes": 6_000_000}
    for hour in range(20)
]


@pytest.fixture
def alone(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Called where there is no configuration."""
    monkeypatch.chdir(workspace.home / "warehouse")
    return workspace


def trace(workspace: Workspace, *more: str) -> str:
    """A file of commits."""
    path = workspace.home / "trace.jsonl"
    path.write_text("\n".join([*(json.dumps(c) for c in COMMITS), *more]), encoding="utf-8")
    return str(path)


def test_a_made_up_fleet(alone: Workspace) -> None:
    """Cron and the defaults, side by side; one JSON object, or the same as tables."""
    said = alone(*SMALL, "--compare", "cron,default", "--json", config=False)
    found = said.json
    assert (said.code, list(found["policies"]), found["tables"], found["fleet"]) == (
        0,
        ["cron", "default"],
        12,
        "mixed",
    )
    for result in found["policies"].values():
        assert result["gb_hours"] > 0
        assert result["average_files"] > 0
        assert result["series"][-1]["hours"] == 48
    text = alone(*SMALL, config=False)
    assert "fleet mixed: 12 tables over 2 days" in text.out
    assert " 0.00 (" not in text.out  # small costs keep their digits
    assert "of cron's GB-hours" in text.out
    assert "icewright: simulated policy=default" in text.err


def test_a_trace(alone: Workspace) -> None:
    """Commits of a file; a day beyond the last one, unless days are said."""
    path = trace(alone)
    found = alone("simulate", path, "--compare", "default,streaming", "--json", config=False).json
    assert (found["trace"], found["tables"], found["begin"]) == (path, 1, "2026-01-05T00:00:00+00:00")
    assert found["end"] == "2026-01-06T19:10:00+00:00"
    assert found["policies"]["default"]["runs"]["compact"] > 5
    short = alone("simulate", path, "--days", "3", "--json", config=False).json
    assert short["end"] == "2026-01-08T00:00:00+00:00"


def test_the_history_of_a_table(workspace: Workspace) -> None:
    """The commits that a table's own snapshots tell of are replayed; the table stays as it is."""
    (name,) = workspace.make(partial(metrics, commits=4, rows_per_file=2))
    before = sorted((workspace.home / "warehouse").rglob("*.*"))
    result = workspace("simulate", "--table", name, "--compare", "cron,config,oracle", "--json")
    found = result.json
    assert (found["recorded"], found["tables"]) == ([name], 1), result.err
    assert list(found["policies"]) == ["cron", "config", "oracle"]
    assert found["policies"]["config"]["average_files"] > 0
    with application(read_config(workspace.path), kind="service") as app:
        store, ref = app.runtime.store, TableRef.parse(name)
        record_all(store, ref)
        push(store, *[scan(ref, at=app.runtime.clock.now()) for _ in range(100)], now=app.runtime.clock.now())
    read = workspace("simulate", "--table", name, "--compare", "cron", "--json").json["policies"]["cron"]
    assert read["total_gb_hours"] > 3 * found["policies"]["cron"]["total_gb_hours"]  # as its engines report reads
    assert sorted((workspace.home / "warehouse").rglob("*.*")) == before
    wrong = workspace("simulate", "--table", "lake.no.such")
    assert (wrong.code, "lake.no.such" in wrong.err) == (1, True)
    both = workspace("simulate", "--table", name, "--tables", "5")
    assert (both.code, "leave them out where commits are given" in both.err) == (2, True)


def test_the_configuration_is_tried_out(workspace: Workspace) -> None:
    """Its policy and its limits, named by --config or asked for by name; --set holds above them."""
    workspace.write("policy: [{match: 'lake.sales.*', set: {compact.enabled: false}}]\n")
    path = trace(workspace)
    found = workspace("simulate", path, "--json").json["policies"]
    assert list(found) == ["cron", "config"]
    assert "compact" not in found["config"]["runs"]
    again = workspace("simulate", path, "--compare", "config", "--set", "compact.enabled=true", "--json").json[
        "policies"
    ]
    assert again["config"]["runs"]["compact"] > 5


def test_names_of_policies_may_have_blanks_around_them(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration that lies here is found whether or not its name follows a blank."""
    monkeypatch.chdir(workspace.home)
    result = workspace(*SMALL, "--compare", "cron, config", "--json", config=False)
    assert (result.code, list(result.json["policies"])) == (0, ["cron", "config"]), result.err


def test_a_picture(alone: Workspace) -> None:
    """One well-formed SVG that needs nothing else: six panels, a line in each for each policy, all named.

    Where it cannot be written the numbers are there all the same.
    """
    path = alone.home / "plot.svg"
    assert alone(*SMALL, "--compare", "cron,default,compliance", "--svg", str(path), config=False).code == 0
    root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    panels = root.findall(f"{space}g")
    assert [len(panel.findall(f"{space}path")) for panel in panels] == [3] * 6
    text = "".join(root.itertext())
    assert all(word in text for word in ("cron", "compliance", "GB-hours", "days", "fleet mixed", "Health"))
    assert "prefers-color-scheme: dark" in text
    assert "href" not in path.read_text(encoding="utf-8")
    refused = alone(*SMALL, "--svg", "no/where.svg", config=False)
    assert (refused.code, "GB-hours" in refused.out) == (2, True)
    assert "--svg no/where.svg: cannot be written: No such file" in refused.err


def test_policies_beside_the_oracle(alone: Workspace) -> None:
    """The least that any schedule costs is in the document, and each policy is said in times of it."""
    arguments = (*SMALL, "--compare", "default,oracle")
    policies = alone(*arguments, "--json", config=False).json["policies"]
    assert list(policies) == ["default", "oracle"]
    times = policies["default"]["total_gb_hours"] / policies["oracle"]["total_gb_hours"]
    assert 1 < times < 10
    assert "times the least GB-hours with readers of any schedule" in alone(*arguments, config=False).out


def test_a_fleet_by_month_lasts_as_long_as_its_merges_need(alone: Workspace) -> None:
    """What a merge saves comes after it: an oracle that knows the end of a short simulation merges little."""
    found = alone("simulate", "--fleet", "hourly-200mb", "--compare", "default,oracle", "--json", config=False).json
    assert (found["begin"][:10], found["end"][:10]) == ("2026-01-05", "2026-01-30")
    cost, least = (found["policies"][name]["total_gb_hours"] for name in ("default", "oracle"))
    assert cost < 1.3 * least


@pytest.mark.external
def test_policies_side_by_side(alone: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes long each policy has a process of its own, and the result is the same."""
    arguments = (*SMALL, "--compare", "cron,default", "--json")
    alike = alone(*arguments, config=False).json
    monkeypatch.setattr(simulating, "_LONG", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    said = alone(*arguments, config=False)
    assert said.json == alike
    assert said.err.count("simulated policy=") == 2


@pytest.mark.parametrize("highest", [0.003, 1, 7, 61.5, 99, 100, 38_354, 2.5e9])
def test_axes_have_round_numbers(highest: float) -> None:
    """From 0 to at least the highest, not far above it."""
    ticks = _ticks(highest)
    assert ticks[0] == 0
    assert highest <= ticks[-1] * (1 + 1e-9)
    assert ticks[-1] < 2 * highest
    assert 3 <= len(ticks) <= 7


WRONG = {
    "fleet": (("simulate", "--fleet", "huge"), "--fleet huge: there is no such fleet; there is: mixed, streaming"),
    "policy": ((*SMALL, "--compare", "cron,best"), "--compare best: there is no such policy; there is: cron, default"),
    "nothing": ((*SMALL, "--compare", ","), "--compare: name at least one policy"),
    "config": ((*SMALL, "--compare", "config"), "there is no configuration icewright.yaml"),
    "days": ((*SMALL, "--days", "9999999"), "Input should be less than or equal to 3660"),
    "every": ((*SMALL, "--every", "999999999999"), "Input should be less than or equal to 10080"),
    "tables": (("simulate", "--tables", "999999999999"), "Input should be less than or equal to 1000000"),
    "set": ((*SMALL, "--set", "order=wild"), "--set order: 'wild' is not one of canonical, seaweedfs"),
    "no trace": (("simulate", "no.jsonl"), "no.jsonl: cannot be read: "),
    "no tests": (("config", "test", "no.yaml"), "no.yaml: cannot be read: "),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_calls(alone: Workspace, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2, and one message that says what would be right."""
    got = alone(*arguments, config=False)
    assert (got.code, got.out) == (2, "")
    assert said in got.err
    assert "Traceback" not in got.err


def test_bad_lines_of_a_trace(alone: Workspace) -> None:
    """Each with its number and what would be right; a trace and a made-up fleet exclude one another."""
    path = trace(alone, '{"at": "2026-01-05"}', "what?")
    said = alone("simulate", path, config=False)
    first, second = said.err.splitlines()
    assert (said.code, said.out) == (2, "")
    assert first == f"{path}, line 21: table: missing"
    assert second.startswith(f"{path}, line 22: no JSON: ")
    both = alone("simulate", path, "--tables", "5", config=False)
    assert (both.code, "leave them out where commits are given" in both.err) == (2, True)


def test_a_rewrite_that_takes_longer_than_the_calendar(alone: Workspace) -> None:
    """Does not end within the time that is simulated, and breaks nothing."""
    most = {"files": 10**15, "bytes": 10**15}
    lines = (json.dumps({**COMMITS[0], **most, "partition": f"p={n}"}) for n in range(3))
    said = alone("simulate", trace(alone, *lines), "--compare", "cron,default", "--json", config=False)
    assert (said.code, said.json["tables"]) == (0, 1), said.err


def file_of(workspace: Workspace, *ticks: dict[str, Any], **more: Any) -> str:
    """A file with one test."""
    path = workspace.home / "tests.yaml"
    test = {"name": "orders", "table": "lake.sales.orders", "ticks": list(ticks), **more}
    path.write_text(json.dumps({"tests": [test]}), encoding="utf-8")
    return str(path)


def test_config_test(workspace: Workspace) -> None:
    """Passed and failed tests, with what was found and why; the exit code says whether all passed."""
    path = file_of(workspace, {"commits": [{"files": 4, "mb": 1}], "expect": {"compact": "due"}})
    result = workspace("config", "test", path)
    assert (result.code, result.out.splitlines()[0]) == (1, "failed  orders")
    assert "tick 1 (0 h): compact: expected due, found not_due: no files eligible for compaction" in result.out
    assert result.out.endswith("0 passed, 1 failed\n")
    workspace.write("policy: [{set: {compact.min_input_files: 3}}]\n")
    result = workspace("config", "test", path)
    assert (result.code, result.out) == (0, "passed  orders\n1 passed, 0 failed\n")
    found = workspace("config", "test", path, "--json").json
    assert found == {"file": path, "ok": True, "tests": [{"name": "orders", "ok": True, "failures": []}]}


def test_config_test_with_rules_of_its_own(alone: Workspace) -> None:
    """Tests that bring their rules need no configuration; others do."""
    tick = {"commits": [{"files": 4, "mb": 1}], "expect": {"compact": "due"}}
    path = file_of(alone, tick, policy=[{"set": {"compact.min_input_files": 3}}])
    assert alone("config", "test", path, config=False).code == 0
    said = alone("config", "test", file_of(alone, tick), config=False)
    assert (said.code, "there is no configuration" in said.err) == (2, True)


def test_faults_of_a_test_file(alone: Workspace) -> None:
    """All of them, with their key paths, and exit code 2."""
    said = alone("config", "test", file_of(alone, {"after_hours": -1}, {"run": ["x"]}), config=False)
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 2)
    assert said.err.startswith("tests[0].ticks[0].after_hours: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tests:\n  - begins: 2026-02-31", "line 2, column 13: no timestamp that there can be"),
        ("tests: 0x" + "f" * 9000, "line 1, column 8: a number of more than 300 digits"),
        ("[" * 5000, "nested too deeply to be read"),
    ],
)
def test_values_that_yaml_cannot_hold(alone: Workspace, text: str, said: str) -> None:
    """Are told with their place, as all that is no YAML is."""
    path = alone.home / "tests.yaml"
    path.write_text(text, encoding="utf-8")
    got = alone("config", "test", str(path), config=False)
    assert (got.code, got.out) == (2, "")
    assert got.err.startswith(f"{path}: ")
    assert said in got.err
