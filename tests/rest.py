"""Apache's REST fixture for tests: one JVM a session, a catalog of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from icewright.adapters.engines.spark.java import java_home
from icewright.app.environment import user_cache
from tests.servers.rest_server import RestHost, rest_host

CACHE = user_cache()  # kept between runs, as PySpark's own jars are


@contextmanager
def fixture() -> Iterator[RestHost]:
    """The JVM; `serve` starts a catalog."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with rest_host(java_home(os.environ.get("JAVA_HOME"), CACHE), CACHE / "rest") as host:
        yield host
