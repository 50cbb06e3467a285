"""What integration tests share: one Spark application over one SQLite catalog, for the whole session."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.adapters.catalogs.translate import (
    SqlCatalogProperties,
    pyiceberg_properties,
    spark_conf,
    spark_packages,
    sql_catalog,
)
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.app.bootstrap import application, read_config
from icewright.app.demo.rot import Lake
from tests.integration.bench import CONFIG, Bench

POSTGRES = sql_catalog("any", {"uri": "postgresql://any/any", "warehouse": "any"})  # for its driver
_COUNTER = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves the sockets of its results to the garbage collector, in whichever test that runs."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def catalog_properties(tmp_path_factory: pytest.TempPathFactory) -> SqlCatalogProperties:
    """A catalog named `lake` in a temporary folder of the session, its warehouse beside it."""
    home = tmp_path_factory.mktemp("lake")
    warehouse = home / "warehouse"
    warehouse.mkdir()
    return sql_catalog("lake", {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{warehouse}"})


@pytest.fixture(scope="session")
def spark_pool(
    tmp_path_factory: pytest.TempPathFactory, catalog_properties: SqlCatalogProperties
) -> Iterator[SparkPool]:
    """A pool over the catalog `lake`; Spark starts when a test first asks for the session."""
    home = tmp_path_factory.mktemp("spark")
    pool = SparkPool(
        "tests",
        "local[2]",
        {
            "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # short sessions: less time in the compiler
        },
        spark_conf(catalog_properties),
        (*spark_packages(catalog_properties), *spark_packages(POSTGRES)),
        os.environ.get("JAVA_HOME"),
        home / "cache",
        home / "spark.log",
    )
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def lake(catalog_properties: SqlCatalogProperties, spark_pool: SparkPool) -> Iterator[Lake]:
    """The catalog as PyIceberg and Spark see it; take table names from `new_name`."""
    catalog = SqlCatalog("lake", **pyiceberg_properties(catalog_properties))
    warehouse = catalog_properties.warehouse.removeprefix("file://")
    yield Lake(catalog, spark_pool.session, Path(warehouse), datetime.now(UTC))
    catalog.close()


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names of tables in namespace `test` that no other test has: `new_name("orders")` is `test.orders_1`."""
    return lambda stem: f"test.{stem}_{next(_COUNTER)}"


@pytest.fixture(scope="module")
def bench(
    tmp_path_factory: pytest.TempPathFactory,
    catalog_properties: SqlCatalogProperties,
    spark_pool: SparkPool,
    lake: Lake,
) -> Iterator[Bench]:
    """Icewright as `application` wires it, its Spark being the session's."""
    home = tmp_path_factory.mktemp("icewright")
    catalog = Path(str(catalog_properties.url.database))
    file = home / "icewright.yaml"
    file.write_text(CONFIG.format(home=home, catalog=catalog, warehouse=catalog_properties.warehouse))
    scratch = home / "scratch"
    scratch.mkdir()
    with application(read_config(file), kind="tests") as app:
        spark = replace(app.engines.spark, pools={"lake": spark_pool})
        world = replace(app.world, engine=replace(app.engines, spark=spark))
        yield Bench(lake, app, world, catalog, scratch)
