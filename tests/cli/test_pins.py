"""`icewright pin`, `unpin`, `pins`: what a reader holds no expiry takes, and dry runs say who holds it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

HISTORY = partial(metrics, commits=20, rows_per_file=2)
EXPIRE = ("--op", "expire_snapshots", "--json", "--set", "expire_snapshots.min_snapshots_to_keep=1")


def snapshots(workspace: Workspace) -> list[int]:
    """The table's snapshots, oldest first."""
    (path,) = sorted((workspace.home / "warehouse").rglob("metrics/metadata/*.metadata.json"))[-1:]
    return [s["snapshot-id"] for s in json.loads(path.read_text())["snapshots"]]


def due(workspace: Workspace, name: str) -> list[int]:
    """The snapshots that an expiry would take, oldest first."""
    kept = {pin["snapshot_id"] for pin in workspace("run", name, *EXPIRE, "--dry-run").json["operations"][0]["kept"]}
    return [i for i in snapshots(workspace) if i not in kept]


def test_a_pinned_snapshot_outlives_an_expiry(workspace: Workspace) -> None:
    """A pin holds its snapshot and all later ones; released, the next expiry takes them."""
    (name,) = workspace.make(HISTORY)
    ids = due(workspace, name)
    moved = workspace("pin", name, str(ids[4]), "--reader", "flink orders", "--json").json
    assert (moved["table"], moved["reader"], moved["snapshot_id"]) == (name, "reader flink orders", ids[4])
    result = workspace("pin", name, str(ids[5]), "--reader", "flink orders", "--hours", "5")
    assert (result.code, f"reader flink orders holds snapshot {ids[5]} of {name} until" in result.out) == (0, True)
    (held,) = workspace("pins", name, "--json").json
    assert (held["reader"], held["snapshot_id"], held["aged_out"]) == ("reader flink orders", ids[5], False)
    assert "flink orders" in workspace("pins", name).out
    dry = workspace("run", name, *EXPIRE, "--dry-run").json["operations"][0]
    kept = {pin["snapshot_id"]: pin["by"] for pin in dry["kept"]}
    assert kept[ids[5]] == "reader flink orders"
    assert kept[ids[6]] == "reader flink orders, which is behind it"
    assert "reader flink orders" in workspace("run", name, *EXPIRE[:2], *EXPIRE[3:], "--dry-run").out
    done = workspace("run", name, *EXPIRE).json
    assert done["operations"][0]["metrics"]["snapshots_expired"] == 5
    assert set(ids[5:]) <= set(snapshots(workspace))
    assert "old ones stay" in str(workspace("run", name, *EXPIRE).json["operations"][0]["notes"])
    released = workspace("unpin", name, "--reader", "flink orders", "--json").json
    assert released == {"table": name, "reader": "reader flink orders"}
    assert workspace("run", name, *EXPIRE).json["operations"][0]["metrics"]["snapshots_expired"] > 5


def test_pins_that_make_no_sense(workspace: Workspace) -> None:
    """An unknown snapshot, a reader without a name and a pin that is not there are told, exit 2."""
    (name,) = workspace.make(HISTORY)
    for arguments, words in [
        (("pin", name, "4711", "--reader", "x"), "has no snapshot 4711"),
        (("pin", name, str(snapshots(workspace)[0]), "--reader", " "), "--reader: give the reader a name"),
        (("unpin", name, "--reader", "nobody"), "nobody holds no snapshot"),
        (("pin", name, "--reader", "x"), "pin either a snapshot by its id, or what a Spark stream needs"),
        (("pin", name, "1", "--checkpoint", "x", "--reader", "x"), "pin either a snapshot by its id"),
        (("pin", name, "--checkpoint", str(workspace.home), "--reader", "x"), "is no checkpoint of a Spark stream"),
    ]:
        result = workspace(*arguments)
        assert result.code == 2
        assert words in " ".join(result.err.split())


def checkpoint(folder: Path, first: int, batches: list[int], done: int) -> None:
    """A checkpoint as Spark and Iceberg write it, with Hadoop's checksums beside the files; `done` batches are."""
    files = {f"offsets/{n}": f"v1\n{{}}\n{_offset(batch)}" for n, batch in enumerate(batches)}
    files |= {f"commits/{n}": "v1\n{}" for n in range(done)} | {"commits/.9.crc": "", "metadata": "{}"}
    for name, text in {**files, "sources/0/offsets/0": _offset(first)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _offset(snapshot: int) -> str:
    return json.dumps({"version": 1, "snapshot_id": snapshot, "position": 1, "scan_all_files": False})


@pytest.mark.cases(142)
def test_a_pin_by_a_checkpoint(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream's checkpoint says what to pin: its first snapshot, or where it goes on for another trigger."""
    (name,) = workspace.make(HISTORY)
    ids = snapshots(workspace)
    checkpoint(workspace.home / "stream", ids[3], [ids[4], ids[6], ids[9]], done=2)
    monkeypatch.chdir(workspace.home)
    asked = ("pin", name, "--reader", "search", "--json", "--checkpoint")
    assert workspace(*asked, "stream").json["snapshot_id"] == ids[3]
    assert (
        workspace(*asked, f"file:{workspace.home}/stream/", "--trigger", "processing-time").json["snapshot_id"]
        == ids[6]
    )
    (held,) = workspace("pins", name, "--json").json
    assert held["snapshot_id"] == ids[6]


def test_a_pin_in_the_policy(workspace: Workspace) -> None:
    """The configuration may name pins too; an id that is no number is a fault of the configuration."""
    (name,) = workspace.make(HISTORY)
    ids = due(workspace, name)
    knob = "expire_snapshots.reader_pins"
    workspace.write(f"policy: [{{match: {name}, set: {{{knob}: {{spark: {ids[3]}}}}}}}]\n")
    assert workspace("run", name, *EXPIRE).json["operations"][0]["metrics"]["snapshots_expired"] == 3
    workspace.write(f"policy: [{{match: {name}, set: {{{knob}: {{spark: latest}}}}}}]\n")
    result = workspace("config", "check")
    assert result.code == 2
    assert f"{knob}" in result.err
    assert "whole numbers" in result.err


def test_each_job_leaves_its_ledger_as_parquet(workspace: Workspace) -> None:
    """What a job deleted stands in a file of its own, which the run names."""
    (name,) = workspace.make(HISTORY)
    operation = workspace("run", name, *EXPIRE, "--files").json["operations"][0]
    (note,) = [n for n in operation["notes"] if n.startswith("ledger: ")]
    path = Path(note.removeprefix("ledger: "))
    assert path.parent == workspace.home / "cache" / "ledger"
    rows = pq.read_table(path).to_pylist()
    assert {row["path"] for row in rows} == {file["path"] for file in operation["files"]}
    assert {row["state"] for row in rows} == {"deleted"}
