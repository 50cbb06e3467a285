"""A real Flink job that stopped with a savepoint: after foreign commits and nine days it goes on where it was."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.demo.files import backdate
from icewright.app.demo.lake import Lake
from tests.cli.workspace import Workspace, no_spark
from tests.flink import flink

pytestmark = [pytest.mark.external, pytest.mark.nightly]

FOREIGN = 5
JOB = (
    "create database if not exists lake.db",
    "create table if not exists lake.db.numbers (id bigint)",
    (
        "create temporary table source (id bigint) with ('connector'='datagen', 'rows-per-second'='20', "
        "'fields.id.kind'='sequence', 'fields.id.start'='1', 'fields.id.end'='20000')"
    ),
    "insert into lake.db.numbers select id from source",
)


def lake(workspace: Workspace) -> Lake:
    """The catalog that Flink and Icewright share, for PyIceberg."""
    properties = pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"])
    return Lake(SqlCatalog("lake", **properties), no_spark, workspace.home / "warehouse", datetime.now(UTC))


def wait_for_commits(house: Lake, count: int) -> None:
    """Return when the table has so many snapshots."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        made = house.catalog.table_exists("db.numbers")
        if made and len(house.catalog.load_table("db.numbers").metadata.snapshots) >= count:
            return
        time.sleep(0.5)
    raise AssertionError(count)


@pytest.mark.cases(138)
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "0 days"])
def test_a_job_is_restored_after_a_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, keeps: bool
) -> None:
    """The default policy keeps what the job looks for, and each row is there once; without it the job cannot start."""
    workspace = Workspace(tmp_path / "house", monkeypatch, capsys)
    if not keeps:
        workspace.write("policy: [{set: {expire_snapshots.writer_state_days: 0, deletion.delay_hours: 0}}]\n")
    house = lake(workspace)
    database, warehouse = workspace.home / "catalog.db", workspace.home / "warehouse"
    with closing(house.catalog), flink(database, warehouse, workspace.home / "savepoints") as engine:
        job = engine.start(*JOB)
        wait_for_commits(house, 2)
        time.sleep(2)  # the savepoint shall have rows that no checkpoint before it committed
        savepoint = engine.stop(job)
        for number in range(FOREIGN):
            house.catalog.load_table("db.numbers").append(pa.table({"id": [-number - 1]}))
        before = house.catalog.load_table("db.numbers").metadata.snapshots
        first = house.now - timedelta(days=9)
        backdate(house, "db.numbers", [first + timedelta(seconds=n) for n in range(len(before))])

        command = [sys.executable, "-m", "icewright", "--config", str(workspace.path), "cycle"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        assert "expired" in said.stdout
        after = house.catalog.load_table("db.numbers")
        left = [s for s in after.metadata.snapshots if s.snapshot_id in {b.snapshot_id for b in before}]
        assert len(left) < len(before)

        job = engine.start(*JOB, savepoint=savepoint)
        if not keeps:
            with pytest.raises(Py4JJavaError, match="NotFoundException"):
                job.getJobExecutionResult().get(60, engine.jvm.java.util.concurrent.TimeUnit.SECONDS)
            return
        wait_for_commits(house, len(after.metadata.snapshots) + 2)
        engine.stop(job)
        rows = sorted(house.catalog.load_table("db.numbers").scan().to_arrow()["id"].to_pylist())
        written = rows[FOREIGN:]
        assert rows[:FOREIGN] == list(range(-FOREIGN, 0))
        assert written == list(range(1, len(written) + 1))
