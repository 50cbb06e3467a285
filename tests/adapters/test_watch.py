"""Work of Spark that blocks is stopped by whoever watches it, and its failures are told from those of the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, repeat

import pytest

from icewright.adapters.engines.spark.engine import _translated_error
from icewright.adapters.engines.spark.pool import StatementFailed, watched
from icewright.core.errors import (
    Cancelled,
    CommitStateUnknown,
    FaultOwner,
    IcewrightError,
    LeaseLost,
    StorageUnavailable,
)
from icewright.ports.work import SupervisedWork
from icewright.testing import metadata

SOON = 0.001
LONG = 30.0  # seconds after which a test gives up


@dataclass
class Work:
    """A procedure in steps: a cancelled step ends, and the next begins."""

    steps: int = 1
    says: list[IcewrightError | None] = field(default_factory=list)  # what `check` raises at each look, then nothing
    fails: Exception | None = None  # what it raises when its last step was cancelled
    looks: int = 0
    cancelled: int = 0
    step_over: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Look, and raise what is next."""
        self.looks += 1
        error = self.says.pop(0) if self.says else None
        if error is not None:
            raise error

    def cancel(self) -> None:
        """End the step that runs."""
        self.cancelled += 1
        self.step_over.set()

    def run(self) -> None:
        """All steps, each until it is cancelled."""
        for _ in range(self.steps):
            assert self.step_over.wait(LONG)
            self.step_over.clear()
        if self.fails is not None:
            raise self.fails


@pytest.mark.parametrize("error", [Cancelled("asked to"), LeaseLost("another has it")])
def test_work_is_cancelled_until_it_ends(error: IcewrightError) -> None:
    """Each step is cancelled as it comes, and what `check` raised is raised though the work ended without an error."""
    work = Work(steps=3, says=[None, None, error])
    with pytest.raises(type(error), match=str(error)), watched(work.check, work.cancel, SOON):
        work.run()
    assert (work.looks, work.cancelled >= 3) == (3, True)


def test_an_error_of_cancelled_work_is_its_cause() -> None:
    """What the cancelled work raises stands behind what `check` raised."""
    work = Work(says=[Cancelled("asked to")], fails=ValueError("job 4 was cancelled"))
    with pytest.raises(Cancelled) as caught, watched(work.check, work.cancel, SOON):
        work.run()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_store_that_is_away_cancels_nothing() -> None:
    """Errors other than cancelling and a lost lease are looked past: the next look may be answered."""
    work = Work(says=[StorageUnavailable("away")] * 3)
    with watched(work.check, work.cancel, SOON):
        while work.looks < 5:
            threading.Event().wait(SOON)
    assert work.cancelled == 0


@pytest.mark.parametrize(
    ("tasks", "progresses"),
    [
        (zip(repeat(4), repeat(0), count()).__next__, True),
        (lambda: (4, 1, 0), True),
        (lambda: (4, 0, 3), False),
        (lambda: None, True),
    ],
    ids=["changing", "running", "waiting", "unknown"],
)
def test_tasks_that_change_are_progress(tasks: Callable[[], tuple[int, int, int] | None], progresses: bool) -> None:
    """So are those that run, and what Spark does not report; those that wait are none, though somebody watches them."""
    seconds, work = [0.0], Work()
    supervised = SupervisedWork("a rewrite", lambda: seconds[0])
    with supervised.attached(), watched(work.check, work.cancel, SOON, tasks):
        seconds[0] = 9.0
        looks = work.looks
        while work.looks < looks + 3:
            threading.Event().wait(SOON)
    assert supervised.idle_seconds() == (0.0 if progresses else 9.0)


def test_undisturbed_work_is_what_it_is() -> None:
    """Its own error comes out as it is, and nobody looks any more when it is over."""
    work = Work()
    with pytest.raises(ValueError, match="of its own"), watched(work.check, work.cancel, SOON):
        raise ValueError("of its own")
    assert "watch" not in {thread.name for thread in threading.enumerate()}


def test_an_application_that_dies_ends_no_polling() -> None:
    """Its tasks are unknown from then on, and the work is cancelled all the same."""

    def tasks() -> None:
        raise ConnectionRefusedError

    work = Work(says=[None, Cancelled("asked to")])
    supervised = SupervisedWork("work")
    with supervised.attached(), pytest.raises(Cancelled), watched(work.check, work.cancel, SOON, tasks):
        work.run()
    assert work.cancelled


@pytest.mark.parametrize(
    ("message", "owner"),
    [
        ("S3Exception: Please reduce your request rate. (Service: S3, Status Code: 503)", FaultOwner.STORAGE),
        ("AmazonS3Exception: gone (Error Code: ExpiredToken; Request ID: 1)", FaultOwner.STORAGE),
        ("s3://b/x: AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response", FaultOwner.STORAGE),
        ("s3://b/x: AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 7", FaultOwner.STORAGE),
        ("s3://b/x: AWS Error ACCESS_DENIED during HeadObject operation: No response", FaultOwner.ICEWRIGHT),
        ("CommitFailedException: after SlowDown", FaultOwner.TABLE),
        (
            "org.apache.iceberg.exceptions.RESTException: Error occurred while processing GET request",
            FaultOwner.CATALOG,
        ),
        ("org.apache.iceberg.exceptions.ServiceFailureException: Server error: down", FaultOwner.CATALOG),
        ("org.apache.iceberg.jdbc.UncheckedSQLException: Unknown failure", FaultOwner.CATALOG),
        ("org.apache.iceberg.exceptions.CommitStateUnknownException: Cannot commit, SlowDown", FaultOwner.CATALOG),
        ("org.apache.iceberg.exceptions.NoSuchTableException: Table does not exist", FaultOwner.ICEWRIGHT),
        ("S3Exception: Access Denied (Service: S3, Status Code: 403)", FaultOwner.ICEWRIGHT),
    ],
)
def test_a_store_or_catalog_that_serves_spark_nothing_is_at_fault_itself(message: str, owner: FaultOwner) -> None:
    """Its breaker counts the failure, and no table's; a commit that others won is a conflict, whatever came before."""
    error = _translated_error(metadata(), StatementFailed(message))
    assert isinstance(error, IcewrightError)
    assert error.owner is owner
    assert isinstance(error, CommitStateUnknown) == ("StateUnknown" in message), "nothing of it may be cleaned up"
