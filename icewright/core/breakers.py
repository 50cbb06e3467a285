"""Circuit breakers of the resources that tables share: catalogs, storage places and pools.

A breaker is closed, open or half-open. It opens after failures on several tables in a row, so that one bad table opens
none; while it is open, work that needs the resource is deferred. After a wait that doubles up to `MAX_WAIT` it is
half-open: one job probes the resource, and closes the breaker by any success.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from icewright.core.errors import CatalogUnavailable, FaultOwner, IcewrightError
from icewright.core.paths import split
from icewright.core.table import TableRef

OPEN_AFTER = 3  # failures in a row, each on another table than the one before
FIRST_WAIT, MAX_WAIT = timedelta(seconds=30), timedelta(minutes=30)
CLOCK_WENT_BACK = MAX_WAIT  # a time that lies further ahead was written before the clock was set back
PROBE_LIMIT = timedelta(minutes=10)  # after which an unfinished probe blocks no other
UNAVAILABLE = "unavailable"  # prefix of the reason when an operation waits for a catalog, a storage place or a pool
SHARED = frozenset({FaultOwner.CATALOG, FaultOwner.STORE, FaultOwner.STORAGE, FaultOwner.POOL})
_OWN_LIMITS = ("Too many open files", "can't start new thread")  # of this process, whoever it was about to ask
_STORAGE = "storage "  # resources of this kind begin so
_PATH = re.compile(r"\S*/[^\s:;,)]+")
RETRY_UNAVAILABLE = timedelta(minutes=5)  # cooldown after such a deferral, in place of the operation's own


def is_ahead(at: datetime, now: datetime) -> bool:
    """Return whether a time is yet to come, unless it was written before the clock was set back."""
    return timedelta(0) < at - now <= CLOCK_WENT_BACK


class BreakerState(enum.StrEnum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The failures of one shared resource since its last success."""

    resource: str  # such as `catalog lake`, `storage s3://bucket` or `pool default`
    failures: int
    subject: str  # the table that failed last; blank: the resource itself was asked
    error: str
    since: datetime  # of the first failure
    retry_at: datetime
    probe_until: datetime | None = None  # while one job probes the resource

    def state(self, now: datetime) -> BreakerState:
        """Return the state of the breaker; a running probe keeps it open for everything else."""
        if self.failures < OPEN_AFTER:
            return BreakerState.CLOSED
        probed = self.probe_until is not None and is_ahead(self.probe_until, now)
        return BreakerState.OPEN if probed or is_ahead(self.retry_at, now) else BreakerState.HALF_OPEN

    @property
    def reason(self) -> str:
        """Return why work that needs the resource is deferred."""
        again = f"{self.retry_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{UNAVAILABLE}: {self.resource} does not answer ({self.error}); it is tried again at {again}"


def after_failure(
    last: Breaker | None, resource: str, subject: str, error: str, now: datetime, jitter: float
) -> Breaker:
    """Return the breaker after a failure. `jitter` is random, from 0 to 1, so that processes do not retry in step.

    A failure of the resource itself (blank `subject`) opens the breaker at once. Failures while it waits do not prolong
    the wait: they are of calls that began before. The error is kept without name and files of the table: it is shown
    with all tables that wait, to who may not see that one.
    """
    error = error.replace(subject, "a table") if subject else error
    if resource.startswith(_STORAGE):
        error = _PATH.sub("a file", error)
    if last is not None and last.state(now) is BreakerState.OPEN and last.probe_until is None:
        return replace(last, error=error)
    failures = 1 if last is None else last.failures
    if last is not None and (subject != last.subject or last.failures >= OPEN_AFTER):
        failures += 1
    if not subject:
        failures = max(failures, OPEN_AFTER)
    wait = min(MAX_WAIT / 1.25, FIRST_WAIT * 2 ** min(max(0, failures - OPEN_AFTER), 20)) * (0.75 + jitter / 2)
    return Breaker(resource, failures, subject, error, last.since if last else now, now + wait)


def storage_place(location: str) -> str:
    """Return the storage place of a table's location: its bucket, or the top two folders of a local path."""
    parts = split(location)
    if parts.scheme in ("", "file"):
        return "/".join(parts.path.split("/")[:3])
    return f"{parts.scheme}://{parts.authority}"


def resources(ref: TableRef, location: str | None, pool: str | None) -> tuple[str, ...]:
    """Return the shared resources that a job on a table needs; `pool` is None where no operation runs on one."""
    names = [f"catalog {ref.catalog}"]
    names += [f"{_STORAGE}{storage_place(location)}"] if location else []
    return (*names, f"pool {pool}") if pool else tuple(names)


def is_own_limit(error: Exception) -> bool:
    """Return whether this process reached a limit of its own, so that no resource that it asked is at fault."""
    return any(limit in str(error) for limit in _OWN_LIMITS)


def faulty_resource(error: IcewrightError, ref: TableRef, location: str | None, pool: str) -> str | None:
    """Return the shared resource whose fault the error is; None for faults of the table, the store and Icewright."""
    if is_own_limit(error):
        return None
    match error.owner:
        case FaultOwner.CATALOG:
            catalog = error.catalog if isinstance(error, CatalogUnavailable) else ""
            return f"catalog {catalog or ref.catalog}"
        case FaultOwner.STORAGE:
            return f"{_STORAGE}{storage_place(location)}" if location else None
        case FaultOwner.POOL:
            return f"pool {pool}"
    return None


def is_shared_fault(error: str) -> bool:
    """Return whether a recorded error, which begins with its class, is the fault of a resource that tables share."""
    return error.partition(":")[0] in _SHARED_FAULTS


def _shared_faults(base: type[IcewrightError]) -> Iterator[str]:
    if base.owner in SHARED:
        yield base.__name__
    for child in base.__subclasses__():
        yield from _shared_faults(child)


_SHARED_FAULTS = frozenset(_shared_faults(IcewrightError))


def failing_catalogs(breakers: Iterable[Breaker], now: datetime) -> dict[str, str]:
    """Return the catalogs whose breaker is open, each with the error."""
    failing = [breaker for breaker in breakers if breaker.state(now) is BreakerState.OPEN]
    return {b.resource.removeprefix("catalog "): b.error for b in failing if b.resource.startswith("catalog ")}
