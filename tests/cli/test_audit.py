"""What the command line leaves in the audit log."""

from __future__ import annotations

import io
from functools import partial

import pytest
from typer.main import get_group

from icewright.app.cli import app
from icewright.app.cli.auditing import CHANGES
from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

NAME = "lake.ops.metrics"
READING = {
    *("tables", "health", "explain", "check", "plan", "status", "history", "show", "alerts", "deletions", "pins"),
    *("doctor", "simulate", "config check", "config explain", "config test", "token list"),
}
OWN = {"acknowledge", "token create", "token revoke"}  # entries that name more than the command line does
#: What maintains by itself, and what makes a store, a configuration or a lakehouse.
WITHOUT = {"cycle", "serve", "worker", "archive", "mcp", "db upgrade", "demo", "init"}


def test_each_command_that_changes_something_is_audited() -> None:
    """A new command is in the table of changes, or stands here as one that reads."""
    group, commands = get_group(app), set()
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        commands |= {name} if inner is None else {f"{name} {more}" for more in inner}
    assert commands == READING | OWN | WITHOUT | CHANGES.keys()


@pytest.mark.external  # makes a lakehouse
def test_a_change_by_command_line_is_in_the_audit_log(workspace: Workspace) -> None:
    """Who, where from, what, of which table or rule, with the options and the result; what changes nothing is not."""
    workspace.monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    workspace.make(partial(metrics, commits=3, rows_per_file=2))
    workspace("tables")
    job = workspace("run", NAME, "--op", "rewrite_manifests", "--json").json["job_id"]
    for arguments in (
        ("run", NAME, "--op", "expire_snapshots,compact", "--set", "expire_snapshots.retention_hours=1"),
        ("run", NAME, "--op", "compact", "--dry-run"),
        ("run", NAME, "--op", "nothing"),
        ("pause", "lake.ops.*", "--reason", "looking"),  # the answer is no
        ("pause", "lake.ops.*", "--reason", "looking", "--yes"),
        ("run", NAME, "--op", "compact"),  # refused, as it is paused
        ("resume", NAME),
        ("cancel", job),  # it has ended
        ("cancel", NAME, "--yes"),  # it has no job
        ("restore", NAME),  # lists the points
        ("pause", "--everything"),
        ("run", NAME, "--op", "compact"),  # no job begins
        ("resume", "--everything"),
        ("config", "set", "lake.ops", "compact.enabled=false"),
        ("config", "unset", "lake.ops"),
        ("config", "catalog", "lake"),
        ("config", "catalog", "lake", "--enabled", "no", "--namespaces", ""),
        ("config", "limits"),
        ("config", "limits", "limits.global=9"),
        ("vacuum", "lake", "--yes"),
        ("register", "/nowhere", "--as", "lake.none.new", "--yes"),  # there is no such namespace
    ):
        workspace(*arguments)
    store = workspace.store()
    entries = store.audit.entries(None, None, 100)[::-1]
    store.engine.dispose()
    assert [(e.action, e.target, e.place, e.details["result"]) for e in entries] == [
        ("jobs.run", NAME, ("lake", "ops"), "done"),
        ("jobs.delete", NAME, ("lake", "ops"), "done"),
        ("tables.pause", NAME, ("lake", "ops"), "done"),
        ("tables.pause", NAME, ("lake", "ops"), "done"),
        ("tables.pause", "the whole fleet", None, "done"),
        ("jobs.run", NAME, ("lake", "ops"), "failed"),
        ("tables.pause", "the whole fleet", None, "done"),
        ("policies.change", "policy lake.ops", ("lake", "ops"), "done"),
        ("policies.change", "policy lake.ops", ("lake", "ops"), "done"),
        ("catalogs.change", "catalog lake", ("lake",), "done"),
        ("limits.change", "the limits", None, "done"),
        ("catalogs.vacuum", "catalog lake", ("lake",), "done"),
        ("tables.copy", "lake.none.new", ("lake", "none"), "failed"),
    ]
    assert entries[1].details == {
        "command": "run",
        "op": ["expire_snapshots,compact"],
        "sets": ["expire_snapshots.retention_hours=1"],
        "result": "done",
    }
    assert {(e.via, e.source, e.refused, bool(e.actor)) for e in entries} == {("local", "command line", False, True)}
