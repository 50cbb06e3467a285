"""A pool: one Spark application, started by the first job and restarted when it has died."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from icewright.adapters.engines.arrow.executors import environment_mismatch
from icewright.adapters.engines.failures import is_away, root_cause
from icewright.adapters.engines.spark.classic import ClassicApplication, memory_shortage
from icewright.adapters.engines.spark.connect import ConnectApplication
from icewright.adapters.engines.spark.java import java_home
from icewright.adapters.engines.spark.reservation import Charge, Reservation
from icewright.core.errors import Cancelled, EngineUnavailable, IcewrightError, LeaseLost, requires_extra
from icewright.core.predicates import quoted
from icewright.ports.work import SupervisedWork, current_work

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

LOOK_SECONDS = 1.0
_FAILED = "failed_data_files_count"  # of what `rewrite_data_files` answers
_SECONDS_TO_QUIET = 20.0  # Spark kills a Python task up to four seconds after it was cancelled
_POLL_SECONDS = 0.1


class SparkApplication(Protocol):
    """A Spark application whose sessions are configured with the pool's catalogs."""

    @property
    def session(self) -> SparkSession:
        """Return a session for a caller without a job."""

    @property
    def app_id(self) -> str:
        """Return the application's id, which Iceberg writes into snapshot summaries as `app-id`."""

    def is_alive(self) -> bool:
        """Return whether the application accepts statements."""

    def tagged(self, tag: str) -> AbstractContextManager[SparkSession]:
        """Return a session for the statements of one job; `cancel` and `gb_hours` find them by the tag."""

    def cancel(self, tag: str) -> None:
        """Cancel the tagged work that runs now. Never raises: a dead application runs nothing."""

    def is_idle(self, tag: str) -> bool:
        """Return whether no tagged task is active; a cancelled task continues for some seconds."""

    def gb_hours(self, tag: str) -> float | None:
        """Return the memory that tagged tasks held times their run time; None if unknown."""

    def rows_read(self, tag: str) -> int | None:
        """Return the rows that came out of the scans of tagged tasks; None if unknown."""

    def memory_gb(self) -> float | None:
        """Return the memory that driver and executors reserve now; None if unknown."""

    def driver_gb(self) -> float:
        """Return the driver's part of that memory; 0 if unknown."""

    def failure_reason(self, tag: str) -> str | None:
        """Return why tagged tasks failed; None if none did."""

    def tasks(self) -> tuple[int, int, int] | None:
        """Return cores, active tasks and pending tasks; None if Spark does not report them."""

    def job_tasks(self, tag: str) -> tuple[int, int, int] | None:
        """Return `tasks` while tagged work runs: of that work alone where Spark tells which tasks are its."""

    def stop(self) -> None:
        """Stop or leave the application and free its resources in this process."""


@contextmanager
def watched(
    check: Callable[[], None],
    cancel: Callable[[], None],
    every: float = LOOK_SECONDS,
    tasks: Callable[[], tuple[int, int, int] | None] = lambda: None,
) -> Iterator[None]:
    """Poll `check` while the block runs; when it raises `Cancelled` or `LeaseLost`, call `cancel`.

    `tasks` are the application's cores, active and pending tasks. A change of them is progress of the work, and so is a
    task that runs, however long, as Spark itself gives up executors without heartbeats; None, for unknown, counts too.

    The cancellation is repeated at every poll, as a procedure whose job was cancelled continues with the next job. The
    error of `check` is raised at the end, also when the block ends without an error: with partial progress a procedure
    returns the number of failed groups.
    """
    over, why = threading.Event(), list[IcewrightError]()
    work, last = current_work(), _known(tasks)

    def look() -> None:
        nonlocal last
        while not over.wait(every):
            if work is not None and ((now := _known(tasks)) is None or now[1] or now != last):
                last = now
                work.progress()
            if not why:
                try:
                    check()
                except (Cancelled, LeaseLost) as error:
                    why.append(error)
                except IcewrightError:  # the store is away for a moment: the lease outlives some looks
                    continue
            if why:
                cancel()

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        raise (why[0] if why else error) from error
    finally:
        over.set()
        thread.join()
    if why:
        raise why[0]


def _known(tasks: Callable[[], tuple[int, int, int] | None]) -> tuple[int, int, int] | None:
    """Return the state of the application's tasks; None when the application does not tell, as it has died."""
    try:
        return tasks()
    except Exception:  # noqa: BLE001 - the work meets the same error, and polling must go on
        return None


@dataclass(frozen=True)
class StepResult:
    """The results of the statements of one step, and their cost."""

    rows: tuple[Mapping[str, Any], ...]
    charge: Charge | None = None  # what the application reserved for the job; None: Spark does not report it
    used_gb_hours: float | None = None  # that tasks used of it
    rows_read: int | None = None  # by scans, where that was asked for and Spark reports it
    failure_reason: str | None = None  # why tasks failed, when files could not be rewritten
    notes: tuple[str, ...] = ()


Work = Callable[["SparkSession"], StepResult]


def statements(texts: Sequence[str]) -> Work:
    """Return work that runs the statements in order and returns the first row of each that has rows."""
    return lambda session: StepResult(tuple(_first(session.sql(text).collect()) for text in texts))


class StatementFailed(Exception):
    """Raised when Spark runs and a statement failed; the message is the JVM's."""


@dataclass
class SparkPool:
    """The Spark application on `master` or behind the Connect server `remote`, shared by jobs. Thread-safe."""

    name: str
    master: str
    conf: Mapping[str, str]
    catalog_conf: Mapping[str, str]
    packages: tuple[str, ...]
    java: str | None
    cache: Path
    log: Path
    max_concurrent: Callable[[], int] = lambda: 2
    remote: str | None = None
    driver: Mapping[str, str] = field(default_factory=dict, repr=False)  # system properties of its JVM; may be secrets
    look_seconds: float = LOOK_SECONDS
    reserved: Reservation = field(default_factory=Reservation)
    _application: SparkApplication | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _no_arrow: dict[str, str | None] = field(default_factory=dict, init=False)  # by application
    _calls: Iterator[int] = field(default_factory=itertools.count, init=False)
    _waiting_since: dict[int, float] = field(default_factory=dict, init=False)  # jobs that wait for room, since when
    _room: threading.Condition = field(default_factory=threading.Condition, init=False)
    _placed: dict[int, SupervisedWork | None] = field(default_factory=dict, init=False)  # by the job's thread

    @property
    def started(self) -> bool:
        """Return whether the pool has started its Spark application."""
        return self._application is not None

    def application(self) -> SparkApplication:
        """Return the running application, started if there is none. Raises `EngineUnavailable`."""
        with self._lock:
            if self._application is not None and not self._application.is_alive():
                self._application.stop()
                self._application = None
                self.reserved.ended()
            if self._application is None:
                since = self.reserved.clock()
                self._application = self._start()
                self.reserved.started(self._application.memory_gb(), since, self._application.driver_gb())
            return self._application

    def session(self) -> SparkSession:
        """Return a session that belongs to no job. Raises `EngineUnavailable`."""
        return self.application().session

    def run(self, work: Work, tag: str, check: Callable[[], None], *, count_rows: bool = False) -> StepResult:
        """Run the work in a job's session; return its result and cost, with `count_rows` also the rows that it read.

        Waits for a slot while `max_concurrent` jobs run. `check` is polled: once it raises `Cancelled` or `LeaseLost`,
        the Spark jobs are cancelled and the same error is raised. Raises `StatementFailed` too, and `EngineUnavailable`
        when Spark has died. Earlier commits stay; errors are raised when the tasks have ended, if they end soon, so
        that the caller finds all files that they left.
        """
        tag = f"{tag}-{next(self._calls)}"  # the cost of the job's earlier calls is reported already
        with self._place(check):
            application = self.application()
            from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
            from pyspark.errors import PySparkException

            cancel = partial(application.cancel, tag)
            tasks = partial(application.job_tasks, tag)
            with _quiet_after_failure(application, tag), watched(check, cancel, self.look_seconds, tasks):
                try:
                    with application.tagged(tag) as session, self.reserved.job(application.memory_gb) as charged:
                        answer = work(session)
                        failed = any(row.get(_FAILED) for row in answer.rows)
                        failure_reason = answer.failure_reason or (application.failure_reason(tag) if failed else None)
                        used = application.gb_hours(tag)
                        rows = application.rows_read(tag) if count_rows else None
                        return replace(
                            answer, charge=charged(), used_gb_hours=used, rows_read=rows, failure_reason=failure_reason
                        )
                except (PySparkException, Py4JError, OSError) as error:
                    if is_away(str(error)) or not application.is_alive():
                        raise EngineUnavailable(f"Spark died while it worked: {root_cause(str(error))}") from error
                    raise StatementFailed(str(error)) from error

    def check(self, catalogs: Sequence[str]) -> str:
        """Query each catalog through Spark. Raises `EngineUnavailable` with Spark's message."""
        session = self.session()
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark.errors import PySparkException

        for name in catalogs:
            try:
                session.sql(f"SHOW NAMESPACES IN {quoted(name)}").collect()
            except (PySparkException, Py4JError) as error:
                raise EngineUnavailable(f"Spark cannot read catalog {name}: {first_line(error)}") from error
        return f"Spark {session.version} reads {', '.join(catalogs)}"

    def no_arrow(self) -> str | None:
        """Return why Arrow cannot rewrite on this pool, None if it can; tested once per application."""
        application = self.application()
        if application.app_id not in self._no_arrow:
            self._no_arrow = {application.app_id: environment_mismatch(application.session)}
        return self._no_arrow[application.app_id]

    def catalog_properties(self, catalog: str) -> Mapping[str, str]:
        """Return the properties of a catalog, its storage's among them, as Spark is given them."""
        prefix = f"spark.sql.catalog.{catalog}."
        return {key.removeprefix(prefix): value for key, value in self.catalog_conf.items() if key.startswith(prefix)}

    def short_of_memory(self) -> str | None:
        """Return why the pool's settings leave too little memory to Python tasks; None when they do not."""
        return None if self.remote is not None else memory_shortage(self.master, self.conf)

    def stop(self) -> None:
        """Stop the application if it runs."""
        with self._lock:
            if self._application is not None:
                self._application.stop()
                self._application = None
                self.reserved.ended()

    def _start(self) -> SparkApplication:
        conf = {**self.conf, "spark.sql.session.timeZone": "UTC"}  # by which partitions are planned
        if self.remote is not None:
            return ConnectApplication(self.name, self.remote, conf, self.catalog_conf)
        with requires_extra("spark", f"pool {self.name}", EngineUnavailable):
            import pyspark  # noqa: F401 - before a Java is looked for
        java = java_home(self.java, self.cache)
        return ClassicApplication(
            self.name, self.master, conf, self.catalog_conf, self.driver, self.packages, java, self.log
        )

    @contextmanager
    def _place(self, check: Callable[[], None]) -> Iterator[None]:
        """Hold one of the pool's job slots as a context; a job that waits for a slot can be cancelled."""
        me = threading.get_ident()
        self._waiting_since[me] = time.monotonic()
        try:
            while not self._has_taken_place(me):
                check()
        finally:
            del self._waiting_since[me]
        try:
            yield
        finally:
            with self._room:
                del self._placed[me]
                self._room.notify()

    def _has_taken_place(self, me: int) -> bool:
        """Return whether there is a slot within `look_seconds`; a job that was given up while it hung holds none."""
        most = self.max_concurrent()  # by the store: nobody waits for it to give a slot back
        with self._room:
            if not self._room.wait_for(lambda: self._occupied() < most, self.look_seconds):
                return False
            self._placed[me] = current_work()
            return True

    def _occupied(self) -> int:
        return sum(work is None or not work.abandoned for work in self._placed.values())

    def load(self) -> Mapping[str, float] | None:
        """Return the application's load: cores, active and pending tasks, the longest wait of a job, and idle GB-hours.

        Returns None while nothing runs, and where Spark does not report its tasks.
        """
        application = self._application
        tasks = application.tasks() if application is not None and application.is_alive() else None
        if tasks is None:
            return None
        waited_seconds = [time.monotonic() - since for since in list(self._waiting_since.values())]
        names = ("cores", "active_tasks", "pending_tasks")
        longest, idle = max(waited_seconds, default=0.0), self.reserved.idle_gb_hours
        return {**dict(zip(names, tasks, strict=True)), "longest_wait_seconds": longest, "idle_gb_hours": idle}


@contextmanager
def _quiet_after_failure(application: SparkApplication, tag: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        end = time.monotonic() + _SECONDS_TO_QUIET
        while not application.is_idle(tag) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        raise


def _first(rows: Sequence[Row]) -> Mapping[str, Any]:
    return rows[0].asDict() if rows else {}


def first_line(error: Exception) -> str:
    """Return the first line of an error; Py4J asks the JVM for the text, which may fail in turn."""
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - what the JVM's own error raises is any error
        lines = []
    return lines[0] if lines else f"{type(error).__name__} without a message; the log of Spark has more"
