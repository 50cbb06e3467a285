"""Spark in a process of its own, started as the product starts it: `python -m benchmarks.kit.spark HOME`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.kit.child import Answer, measured, serve
from benchmarks.kit.lake import Lake
from icewright.adapters.catalogs.translate import spark_conf, spark_packages
from icewright.adapters.engines.spark.pool import SparkPool


class Spark:
    """Runs statements."""

    def __init__(self, home: Path) -> None:
        catalog = Lake(home).catalog
        self.pool = SparkPool(
            name="benchmark",
            master="local[2]",
            conf={"spark.driver.memory": "6g", "spark.sql.warehouse.dir": str(home / "spark-warehouse")},
            catalog_conf=spark_conf(catalog),
            packages=spark_packages(catalog),
            java=os.environ.get("JAVA_HOME"),
            cache=home / "spark",
            log=home / "spark" / "spark.log",
        )
        self.session = self.pool.session()
        self.session.sql("SELECT 1").collect()
        jvm: Any = self.session._jvm  # noqa: SLF001 - PySpark has no other way to it
        self.java = jvm.java.lang
        self.pid = int(self.java.ProcessHandle.current().pid())

    def sql(self, statement: str) -> Answer:
        """Run a statement; its rows as lists."""
        self.java.System.gc()  # what earlier statements left is not this one's memory
        with measured([self.pid]) as found:
            rows = self.session.sql(statement).collect()
        return found.answer(rows=[list(row) for row in rows])


if __name__ == "__main__":
    spark = Spark(Path(sys.argv[1]))
    try:
        serve({"sql": spark.sql})
    finally:
        spark.pool.stop()
