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
from icewright.core.environment import Environment
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
from icewright.ports import Assignment, Catalog, Probe, Unfinished

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
                self.expire.allowed(assignment.base, step)
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
        orphans = Operation.REMOVE_ORPHANS in unfinished.operations
        guard.not_registered_twice(base)
        if orphans:
            guard.alone(base)
        proof = reached(deletion.files, base)
        gone = deletion.finish(unfinished.job_id, base.location, unfinished.files, proof, RESUME_CONCURRENCY)
        operation = Operation.REMOVE_ORPHANS if orphans else Operation.EXPIRE_SNAPSHOTS
        summary = f"finished deleting {len(gone.files)} file(s) of job {unfinished.job_id}"
        metrics = {"files_deleted": len(gone.files), "files_failed": gone.failed}
        return committed(operation, summary, metrics, gone.files, notes=gone.notes)

    def probe(self, probe: Probe) -> Sequence[float]:
        """The seconds that the query takes on each of the snapshots."""
        self._in_environment(probe.table)
        return self.spark.probe(probe)

    def _in_environment(self, base: TableMetadata) -> None:
        """Raise `Refused` before anything is written or deleted for a table outside of what its catalog declares."""
        environment = self.environments.get(base.ref.catalog)
        places = [base.location, base.metadata_location, *base.write_paths]
        if environment is not None and (outside := environment.outside(places)):
            raise Refused(
                f"{base.ref}: {outside[0]} lies outside of catalogs.{base.ref.catalog}.environment.locations: nothing "
                "is done to it"
            )


def _costed(outcome: Outcome) -> Outcome:
    """The outcome with what it cost in the service's memory."""
    if "duration_ms" not in outcome.metrics:
        return outcome
    hours = cost.gb_hours(outcome.metrics["duration_ms"] / 1000, cost.SERVICE_MEMORY_GB)
    return replace(outcome, metrics={**outcome.metrics, "gb_hours": round(hours, 9)})
