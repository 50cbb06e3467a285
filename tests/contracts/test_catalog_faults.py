"""What every catalog does in bad weather: an error that says what is known, never a guess and never a password."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from icewright.adapters.catalogs.nessie import NessieCatalog
from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.catalogs.translate import nessie_catalog, sql_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import CatalogUnavailable, CommitConflict, CommitStateUnknown, UnknownOutcome
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import RemoveSnapshots
from tests.contracts.bench import Bench, FixedClock, Losing, addition, file_of, loses, lost, only_sql, where
from tests.contracts.nessie_bench import NativeClient, NessieBench
from tests.faulty_proxy import Fault, Proxy, faulty_proxy
from tests.servers.loopback import free_port

SECRET = "hunter2%40\u00e9x"
REF = TableRef("lake", ("sales",), "orders")


def _first(base: TableMetadata) -> RemoveSnapshots:
    return RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset())


@loses
@pytest.mark.cases(77)
def test_the_commit_landed_and_its_reply_was_lost(bench: Bench) -> None:
    """The pointer names the new file: the commit succeeded, whatever the connection said."""
    base = bench.craft("sales.orders")
    bench.lose(landing=True)
    after = bench.catalog.commit(base, _first(base))
    assert bench.rows()["sales", "orders"] == (after.metadata_location, base.metadata_location)
    assert bench.read("sales", "orders").metadata_location == after.metadata_location


@only_sql
@pytest.mark.cases(78)
def test_the_commit_did_not_land(bench: Bench) -> None:
    """The pointer names the old file: it is safe to plan again, and the new file, which nobody names, is gone."""
    base = bench.craft("sales.orders")
    rows, files = bench.rows(), sorted(bench.warehouse.rglob("*"))
    bench.lose(landing=False)
    with pytest.raises(CommitConflict, match=r"lake\.sales\.orders: the commit did not land: server closed"):
        bench.catalog.commit(base, _first(base))
    assert (bench.rows(), sorted(bench.warehouse.rglob("*"))) == (rows, files)


@loses
@pytest.mark.cases(77)
@pytest.mark.parametrize("landing", [True, False])
def test_nobody_answers_after_the_commit(bench: Bench, *, landing: bool) -> None:
    """What cannot be known is called unknown: the new files may be the table's."""
    base = bench.craft("sales.orders")
    bench.lose(landing=landing, dead=True)
    with pytest.raises(CommitStateUnknown, match=r"lake\.sales\.orders"):
        bench.catalog.commit(base, _first(base))


@loses
@pytest.mark.cases(77)
@pytest.mark.parametrize("landing", [True, False])
def test_somebody_commits_before_the_look(bench: Bench, *, landing: bool) -> None:
    """The reply was lost and another client committed: no conflict if on top of ours, and no success if not."""
    base = bench.craft("sales.orders")

    def on_top() -> None:
        bench.read("sales", "orders").transaction().set_properties({"owner": "me"}).commit_transaction()

    bench.lose(landing=landing, afterwards=on_top)
    try:
        after = bench.catalog.commit(base, _first(base))
    except (CommitStateUnknown, CommitConflict) as error:
        assert str(error).startswith("lake.sales.orders: ")  # noqa: PT017 - success is right too
        assert isinstance(error, CommitStateUnknown) or not landing  # noqa: PT017
        return
    assert after.metadata_location in bench.catalog.load(base.ref).metadata_log


@loses
@pytest.mark.cases(77, 82)
@pytest.mark.parametrize("what", ["renamed", "dropped"])
def test_the_table_is_renamed_before_the_look(bench: Bench, what: str) -> None:
    """The commit landed, then the name vanished: unknown, as under another name the table may need the new files."""
    base = bench.craft("sales.orders")

    def vanish() -> None:
        if what == "renamed":
            bench.iceberg.rename_table(("sales", "orders"), ("sales", "renamed"))
        else:
            bench.iceberg.drop_table(("sales", "orders"))

    bench.lose(landing=True, afterwards=vanish)
    with pytest.raises(UnknownOutcome):
        bench.catalog.commit(base, _first(base))


@pytest.mark.cases(77)
@pytest.mark.parametrize("uri", [pytest.param("sql-postgres", marks=pytest.mark.external)], indirect=True)
def test_a_commit_still_under_way_is_no_conflict(bench: Bench) -> None:
    """The connection broke but the server goes on and commits a moment later: nobody may say it did not land."""
    base = bench.craft("sales.orders")
    real = bench.catalog._engine
    threads: list[threading.Thread] = []

    @contextmanager
    def begin() -> Iterator[sa.Connection]:
        connection = real.connect()
        connection.begin()
        yield connection

        def late() -> None:
            time.sleep(0.4)
            connection.commit()
            connection.close()

        threads.append(threading.Thread(target=late))
        threads[0].start()
        raise lost()

    slow = Losing(real, landing=True)
    slow.begin = begin  # type: ignore[method-assign]
    bench.catalog._engine = cast(Any, slow)
    try:
        after = bench.catalog.commit(base, _first(base))
    except CommitStateUnknown:
        return
    finally:
        threads[0].join()
    assert bench.rows()["sales", "orders"][0] == after.metadata_location


@contextmanager
def _behind_a_gateway(bench: NessieBench) -> Iterator[Proxy]:
    """The way that Icewright takes to Nessie from now on."""
    with faulty_proxy(bench.uri.removesuffix("/api/v2")) as proxy:
        bench.catalog = NessieCatalog(
            nessie_catalog("lake", {"uri": f"{proxy.address}/api/v2", "warehouse": f"file://{bench.warehouse}"}),
            LocalStorage(),
            bench.clock,
        )
        yield proxy


@pytest.mark.cases(77, 82)
@where(lambda kind: kind.name == "nessie")
@pytest.mark.parametrize("status", [401, 404, 409])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_refusal_after_which_the_key_leads_elsewhere(bench: NessieBench, status: int, *, replaced: bool) -> None:
    """The commit landed before the table was renamed: the file that was refused is the one which the new key names."""
    base, other = bench.craft("sales.orders"), bench.craft("sales.other", 1)
    client = cast(NativeClient, bench.iceberg)

    def rename() -> None:
        client.put(("sales", "renamed"), bench.content_location("sales", "orders"))
        client.post({"type": "DELETE", "key": {"elements": ["sales", "orders"]}})
        if replaced:
            client.put(("sales", "orders"), other.metadata_location)

    with _behind_a_gateway(bench) as proxy:
        proxy.faults.append(Fault("/history/commit", forward=True, status=status, act=rename))
        with pytest.raises(CommitStateUnknown, match="cannot be seen"):
            bench.catalog.commit(base, addition(base))
    assert 4711 in bench.catalog.load(bench.ref("sales", "renamed")).by_id


@pytest.mark.cases(77)
@where(lambda kind: kind.name == "nessie")
@pytest.mark.parametrize("status", [409, 200, 400, 401, 403, 404, 408])
def test_a_gateway_sends_a_commit_again_or_answers_itself(bench: NessieBench, status: int) -> None:
    """The branch shows that the commit landed, with no commit on top or with one; nothing of it is deleted."""
    base = bench.craft("sales.orders")

    def on_top() -> None:
        bench.read("sales", "orders").transaction().set_properties({"owner": "me"}).commit_transaction()

    with _behind_a_gateway(bench) as proxy:
        for act in (lambda: None, *([on_top] if status == 409 else [])):
            proxy.faults.append(Fault("/history/commit", forward=True, status=status, body=b"<html>", act=act))
            base = bench.catalog.commit(base, addition(base, **{"snapshot-id": 4711 + len(base.snapshots)}))
            assert file_of(base.metadata_location).is_file()
            assert base.metadata_location in (
                bench.content_location("sales", "orders"),
                *bench.catalog.load(base.ref).metadata_log,
            )


def _catalog(uri: str) -> SqlCatalog:
    properties = sql_catalog("lake", {"uri": uri, "warehouse": "file:///w"})
    return SqlCatalog(properties, LocalStorage(), FixedClock())


CALLS: dict[str, Callable[[SqlCatalog], object]] = {
    "pointers": lambda catalog: catalog.pointers(),
    "load": lambda catalog: catalog.load(REF),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+psycopg://me:{secret}@127.0.0.1:{port}/db",
        "postgresql://me:{secret}@127.0.0.1:{port}/db?connect_timeout=2",
        "postgresql://me@127.0.0.1:{port}/db?password={secret}",
        "postgresql://127.0.0.1:{port}/db?user=me&password={secret}",
    ],
)
def test_a_server_that_is_down(call: Callable[[SqlCatalog], object], uri: str) -> None:
    """The error names the catalog and the server, and holds no password, wherever the URL has it."""
    port = free_port()
    catalog = _catalog(uri.format(secret=SECRET, port=port))
    with pytest.raises(CatalogUnavailable) as caught:
        call(catalog)
    assert "lake" in str(caught.value)
    assert str(port) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.external
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_database_that_is_not_there(call: Callable[[SqlCatalog], object], postgres_url: str) -> None:
    """A server without the database, and a database without the catalog's tables, do not answer."""
    nowhere = sa.make_url(postgres_url).set(database="nowhere", password=SECRET)
    for url in (nowhere, sa.make_url(postgres_url).set(password=SECRET)):
        catalog = _catalog(url.render_as_string(hide_password=False))
        with pytest.raises(CatalogUnavailable) as caught:
            call(catalog)
        assert "hunter2" not in str(caught.value)
        catalog._engine.dispose()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_missing_sqlite_file_is_not_made(call: Callable[[SqlCatalog], object], tmp_path: Path) -> None:
    """A wrong path to a SQLite database is an error with the path; an empty database would look like no tables."""
    path = tmp_path / "sub" / "catalog.db"
    path.parent.mkdir()
    with pytest.raises(CatalogUnavailable) as caught:
        call(_catalog(f"sqlite:///{path}"))
    assert str(path) in str(caught.value)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to be looked at " * 50])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_file_that_is_no_catalog(call: Callable[[SqlCatalog], object], content: bytes, tmp_path: Path) -> None:
    """A file without the catalog's tables, or no database at all, does not answer and stays as it is."""
    path = tmp_path / "catalog.db"
    path.write_bytes(content)
    catalog = _catalog(f"sqlite:///{path}")
    with pytest.raises(CatalogUnavailable, match=r"does not answer: [^(]"):  # the driver's words, without its class
        call(catalog)
    catalog._engine.dispose()
    assert path.read_bytes() == content


def test_the_database_vanishes_before_the_commit(tmp_path: Path) -> None:
    """A commit to a SQLite database that was moved away fails and makes no empty one in its place."""
    (tmp_path / "warehouse").mkdir()
    bench = Bench(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse")
    base = bench.craft("sales.orders")
    bench.close()
    database = tmp_path / "catalog.db"
    database.rename(tmp_path / "moved.db")
    with pytest.raises((CatalogUnavailable, CommitStateUnknown)):
        bench.catalog.commit(base, _first(base))
    assert not database.exists()
    bench.close()


@only_sql
def test_the_server_comes_back(bench: Bench) -> None:
    """A connection that died in the pool is replaced: the next call works."""
    base = bench.craft("sales.orders")
    if bench.properties.url.get_backend_name() == "postgresql":
        bench.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    assert bench.catalog.load(base.ref) == base
