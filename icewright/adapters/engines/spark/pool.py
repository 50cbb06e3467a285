"""A pool: one Spark application, started when the first job needs it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icewright.adapters.engines.spark.java import java_home
from icewright.core.errors import EngineUnavailable
from icewright.core.predicates import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_DEFAULTS = {
    "spark.sql.extensions": _EXTENSIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "2g",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass
class SparkPool:
    """One Spark application on `master`. Thread-safe: concurrent jobs share the session.

    Everything that Spark says goes to the file `log`, never to the user's terminal.
    """

    name: str
    master: str
    conf: Mapping[str, str]
    catalog_conf: Mapping[str, str]
    packages: tuple[str, ...]
    java: str | None
    cache: Path
    log: Path
    max_concurrent: int = 2
    _session: SparkSession | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._room = threading.BoundedSemaphore(self.max_concurrent)

    @contextlib.contextmanager
    def room(self) -> Iterator[SparkSession]:
        """The session, once fewer than `max_concurrent` statements run on it."""
        session = self.session()
        with self._room:
            yield session

    @property
    def started(self) -> bool:
        """Whether Spark runs already."""
        return self._session is not None

    def session(self) -> SparkSession:
        """The pool's session, started on the first call. Raises `EngineUnavailable`."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def check(self, catalogs: Sequence[str]) -> str:
        """Ask Spark for each catalog. Raises `EngineUnavailable` with Spark's own words."""
        from pyspark.errors import PySparkException

        session = self.session()
        for name in catalogs:
            try:
                session.sql(f"SHOW NAMESPACES IN {quoted(name)}").collect()
            except PySparkException as error:
                raise EngineUnavailable(f"Spark cannot read catalog {name}: {str(error).splitlines()[0]}") from error
        return f"Spark {session.version} reads {', '.join(catalogs)}"

    def stop(self) -> None:
        """End the application, if it runs."""
        with self._lock:
            if self._session is not None:
                gateway: Any = self._session.sparkContext._gateway  # noqa: SLF001 - PySpark leaves the JVM running
                self._session.stop()
                gateway.shutdown()
                gateway.proc.stdin.close()
                gateway.proc.wait(timeout=30)
                _forget_gateway()
                self._session = None

    def _start(self) -> SparkSession:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        settings = {
            "spark.app.name": f"icewright {self.name}",
            "spark.master": self.master,
            "spark.jars.packages": ",".join(sorted(set(self.packages))),
            **_DEFAULTS,
            **(_LOCAL if self.master.startswith("local") else {}),
            **self.conf,
        }
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log, _environment(JAVA_HOME=str(java_home(self.java, self.cache))):
                gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})
            context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkRuntimeError, OSError) as error:
            raise EngineUnavailable(
                f"Spark could not be started for pool {self.name} (master {self.master}): {_last_words(self.log)}. "
                f"The whole log is in {self.log}"
            ) from error
        context.setLogLevel("WARN")
        session = SparkSession(context)
        for key, value in self.catalog_conf.items():  # not on the command line, which other users of the host can read
            session.conf.set(key, value)
        return session


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """PySpark takes the Java home and the Python of its workers from the environment alone."""
    variables["PYSPARK_PYTHON"] = sys.executable
    variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in variables}  # noqa: TID251
    os.environ.update(variables)  # noqa: TID251
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # noqa: TID251
            else:
                os.environ[name] = value  # noqa: TID251


def _forget_gateway() -> None:
    from pyspark import SparkContext

    SparkContext._gateway = None  # noqa: SLF001 - else the next start would talk to the ended JVM
    SparkContext._jvm = None  # noqa: SLF001


def _last_words(log: Path) -> str:
    """The line of the log that most likely says why."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
    except OSError:
        return "it wrote no log"
    telling = [line.strip() for line in lines if "Exception" in line or "Error" in line or "ERROR" in line]
    return (telling or [line for line in lines if line.strip()] or ["it wrote nothing"])[-1][:300]
