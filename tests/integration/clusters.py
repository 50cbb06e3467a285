"""Servers of Spark from the PySpark package: a standalone cluster and a Connect server, on free loopback ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from icewright.adapters.engines.spark.java import java_home
from tests.servers.loopback import free_port
from tests.waiting import until

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@dataclass(frozen=True)
class Cluster:
    """A master with one worker; `work` holds a folder for each application that had an executor."""

    master: str
    work: Path
    log: Path


@contextmanager
def standalone(home: Path) -> Iterator[Cluster]:
    """A master and a worker of one core, until the end of the block."""
    log, work = home / "cluster.log", home / "work"
    with master_alone(home) as where:
        worker = ("org.apache.spark.deploy.worker.Worker", "-c", "1", "-m", "600m", "-d", str(work), where)
        with _spark_class(home, log, worker):
            until(lambda: "Registering worker" in _text(log), f"the worker, see {log}")
            yield Cluster(where, work, log)


@contextmanager
def master_alone(home: Path) -> Iterator[str]:
    """A master without workers, which takes applications and gives them no executor: its address."""
    port, log = free_port(), home / "cluster.log"
    with _spark_class(home, log, ("org.apache.spark.deploy.master.Master", "--port", str(port))):
        _listening(port, log)
        yield f"spark://127.0.0.1:{port}"


def _spark_class(home: Path, log: Path, arguments: Sequence[str]) -> AbstractContextManager[None]:
    local = ("--host", "127.0.0.1", "--webui-port", str(free_port()))
    return _server("spark-class", (arguments[0], *local, *arguments[1:]), home, log)


@contextmanager
def connect_server(home: Path, packages: Sequence[str], master: str = "local[2]") -> Iterator[str]:
    """A Connect server on a master, until the end of the block: its address."""
    port, log = free_port(), home / "connect.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.extensions": _EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
    more = ("--master", master, "--driver-memory", "1g", "--packages", ",".join(packages))
    with _server("spark-submit", (*more, *conf, *server), home, log):
        _listening(port, log)
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _server(program: str, arguments: Sequence[str], home: Path, log: Path) -> Iterator[None]:
    """One process, which the package's script becomes, so that its id is the server's."""
    package = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(os.environ.get("JAVA_HOME"), home / "cache")),
        "SPARK_HOME": str(package),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            [package / "bin" / program, *arguments],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listening(port: int, log: Path) -> None:
    def answers() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            return False

    until(answers, f"a server on port {port}, see {log}")


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
