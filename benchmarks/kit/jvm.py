"""The JVM behind a Spark session, measured together with the process that drives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.kit.child import Measured, measured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jvm:
    """A JVM that has run its first statement: what follows finds it warm."""

    def __init__(self, session: SparkSession) -> None:
        session.sql("SELECT 1").collect()
        jvm: Any = session._jvm  # noqa: SLF001 - PySpark has no other way to it
        self._java = jvm.java.lang
        self._pid = int(self._java.ProcessHandle.current().pid())

    @contextmanager
    def measured(self) -> Iterator[Measured]:
        """Measure the block."""
        self._java.System.gc()  # what earlier statements left is not this one's memory
        with measured([self._pid]) as found:
            yield found
