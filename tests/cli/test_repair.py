"""`icewright repair`: what is said before, what is done, and what stays."""

from __future__ import annotations

import io
from functools import partial

import pytest

from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test


def test_a_lost_file_is_dropped_when_asked_for(workspace: Workspace) -> None:
    """The dry run and a repair without the option change nothing and say why; with it rows go, once confirmed."""
    (name,) = workspace.make(partial(metrics, commits=3, rows_per_file=2))
    assert workspace("repair", name).code == 0
    min((workspace.home / "warehouse").rglob("metrics/data/**/*.parquet")).unlink()
    for arguments, words in (
        (("--dry-run",), "0 of 1 fault would be repaired"),
        ((), "its rows are lost unless the file is put back; --drop-lost lets main go on without them"),
    ):
        done = workspace("repair", name, *arguments)
        assert (done.code, words in " ".join(done.out.split())) == (1, True), done.out
    workspace.monkeypatch.setattr("sys.stdin", io.StringIO())
    unasked = workspace("repair", name, "--drop-lost", "--json")
    assert (unasked.code, unasked.json) == (2, {"error": "no answer came: confirm with --yes"})
    done = workspace("repair", name, "--drop-lost", "--yes", "--json")
    assert (done.code, done.json["lost_rows"], [a["kind"] for a in done.json["actions"]]) == (0, 2, ["drop"])
    assert workspace("check", name, "--level", "footers").code == 1  # earlier snapshots need the file
    again = workspace("repair", name)
    assert (again.code, "main does not need it" in " ".join(again.out.split())) == (1, True)
