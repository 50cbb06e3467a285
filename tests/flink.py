"""Apache Flink 2.1 with Iceberg 1.11 in a JVM of its own, for tests: its jars are fetched once and kept.

Each streaming job runs in a small cluster of that JVM, as in Flink's local mode. Hadoop is the one that PySpark brings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from py4j import java_gateway as py4j_gateway
from py4j.protocol import get_return_value

from icewright.adapters.engines.spark.java import java_home
from tests.rest import CACHE
from tests.servers.fetching import fetched, fetched_all
from tests.servers.jvm import jars_of_pyspark, java_gateway
from tests.servers.rest_jars import JARS

_SUMS = Path(__file__).parent / "servers" / "flink.sha256"
_SQLITE = next(jar for jar in JARS if "sqlite" in jar[0])
_OF_PYSPARK = ("hadoop-client-api", "hadoop-client-runtime", "py4j")
_OPENED = ("lang", "util", "net", "nio", "io", "time", "text", "util.concurrent", "lang.reflect")
_SETTINGS = {
    "execution.checkpointing.interval": "4s",
    "parallelism.default": "1",
    "restart-strategy.type": "none",  # a job that fails ends
}


@dataclass(frozen=True)
class Flink:
    """The JVM, the catalog `lake` of a SQLite database, and where savepoints go."""

    jvm: Any
    catalog: str  # the options of `create catalog`
    savepoints: Path

    def start(self, *statements: str, savepoint: str | None = None) -> Any:
        """Run the statements as a streaming program, from a savepoint if one is given; the last one's job."""
        conf = self.jvm.org.apache.flink.configuration.Configuration()
        where = {"execution.checkpointing.savepoint-dir": f"file://{self.savepoints}"}
        restored = {} if savepoint is None else {"execution.state-recovery.path": savepoint}
        for key, value in {**_SETTINGS, **where, **restored}.items():
            conf.setString(key, value)
        api = self.jvm.org.apache.flink.table.api
        settings = api.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(conf).build()
        program = api.TableEnvironment.create(settings)
        result = None
        for statement in (f"create catalog lake with ({self.catalog})", *statements):
            result = program.executeSql(statement)
        return result.getJobClient().get() if result is not None and result.getJobClient().isPresent() else None

    def stop(self, job: Any) -> str:
        """Stop a job with a savepoint, and return where that lies. Raises py4j's error when the job had failed."""
        format_ = self.jvm.org.apache.flink.core.execution.SavepointFormatType.CANONICAL
        found: str = job.stopWithSavepoint(False, None, format_).get()
        return found


@contextmanager
def flink(database: Path, warehouse: Path, savepoints: Path) -> Iterator[Flink]:
    """Start the JVM for as long as the block lasts (158 MB of jars, about half a GB of memory)."""
    jars = [*fetched_all(CACHE / "flink", _SUMS), fetched(CACHE / "rest", *_SQLITE), *jars_of_pyspark(*_OF_PYSPARK)]
    opened = (f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED)
    options = {
        "type": "iceberg",
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "jdbc.schema-version": "V1",
        "uri": f"jdbc:sqlite:{database}?busy_timeout=60000",
        "warehouse": f"file://{warehouse}",
    }
    catalog = ", ".join(f"'{key}'='{value}'" for key, value in options.items())
    with (
        # PySpark, once started, reads errors of every gateway of the process by its own JVM.
        patch.object(py4j_gateway, "get_return_value", get_return_value),
        java_gateway(java_home(os.environ.get("JAVA_HOME"), CACHE), jars, "-Xmx768m", *opened) as (gateway, _),
    ):
        yield Flink(gateway.jvm, catalog, savepoints)
