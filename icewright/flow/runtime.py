"""The runtime context of all stages: the ports and the configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Lock
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, wait_exponential, wait_random

from icewright.core.cost import Experience
from icewright.core.errors import CommitConflict, CommitStateUnknown, FaultOwner, StorageUnavailable, UsageError
from icewright.core.layering import Policy, matches_any
from icewright.core.policy import Operation
from icewright.core.runs import VERIFICATION_FAILED, JobState
from icewright.core.table import TableRef
from icewright.core.words import in_shell
from icewright.flow.limits import CurrentLimits
from icewright.ports import Catalog, CatalogSettings, Clock, Engine, Store, TableFiles, Trigger, Vacuum


@dataclass(frozen=True, slots=True)
class Scope:
    """The tables of a catalog that are maintained automatically (blank lists mean all), their pool, and detection."""

    enabled: bool = False
    namespaces: str = ""
    tables: str = ""
    pool: str = "default"
    interval: timedelta = timedelta(seconds=60)
    timeout: timedelta = timedelta(seconds=300)
    vacuum_every: timedelta | None = None  # of a catalog with branches; None: by command alone
    archive: str = ""  # the namespace of the archive, whose tables are always in scope
    settings: CatalogSettings | None = None  # which are in the place of what the configuration says
    configured: Scope | None = None  # as the configuration says, where there are settings

    def enabling(self, catalog: str) -> str:
        """Return what enables the catalog: its configuration, or a command where the store disables it."""
        if self.configured is not None and self.configured.enabled:
            return f"run `icewright config catalog {in_shell(catalog)} --enabled yes`"
        return f"set catalogs.{catalog}.enabled to true"

    def contains(self, ref: TableRef) -> bool:
        """Return whether the table is in scope."""
        if not self.namespaces and not self.tables:  # fast path: called for ten thousand tables a minute
            return True
        namespace = ".".join(ref.namespace)
        if self.archive and namespace == self.archive:
            return True
        return matches_any(self.namespaces, namespace) and matches_any(self.tables, ref.name)


Listener = Callable[[str, Mapping[str, Any]], None]
COMMIT_ATTEMPTS = 8
STORE_PATIENCE = timedelta(seconds=60)  # half of the time after which a silent job loses its lease
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Runtime:
    """Ports and configuration; `emit` receives progress events, each a kind and details."""

    catalogs: Mapping[str, Catalog]
    files: TableFiles
    engine: Engine
    store: Store
    clock: Clock
    policy: Callable[[], Policy]
    scopes: Mapping[str, Scope]
    limits: CurrentLimits
    trigger: Trigger
    emit: Listener = lambda _kind, _details: None
    stopping: Callable[[], bool] = lambda: False  # whether the process is about to end
    vacuums: Mapping[str, Vacuum] = field(default_factory=dict)  # of catalogs with branches
    vacuum_locks: Mapping[str, Lock] = field(default_factory=lambda: defaultdict(Lock))  # by catalog
    # whether the process of this name has surely ended
    process_has_ended: Callable[[str], bool] = lambda _holder: False
    # learned from the runs of all tables on the pool of a catalog
    calibration: Callable[[str], Mapping[Operation, Experience]] = lambda _catalog: {}

    def with_settings(self, settings: Mapping[str, Any]) -> Runtime:
        """Return the runtime with these settings above those of all policies, in the place of earlier ones."""
        policy = self.policy
        return replace(self, policy=lambda: replace(policy(), command=settings))

    def record_event(self, kind: str, ref: TableRef, details: Mapping[str, Any]) -> None:
        """Record an event of a table in the store and emit it."""
        with suppress(StorageUnavailable):  # a failed report must not end the work
            self.store.activity.record(kind, self.clock.now(), ref, **details)
        self.emit(kind, {"table": str(ref), **details})

    def record_with_event(
        self, write: Callable[[], None], kind: str, ref: TableRef, details: Mapping[str, Any]
    ) -> None:
        """Write to the store, with an event that tells of it, in one transaction; then emit the event.

        The write must be idempotent, see `retry_idempotent`; after a lost reply the event is in the log twice.
        """

        def both() -> None:
            with self.store.writing_together():
                write()
                self.store.activity.record(kind, self.clock.now(), ref, **details)

        self.retry_idempotent(both)
        self.emit(kind, {"table": str(ref), **details})

    def finish_job(
        self,
        ref: TableRef,
        job_id: str,
        state: JobState,
        summary: str,
        fault: FaultOwner | None = None,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """End a running job, with its event and what the caller writes to the store also, in one transaction."""

        def finish() -> None:
            self.store.jobs.finish(job_id, state, summary, self.clock.now(), fault)
            also()

        self.record_with_event(finish, "job_finished", ref, {"job_id": job_id, "state": state, "summary": summary})

    def pause_broken(self, ref: TableRef, violation: object) -> None:
        """Pause a table that a check found broken after a commit; alerts know such a pause by its reason."""
        self.retry_idempotent(lambda: self.store.tables.pause(ref, f"{VERIFICATION_FAILED}: {violation}"))

    def retry_idempotent(self, write: Callable[[], _Result]) -> _Result:
        """Retry a write of the store for `STORE_PATIENCE`, then raise `StorageUnavailable`.

        The write must be idempotent, as the reply to a successful one may be lost.
        """
        return self.retry(write, StorageUnavailable, deadline=STORE_PATIENCE)

    def retry_commit(self, attempt: Callable[[], _Result]) -> _Result:
        """Repeat an attempt to commit beside other writers; raise the last error after `COMMIT_ATTEMPTS`.

        Each attempt loads the table, as an earlier one of unknown outcome may have landed.
        """
        return self.retry(attempt, (CommitConflict, CommitStateUnknown), attempts=COMMIT_ATTEMPTS)

    def retry(
        self,
        call: Callable[[], _Result],
        errors: type[Exception] | tuple[type[Exception], ...],
        *,
        attempts: int | None = None,
        deadline: timedelta | None = None,
    ) -> _Result:
        """Call until no error of these types is raised; raise the last one after `attempts` calls or the deadline.

        The waits grow from 50 ms to 5 s, with jitter, so that processes do not retry in step.
        """
        until = None if deadline is None else self.clock.now() + deadline
        retrying = Retrying(
            retry=retry_if_exception_type(errors),
            wait=wait_exponential(multiplier=0.05, max=5) + wait_random(0, 0.05),
            stop=lambda state: state.attempt_number == attempts or (until is not None and self.clock.now() >= until),
            sleep=self.clock.sleep,
            reraise=True,
        )
        return retrying(call)

    def try_acquire_lease(self, name: str, length: timedelta) -> bool:
        """Acquire or renew a named lease; return whether this process holds it. A dead holder's lease is taken over."""
        me, now = self.trigger.holder, self.clock.now()
        holder = self.store.leases.acquire(name, me, now, now + length)
        if holder not in ("", me) and self.process_has_ended(holder):
            self.store.leases.release(name, holder)
            holder = self.store.leases.acquire(name, me, now, now + length)
        return holder == me

    def catalog(self, ref: TableRef) -> Catalog:
        """Return the table's catalog. Raises `UsageError` when the configuration has none of that name."""
        catalog = self.catalogs.get(ref.catalog)
        if catalog is None:
            names = ", ".join(sorted(self.catalogs)) or "none"
            raise UsageError(f"{ref}: there is no catalog {ref.catalog} in the configuration (there is: {names})")
        return catalog
