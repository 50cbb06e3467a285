"""Breakers of shared resources: when they open, how long they wait, and what they are about."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.breakers import (
    MAX_WAIT,
    Breaker,
    BreakerState,
    after_failure,
    failing_catalogs,
    faulty_resource,
    is_shared_fault,
    resources,
    storage_place,
)
from icewright.core.errors import (
    CatalogUnavailable,
    EngineUnavailable,
    FaultOwner,
    FileMissing,
    FolderMissing,
    IcewrightError,
    StorageUnavailable,
    StoreUnavailable,
    UsageError,
)
from icewright.testing import NOW, REF

SECOND = timedelta(seconds=1)


def failures(*subjects: str, jitter: float = 0.5) -> Breaker:
    """The breaker after a failure of each of the tables, all at one time."""
    breaker: Breaker | None = None
    for subject in subjects:
        breaker = after_failure(breaker, "pool default", subject, "died", NOW, jitter)
    assert breaker is not None
    return breaker


def test_a_clock_that_is_set_back_prolongs_no_wait() -> None:
    """A retry and a probe of the time when it was an hour ahead count as over; none is ever so far away."""
    breaker = failures("a", "b", "c")
    assert replace(breaker, retry_at=NOW + MAX_WAIT).state(NOW) is BreakerState.OPEN
    ahead = replace(breaker, retry_at=NOW + MAX_WAIT + SECOND)
    assert ahead.state(NOW) is BreakerState.HALF_OPEN
    assert replace(ahead, probe_until=NOW + MAX_WAIT + SECOND).state(NOW) is BreakerState.HALF_OPEN
    assert after_failure(ahead, "pool default", "d", "died", NOW, 0.5).retry_at <= NOW + MAX_WAIT


def test_a_reason_does_not_name_the_table_that_failed() -> None:
    """Who waits for the same storage or catalog may not be allowed to see it; the last failure counts."""
    error, breaker = (
        "lake.hr.pay: s3://lake/hr/pay/a.avro could not be read: http://s3/lake/hr/pay/a.avro: timed out",
        None,
    )
    for subject in ("lake.a.a", "lake.b.b", "lake.c.c", "lake.hr.pay"):
        breaker = after_failure(breaker, "storage s3://lake", subject, error, NOW, 0.5)
    assert breaker is not None
    assert "(a table: a file could not be read: a file: timed out)" in breaker.reason
    assert "hr" not in breaker.reason


@pytest.mark.parametrize(
    ("subjects", "state"),
    [
        (("a",), BreakerState.CLOSED),
        (("a", "b"), BreakerState.CLOSED),
        (("a", "b", "c"), BreakerState.OPEN),
        (("a", "a", "a", "a"), BreakerState.CLOSED),  # one bad table
        (("",), BreakerState.OPEN),  # the resource itself was asked
        (("a", ""), BreakerState.OPEN),
    ],
)
def test_when_a_breaker_opens(subjects: tuple[str, ...], state: BreakerState) -> None:
    """It takes failures of three tables in a row, or one of the resource itself."""
    assert failures(*subjects).state(NOW) is state


def test_the_wait_doubles_up_to_half_an_hour() -> None:
    """Each failure after a wait doubles the next, also those of the table that failed last."""
    for jitter in (0, 0.5, 1):
        now, breaker, waits = NOW, failures("", jitter=jitter), []
        for _ in range(12):
            waits.append(breaker.retry_at - now)
            now = breaker.retry_at
            breaker = after_failure(breaker, breaker.resource, "a", "died", now, jitter)
        assert waits[:4] == [30 * SECOND * 2**number * (0.75 + jitter / 2) for number in range(4)]
        assert max(waits) <= MAX_WAIT


def test_failures_while_it_waits_do_not_prolong_the_wait() -> None:
    """They are of calls that began before it opened; only the error is taken over. A failed probe does prolong it."""
    breaker = failures("")
    later = after_failure(breaker, breaker.resource, "b", "timed out", NOW + SECOND, 0.5)
    assert later == replace(breaker, error="timed out")
    probed = replace(breaker, probe_until=NOW + 600 * SECOND)
    assert after_failure(probed, breaker.resource, "b", "timed out", NOW + SECOND, 0.5).failures == breaker.failures + 1


def test_a_breaker_half_opens_for_one_probe() -> None:
    """When its wait is over one job may try; while that runs nothing else may."""
    breaker = failures("")
    assert breaker.state(breaker.retry_at - SECOND) is BreakerState.OPEN
    assert breaker.state(breaker.retry_at) is BreakerState.HALF_OPEN
    probed = Breaker("r", 3, "", "e", NOW, NOW, probe_until=NOW + SECOND)
    assert probed.state(NOW) is BreakerState.OPEN
    assert probed.state(NOW + SECOND) is BreakerState.HALF_OPEN


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (CatalogUnavailable("refused"), "catalog lake"),
        (CatalogUnavailable("refused", "pond"), "catalog pond"),
        (StorageUnavailable("503"), "storage s3://bucket"),
        (EngineUnavailable("died"), "pool heavy"),
        (StoreUnavailable("locked"), None),
        (FolderMissing("gone"), None),
        (FileMissing("gone"), None),
        (UsageError("no"), None),
    ],
)
def test_whose_fault_an_error_is(error: IcewrightError, resource: str | None) -> None:
    """A catalog, a storage place and a pool have a breaker; a table has its own, and the store none."""
    assert faulty_resource(error, REF, "s3://bucket/sales/orders", "heavy") == resource
    assert is_shared_fault(f"{type(error).__name__}: {error}") == (resource is not None or error.owner == "store")


def test_every_error_has_an_owner() -> None:
    """The tree is complete: what is not said is Icewright's own."""
    assert IcewrightError.owner is FaultOwner.ICEWRIGHT
    assert not is_shared_fault("ValueError: x")


@pytest.mark.parametrize(
    ("location", "place"),
    [("s3://b/a/t", "s3://b"), ("file:///mnt/lake/a/t", "/mnt/lake"), ("/mnt/lake/a", "/mnt/lake")],
)
def test_storage_places(location: str, place: str) -> None:
    """A bucket is a place, and so is a mounted disk, as far as a path can tell."""
    assert storage_place(location) == place


def test_what_a_job_needs() -> None:
    """Its catalog, the place of its files, and a pool where an operation runs on one."""
    assert resources(REF, "s3://b/t", "default") == ("catalog lake", "storage s3://b", "pool default")
    assert resources(REF, None, None) == ("catalog lake",)


def test_failing_catalogs() -> None:
    """Open breakers of catalogs, by name."""
    breakers = [after_failure(None, f"{kind} x", "", "e", NOW, 0.5) for kind in ("catalog", "pool")]
    assert failing_catalogs(breakers, NOW) == {"x": "e"}
