"""The owner of an error of Spark: the table that the job works on, or the pool that all tables share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkException

from icewright.adapters.engines.arrow.executors import environment_mismatch
from icewright.adapters.engines.failures import ProcedureFailed, statement_failure
from icewright.adapters.engines.spark.pool import SparkPool, StatementFailed, StepResult
from icewright.core.errors import CommitConflict, EngineUnavailable
from icewright.ports.work import SupervisedWork
from tests.waiting import until

UNAVAILABLE = """\
<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:43765: Socket closed"
\tdebug_error_string = "UNAVAILABLE:failed to connect"
>"""  # a message of the Connect client


@pytest.mark.cases(113)
@pytest.mark.parametrize(
    ("message", "error", "reason"),
    [
        (UNAVAILABLE, EngineUnavailable, "Spark died while it worked: failed to connect to all addresses; last error"),
        (
            "[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted.",
            EngineUnavailable,
            "restarted",
        ),
        ("Job 3 cancelled because SparkContext was shut down", EngineUnavailable, "SparkContext was shut down"),
        ("[DIVIDE_BY_ZERO] Division by zero.", StatementFailed, "DIVIDE_BY_ZERO"),
    ],
    ids=["unreachable", "restarted", "stopped", "statement failed"],
)
def test_a_server_that_dies_behind_a_load_balancer_is_the_pools_fault(
    tmp_path: Path, message: str, error: type[Exception], reason: str
) -> None:
    """The load balancer still accepts connections, so that the pool seems alive."""
    pool = SparkPool("far", "", {}, {}, (), None, tmp_path, tmp_path / "log", remote="sc://balancer:15002")
    pool._application = MagicMock()  # which answers that it lives

    def work(_session: object) -> StepResult:
        raise PySparkException(message)

    with pytest.raises(error, match=reason):
        pool.run(work, "job", lambda: None)


def test_a_job_that_was_given_up_holds_no_slot(tmp_path: Path) -> None:
    """Its thread hangs in a server that never answers; the next job begins as soon as it is given up."""
    pool = SparkPool(
        "far", "", {}, {}, (), None, tmp_path, tmp_path / "log", lambda: 1, remote="sc://x", look_seconds=0.01
    )
    pool._application = MagicMock()
    hung, answer, waits = SupervisedWork("hangs"), threading.Event(), threading.Event()

    def hang(_session: object) -> StepResult:
        answer.wait()
        return StepResult(())

    def run_hung() -> None:
        with hung.attached():
            pool.run(hang, "hangs", lambda: None)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(run_hung)
        try:
            until(lambda: pool._placed)
            second = threads.submit(pool.run, lambda _session: StepResult(()), "next", waits.set)
            assert waits.wait(60)
            assert not second.done()
            hung.abandon()
            second.result(60)
        finally:
            answer.set()
        first.result(60)
    assert not pool._placed


def test_an_unreachable_server_is_not_taken_for_one_without_python() -> None:
    """The answer would be remembered, and compaction left to Spark for as long as the application lives."""
    session = MagicMock()
    session.sparkContext.parallelize.side_effect = PySparkException(UNAVAILABLE)
    with pytest.raises(EngineUnavailable, match="could not be asked"):
        environment_mismatch(session)


_CALL = "An error occurred while calling o64.sql.\n: org.apache.iceberg.exceptions.ValidationException: "


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("Found conflicting files that can contain records matching true: [a]", CommitConflict),
        ("Cannot partition by non-primitive source field: struct<1002: column_size: optional long>", ProcedureFailed),
        ("Cannot find source column for partition field: 1001: s_trunc: truncate[2](3)", ProcedureFailed),
    ],
)
def test_only_validations_of_concurrent_changes_are_conflicts(cause: str, error: type[Exception]) -> None:
    """Iceberg raises one exception for both; a spec that it cannot handle fails, as trying again does not help."""
    found = statement_failure("lake.db.t", f"{_CALL}{cause}\n\tat org.apache.iceberg.PartitionSpec.check\n")
    assert type(found) is error
    assert f"org.apache.iceberg.exceptions.ValidationException: {cause}" in str(found)
