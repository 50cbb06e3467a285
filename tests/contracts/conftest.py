"""What contract tests share: catalogs of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.bench import Bench, new_database


@pytest.fixture(params=["sql-sqlite", pytest.param("sql-postgres", marks=pytest.mark.external)])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of the kind that the suite runs over."""
    if request.param == "sql-sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    return new_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
def bench(uri: str, tmp_path: Path) -> Iterator[Bench]:
    """A catalog named `lake` over the database, with its warehouse."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    made = Bench(uri, warehouse)
    yield made
    made.close()
