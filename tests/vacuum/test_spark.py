"""Spark's own NessieCatalog writes, Icewright compacts by it and vacuums: several branches, whole histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icewright.core.layering import parse_settings
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.vacuum import vacuum
from tests.vacuuming import NessieWorkspace, summaries

POOL = "pools:\n  default: {master: 'local[2]', conf: {spark.ui.enabled: false}}\n"


@pytest.mark.spark
@pytest.mark.external
@pytest.mark.usefixtures("own_spark")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_written_and_compacted_by_the_native_client(workspace: NessieWorkspace) -> None:
    """Every row of both branches stays; the history of main in its metadata goes with the vacuum, not before."""
    ref = TableRef("lake", (workspace.space,), "t")
    with workspace.opened(extra=POOL) as app:
        spark = app.pools["default"].session()
        spark.sql(f"CREATE NAMESPACE lake.{workspace.space}")
        spark.sql(f"CREATE TABLE lake.{workspace.space}.t (id BIGINT) USING iceberg")
        for number in range(4):
            spark.sql(f"INSERT INTO lake.{workspace.space}.t VALUES ({number})")  # noqa: S608 - names of the test
        workspace.branch("dev")
        spark.sql(f"INSERT INTO lake.{workspace.space}.`t@dev` VALUES (40)")  # noqa: S608 - names of the test
        spark.sql(f"INSERT INTO lake.{workspace.space}.t VALUES (4)")  # noqa: S608 - names of the test
        assert len(workspace.metadata("t")["snapshots"]) == 5
        assert workspace.metadata("t")["properties"]["gc.enabled"] == "false"
        detect(app.runtime, ["lake"])
        said = parse_settings("test", {"compact.min_input_files": 2, "compact.hot_partitions": "include"})
        runtime = replace(app.runtime, policy=lambda: replace(app.runtime.policy(), command=said))
        job = execute(runtime, Request(ref, (Operation.COMPACT,), manual=True))
        assert job.outcomes[0].state is OperationState.COMMITTED, job.summary
        assert len(workspace.metadata("t")["snapshots"]) == 6
        workspace.cutoff("PT24H")  # the clock of the house is two days ahead
        result = vacuum(app.runtime, "lake")
        assert result.state is JobState.SUCCEEDED, summaries(result)
        assert [len(workspace.metadata("t", branch)["snapshots"]) for branch in ("main", "dev")] == [1, 1]
        assert result.counts.num_expired_snapshots == 5
        rows = spark.sql(f"SELECT id FROM lake.{workspace.space}.t").collect()  # noqa: S608 - names of the test
    assert sorted(row[0] for row in rows) == [0, 1, 2, 3, 4]
    assert workspace.rest_rows("t", "main") == [0, 1, 2, 3, 4]
    assert workspace.rest_rows("t", "dev") == [0, 1, 2, 3, 40]
