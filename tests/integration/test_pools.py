"""One Spark application and many jobs: stopped, killed, without room, and side by side."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icewright.adapters.engines.arrow import executors
from icewright.adapters.engines.spark.pool import SparkPool, StepResult
from icewright.core.capacity import Limits
from icewright.core.errors import Cancelled, EngineUnavailable
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.steps import Kernel
from icewright.flow.cycle import run_cycle
from icewright.flow.limits import CurrentLimits
from icewright.flow.runtime import Scope
from icewright.testing import FixedClock
from tests.integration.bench import Bench, Reading, paths
from tests.integration.disks import full_disk
from tests.integration.working import (
    KNOBS,
    ROWS,
    SECONDS_TO_FINISH,
    Running,
    make,
    make_fast,
    make_slow,
    running,
    settled,
)
from tests.nightly import nightly
from tests.waiting import until

pytestmark = pytest.mark.spark

SECONDS_TO_STOP = 30  # on a busy machine


@pytest.fixture(scope="module", params=[Kernel.ARROW, nightly(Kernel.SPARK)])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Each in turn."""
    found: Kernel = request.param
    return found


@pytest.fixture
def knobs(kernel: Kernel) -> Mapping[str, object]:
    """By which the kernel compacts."""
    return {**KNOBS, "compact.engine": kernel.value}


@pytest.fixture(scope="module")
def made(bench: Bench, kernel: Kernel) -> str:
    """A table whose last partition takes long to compact."""
    name = f"test.slow_{kernel}"
    make_slow(bench, name, *ROWS[kernel])
    return name


@pytest.fixture
def slow(bench: Bench, made: str) -> Iterator[str]:
    """The same as it was made, for each test."""
    with bench.aside(made):
        yield made


def jvm(pool: SparkPool) -> int:
    """The process of the pool's application."""
    gateway = pool.application()._gateway  # type: ignore[attr-defined]
    pid: int = gateway.proc.pid
    return pid


def kept_what_it_had_done(job: Running, before: Reading) -> None:
    """Rows are as before, the two small partitions are compacted and told, and what was written in vain is listed."""
    bench, name = job.bench, job.name
    result = job.result.result(SECONDS_TO_STOP)
    assert bench.read(name) == before
    (outcome,) = result.outcomes
    assert (outcome.metrics["files_merged"], outcome.metrics["files_written"]) == (4, 2)
    assert outcome.metrics["bins"] == 2
    assert "compacted 4 files into 2" in result.summary
    live = paths(path for content, path in bench.live(name) if content == 0)
    assert all(Path(path).is_file() for path in live)
    left = bench.runtime.store.ledger.files(job.job_id)
    assert {row["state"] for row in left} <= {"left"}
    assert live.isdisjoint(paths(row["path"] for row in left))
    ours = live | paths(f.path for f in outcome.files) | paths(row["path"] for row in left)
    until(lambda: not data_files(bench, name) - ours, "the end of the tasks, which remove what they were writing")


def data_files(bench: Bench, name: str) -> frozenset[str]:
    """The data files on the disk, live or not."""
    return paths(path for path in bench.files(name) if path.endswith(".parquet"))


def test_a_cancelled_compaction_stops_alone(
    bench: Bench, slow: str, knobs: Mapping[str, object], new_name: Callable[[str], str], spark_pool: SparkPool
) -> None:
    """What it runs ends at once, the commits that it had made stay, and another job of the pool ends in peace."""
    other = new_name("other")
    make_slow(bench, other, 6_000)
    before, of_other = bench.read(slow), bench.read(other)
    with running(bench, slow, knobs) as job:
        job.wait_for_commits(2)
        with running(bench, other, {**KNOBS, "compact.engine": "spark"}) as untouched:
            job.cancel()
            kept_what_it_had_done(job, before)
            assert untouched.result.result(SECONDS_TO_FINISH).state is JobState.SUCCEEDED
    assert settled(bench, job.job_id) is job.result.result().state is JobState.CANCELLED
    assert "it was asked to stop" in job.result.result().summary
    assert bench.read(other) == of_other
    assert len(bench.live(other)) == 1


def test_workers_come_from_a_daemon_that_has_what_tasks_import(spark_pool: SparkPool) -> None:
    """Spark lets idle workers end: the next one loads nothing anew."""

    def began_as(_: Iterable[int]) -> Iterable[object]:
        return [vars(sys.modules["__main__"])["__spec__"].name]

    began = spark_pool.session().sparkContext.parallelize([1], 1).mapPartitions(began_as).collect()
    assert began == ["icewright.adapters.engines.arrow.daemon"]


@pytest.mark.cases(126)
def test_processes_of_tasks_that_die_are_told_apart(spark_pool: SparkPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed while executors are asked for their Python makes them no executors without Python."""

    def fatal_query() -> Callable[[Iterable[int]], Iterable[dict[str, str]]]:
        def die(numbers: Iterable[int]) -> Iterable[dict[str, str]]:
            for _ in numbers:
                os.kill(os.getpid(), signal.SIGKILL)
            return [{}]

        return die

    session = spark_pool.session()
    with monkeypatch.context() as patch:
        patch.setattr(executors, "_version_query", fatal_query)
        with pytest.raises(EngineUnavailable, match=r"could not be asked .*spark\.executor\.memoryOverhead"):
            executors.environment_mismatch(session)
    with monkeypatch.context() as patch:
        patch.setattr(session.sparkContext, "pythonExec", "/nowhere/python")
        assert "No such file" in (executors.environment_mismatch(session) or "")
    assert executors.environment_mismatch(session) is None


@pytest.mark.cases(154)
def test_no_secret_of_a_pool_is_on_a_command_line(spark_pool: SparkPool) -> None:
    """Hadoop has it, and neither the arguments of the JVM nor a file that stays."""
    context = spark_pool.session().sparkContext
    assert context._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == r"hu\sh ü=:#!"
    arguments = Path(f"/proc/{jvm(spark_pool)}/cmdline").read_text(encoding="utf-8").split("\0")
    assert "--properties-file" in arguments
    assert not [argument for argument in arguments if "sh ü" in argument or "--conf" in argument]
    assert not Path(arguments[arguments.index("--properties-file") + 1]).exists()


def test_what_was_cancelled_writes_no_more(spark_pool: SparkPool, tmp_path: Path) -> None:
    """Once its end is told its tasks are at theirs, so that what they leave can be listed."""
    held = tmp_path / "held"

    def hold(rows: Iterable[int]) -> Iterable[int]:
        with held.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(300)
        return rows

    def check() -> None:
        if held.exists():
            raise Cancelled("enough")

    def work(session: SparkSession) -> StepResult:
        return StepResult(({"rows": session.sparkContext.parallelize([1], 1).mapPartitions(hold).count()},))

    with pytest.raises(Cancelled):
        spark_pool.run(work, "held", check)

    def let_go() -> bool:
        with held.open() as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    until(let_go, "the end of the task's process", 2)


def test_a_compaction_that_takes_too_long_is_stopped(bench: Bench, slow: str, knobs: Mapping[str, object]) -> None:
    """After execute.timeout_seconds it ends as if cancelled, and says why."""
    before, clock = bench.read(slow), FixedClock(datetime.now(UTC))
    with running(bench, slow, knobs, runtime=replace(bench.runtime, clock=clock)) as job:
        job.wait_for_commits(2)
        clock.advance(seconds=3601)
        kept_what_it_had_done(job, before)
    assert settled(bench, job.job_id) is JobState.CANCELLED
    assert "execute.timeout_seconds (3600)" in job.result.result().summary


def test_spark_is_killed_in_the_middle_of_a_rewrite(
    bench: Bench, slow: str, knobs: Mapping[str, object], spark_pool: SparkPool
) -> None:
    """What was committed stays and is told, what was not is in the ledger, and another job compacts the rest."""
    before, first = bench.read(slow), jvm(spark_pool)
    with running(bench, slow, {**knobs, "execute.retry_limit": 0}) as job:
        job.wait_for_commits(2)
        until(lambda: len(data_files(bench, slow)) == 9, "the first bytes of the last partition")
        os.kill(first, signal.SIGKILL)
        result = job.result.result(SECONDS_TO_STOP)
    assert result.state is settled(bench, job.job_id) is JobState.PARTIAL
    assert f"{bench.ref(slow)}: Spark died" in result.summary
    kept_what_it_had_done(job, before)
    assert jvm(spark_pool) != first
    make_fast(bench, slow)
    assert bench.run(slow, Operation.COMPACT, knobs).metrics["files_merged"] == 2
    assert len(bench.live(slow)) == 3
    assert bench.read(slow) == before
    left = {row["path"] for row in bench.runtime.store.ledger.files(job.job_id) if row["path"].endswith(".parquet")}
    assert len(left) == 1


def test_spark_is_killed_and_the_job_tries_again(
    bench: Bench, slow: str, knobs: Mapping[str, object], spark_pool: SparkPool
) -> None:
    """The second attempt runs in a new JVM and rewrites what the first had not; the job tells of both."""
    before, first = bench.read(slow), jvm(spark_pool)
    with running(bench, slow, knobs) as job:
        job.wait_for_commits(2)
        make_fast(bench, slow)
        os.kill(first, signal.SIGKILL)
        result = job.result.result(SECONDS_TO_FINISH)
    (outcome,) = result.outcomes
    assert result.state is JobState.SUCCEEDED, result
    assert (outcome.state, outcome.metrics["files_merged"]) == (OperationState.COMMITTED, 6)
    assert {change.partition for change in outcome.partitions} == {"part=0", "part=1", "part=2"}
    assert jvm(spark_pool) != first
    assert bench.read(slow) == before
    assert len(bench.live(slow)) == 3


@pytest.mark.nightly
def test_spark_is_killed_between_two_jobs(bench: Bench, new_name: Callable[[str], str], spark_pool: SparkPool) -> None:
    """The next job starts it anew and does not notice."""
    name = new_name("between")
    make(bench, name, 10)
    before, first = bench.read(name), jvm(spark_pool)
    os.kill(first, signal.SIGKILL)
    assert bench.run(name, Operation.COMPACT, KNOBS).state is OperationState.COMMITTED
    assert jvm(spark_pool) != first
    assert bench.read(name) == before


@pytest.mark.parametrize("partial", [True, False], ids=["by groups", "at once"])
def test_the_disk_is_full(partial: bool, bench: Bench, new_name: Callable[[str], str], spark_pool: SparkPool) -> None:
    """The compaction fails and names its table, nothing live is gone, and with more room the same one succeeds."""
    name = new_name("full")
    folder = bench.lake.folder(name)
    knobs = {**KNOBS, "compact.partial_progress": partial}
    with full_disk(folder, jvm(spark_pool)) as disk:
        make(bench, name, 20_000)
        before, live = bench.read(name), bench.live(name)
        disk.fill()
        outcome = bench.run(name, Operation.COMPACT, knobs)
        assert outcome.state is OperationState.FAILED, outcome
        assert str(bench.ref(name)) in outcome.reason
        assert disk.message in outcome.reason
        assert bench.live(name) == live
        assert bench.read(name) == before
        disk.free()
        done = bench.run(name, Operation.COMPACT, knobs)
        assert done.state is OperationState.COMMITTED, done
        assert len(bench.live(name)) == 1
        assert bench.read(name) == before
        bench.lake.catalog.drop_table(name)


@pytest.mark.parametrize("partial", [True, False], ids=["by groups", "at once"])
def test_many_tables_at_once(
    partial: bool, bench: Bench, new_name: Callable[[str], str], spark_pool: SparkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass compacts six tables, three at a time; the one that lost a data file fails alone and says which file."""
    stem = "groups" if partial else "whole"
    names = [new_name(f"many_{stem}") for _ in range(6)]
    for name in names:
        make(bench, name, 20)
    before = {name: bench.read(name) for name in names[1:]}
    lost = min(path for _, path in bench.live(names[0]))
    Path(lost.removeprefix("file://")).unlink()
    monkeypatch.setattr(spark_pool, "max_concurrent", lambda: 3)
    runtime = replace(
        bench.with_knobs({**KNOBS, "compact.partial_progress": partial}),
        scopes={"lake": Scope(enabled=True, tables=f"many_{stem}_*")},
        limits=CurrentLimits(Limits(total=3, per_operation={Operation.COMPACT: 3}, per_worker=3)),
    )
    result = run_cycle(runtime, ["lake"])
    outcomes = {job.ref: next(o for o in job.outcomes if o.operation is Operation.COMPACT) for job in result.jobs}
    ended = dict.fromkeys(map(bench.ref, names[1:]), OperationState.COMMITTED)
    ended[bench.ref(names[0])] = OperationState.FAILED
    assert {ref: outcome.state for ref, outcome in outcomes.items()} == ended, result.jobs
    failed = outcomes[bench.ref(names[0])]
    assert str(bench.ref(names[0])) in failed.reason
    assert Path(lost).name in failed.reason
    for name in names[1:]:
        assert len(bench.live(name)) == 1
        assert bench.read(name) == before[name]


def test_the_user_interface_of_spark_names_the_job(spark_pool: SparkPool) -> None:
    """Spark jobs are described by the job's id while it runs, and no longer."""
    with spark_pool.application().tagged("20261126-001234-0a1b2c3d-1") as session:
        described = session.sparkContext.getLocalProperty
        assert described("spark.job.description") == "Icewright 20261126-001234-0a1b2c3d-1"
    assert described("spark.job.description") is None
