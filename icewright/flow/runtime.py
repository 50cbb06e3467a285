"""What every stage is handed: the ports, and the settings that came from configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from icewright.core.errors import StorageUnavailable, UsageError
from icewright.core.layering import Policy, matches_any
from icewright.core.plan import Limits
from icewright.core.policy import Operation
from icewright.core.runs import backoff
from icewright.core.steps import Factors
from icewright.core.table import TableRef
from icewright.ports import Catalog, Clock, Engine, Store, TableFiles, Trigger, Vacuum


@dataclass(frozen=True, slots=True)
class Scope:
    """Which tables of a catalog are maintained by themselves (blank lists mean all), where, and how it is watched."""

    enabled: bool = False
    namespaces: str = ""
    tables: str = ""
    pool: str = "default"
    interval: timedelta = timedelta(seconds=60)
    timeout: timedelta = timedelta(seconds=300)
    archive: str = ""  # the namespace of the archive, whose tables are in scope whatever the lists say

    def holds(self, ref: TableRef) -> bool:
        """Return whether the table is in scope."""
        if not self.namespaces and not self.tables:  # asked of ten thousand tables a minute
            return True
        namespace = ".".join(ref.namespace)
        if self.archive and namespace == self.archive:
            return True
        return matches_any(self.namespaces, namespace) and matches_any(self.tables, ref.name)


Listener = Callable[[str, Mapping[str, Any]], None]
PATIENCE = timedelta(seconds=60)  # half of the time after which a silent job loses its table
_Told = TypeVar("_Told")


def _never() -> bool:
    return False


def _unknown(_holder: str) -> bool:
    return False


def _uncalibrated() -> Mapping[Operation, Factors]:
    return {}


def _silent(_kind: str, _details: Mapping[str, Any]) -> None:
    return


@dataclass(frozen=True)
class Runtime:
    """Ports and settings. `tell` hears of progress: an event's kind and details."""

    catalogs: Mapping[str, Catalog]
    files: TableFiles
    engine: Engine
    store: Store
    clock: Clock
    policy: Callable[[], Policy]
    scopes: Mapping[str, Scope]
    limits: Limits
    trigger: Trigger
    emit: Listener = field(default=_silent)
    stopping: Callable[[], bool] = field(default=_never)  # whether the process is about to end
    vacuums: Mapping[str, Vacuum] = field(default_factory=dict)  # of catalogs with branches
    process_has_ended: Callable[[str], bool] = field(
        default=_unknown
    )  # whether the process of this name has surely ended
    calibration: Callable[[], Mapping[Operation, Factors]] = field(
        default=_uncalibrated
    )  # learned from the runs of all tables

    def record_event(self, kind: str, ref: TableRef, details: Mapping[str, Any]) -> None:
        """Tell what happens to a table, and write it into the record of its job."""
        with suppress(StorageUnavailable):  # what is told of work must not end the work
            self.store.activity.record(kind, self.clock.now(), ref, **details)
        self.emit(kind, {"table": str(ref), **details})

    def retry_idempotent(self, tell: Callable[[], _Told]) -> _Told:
        """Tell the store what must not be lost, again and again while it is away, for a minute at most.

        It must be something that may be told twice, as an answer may be lost. Raises `StorageUnavailable` after that.
        """
        until, attempt = self.clock.now() + PATIENCE, 1
        while True:
            try:
                return tell()
            except StorageUnavailable:
                if self.clock.now() >= until:
                    raise
            self.clock.sleep(backoff(attempt).total_seconds())
            attempt += 1

    def try_acquire_lease(self, name: str, length: timedelta) -> bool:
        """Return whether this process alone may do what the name says, for so long; a dead holder holds nothing."""
        me, now = self.trigger.holder, self.clock.now()
        holder = self.store.leases.acquire(name, me, now, now + length)
        if holder not in ("", me) and self.process_has_ended(holder):
            self.store.leases.release(name, holder)
            holder = self.store.leases.acquire(name, me, now, now + length)
        return holder == me

    def catalog(self, ref: TableRef) -> Catalog:
        """Return the table's catalog. Raises `UsageError` when the configuration has none of that name."""
        found = self.catalogs.get(ref.catalog)
        if found is None:
            known = ", ".join(sorted(self.catalogs)) or "none"
            raise UsageError(f"{ref}: there is no catalog {ref.catalog} in the configuration (there is: {known})")
        return found
