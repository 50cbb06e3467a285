"""What jobs come to: states, summaries, and how long to wait before the next attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest

from icewright.core.policy import Operation
from icewright.core.runs import (
    TRANSITIONS,
    FileAction,
    JobState,
    OperationState,
    Outcome,
    backoff,
    committed,
    deferred,
    failed,
    job_state,
    job_summary,
    skipped,
)

COMPACT, EXPIRE, ORPHANS = Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS
C, S, F, D = OperationState.COMMITTED, OperationState.SKIPPED, OperationState.FAILED, OperationState.DEFERRED


def test_every_state_has_its_transitions() -> None:
    """The table names every state, and leads only to states that it names."""
    assert set(TRANSITIONS) == set(JobState)
    assert set().union(*TRANSITIONS.values()) <= set(JobState)


@pytest.mark.parametrize(
    "state", [s for s in JobState if s not in {JobState.QUEUED, JobState.RUNNING}], ids=lambda s: s.value
)
def test_an_ended_job_stays_ended(state: JobState) -> None:
    """From running a job may come to every end, and from an end to nothing else."""
    assert state in TRANSITIONS[JobState.RUNNING]
    assert not TRANSITIONS[state]


def test_a_job_is_claimed_once() -> None:
    """A queued job starts or is cancelled; a running one never starts again and is never queued again."""
    assert TRANSITIONS[JobState.QUEUED] == {JobState.RUNNING, JobState.CANCELLED}
    assert not TRANSITIONS[JobState.RUNNING] & {JobState.RUNNING, JobState.QUEUED}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((), JobState.SKIPPED),
        ((S,), JobState.SKIPPED),
        ((D,), JobState.SKIPPED),
        ((S, D), JobState.SKIPPED),
        ((C,), JobState.SUCCEEDED),
        ((C, S), JobState.SUCCEEDED),
        ((S, C, C), JobState.SUCCEEDED),
        ((F,), JobState.FAILED),
        ((F, F), JobState.FAILED),
        ((F, C), JobState.PARTIAL),
        ((C, F, S), JobState.PARTIAL),
        ((F, S), JobState.PARTIAL),
        ((F, D), JobState.PARTIAL),
        ((C, D), JobState.PARTIAL),
        ((C, D, S, F), JobState.PARTIAL),
    ],
)
@pytest.mark.cases(90, 93)
def test_job_state(states: tuple[OperationState, ...], expected: JobState) -> None:
    """All failed is failed, some failed or deferred beside work done is partial, nothing done is skipped."""
    assert job_state(tuple(Outcome(COMPACT, state) for state in states)) is expected


def test_summary() -> None:
    """Summaries are joined by `; ` in the order in which the operations ran, each under its name."""
    outcomes = (
        committed(COMPACT, "compacted 15 files into 3 in 3 groups", {}),
        committed(EXPIRE, "expired 2 snapshots, deleted 8 unreferenced files", {}),
        skipped(ORPHANS, "no orphans"),
    )
    assert job_summary(outcomes) == (
        "compact: compacted 15 files into 3 in 3 groups; "
        "expire_snapshots: expired 2 snapshots, deleted 8 unreferenced files; remove_orphans: no orphans"
    )
    assert job_summary(()) == ""


def test_outcomes_say_why() -> None:
    """What was not done has its reason, in the outcome and in its summary; doing and deciding not to differ."""
    files = (FileAction("f", 1, "data"),)
    done = committed(COMPACT, "compacted", {"files_merged": 2}, files, notes=("n",))
    assert (done.state, done.metrics, done.files, done.notes) == (C, {"files_merged": 2}, files, ("n",))
    for made, state, start in (
        (skipped(COMPACT, "nothing"), S, ""),
        (failed(COMPACT, "nothing"), F, "failed: "),
        (deferred(COMPACT, "nothing"), D, "deferred: "),
    ):
        assert (made.state, made.reason, made.summary) == (state, "nothing", f"{start}nothing")


@pytest.mark.parametrize(
    ("attempt", "milliseconds"), [(1, 50), (2, 100), (3, 200), (7, 3200), (8, 5000), (20, 5000), (2000, 5000)]
)
@pytest.mark.cases(76)
def test_backoff(attempt: int, milliseconds: int) -> None:
    """Waits double from 50 ms and never pass 5 s."""
    assert backoff(attempt) == timedelta(milliseconds=milliseconds)
