"""A Spark application behind a Connect server (`sc://host:port`) that others operate."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from icewright.adapters.engines.failures import root_cause
from icewright.core.errors import EngineUnavailable, requires_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

_DEFAULT_PORT = 15002
_SECONDS_TO_ANSWER = 5.0
# of gRPC: a connection to which nothing comes back while a statement runs is asked for a sign of life
_CHANNEL: Mapping[str, int] = {
    "keepalive_time_ms": 310_000,  # gRPC's servers end connections that ask more often than each five minutes
    "keepalive_timeout_ms": 20_000,
    "http2.max_pings_without_data": 0,  # no limit: it is two by default
}


class ConnectApplication:
    """Sessions on a Connect server, one per job, so that cancelling one job leaves the others.

    The constructor raises `EngineUnavailable`.
    """

    def __init__(self, name: str, remote: str, conf: Mapping[str, str], catalog_conf: Mapping[str, str]) -> None:
        self._name, self._remote = name, remote
        self._conf = {**conf, **catalog_conf}
        self._of_jobs: dict[str, Any] = {}
        self._tasks: dict[str, tuple[int, int, int]] = {}  # by tag, as the server last reported them
        if not self.is_alive():  # checked first: Spark's client would retry for more than ten minutes
            raise EngineUnavailable(f"pool {name}: nothing answers at {remote}; start the Spark Connect server")
        self._session = self._opened()
        self._app_id = str(self._session.conf.get("spark.app.id"))

    @property
    def session(self) -> SparkSession:
        """Return a session for a caller without a job."""
        session: SparkSession = self._session
        return session

    @property
    def app_id(self) -> str:
        """Return the id of the Spark application behind the server."""
        return self._app_id

    def is_alive(self) -> bool:
        """Return whether something listens at the address."""
        address = urlsplit(self._remote)
        try:
            where = (address.hostname or "", address.port or _DEFAULT_PORT)
            with socket.create_connection(where, timeout=_SECONDS_TO_ANSWER):
                return True
        except (OSError, ValueError):
            return False

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[SparkSession]:
        """Open a session for a job, whose work the tag can interrupt."""
        session = self._of_jobs[tag] = self._opened()
        session.client.register_progress_handler(partial(self._progressed, tag))
        try:
            yield session
        finally:
            del self._of_jobs[tag]
            self._tasks.pop(tag, None)
            if self.is_alive():
                session.stop()

    def cancel(self, tag: str) -> None:
        """Interrupt everything in the job's session."""
        from pyspark.errors import PySparkException

        if (session := self._of_jobs.get(tag)) is not None and self.is_alive():
            with contextlib.suppress(PySparkException, UserWarning):  # a warning where warnings are errors
                session.interruptAll()

    def is_idle(self, tag: str) -> bool:  # noqa: ARG002
        """Return True: a Connect server does not report its tasks."""
        return True

    def gb_hours(self, tag: str) -> None:
        """Return None: a Connect server does not report the run time of tasks."""

    def rows_read(self, tag: str) -> None:
        """Return None: a Connect server does not report what tasks read."""

    def memory_gb(self) -> None:
        """Return None: a Connect server does not report what it reserves."""

    def driver_gb(self) -> float:
        """Return 0: a Connect server does not report what it reserves."""
        return 0.0

    def failure_reason(self, tag: str) -> str:  # noqa: ARG002
        """Return where to look: a Connect server does not report why tasks failed."""
        return "the log of the Connect server says why"

    def tasks(self) -> None:
        """Return None: a Connect server does not report its load."""

    def job_tasks(self, tag: str) -> tuple[int, int, int] | None:
        """Return the tasks of the job's running statement; None before the server has reported any."""
        return self._tasks.get(tag)

    def _progressed(
        self, tag: str, *, stages: Iterable[StageInfo], inflight_tasks: int, done: bool, **_: object
    ) -> None:
        """Note what the server reports of a statement, which is only what has changed."""
        if done:
            self._tasks.pop(tag, None)
            return
        left = sum(stage.num_tasks - stage.num_completed_tasks for stage in stages)
        self._tasks[tag] = 0, inflight_tasks, left - inflight_tasks

    def stop(self) -> None:
        """Close the sessions; the server continues."""
        if self.is_alive():
            self._session.stop()

    def _opened(self) -> Any:  # noqa: ANN401 - the remote twin of SparkSession
        with requires_extra("connect", f"pool {self._name}: Spark Connect", EngineUnavailable):
            from pyspark.sql.connect.client import DefaultChannelBuilder
            from pyspark.sql.connect.client.retries import DefaultPolicy
            from pyspark.sql.connect.session import SparkSession as RemoteSession
        from pyspark.errors import PySparkException

        try:
            channel = DefaultChannelBuilder(self._remote, [(f"grpc.{key}", value) for key, value in _CHANNEL.items()])
            session = RemoteSession.builder.channelBuilder(channel).create()
            session.client.set_retry_policies([DefaultPolicy(max_retries=3, max_backoff=2000)])
            for key, value in self._conf.items():
                session.conf.set(key, value)
        except PySparkException as error:
            raise EngineUnavailable(
                f"pool {self._name}: {self._remote} did not answer: {root_cause(str(error))}"
            ) from error
        return session
