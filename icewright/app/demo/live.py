"""The live demo: a service with its pages over the demo's lakehouse, while writers add small files."""

from __future__ import annotations

import itertools
import logging
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

from icewright.app.bootstrap import Application
from icewright.app.demo.lake import Lake
from icewright.app.environment import has_display
from icewright.app.service import running, until_asked_to_stop
from icewright.app.web.app_state import ServiceStatus
from icewright.app.web.application import Settings, create_app
from icewright.app.web.running import serving
from icewright.core.errors import ConfigError

HOST = "127.0.0.1"
_SLOTS = 2
_GRACE = timedelta(seconds=10)
_PAUSE_SECONDS = 6
_log = logging.getLogger(__name__)
_LIVE_TABLES = ("shop.products", "web.events")


@contextmanager
def pages(app: Application) -> Iterator[str]:
    """Run a service with its pages for the duration of the block; yield their address."""
    with running(app, kind="service", slots=_SLOTS, grace=_GRACE) as service, ExitStack() as stack:
        web_app = create_app(
            app,
            Settings.of(app.config),
            ServiceStatus(service.faults, service.telemetry.exposition, service.stuck_loops),
        )
        try:
            port = stack.enter_context(serving(web_app, HOST, app.config.server.port))
        except ConfigError:  # the usual port is taken
            port = stack.enter_context(serving(web_app, HOST, 0))
        yield f"http://{HOST}:{port}"


def live(app: Application, lake: Lake, console: Any) -> None:  # noqa: ANN401 - Rich's
    """Write and maintain until Ctrl-C."""
    ended = threading.Event()
    with pages(app) as address:
        console.print(
            f"[bold]Look at {address}[/]: Spark keeps writing small files, and Icewright maintains the tables."
        )
        console.print("Start, cancel and pause jobs there. Ctrl-C ends the demo.")
        writer = threading.Thread(target=_write, args=(lake, ended), name="writer", daemon=True)
        writer.start()
        if has_display():
            webbrowser.open(address)
        until_asked_to_stop()
        console.print("ending")
        ended.set()
        writer.join(_GRACE.total_seconds())


def _write(lake: Lake, ended: threading.Event) -> None:
    """Insert small files into the fed tables every few seconds."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException

    spark = lake.spark()
    for name in itertools.cycle(_LIVE_TABLES):
        table = lake.quoted(name)
        try:
            for _ in range(3):
                spark.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 20")  # noqa: S608 - quoted
        except (PySparkException, Py4JError) as error:  # a failed write is tried again later
            if not ended.is_set():
                _log.warning("the demo's writer could not write %s: %s", name, type(error).__name__)
        if ended.wait(_PAUSE_SECONDS):
            return
