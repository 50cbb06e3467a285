"""Spark in a process of its own, started as the product starts it: `python -m benchmarks.kit.spark HOME`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kit.child import Answer, serve
from benchmarks.kit.jvm import Jvm
from benchmarks.kit.lake import Lake
from benchmarks.kit.upserts import Upserts, append
from icewright.adapters.engines.spark.pool import SparkPool


class Spark:
    """Runs statements."""

    def __init__(self, home: Path) -> None:
        self.lake = Lake(home)
        catalog = self.lake.catalog
        self.pool = SparkPool(
            name="benchmark",
            master="local[2]",
            conf={"spark.driver.memory": "6g", "spark.sql.warehouse.dir": str(home / "spark-warehouse")},
            catalog_conf=catalog.spark_conf(),
            packages=catalog.spark_packages(),
            java=os.environ.get("JAVA_HOME"),
            cache=home / "spark",
            log=home / "spark" / "spark.log",
        )
        self.session = self.pool.session()
        self.jvm = Jvm(self.session)

    def sql(self, statement: str) -> Answer:
        """Run a statement; its rows as lists."""
        return self.each([statement])

    def each(self, statements: Sequence[str]) -> Answer:
        """Run statements one after another; the rows of the last."""
        with self.jvm.measured() as found:
            rows = [self.session.sql(statement).collect() for statement in statements][-1]
        return found.answer(rows=[list(row) for row in rows])

    def upserts(self, table: str, **numbers: int) -> Answer:
        """Add commits of `Upserts` to a table."""
        Upserts(self.lake.folder(table), **numbers).commit(self.session, f"lake.bench.{table}")
        return {}

    def append(self, table: str, paths: Sequence[str]) -> Answer:
        """Add data files to an unpartitioned table, in one commit."""
        append(self.session, f"lake.bench.{table}", paths)
        return {}


if __name__ == "__main__":
    spark = Spark(Path(sys.argv[1]))
    try:
        serve({"sql": spark.sql, "each": spark.each, "upserts": spark.upserts, "append": spark.append})
    finally:
        spark.pool.stop()
