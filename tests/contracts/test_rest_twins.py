"""A table that a REST catalog has under two names: what either name reads stays, whatever is done under the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from icewright.app.bootstrap import Application, application, read_config
from icewright.core.policy import Operation
from icewright.core.runs import Outcome
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.evaluator import evaluate_due
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.testing import FixedClock
from tests.contracts.bench import file_of
from tests.contracts.rest_bench import RestBench
from tests.servers.rest_server import RestHost

pytestmark = pytest.mark.external
EXPIRE, ORPHANS = Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS
ROWS = pa.table({"id": pa.array([1], pa.int64())})
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: rest
    enabled: true
    properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse"}}
    allowed_locations: ["file://{home}"]
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1, remove_orphans.mode: delete}}
"""


@pytest.fixture
def bench(rest_fixture: RestHost, tmp_path: Path) -> Iterator[RestBench]:
    """A catalog with a table, `orders`, whose first four snapshots its fifth has replaced."""
    (tmp_path / "warehouse").mkdir()
    address = rest_fixture.serve(tmp_path / "catalog.db", f"file://{tmp_path}/warehouse")
    made = RestBench(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse", address=address)
    made.iceberg.create_namespace_if_not_exists("sales")
    table = made.iceberg.create_table("sales.orders", ROWS.schema)
    for _ in range(4):
        table.append(ROWS)
    table.overwrite(ROWS)
    yield made
    made.close()
    rest_fixture.end(address)


@pytest.fixture
def app(bench: RestBench, tmp_path: Path) -> Iterator[Application]:
    """Icewright, nine days later, when all files are old."""
    file, clock = tmp_path / "icewright.yaml", FixedClock(datetime.now(UTC) + timedelta(days=9))
    file.write_text(CONFIG.format(home=tmp_path, uri=bench.address))
    with application(read_config(file), kind="manual", clock=clock) as made:
        yield made


def run(app: Application, operation: Operation, name: str) -> Outcome:
    """One operation by hand."""
    detect(app.runtime, ["lake"])
    return execute(app.runtime, Request(TableRef("lake", ("sales",), name), (operation,), manual=True)).outcomes[0]


def reads(bench: RestBench, name: str) -> list[int]:
    """The rows of each snapshot of a table, read."""
    table = bench.read("sales", name)
    return [table.scan(snapshot_id=s.snapshot_id).to_arrow().num_rows for s in table.snapshots()]


def old_file(bench: RestBench) -> Path:
    """A file that a failed write left."""
    path = bench.warehouse / "sales" / "orders" / "data" / "lost.parquet"
    path.write_bytes(b"x")
    os.utime(path, (0, 0))
    return path


@pytest.mark.cases(63, 98)
@pytest.mark.parametrize("version", [-1, 2], ids=["current", "older"])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_table_of_two_names_loses_nothing(bench: RestBench, app: Application, version: int, *, renamed: bool) -> None:
    """Files wait when the second name comes, of whatever version; the first name may have become another meanwhile."""
    table = bench.read("sales", "orders")
    versions = [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]
    lost = old_file(bench)
    waiting = [file for operation in (ORPHANS, EXPIRE) for file in run(app, operation, "orders").files]
    assert len(waiting) > 5
    first = "moved" if renamed else "orders"
    if renamed:
        bench.iceberg.rename_table("sales.orders", "sales.moved")
    bench.iceberg.register_table("sales.twin", versions[version])
    before = reads(bench, "twin")
    assert sum(before)
    app.runtime.clock.sleep(25 * 3600)
    for _ in range(2):
        detect(app.runtime, ["lake"])
        evaluate_due(app.runtime, ["lake"])
        assert all(line.endswith("[registered_twice]") for line in reconcile_interrupted(app.runtime))
    for name, operation in ((first, ORPHANS), ("twin", EXPIRE), ("twin", ORPHANS)):
        assert run(app, operation, name).reason.endswith("[registered_twice]")
    assert reads(bench, "twin") == before
    assert lost.exists()
    assert all(file_of(file.path).exists() for file in waiting)
