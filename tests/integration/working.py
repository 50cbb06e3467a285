"""Compactions that are under way while a test does something to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, LongType, NestedField, StringType

from icewright.adapters.engines.spark.pool import SparkPool
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.steps import Kernel
from icewright.flow.detect import detect
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from tests.integration.bench import Bench
from tests.waiting import until

# rows of the partitions: two are compacted at once, the last takes each kernel long
ROWS: Mapping[Kernel, tuple[int, ...]] = {Kernel.SPARK: (40, 40, 10_000), Kernel.ARROW: (40, 40, 60_000)}
SECONDS_TO_FINISH = 180  # of a job that takes ten, on a busy machine
KNOBS: Mapping[str, object] = {
    "compact.min_input_files": 2,
    "compact.hot_partitions": "include",
    "compact.partial_progress_from_mb": 0,  # a commit for each partition
}
_COLUMNS: tuple[tuple[str, IcebergType], ...] = (("id", LongType()), ("text", StringType()), ("part", LongType()))
_SLOW = {
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "22",
    "write.parquet.row-group-size-bytes": "262144",  # so that a task that was killed soon notices
    "write.parquet.row-group-check-min-record-count": "100",
}


def make(bench: Bench, name: str, *rows: int) -> None:
    """Make a table of a partition for each number of rows, in two files each, without Spark."""
    bench.lake.identifier(name)
    schema = Schema(*(NestedField(number, *column) for number, column in enumerate(_COLUMNS, 1)))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "part"))
    properties = {"format-version": "2", "write.parquet.compression-codec": "uncompressed"}
    place = f"file://{bench.lake.folder(name)}"
    table = bench.lake.catalog.create_table(name, schema, place, spec, properties=properties)
    text = bench.lake.random(name)
    for half in range(2):
        ids = [(id_, part) for part, count in enumerate(rows) for id_ in range(half, count, 2)]
        columns = [[id_ for id_, _ in ids], [text.randbytes(128).hex() for _ in ids], [part for _, part in ids]]
        table.append(pa.table(columns, schema=table.schema().as_arrow()))


def make_slow(bench: Bench, name: str, *rows: int) -> None:
    """The same, and whoever rewrites it has to compress it as thoroughly as can be."""
    make(bench, name, *rows)
    with bench.lake.catalog.load_table(name).transaction() as change:
        change.set_properties(_SLOW)


def on_pool(bench: Bench, pool: SparkPool) -> Bench:
    """The bench with another pool."""
    engines = bench.app.engines
    engine = replace(engines, spark=replace(engines.spark, pools={"lake": pool}))
    return replace(bench, runtime=replace(bench.runtime, engine=engine))


def make_fast(bench: Bench, name: str) -> None:
    """From now on it is rewritten fast."""
    with bench.lake.catalog.load_table(name).transaction() as change:
        change.set_properties({"write.parquet.compression-codec": "uncompressed"})


@dataclass(frozen=True)
class Running:
    """A compaction in a thread of its own."""

    bench: Bench
    name: str
    job_id: str
    result: Future[JobResult]

    def commits(self) -> int:
        """How often it has committed up to now."""
        return sum(s.operation == "replace" for s in self.bench.metadata(self.name).snapshots)

    def wait_for_commits(self, count: int = 1) -> None:
        """Until it has committed so often."""
        until(lambda: self.result.done() or self.commits() >= count, f"{count} commits of {self.name}")
        assert not self.result.done(), self.result.result()

    def cancel(self) -> None:
        """Ask it to stop."""
        assert self.bench.runtime.store.jobs.request_cancel(self.job_id, self.bench.runtime.clock.now())


@contextmanager
def running(
    bench: Bench, name: str, knobs: Mapping[str, object] = KNOBS, *, runtime: Runtime | None = None
) -> Iterator[Running]:
    """A compaction by hand that has begun; at the end of the block it is cancelled, if it still runs."""
    ref = bench.ref(name)
    runtime = replace(runtime or bench.runtime, policy=bench.with_knobs(knobs).policy)
    detect(runtime, ["lake"])
    with ThreadPoolExecutor(1) as threads:
        request = Request(ref, (Operation.COMPACT,), manual=True)
        known = {job.job_id for job in runtime.store.jobs.list(ref)}
        result = threads.submit(execute, runtime, request)

        def begun() -> str | None:
            fresh = (job.job_id for job in runtime.store.jobs.list(ref) if job.job_id not in known)
            return next(fresh, None) or ("none" if result.done() else None)

        job_id = until(begun, f"a job of {name}")
        try:
            yield Running(bench, name, job_id, result)
        finally:
            runtime.store.jobs.request_cancel(job_id, runtime.clock.now())


def settled(bench: Bench, job_id: str) -> JobState:
    """What the store says of a job."""
    job = bench.runtime.store.jobs.get(job_id)
    assert job is not None
    return job.state
