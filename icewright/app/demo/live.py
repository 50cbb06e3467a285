"""The demo alive: a service with its pages over the demo's lakehouse, while writers go on."""

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
_FED = ("shop.products", "web.events")


@contextmanager
def pages(app: Application) -> Iterator[str]:
    """A service and its pages while the block runs; yields their address."""
    with running(app, kind="service", slots=_SLOTS, grace=_GRACE) as service, ExitStack() as stack:
        made = create_app(app, Settings.of(app.config), ServiceStatus(service.faults, service.telemetry.exposition))
        try:
            port = stack.enter_context(serving(made, HOST, app.config.server.port))
        except ConfigError:  # the usual port is somebody else's
            port = stack.enter_context(serving(made, HOST, 0))
        yield f"http://{HOST}:{port}"


def live(app: Application, lake: Lake, console: Any) -> None:  # noqa: ANN401 - Rich's
    """Writers go on, and so does Icewright, until somebody presses Ctrl-C."""
    ended = threading.Event()
    with pages(app) as address:
        console.print(f"[bold]Look at {address}[/]: Spark goes on writing small files, Icewright follows.")
        console.print("Start, cancel and pause what you like. Ctrl-C ends it.")
        writer = threading.Thread(target=_write, args=(lake, ended), name="writer", daemon=True)
        writer.start()
        if has_display():
            webbrowser.open(address)
        until_asked_to_stop()
        console.print("ending")
        ended.set()
        writer.join(_GRACE.total_seconds())


def _write(lake: Lake, ended: threading.Event) -> None:
    """Small files, every few seconds."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with PySpark
    from pyspark.errors import PySparkException

    spark = lake.spark()
    for name in itertools.cycle(_FED):
        table = lake.quoted(name)
        try:
            for _ in range(3):
                spark.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 20")  # noqa: S608 - quoted
        except (PySparkException, Py4JError) as error:  # a writer that fails goes on later, as others do
            if not ended.is_set():
                _log.warning("the demo's writer could not write %s: %s", name, type(error).__name__)
        if ended.wait(_PAUSE_SECONDS):
            return
