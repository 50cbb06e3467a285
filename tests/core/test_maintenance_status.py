"""The vocabulary of S3 Tables, case by case."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from icewright.core.describe import maintenance_status, table_status
from icewright.core.policy import Operation
from icewright.core.runs import LastRun, OperationState

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "reason", "enabled", "said"),
    [
        (None, "", True, ("Not_Yet_Run", None, "")),
        (None, "", False, ("Disabled", None, "")),
        (OperationState.COMMITTED, "", True, ("Successful", AT, "")),
        (OperationState.SKIPPED, "no snapshots to expire", True, ("Successful", AT, "")),
        (OperationState.FAILED, "x", True, ("Failed", AT, "x")),
        (OperationState.FAILED, "", True, ("Failed", AT, "failed")),
        (OperationState.DEFERRED, "busy", True, ("Failed", AT, "busy")),
        (OperationState.SKIPPED, "refused: t [shared_location]", True, ("Failed", AT, "refused: t [shared_location]")),
        (OperationState.COMMITTED, "", False, ("Disabled", AT, "")),
        (OperationState.FAILED, "x", False, ("Disabled", AT, "")),
    ],
)
def test_each_case(state: OperationState | None, reason: str, enabled: bool, said: tuple[Any, ...]) -> None:
    """By the last run and whether the operation is enabled; beside it stands the state that the job has."""
    last = None if state is None else LastRun(Operation.COMPACT, AT, state, reason=reason)
    found = maintenance_status(last, enabled=enabled)
    assert (found.status, found.last_run, found.message) == said
    assert found.state == state


def test_a_whole_table() -> None:
    """A table that hardly anybody ran has a status for each operation."""
    enabled = {op: op is not Operation.EXPIRE_ROWS for op in Operation}
    last = LastRun(Operation.REMOVE_ORPHANS, AT, OperationState.COMMITTED)
    found = table_status({last.operation: last}, enabled)
    assert {op: str(said.status) for op, said in found.items()} == {
        Operation.EXPIRE_ROWS: "Disabled",
        Operation.COMPACT: "Not_Yet_Run",
        Operation.REWRITE_DELETES: "Not_Yet_Run",
        Operation.REWRITE_MANIFESTS: "Not_Yet_Run",
        Operation.COMPUTE_STATISTICS: "Not_Yet_Run",
        Operation.RECOVERY_POINTS: "Not_Yet_Run",
        Operation.EXPIRE_SNAPSHOTS: "Not_Yet_Run",
        Operation.REMOVE_ORPHANS: "Successful",
        Operation.CHECK: "Not_Yet_Run",
    }
