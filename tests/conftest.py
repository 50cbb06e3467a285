"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.hive import Metastore, metastore_server
from tests.nessie import NessieServer, nessie_server
from tests.nightly import NIGHTLY
from tests.postgres import postgres
from tests.rest import fixture
from tests.s3 import s3_server
from tests.servers.jvm import LIGHT, keep_permissions
from tests.servers.rest_server import RestHost

if TYPE_CHECKING:
    from icewright.adapters.catalogs.translate import SqlCatalogProperties
    from icewright.adapters.engines.spark.pool import SparkPool
    from tests.cli.workspace import Workspace

ROOT = Path(__file__).parent.parent
FAST = "not spark and not external and not slow"  # what `make test-fast` runs
WHOLE_FOLDERS = (ROOT / "tests" / "cases", ROOT / "tests" / "web" / "pages")  # whose tests are all external
MARKED_WHOLE = re.compile(r"^pytestmark = (?:\[[^]]*)?pytest\.mark\.(?:spark|external|slow)\b", re.MULTILINE)
SERVERS = re.compile(r"\b(?:nessie|metastore|rest_fixture|glue_address)\b[:\"]")  # fixtures, each a server
GROUPS = {
    "tests/chaos/": "kills",
    "tests/faults/": "kills",
    "tests/contracts/": "servers",
    "tests/vacuum/": "servers",
    "tests/web/pages/": "pages",
}
FIRST = ("spark", "kills", "servers", "pages", "tests/integration/", "tests/model/", "tests/core/test_simulation", "")
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes folders of its own there, as in /tmp
_DIALECTS: dict[type[sa.Dialect], sa.Dialect] = {}
_COMPILED: dict[Any, Any] = {}
settings.register_profile("long", max_examples=300, deadline=None)  # pytest --hypothesis-profile=long
# A change is judged by the same examples each time, however busy the machine is; each night tries others.
settings.register_profile("push", deadline=None, derandomize=not NIGHTLY, print_blob=True)
settings.load_profile("push")
settings.register_profile("fast", max_examples=12)  # a push tries as many as a test asks for, or a hundred


def pytest_configure(config: pytest.Config) -> None:
    """Fix the width of tables, share compiled modules, start light JVMs, let contract suites show differences."""
    gc.set_threshold(20_000, 20, 20)  # by the usual ones collections take a twentieth of the fast tests' time
    os.environ["COLUMNS"] = "200"  # printed tables leave no column out, wherever the tests run
    if not NIGHTLY:  # its tables are tiny, and other processes have the other cores
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(LIGHT)  # of every driver, also of those that commands start
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    pytest.register_assert_rewrite("icewright.testing.contracts")
    if config.getoption("markexpr") == FAST:
        settings.load_profile("fast")
        if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:  # they write a gigabyte and sync none of it
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@cache
def _group(file: str) -> str:
    """Return the group of a file, which xdist asks for twice a test; a file on its own is one."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if "mark.spark" in text and "own_spark" not in text:
        return "spark"
    if SERVERS.search(text):
        return "servers"
    return next((group for folder, group in GROUPS.items() if file.startswith(folder)), file)


class Groups(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Gives each group of tests, which share what takes long to start, to one worker, and other tests file by file.

    The groups take minutes each and begin first, Spark's before all. After them come the other integration tests, whose
    files may take a minute, and few tests that take seconds each; then files of many tests before those of few.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])

    def _assign_work_unit(self, node: Any) -> None:
        first = next(scope for start in FIRST for scope in self.workqueue if scope.startswith(start))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `make test-fast`, import no file whose tests are all left out: their libraries take seconds."""
    if config.getoption("markexpr") != FAST:
        return None
    if collection_path in WHOLE_FOLDERS:
        return True
    named = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return (named and MARKED_WHOLE.search(collection_path.read_text(encoding="utf-8")) is not None) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: nothing of what is imported goes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # `make mutants` runs without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Schedule tests over the workers by their groups."""
    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a nightly run tries; kill the Spark that tests share when no other test needs it warm."""
    late = [item for item in items if not NIGHTLY and item.get_closest_marker("nightly")]
    if late:
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    items.sort(key=lambda item: item.path.name == "test_pools.py")


def pytest_collection_finish() -> None:
    """Keep the settings of whoever runs the tests out of them, and modules and tests out of garbage collections."""
    for name in [name for name in os.environ if name.startswith("ICEWRIGHT_")]:
        del os.environ[name]  # only now, as modules of tests read them
    gc.freeze()  # what stays to the end need not be looked through in every test
    atexit.register(gc.unfreeze)  # DuckDB counts what is left of it


@sa.event.listens_for(sa.Pool, "checkout")
def _unsynced(connection: Any, record: Any, _proxy: Any) -> None:
    """No test cuts the power, so SQLite need not wait for the disk. What is committed outlives a killed process."""
    if isinstance(connection, sqlite3.Connection) and not record.info.get("unsynced"):
        record.info["unsynced"] = True
        (_, _, file), *_ = connection.execute("pragma database_list")
        if Path(file).is_file():  # on a device the disk's answer is what a test looks for
            connection.execute("pragma synchronous = off")


@sa.event.listens_for(sa.Engine, "engine_connect")
def _share_compiled(connection: sa.Connection) -> None:
    """Let all SQLite engines of a process share what SQLAlchemy compiles, which belongs to the dialect that made it."""
    engine = connection.engine
    if engine.dialect.name == "sqlite" and "compiled_cache" not in engine.get_execution_options():
        engine.dialect = _DIALECTS.setdefault(type(engine.dialect), engine.dialect)
        engine.update_execution_options(compiled_cache=_COMPILED)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for the whole session; mark as `external` what asks for it."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state store in a SQLite file with every migration; tests take copies."""
    from icewright.adapters.store.database import open_database
    from icewright.adapters.store.upgrading import upgrade

    file = tmp_path_factory.mktemp("store") / "empty.db"
    engine = open_database(f"sqlite:///{file}")
    upgrade(engine)
    engine.dispose()
    return file


@pytest.fixture(scope="session")
def copied_store(empty_store: Path) -> Callable[[Path], sa.Engine]:
    """Copy the empty store to a path and open it."""
    from icewright.adapters.store.database import open_database

    return lambda path: open_database(f"sqlite:///{shutil.copy(empty_store, path)}")


@pytest.fixture
def workspace(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Workspace]:
    """An empty lakehouse with an empty store; whatever a test does with it, Spark is not started."""
    from tests.cli.workspace import Workspace

    made = Workspace(tmp_path / "house", monkeypatch, capsys)
    shutil.copy(empty_store, made.home / "state.db")
    yield made
    assert not made.spark_started


@pytest.fixture(scope="session")
def catalog_properties(tmp_path_factory: pytest.TempPathFactory) -> SqlCatalogProperties:
    """A catalog named `lake` in a temporary folder of the session, its warehouse beside it."""
    from icewright.adapters.catalogs.translate import sql_catalog

    home = tmp_path_factory.mktemp("lake")
    warehouse = home / "warehouse"
    warehouse.mkdir()
    return sql_catalog("lake", {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{warehouse}"})


@pytest.fixture(scope="session")
def spark_pool(
    tmp_path_factory: pytest.TempPathFactory, catalog_properties: SqlCatalogProperties
) -> Iterator[SparkPool]:
    """A pool over the catalog `lake`; Spark starts when a test first asks for the session."""
    from icewright.adapters.catalogs.translate import sql_catalog
    from icewright.adapters.engines.spark.pool import SparkApplication, SparkPool

    class Pool(SparkPool):
        def _start(self) -> SparkApplication:
            started = super()._start()
            keep_permissions(started.session)
            return started

    postgres = sql_catalog("any", {"uri": "postgresql://any/any", "warehouse": "any"})  # for its driver
    home = tmp_path_factory.mktemp("spark")
    pool = Pool(
        "tests",
        "local[2]",
        {
            "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
            "spark.hadoop.fs.s3a.secret.key": r"hu\sh ü=:#!",  # with what a properties file has to escape
            "spark.sql.session.timeZone": "Pacific/Auckland",  # is not heard
            # which finds no row any more by keys that it kept from before their column was widened
            "spark.sql.iceberg.executor-cache.delete-files.enabled": "false",
        },
        catalog_properties.spark_conf(),
        (*catalog_properties.spark_packages(), *postgres.spark_packages()),
        os.environ.get("JAVA_HOME"),
        home / "cache",
        home / "spark.log",
    )
    yield pool
    pool.stop()


@pytest.fixture
def own_spark(spark_pool: SparkPool) -> None:
    """A process runs one Spark: the session's ends, and starts again when a test next asks for it."""
    spark_pool.stop()


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
