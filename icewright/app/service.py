"""The service: loops that share the store, and a worker that runs queued jobs. Many processes may share a store."""

from __future__ import annotations

import gc
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from icewright.app.bootstrap import Application
from icewright.app.config import Config
from icewright.app.loops import Loop, LoopThreads
from icewright.app.redaction import Redaction
from icewright.app.telemetry import Telemetry
from icewright.app.worker import PATIENCE, Worker
from icewright.core.errors import IcewrightError
from icewright.flow.alert import alert_due
from icewright.flow.archive import Archiving, archive_due
from icewright.flow.detect import DetectionLanes, configured_policy
from icewright.flow.evaluator import Evaluator
from icewright.flow.events import read_reports
from icewright.flow.queue import Planning
from icewright.flow.reconcile import Reconciler
from icewright.flow.vacuum import vacuum_due
from icewright.ports import ProcessRow
from icewright.ports.deadlines import SharedCall
from icewright.ports.work import WorkState

_SECRET = re.compile(r"secret|password|token|credential|key|auth", re.IGNORECASE)
_DIGITS = 8  # of a hash: enough to see a difference
HEARTBEAT = timedelta(seconds=10)
_LATE = timedelta(seconds=20)  # of a heartbeat, after which the store is taken to take none
_FAILURES = 3  # of a loop in a row, after which the store is taken not to serve it
IDLE_SHOWN = timedelta(seconds=60)  # without progress, after which a process reports a job or an evaluation
_SECOND = timedelta(seconds=1)
_PROBE_LIMIT = 3 * _SECOND  # of the five after which the Helm chart's probes give up
_COMMIT_SCAN = timedelta(hours=1)  # of a large repository, which shows no progress


def configuration_fingerprints(config: Config) -> Mapping[str, str]:
    """Return a hash for each key of policy, catalogs, limits and pools that all processes of a store must share.

    Secrets are left out: processes may have credentials of their own, and a short secret could be found by its hash.
    """
    redaction = Redaction(config.secrets)
    return {key: _hashed(key, redaction.value(value)) for key, value in _settings(config)}


def _hashed(key: str, value: Any) -> str:  # noqa: ANN401 - any value of a configuration
    return sha256(f"{key}={value!r}".encode()).hexdigest()[:_DIGITS]


def _settings(config: Config) -> Iterator[tuple[str, Any]]:
    by_scope: dict[str, list[Any]] = {}
    for rule in config.policy.rules:
        for knob, value in rule.settings.items():
            by_scope.setdefault(f"policy.{rule}.{knob}", []).append(value)
    yield from by_scope.items()
    yield "guardrails", [str(guardrail) for guardrail in config.policy.guardrails]
    for name, catalog in config.catalogs.items():
        path = f"catalogs.{name}"
        yield f"{path}.type", catalog.type
        yield f"{path}.pool", catalog.pool
        yield f"{path}.allowed_locations", sorted(catalog.allowed_locations)
        yield f"{path}.policies", catalog.policies
        yield f"{path}.environment", str(catalog.environment)
        yield from ((f"{path}.{field}", str(value)) for field, value in asdict(catalog.scope).items())
        yield from ((f"{path}.limits.{field}", value) for field, value in asdict(catalog.limits).items())
        for key, value in catalog.properties.items():
            if not _SECRET.search(key):
                yield f"{path}.properties.{key}", value
    for name, pool in config.pools.items():
        yield f"pools.{name}.max_concurrent", pool.max_concurrent
        yield f"pools.{name}.gb_hours_per_day", pool.gb_hours_per_day
    yield "limits.total", config.limits.total
    yield "limits.per_operation", sorted((str(op), most) for op, most in config.limits.per_operation.items())


class Service:
    """All loops of one process, and its worker."""

    def __init__(self, app: Application, *, kind: str, slots: int) -> None:
        self._stopping = threading.Event()  # set: running jobs must end
        self._app, self._kind, self._slots = app, kind, slots
        self._runtime = replace(app.runtime, stopping=self._stopping.is_set)
        self._configuration = configuration_fingerprints(app.config)
        self._draining = self._drained = False
        self._reported_faults: list[str] = []
        self._faults = SharedCall(self.faults, _PROBE_LIMIT)
        self._started = self._runtime.clock.now()
        self._reconciler = Reconciler(self._runtime)
        self.worker = Worker(self._runtime, slots, self._job_ended) if slots else None
        self.telemetry = Telemetry(self._runtime.store, self._runtime.clock, self._lags, self._runtime.scopes)
        self.loops = LoopThreads(self._build_loops(), self._runtime.clock, self._runtime.emit, self.telemetry.loop_ran)

    def _build_loops(self) -> list[Loop]:
        runtime, catalogs = self._runtime, sorted(self._runtime.scopes)
        self._plan = Loop("plan", 3 * _SECOND, Planning(runtime).due)
        self._evaluator = Evaluator(runtime, catalogs)
        evaluate = Loop("evaluate", _SECOND, self._evaluator.due, (self._plan,))
        self._beat = Loop("heartbeat", HEARTBEAT, self._heartbeat)
        loops = [self._beat]
        if self._kind == "service":
            detect = Loop("detect", 2 * _SECOND, DetectionLanes(runtime, evaluate.wake.set).due)
            loops += [detect, evaluate, self._plan, Loop("reconcile", 15 * _SECOND, self._reconciler.due)]
            loops += [self._archive(self._app.archiving)] if self._app.archiving is not None else []
            if runtime.vacuums:
                loops.append(Loop("vacuum", 60 * _SECOND, self._vacuum, bound=_COMMIT_SCAN))
            loops += [Loop("alerts", 10 * _SECOND, lambda: alert_due(runtime, self._app.alerting))]
            loops += [Loop("heat", timedelta(hours=1), self._decay_query_rates)]
            if self._app.reports:
                read = partial(read_reports, runtime, self._app.directory, self._app.reports)
                loops += [Loop("reports", 60 * _SECOND, read, (evaluate,))]
        if self.worker is not None:
            self._work = Loop("work", _SECOND, self.worker.start_queued)
            self._plan.wakes = (self._work,)
            loops.append(self._work)
        return loops

    def _vacuum(self) -> int:
        """Vacuum what is due; only the next round tries again what failed."""
        return sum(not result.errors for result in vacuum_due(self._runtime, sorted(self._runtime.scopes)))

    def _archive(self, archiving: Archiving) -> Loop:
        archive = partial(archive_due, self._runtime, archiving)
        return Loop("archive", timedelta(hours=1), archive, bound=timedelta(hours=2))  # PyIceberg shows no progress

    def _lags(self) -> Mapping[str, float]:
        return self.loops.lags()

    def _decay_query_rates(self) -> int:
        self._runtime.store.inbox.decay_query_rates(self._runtime.clock.now())
        return 0

    def _job_ended(self) -> None:
        """Wake planning and the worker, as a slot is free and the table may be due for more."""
        self._plan.wake.set()
        self._work.wake.set()

    def _heartbeat(self) -> int:
        self._app.shared_clock.measure()
        if self._runtime.store.processes.record_heartbeat(self._row()):
            self._drain()
        return 0

    def _drain(self) -> None:
        """End the process as SIGTERM does once its jobs have ended: the store gives it no more of them."""
        if not self._draining:
            self._runtime.emit("draining", {"kind": self._kind})
            self._draining = True
        if not self._drained and (self.worker is None or not self.worker.busy):
            self._drained = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _row(self) -> ProcessRow:
        loads = {name: pool.load() for name, pool in self._app.pools.items()}
        idle = [
            {"name": work.name, "table": work.table, "idle_seconds": round(work.idle_seconds), "call": str(work.site)}
            for work in self._work_states()
            if work.idle_seconds >= IDLE_SHOWN.total_seconds()
        ]
        details: dict[str, Any] = {
            "idle": idle,
            "pools": {name: load for name, load in loads.items() if load is not None},
            "loops": self.loops.state(),
            "busy": self.worker.busy if self.worker is not None else 0,
            "faults": self._report_faults(),
            "configuration": self._configuration,
            "policies": self._configured_policies,
            "places": {name: entry.table_places for name, entry in self._app.config.catalogs.items()},
        }
        runtime = self._runtime
        return ProcessRow(runtime.trigger.holder, self._kind, self._started, runtime.clock.now(), self._slots, details)

    @cached_property
    def _configured_policies(self) -> Mapping[str, str]:
        """Return the digest of the configured policy of each catalog; computing it first reads the store."""
        return {name: configured_policy(self._runtime, name) for name in self._runtime.scopes}

    def _report_faults(self) -> list[str]:
        """Return the faults of this process, and emit an event when others hold than at the last heartbeat."""
        faults = self.faults()
        if faults != self._reported_faults:
            self._runtime.emit("not_ready" if faults else "ready", {"faults": faults})
            self._reported_faults = faults
        return faults

    def _work_states(self) -> Sequence[WorkState]:
        jobs = () if self.worker is None else self.worker.states()
        return [*jobs, *self._evaluator.states()]

    def hanging(self) -> list[str]:
        """Return the work that was given up and whose threads still hang, each with its place."""
        return [f"{work.name} in {work.site}" for work in self._work_states() if work.abandoned]

    def faults(self) -> list[str]:
        """Return the faults that keep this process from working; empty while it can work."""
        store_faults = self._app.store_faults() or self._heartbeat_faults() or self._failing_loops()
        return [*store_faults, *self.stuck_loops()]

    def probed_faults(self) -> Sequence[str]:
        """Return `faults`, or that the store keeps them waiting, before who probes gives up."""
        try:
            return self._faults.answer()
        except TimeoutError:
            return [f"the state store has not answered within {_PROBE_LIMIT.total_seconds():g} s"]

    def _heartbeat_faults(self) -> list[str]:
        """Return why no heartbeat is recorded: a store that is read may be locked, or its disk full."""
        late = self.loops.lags()[self._beat.name]
        reason = self._beat.error or (f"since {late:.0f} s" if late > _LATE.total_seconds() else None)
        return [] if reason is None else [f"the heartbeat of this process is not recorded: {reason}"]

    def _failing_loops(self) -> list[str]:
        """Return the loops that the store fails again and again: one whose disk is full may still take heartbeats."""
        return [
            f"the loop {loop.name} fails: {loop.error}"
            for loop in self.loops.loops
            if loop.failures >= _FAILURES and loop.store_failed
        ]

    def stuck_loops(self) -> list[str]:
        """Return the loops that make no progress, which only a new process mends."""
        return [f"the loop {name} makes no progress" for name in self.loops.stuck()]

    def start(self) -> None:
        """Start the threads of all loops."""
        self._runtime.store.processes.record_heartbeat(self._row())
        self.loops.start()

    def stop(self, grace: timedelta) -> None:
        """Stop the loops, let running jobs end within the grace, cancel the rest, and deregister the process."""
        until = time.monotonic() + grace.total_seconds()
        self.loops.stop(min(grace, HEARTBEAT))
        self._evaluator.close(min(grace, HEARTBEAT))
        if self.worker is not None and not self._wait_for_jobs(until, self.worker):
            self._stopping.set()
            self._wait_for_jobs(time.monotonic() + min(grace, PATIENCE).total_seconds(), self.worker)
            self.worker.give_up_all()
        try:
            runtime = self._runtime
            for name in ("plan", "reconcile", "alerts"):
                runtime.store.leases.release(name, runtime.trigger.holder)
            runtime.store.processes.deregister([runtime.trigger.holder])
        except IcewrightError as error:  # the store is away: the missing heartbeat shows the end
            self._runtime.emit("deregister_failed", {"error": str(error)})

    def _wait_for_jobs(self, until: float, worker: Worker) -> bool:
        """Wait for running jobs with heartbeats; return whether all ended by this time of the monotonic clock."""
        while not worker.wait(min(HEARTBEAT, timedelta(seconds=max(0.0, until - time.monotonic())))):
            if time.monotonic() >= until:
                return False
            with suppress(IcewrightError):
                self._heartbeat()
        return True


def freeze_garbage_collector() -> None:
    """Exclude from garbage collection the objects that live as long as the process.

    Scanning them takes longer than listing thousands of tables.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def running(app: Application, *, kind: str, slots: int, grace: timedelta) -> Iterator[Service]:
    """Run a service for the duration of the block."""
    service = Service(app, kind=kind, slots=slots)
    freeze_garbage_collector()
    service.start()
    try:
        yield service
    finally:
        service.stop(grace)
