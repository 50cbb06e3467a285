"""Servers that take all and say nothing, or take no writes: each call ends, and the next has another connection."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from thrift.transport.TTransport import TTransportException

from icewright.adapters import postgresql
from icewright.adapters.catalogs import hive_client
from icewright.adapters.catalogs.bounded import load_bounded_catalog
from icewright.adapters.catalogs.hive_client import HiveClient
from icewright.adapters.catalogs.rest import client
from icewright.adapters.catalogs.rest.client import RestClient
from icewright.adapters.catalogs.sql import SqlCatalog
from icewright.adapters.catalogs.translate import CatalogProperties, hive_catalog, rest_catalog, sql_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.store.database import Database, open_database
from icewright.adapters.store.upgrading import upgrade
from icewright.core.errors import CatalogUnavailable, StoreUnavailable
from tests.contracts.bench import FixedClock, new_database
from tests.servers.relay import Relay, answer, relay

SILENCE, TIMED_OUT = r"the server has sent nothing for 0\.5 s", r"timed out|read timeout"


@pytest.fixture
def far(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Relay]]:
    """An empty database of PostgreSQL behind a relay, and little patience with it."""
    monkeypatch.setattr(postgresql, "SECONDS", 0.5)
    url = sa.make_url(new_database(postgres_url))
    with relay(url.port or 0) as between:
        yield url.set(port=between.port).render_as_string(hide_password=False), between


@pytest.mark.external
def test_a_state_store_that_falls_silent(far: tuple[str, Relay]) -> None:
    """A transaction ends in an error, and the next ones have connections of their own: nothing of the first is left."""
    url, between = far
    engine = open_database(url)
    upgrade(engine)
    database = Database(engine)

    def write_while_it_falls_silent() -> None:
        with database.begin() as connection:
            connection.execute(sa.text("CREATE TABLE beside (id int)"))
            between.swallow()
            connection.execute(sa.text("INSERT INTO beside SELECT 1"))

    with pytest.raises(StoreUnavailable, match=SILENCE):
        answer(write_while_it_falls_silent)
    assert answer(partial(database.rows, sa.text("SELECT 1"))) == [(1,)]
    answer(partial(database.write, sa.text("CREATE TABLE beside (id int)")))
    engine.dispose()


@pytest.mark.external
def test_a_server_that_takes_no_writes_any_more(postgres_url: str) -> None:
    """After a failover all connections to the former primary are given up, as the address leads to another."""
    engine = open_database(new_database(postgres_url))
    database = Database(engine)
    write = sa.text("CREATE TABLE written (id int)")
    with engine.connect() as one, engine.connect() as other:
        for connection in (one, other):
            connection.execute(sa.text("SET default_transaction_read_only = on"))
            connection.commit()
    with pytest.raises(StoreUnavailable, match="read-only"):
        database.write(write)
    with engine.connect() as one, engine.connect() as other:
        for connection in (one, other):
            assert connection.execute(sa.text("SHOW transaction_read_only")).scalar() == "off"
    database.write(write)
    engine.dispose()


@pytest.mark.external
def test_statements_that_send_now_and_then_and_migrations_may_last(far: tuple[str, Relay]) -> None:
    """Nobody gives up a server that goes on sending, nor one that alters a large table."""
    engine = open_database(far[0])
    long = "SELECT pg_sleep(0.3), repeat('x', 1 << 20) FROM generate_series(1, 4)"
    assert len(answer(partial(Database(engine).rows, sa.text(long)))) == 4
    with engine.connect() as connection:
        postgresql.wait_without_limit(connection)
        assert connection.execute(sa.text("SELECT 1 FROM pg_sleep(1)")).scalar() == 1
    with pytest.raises(StoreUnavailable, match=SILENCE):
        Database(engine).rows(sa.text("SELECT pg_sleep(30)"))
    engine.dispose()


@pytest.mark.external
def test_a_catalog_in_a_database_that_falls_silent(far: tuple[str, Relay], tmp_path: Path) -> None:
    """A listing takes another connection, and what PyIceberg asks for the archive ends."""
    url, between = far
    properties = sql_catalog("lake", {"uri": url, "warehouse": f"file://{tmp_path}"})
    archive = load_bounded_catalog("lake", properties.pyiceberg_properties())
    catalog = SqlCatalog(properties, LocalStorage(), FixedClock())
    assert (catalog.pointers(), archive.list_namespaces()) == ([], [])
    between.swallow()
    assert answer(catalog.pointers) == []
    with pytest.raises(sa.exc.OperationalError, match=SILENCE):
        answer(archive.list_namespaces)
    assert answer(archive.list_namespaces) == []
    catalog.close()
    archive.close()


def _rest(**more: str) -> Callable[[str], CatalogProperties]:
    return lambda address: rest_catalog("lake", {"uri": f"http://{address}", **more})


SIGNED = {"rest.sigv4-enabled": "true", "rest.signing-region": "us-east-1", "client.region": "us-east-1"}
KEYS = {"client.access-key-id": "me", "client.secret-access-key": "hush"}


@pytest.mark.parametrize(
    ("properties", "ask"),
    [
        pytest.param(_rest(), lambda p: RestClient(p, FixedClock()).offers("any"), id="rest"),
        pytest.param(_rest(**SIGNED, **KEYS), lambda p: RestClient(p, FixedClock()).offers("any"), id="rest-sigv4"),
        pytest.param(
            lambda address: hive_catalog("lake", {"uri": f"thrift://{address}", "warehouse": "/w"}),
            lambda p: HiveClient(p, FixedClock()).ask(lambda hive: hive.get_all_databases()),
            id="hive",
        ),
    ],
)
def test_a_catalog_that_never_answers(
    properties: Callable[[str], Any], ask: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unavailable for us, and PyIceberg's own client of it gives up too."""
    monkeypatch.setattr(client, "_SECONDS", (5.0, 0.1))
    monkeypatch.setattr(hive_client, "SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = properties(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(CatalogUnavailable, match=TIMED_OUT):
            answer(partial(ask, made))

        def list_by_pyiceberg() -> None:
            load_bounded_catalog("lake", made.pyiceberg_properties()).list_namespaces()

        with pytest.raises(Exception, match=TIMED_OUT):
            answer(list_by_pyiceberg)


def test_a_metastore_that_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg's client makes a transport for each use, and each gives up."""
    monkeypatch.setattr(hive_client, "SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"thrift://127.0.0.1:{server.getsockname()[1]}"
        catalog = load_bounded_catalog("lake", {"type": "hive", "uri": uri})
        for _ in range(2):
            with pytest.raises(TTransportException, match=TIMED_OUT):
                answer(catalog.list_namespaces)
