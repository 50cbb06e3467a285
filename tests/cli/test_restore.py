"""`icewright restore`: what is said before, what is done, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

HISTORY = partial(metrics, commits=4, rows_per_file=2)


def document(workspace: Workspace) -> dict[str, Any]:
    """The newest metadata file of the table."""
    (path,) = sorted((workspace.home / "warehouse").rglob("metrics/metadata/*.metadata.json"))[-1:]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_there_and_back(workspace: Workspace) -> None:
    """The dry run says what the run does; the tag leads back; a namespace restores all of its tables."""
    (name,) = workspace.make(HISTORY)
    snapshots = document(workspace)["snapshots"]
    ids, rows = ([s["snapshot-id"] for s in snapshots], [int(s["summary"]["total-records"]) for s in snapshots])
    (said,) = workspace("restore", name, "--to", str(ids[1]), "--dry-run", "--json").json
    assert document(workspace)["current-snapshot-id"] == ids[3]
    (done,) = workspace("restore", name, "--to", str(ids[1]), "--json").json
    assert document(workspace)["current-snapshot-id"] == ids[1]
    for one in (said, done):
        assert (one["from_snapshot_id"], one["to_snapshot_id"]) == (ids[3], ids[1])
        assert (one["rows_before"], one["rows_after"]) == (rows[3], rows[1])
        assert [s["snapshot_id"] for s in one["leaving"]] == [ids[3], ids[2]]
    back = workspace("restore", "--namespace", name.rpartition(".")[0], "--to", done["tag"], "--yes")
    assert (back.code, f"2 come back, {rows[1]} rows before, {rows[3]} after" in " ".join(back.out.split())) == (
        0,
        True,
    )
    assert document(workspace)["current-snapshot-id"] == ids[3]
    again = workspace("restore", name, "--to", str(ids[3]))
    assert (again.code, "is the current one already" in " ".join(again.out.split())) == (0, True)
    beside = workspace("restore", name, "--to", str(ids[1]), "--as", f"{name}_before")
    assert (beside.code, f"registered as {name}_before" in beside.out) == (0, True), beside.err
    again = workspace("restore", name, "--to", str(ids[1]), "--as", f"{name}_before")
    assert (again.code, f"a restore of {name} has made it, of snapshot {ids[1]}" in again.err) == (1, True), again.err
    listed = workspace("history", "--json").json["jobs"]
    assert sum("returned to snapshot" in str(job["summary"]) for job in listed) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "main"), "restore either one table, or all tables of a namespace"),
        (("--namespace", "lake", "--to", "main"), "there are no tables; write it as CATALOG.NAMESPACE"),
        (("--namespace", "lake.nowhere", "--to", "main"), "there are no tables"),
    ],
)
def test_restores_of_nothing(workspace: Workspace, arguments: tuple[str, ...], words: str) -> None:
    """Exit code 2, and a message that says what to write."""
    workspace.make(HISTORY)
    done = workspace("restore", *arguments)
    assert (done.code, words in " ".join(done.err.split())) == (2, True), done.err
