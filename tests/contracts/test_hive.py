"""What a Hive metastore alone does: locks, statistics of tables, several addresses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import EnvironmentContext, LockComponent, LockLevel, LockRequest, LockType, MetaException
from pyiceberg.catalog import load_catalog

from icewright.adapters.catalogs.hive import HiveCatalog
from icewright.adapters.catalogs.hive_client import HiveClient, table_of
from icewright.adapters.catalogs.translate import hive_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.app.bootstrap import application, pyiceberg_catalog_properties, read_config
from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, TableNotFound
from icewright.core.paths import key
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.vacuum import VACUUMED
from icewright.ports import Pointer
from tests.contracts.bench import Bench, FixedClock, addition, file_of, removal
from tests.contracts.hive_bench import HiveBench
from tests.hive import metastore_server
from tests.integration.test_metastores import Later
from tests.servers.loopback import free_port

pytestmark = pytest.mark.external
on_hive = pytest.mark.parametrize("uri", ["hive"], indirect=True)


class Waking(FixedClock):
    """A clock by which waiting takes a little of the real time."""

    def sleep(self, seconds: float) -> None:
        """Wait less."""
        super().sleep(seconds)
        time.sleep(0.05)


def _files(bench: Bench) -> set[Path]:
    return set(bench.warehouse.rglob("*.metadata.json"))


def _locked(bench: HiveBench) -> int:
    """Somebody else's lock."""
    part = LockComponent(type=LockType.EXCLUSIVE, level=LockLevel.TABLE, dbname="sales", tablename="orders")
    with bench.iceberg._client as hive:
        return int(hive.lock(LockRequest(component=[part], user="me", hostname="here")).lockid)


@on_hive
def test_a_commit_leaves_no_lock(bench: HiveBench) -> None:
    """Whether it lands or not, the lock of the table is given back."""
    base = bench.craft("sales.orders")
    after = bench.catalog.commit(base, removal(base, 0))
    with pytest.raises(CommitConflict):
        bench.catalog.commit(base, removal(base, 1))
    assert bench.catalog.load(base.ref) == after
    assert not bench.locks()


@on_hive
@pytest.mark.cases(75)
def test_somebody_elses_lock_is_waited_for(bench: HiveBench) -> None:
    """As soon as it is given back the commit goes on."""
    base = bench.craft("sales.orders")
    theirs = _locked(bench)
    bench.clock = Waking()
    catalog = bench.open()
    threading.Timer(0.3, bench.unlock, (theirs,)).start()
    assert len(catalog.commit(base, removal(base, 0)).snapshots) == 3
    assert not bench.locks()


@on_hive
def test_a_lock_that_is_not_given_back(bench: HiveBench) -> None:
    """After the time-out the commit ends; nothing is changed, and our place in the line is given up."""
    base = bench.craft("sales.orders")
    files, rows, theirs = _files(bench), bench.rows(), _locked(bench)
    with pytest.raises(CommitConflict, match="others hold its lock"):
        bench.catalog.commit(base, removal(base, 0))
    assert (_files(bench), bench.rows(), bench.locks()) == (files, rows, [theirs])


@dataclass(frozen=True)
class Meddling(HiveClient):
    """A client before whose calls of a name something happens."""

    name: str = ""
    meddle: Callable[[], None] = lambda: None

    def once(self, question: Callable[[Any], Any]) -> Any:
        """Ask through a client that meddles."""
        return super().once(lambda hive: question(_Meddler(hive, self)))


@dataclass
class _Meddler:
    hive: Any
    how: Meddling

    def __getattr__(self, name: str) -> Any:
        if name == self.how.name:
            self.how.meddle()
        return getattr(self.hive, name)


ALTER = "alter_table_with_environment_context"


def _property(bench: HiveBench) -> None:
    bench.read("sales", "orders").transaction().set_properties({"owner": "me"}).commit_transaction()


@on_hive
@pytest.mark.cases(75, 82)
def test_a_commit_before_the_lock(bench: HiveBench) -> None:
    """Who commits between our look and our lock makes it a conflict; our file goes, theirs stays."""
    base = bench.craft("sales.orders")
    bench.catalog._client = Meddling(bench.hive, bench.clock, "lock", lambda: _property(bench))
    with pytest.raises(CommitConflict, match=r"lake\.sales\.orders"):
        bench.catalog.commit(base, addition(base))
    now = bench.read("sales", "orders")
    assert now.properties["owner"] == "me"
    logged = {file_of(entry.metadata_file) for entry in now.metadata.metadata_log}
    assert _files(bench) == {*logged, file_of(now.metadata_location)}
    assert not bench.locks()


@on_hive
def test_a_lock_that_was_taken_away(bench: HiveBench) -> None:
    """A lock that expired while we worked ends the commit before anything is changed."""
    base = bench.craft("sales.orders")
    rows = bench.rows()
    bench.catalog._client = Meddling(bench.hive, bench.clock, "heartbeat", bench.unlock)
    with pytest.raises(CommitConflict, match="the lock did not last"):
        bench.catalog.commit(base, removal(base, 0))
    assert bench.rows() == rows


@on_hive
@pytest.mark.cases(77)
def test_a_lock_that_expired_during_the_commit(bench: HiveBench) -> None:
    """The table shows whether the commit landed, even when the lock did not last."""
    base = bench.craft("sales.orders")
    bench.catalog._client = Meddling(bench.hive, bench.clock, ALTER, bench.unlock)
    after = bench.catalog.commit(base, removal(base, 0))
    assert bench.rows()["sales", "orders"] == (after.metadata_location, base.metadata_location)


@on_hive
@pytest.mark.cases(77)
@pytest.mark.parametrize("dead", [False, True])
def test_silence_after_the_commit(bench: HiveBench, *, dead: bool) -> None:
    """The table names the new file already: whatever cannot be asked any more, the file stays."""
    base = bench.craft("sales.orders")
    files, asked = _files(bench), []

    def heartbeat() -> None:
        asked.append("heartbeat")
        if len(asked) > 1:
            raise OSError("made up")

    bench.catalog._client = Meddling(bench.hive, bench.clock, "heartbeat", heartbeat)
    if dead:
        bench.catalog.load = _dead
        with pytest.raises(CommitStateUnknown, match="made up"):
            bench.catalog.commit(base, removal(base, 0))
    else:
        bench.catalog.commit(base, removal(base, 0))
    (new,) = _files(bench) - files
    assert new == file_of(bench.rows()["sales", "orders"][0])


def _dead(_: TableRef) -> TableMetadata:
    raise CatalogUnavailable("made up")


@on_hive
@pytest.mark.cases(77)
def test_unknown_keeps_the_lock(bench: HiveBench) -> None:
    """While a commit may be under way others must wait until the lock expires, and the new file stays."""
    base = bench.craft("sales.orders")
    files = _files(bench)

    def fail() -> None:
        raise MetaException("made up")

    bench.catalog._client = Meddling(bench.hive, bench.clock, ALTER, fail)
    with pytest.raises(CommitStateUnknown, match="made up"):
        bench.catalog.commit(base, removal(base, 0))
    assert len(bench.locks()) == 1
    assert len(_files(bench) - files) == 1
    assert bench.catalog.load(base.ref) == base


@on_hive
@pytest.mark.cases(75)
def test_the_metastore_compared(bench: HiveBench) -> None:
    """One that knows `expected_parameter_key` says that the table has been modified: a conflict, and our file goes."""
    base = bench.craft("sales.orders")

    def compare() -> None:
        bench.unlock()
        _property(bench)
        key = f"'metadata_location' is '{base.metadata_location}'"
        raise MetaException(f"The table has been modified. The parameter value for key {key}")

    bench.catalog._client = Meddling(bench.hive, bench.clock, ALTER, compare)
    with pytest.raises(CommitConflict, match="another writer committed first"):
        bench.catalog.commit(base, removal(base, 0))
    now = bench.read("sales", "orders")
    assert len(_files(bench)) == 1 + len(now.metadata.metadata_log)


@pytest.fixture(scope="module")
def comparing() -> Iterator[str]:
    """The address of a metastore that compares by itself."""
    with metastore_server(compares=True) as running:
        yield running.uri


@pytest.mark.cases(75, 82)
def test_a_metastore_that_compares_needs_no_lock(comparing: str, tmp_path: Path) -> None:
    """Without locks, who alters the table between our look and our commit makes it a conflict; then all goes well."""
    bench = HiveBench(comparing, tmp_path)
    said = {"uri": comparing, "engine.hive.lock-enabled": "false"}
    base = bench.craft("sales.orders")
    catalog = HiveCatalog(hive_catalog("lake", said), LocalStorage(), bench.clock)
    catalog._client = Meddling(catalog.properties, bench.clock, ALTER, lambda: _property(bench))
    with pytest.raises(CommitConflict, match="another writer committed first"):
        catalog.commit(base, removal(base, 0))
    now = bench.read("sales", "orders")
    assert now.properties["owner"] == "me"
    assert len(_files(bench)) == 1 + len(now.metadata.metadata_log)
    catalog._client = HiveClient(catalog.properties, bench.clock)
    base = catalog.load(base.ref)
    assert len(catalog.commit(base, removal(base, 0)).snapshots) == 3


def _get_table(hive: Any, dbname: str, tbl_name: str) -> Any:
    return table_of(hive, dbname, tbl_name)


HIVE_4 = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: hive
    enabled: true
    properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse", engine.hive.lock-enabled: "{locks}"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1}}
  - set: {{compact.engine: arrow, compact.min_input_files: 2, compact.hot_partitions: include}}
  - set: {{remove_orphans.mode: delete}}
"""


@pytest.mark.nightly
@pytest.mark.cases(75)
@pytest.mark.parametrize("locks", ["true", "false"])
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_table_of_hive_4_is_maintained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: str) -> None:
    """Compaction, expiry and orphan removal need no Spark; every row is there, with locks and without."""
    monkeypatch.setattr(ThriftHiveMetastore.Client, "get_table", _get_table)  # for PyIceberg
    file, clock = tmp_path / "icewright.yaml", Later()
    with metastore_server(newest=True) as running:
        file.write_text(HIVE_4.format(home=tmp_path, uri=running.uri, locks=locks))
        config = read_config(file)
        catalog = load_catalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
        catalog.create_namespace("sales", {"location": f"file://{tmp_path}/warehouse/sales"})
        rows = pa.table({"id": pa.array(range(10), pa.int64())})
        table = catalog.create_table("sales.orders", rows.schema)
        for _ in range(4):
            table.append(rows)
        orphan = tmp_path / "warehouse/sales/orders/data/left.parquet"
        orphan.write_bytes(b"left")
        with application(config, kind="manual", clock=clock) as app:
            detect(app.runtime, ["lake"])
            request = Request(TableRef("lake", ("sales",), "orders"), (Operation.COMPACT,), manual=True)
            shrunk = execute(app.runtime, request)
            clock.ahead = timedelta(days=10)
            cleaned = execute(app.runtime, replace(request, operations=VACUUMED))
        assert [job.state for job in (shrunk, cleaned)] == [JobState.SUCCEEDED] * 2, (shrunk, cleaned)
        assert shrunk.outcomes[0].metrics["files_merged"] == 4
        assert not orphan.exists()
        table = catalog.load_table("sales.orders")
        assert table.scan().to_arrow().num_rows == 40
        assert len(table.snapshots()) == len(table.inspect.files()) == 1
        catalog.close()


@pytest.mark.nightly
@pytest.mark.cases(75, 82)
def test_a_metastore_of_hive_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has dropped calls that PyIceberg makes; tables are listed, read, and committed to under a lock."""
    monkeypatch.setattr(ThriftHiveMetastore.Client, "get_table", _get_table)  # for PyIceberg, which makes the table
    with metastore_server(newest=True) as running:
        bench = HiveBench(running.uri, tmp_path)
        base = bench.craft("sales.orders")
        monkeypatch.undo()
        assert bench.catalog.pointers() == [Pointer(base.ref, base.metadata_location)]
        after = bench.catalog.commit(base, removal(base, 0))
        assert len(after.snapshots) == 3
        with pytest.raises(CommitConflict):
            bench.catalog.commit(base, removal(base, 1))
        assert bench.catalog.load(base.ref) == after
        assert not bench.locks()
        with pytest.raises(TableNotFound):
            bench.catalog.load(replace(base.ref, name="none"))


@dataclass(frozen=True)
class Telling(HiveClient):
    """A client that notes what is asked of the metastore."""

    seen: tuple[list[str], list[EnvironmentContext]] = ((), ())  # type: ignore[assignment]

    def once(self, question: Callable[[Any], Any]) -> Any:
        """Ask, and note."""
        return super().once(lambda hive: question(_Told(hive, self)))


@dataclass
class _Told:
    hive: Any
    how: Telling

    def __getattr__(self, name: str) -> Any:
        self.how.seen[0].append(name)
        return getattr(self.hive, name)

    def alter_table_with_environment_context(self, *request: Any) -> None:
        """Note the context."""
        self.how.seen[0].append(ALTER)
        self.how.seen[1].append(request[-1])
        self.hive.alter_table_with_environment_context(*request)


@on_hive
@pytest.mark.parametrize("where", ["catalog", "table"])
def test_without_locks(bench: HiveBench, where: str) -> None:
    """Where the catalog or the table says so no lock is taken, and the metastore is asked to compare."""
    base = bench.craft("sales.orders")
    if where == "table":
        base = replace(base, properties={**base.properties, "engine.hive.lock-enabled": "false"})
    said = {"uri": bench.uri, **({"engine.hive.lock-enabled": "false"} if where == "catalog" else {})}
    catalog = HiveCatalog(hive_catalog("lake", said), LocalStorage(), bench.clock)
    catalog._client = client = Telling(catalog.properties, bench.clock, ([], []))
    catalog.commit(base, removal(base, 0))
    assert client.seen[0] == ["get_table_req", "get_table_req", ALTER]
    (context,) = client.seen[1]
    assert context.properties["expected_parameter_key"] == "metadata_location"
    assert context.properties["expected_parameter_value"] == base.metadata_location


@on_hive
def test_what_hive_is_told(bench: HiveBench) -> None:
    """Statistics and the current snapshot are said as Iceberg's own client says them; other parameters stay."""
    base = bench.craft("sales.orders")
    with bench.iceberg._client as hive:
        table = hive.get_table("sales", "orders")
        table.parameters |= {"comment": "all orders", "current-snapshot-id": "1", "COLUMN_STATS_ACCURATE": "true"}
        hive.alter_table_with_environment_context("sales", "orders", table, EnvironmentContext(properties={}))
    change = addition(base)
    after = bench.catalog.commit(base, change)
    now, summary = bench.parameters("sales", "orders"), change.snapshot["summary"]
    assert now["comment"] == "all orders"
    assert (now["current-snapshot-id"], now["snapshot-count"]) == ("4711", str(len(after.snapshots)))
    assert now["numRows"] == summary["total-records"]
    assert "current-snapshot-summary" not in now
    assert "COLUMN_STATS_ACCURATE" not in now


@on_hive
def test_what_is_no_iceberg_table(bench: HiveBench) -> None:
    """Hive's own tables, and entries without a metadata file, are not loaded, and listed with their folders apart."""
    bench.create("sales", "orders")
    with bench.iceberg._client as hive:
        table = hive.get_table("sales", "orders")
        insert_only = {"transactional": "true", "transactional_properties": "insert_only"}
        tables = {"csv": {}, "unborn": {"table_type": "ICEBERG"}, "insert_only": insert_only, "of_spark": {}}
        for name, parameters in tables.items():
            table.tableName, table.parameters = name, parameters
            table.tableType = "MANAGED_TABLE" if name == "insert_only" else "EXTERNAL_TABLE"
            table.sd.location = f"file://{bench.warehouse}/{name}"
            if name == "of_spark":  # which writes the folder where the metastore does not look
                table.sd.location += "-__PLACEHOLDER__"
                table.sd.serdeInfo.parameters = {"path": f"file://{bench.warehouse}/delta"}
            hive.create_table(table)
    pointers, datasets = bench.catalog.listing()
    assert bench.catalog.pointers() == pointers
    assert {p.ref.name for p in pointers} == {"orders"}
    found = {(d.ref.name, key(folder)) for d in datasets for folder in d.locations}
    assert found == {
        (name, f"{bench.warehouse}/{folder}")
        for name, folder in ({name: name for name in tables} | {"of_spark": "delta"}).items()
    }
    for name in ("csv", "unborn", "insert_only"):
        with pytest.raises(TableNotFound, match=name):
            bench.catalog.load(bench.ref("sales", name))


@on_hive
def test_the_next_address(bench: HiveBench) -> None:
    """Of several metastores the first that takes a connection is asked; if none does, the error says so."""
    bench.create("sales", "orders")
    dead = f"thrift://127.0.0.1:{free_port()}"
    for uris, tables in ((f"{dead},{bench.uri}", 1), (dead, None)):
        catalog = HiveCatalog(hive_catalog("lake", {"uri": uris}), LocalStorage(), bench.clock)
        if tables is not None:
            assert len(catalog.pointers()) == tables
            continue
        with pytest.raises(CatalogUnavailable, match=r"catalog lake at thrift://127\.0\.0\.1:\d+ does not answer"):
            catalog.pointers()
