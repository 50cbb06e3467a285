"""Streaming writers that stopped before an expiry, on real files: each finds what it had committed.

The walks below go as the engines' sources do, over the metadata file as it is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from icewright.core.runs import OperationState
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from tests.cases.workspace import EXPIRE, NAME, Workspace, ref

FLINK = {"flink.job-id": "54b43d2b", "flink.operator-id": "cafe", "flink.max-committed-checkpoint-id": "6"}
SPARK = {"spark.sql.streaming.queryId": "q1", "spark.sql.streaming.epochId": "4"}
OFFSETS = "kafka.connect.offsets.control-iceberg.cg-connect"
KAFKA = {OFFSETS: '{"0":111}', "kafka.connect.valid-through-ts": "2026-01-01T00:00Z"}
DAYS = (12, 11, 10, 9, 8.5, 8.4, 8.3, 8.2, 8.1)  # ages of the commits; the writers' last is the fourth
DEFAULTS: Mapping[str, object] = {"compact.enabled": False, "rewrite_manifests.enabled": False}


def ancestry(document: Mapping[str, Any], branch: str = "main") -> Iterator[Mapping[str, str]]:
    """Yield the summaries from a branch's head on, parent by parent, until a parent is not there."""
    by_id = {s["snapshot-id"]: s for s in document["snapshots"]}
    snapshot = by_id.get(document["refs"][branch]["snapshot-id"])
    while snapshot is not None:
        yield snapshot["summary"]
        snapshot = by_id.get(snapshot.get("parent-snapshot-id"))


def max_committed_checkpoint(document: Mapping[str, Any], branch: str = "main") -> int:
    """Return what Flink's `SinkUtil.getMaxCommittedCheckpointId` does for the job and operator of `FLINK`."""
    for summary in ancestry(document, branch):
        same_operator = summary.get("flink.operator-id") in (None, FLINK["flink.operator-id"])
        value = summary.get("flink.max-committed-checkpoint-id")
        if summary.get("flink.job-id") == FLINK["flink.job-id"] and same_operator and value is not None:
            return int(value)
    return -1


def last_committed_epoch(document: Mapping[str, Any], branch: str = "main") -> int | None:
    """Return what Spark's `SparkWrite.findLastCommittedEpochId` does for the query of `SPARK`."""
    for summary in ancestry(document, branch):
        if summary.get("spark.sql.streaming.queryId") == SPARK["spark.sql.streaming.queryId"]:
            return int(summary["spark.sql.streaming.epochId"])
    return None


def last_committed_offsets(document: Mapping[str, Any], branch: str = "main") -> dict[str, int]:
    """Return what Kafka Connect's `Coordinator.lastCommittedOffsetsForTable` does."""
    found: str = next((s[OFFSETS] for s in ancestry(document, branch) if OFFSETS in s), "{}")
    offsets: dict[str, int] = json.loads(found)
    return offsets


def stopped(workspace: Workspace, states: Mapping[int, Mapping[str, str]], *, rewrites: int = 0) -> None:
    """Make a table with commits of `DAYS`, with writers' states in some by their number, and rewrites on top."""
    craft = workspace.craft()
    workspace.commits(craft, [24 * day for day in DAYS], replacing=False)
    for number, state in states.items():
        craft.snapshots[number]["summary"] |= state
    for snapshot in craft.snapshots[len(DAYS) - rewrites :]:
        snapshot["summary"]["operation"] = "replace"
    workspace.publish(craft)


def document(workspace: Workspace) -> dict[str, Any]:
    """Return the metadata file as it is stored."""
    found: dict[str, Any] = json.loads(workspace.metadata_file().read_bytes())
    return found


@pytest.mark.cases(138, 139, 140)
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "0 days"])
def test_a_default_cycle_leaves_writers_their_states(workspace: Workspace, keeps: bool) -> None:
    """After nine days and five commits of others each writer goes on where it was; without the rule none could."""
    older = {"flink.max-committed-checkpoint-id": "5"}
    stopped(workspace, {2: {**FLINK, **older}, 3: {**FLINK, **SPARK, **KAFKA}})
    knobs = {**DEFAULTS, **({} if keeps else {"expire_snapshots.writer_state_days": 0})}
    (job,) = run_cycle(workspace.runtime(knobs), ["lake"], force=True).jobs
    (expiry,) = [o for o in job.outcomes if o.operation is EXPIRE]
    assert expiry.state is OperationState.COMMITTED
    after = document(workspace)
    assert len(after["snapshots"]) == (6 if keeps else 5)
    assert max_committed_checkpoint(after) == (6 if keeps else -1)
    assert last_committed_epoch(after) == (4 if keeps else None)
    assert last_committed_offsets(after) == ({"0": 111} if keeps else {})
    lost = [note for note in expiry.notes if note.startswith("the state of ")]
    assert len(lost) == (0 if keeps else 4)  # Kafka Connect has two
    assert any("Flink job 54b43d2b, checkpoint 6, until" in pin.by for pin in expiry.retained) is keeps


@pytest.mark.cases(141)
def test_compliance_keeps_a_writer_s_state_with_a_reason(workspace: Workspace) -> None:
    """Two rewrites on top of a stopped Flink job: the job's last commit stays, and the dry run says for whom."""
    stopped(workspace, {6: FLINK}, rewrites=2)
    runtime = workspace.runtime({"preset": "compliance"})
    (dry,) = execute(runtime, Request(ref(NAME), (EXPIRE,), manual=True, dry_run=True)).outcomes
    workspace.detect()
    (done,) = execute(runtime, Request(ref(NAME), (EXPIRE,), manual=True)).outcomes
    assert [pin.by for pin in done.retained] == [pin.by for pin in dry.retained]
    assert done.retained[0].by.startswith("Flink job 54b43d2b, checkpoint 6, until ")
    after = document(workspace)
    assert max_committed_checkpoint(after) == 6
    assert len(after["snapshots"]) == 3


@pytest.mark.cases(138)
def test_every_branch_keeps_the_states_on_it(workspace: Workspace) -> None:
    """A job that writes to a branch finds its state there, although the branch is past its age."""
    stopped(workspace, {3: FLINK})
    path = workspace.metadata_file()
    made = json.loads(path.read_bytes())
    head = made["snapshots"][4]["snapshot-id"]
    made["refs"]["audit"] = {"type": "branch", "snapshot-id": head, "max-ref-age-ms": 1, "max-snapshot-age-ms": 1}
    path.write_text(json.dumps(made), encoding="utf-8")
    assert workspace.run(EXPIRE).state is OperationState.COMMITTED
    assert max_committed_checkpoint(document(workspace), "audit") == 6


@pytest.mark.cases(138)
def test_spark_does_not_expire_past_a_state(workspace: Workspace) -> None:
    """Iceberg's own procedure would follow the age of the branch: it is refused before Spark is started."""
    stopped(workspace, {3: FLINK})
    path = workspace.metadata_file()
    made = json.loads(path.read_bytes())
    made["refs"]["main"]["max-snapshot-age-ms"] = 1
    path.write_text(json.dumps(made), encoding="utf-8")
    workspace.refused(EXPIRE, "Spark would expire snapshot", expire_snapshots__engine="spark")
    assert max_committed_checkpoint(document(workspace)) == 6


@pytest.mark.parametrize(
    ("state", "days", "stay"),
    [
        (FLINK, 30, True),
        (KAFKA, 30, True),
        (SPARK, 30, False),  # it writes the batch again, under new names
        (FLINK, 8, False),
        ({}, 30, False),
    ],
)
def test_what_a_stopped_writer_has_not_committed_is_no_orphan(
    workspace: Workspace, state: Mapping[str, str], days: int, stay: bool
) -> None:
    """A Flink job restored, or a sink started again, commits files by names that it has kept elsewhere."""
    stopped(workspace, {8: state})
    folder, last = workspace.metadata_file().parent.parent, DAYS[8]
    names = "data/00000-0-c.parquet", "metadata/54b43d2b-cafe-00000-0-7-00001.avro"
    uncommitted = workspace.plant(folder, *names, days=last + 0.03) | workspace.plant(folder, "data/b", days=last - 1)
    debris = workspace.plant(folder, "data/00000-0-a.parquet", days=last + 0.05)
    done = workspace.removes(debris if stay else debris | uncommitted, expire_snapshots__writer_state_days=days)
    assert any("which may commit them when it starts again" in note for note in done.notes) is stay
