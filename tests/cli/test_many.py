"""Commands for many tables, on the local configuration."""

from __future__ import annotations

import pytest

from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse for each test


def test_tables_are_selected_by_pattern_and_the_fleet_by_one_switch(workspace: Workspace) -> None:
    """Pause, run and resume take a pattern; a pause of everything survives the process and refuses every run."""
    (name,) = workspace.make(metrics)
    pattern = f"{name.rpartition('.')[0]}.*"
    workspace("tables")  # detects them
    assert "paused 1 table" in workspace("pause", pattern, "--yes").out
    (refused,) = workspace("run", pattern, "--op", "rewrite_manifests", "--yes", "--json").json["jobs"]
    assert (refused["table"], refused["state"], "is paused" in refused["reason"]) == (name, "failed", True)
    assert workspace("resume", "--all", "--yes", "--json").json["tables"] == [name]
    assert workspace("cancel", "--catalog", "lake", "--json").json["count"] == 0
    workspace("pause", "--everything", "--reason", "an incident")
    assert "an incident" in workspace("status").out
    held = workspace("run", name, "--op", "rewrite_manifests", "--force", "--json")
    assert (held.code, held.json["state"], "an incident" in held.json["summary"]) == (1, "skipped", True)
    assert workspace("cycle", "--json").json["jobs"] == []
    workspace("resume", "--everything")
    (ran,) = workspace("run", pattern, "--op", "rewrite_manifests", "--yes", "--json").json["jobs"]
    assert ran["job_id"] is not None
