"""What contract tests share: catalogs and stores of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from icewright.adapters.store.database import open_database
from icewright.adapters.store.schema import SCHEMA
from icewright.adapters.store.sql import SqlStore
from icewright.adapters.store.upgrading import upgrade
from tests.contracts.bench import KINDS, Bench, new_database
from tests.contracts.nessie_bench import NessieBench
from tests.contracts.rest_bench import RestBench

_KINDS = [pytest.param(kind.name, marks=[pytest.mark.external] if kind.external else []) for kind in KINDS]


@pytest.fixture(params=_KINDS)
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What the suite runs over: an empty database, which is behind a REST server too, or the address of a server."""
    match request.param:
        case "sql-sqlite":
            return f"sqlite:///{tmp_path}/catalog.db"
        case "rest":
            return f"rest+sqlite:///{tmp_path}/catalog.db"
        case "nessie":
            return str(request.getfixturevalue("nessie").api)
        case "glue":
            return str(request.getfixturevalue("glue_address"))
        case "hive":
            return str(request.getfixturevalue("metastore").uri)
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
    made = _bench(uri, warehouse)
    yield made
    made.close()


def _bench(uri: str, warehouse: Path) -> Bench:
    match uri.partition(":")[0]:
        case "thrift":
            from tests.contracts.hive_bench import HiveBench  # whose Thrift modules take a while to import

            return HiveBench(uri, warehouse)
        case "http":
            if uri.endswith("/api/v2"):
                return NessieBench(uri, warehouse)
            from tests.contracts.glue_bench import GlueBench  # boto3 takes a third of a second

            return GlueBench(uri, warehouse)
    return Bench(uri, warehouse)


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
    request: pytest.FixtureRequest,
    copied_store: Callable[[Path], sa.Engine],
    tmp_path: Path,
    server: Callable[[], sa.Engine],
) -> Iterator[SqlStore]:
    """An empty store over each database."""
    if request.param == "postgres":
        yield SqlStore(server())
        return
    opened = SqlStore(copied_store(tmp_path / "state.db"))
    yield opened
    opened.engine.dispose()
