"""A world of fakes around the real store: catalogs in memory, files that are facts, an engine that does as if."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn

import pyarrow as pa

from icewright.adapters.store.sql import SqlStore
from icewright.core.capacity import Limits
from icewright.core.guardrails import Guardrail
from icewright.core.layering import Policy, PolicyRule
from icewright.core.plan import MaintenancePlan
from icewright.core.policy import Operation
from icewright.core.restore import TableHistory
from icewright.core.runs import JobState, OperationState, Outcome, committed
from icewright.core.steps import ExpireSnapshots, RemoveOrphans, RewriteDataFiles
from icewright.core.table import (
    ManifestFacts,
    PartitionFacts,
    Snapshot,
    TableFacts,
    TableMetadata,
    TableRef,
    Thresholds,
)
from icewright.flow.cycle import CycleResult, detect_and_evaluate, run_cycle
from icewright.flow.detect import Detected, claim_due, detect
from icewright.flow.execute import JobResult, execute
from icewright.flow.limits import CurrentLimits
from icewright.flow.operation import Request
from icewright.flow.queue import plan_now
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.runtime import Runtime, Scope
from icewright.flow.scopes import StoredScopes
from icewright.ports import (
    AddSnapshot,
    Catalog,
    Change,
    DeleteReport,
    FileStat,
    RemoveSnapshots,
    SizeLimit,
    StepRequest,
    Trigger,
    ignore,
)
from icewright.testing import REF, FixedClock, FunctionEngine, MemoryCatalog, facts, manifests, metadata, partition

_, COMPACT, DELETES, MANIFESTS, _, _, EXPIRE, ORPHANS, _ = Operation
OLD = tuple(1000 - hours for hours in range(10))  # ages of snapshots of which five may be expired
YOUNG = (2.0, 1.0)


def detect_due(runtime: Runtime) -> Detected:
    """One round of detection, as the service makes it: whatever is due and not claimed."""
    return detect(runtime, claim_due(runtime))


@dataclass
class FactFiles:
    """Storage as far as the flow looks at it: facts by table, and what cannot be read. Whatever writes is counted."""

    partitions: dict[TableRef, tuple[PartitionFacts, ...]] = field(default_factory=dict)
    manifests_of: dict[TableRef, tuple[ManifestFacts, ...]] = field(default_factory=dict)
    broken: dict[TableRef, Exception] = field(default_factory=dict)
    read_tables: list[TableRef] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)  # snapshots whose planning was measured
    planning: dict[int, float | Exception] = field(default_factory=dict)  # the first measurement, the second ...

    def facts(self, metadata: TableMetadata, thresholds: Thresholds) -> TableFacts:
        """What was put there for the table."""
        ref = metadata.ref
        self.read_tables.append(ref)
        if ref in self.broken:
            raise self.broken[ref]
        found = self.partitions.get(ref, ())
        return facts(*found, of=metadata, thresholds=thresholds, manifests_of=self.manifests_of.get(ref))

    def outside(self, metadata: TableMetadata, snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
        """No table here uses files of others."""
        return ()

    def history(self, metadata: TableMetadata) -> TableHistory:
        """Main came to each snapshot when that was committed, and columns never changed."""
        return TableHistory(tuple((s.timestamp, s.snapshot_id) for s in metadata.snapshots), {})

    def planning_seconds(self, snapshot: Snapshot) -> float:
        """What was said; a hundredth of a second where nothing was."""
        self.planned.append(snapshot.snapshot_id)
        said = self.planning.get(len(self.planned), 0.01)
        if isinstance(said, Exception):
            raise said
        return said

    def _never(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the flow itself neither lists nor reads nor writes nor deletes files")

    def read(self, path: str, limit: SizeLimit | None = None) -> bytes:
        """Not by the flow."""
        self._never()

    def write(self, path: str, content: bytes) -> None:
        """Not by the flow."""
        self._never()

    def size(self, path: str) -> int | None:
        """Not by the flow."""
        self._never()

    def delete(
        self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None] | None = None
    ) -> DeleteReport:
        """Not by the flow."""
        self._never()

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Not by the flow."""
        self._never()

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Not by the flow."""
        self._never()

    def time(self, location: str) -> datetime:
        """Not by the flow."""
        self._never()

    def listing(self, location: str, unnamed: Callable[[str], None] = ignore) -> Iterator[pa.RecordBatch]:
        """Not by the flow."""
        self._never()

    read_range = candidates = manifest_lists = entries = manifests = live_files = avro = inventory = _never


@dataclass
class Bench:
    """The fakes, the knobs of the platform, and what became of it all."""

    store: SqlStore
    clock: FixedClock = field(default_factory=FixedClock)
    files: FactFiles = field(default_factory=FactFiles)
    settings: dict[str, Any] = field(default_factory=lambda: {"remove_orphans.enabled": False})
    rules: list[PolicyRule] = field(default_factory=list)
    guardrails: tuple[Guardrail, ...] = ()
    command: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    enabled: bool = True
    scopes: dict[str, Scope] = field(default_factory=dict)
    before: Callable[[StepRequest], None] = lambda _: None  # called when the engine is asked; may raise
    after: Callable[[StepRequest], None] = lambda _: None  # called when its work is done; may raise
    told: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.catalogs = {"lake": MemoryCatalog("lake", self.clock)}
        self.engine = FunctionEngine(self._work)
        self._numbers = iter(range(1000, 10**6))
        self._lock = threading.Lock()

    @property
    def catalog(self) -> MemoryCatalog:
        """The catalog `lake`."""
        return self.catalogs["lake"]

    def table(self, name: str = "orders", ages: Sequence[float] = OLD, catalog: str = "lake", **more: Any) -> TableRef:
        """Make a table; with the default ages its snapshots are due for expiry."""
        ref = TableRef(catalog, ("sales",), name)
        location = more.pop("location", f"s3://{catalog}/sales/{name}")
        made = metadata(ages, ref=ref, location=location, metadata_location=f"{location}/metadata/00000-a.json", **more)
        self.catalogs.setdefault(catalog, MemoryCatalog(catalog, self.clock)).put(made)
        return ref

    def rot(self, ref: TableRef = REF) -> None:
        """Let the table have small files and many manifests: compaction and manifest rewriting are due."""
        self.files.partitions[ref] = (partition(files=10, mb=1),)
        self.files.manifests_of[ref] = (manifests(20),)

    def runtime(self, **ports: Any) -> Runtime:
        """Everything wired; ports can be replaced."""
        given: dict[str, Any] = {
            "catalogs": dict[str, Catalog](self.catalogs),
            "files": self.files,
            "engine": self.engine,
            "store": self.store,
        }
        return Runtime(
            **{"trigger": Trigger("cycle", "me", "host:1:2"), **given, **ports},
            clock=self.clock,
            policy=self._policy,
            scopes=StoredScopes(
                {name: self.scopes.get(name, Scope(self.enabled)) for name in self.catalogs},
                self.store.catalogs,
                self.clock,
            ),
            limits=CurrentLimits(self.limits, self.store.limits.get),
            emit=lambda kind, details: self.told.append((kind, details)),
        )

    def _policy(self) -> Policy:
        platform = PolicyRule((), self.settings)
        return Policy((platform, *self.rules, *self.store.rules.list()), self.guardrails, self.command)

    def cycle(self, *catalogs: str, **options: Any) -> CycleResult:
        """One pass."""
        return run_cycle(self.runtime(), catalogs or sorted(self.catalogs), **options)

    def plan(self) -> MaintenancePlan:
        """What a pass would start."""
        runtime, catalogs = self.runtime(), sorted(self.catalogs)
        detect_and_evaluate(runtime, catalogs)
        return plan_now(runtime, catalogs)

    def run(self, *operations: Operation, ref: TableRef = REF, **options: Any) -> JobResult:
        """One job by hand, on a table that detection has seen."""
        known = {row.ref for row in self.store.tables.list()}
        if ref not in known:
            self.store.tables.record_listing(ref.catalog, self.catalogs[ref.catalog].pointers(), self.clock.now())
        return execute(self.runtime(), Request(ref, operations, **{"manual": True, **options}))

    def settle(self) -> list[str]:
        """What a start does after a crash: every other process is gone."""
        return reconcile_interrupted(replace(self.runtime(), process_has_ended=lambda _: True))

    @property
    def asked(self) -> list[tuple[str, Operation]]:
        """What the engine was asked to do, in order."""
        return [(a.base.ref.name, a.operation) for a in self.engine.requests]

    def events(self, kind: str) -> list[Mapping[str, Any]]:
        """What was told of a kind."""
        return [details for told, details in self.told if told == kind]

    def _work(self, request: StepRequest) -> Outcome:
        """Do as if: commit, and let the facts be better."""
        self.before(request)
        ref, step = request.base.ref, request.step
        change: Change | None = None
        if not request.dry_run:
            if isinstance(step, ExpireSnapshots):
                change = RemoveSnapshots(frozenset(step.snapshot_ids), frozenset(step.remove_refs))
            elif not isinstance(step, RemoveOrphans):
                change = AddSnapshot(self.replacement(request.base), "main")
        if change is not None:
            self.catalogs[ref.catalog].commit(request.base, change)
            if isinstance(step, RewriteDataFiles):
                self.files.partitions[ref] = (partition(files=1, mb=500),)
            elif isinstance(change, AddSnapshot):
                self.files.manifests_of[ref] = (manifests(1),)
        self.after(request)
        return committed(request.operation, "done", {"n": 1})

    def replacement(self, base: TableMetadata) -> dict[str, Any]:
        """A snapshot that rewrites what was there."""
        with self._lock:
            number = next(self._numbers)
        return {
            "snapshot-id": number,
            "parent-snapshot-id": base.current_snapshot_id,
            "sequence-number": base.last_sequence_number + 1,
            "timestamp-ms": int(self.clock.now().timestamp() * 1000),
            "manifest-list": f"{base.location}/metadata/snap-{number}.avro",
            "summary": {"operation": "replace", "added-records": "10", "deleted-records": "10"},
        }


def states(result: JobResult) -> dict[Operation, OperationState]:
    """What became of each operation."""
    return {o.operation: o.state for o in result.outcomes}


def job_states(bench: Bench) -> list[JobState]:
    """The states of all jobs, oldest first."""
    return [job.state for job in reversed(bench.store.jobs.list())]
