"""Iceberg's real sink for Kafka Connect, whose coordinator died before it told the broker what it had committed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.workspace import Workspace
from tests.ecosystem.stopped_writers import FOREIGN, WITHOUT_STATES, lake, nine_days_pass, rows, wait_for_records
from tests.kafka import OFFSETS, kafka

pytestmark = [pytest.mark.external, pytest.mark.nightly]

NAME = "db.events"


@pytest.mark.cases(140)
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "0 days"])
def test_the_sink_finds_its_offsets_after_a_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, keeps: bool
) -> None:
    """The default policy keeps the offsets, and each event is there once; without them files are appended again."""
    workspace = Workspace(tmp_path / "house", monkeypatch, capsys)
    if not keeps:
        workspace.write(WITHOUT_STATES)
    house = lake(workspace)
    house.catalog.create_table(house.identifier(NAME), pa.schema([("id", pa.int64())]))
    place = workspace.home / "catalog.db", workspace.home / "warehouse"
    with closing(house.catalog), kafka(tmp_path / "kafka") as broker:
        broker.produce(range(10))
        with broker.sink(NAME, *place):
            wait_for_records(house, NAME, 10)
            broker.produce(range(10, 20))
            wait_for_records(house, NAME, 20)
        nine_days_pass(workspace, house, NAME)
        kept = [s.summary[OFFSETS] for s in house.catalog.load_table(NAME).metadata.snapshots if s.summary]
        assert any(kept) is keeps

        broker.rewind()
        broker.produce(range(20, 30))
        with broker.sink(NAME, *place):
            wait_for_records(house, NAME, 35 if keeps else 55)
        if keeps:
            assert rows(house, NAME) == [*FOREIGN, *range(30)]
