"""One REST server, three clients: Spark and PyIceberg write while Icewright maintains the table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException

from icewright.adapters.clock import SystemClock
from icewright.app.bootstrap import Application, application, pyiceberg_catalog_properties, read_config
from icewright.core.errors import FaultOwner, Refused
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.copy import restore_beside
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.restore import RestoreResult, restore
from tests.faulty_proxy import Fault, faulty_proxy
from tests.integration.beside import beside
from tests.servers.rest_server import RestHost

pytestmark = [pytest.mark.spark, pytest.mark.external, pytest.mark.usefixtures("own_spark")]
REF = TableRef("lake", ("sales",), "orders")
ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake: {{type: rest, enabled: true, properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse"}}}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1}}
  - set: {{compact.hot_partitions: include}}
"""


class Later(SystemClock):
    """A day later, so that what was written just now is old enough to expire."""

    def now(self) -> datetime:
        """Tomorrow."""
        return super().now() + timedelta(days=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the catalog and its warehouse."""
    made = tmp_path_factory.mktemp("rest")
    (made / "warehouse").mkdir()
    return made


@pytest.fixture(scope="module")
def uri(rest_fixture: RestHost, home: Path) -> Iterator[str]:
    """The address of the server."""
    address = rest_fixture.serve(home / "catalog.db", f"file://{home}/warehouse")
    yield address
    rest_fixture.end(address)


@pytest.fixture(scope="module")
def app(uri: str, home: Path) -> Iterator[Application]:
    """Icewright over the server, with a Spark of its own, whose start takes longer than a test."""
    file = home / "icewright.yaml"
    file.write_text(CONFIG.format(home=home, uri=uri))
    with application(read_config(file), kind="manual") as made:
        yield made


@pytest.fixture(scope="module")
def catalog(app: Application) -> Iterator[Catalog]:
    """The same catalog as PyIceberg knows it."""
    made = load_catalog("lake", **pyiceberg_catalog_properties(app.config.catalogs["lake"]))
    made.create_namespace("sales")
    yield made
    made.close()


@pytest.mark.cases(75)
def test_three_clients_of_one_server(app: Application, catalog: Catalog) -> None:
    """Every row that Spark or PyIceberg wrote meanwhile is there, and the table is better than before."""
    table = catalog.create_table("sales.orders", ROWS.schema)
    for _ in range(8):
        table.append(ROWS)
    written = [8 * len(ROWS)]
    detect(app.runtime, ["lake"])
    spark = app.pools["default"].session()
    stop = threading.Event()

    def write() -> None:
        theirs = catalog.load_table("sales.orders")
        while not stop.is_set():
            started = time.monotonic()
            try:
                theirs.append(ROWS)
                written[0] += len(ROWS)
            except CommitFailedException:
                theirs.refresh()
            stop.wait(
                max(0.5, 2 * (time.monotonic() - started))
            )  # no commit of ours comes through on a slow machine else

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for operation in (Operation.COMPACT, Operation.REWRITE_MANIFESTS):
            spark.sql("INSERT INTO lake.sales.orders VALUES (1), (2)").collect()
            written[0] += 2
            result = execute(app.runtime, Request(REF, (operation,), manual=True))
            assert result.state is JobState.SUCCEEDED, result.summary
    finally:
        stop.set()
        writer.join()
    file = app.config.path.with_name("later.yaml")
    file.write_text(app.config.path.read_text().replace("icewright.db", "later.db"))  # leases of today last till then
    with application(read_config(file), kind="manual", clock=Later()) as tomorrow:
        detect(tomorrow.runtime, ["lake"])
        last = execute(tomorrow.runtime, Request(REF, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
    assert {o.state for o in last.outcomes} == {OperationState.COMMITTED}, last.summary
    assert last.outcomes[0].metrics["files_deleted"] > 0
    now = catalog.load_table("sales.orders")
    assert now.scan().to_arrow().num_rows == written[0]
    assert spark.sql("SELECT count(*) FROM lake.sales.orders").first()[0] == written[0]  # type: ignore[index]
    assert len(now.snapshots()) == 1


def test_restores_beside_a_writer_lose_no_row(app: Application, catalog: Catalog) -> None:
    """What Spark commits meanwhile is in main or in the state before a restore, whose tag leads to it."""
    ref = replace(REF, name="restored")
    table = catalog.create_table("sales.restored", ROWS.schema)
    table.append(ROWS)
    first = table.current_snapshot()
    assert first is not None
    detect(app.runtime, ["lake"])
    spark = app.pools["default"].session()
    written, overtaken, stop = list(range(len(ROWS))), 0, threading.Event()

    def write() -> None:
        while not stop.is_set():
            spark.sql(f"INSERT INTO lake.sales.restored VALUES ({100 + len(written)})").collect()  # noqa: S608
            written.append(100 + len(written))

    def read(version: str) -> list[int]:
        rows = spark.sql(f"SELECT id FROM lake.sales.restored VERSION AS OF '{version}'").collect()  # noqa: S608
        return sorted(row["id"] for row in rows)

    done = list[RestoreResult]()
    with beside(stop, write) as errors:
        while len(done) < 3 and overtaken < 50:
            known = len(written)
            while len(written) < known + 2 and not errors:
                stop.wait(0.05)
            try:
                (result,) = restore(app.runtime, [ref], str(first.snapshot_id))
            except Refused as error:
                assert "a writer has committed snapshot" in str(error)  # noqa: PT017 - other refusals are faults
                overtaken += 1
            else:
                done.append(result)
    assert (len(done), errors) == (3, [])
    states = [read(version) for version in ("main", *(result.plan.tag.name for result in done))]
    assert all(len(state) == len(set(state)) for state in states)
    assert set().union(*states) == set(written)
    restore_beside(app.runtime, ref, done[0].plan.tag.name, replace(REF, name="beside"))
    beside_it = spark.sql("SELECT id, input_file_name() AS file FROM lake.sales.beside").collect()
    assert sorted(row["id"] for row in beside_it) == states[1]
    assert all("/beside/" in row["file"] for row in beside_it)
    assert read("main") == states[0]


@pytest.mark.nightly
@pytest.mark.cases(77)
def test_spark_beside_a_server_that_answers_commits_by_errors(
    app: Application, catalog: Catalog, uri: str, tmp_path: Path
) -> None:
    """A rewrite that landed counts as landed; what did not is the catalog's fault; every row and file stays."""
    app.pools["default"].stop()  # a process runs one Spark
    with faulty_proxy(uri) as proxy:
        file = tmp_path / "icewright.yaml"
        file.write_text(CONFIG.format(home=tmp_path, uri=proxy.address))
        with application(read_config(file), kind="manual") as behind:
            table = catalog.create_table("sales.doubtful", ROWS.schema)
            detect(behind.runtime, ["lake"])
            rows = 0
            for kernel, landed in product(("spark", "arrow"), (True, False)):
                for _ in range(6):
                    table.append(ROWS)
                    rows += len(ROWS)
                policy = partial(replace, behind.runtime.policy(), command={"compact.engine": kernel})
                runtime = replace(behind.runtime, policy=policy)
                proxy.faults[:] = [Fault("POST .*/tables/doubtful$", times=99, forward=landed, status=500)]
                result = execute(runtime, Request(replace(REF, name="doubtful"), (Operation.COMPACT,), manual=True))
                proxy.faults.clear()
                (outcome,) = result.outcomes
                assert outcome.state is OperationState.COMMITTED if landed else outcome.fault is FaultOwner.CATALOG
                table.refresh()
                assert table.scan().to_arrow().num_rows == rows
                live = [str(local_path(task.file.file_path)) for task in table.scan().plan_files()]
                assert [path for path in live if not Path(path).exists()] == []
