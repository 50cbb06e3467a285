"""What passes while a writer is stopped: commits of others, nine days, and a default `icewright cycle`."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.demo.files import backdate
from icewright.app.demo.lake import Lake
from tests.cli.workspace import Workspace, no_spark

FOREIGN = [-5, -4, -3, -2, -1]  # the rows of others, a commit each
WITHOUT_STATES = "policy: [{set: {expire_snapshots.writer_state_days: 0, deletion.delay_hours: 0}}]\n"


def lake(workspace: Workspace) -> Lake:
    """The catalog that the writer and Icewright share, for PyIceberg."""
    properties = pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"])
    return Lake(SqlCatalog("lake", **properties), no_spark, workspace.home / "warehouse", datetime.now(UTC))


def wait_for_records(house: Lake, name: str, count: int) -> None:
    """Return when the table has so many rows, as its snapshot counts them."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        head = house.catalog.load_table(name).current_snapshot() if house.catalog.table_exists(name) else None
        if head is not None and head.summary is not None and int(head.summary["total-records"] or 0) >= count:
            return
        time.sleep(0.5)
    raise AssertionError(count)


def nine_days_pass(workspace: Workspace, house: Lake, name: str) -> None:
    """Let others commit, date everything back and maintain the table, as a service would have."""
    for number in FOREIGN:
        house.catalog.load_table(name).append(pa.table({"id": [number]}))
    before = house.catalog.load_table(name).metadata.snapshots
    first = house.now - timedelta(days=9)
    backdate(house, name, [first + timedelta(seconds=n) for n in range(len(before))])
    command = [sys.executable, "-m", "icewright", "--config", str(workspace.path), "cycle"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "expired" in result.stdout


def rows(house: Lake, name: str) -> list[int]:
    """The ids of all rows, sorted."""
    found: list[int] = house.catalog.load_table(name).scan().to_arrow()["id"].to_pylist()
    return sorted(found)
