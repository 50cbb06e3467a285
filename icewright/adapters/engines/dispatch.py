"""Which engine carries out which step: Spark for heavy rewriting, the service for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from icewright.adapters.engines.service.expire_snapshots import ExpireInService
from icewright.adapters.engines.service.reachable import reached
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.adapters.engines.service.rewrite_manifests import RewriteManifestsInService
from icewright.adapters.engines.service.vacuum import BranchVacuum
from icewright.adapters.engines.spark.engine import SparkEngine
from icewright.core import cost
from icewright.core.environment import Environment, keep_inside
from icewright.core.errors import Refused, TableReplaced
from icewright.core.policy import Operation
from icewright.core.runs import Outcome, committed
from icewright.core.steps import (
    ExpireRows,
    ExpireSnapshots,
    RemoveOrphans,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeletes,
)
from icewright.core.table import TableMetadata
from icewright.core.vacuum import gc_enabled
from icewright.ports import Assignment, Catalog, Probe, RemoveSnapshots, Restoring, Unfinished

RESUME_CONCURRENCY = 16


@dataclass(frozen=True)
class Engines:
    """The Engine port over both."""

    catalogs: Mapping[str, Catalog]
    spark: SparkEngine
    expire: ExpireInService
    orphans: RemoveOrphansInService
    manifests: RewriteManifestsInService
    environments: Mapping[str, Environment] = field(default_factory=dict)  # of the catalogs that declare one
    vacuums: Mapping[str, BranchVacuum] = field(default_factory=dict)  # of catalogs with branches

    def run(self, assignment: Assignment) -> Outcome:
        """Do the step, or say what it would do."""
        self._in_environment(assignment.base)
        catalog = self.catalogs[assignment.base.ref.catalog]
        match assignment.step:
            case ExpireRows() | RewriteDataFiles() | RewritePositionDeletes() as step:
                return self.spark.run(catalog, assignment, step)
            case RewriteManifests(by_spark=True) as step:
                return self.spark.run(catalog, assignment, step)
            case ExpireSnapshots(by_spark=True) as step if not assignment.dry_run:
                self._spark_deletes_inside(catalog.load(assignment.base.ref), step)
                return self.spark.run(catalog, assignment, step)
            case RewriteManifests() as step:
                return _costed(self.manifests.run(catalog, assignment, step))
            case ExpireSnapshots() as step:
                return _costed(self.expire.run(catalog, assignment, step))
            case RemoveOrphans() as step:
                return _costed(self.orphans.run(catalog, assignment, step))
        assert_never(assignment.step)

    def resume(self, unfinished: Unfinished) -> Outcome:
        """Finish planned deletions, whichever operation planned them: the proof is the same."""
        if vacuum := self.vacuums.get(unfinished.ref.catalog):
            return vacuum.resume(unfinished, vacuum.deletion.clock.now())
        base = self.catalogs[unfinished.ref.catalog].load(unfinished.ref)
        if base.table_uuid != unfinished.table_uuid:
            raise TableReplaced(
                f"{unfinished.ref} was replaced: the deletions that job {unfinished.job_id} planned are void"
            )
        self._in_environment(base)
        guard, deletion = self.orphans.guard, self.orphans.deletion
        notes = self._looked_after(unfinished)
        if notes:
            base = self.catalogs[unfinished.ref.catalog].load(unfinished.ref)
        orphans = Operation.REMOVE_ORPHANS in unfinished.operations
        if unfinished.files and not gc_enabled(base.properties):
            raise Refused(f"{base.ref}: gc.enabled is false now: nothing is deleted")
        guard.still_allowed(base, unfinished.files)
        guard.not_registered_twice(base)
        if orphans:
            guard.alone(base)
        proof = reached(deletion.files, base)
        gone = deletion.finish(unfinished.job_id, base.location, unfinished.files, proof, RESUME_CONCURRENCY)
        operation = Operation.REMOVE_ORPHANS if orphans else Operation.EXPIRE_SNAPSHOTS
        summary = f"finished deleting {len(gone.files)} file(s) of job {unfinished.job_id}"
        return committed(operation, "; ".join((*notes, summary)), gone.metrics, gone.files, notes=gone.notes)

    def _looked_after(self, unfinished: Unfinished) -> list[str]:
        """Put back what a commit dropped whose process ended before it could; says so."""
        catalog, intent = self.catalogs[unfinished.ref.catalog], unfinished.intent
        if intent is None or not isinstance(catalog, Restoring):
            return []
        change = RemoveSnapshots(intent.snapshot_ids, intent.refs)
        names = catalog.restore(unfinished.ref, intent.metadata_location, change)
        self.orphans.deletion.ledger.intend(unfinished.job_id, None)
        return [f"{', '.join(names)} was set on a snapshot that went at that moment; it was put back"] if names else []

    def probe(self, probe: Probe) -> Sequence[float]:
        """The seconds that the query takes on each of the snapshots."""
        self._in_environment(probe.table)
        return self.spark.probe(probe)

    def _spark_deletes_inside(self, base: TableMetadata, step: ExpireSnapshots) -> None:
        """Raise `Refused` when Spark's own deletion would touch a file outside: it asks nobody file by file."""
        self._in_environment(base)
        self.expire.allowed(base, step)
        if not step.delete_files:
            return
        environment, ref = self.environments.get(base.ref.catalog), base.ref
        doomed = self.expire.doomed(base, set(step.snapshot_ids) & set(base.by_id), totals=step.check_totals).files
        keep_inside(environment, ref.catalog, base, doomed["path"])
        if outside := doomed.height - self.expire.guard.allowed(base, doomed).height:
            raise Refused(
                f"{ref}: Spark would delete {outside} file(s) outside of catalogs.{ref.catalog}.allowed_locations; set "
                "expire_snapshots.engine to service, which keeps them"
            )

    def _in_environment(self, base: TableMetadata) -> None:
        """Raise `Refused` before anything is written or deleted for a table outside of what its catalog declares."""
        keep_inside(self.environments.get(base.ref.catalog), base.ref.catalog, base)


def _costed(outcome: Outcome) -> Outcome:
    """The outcome with what it cost in the service's memory."""
    if "duration_ms" not in outcome.metrics:
        return outcome
    hours = cost.gb_hours(outcome.metrics["duration_ms"] / 1000, cost.SERVICE_MEMORY_GB)
    return replace(outcome, metrics={**outcome.metrics, "gb_hours": round(hours, 9)})
