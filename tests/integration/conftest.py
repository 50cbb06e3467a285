"""What integration tests share: one Spark application over one SQLite catalog, for the whole session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.adapters.catalogs.translate import SqlCatalogProperties
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.app.bootstrap import application, read_config
from icewright.app.demo.lake import Lake
from tests.integration.bench import CONFIG, Bench
from tests.integration.playing import quick

_COUNTER = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves the sockets of its results to the garbage collector, in whichever test that runs."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def lake(catalog_properties: SqlCatalogProperties, spark_pool: SparkPool) -> Iterator[Lake]:
    """The catalog as PyIceberg and Spark see it; take table names from `new_name`."""
    catalog = SqlCatalog("lake", **catalog_properties.pyiceberg_properties())
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
        runtime = replace(app.runtime, engine=replace(app.engines, spark=spark))
        yield Bench(lake, app, runtime, catalog, scratch)


@pytest.fixture(scope="module")
def quick_spark(bench: Bench) -> Iterator[None]:
    """Spark without what makes large queries fast and tiny ones slow."""
    with quick(bench):
        yield
