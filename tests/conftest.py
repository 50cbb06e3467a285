"""What all tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from icewright.app.demo.rest_server import RestHost
from tests.hive import Metastore, metastore_server
from tests.nessie import NessieServer, nessie_server
from tests.postgres import postgres
from tests.rest import fixture
from tests.s3 import s3_server

settings.register_profile("long", max_examples=300, deadline=None)  # pytest --hypothesis-profile=long


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2 --dist loadgroup`: one process has all of Spark's tests, and so one JVM; other files stay whole.

    Files that name a group of their own share its servers.
    """
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in [name for name in os.environ if name.startswith("ICEWRIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for the whole session; mark as `external` what asks for it."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state store in a SQLite file with every migration; tests take copies."""
    from icewright.adapters.store.database import open_database, upgrade

    path = tmp_path_factory.mktemp("store") / "empty.db"
    engine = open_database(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture(scope="session")
def glue_address() -> Iterator[str]:
    """A server of Glue and S3 for the whole session; mark as `external` what asks for it."""
    with s3_server(glue=True) as said:
        yield said["s3.endpoint"]


@pytest.fixture(scope="session")
def nessie() -> Iterator[NessieServer]:
    """A Nessie server for the whole session, to be emptied for each test; mark as `external` what asks for it."""
    with nessie_server() as server:
        yield server


@pytest.fixture(scope="session")
def metastore() -> Iterator[Metastore]:
    """A Hive metastore for the whole session; mark as `external` what asks for it."""
    with metastore_server() as running:
        yield running


@pytest.fixture(scope="session")
def rest_fixture() -> Iterator[RestHost]:
    """The JVM of Apache's REST catalog for the whole session; mark as `external` what asks for it."""
    with fixture() as host:
        yield host
