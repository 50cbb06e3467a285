"""What contract tests share: catalogs of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
