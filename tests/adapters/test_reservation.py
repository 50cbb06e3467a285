"""What jobs are charged of the memory that a pool's application reserves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from icewright.adapters.engines.spark.reservation import Reservation

HOUR = 3600.0


@dataclass
class Pool:
    """An application with a clock and a memory that the test sets."""

    now: float = 0.0
    memory: float | None = 4.0

    def __post_init__(self) -> None:
        self.reserved = Reservation(lambda: self.now)

    def gb(self) -> float | None:
        """Return the memory of now."""
        return self.memory


def test_jobs_of_one_time_share_what_is_reserved() -> None:
    """Two jobs pay half each while both run; what passes without a job, the start among it, nobody is charged for."""
    pool = Pool()
    pool.now = HOUR
    pool.reserved.started(pool.memory, 0.0, driver=1.0)
    pool.now = 2 * HOUR
    with pool.reserved.job(pool.gb) as first:
        pool.now = 3 * HOUR
        with pool.reserved.job(pool.gb) as second:
            pool.now = 5 * HOUR
            assert (first(), second()) == ((8.0, 2.0), (4.0, 1.0))
        pool.now = 6 * HOUR
        assert first() == (12.0, 3.0)
    pool.now = 7 * HOUR
    assert pool.reserved.idle_gb_hours == 12.0
    pool.reserved.ended()
    pool.now = 9 * HOUR
    assert pool.reserved.idle_gb_hours == 12.0


def test_executors_come_and_go() -> None:
    """What grows while a job runs counts as its mean; an application that does not tell has no cost known."""
    pool = Pool()
    pool.reserved.started(pool.memory, 0.0, driver=1.0)
    with pool.reserved.job(pool.gb) as charged:
        pool.now, pool.memory = HOUR, 12.0
        assert charged() == (8.0, 1.0)
    pool.memory = None
    with pool.reserved.job(pool.gb) as charged:
        pool.now = 2 * HOUR
        assert charged() is None


def test_a_failed_job_is_charged_too() -> None:
    """A job that ends by an error frees its share."""
    pool = Pool()
    pool.reserved.started(pool.memory, 0.0, driver=1.0)
    with pytest.raises(ValueError, match="lost"), pool.reserved.job(pool.gb):
        raise ValueError("lost")
    with pool.reserved.job(pool.gb) as charged:
        pool.now = HOUR
        assert charged() == (4.0, 1.0)
