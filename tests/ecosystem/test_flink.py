"""A real Flink job that stopped with a savepoint: after foreign commits and nine days it goes on where it was."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from tests.cli.workspace import Workspace
from tests.ecosystem.stopped_writers import FOREIGN, WITHOUT_STATES, lake, nine_days_pass, rows, wait_for_records
from tests.flink import flink

pytestmark = [pytest.mark.external, pytest.mark.nightly]

NAME = "db.numbers"
JOB = (
    "create database if not exists lake.db",
    "create table if not exists lake.db.numbers (id bigint)",
    (
        "create temporary table source (id bigint) with ('connector'='datagen', 'rows-per-second'='20', "
        "'fields.id.kind'='sequence', 'fields.id.start'='1', 'fields.id.end'='20000')"
    ),
    "insert into lake.db.numbers select id from source",
)


@pytest.mark.cases(138)
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "0 days"])
def test_a_job_is_restored_after_a_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, keeps: bool
) -> None:
    """The default policy keeps what the job looks for, and each row is there once; without it the job cannot start."""
    workspace = Workspace(tmp_path / "house", monkeypatch, capsys)
    if not keeps:
        workspace.write(WITHOUT_STATES)
    house = lake(workspace)
    database, warehouse = workspace.home / "catalog.db", workspace.home / "warehouse"
    with closing(house.catalog), flink(database, warehouse, workspace.home / "savepoints") as engine:
        job = engine.start(*JOB)
        wait_for_records(house, NAME, 20)
        time.sleep(2)  # the savepoint shall have rows that no checkpoint before it committed
        savepoint = engine.stop(job)
        nine_days_pass(workspace, house, NAME)
        count = len(rows(house, NAME))

        job = engine.start(*JOB, savepoint=savepoint)
        if not keeps:
            with pytest.raises(Py4JJavaError, match="NotFoundException"):
                job.getJobExecutionResult().get(60, engine.jvm.java.util.concurrent.TimeUnit.SECONDS)
            return
        wait_for_records(house, NAME, count + 20)
        engine.stop(job)
        found = rows(house, NAME)
        assert found == [*FOREIGN, *range(1, len(found) - len(FOREIGN) + 1)]
