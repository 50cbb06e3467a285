"""What a run adds to the sums that are kept for ever."""

from __future__ import annotations

import pytest

from icewright.core.policy import Operation
from icewright.core.runs import JobState, committed, failed
from icewright.core.tally import ENDLESS, Total, duration_class, of_job, of_run


def test_a_run_that_did_its_work() -> None:
    """It counts by catalog, operation and result; its metrics add to the sums that they belong to."""
    metrics = {"orphans_found": 9, "orphans_removed": 3, "files_failed": 1, "bytes_deleted": 300, "gb_hours": 0.5}
    assert of_run("lake", committed(Operation.REMOVE_ORPHANS, "", metrics), 2.5) == {
        Total("runs", "lake", "remove_orphans", "committed"): 1,
        Total("run_seconds", "", "remove_orphans"): 2.5,
        Total("runs_by_seconds", "", "remove_orphans", "3.0"): 1,
        Total("files_deleted", "lake", "remove_orphans"): 3,
        Total("bytes_deleted", "lake", "remove_orphans"): 300,
        Total("gb_hours", "lake", "remove_orphans"): 0.5,
    }


def test_a_run_that_failed() -> None:
    """It counts, and adds nothing else."""
    added = of_run("lake", failed(Operation.COMPACT, "no space"), 0.0)
    assert {total.name for total in added} == {"runs", "run_seconds", "runs_by_seconds"}
    assert added[Total("runs", "lake", "compact", "failed")] == 1


def test_a_job() -> None:
    """A job is counted by how it ended."""
    assert of_job(JobState.INTERRUPTED) == {Total("jobs", label="interrupted"): 1}


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, "0.1"), (0.1, "0.1"), (0.11, "0.3"), (3600.0, "3600.0"), (3601.0, ENDLESS)]
)
def test_classes_of_durations(seconds: float, bound: str) -> None:
    """A class holds what is at most its bound."""
    assert duration_class(seconds) == bound


@pytest.mark.cases(135)
@pytest.mark.parametrize(
    ("took", "predicted", "result"),
    [
        (1.0, 2.0, "near"),
        (4.0, 2.0, "near"),
        (0.9, 2.0, "far"),
        (4.1, 2.0, "far"),
        (0.00001, 0.00008, "small"),
        (0.00001, 0.00009, "far"),
        (0.00009, 0.00001, "far"),
        (0.0, 2.0, None),
        (1.0, 0.0, None),
    ],
)
def test_predictions_count_as_near_or_far(took: float, predicted: float, result: str | None) -> None:
    """Within twice or half is near; what took under a second of the service is small; unknown costs tell nothing."""
    run = committed(Operation.COMPACT, "", {"gb_hours": took, "gb_hours_predicted": predicted})
    found = {total.label for total in of_run("lake", run, 1.0) if total.name == "predictions"}
    assert found == ({result} if result else set())
