"""Commands that explain and set: health, explain, config, pause, db; and every message for a wrong call."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icewright
from icewright.adapters.store.access import SqlRules
from icewright.adapters.store.revisions import newest_revision
from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

HISTORY = partial(metrics, commits=20, rows_per_file=2)
NAME = "lake.ops.metrics"


def test_health(workspace: Workspace) -> None:
    """One object with parts, facts and a verdict for each operation; people see the same."""
    workspace.make(HISTORY)
    found = workspace("health", NAME, "--json").json
    assert found.keys() >= {"table", "snapshot_id", "health", "parts", "facts", "verdicts"}
    assert (found["table"], 0 <= found["health"] <= 100, found["facts"]["snapshots"]) == (NAME, True, 20)
    assert found["parts"]["orphans"]["score"] is None
    verdicts = {v["operation"]: v for v in found["verdicts"]}
    assert list(verdicts) == [
        "expire_rows",
        "compact",
        "rewrite_deletes",
        "rewrite_manifests",
        "compute_statistics",
        "recovery_points",
        "expire_snapshots",
        "remove_orphans",
        "check",
    ]
    assert (verdicts["expire_snapshots"]["verdict"], verdicts["compact"]["verdict"]) == ("due", "not_due")
    assert all(v["reason"] for v in verdicts.values())
    text = workspace("health", NAME).out
    assert all(v["verdict"] in text for v in verdicts.values())


def test_explain(workspace: Workspace) -> None:
    """One table as an object, all tables as a list; a paused one says so."""
    workspace.make(HISTORY)
    one = workspace("explain", NAME, "--json").json
    assert [v["operation"] for v in one["verdicts"]][-1] == "check"
    workspace("pause", NAME, "--reason", "looking")
    (again,) = workspace("explain", "--json").json
    assert (again["table"], again["paused"]) == (NAME, "looking")
    assert re.search(rf"{NAME} .* paused +looking", workspace("explain").out)
    assert "paused: looking" in workspace("explain", NAME).out


def test_pause_and_resume(workspace: Workspace) -> None:
    """A paused table waits; resuming one that is not paused says so."""
    workspace.make(HISTORY)
    assert workspace("pause", NAME).out == f"{NAME} is paused: manually\n"
    assert workspace("tables", "--json").json["tables"][0]["paused"] == "manually"
    waits = workspace("cycle", "--json").json
    assert (waits["funnel"]["run"], {d["reason"] for d in waits["deferred"]}) == (0, {"paused: manually"})
    assert workspace("resume", NAME).out == f"{NAME} is maintained again\n"
    assert workspace("resume", NAME).out == f"{NAME} is not paused\n"
    assert workspace("cycle", "--json").json["funnel"]["run"] == 1


def test_config_check(workspace: Workspace) -> None:
    """Says what there is, or every fault, and exit code 2."""
    (workspace.home / "state.db").unlink()
    assert workspace("config", "check").out == f"{workspace.path}: 1 catalog, 1 rule, no fault\n"
    checked = {"config": str(workspace.path), "ok": True, "faults": [], "rules_without_tables": []}
    assert workspace("config", "check", "--json").json == checked
    workspace.write(
        "policy: [{match: lake.sales, set: {importance: high}}, {match: lake.opps, set: {importance: high}}]\n"
    )
    assert (workspace("config", "check").err, list(workspace.home.glob("*.db"))) == ("", [])  # nothing is known yet
    workspace.make(HISTORY)
    workspace("tables")
    assert workspace("config", "check").err == "no known table is in lake.sales, lake.opps\n"
    workspace.write("polices: []\nlimits: {global: 0}\n")
    result = workspace("config", "check")
    assert (result.code, len(result.err.splitlines())) == (2, 2)
    faults = workspace("config", "check", "--json")
    assert (faults.code, faults.json["ok"], len(faults.json["faults"])) == (2, False, 2)
    tables = workspace("tables")
    assert (tables.code, tables.err) == (2, result.err)


def test_config_set_and_explain(workspace: Workspace) -> None:
    """A stored rule wins over the file's of its level, keeps what was set before, and shows what it overrides."""
    workspace.make(HISTORY)
    workspace.write("policy: [{match: lake, set: {compact.min_input_files: 7}}]\n")
    assert workspace("config", "set", "lake", "compact.min_input_files=9").out == "lake: compact.min_input_files = 9\n"
    assert workspace("config", "set", "lake", "compact.where=day > '2026-01-01' AND x = 1").code == 0
    assert workspace("config", "set", "lake.ops.*", "importance=high", "order=seaweedfs").code == 0
    assert workspace("config", "set", "platform", "importance=low").code == 0
    knobs = {k["knob"]: k for k in workspace("config", "explain", NAME, "--json").json["knobs"]}
    files = knobs["compact.min_input_files"]
    assert (files["value"], files["level"], files["rule"]) == (9, "catalog", "lake (store)")
    assert files["overrides"] == [{"level": "catalog", "rule": "lake (file)", "value": 7}]
    assert knobs["compact.where"]["value"] == "day > '2026-01-01' AND x = 1"
    assert (knobs["importance"]["value"], knobs["importance"]["level"]) == ("high", "table")
    assert (knobs["compact.hot_minutes"]["level"], knobs["compact.hot_minutes"]["unit"]) == ("default", "minutes")
    assert "lake (store)" in workspace("config", "explain", NAME).out
    assert workspace("config", "set", NAME, "importance=high").err == ""
    assert workspace("config", "set", "lake.opps.*", "importance=high").err == "lake.opps.*: no table is known there\n"


def test_two_shells_that_change_a_rule_at_once_lose_no_change(workspace: Workspace) -> None:
    """What another has stored since the rule was read stays, whether knobs are set or removed."""
    put, others = SqlRules.put, list[dict[str, Any]]()

    def late(rules: SqlRules, match: tuple[str, ...], *values: Any, **named: Any) -> int | None:
        if others:
            put(rules, match, others.pop(), "ben", datetime.now(UTC), None)
        return put(rules, match, *values, **named)

    workspace.monkeypatch.setattr(SqlRules, "put", late)
    for arguments, other, stored in (
        (("set", "lake", "evaluate.cooldown_minutes=2"), {"importance": "high"}, {"evaluate.cooldown_minutes": 2}),
        (("unset", "lake", "importance"), {"importance": "high", "compact.enabled": False}, {"compact.enabled": False}),
    ):
        others.append(other)
        assert workspace("config", *arguments).code == 0
        store = workspace.store()
        (rule,) = store.rules.list()
        store.engine.dispose()
        assert rule.settings.items() >= stored.items()
        assert ("importance" in rule.settings) == (arguments[0] == "set")


def test_guardrails_hold_what_is_set_later(workspace: Workspace) -> None:
    """`config set` and `run --set` are refused; neither deletes what the guardrail protects."""
    workspace.make(HISTORY)
    workspace.write("guardrails: ['expire_snapshots.retention_hours >= 100000']\n")
    result = workspace("config", "set", "platform", "expire_snapshots.retention_hours=24")
    assert (result.code, "passes the guardrail expire_snapshots.retention_hours >= 100000" in result.err) == (2, True)
    ran = workspace("run", NAME, "--op", "expire_snapshots", "--set", "expire_snapshots.retention_hours=1", "--json")
    assert (ran.code, "passes the guardrail expire_snapshots.retention_hours >= 100000" in ran.err) == (2, True)


@pytest.mark.cases(151)
def test_guardrails_of_choices_hold_what_is_set_later(workspace: Workspace) -> None:
    """The mode of orphan removal is bounded on every way; `config explain` says who bounded what was set before."""
    workspace.make(HISTORY)
    assert workspace("config", "set", "lake", "remove_orphans.mode=delete").code == 0
    workspace.write("guardrails: ['remove_orphans.mode in report, confirm']\n")
    passed = "'delete' passes the guardrail remove_orphans.mode in report, confirm"
    for said in (
        workspace("config", "set", "lake", "remove_orphans.mode=delete"),
        workspace("run", NAME, "--op", "remove_orphans", "--set", "remove_orphans.mode=delete"),
    ):
        assert (said.code, passed in said.err) == (2, True)
    knobs = {k["knob"]: k for k in workspace("config", "explain", NAME, "--json").json["knobs"]}
    held = knobs["remove_orphans.mode"]
    assert (held["value"], held["rule"]) == ("report", "lake (store)")
    assert held["note"] == "delete held by guardrail remove_orphans.mode in report, confirm"


@pytest.mark.cases(151)
def test_ignored_properties_are_shown_with_their_remedy(workspace: Workspace) -> None:
    """`config explain`, `explain` and `health` name them, for people and as JSON; the remedy is the right one."""
    workspace.make(HISTORY)
    catalog = SqlCatalog("lake", **pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"]))
    catalog.load_table("ops.metrics").transaction().set_properties(
        {"icewright.remove_orphans.mode": "delete"}
    ).commit_transaction()
    catalog.close()
    for command in (("config", "explain"), ("explain",), ("health",)):
        (ignored,) = workspace(*command, NAME, "--json").json["ignored_properties"]
        assert (ignored["property"], ignored["value"]) == ("icewright.remove_orphans.mode", "delete")
        assert "may not set remove_orphans.mode above report" in ignored["reason"]
        shown = " ".join(workspace(*command, NAME).out.split())
        assert "Ignored table properties" in shown
        assert "properties.allow: remove_orphans.mode" in shown
    assert workspace("config", "set", "lake.ops", "properties.allow=remove_orphans.mode").code == 0
    explained = workspace("config", "explain", NAME, "--json").json
    assert explained["ignored_properties"] == workspace("explain", NAME, "--json").json["ignored_properties"] == []
    mode = next(k for k in explained["knobs"] if k["knob"] == "remove_orphans.mode")
    assert (mode["value"], mode["level"]) == ("delete", "table properties")
    assert "Ignored" not in workspace("explain", NAME).out


def test_db_upgrade(workspace: Workspace) -> None:
    """Makes the store, and may be called again."""
    store = workspace.home / "state.db"
    store.unlink()
    for _ in range(2):
        result = workspace("db", "upgrade")
        assert (result.code, result.out) == (0, "the state store has the newest revision\n")
    assert store.stat().st_mode & 0o777 == 0o600
    assert workspace("db", "upgrade", "--json").json == {"revision": newest_revision()}


def test_a_revoked_token(workspace: Workspace) -> None:
    """`token revoke --json` names the token and the time, as `token list` has them; a second revocation is refused."""
    token = workspace("token", "create", "--role", "viewer", "--json").json["id"]
    revoked = workspace("token", "revoke", token, "--json").json
    (row,) = workspace("token", "list", "--json").json["tokens"]
    assert revoked == {"id": token, "revoked": row["revoked"]}
    assert workspace("token", "revoke", token).code == 2


def test_a_token_for_nothing(workspace: Workspace) -> None:
    """A scope without a known table is pointed out, as it may be misspelt; it may also be of tables to come."""
    workspace.make(HISTORY)
    workspace("tables")
    result = workspace("token", "create", "--role", "viewer", "--scope", "lake.ops", "--scope", "lake.opps")
    assert (result.code, [line for line in result.err.splitlines() if "no table" in line]) == (
        0,
        ["--scope lake.opps: no table is known there"],
    )


def test_a_token_is_revoked_without_the_secrets_of_catalogs(workspace: Workspace) -> None:
    """In an emergency the state store is enough."""
    token = workspace("token", "create", "--role", "viewer", "--json").json["id"]
    text = workspace.path.read_text(encoding="utf-8").replace("warehouse:", "token: '${env:NOT_HERE}', warehouse:")
    workspace.path.write_text(text + "events: {tokens: ['${env:NOR_HERE}']}\n", encoding="utf-8")
    assert workspace("tables").code == 2
    assert workspace("token", "revoke", token).code == 0
    (row,) = workspace("token", "list", "--json").json["tokens"]
    assert row["revoked"] is not None


def test_the_first_command_makes_the_store(workspace: Workspace) -> None:
    """SQLite needs no `db upgrade`: whatever opens the store makes it."""
    (workspace.home / "state.db").unlink()
    assert workspace("alerts", "--json").json == {"alerts": []}
    assert workspace("db", "upgrade").code == 0


RUN = ("run", NAME)
WRONG = {
    "no namespace": (("health", "lake.metrics"), "'lake.metrics' is not a table name: write catalog.namespace.table"),
    "empty part": (("run", "lake..metrics"), "is not a table name"),
    "unclosed quote": (("explain", "lake.ops.`metrics"), "is not a table name"),
    "empty name": (("health", ""), "is not a table name"),
    "no such table": (
        ("health", "lake.ops.metrix"),
        "lake.ops.metrix: the catalog has no such table; `icewright tables`",
    ),
    "no such catalog": (
        ("health", "laek.ops.metrics"),
        "there is no catalog laek in the configuration (there is: lake)",
    ),
    "--catalog": (("cycle", "--catalog", "laek"), "there is no catalog laek; there is: lake"),
    "no such operation": (
        (*RUN, "--op", "compaction"),
        "--op compaction: there is no such operation; there is: expire_rows, compact,",
    ),
    "one bad operation": ((*RUN, "--op", "compact,zap"), "--op zap: there is no such operation"),
    "--set without value": ((*RUN, "--set", "order"), "--set order: write knob=value, such as"),
    "--set unknown": (
        (*RUN, "--set", "compact.min_files=2"),
        "--set compact.min_files: there is no such knob; did you mean",
    ),
    "--set bad value": ((*RUN, "--set", "order=wild"), "--set order: 'wild' is not one of canonical, seaweedfs"),
    "--set too small": ((*RUN, "--set", "remove_orphans.older_than_hours=1"), "is not a whole number from 24"),
    "no such job": (
        ("show", "4711"),
        "no single job has an id that begins or ends with '4711'; `icewright history` lists the ids",
    ),
    "wildcards": (("show", "%"), "no single job has an id that begins or ends with '%'"),
    "cancel nothing": (("cancel", "4711"), "no single job has an id that begins or ends with '4711'"),
    "set nowhere": (("config", "set", "laek", "order=canonical"), "there is no catalog laek; there is: lake"),
    "set a bad scope": (("config", "set", "lake..x", "order=canonical"), "names no catalog, namespace or table"),
    "set nothing": (("config", "set", "lake", "order"), "order"),
    "set an unknown knob": (("config", "set", "lake", "odrer=x"), "there is no such knob; did you mean order?"),
    "an operation for a table": (("run", "compact"), "compact is an operation, not a table: name it as --op compact"),
    "no catalog": (("explain", "ops.metrics"), "; did you mean lake.ops.metrics?"),
    "no answer": (("give-up", "4711"), "no answer came: confirm with --yes"),
    "no file of tests": (("config", "test", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file or directory"),
    "no answer to vacuum": (("vacuum", "lake"), "no answer came: confirm with --yes"),
    "--server without scheme": (("--server", "localhost:1", "tables"), "write one such as http://127.0.0.1:8765"),
    "history of nothing": (("history", "lake.ops.metrix"), "the catalog has no such table"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_calls(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    """Exit code 2, one message that says what is wrong and what would be right, and nothing on standard output."""
    if "catalog has no such" in said:
        workspace.make(HISTORY)
    if "did you mean lake." in said:
        workspace.make(HISTORY)
        workspace("tables")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    got = workspace(*arguments)
    assert (got.code, got.out.strip()) == (2, "")  # a question leaves its last blank there
    assert said in got.err
    assert "Traceback" not in got.err


@pytest.mark.parametrize(
    "arguments",
    [("tables",), ("health", NAME), (*RUN, "--json"), ("cycle",), ("config", "check"), ("db", "upgrade"), ("doctor",)],
    ids=str,
)
def test_no_configuration(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Every command says how to name one, and as a JSON document too where one is asked for."""
    monkeypatch.chdir(workspace.home / "warehouse")
    result = workspace(*arguments, config=False)
    assert (result.code, result.json if "--json" in arguments else result.out) == (
        2,
        {"error": result.err.strip()} if "--json" in arguments else "",
    )
    assert "there is no configuration icewright.yaml: name one with --config or ICEWRIGHT_CONFIG" in result.err


@pytest.mark.parametrize(
    ("state", "fragment"),
    [
        ("sqlite:////dev/null/state.db", "/dev/null/state.db"),
        ("sqlite:////dev/null", "/dev/null"),
        ("postgresql+psycopg://me:hush-4711@127.0.0.1:1/db", "127.0.0.1:1/db"),
        ("postgresql+psycopg://127.0.0.1:1/db?user=me&password=hush-4711", "127.0.0.1:1/db"),
    ],
)
def test_a_state_store_that_cannot_be_opened(workspace: Workspace, state: str, fragment: str) -> None:
    """A message that names the place and never the password, and an exit code, instead of a traceback."""
    workspace.path.write_text(workspace.path.read_text().replace("sqlite:///state.db", state), encoding="utf-8")
    for arguments in (("tables",), ("cycle", "--json"), ("db", "upgrade")):
        result = workspace(*arguments)
        assert result.code in (1, 2)
        assert fragment in result.err
        assert "hush-4711" not in result.err


def test_help_names_every_command(workspace: Workspace) -> None:
    """Each with a sentence, and each command's help works; none is wider than 80 columns."""
    workspace.monkeypatch.setenv("COLUMNS", "80")
    result = workspace("--help")
    assert max(map(len, result.out.splitlines())) <= 80
    names = ["tables", "health", "explain", "plan", "cycle", "run", "history", "show", "cancel", "pause", "resume"]
    assert result.code == 0
    for name in [*names, "config", "doctor", "demo", "db"]:
        assert name in result.out
        helped = workspace(name, "--help")
        assert (helped.code, max(map(len, helped.out.splitlines())) <= 80, "[[" in helped.out) == (0, True, False), name


def test_the_version(workspace: Workspace) -> None:
    """`--version` needs no command and no configuration."""
    result = workspace("--version", config=False)
    assert (result.code, result.out) == (0, f"{icewright.__version__}\n")
