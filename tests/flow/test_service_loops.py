"""Loops of the service: each goes on whatever becomes of it and of the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icewright.adapters.clock import SharedClock
from icewright.app.loops import Loop, LoopThreads
from icewright.core.errors import StorageUnavailable, StoreUnavailable
from icewright.ports.work import SupervisedWork
from icewright.testing import NOW, FixedClock
from tests.waiting import until

SOON = timedelta(milliseconds=1)
NEVER = timedelta(hours=1)


class Told:
    """What was told, and somebody who waits for it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, kind: str, details: Mapping[str, Any]) -> None:
        """A listener."""
        self.lines.append((kind, details))


def silent(loop: str, seconds: float, *, failed: bool = False) -> None:
    """Nobody counts rounds."""


def test_a_loop_that_fails_goes_on_and_the_others_do_not_notice() -> None:
    """The error is told and shown while it lasts; the next round that works ends it."""
    rounds = {"good": 0, "bad": 0}

    def good() -> int:
        rounds["good"] += 1
        return 0

    def bad() -> int:
        rounds["bad"] += 1
        if rounds["bad"] <= 3:
            raise StorageUnavailable("the store is away") if rounds["bad"] < 3 else ValueError("a bug")
        return 0

    told = Told()
    made = [Loop("good", SOON, good), Loop("bad", SOON, bad)]
    loops = LoopThreads(made, FixedClock(), told, silent)
    loops.start()
    until(lambda: rounds["bad"] > 3 and rounds["good"] > 3 and made[1].failures == 0)
    loops.stop(timedelta(minutes=1))
    assert [d["error"] for kind, d in told.lines if kind == "loop_failed"] == [
        "StorageUnavailable: the store is away",
        "StorageUnavailable: the store is away",
        "ValueError: a bug",
    ]
    assert "traceback" not in told.lines[0][1]  # an error of ours says enough
    assert "a bug" in told.lines[2][1]["traceback"]
    assert loops.state()["bad"] == {"failures": 0, "error": None, "lag_seconds": 0.0}


def test_a_round_that_failed_came_round() -> None:
    """An hourly loop is not called late, nor stopped, for one error: the next round is in an hour."""
    clock, tried = FixedClock(), threading.Event()

    def bad() -> int:
        clock.advance(minutes=50)
        tried.set()
        raise StorageUnavailable("the store is away")

    loops = LoopThreads([Loop("bad", timedelta(hours=1), bad)], clock, Told(), silent)
    loops.start()
    until(tried.is_set)
    until(lambda: loops.loops[0].failures == 1)
    clock.advance(minutes=59)
    assert loops.lags() == {"bad": 0.0}
    loops.stop(timedelta(minutes=1))


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(StoreUnavailable("the store is away"), [2, 4, 5, 5, 5]), (ValueError("a bug"), [2, 4, 8, 16, 32])],
)
def test_a_loop_waits_seconds_for_the_store_and_longer_after_other_errors(
    error: Exception, seconds: Sequence[float]
) -> None:
    """A store that was away for minutes is used again within seconds; a success ends the wait."""
    loop = Loop("any", timedelta(seconds=2), lambda: 0)
    for expected in seconds:
        loop.record_failure(error, NOW)
        assert loop.retry_after == timedelta(seconds=expected)
    loop.record_success(NOW)
    assert (loop.retry_after, loop.failures, loop.error) == (None, 0, None)


def test_work_wakes_the_next_loop_and_is_looked_for_again_at_once() -> None:
    """A loop that did something wakes those after it, and looks again without a pause."""
    left, seen = [3], []

    def first() -> int:
        left[0] -= 1
        return max(0, left[0])

    second = Loop("second", NEVER, lambda: seen.append(left[0]) or 0)  # type: ignore[func-returns-value]
    loops = LoopThreads([Loop("first", NEVER, first, (second,)), second], FixedClock(), Told(), silent)
    loops.start()
    until(lambda: left[0] == 0 and seen[-1:] in ([0], [1]))
    loops.stop(timedelta(minutes=1))


def test_a_loop_that_hangs_is_seen() -> None:
    """A round without progress is named with its place, so that a probe can restart the process; a long one is not."""
    clock, began, free, seconds = FixedClock(), threading.Event(), threading.Event(), [0.0]

    def hangs() -> int:
        began.set()
        return int(free.wait(10)) * 0

    work = SupervisedWork("a loop", lambda: seconds[0])
    loops = LoopThreads([Loop("hangs", NEVER, hangs, work=work)], clock, Told(), silent)
    loops.start()
    assert began.wait(10)
    for _ in range(5):
        seconds[0] += 599
        assert loops.stuck() == []
        work.progress()
    clock.advance(minutes=71)
    seconds[0] += 601
    (stuck,) = loops.stuck()
    assert stuck.startswith("hangs in icewright.app.loops.")
    assert loops.state()["hangs"]["lag_seconds"] == pytest.approx(660, abs=1)
    free.set()
    until(lambda: not loops.loops[0].running)
    seconds[0] += 3599  # the pause until the next round
    assert loops.stuck() == []
    free.set()
    loops.stop(timedelta(minutes=1))


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(hours=1), timedelta(hours=-1)])
def test_a_clock_that_machines_share(ahead: timedelta) -> None:
    """However wrong the machine's own clock is, it says the server's time; without a server its own."""
    clock = SharedClock(lambda: datetime.now(UTC) + ahead)
    assert abs(clock.now() - datetime.now(UTC) - ahead) < timedelta(seconds=1)
    assert abs(SharedClock(lambda: None).now() - datetime.now(UTC)) < timedelta(seconds=1)


def test_a_jump_of_the_machines_time() -> None:
    """Only the seconds since boot are added to what the server said, so that a jump changes nothing."""
    seconds, said = [100.0], datetime(2001, 2, 3, tzinfo=UTC)
    clock = SharedClock(lambda: said, lambda: seconds[0])
    assert clock.now() == said
    seconds[0] += 7
    assert clock.now() == said + timedelta(seconds=7)


def test_a_server_that_does_not_say_its_time() -> None:
    """What it said last holds until it answers again."""
    answers: list[datetime | Exception] = [datetime.now(UTC) + timedelta(hours=1), StorageUnavailable("away")]

    def ask() -> datetime:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = SharedClock(ask)
    with pytest.raises(StorageUnavailable):
        clock.measure()
    assert clock.now() - datetime.now(UTC) > timedelta(minutes=59)
