"""A Spark application with its driver in a JVM beside this process: `local[*]`, `spark://`, YARN or Kubernetes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icewright.adapters.engines.failures import root_cause
from icewright.adapters.private import make_private
from icewright.core import cost
from icewright.core.errors import EngineUnavailable
from icewright.core.rewriting import TASK_MEMORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OVERHEAD, _PYTHON = "spark.executor.memoryOverhead", "spark.executor.pyspark.memory"
_FACTORS = ("spark.executor.memoryOverheadFactor", "spark.kubernetes.memoryOverheadFactor")
_JVM_OVERHEAD_MB = 384  # Spark's own least overhead
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_MEGABYTES = {"k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
_DEFAULTS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "2g",
    "spark.scheduler.mode": "FAIR",
    "spark.executorEnv.POLARS_MAX_THREADS": "1",  # a task has one core
    # ms: Arrow keeps what it frees, else the same pages are zeroed again; Spark ends idle workers after as long
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "60000",
}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_DAEMON = {"spark.python.daemon.module": "icewright.adapters.engines.arrow.daemon"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUICKER_FORKS = "-Djdk.lang.Process.launchMechanism=VFORK"  # Hadoop calls `chmod` for each file that it writes here
_BYTE = 2.0**-20  # in MiB
_SECONDS_TO_END = 30


def memory_overhead(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that gives each task `compact.task_memory_mb`; nothing where the pool sets memory itself.

    YARN and Kubernetes end a container that takes more than its heap and its overhead: 384 MB by Spark's default.
    """
    if not _in_containers(master) or any(name in conf for name in (_OVERHEAD, _PYTHON, *_FACTORS)):
        return {}
    return {_OVERHEAD: f"{_needed_mb(conf)}m"}


def memory_shortage(master: str, conf: Mapping[str, str]) -> str | None:
    """Return why the pool's settings may end its executors, with the remedy; None when they do not."""
    if not _in_containers(master) or _OVERHEAD in memory_overhead(master, conf):
        return None
    given, needed = _beside_heap_mb(conf), _needed_mb(conf)
    if given >= needed:
        return None
    return (
        f"executors have {given:.0f} MB beside their heap, and {_tasks(conf)} Python tasks take up to {needed} MB with "
        f"the JVM: set {_OVERHEAD} to {needed}m or leave it out"
    )


def _beside_heap_mb(conf: Mapping[str, str]) -> float:
    """Return the MB that the container of an executor has beside its heap."""
    given = sum(megabytes(conf[name]) or 0.0 for name in (_OVERHEAD, _PYTHON) if name in conf)
    if _OVERHEAD not in conf:
        factor = next((float(conf[name]) for name in _FACTORS if name in conf), 0.1)
        given += max(_JVM_OVERHEAD_MB, factor * (megabytes(conf.get("spark.executor.memory", "1g")) or 0.0))
    return given


def _in_containers(master: str) -> bool:
    return master.startswith(("yarn", "k8s:"))


def _needed_mb(conf: Mapping[str, str]) -> int:
    return _JVM_OVERHEAD_MB + _tasks(conf) * TASK_MEMORY.default


def _tasks(conf: Mapping[str, str]) -> int:
    """Return how many tasks an executor runs at once."""
    return max(1, int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1")))


def megabytes(text: str, bare: float = 1.0) -> float | None:
    """Return the MiB of a size in Spark's notation, such as `512m`, None for other text; `bare` is the default unit."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _MEGABYTES.get(match[2].lower(), bare) if match else None


def _application_settings(
    name: str, master: str, conf: Mapping[str, str], packages: tuple[str, ...], python: str
) -> dict[str, str]:
    """Return the settings of a pool's application: ours, and above them those that are configured."""
    local = master.startswith("local")
    settings = {
        "spark.app.name": f"icewright {name}",
        "spark.master": master,
        "spark.jars.packages": ",".join(sorted(set(packages))),
        **_DEFAULTS,
        **(_LOCAL if local else memory_overhead(master, conf)),
        **(_DAEMON if local and python == sys.executable else {}),  # another Python may not have the module
        **conf,
    }
    if local and sys.platform == "linux":
        settings[_JAVA_OPTIONS] = f"{_QUICKER_FORKS} {conf.get(_JAVA_OPTIONS, '')}".rstrip()
    return settings


class ClassicApplication:
    """A Spark application that the constructor starts, which raises `EngineUnavailable`. Spark writes to `log` only."""

    def __init__(
        self,
        name: str,
        master: str,
        conf: Mapping[str, str],
        catalog_conf: Mapping[str, str],
        driver: Mapping[str, str],
        packages: tuple[str, ...],
        java: Path,
        log: Path,
    ) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:  # noqa: SLF001 - what it would refuse, half way
            raise EngineUnavailable(
                f"Spark could not be started for pool {name}: this process runs the Spark of another pool already; "
                "give one of them `remote`, or leave its catalogs to a worker whose configuration has only them"
            )
        python = conf.get("spark.pyspark.python", sys.executable)
        self._master, self._settings = master, _application_settings(name, master, conf, packages, python)
        spark_conf = SparkConf(loadDefaults=False).setAll(list(self._settings.items()))
        self._gateway: Any = None
        try:
            make_private(log.parent)
            with (
                log.open("ab") as out,
                _properties_file(self._settings) as options,
                _environment(**_variables(master, java, python), PYSPARK_SUBMIT_ARGS=options),
            ):
                self._gateway = launch_gateway(popen_kwargs={"stdout": out, "stderr": out})
                self._context = SparkContext(conf=spark_conf, gateway=self._gateway)
            self._context.setLogLevel("WARN")
            self._require_settings()
            self._session = SparkSession(self._context)  # refused where no master answered
        except (EngineUnavailable, PySparkException, Py4JError, OSError) as error:
            if self._gateway is not None:
                self._gateway.shutdown()
                self._end()
            whole = f"{_failure_line(log)}. The whole log is in {log}"
            why = str(error) if isinstance(error, EngineUnavailable) else whole
            raise EngineUnavailable(f"Spark could not be started for pool {name} (master {master}): {why}") from error
        for key, value in catalog_conf.items():  # not on the command line, which other users of the host can read
            self._session.conf.set(key, value)
        for key, value in driver.items():  # nor in the environment, where other threads would find them
            self._gateway.jvm.java.lang.System.setProperty(key, value)

    def _require_settings(self) -> None:
        """Raise `EngineUnavailable` for a value that Spark SQL does not take.

        A session with such a value cannot say so: PySpark asks it for its settings to tell the error, and so for ever.
        """
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark.errors import PySparkException

        checked = self._gateway.jvm.org.apache.spark.sql.internal.SQLConf()
        for key, value in self._settings.items():
            try:
                if key.startswith("spark.sql."):
                    checked.setConfString(key, value)
            except (PySparkException, Py4JError) as error:
                raise EngineUnavailable(f"its conf has a fault: {root_cause(str(error))}") from error

    @property
    def session(self) -> SparkSession:
        """Return the application's single session."""
        return self._session

    @property
    def app_id(self) -> str:
        """Return Spark's id of the application."""
        return self._context.applicationId

    def is_alive(self) -> bool:
        """Return whether the JVM runs and its context is active: a cluster may drop the application."""
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM

        if self._gateway.proc.poll() is not None:
            return False
        try:
            return not self._scala.isStopped()
        except (Py4JError, OSError):
            return False

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[SparkSession]:
        """Return the session, with the tag on the jobs of this thread and of threads that a procedure starts."""
        self._context.addJobTag(tag)
        self._context.setJobDescription(f"Icewright {tag}")
        try:
            yield self._session
        finally:
            if self.is_alive():
                self._context.removeJobTag(tag)
                self._context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type] # None unsets it

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs with the tag."""
        from py4j.protocol import Py4JError  # noqa: PLC0415

        with contextlib.suppress(Py4JError, OSError):
            self._context.cancelJobsWithTag(tag)

    def is_idle(self, tag: str) -> bool:
        """Return whether no task of the tagged stages is active."""
        from py4j.protocol import Py4JError  # noqa: PLC0415

        try:
            return not any(stage.numActiveTasks() for stage in self._stages(tag))
        except (Py4JError, OSError):
            return True

    def gb_hours(self, tag: str) -> float:
        """Return the run time of tasks, times the memory of an executor per core."""
        milliseconds = sum(stage.executorRunTime() for stage in self._stages(tag))
        return cost.gb_hours(milliseconds / 1000, self._memory_of_a_core())

    def rows_read(self, tag: str) -> int:
        """Return the rows that came out of scans, without those of files and row groups that Iceberg skipped."""
        self._scala.listenerBus().waitUntilEmpty()  # the counts of the last tasks arrive late
        return sum(stage.inputRecords() for stage in self._stages(tag))

    def memory_gb(self) -> float | None:
        """Return the memory that the driver and the current executors reserve, with what is beside their heap."""
        from py4j.protocol import Py4JError  # noqa: PLC0415

        try:
            if self._master.startswith("local"):
                return self._driver_memory
            listed = _items(self._scala.statusStore().executorList(True))
        except (Py4JError, OSError):  # it died just now
            return None
        executor = _gigabytes(self._settings.get("spark.executor.memory", "1g"))
        if _in_containers(self._master):
            executor += _beside_heap_mb(self._settings) / 1024
        executors = sum(bool(executor.id() != "driver") for executor in listed)
        return self._driver_memory + executor * executors

    def driver_gb(self) -> float:
        """Return the driver's part of that memory: all of it where the driver works without executors."""
        return self._driver_memory

    @cached_property
    def _driver_memory(self) -> float:
        return self._memory("spark.driver.memory")

    def failure_reason(self, tag: str) -> str | None:
        """Return why a stage failed, which the procedure hides when it commits partial progress."""
        reasons = (stage.failureReason() for stage in self._stages(tag))
        return next((str(reason.get()) for reason in reasons if reason.isDefined()), None)

    def tasks(self) -> tuple[int, int, int]:
        """Return cores, active and pending tasks from Spark's status tracker."""
        from py4j.protocol import Py4JError  # noqa: PLC0415

        cores = active = pending = 0
        with contextlib.suppress(Py4JError, OSError):  # it died just now, which the next job handles
            cores = self._context.defaultParallelism
            tracker = self._context.statusTracker()
            for stage in filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds())):
                active += stage.numActiveTasks
                pending += stage.numTasks - stage.numActiveTasks - stage.numCompletedTasks - stage.numFailedTasks
        return cores, active, max(0, pending)

    def job_tasks(self, tag: str) -> tuple[int, int, int]:  # noqa: ARG002
        """Return the tasks of the whole application: an executor that serves another job serves this one next."""
        return self.tasks()

    def stop(self) -> None:
        """Stop the JVM if it still runs."""
        if self.is_alive():
            self._session.stop()
            self._gateway.shutdown()
        self._end()

    def _end(self) -> None:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        process = self._gateway.proc
        process.stdin.close()
        try:
            process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - else the next start talks to the ended JVM
        SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = None  # noqa: SLF001

    @property
    def _scala(self) -> Any:  # noqa: ANN401 - py4j
        return self._context._jsc.sc()  # noqa: SLF001 - PySpark exposes only a part of Spark's API

    def _stages(self, tag: str) -> Iterator[Any]:
        """Yield the stages of the tagged jobs that Spark still lists; it never lists skipped ones."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415

        store = self._scala.statusStore()
        for job in self._scala.statusTracker().getJobIdsForTag(tag):
            for number in _items(store.job(job).stageIds()):
                with contextlib.suppress(Py4JJavaError):
                    yield store.lastStageAttempt(number)

    def _memory_of_a_core(self) -> float:
        """Return an executor's memory per core in GB."""
        if self._master.startswith("local"):
            return self._local_memory_of_a_core
        cores: list[int] = [
            e.totalCores() for e in _items(self._scala.statusStore().executorList(True)) if e.totalCores()
        ]
        return self._memory("spark.executor.memory") / max([1, *cores])

    @cached_property
    def _local_memory_of_a_core(self) -> float:
        return self._driver_memory / max(1, self._context.defaultParallelism)

    def _memory(self, name: str) -> float:
        """Return a Spark setting in GB; PySpark's own accessor reads all settings one by one."""
        return _gigabytes(str(self._scala.getConf().get(name, "1g")))


def _items(sequence: Any) -> list[Any]:  # noqa: ANN401 - a Scala Seq
    return [sequence.apply(number) for number in range(sequence.size())]


def _gigabytes(text: str) -> float:
    size = megabytes(text, bare=_BYTE)
    return 1.0 if size is None else size / 1024


def _variables(master: str, java: Path, python: str) -> dict[str, str]:
    """Return the environment of the driver: remote executors must reach the driver, local ones share the loopback."""
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") else {}
    return {"JAVA_HOME": str(java), "PYSPARK_PYTHON": python, **local}


@contextlib.contextmanager
def _properties_file(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the options of `spark-submit` that read the settings from a file of this user alone, while it starts.

    As `--conf` options, which PySpark would make of them, their secrets are on command lines that others can read.
    """
    escaped = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")  # noqa: TID251 - PySpark's own
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="icewright-spark-", suffix=".conf") as file:
        file.writelines(f"{key}={value.translate(escaped)}\n" for key, value in settings.items())
        file.flush()
        yield f"--properties-file {shlex.quote(file.name)} --load-spark-defaults {given}"


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set Java's home and the workers' Python in the environment, where alone PySpark reads them."""
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


def _failure_line(log: Path) -> str:
    """Return the line of the log that most likely states why the JVM ended."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
    except OSError:
        return "it wrote no log"
    relevant = [line.strip() for line in lines if "Exception" in line or "Error" in line or "ERROR" in line]
    return (relevant or [line for line in lines if line.strip()] or ["it wrote nothing"])[-1][:300]
