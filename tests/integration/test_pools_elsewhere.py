"""Pools whose Spark others run: a standalone cluster, and a Connect server."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform

from icewright.adapters.catalogs.translate import SqlCatalogProperties
from icewright.adapters.engines.spark import connect
from icewright.adapters.engines.spark.pool import SparkPool, statements
from icewright.core.errors import Cancelled, EngineUnavailable
from icewright.core.policy import Operation
from icewright.core.runs import JOB_ID, JobState, OperationState
from icewright.core.steps import Kernel
from icewright.core.table import TableRef
from icewright.ports.work import SupervisedWork
from tests.integration.bench import CONFIG, Bench
from tests.integration.clusters import connect_server, master_alone, standalone
from tests.integration.javacore import JavaTable
from tests.integration.tables import create
from tests.integration.working import KNOBS, ROWS, SECONDS_TO_FINISH, make, make_slow, on_pool, running, settled
from tests.servers.loopback import free_port
from tests.servers.relay import relay
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.external]

SECONDS_TO_REFUSE = 10.0
_POOL = """\
pools:
  default:
    {pool}
"""
_MAIN = "from icewright.app.cli import main; main()"
_KNOBS = ("--set", "compact.min_input_files=2", "--set", "compact.hot_partitions=include")
_CLUSTER = """\
master: "{master}"
    conf:
      spark.driver.host: 127.0.0.1
      spark.driver.bindAddress: 127.0.0.1
      spark.driver.memory: 512m
      spark.executor.memory: 512m
      spark.executor.extraJavaOptions: -XX:TieredStopAtLevel=1
"""


@dataclass(frozen=True)
class Shell:
    """The command line over the session's catalog, in a process of its own."""

    home: Path
    properties: SqlCatalogProperties

    def compact(self, pool: str, ref: TableRef) -> Any:
        """What `icewright run --json` says of a compaction, its pool being configured so."""
        file = self.home / "icewright.yaml"
        catalog, warehouse = self.properties.url.database, self.properties.warehouse
        file.write_text(CONFIG.format(home=self.home, catalog=catalog, warehouse=warehouse) + _POOL.format(pool=pool))
        command = [
            sys.executable,
            "-c",
            _MAIN,
            "--config",
            str(file),
            "run",
            str(ref),
            "--op",
            "compact",
            "--json",
            *_KNOBS,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def shell(tmp_path: Path, catalog_properties: SqlCatalogProperties) -> Shell:
    """A folder and a state store of its own."""
    return Shell(tmp_path, catalog_properties)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, catalog_properties: SqlCatalogProperties) -> Iterator[str]:
    """The address of a Connect server."""
    with connect_server(tmp_path_factory.mktemp("connect"), catalog_properties.spark_packages()) as address:
        yield address


def remote_pool(home: Path, properties: SqlCatalogProperties, address: str, *, room: int = 2) -> SparkPool:
    """A pool behind a Connect server."""
    return SparkPool("far", "", {}, properties.spark_conf(), (), None, home, home / "log", lambda: room, remote=address)


@pytest.fixture
def far(tmp_path: Path, catalog_properties: SqlCatalogProperties, server: str, bench: Bench) -> Iterator[Bench]:
    """The bench, its jobs running on the Connect server."""
    pool = remote_pool(tmp_path, catalog_properties, server, room=3)
    yield on_pool(bench, pool)
    pool.stop()


def test_a_setting_that_spark_does_not_take(bench: Bench, new_name: Callable[[str], str], shell: Shell) -> None:
    """A wrong value in a pool's `conf` is named; PySpark asked the session for its settings to tell it, without end."""
    name = new_name("typo")
    make(bench, name, 300, 200)
    result = shell.compact("conf: {spark.sql.shuffle.partitions: many}", bench.ref(name))
    assert "its conf has a fault" in result["summary"]
    assert "'many' in the config \"spark.sql.shuffle.partitions\"" in result["summary"]


@pytest.mark.nightly
def test_a_standalone_cluster(bench: Bench, new_name: Callable[[str], str], shell: Shell, tmp_path: Path) -> None:
    """A pool with a master compacts there: the commit bears the name of an application that the worker has run."""
    name = new_name("cluster")
    make(bench, name, 300, 200)
    before = bench.read(name)
    with standalone(tmp_path) as cluster:
        pool = _CLUSTER.format(master=cluster.master)
        result = shell.compact(pool, bench.ref(name))
        ran = {folder.name for folder in cluster.work.iterdir()}
    (operation,) = result["operations"]
    assert (result["state"], operation["state"]) == ("succeeded", "committed"), result
    assert (operation["metrics"]["files_merged"], operation["metrics"]["files_written"]) == (4, 2)
    assert operation["metrics"]["gb_hours"] > 0
    head = bench.metadata(name).current_snapshot
    assert head is not None
    assert ran == {head.summary["app-id"]}
    assert bench.read(name) == before
    assert len(bench.live(name)) == 2


def test_a_connect_server(bench: Bench, new_name: Callable[[str], str], shell: Shell, server: str) -> None:
    """A pool with a remote compacts there, by Arrow, and no JVM is started beside it."""
    name = new_name("connect")
    make(bench, name, 300, 200)
    before = bench.read(name)
    result = shell.compact(f'remote: "{server}"', bench.ref(name))
    (operation,) = result["operations"]
    assert (result["state"], operation["state"]) == ("succeeded", "committed"), result
    assert (operation["metrics"]["files_merged"], operation["metrics"]["files_written"]) == (4, 2)
    assert operation["metrics"]["gb_hours"] > 0
    assert not (shell.home / "cache" / "logs").exists()
    head = bench.metadata(name).current_snapshot
    assert head is not None
    assert JOB_ID in head.summary, "Iceberg's procedure, through which Spark rewrites, does not say the job"
    assert bench.read(name) == before
    assert len(bench.live(name)) == 2


def test_arrow_rewrites_through_connect(bench: Bench, far: Bench, new_name: Callable[[str], str]) -> None:
    """Arrow rewrites upserts by keys on the server, into several files in the table's order."""
    name = new_name("arrow_far")
    quoted = create(bench, name, "id bigint, text string")
    for half in range(2):
        rows = f"SELECT /*+ COALESCE(1) */ id * 2 + {half}, concat(uuid(), uuid()) FROM range(500)"  # noqa: S608
        bench.sql(f"INSERT INTO {quoted} {rows}")
    with bench.lake.catalog.load_table(name).update_sort_order() as order:
        order.desc("id", IdentityTransform(), NullOrder.NULLS_LAST)
    java = JavaTable.load(bench, name)
    upserts: Mapping[str, Sequence[Any]] = {"id": [4, 8, 7000], "text": ["new"] * 3}
    java.row_delta([java.data(upserts)], [java.equality_deletes(upserts, ["id"])])
    before = bench.read(name)
    assert before["main"][0] == 1001
    several = {"compact.strategy": "sort", "compact.target_file_size_mb": 0.02}
    outcome = far.run(name, Operation.COMPACT, {**KNOBS, **several, "compact.engine": "arrow"})
    assert outcome.state is OperationState.COMMITTED, outcome
    assert outcome.metrics["files_merged"] == 3
    assert bench.read(name) == before
    table = bench.lake.catalog.load_table(name)
    assert table.inspect.delete_files().num_rows == 0
    files = table.inspect.files().to_pylist()
    assert len(files) > 1
    assert {file["sort_order_id"] for file in files} == {table.sort_order().order_id}
    bounds = [file["readable_metrics"]["id"] for file in files]
    ranges = sorted((one["lower_bound"], one["upper_bound"]) for one in bounds)
    assert all(one[1] < following[0] for one, following in itertools.pairwise(ranges))


@pytest.mark.nightly
def test_spark_rewrites_through_connect_what_arrow_leaves(
    bench: Bench, far: Bench, new_name: Callable[[str], str]
) -> None:
    """Rows of format v3 keep ids that Iceberg's own commit hands out: the procedure runs on the server, with a note."""
    name = new_name("far_v3")
    make(bench, name, 300, 200)
    bench.sql(f"ALTER TABLE {bench.lake.quoted(name)} SET TBLPROPERTIES ('format-version' = '3')")
    before = bench.read(name)
    outcome = far.run(name, Operation.COMPACT, {**KNOBS, "compact.engine": "auto"})
    assert outcome.state is OperationState.COMMITTED, outcome
    assert outcome.metrics["files_written"] == len(bench.live(name)) == 2
    assert any("left to Spark" in note for note in outcome.notes)
    assert bench.read(name) == before


@pytest.mark.nightly
def test_a_cancelled_compaction_stops_alone_on_a_server(
    bench: Bench, far: Bench, new_name: Callable[[str], str]
) -> None:
    """Its session is interrupted; what it had committed stays, and another job on the same server ends in peace."""
    name, other = new_name("far"), new_name("other")
    make_slow(bench, name, *ROWS[Kernel.ARROW])
    make_slow(bench, other, 6_000)
    before, of_other = bench.read(name), bench.read(other)
    with running(far, name) as job:
        job.wait_for_commits(2)
        with running(far, other) as untouched:
            job.cancel()
            result = job.result.result(20)
            assert untouched.result.result(SECONDS_TO_FINISH).state is JobState.SUCCEEDED
    assert settled(bench, job.job_id) is result.state is JobState.CANCELLED
    (outcome,) = result.outcomes
    assert (outcome.metrics["files_merged"], outcome.metrics["files_written"]) == (4, 2)
    assert (bench.read(name), bench.read(other)) == (before, of_other)
    assert len(bench.live(other)) == 1


@pytest.mark.nightly
def test_a_connect_server_without_executors(tmp_path: Path, catalog_properties: SqlCatalogProperties) -> None:
    """A statement whose tasks nobody runs makes no progress, so that its job leaves its slot; cancelling ends it."""
    work, cancelled = SupervisedWork("job"), list[Cancelled]()

    def check() -> None:
        if cancelled:
            raise cancelled[0]

    def run(pool: SparkPool) -> None:
        with work.attached(), suppress(Cancelled):
            pool.run(statements(["SELECT count(*) FROM range(0, 1000, 1, 4)"]), "job", check)

    packages = catalog_properties.spark_packages()
    with master_alone(tmp_path) as master, connect_server(tmp_path, packages, master) as address:
        thread = threading.Thread(target=run, args=(remote_pool(tmp_path, catalog_properties, address),), daemon=True)
        thread.start()
        until(lambda: work.state("").is_waiting or None, "the job leaves its slot", 120)
        cancelled.append(Cancelled("enough"))
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.nightly
def test_a_connection_that_falls_silent(
    tmp_path: Path, catalog_properties: SqlCatalogProperties, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client makes another one, and fetches the result of the statement that went on."""
    monkeypatch.setattr(connect, "_CHANNEL", {**connect._CHANNEL, "keepalive_time_ms": 10_000})  # gRPC's least
    statement = "SELECT java_method('java.lang.Thread', 'sleep', 5000L) FROM range(1)"
    with relay(int(server.rpartition(":")[2])) as between:
        pool = remote_pool(tmp_path, catalog_properties, f"sc://127.0.0.1:{between.port}")
        with ThreadPoolExecutor(1) as threads:
            job = threads.submit(pool.run, statements([statement]), "job", lambda: None)
            until(lambda: pool._application and pool._application.job_tasks("job-0"))
            between.swallow()
            assert list(job.result(300).rows[0].values()) == ["null"]
        pool.stop()


def test_a_dead_address(tmp_path: Path, catalog_properties: SqlCatalogProperties) -> None:
    """The pool says at once that it cannot be used, which pool it is, and where it looked."""
    address = f"sc://127.0.0.1:{free_port()}"
    pool = remote_pool(tmp_path, catalog_properties, address)
    started = time.monotonic()
    with pytest.raises(EngineUnavailable) as refused:
        pool.session()
    assert time.monotonic() - started < SECONDS_TO_REFUSE
    assert "pool far" in str(refused.value)
    assert address in str(refused.value)


def test_a_job_on_a_dead_address(
    bench: Bench, new_name: Callable[[str], str], tmp_path: Path, catalog_properties: SqlCatalogProperties
) -> None:
    """The job is deferred with the reason, as the fault is the pool's, and the table is as it was."""
    name = new_name("dead")
    make(bench, name, 10)
    before = bench.read(name)
    address = f"sc://127.0.0.1:{free_port()}"
    there = on_pool(bench, remote_pool(tmp_path, catalog_properties, address))
    outcome = there.run(name, Operation.COMPACT, KNOBS)
    assert outcome.state is OperationState.DEFERRED
    assert address in outcome.reason
    assert bench.read(name) == before
