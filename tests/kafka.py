"""Apache Kafka 3.9 and Iceberg's sink for Kafka Connect on loopback, for tests: their jars are fetched once and kept.

Hadoop is the one that PySpark brings.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from icewright.adapters.engines.spark.java import java_home
from tests.rest import CACHE
from tests.servers.fetching import fetched, fetched_all
from tests.servers.jvm import LIGHT
from tests.servers.loopback import free_port, process
from tests.servers.rest_jars import JARS

_SUMS = Path(__file__).parent / "servers" / "kafka_connect.sha256"
_SQLITE = next(jar for jar in JARS if "sqlite" in jar[0])
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_CONTROL, _GROUP = "control-iceberg", "connect-sink-coord"  # what the sink calls them
OFFSETS = f"kafka.connect.offsets.{_CONTROL}.connect-sink"


@dataclass(frozen=True)
class Kafka:
    """A broker with the topic `events`, whose sink writes to one table of a SQLite catalog."""

    java: tuple[str, ...]
    address: str
    folder: Path

    def produce(self, numbers: Iterable[int]) -> None:
        """Send an event for each number."""
        lines = "".join(f'{{"id": {number}}}\n' for number in numbers)
        self._run("kafka.tools.ConsoleProducer", "--topic", "events", said=lines)

    def rewind(self) -> None:
        """Forget at the broker what the sink's coordinator has read, as when it died before it said so."""
        place = ("--reset-offsets", "--to-earliest", "--execute", "--group", _GROUP, "--topic", _CONTROL)
        for _ in range(30):  # until the broker has missed the coordinator
            answer = self._run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *place)
            if "is inactive, but" not in answer:
                return
            time.sleep(2)
        raise AssertionError(answer)

    @contextmanager
    def sink(self, table: str, database: Path, warehouse: Path) -> Iterator[None]:
        """Run Kafka Connect with the sink for as long as the block lasts."""
        port = free_port()
        worker = {
            "bootstrap.servers": self.address,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": f"{self.folder}/offsets",
            "offset.flush.interval.ms": "1000",  # so often an idle task looks for what its coordinator asks
            "listeners": f"http://127.0.0.1:{port}",
            "plugin.discovery": "service_load",
        }
        connector = {
            "name": "sink",
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "topics": "events",
            "iceberg.tables": table,
            "iceberg.catalog": "lake",
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.jdbc.schema-version": "V1",
            "iceberg.catalog.uri": f"jdbc:sqlite:{database}?busy_timeout=60000",
            "iceberg.catalog.warehouse": f"file://{warehouse}",
            "iceberg.control.commit.interval-ms": "3000",
            "iceberg.kafka.session.timeout.ms": "6000",
        }
        said = (_written(self.folder / "worker", worker), _written(self.folder / "connector", connector))
        command = [*self.java, "org.apache.kafka.connect.cli.ConnectStandalone", *said]
        with process(command, port, "/connectors/sink/status", self.folder / "connect.log"):
            yield

    def _run(self, program: str, *arguments: str, said: str = "") -> str:
        command = [*self.java, program, "--bootstrap-server", self.address, *arguments]
        return subprocess.run(command, input=said, capture_output=True, text=True, check=True, timeout=120).stdout


@contextmanager
def kafka(folder: Path) -> Iterator[Kafka]:
    """Start a broker of its own for as long as the block lasts (82 MB of jars)."""
    pyspark = find_spec("pyspark")
    own = Path(str(pyspark.origin if pyspark else "")).parent / "jars"
    hadoop = own.glob("hadoop-client-*.jar")
    jars = [*fetched_all(CACHE / "kafka", _SUMS), fetched(CACHE / "rest", *_SQLITE), *hadoop]
    program = str(java_home(os.environ.get("JAVA_HOME"), CACHE) / "bin" / "java")
    java = (program, "-Xmx400m", *LIGHT, "-cp", ":".join(map(str, jars)))
    port, controller = free_port(), free_port()
    folder.mkdir()
    said = _written(
        folder / "broker",
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": f"{folder}/logs",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        },
    )
    formats = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", said]
    subprocess.run(formats, check=True, capture_output=True)
    with (
        (folder / "broker.log").open("wb") as log,
        subprocess.Popen([*java, "kafka.Kafka", said], stdout=log, stderr=log, cwd=folder) as broker,
    ):
        try:
            _wait_for(port)
            yield Kafka(java, f"127.0.0.1:{port}", folder)
        finally:
            broker.kill()


def _written(path: Path, settings: Mapping[str, str]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="latin-1")
    return str(path)


def _wait_for(port: int) -> None:
    for _ in range(240):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(port)
