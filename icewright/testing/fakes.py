"""Fakes of the ports in memory, which pass the contract suites."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from icewright.core import table
from icewright.core.copying import CopyResult
from icewright.core.erasure import RowSearchReport
from icewright.core.errors import CommitConflict, IcewrightError, MetadataUnreadable, Refused, TableNotFound
from icewright.core.integrity import CheckLevel, IntegrityReport
from icewright.core.layout import FileSizes, LayoutReport, LayoutTrial
from icewright.core.recovery import PointCosts
from icewright.core.repair import RepairPlan, Unrepaired
from icewright.core.runs import Outcome, committed
from icewright.core.verify import snapshot_of
from icewright.ports.engine import Adoptable, CopyRequest, MeasureRequest, Probe, RepairRequest, StepRequest, Unfinished
from icewright.ports.lake import (
    AddSnapshot,
    Change,
    Clock,
    Pointer,
    RemoveSnapshots,
    RestoreSnapshots,
    SetRefs,
    SetStatistics,
)
from icewright.testing.builders import NOW


@dataclass
class FixedClock:
    """A clock that stands still unless it is set; sleeping moves it at once and is written down in `slept`."""

    time: datetime = NOW
    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        """Return the time that was set."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.slept.append(seconds)
        self.time += timedelta(seconds=seconds)

    def advance(self, **passed: float) -> datetime:
        """Let time pass, as in `advance(hours=3)`; returns the new time."""
        self.time += timedelta(**passed)
        return self.time


def no_effect(_base: table.TableMetadata, _change: Change) -> None:
    """Do nothing before or after a commit."""


@dataclass
class MemoryCatalog:
    """A Catalog port that keeps its tables in memory.

    `before_commit` and `after_commit` are called with the commit's arguments just before and just after the pointer is
    replaced. The former may commit as another writer (`concurrently`) or raise: then nothing has happened. The latter
    may raise too: then the commit has landed and its reply is lost. While `down` is set, every call raises it.
    """

    name: str = "lake"
    clock: Clock = field(default_factory=FixedClock)
    before_commit: Callable[[table.TableMetadata, Change], None] = no_effect
    after_commit: Callable[[table.TableMetadata, Change], None] = no_effect
    down: IcewrightError | None = None
    tables: dict[table.TableRef, table.TableMetadata] = field(default_factory=dict)
    beyond: list[table.TableMetadata] = field(default_factory=list)  # tables that the server shows elsewhere
    commits: list[Change] = field(default_factory=list)  # those that landed
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _written: int = 0

    def pointers(self) -> Sequence[Pointer]:
        """Return every table with its current metadata file."""
        self._raise_if_down()
        return [Pointer(ref, metadata.metadata_location) for ref, metadata in sorted(self.tables.items())]

    def load(self, ref: table.TableRef) -> table.TableMetadata:
        """Return the current metadata. Raises `TableNotFound`."""
        self._raise_if_down()
        if ref not in self.tables:
            raise TableNotFound(f"{ref}: the catalog does not know this table")
        return self.tables[ref]

    def neighbours(self) -> Sequence[Pointer]:
        """Return the pointers of every table of `beyond`."""
        self._raise_if_down()
        return [Pointer(neighbour.ref, neighbour.metadata_location) for neighbour in self.beyond]

    def neighbour(self, pointer: Pointer) -> table.TableMetadata:
        """Return the table of `beyond` with this metadata file, under the pointer's name."""
        for neighbour in self.beyond:
            if neighbour.metadata_location == pointer.metadata_location:
                return replace(neighbour, ref=pointer.ref)
        raise MetadataUnreadable(f"{pointer.ref}: there is no {pointer.metadata_location}")

    def unrestorable(self, base: table.TableMetadata, change: RestoreSnapshots) -> str:
        """Return the refs that another writer has set since the removal; blank if all can be restored."""
        conflicts = [r.name for r in base.refs if r.name in change.refs and r != _ref(r.name, change.refs[r.name])]
        return "; ".join(f"{name}, as somebody has set it since" for name in conflicts)

    def commit(self, base: table.TableMetadata, change: Change) -> table.TableMetadata:
        """Apply the change if `base` is still current."""
        self._raise_if_down()
        self.before_commit(base, change)
        with self._lock:
            current = self.tables.get(base.ref)
            if current is None or current.metadata_location != base.metadata_location:
                raise CommitConflict(f"{base.ref}: another writer committed since {base.metadata_location}")
            after = changed(base, change, self.clock.now())
            if after is base:
                return base
            after = self._replace_pointer(after)
            self.commits.append(change)
        self.after_commit(base, change)
        return after

    def put(self, metadata: table.TableMetadata) -> table.TableMetadata:
        """Store the table's metadata in place of the previous one."""
        self.tables[metadata.ref] = metadata
        return metadata

    def concurrently(self, ref: table.TableRef, **changes: Any) -> table.TableMetadata:
        """Return the result of another writer's commit: these fields changed, in a new metadata file."""
        with self._lock:
            return self._replace_pointer(replace(self.tables[ref], **changes))

    def _raise_if_down(self) -> None:
        if self.down is not None:
            raise self.down

    def _replace_pointer(self, metadata: table.TableMetadata) -> table.TableMetadata:
        self._written += 1
        location = f"{metadata.location}/metadata/{self._written:05d}-m.metadata.json"
        log = (*metadata.metadata_log, metadata.metadata_location)
        return self.put(replace(metadata, metadata_location=location, metadata_log=log))


def changed(base: table.TableMetadata, change: Change, now: datetime) -> table.TableMetadata:
    """Return the table after a change, without a metadata file of its own."""
    updated = max(now, base.last_updated)
    match change:
        case RemoveSnapshots(snapshot_ids=removed_ids):
            refs = tuple(r for r in base.refs if r.name not in change.refs)
            if referenced := [r for r in refs if r.snapshot_id in removed_ids]:
                raise Refused(f"snapshot {referenced[0].snapshot_id} is still referenced by {referenced[0].name}")
            lists = ("snapshots", "statistics", "partition_statistics")
            retained: Any = {n: tuple(s for s in getattr(base, n) if s.snapshot_id not in removed_ids) for n in lists}
            retained["specs"] = tuple(s for s in base.specs if s.spec_id not in change.specs)
            return replace(base, last_updated=updated, refs=refs, **retained)
        case AddSnapshot():
            added = snapshot_of(change.snapshot)
            heads = {r.name: r for r in base.refs}
            head = heads.get(change.branch, table.SnapshotRef(change.branch, table.RefKind.BRANCH, 0))
            heads[change.branch] = replace(head, snapshot_id=added.snapshot_id)
            return replace(
                base,
                last_updated=updated,
                refs=tuple(heads.values()),
                snapshots=(*base.snapshots, added),
                last_sequence_number=max(base.last_sequence_number, added.sequence_number),
                current_snapshot_id=added.snapshot_id if change.branch == table.MAIN else base.current_snapshot_id,
            )
        case RestoreSnapshots():
            back = [snapshot_of(s) for s in change.snapshots if s["snapshot-id"] not in base.by_id]
            named = [_ref(n, change.refs[n]) for n in sorted(change.refs.keys() - {r.name for r in base.refs})]
            if not back and not named:
                return base
            snapshots = sorted((*base.snapshots, *back), key=lambda s: (s.sequence_number, s.timestamp))
            return replace(base, last_updated=updated, refs=(*base.refs, *named), snapshots=tuple(snapshots))
        case SetRefs():
            if table.MAIN in change.removed or any(r.snapshot_id not in base.by_id for r in change.refs):
                raise Refused(f"{base.ref}: main cannot be removed, and a ref needs a snapshot that is there")
            heads = {r.name: r for r in base.refs if r.name not in change.removed} | {r.name: r for r in change.refs}
            current = heads[table.MAIN].snapshot_id if table.MAIN in heads else base.current_snapshot_id
            refs = tuple(heads.values())
            return replace(base, last_updated=updated, refs=refs, current_snapshot_id=current)
        case SetStatistics():
            if change.snapshot_id not in base.by_id:
                raise Refused(f"{base.ref}: statistics need a snapshot that is there")
            files = {n: f for n in ("statistics", "partition_statistics") if (f := getattr(change, n)) is not None}
            given: Any = {
                name: (
                    *(file for file in getattr(base, name) if file.snapshot_id != change.snapshot_id),
                    table.StatisticsFile(change.snapshot_id, file["statistics-path"], file["file-size-in-bytes"]),
                )
                for name, file in files.items()
            }
            return replace(base, last_updated=updated, **given)
        case _:
            assert_never(change)


def _ref(name: str, raw: Mapping[str, Any]) -> table.SnapshotRef:
    """Return a ref from the JSON of the spec, without its retention."""
    return table.SnapshotRef(name, table.RefKind(raw["type"]), raw["snapshot-id"])


@dataclass
class FunctionEngine:
    """An engine that calls a function; `requests`, `resumed` and `probes` record the calls in order."""

    function: Callable[[StepRequest], Outcome] = lambda request: committed(request.operation, "done", {})
    requests: list[StepRequest] = field(default_factory=list)
    resumed: list[Unfinished] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    def run(self, request: StepRequest) -> Outcome:
        """Return the function's result; its errors are passed on."""
        self.requests.append(request)
        return self.function(request)

    def resume(self, unfinished: Unfinished, *, outside: bool = True) -> Outcome:  # noqa: ARG002
        """Claim that every planned deletion was done."""
        self.resumed.append(unfinished)
        return committed(unfinished.operations[-1], "resumed", {"files_deleted": len(unfinished.files)})

    def adoptable(self, ref: table.TableRef) -> Adoptable:
        """Find nothing that stands in the way."""
        return Adoptable(f"uuid of {ref}", (), (), ())

    def check(
        self, ref: table.TableRef, level: CheckLevel, snapshot_ids: frozenset[int] | None = None
    ) -> IntegrityReport:
        """Find no fault in any file, and count the snapshots that were named."""
        return IntegrityReport(ref, "", level, len(snapshot_ids or ()), 0, ())

    def check_files(self, metadata: table.TableMetadata, level: CheckLevel) -> IntegrityReport:
        """Find no fault in any file."""
        return IntegrityReport(metadata.ref, metadata.metadata_location, level, len(metadata.snapshots), 0, ())

    def repair(self, request: RepairRequest) -> RepairPlan:
        """Repair no fault, and say so of each."""
        return RepairPlan((), tuple(Unrepaired(fault, "this engine repairs nothing") for fault in request.faults))

    def point_costs(
        self,
        metadata: table.TableMetadata,  # noqa: ARG002
        of_points: AbstractSet[int],
        expiring: AbstractSet[int],  # noqa: ARG002
    ) -> PointCosts:
        """Find a byte for each of the points' snapshots."""
        return PointCosts(len(of_points), dict.fromkeys(of_points, 1))

    def copy(self, request: CopyRequest) -> CopyResult:
        """Copy nothing, and name the place."""
        base, place = request.base, request.place
        return CopyResult(base.ref, place, f"{place}/metadata/v1.metadata.json", "", 0, 0, 0, 0, request.dry_run)

    def find_rows(self, ref: table.TableRef, predicate: str) -> RowSearchReport:
        """Find no row, and read no file."""
        return RowSearchReport(ref, f"uuid of {ref}", "", predicate, {}, (), (), (), (), {})

    def draw_filters(self, ref: table.TableRef, templates: Mapping[str, float], now: datetime) -> Sequence[str]:  # noqa: ARG002
        """Return the templates as they are."""
        return tuple(templates)

    def try_layouts(self, ref: table.TableRef, filters: Sequence[str], _sizes: FileSizes) -> LayoutReport:
        """Find that the files are best as they are."""
        return LayoutReport(ref, len(filters), 0, 0, (LayoutTrial(None, 0),))

    def measure_layouts(self, request: MeasureRequest) -> LayoutReport:
        """Measure nothing, and leave the predictions."""
        return request.report

    def probe(self, probe: Probe) -> Sequence[float]:
        """Claim that each snapshot is read in half of the time of the one before."""
        self.probes.append(probe)
        return [0.5**number for number, _ in enumerate(probe.snapshot_ids)]
