"""What contract tests share: catalogs and stores of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from icewright.adapters.store.database import open_database, upgrade
from icewright.adapters.store.schema import SCHEMA
from icewright.adapters.store.sql import SqlStore
from tests.contracts.bench import Bench, new_database
from tests.contracts.rest_bench import RestBench

_SERVERS = [pytest.param(kind, marks=pytest.mark.external) for kind in ("sql-postgres", "rest")]


@pytest.fixture(params=["sql-sqlite", *_SERVERS])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of the kind that the suite runs over; behind a REST server it is one too."""
    match request.param:
        case "sql-sqlite":
            return f"sqlite:///{tmp_path}/catalog.db"
        case "rest":
            return f"rest+sqlite:///{tmp_path}/catalog.db"
    return new_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
def bench(uri: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A catalog named `lake` over the database, with its warehouse."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    if uri.startswith("rest+"):
        host = request.getfixturevalue("rest_fixture")
        uri = uri.removeprefix("rest+")
        address = host.serve(tmp_path / "catalog.db", f"file://{warehouse}")
        made: Bench = RestBench(uri, warehouse, address=address)
        yield made
        made.close()
        host.end(address)
        return
    made = Bench(uri, warehouse)
    yield made
    made.close()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Callable[[], sa.Engine]]:
    """One migrated PostgreSQL database, emptied for each test."""
    opened: list[sa.Engine] = []

    def make() -> sa.Engine:
        if not opened:
            opened.append(open_database(new_database(request.getfixturevalue("postgres_url"))))
            upgrade(opened[0])
        with opened[0].begin() as connection:
            names = ", ".join(table.name for table in SCHEMA.sorted_tables)
            connection.execute(sa.text(f"TRUNCATE {names} RESTART IDENTITY"))
        return opened[0]

    yield make
    for engine in opened:
        engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.external)])
def store(
    request: pytest.FixtureRequest, empty_store: Path, tmp_path: Path, server: Callable[[], sa.Engine]
) -> Iterator[SqlStore]:
    """An empty store over each database."""
    if request.param == "postgres":
        yield SqlStore(server())
        return
    opened = SqlStore(open_database(f"sqlite:///{shutil.copy(empty_store, tmp_path / 'state.db')}"))
    yield opened
    opened.engine.dispose()
