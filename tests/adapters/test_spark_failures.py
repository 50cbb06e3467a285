"""Whose fault an error of Spark is: that of the table at work, or of the pool that everybody shares."""

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
>"""  # as the client of Connect says it


@pytest.mark.cases(113)
@pytest.mark.parametrize(
    ("message", "error", "told"),
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
    ids=["away", "began anew", "stopped", "of the statement"],
)
def test_a_server_that_goes_behind_an_address_that_answers(
    tmp_path: Path, message: str, error: type[Exception], told: str
) -> None:
    """A load balancer accepts connections all the same; the pool is at fault, and no table."""
    pool = SparkPool("far", "", {}, {}, (), None, tmp_path, tmp_path / "log", remote="sc://balancer:15002")
    pool._application = MagicMock()  # which answers that it lives

    def work(_session: object) -> StepResult:
        raise PySparkException(message)

    with pytest.raises(error, match=told):
        pool.run(work, "job", lambda: None)


def test_a_job_that_was_given_up_holds_no_slot(tmp_path: Path) -> None:
    """Its thread hangs in a server that never answers; the next job waits until then, and begins."""
    pool = SparkPool("far", "", {}, {}, (), None, tmp_path, tmp_path / "log", 1, remote="sc://x", look_seconds=0.01)
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


def test_a_server_that_is_away_is_no_server_without_python() -> None:
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
def test_validations_that_are_no_conflicts(cause: str, error: type[Exception]) -> None:
    """Iceberg calls them alike; what it cannot read of a spec will not go by being tried again, and is told."""
    found = statement_failure("lake.db.t", f"{_CALL}{cause}\n\tat org.apache.iceberg.PartitionSpec.check\n")
    assert type(found) is error
    assert f"org.apache.iceberg.exceptions.ValidationException: {cause}" in str(found)
