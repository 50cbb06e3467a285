"""What the tests of the catalogue of cases share: an empty house with two catalogs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4
from zlib import crc32

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.app.bootstrap import application, pyiceberg_catalog_properties, read_config, upgrade_store
from icewright.testing import FixedClock
from tests.cases.workspace import CONFIG, Ground, Workspace, quickly


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The folder where every house stands, with an empty state store beside it; tests come one after another."""
    home = tmp_path_factory.mktemp("cases") / "house"
    home.mkdir()
    path = home / "icewright.yaml"
    path.write_text(CONFIG.format(home=home), encoding="utf-8")
    config = read_config(path)
    upgrade_store(config)
    store = shutil.move(home / "state.db", home.with_name("empty.db"))
    icebergs = {name: SqlCatalog(name, **pyiceberg_catalog_properties(c)) for name, c in config.catalogs.items()}
    for catalog in icebergs.values():
        for namespace in ("sales", "in"):
            catalog.create_namespace(namespace)
    yield Ground(home, config, icebergs, Path(store))
    for catalog in icebergs.values():
        catalog.close()


def fresh(ground: Ground) -> None:
    """Leave of former houses nothing but empty catalogs and an empty store."""
    kept = {"icewright.yaml", "lake.db", "pond.db"}
    for path in ground.home.iterdir():
        if path.is_dir() and not path.is_symlink():
            left = path.rename(ground.home.parent / f"left-{uuid4()}")
            shutil.rmtree(left, ignore_errors=True)  # a read that was given up may come back late, and write to it
        elif path.name not in kept:
            path.unlink()
    for name in ("lake.db", "pond.db"):
        quickly(ground.home / name, "DELETE FROM iceberg_tables")
    shutil.copyfile(ground.store, ground.home / "state.db")
    for folder in ("warehouse", "pond"):
        (ground.home / folder).mkdir()


@pytest.fixture
def workspace(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    """An empty house; whatever a test does with it, Spark is not started.

    Its clock begins with the time at which the files are written, which is that of the machine. Each test has file
    names of its own: PyIceberg remembers manifest lists by their paths.
    """
    fresh(ground)
    clock = FixedClock(datetime.now(UTC).replace(microsecond=0))
    with application(ground.config, kind="tests", clock=clock) as app:
        yield Workspace(ground.home, clock, app, crc32(request.node.nodeid.encode()), ground.icebergs)
    assert not (ground.home / "cache" / "logs").exists()


@pytest.fixture
def at_noon(workspace: Workspace) -> None:
    """Set the clock to the next noon, for tests that count hours and days of the calendar."""
    now = workspace.clock.now()
    workspace.clock.time = datetime(now.year, now.month, now.day, 12, tzinfo=UTC) + timedelta(days=now.hour >= 12)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of these tests makes a lakehouse of its own: together too much for the fast part."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.external)
