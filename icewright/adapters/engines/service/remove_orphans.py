"""Orphan removal: delete files in the table's places that no metadata of the table reaches.

The listing comes first and the table is loaded after it, so that a file committed in between is reached; before any
deletion the table is loaded once more. Uncertain files stay, and a doubt about the whole listing stops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.deletion import Deletion, DeletionResult, JobDeletion
from icewright.adapters.engines.service.doubts import Doubts, require_clocks_agree_at, require_few_orphans
from icewright.adapters.engines.service.guard import DeletionGuard, Judgement
from icewright.adapters.engines.service.listing import (
    ORPHAN,
    LocationListing,
    PathHashes,
    hashed,
    namesakes,
    unreferenced_metadata_beside,
)
from icewright.adapters.engines.service.proof import Holds, TableProof
from icewright.adapters.engines.service.replied import require_as_written
from icewright.adapters.engines.service.successors import (
    IdentifiedMetadata,
    UnreferencedMetadata,
    require_no_foreign_table,
    require_no_successor,
)
from icewright.adapters.engines.service.surroundings import Surroundings
from icewright.core.errors import Refused, TableReplaced
from icewright.core.paths import same_place, split
from icewright.core.places import is_object_store
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, Outcome, committed
from icewright.core.steps import RemoveOrphans
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count
from icewright.core.writer_state import total_files
from icewright.ports import Catalog, LedgerState, StepRequest
from icewright.ports.work import WorkerThreads

_SHOWN = 20  # names that notes list one by one
_MANY = 20_000  # files of a table whose listing is worth a wait for what it reaches
_EVERY, _PART = 500, 20  # one of so many paths is in a sample, of which so many are listed one after the other
_NO_ORPHANS = pl.DataFrame(schema=ORPHAN)


@dataclass(frozen=True)
class OrphanScan:
    """The result of listing a table's locations and comparing them with its metadata."""

    begun: datetime
    listed: int
    found: int
    orphans: tuple[FileAction, ...]  # at most `max_files` of those found
    notes: tuple[str, ...]
    compared: sets.ComparedManifests


@dataclass(frozen=True, slots=True)
class _Reached:
    """A state of the table, the paths that it reaches, and the manifests that were read for them."""

    metadata: TableMetadata
    paths: PathHashes
    manifests: pl.DataFrame


@dataclass(frozen=True)
class RemoveOrphansInService:
    """Runs orphan removal: lists a table's places and deletes what no metadata of the table reaches."""

    deletion: Deletion
    guard: DeletionGuard
    holds: Holds
    storage_time: Callable[[str], datetime]  # the clock by which files below a location are dated

    def run(self, catalog: Catalog, request: StepRequest, step: RemoveOrphans) -> Outcome:
        """Scan the table's places and delete as far as the mode allows. Raises `Refused` on any doubt."""
        base = request.base
        scan = self.scan(catalog, request, step)
        chosen = self._orphans_to_delete(base, scan.orphans, step)
        deleted = DeletionResult(chosen)
        if not request.dry_run:
            self._record_findings(request.job_id, base, scan.orphans)
            deleted = self._deleted(catalog, request, step, scan, chosen) if chosen else deleted
        return committed(
            Operation.REMOVE_ORPHANS,
            _summary(scan.found, deleted, step, dry_run=request.dry_run),
            {
                "orphans_found": scan.found,
                "orphans_removed": len(deleted.files),
                **{name: value for name, value in deleted.metrics.items() if name != "files_deleted"},
                "files_scanned": scan.listed,
                "every_hours": step.every_hours,
            },
            scan.orphans if step.mode == "report" else deleted.files or deleted.waiting,
            notes=(*scan.notes, *deleted.notes),
        )

    def _deleted(
        self,
        catalog: Catalog,
        request: StepRequest,
        step: RemoveOrphans,
        scan: OrphanScan,
        chosen: tuple[FileAction, ...],
    ) -> DeletionResult:
        """Delete the chosen orphans, each under the proof that nothing has come to need it since the scan."""
        base = request.base
        request.check()  # the scan may have taken hours
        proof = TableProof(
            catalog,
            self.guard,
            self.deletion.clock,
            base,
            chosen,
            self.holds,
            scan.begun,
            scanned=True,
            compared=scan.compared,
        )
        concurrency, location = step.max_concurrent_deletes, base.location
        job = JobDeletion(self.deletion, request.job_id, location, proof, concurrency, request.check)
        return delete_orphans(job, base.ref, chosen, step.delay)

    def scan(self, catalog: Catalog, request: StepRequest, step: RemoveOrphans) -> OrphanScan:
        """Return the orphans: list first, then load the table, so that every commit during the listing is seen."""
        files, base, begun = self.deletion.files, request.base, self.deletion.clock.now()
        surroundings = self.guard.around(base)
        roots, notes = self.guard.roots(surroundings)
        doubts = self._doubts(request, step, surroundings, roots)
        invalid_names: list[str] = []
        with closing(LocationListing(base, step.older_than, files.canonical)) as listing:
            table = self._listed_and_loaded(catalog, listing, step, roots, invalid_names)
            reached, read_again = table.paths, partial(sets.reached, files, table.metadata, table.manifests)
            mismatches = listing.mismatches(
                reached, lambda one, other: same_prefix(one, other, step.equal_schemes, step.equal_authorities)
            )
            if step.prefix_mismatch == "error":
                require_same_prefixes(base, mismatches)
            unreferenced = listing.unreferenced_metadata(reached)
            identified = self._identified(catalog, table.metadata, unreferenced, surroundings, roots)
            names = listing.names_not_listed(reached, read_again, None if step.inventory else files)
            judged = judge_orphans(self.guard, surroundings, listing.orphans(reached), names, roots)
            orphans, orphan_count, stays = first_orphans(judged, step.max_files, doubts, identified.documents)
        if doubts is not None:
            doubts.check_folders(read_again, files.canonical)
        require_few_orphans(base, orphan_count, listing.files, step.max_delete_ratio)
        notes += [f"files under {one} stay: the table names them under {other}" for one, other in mismatches]
        notes += [*stays, *(f"{root} is not scanned: there is no such folder" for root in listing.missing)]
        waiting = orphan_count - len(orphans)
        notes += [f"{waiting} more orphans wait for the next run"] if waiting else []
        notes += _notes_on_names(identified, invalid_names)
        compared = sets.ComparedManifests.of(table.metadata.snapshots, table.manifests)
        return OrphanScan(begun, listing.files, orphan_count, orphans, tuple(notes), compared)

    def _listed_and_loaded(
        self,
        catalog: Catalog,
        listing: LocationListing,
        step: RemoveOrphans,
        roots: Sequence[str],
        invalid_names: list[str],
    ) -> _Reached:
        """List the table's places, load the table after that, and return what it reaches, or others still delete.

        What the listing's table reaches is read meanwhile; it counts if the catalog still names that state afterwards.
        """
        base, head, known = listing.metadata, listing.metadata.current_snapshot, list[str]()
        with WorkerThreads(1) as meanwhile:
            early = meanwhile.submit(self._reached, base, step, known)
            if head is not None and is_object_store(base.location) and (total_files(head) or 0) >= _MANY:
                wait([early])  # a listing that knows some files is many times as quick
            for root in roots:
                listing.add_all(root, self._listed(root, step, invalid_names.append, sorted(known)[_PART::_PART]))
            fresh = catalog.load(base.ref)
            if fresh.table_uuid != base.table_uuid or fresh.location != base.location:
                raise TableReplaced(f"{base.ref} was replaced while it was scanned: nothing is deleted")
            require_as_written(catalog, fresh)
            table = early.result() if fresh == base else self._reached(fresh, step)
        # another job deletes these, or an undo takes them back
        waiting_deletions = self.deletion.planned(base.ref, base.table_uuid)
        table.paths.add(hashed(waiting_deletions, self.deletion.files.canonical))
        return table

    def _doubts(
        self, request: StepRequest, step: RemoveOrphans, surroundings: Surroundings, roots: Sequence[str]
    ) -> Doubts | None:
        """Return the doubts of an automatic run that deletes; None for any other run.

        Raises `Refused` when such a run would scan a place that the table moved to, and when clocks disagree.
        """
        base, deletes = request.base, step.mode != "report"
        doubts = Doubts(base, surroundings.adopted) if request.automatic and deletes else None
        if doubts is not None and (moved := surroundings.moved(roots)):
            raise doubts.moved(moved)
        now, planned_at = self.deletion.clock.now(), request.planned_at
        require_clocks_agree_at(base, roots, now, self.storage_time, planned_at=planned_at, deletes=deletes)
        return doubts

    def _identified(
        self,
        catalog: Catalog,
        fresh: TableMetadata,
        listed: Sequence[UnreferencedMetadata],
        surroundings: Surroundings,
        roots: Sequence[str],
    ) -> IdentifiedMetadata:
        """Return what the listed metadata files are that the table does not reach.

        Raises `Refused` if another table left one of them, or another writer of this table, who may also have left one
        in a folder that was not listed.
        """
        files, clock = self.deletion.files, self.deletion.clock
        former = surroundings.former_versions, surroundings.metadata_folders
        unreferenced = [*listed, *unreferenced_metadata_beside(files, fresh, *former, roots)]
        identified = require_no_successor(
            fresh, unreferenced, files.read, lambda: catalog.load(fresh.ref), clock, surroundings.adopted
        )
        versions = identified.among({file.path for file in listed})
        require_no_foreign_table(fresh, versions)
        return versions

    def _reached(self, metadata: TableMetadata, step: RemoveOrphans, sample: list[str] | None = None) -> _Reached:
        """Return what the table reaches, and add some of the paths to the `sample`."""
        files = self.deletion.files
        manifests = sets.manifests_of(files, metadata.snapshots, totals=step.check_totals)
        chunks = sets.reached(files, metadata, manifests)
        paths = PathHashes.of(chunks if sample is None else _sampled(chunks, sample), files.canonical)
        return _Reached(metadata, paths, manifests)

    def count(self, base: TableMetadata, older_than: datetime) -> int:
        """Return the number of old files under the location that the table does not reach, of any owner."""
        files = self.deletion.files
        with closing(LocationListing(base, older_than, files.canonical)) as listing:
            listing.add_all(base.location, files.listing(base.location))
            reached = PathHashes.of(sets.reached(files, base), files.canonical)
            return sum(chunk.height for chunk in listing.orphans(reached))

    def _listed(
        self, root: str, step: RemoveOrphans, on_invalid_name: Callable[[str], None], known: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        files = self.deletion.files
        if step.inventory is None:
            return files.listing(root, on_invalid_name, known)
        return files.inventory(step.inventory, root, on_invalid_name)

    def _orphans_to_delete(
        self, base: TableMetadata, orphans: Sequence[FileAction], step: RemoveOrphans
    ) -> tuple[FileAction, ...]:
        match step.mode:
            case "delete":
                return tuple(orphans)
            case "confirm":
                first = self.deletion.ledger.found_orphans(base.ref, base.table_uuid)
                never = datetime.max.replace(tzinfo=step.confirm_before.tzinfo)
                return tuple(f for f in orphans if first.get(f.path, never) <= step.confirm_before)
        return ()

    def _record_findings(self, job_id: str, base: TableMetadata, orphans: Sequence[FileAction]) -> None:
        """Record new orphans in the ledger for their confirmation, and drop those that are no orphans any more."""
        ledger = self.deletion.ledger
        found_before = ledger.found_orphans(base.ref, base.table_uuid)
        paths = {f.path for f in orphans}
        ledger.forget_orphans(base.ref, [p for p in found_before if p not in paths])
        fresh = [f for f in orphans if f.path not in found_before]
        ledger.plan(job_id, base.ref, fresh, LedgerState.FOUND, self.deletion.clock.now())


def delete_orphans(job: JobDeletion, ref: TableRef, orphans: Sequence[FileAction], delay: timedelta) -> DeletionResult:
    """Plan the deletion of orphans, and carry it out when no delay is asked for."""
    now = job.deletion.clock.now()
    until = now + delay if delay else None
    job.deletion.ledger.plan(job.job_id, ref, orphans, LedgerState.PLANNED, now, until, Operation.REMOVE_ORPHANS)
    return job.carry_out(orphans, owed=False, delay=delay)


def judge_orphans(
    guard: DeletionGuard,
    surroundings: Surroundings,
    chunks: Iterable[pl.DataFrame],
    names: pl.Series,
    roots: Sequence[str],
) -> Iterator[Judgement]:
    """Yield by chunk which orphans no other table needs; those that bear one of the names stay."""
    for chunk in chunks:
        aliases, others = namesakes(chunk, names)
        judgement = guard.judge(surroundings, others, own=roots)
        yield replace(judgement, stays={**judgement.stays, **aliases})


def first_orphans(
    judgements: Iterable[Judgement], most: int, doubts: Doubts | None, documents: Sequence[str]
) -> tuple[tuple[FileAction, ...], int, list[str]]:
    """Return at most so many of the orphans, the number of all, and notes on why other files stay.

    Raises `Refused` when an orphan is in doubt.
    """
    chunks, total, stays = [_NO_ORPHANS], 0, dict[str, str]()
    for judgement in judgements:
        stays |= judgement.stays
        if doubts is not None:
            doubts.check_files(judgement.files, documents)
        chunks.append(judgement.files.head(most - sum(frame.height for frame in chunks)))
        total += judgement.files.height
    rows = pl.concat(chunks).sort("path").rows()
    orphans = tuple(FileAction(path, size, kind_of(path), modified) for path, size, modified in rows)
    return orphans, total, Judgement(_NO_ORPHANS, stays).notes()


def same_prefix(one: str, other: str, schemes: Mapping[str, str], authorities: Mapping[str, str]) -> bool:
    """Return whether two prefixes of scheme and authority mean the same storage."""
    return same_place(split(f"{one}/x"), split(f"{other}/x"), schemes, authorities)


def require_same_prefixes(base: TableMetadata, mismatches: Sequence[tuple[str, str]]) -> None:
    """Raise `Refused` when a listed file and a live one have one path under two schemes or authorities."""
    for one, other in mismatches:
        raise Refused(
            f"{base.ref}: files are listed under {one} and named by the metadata under {other}: if they mean "
            "the same, say so by remove_orphans.equal_schemes or remove_orphans.equal_authorities; "
            "remove_orphans.prefix_mismatch: ignore keeps such files"
        )


def _sampled(chunks: Iterable[pl.DataFrame], sample: list[str]) -> Iterator[pl.DataFrame]:
    """Yield the chunks, and add some of their paths to the sample."""
    for chunk in chunks:
        sample.extend(chunk["path"].gather_every(_EVERY))
        yield chunk


def kind_of(path: str) -> str:
    """Return the kind of a file by its name: metadata, manifest list, manifest or data."""
    name = path.rpartition("/")[2]
    if name.endswith((".metadata.json", ".metadata.json.gz")):
        return "metadata"
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    return "data"


def _summary(orphan_count: int, deleted: DeletionResult, step: RemoveOrphans, *, dry_run: bool) -> str:
    if step.mode == "report":
        return f"found {count(orphan_count, 'orphan file')}, mode report removes none"
    if deleted.waiting:
        return f"{count(len(deleted.waiting), 'orphan file')} to be removed after {deleted.until:%Y-%m-%d %H:%M} UTC"
    removed = len(deleted.files)
    waiting = (
        f", {orphan_count - removed} wait for a second scan"
        if step.mode == "confirm" and orphan_count > removed
        else ""
    )
    return f"{'would remove' if dry_run else 'removed'} {count(removed, 'orphan file')}{waiting}"


def _notes_on_names(identified: IdentifiedMetadata, invalid_names: Sequence[str]) -> Iterator[str]:
    """Yield notes on files that are named like metadata and are none, and on keys that no file of a table can have."""
    for path in identified.debris:
        yield f"{path} is no metadata (empty, or cut); it goes when it is old enough"
    for path in identified.documents:
        yield f"{path} is no metadata of a table, but JSON of something else"
    for name in invalid_names[:_SHOWN]:
        yield f"{name} is left alone: no file of a table can have such a name"
    if len(invalid_names) > _SHOWN:
        yield f"{len(invalid_names) - _SHOWN} more such names"
