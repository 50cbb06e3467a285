"""Dispatch of steps to engines: Spark for heavy rewriting, the service for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import assert_never

from icewright.adapters.engines.arrow.convert_deletes import ConvertInService
from icewright.adapters.engines.arrow.statistics import StatisticsInService
from icewright.adapters.engines.checking import Checking
from icewright.adapters.engines.service.adopting import Adopting
from icewright.adapters.engines.service.copying import TableCopy
from icewright.adapters.engines.service.deletion import Deletion, DeletionResult, JobDeletion
from icewright.adapters.engines.service.doubts import require_clocks_agree
from icewright.adapters.engines.service.drawn_filters import drawn_filters
from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.adapters.engines.service.guard import DeletionGuard
from icewright.adapters.engines.service.layout_sample import LayoutSample
from icewright.adapters.engines.service.layout_trials import LayoutTrials
from icewright.adapters.engines.service.proof import TableProof
from icewright.adapters.engines.service.reachable import of_snapshots
from icewright.adapters.engines.service.recovery_points import point_costs, tag_recovery_points
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.adapters.engines.service.repair import TableRepair
from icewright.adapters.engines.service.rewrite_manifests import RewriteManifestsInService
from icewright.adapters.engines.service.row_search import RowSearch, Waiting
from icewright.adapters.engines.service.vacuum import BranchVacuum
from icewright.adapters.engines.spark.engine import SparkEngine
from icewright.adapters.engines.spark.layout_measuring import LayoutMeasuring, require_measurable
from icewright.core import cost
from icewright.core.allowlist import Allowlist, require_inside
from icewright.core.copying import CopyResult
from icewright.core.erasure import RowSearchReport
from icewright.core.errors import Refused, TableReplaced
from icewright.core.integrity import CheckLevel, IntegrityReport
from icewright.core.layout import FileSizes, LayoutReport
from icewright.core.policy import Operation
from icewright.core.recovery import PointCosts
from icewright.core.repair import RepairPlan
from icewright.core.retention import expired_by_iceberg
from icewright.core.runs import Outcome, committed
from icewright.core.steps import (
    CheckFiles,
    ComputeStatistics,
    ConvertEqualityDeletes,
    ExpireRows,
    ExpireSnapshots,
    RemoveOrphans,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeletes,
    TagRecoveryPoints,
)
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count
from icewright.ports import (
    Adoptable,
    Catalog,
    Clock,
    CopyRequest,
    MeasureRequest,
    Probe,
    RemoveSnapshots,
    RepairRequest,
    Restoring,
    StepRequest,
    Unfinished,
)
from icewright.ports.work import catalog_context

RESUME_CONCURRENCY = 16


@dataclass(frozen=True)
class Engines:
    """The Engine port over Spark and the service."""

    catalogs: Mapping[str, Catalog]
    deletion: Deletion
    guard: DeletionGuard
    spark: SparkEngine
    expire: ExpireInService
    orphans: RemoveOrphansInService
    manifests: RewriteManifestsInService
    conversion: ConvertInService
    statistics: StatisticsInService
    allowlists: Mapping[str, Allowlist] = field(default_factory=dict)  # of the catalogs that declare one
    vacuums: Mapping[str, BranchVacuum] = field(default_factory=dict)  # of catalogs with branches

    def run(self, request: StepRequest) -> Outcome:
        """Run the step, or with `dry_run` return what it would do."""
        with catalog_context(request.base.ref.catalog):
            timed = partial(_with_service_cost, started=self.deletion.clock.now(), clock=self.deletion.clock)
            on_partial_result = lambda outcome: request.on_partial_result(timed(outcome))  # noqa: E731
            return timed(self._run(replace(request, on_partial_result=on_partial_result)))

    def _run(self, request: StepRequest) -> Outcome:
        self._require_allowed(request.base)
        if not isinstance(request.step, (RemoveOrphans, CheckFiles)):  # one's guard looks when it scans, one only reads
            self.guard.require_maintainable(request.base)
        if isinstance(request.step, (ExpireSnapshots, ExpireRows, TagRecoveryPoints)) and not request.dry_run:
            only_metadata = isinstance(request.step, ExpireSnapshots) and not request.step.delete_files
            deletes = not (only_metadata or isinstance(request.step, TagRecoveryPoints))
            self._require_same_time(request.base, request.planned_at, deletes=deletes)  # writes a file for a moment
        catalog = self.catalogs[request.base.ref.catalog]
        match request.step:
            case (
                ExpireRows() | RewriteDataFiles() | RewritePositionDeletes() | RewriteManifests(by_spark=True)
            ) as step:
                return self.spark.run(catalog, request, step)
            case ExpireSnapshots(by_spark=True) as step if not request.dry_run:
                base = catalog.load(request.base.ref)
                self._require_unprotected(catalog, step, base, automatic=request.automatic)
                return self.spark.run(catalog, request, step)
            case ConvertEqualityDeletes() as step:
                return self.conversion.run(catalog, request, step)
            case RewriteManifests() as step:
                return self.manifests.run(catalog, request, step)
            case ComputeStatistics() as step:
                return self.statistics.run(catalog, request, step)
            case TagRecoveryPoints() as step:
                return tag_recovery_points(catalog, request, step)
            case ExpireSnapshots() as step:
                return self.expire.run(catalog, request, step)
            case RemoveOrphans() as step:
                return self.orphans.run(catalog, request, step)
            case CheckFiles() as step:
                return self._checking.run(catalog, request, step)
        assert_never(request.step)

    def resume(self, unfinished: Unfinished, *, outside: bool = True) -> Outcome:
        """Finish planned deletions of any operation, after the same proof."""
        with catalog_context(unfinished.ref.catalog):
            return self._resume(unfinished, outside=outside)

    def _resume(self, unfinished: Unfinished, *, outside: bool) -> Outcome:
        if vacuum := self.vacuums.get(unfinished.ref.catalog):
            apart = replace(vacuum, contents=replace(vacuum.contents))  # a vacuum may go on meanwhile
            return apart.resume(unfinished, vacuum.deletion.clock.now())
        base = self.catalogs[unfinished.ref.catalog].load(unfinished.ref)
        if base.table_uuid != unfinished.table_uuid:
            raise TableReplaced(
                f"{unfinished.ref} was replaced: the deletions that job {unfinished.job_id} planned are void"
            )
        self._require_allowed(base)
        notes = self._restore_lost_refs(unfinished)
        orphans = Operation.REMOVE_ORPHANS in unfinished.operations
        operation = Operation.REMOVE_ORPHANS if orphans else Operation.EXPIRE_SNAPSHOTS
        deleted = self._finish_deletion(base, unfinished, scanned=orphans, outside=outside)
        summary = f"finished deleting {count(len(deleted.files), 'file')} of job {unfinished.job_id}"
        return committed(operation, "; ".join((*notes, summary)), deleted.metrics, deleted.files, notes=deleted.notes)

    def _finish_deletion(
        self, base: TableMetadata, unfinished: Unfinished, *, scanned: bool, outside: bool
    ) -> DeletionResult:
        """Delete what an ended run planned, after the same proof as in the run."""
        if not unfinished.files:
            return DeletionResult(())
        self._require_same_time(base, unfinished.due_at)
        proof = TableProof(
            self.catalogs[base.ref.catalog],
            self.guard,
            self.deletion.clock,
            base,
            unfinished.files,
            self.orphans.holds,
            unfinished.planned_at,
            scanned=scanned,
            finishing=True,
            outside=outside,
        )
        job = JobDeletion(self.deletion, unfinished.job_id, base.location, proof, RESUME_CONCURRENCY)
        return job.finish(unfinished.files)

    def _restore_lost_refs(self, unfinished: Unfinished) -> list[str]:
        """Restore refs that the commit of a crashed process dropped; return notes on them."""
        catalog, intent = self.catalogs[unfinished.ref.catalog], unfinished.intent
        if intent is None or not isinstance(catalog, Restoring):
            return []
        change = RemoveSnapshots(intent.snapshot_ids, intent.refs)
        names = catalog.restore(unfinished.ref, intent.metadata_location, change)
        self.deletion.ledger.set_commit_intent(unfinished.job_id, None)
        return [f"{', '.join(names)} was set on a snapshot that went at that moment; it was put back"] if names else []

    def adoptable(self, ref: TableRef) -> Adoptable:
        """Return the places that a person may declare to be the table's own."""
        guard = self.vacuums[ref.catalog].guard if ref.catalog in self.vacuums else self.guard
        with catalog_context(ref.catalog):
            return Adopting(guard).adoptable(self.catalogs[ref.catalog].load(ref))

    def check(self, ref: TableRef, level: CheckLevel, snapshot_ids: frozenset[int] | None = None) -> IntegrityReport:
        """Check that the files of all snapshots, or of those named, exist and are what their entries say, by level."""
        catalog = self.catalogs[ref.catalog]
        metadata = catalog.load(ref)
        if snapshot_ids is not None:
            metadata = of_snapshots(metadata, snapshot_ids)
        with catalog_context(ref.catalog):
            return self._checking.report(metadata, level, catalog.load)

    def check_files(self, metadata: TableMetadata, level: CheckLevel) -> IntegrityReport:
        """Check the files of a table that no catalog may name."""
        return self._checking.report(metadata, level, lambda _: metadata)

    @property
    def _checking(self) -> Checking:
        return Checking(self.deletion.files, self.spark)

    def repair(self, request: RepairRequest) -> RepairPlan:
        """Repair what is provably right, or return what that would be."""
        self._require_allowed(request.base)
        catalog = self.catalogs[request.base.ref.catalog]
        with catalog_context(request.base.ref.catalog):
            self.guard.require_maintainable(request.base)
            return TableRepair(self.deletion.files, self.deletion.clock, catalog, request).run()

    def point_costs(
        self, metadata: TableMetadata, of_points: AbstractSet[int], expiring: AbstractSet[int]
    ) -> PointCosts:
        """Return the bytes that stay for the snapshots of recovery points alone."""
        with catalog_context(metadata.ref.catalog):
            return point_costs(self.deletion.files, metadata, of_points, expiring)

    def copy(self, request: CopyRequest) -> CopyResult:
        """Copy a table to another place, or return what that would copy."""
        self._require_allowed(request.base)
        if request.snapshot_id is not None:
            request = replace(request, base=of_snapshots(request.base, frozenset({request.snapshot_id})))
        with catalog_context(""):  # the copy is nobody's so far, and may be meant for another catalog
            return TableCopy(self.deletion.files, request).run()

    def find_rows(self, ref: TableRef, predicate: str) -> RowSearchReport:
        """Read every file that may hold rows of a table for those that match a predicate."""
        if ref.catalog in self.vacuums:
            raise Refused(f"{ref}: other branches of its catalog may keep the rows, and are not searched")
        ledger, guard = self.deletion.ledger, self.guard

        def waiting(ref: TableRef) -> Waiting:
            jobs = ledger.pending(ref)
            until = max((job.delete_after for job in jobs if job.delete_after is not None), default=None)
            return Waiting(frozenset(ledger.waiting_paths(ref)), tuple(job.job_id for job in jobs), until)

        def roots(metadata: TableMetadata) -> tuple[list[str], list[str]]:
            return guard.roots(guard.around(metadata))

        with catalog_context(ref.catalog):
            return RowSearch(self.deletion.files, self.catalogs[ref.catalog], predicate, roots, waiting).run(ref)

    def try_layouts(self, ref: TableRef, filters: Sequence[str], sizes: FileSizes) -> LayoutReport:
        """Return what filters would read in other layouts of a table's rows."""
        with catalog_context(ref.catalog):
            return LayoutTrials(self.deletion.files, self._current(ref), filters).run(sizes)

    def measure_layouts(self, request: MeasureRequest) -> LayoutReport:
        """Return the report with what Spark read in the promising layouts, on a branch of a sample."""
        ref, deletion = request.report.ref, self.deletion
        if ref.catalog in self.vacuums:
            raise Refused(f"{ref}: no layout is measured: tables have no branches of their own where the catalog has")
        catalog, pool = self.catalogs[ref.catalog], self.spark.pools[ref.catalog]
        base = catalog.load(ref)
        self._require_allowed(base)
        with catalog_context(ref.catalog):
            self.guard.require_maintainable(base)
            require_measurable(pool, base)
            sample = LayoutSample(deletion.files, deletion.clock, catalog, base, request.job_id)
            made = sample.commit(request.sample_bytes)
        return LayoutMeasuring(pool, deletion.clock, catalog, request, made).run()

    def draw_filters(self, ref: TableRef, templates: Mapping[str, float], now: datetime) -> Sequence[str]:
        """Return filters drawn from a table's rows, each template as often as queries have it."""
        with catalog_context(ref.catalog):
            return drawn_filters(self.deletion.files, self._current(ref), templates, now)

    def _current(self, ref: TableRef) -> TableMetadata:
        """Return a table with its current snapshot alone."""
        metadata = self.catalogs[ref.catalog].load(ref)
        head = frozenset([metadata.current_snapshot_id]) if metadata.current_snapshot_id is not None else frozenset()
        return of_snapshots(metadata, head)

    def probe(self, probe: Probe) -> Sequence[float]:
        """Return the query's seconds on each of the snapshots."""
        self._require_allowed(probe.table)
        return self.spark.probe(probe)

    def _require_unprotected(
        self, catalog: Catalog, step: ExpireSnapshots, base: TableMetadata, *, automatic: bool
    ) -> None:
        """Raise `Refused` if a deletion by Spark would touch a protected file: Spark checks no single file."""
        self._require_allowed(base)
        if step.delete_files and step.delay:
            raise Refused(
                f"{base.ref}: Spark deletes files at once: set deletion.delay_hours to 0, or expire_snapshots.engine "
                "to service, which leaves time for an undo",
                "spark_deletes_at_once",
            )
        others = expired_by_iceberg(base, self.deletion.clock.now())
        unplanned = [f"snapshot {s}" for s in others.snapshot_ids if s not in step.snapshot_ids]
        unplanned += [f"ref {name}" for name in others.remove_refs if name not in step.remove_refs]
        if unplanned:
            raise Refused(
                f"{base.ref}: Spark would expire {', '.join(unplanned[:3])} too, as a ref is past its own age, which a "
                "reader or writer still needs; set expire_snapshots.engine to service, which keeps what they need",
                "spark_expires_more",
            )
        ids = set(step.snapshot_ids) & set(base.by_id)
        planned = self.expire.planned(catalog, base, step, ids, automatic=automatic)
        allowlist, name = self.allowlists.get(base.ref.catalog), base.ref.catalog
        require_inside(allowlist, name, base, [*(file.path for file in planned.files), *planned.stays])
        if planned.stays:
            raise Refused(
                f"{base.ref}: Spark would delete {count(len(planned.stays), 'file')} that must stay "
                f"({'; '.join(planned.notes)}); set expire_snapshots.engine to service, which keeps them",
                "spark_deletes_all",
            )

    def _require_same_time(self, base: TableMetadata, planned_at: datetime | None, *, deletes: bool = True) -> None:
        """Raise `Refused` before a rule about age acts by a clock that is, or was then, far from the storage's."""
        now, time = self.deletion.clock.now(), self.orphans.storage_time
        require_clocks_agree(base, base.metadata_folder, now, time, planned_at=planned_at, deletes=deletes)

    def _require_allowed(self, base: TableMetadata) -> None:
        """Raise `Refused` before a step touches a table outside of its catalog's allowlist."""
        require_inside(self.allowlists.get(base.ref.catalog), base.ref.catalog, base)


def _with_service_cost(outcome: Outcome, started: datetime, clock: Clock) -> Outcome:
    """Return the outcome of work with its time, and the GB-hours of the service's memory beside those that it has.

    Spark's steps have measured both themselves.
    """
    if not outcome.metrics or "duration_ms" in outcome.metrics:
        return outcome
    seconds = (clock.now() - started).total_seconds()
    hours = cost.gb_hours(seconds, cost.SERVICE_MEMORY_GB) + outcome.metrics.get("gb_hours", 0.0)
    times = {"duration_ms": round(seconds * 1000), "gb_hours": round(hours, 9)}
    return replace(outcome, metrics={**outcome.metrics, **times})
