"""Apache Flink 2.1 with Iceberg 1.11 in a JVM of its own, for tests: its jars are fetched once and kept.

Each streaming job runs in a small cluster of that JVM, as in Flink's local mode. Hadoop is the one that PySpark brings.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from icewright.adapters.engines.spark.java import java_home
from tests.rest import CACHE
from tests.servers.fetching import fetched, fetched_all
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
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    pyspark = find_spec("pyspark")
    own = Path(str(pyspark.origin if pyspark else "")).parent / "jars"
    theirs = [jar for name in _OF_PYSPARK for jar in sorted(own.glob(f"{name}-*.jar"))]
    jars = [*fetched_all(CACHE / "flink", _SUMS), fetched(CACHE / "rest", *_SQLITE), *theirs]
    port, token, process = launch_gateway(
        jarpath=str(theirs[-1]),
        classpath=":".join(map(str, jars)),
        java_path=str(java_home(os.environ.get("JAVA_HOME"), CACHE) / "bin" / "java"),
        javaopts=[
            "-Xmx768m",
            "-XX:TieredStopAtLevel=1",
            *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
        ],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    options = {
        "type": "iceberg",
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "jdbc.schema-version": "V1",
        "uri": f"jdbc:sqlite:{database}?busy_timeout=60000",
        "warehouse": f"file://{warehouse}",
    }
    try:
        yield Flink(gateway.jvm, ", ".join(f"'{key}'='{value}'" for key, value in options.items()), savepoints)
    finally:
        with suppress(Exception):  # it may be dead already
            gateway.shutdown()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
