"""Snapshot expiry: commit the metadata, then delete what only the expired snapshots reached.

The list of deletions is the difference of two reachable sets. (Spark's action does the same; Iceberg's incremental
cleanup, which has lost live files more than once, is never used.) The list is in the ledger before the commit, and
after the commit it is proved again, against the metadata of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.deletion import Deletion, DeletionResult, JobDeletion
from icewright.adapters.engines.service.guard import DeletionGuard
from icewright.adapters.engines.service.listing import unreferenced_metadata_beside
from icewright.adapters.engines.service.proof import TableProof
from icewright.adapters.engines.service.replied import require_as_written
from icewright.adapters.engines.service.successors import require_no_successor
from icewright.adapters.metadata.changes import restoration
from icewright.core.errors import Cancelled, CommitConflict, InvariantViolated, LeaseLost
from icewright.core.operations.expire_snapshots import NOTHING
from icewright.core.policy import Operation
from icewright.core.retention import held_snapshots, unused_schemas
from icewright.core.runs import FileAction, Outcome, committed, skipped
from icewright.core.steps import ExpireSnapshots
from icewright.core.table import SnapshotHold, TableMetadata
from icewright.core.verify import expiry_violations
from icewright.core.words import count
from icewright.ports import Catalog, Intent, LedgerState, Removal, RemoveSnapshots, Restoring, StepRequest


@dataclass(frozen=True)
class Unreachable:
    """Files that only expiring snapshots reach, and the manifests whose content was compared to find them."""

    files: pl.DataFrame
    namesakes: pl.DataFrame  # those that have name and size of a live file elsewhere
    compared: sets.ComparedManifests


@dataclass(frozen=True, slots=True)
class Unused:
    """The ids of specs and schemas that only the expired snapshots used."""

    specs: frozenset[int] = frozenset()
    schemas: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self.specs) + len(self.schemas)


@dataclass(frozen=True)
class PlannedExpiry:
    """The files that an expiry would delete, and those that stay for others."""

    files: tuple[FileAction, ...]
    notes: tuple[str, ...]
    compared: sets.ComparedManifests | None  # of the snapshots that stay: none names one of the files
    stays: tuple[str, ...]  # files that stay although only expired snapshots reach them


@dataclass(frozen=True)
class ExpireInService:
    """Runs snapshot expiry without Spark."""

    deletion: Deletion
    guard: DeletionGuard
    holds: Callable[[TableMetadata], Sequence[SnapshotHold]]

    def run(self, catalog: Catalog, request: StepRequest, step: ExpireSnapshots) -> Outcome:
        """Expire snapshots, or list the files to delete. Raises `CommitConflict` when the table changed meanwhile."""
        base, started = request.base, self.deletion.clock.now()
        ids = set(step.snapshot_ids) & set(base.by_id)
        planned = self.planned(catalog, base, step, ids, automatic=request.automatic)
        unused = self._unused(base, ids, planned.compared) if step.clean_metadata else _USED
        if not (ids or step.remove_refs or unused.count):
            return skipped(Operation.EXPIRE_SNAPSHOTS, NOTHING)

        def outcome(deleted: DeletionResult) -> Outcome:
            notes = (*step.losses, *planned.notes, *deleted.notes)
            return _outcome(len(ids), step, unused, deleted, notes, dry_run=request.dry_run)

        if request.dry_run:
            return outcome(DeletionResult(planned.files))
        self._commit(catalog, request, step, planned.files, unused, started)
        try:
            deleted = self._deleted(catalog, request, step, planned, started)
        except (Cancelled, LeaseLost):  # the commit landed; the next reconciliation finishes the deletions
            request.on_partial_result(outcome(DeletionResult((), len(planned.files))))
            raise
        return outcome(deleted)

    def planned(
        self, catalog: Catalog, base: TableMetadata, step: ExpireSnapshots, ids: set[int], *, automatic: bool
    ) -> PlannedExpiry:
        """Return the files to delete. Raises `Refused` if none may be deleted, `CommitConflict` after a new pin."""
        require_as_written(catalog, base)
        with self.guard.registry.reading_together():
            self._require_unpinned(base, step)
            if not (ids and step.delete_files):
                return _NO_FILES
            recorded = self.guard.recorded(base)
        surroundings = self.guard.around(base, recorded=recorded)
        unreferenced = unreferenced_metadata_beside(
            self.deletion.files, base, surroundings.former_versions, surroundings.metadata_folders
        )
        read, clock = self.deletion.files.read, self.deletion.clock
        require_no_successor(base, unreferenced, read, lambda: catalog.load(base.ref), clock, surroundings.adopted)
        unreachable = self.unreachable(base, ids, totals=step.check_totals)
        judgement = self.guard.judge(surroundings, unreachable.files, outside=step.outside, automatic=automatic)
        actions = _file_actions(judgement.files)
        files, replaced = self.deletion.existing(actions, step.max_concurrent_deletes)
        aliases = dict.fromkeys(unreachable.namesakes["path"], _ALIAS)
        judgement = replace(judgement, stays={**judgement.stays, **replaced, **aliases})
        return PlannedExpiry(files, tuple(judgement.notes()), unreachable.compared, tuple(judgement.stays))

    def unreachable(self, metadata: TableMetadata, ids: set[int], *, totals: bool) -> Unreachable:
        """Return the files that the given snapshots reach and no other snapshot of the table does."""
        files = self.deletion.files
        expired, retained = (sets.of_snapshots(metadata, chosen) for chosen in (ids, metadata.by_id.keys() - ids))
        retained_manifests = sets.manifests_of(files, retained.snapshots, totals=totals)
        all_manifests = sets.manifests_of(files, expired.snapshots)
        expired_manifests = all_manifests.join(retained_manifests, on="path", how="anti")  # the rest need not be read
        named = [sets.lists_of(expired.snapshots), sets.statistics_of(expired), sets.as_files(expired_manifests)]
        candidates = pl.concat([*sets.content_of(files, expired_manifests), *named]).unique("path")
        reached = sets.reached(files, retained, retained_manifests)
        free, namesakes = sets.without_namesakes(candidates, reached, files.canonical, metadata.location)
        return Unreachable(free, namesakes, sets.ComparedManifests.of(retained.snapshots, retained_manifests))

    def _unused(self, metadata: TableMetadata, ids: set[int], compared: sets.ComparedManifests | None) -> Unused:
        """Return specs and schemas that no retained snapshot uses; none where a snapshot does not name its schema."""
        retained = [s for s in metadata.snapshots if s.snapshot_id not in ids]
        manifests = sets.manifests_of(self.deletion.files, retained) if compared is None else compared.manifests
        used_specs = set(manifests["spec_id"]) | {metadata.default_spec_id}
        specs = frozenset(s.spec_id for s in metadata.specs) - used_specs
        return Unused(specs, unused_schemas(metadata, retained))

    def _commit(
        self,
        catalog: Catalog,
        request: StepRequest,
        step: ExpireSnapshots,
        actions: Sequence[FileAction],
        unused: Unused,
        started: datetime,
    ) -> None:
        """Commit the expiry, once the ledger has its files and what it removes. Raises `CommitConflict` before that."""
        base, job_id, ledger = request.base, request.job_id, self.deletion.ledger
        change = RemoveSnapshots(
            frozenset(step.snapshot_ids), frozenset(step.remove_refs), unused.specs, unused.schemas
        )
        removal = self._removal(job_id, base, change)
        until = started + step.delay if step.delay else None
        with self.deletion.writing_together():
            self._require_unpinned(base, step)
            request.check()
            ledger.plan(job_id, base.ref, actions, LedgerState.PLANNED, started, until, Operation.EXPIRE_SNAPSHOTS)
            ledger.record_removal(removal)
            if isinstance(catalog, Restoring):  # if this process ends in the middle, the next one looks after it
                ledger.set_commit_intent(job_id, Intent(base.metadata_location, change.snapshot_ids, change.refs))
        try:
            after = catalog.commit(base, change)
            if isinstance(catalog, Restoring):
                ledger.set_commit_intent(job_id, None)
        except (CommitConflict, InvariantViolated) as error:
            if isinstance(catalog, Restoring) and not isinstance(error, InvariantViolated):
                ledger.set_commit_intent(job_id, None)
            if not isinstance(error, InvariantViolated):
                ledger.close_removal(removal, None)
            self.deletion.keep(job_id, actions, "the commit came to nothing")
            raise
        if broken := expiry_violations(base, after, step.snapshot_ids, step.remove_refs, unused.specs):
            raise InvariantViolated(
                f"{base.ref}: expire_snapshots broke the table: {'; '.join(broken)}; nothing deleted"
            )

    def _removal(self, job_id: str, base: TableMetadata, change: RemoveSnapshots) -> Removal:
        """Return the objects that the commit removes, as JSON of the metadata file, for an undo to restore."""
        location = base.metadata_location
        document = restoration(self.deletion.files.read(location), location, change).to_json()
        return Removal(job_id, base.table_uuid, location, self.deletion.clock.now(), document)

    def _require_unpinned(self, base: TableMetadata, step: ExpireSnapshots) -> None:
        """Raise `CommitConflict` when somebody pinned one of the snapshots since they were chosen."""
        if held_snapshots(base, self.holds(base), self.deletion.clock.now()) & set(step.snapshot_ids):
            raise CommitConflict(f"{base.ref}: a reader pinned a snapshot that was about to go")

    def _deleted(
        self, catalog: Catalog, request: StepRequest, step: ExpireSnapshots, planned: PlannedExpiry, started: datetime
    ) -> DeletionResult:
        if not planned.files:
            return DeletionResult(())
        proof = TableProof(
            catalog,
            self.guard,
            self.deletion.clock,
            request.base,
            planned.files,
            self.holds,
            started,
            scanned=False,
            outside=step.outside,
            compared=planned.compared,
        )
        concurrency, location = step.max_concurrent_deletes, request.base.location
        job = JobDeletion(self.deletion, request.job_id, location, proof, concurrency, request.check)
        return job.carry_out(planned.files, owed=True, delay=step.delay)


_ALIAS = "a live file elsewhere has the same name and size: it may be this one, under another path"
_USED = Unused()
_NO_FILES = PlannedExpiry((), (), None, ())


def _file_actions(frame: pl.DataFrame) -> tuple[FileAction, ...]:
    return tuple(FileAction(p, b, k) for p, b, k in frame.select("path", "bytes", "kind").sort("path").rows())


def _outcome(
    snapshots: int,
    step: ExpireSnapshots,
    unused: Unused,
    deleted: DeletionResult,
    notes: tuple[str, ...],
    *,
    dry_run: bool,
) -> Outcome:
    expired_verb, deleted_verb, removed_verb = (
        ("would expire", "delete", "remove") if dry_run else ("expired", "deleted", "removed")
    )
    refs = f", {removed_verb} {count(len(step.remove_refs), 'ref')}" if step.remove_refs else ""
    refs += f", {removed_verb} {unused.count} unused partition specs and schemas" if unused.count else ""
    files = f"{deleted_verb} {count(len(deleted.files), 'unreferenced file')}"
    if deleted.waiting:
        files = (
            f"{count(len(deleted.waiting), 'unreferenced file')} to be deleted after {deleted.until:%Y-%m-%d %H:%M} UTC"
        )
    return committed(
        Operation.EXPIRE_SNAPSHOTS,
        f"{expired_verb} {count(snapshots, 'snapshot')}, {files}{refs}",
        {"snapshots_expired": snapshots, "refs_removed": len(step.remove_refs), **deleted.metrics},
        deleted.files or deleted.waiting,
        notes=notes,
        retained=step.retained,
    )
