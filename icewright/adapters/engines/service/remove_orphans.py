"""Orphan removal: what lies in the table's places and nothing of the table reaches.

The listing is taken first and the table is loaded after it, so that a file committed in between is reached; before any
deletion the table is read once more. Whatever is not certain is kept, and a doubt about the whole stops the run.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.deletion import Deleted, Deletion
from icewright.adapters.engines.service.guard import Guard, table_uuid
from icewright.adapters.engines.service.listing import Listing, Named
from icewright.core.errors import Refused, TableReplaced
from icewright.core.paths import same_place, split
from icewright.core.policy import Operation
from icewright.core.runs import FileFate, Outcome, committed
from icewright.core.steps import RemoveOrphans
from icewright.core.table import TableMetadata
from icewright.ports import Assignment, Catalog, Files, LedgerState


@dataclass(frozen=True)
class Scan:
    """What a scan saw."""

    listed: int
    found: int
    orphans: tuple[FileFate, ...]  # at most `max_files` of those found
    notes: tuple[str, ...]
    compared: pl.DataFrame  # the manifests whose content was read


@dataclass(frozen=True)
class RemoveOrphansInService:
    """The operation with what it needs."""

    deletion: Deletion
    guard: Guard

    def run(self, catalog: Catalog, assignment: Assignment, step: RemoveOrphans) -> Outcome:
        """Scan, and delete as far as the mode allows. Raises `Refused` when anything is doubtful about the whole."""
        base, clock = assignment.base, self.deletion.clock
        started = clock.now()
        self.guard.in_allowed_place(base)
        scan = self.scan(catalog, base, step)
        chosen = self._chosen(base, scan.orphans, step)
        gone = Deleted(chosen)
        if not assignment.dry_run:
            self._remember(assignment.job_id, base, scan.orphans)
            if chosen:
                assignment.check()  # the scan may have taken hours
                self.guard.alone(base)
                self.deletion.ledger.plan(assignment.job_id, base.ref, chosen, LedgerState.PLANNED, clock.now())

                def proof() -> Iterator[pl.DataFrame]:
                    assignment.check()
                    fresh = _same_table(base, catalog.load(base.ref))
                    return sets.reached(self.deletion.files, fresh, known=scan.compared)

                job, concurrency = assignment.job_id, step.max_concurrent_deletes
                gone = self.deletion.carry_out(job, base.location, chosen, proof, concurrency, owed=False)
        seconds = (clock.now() - started).total_seconds()
        return committed(
            Operation.REMOVE_ORPHANS,
            _summary(scan.found, len(gone.files), step, dry_run=assignment.dry_run),
            {
                "orphans_found": scan.found,
                "orphans_removed": len(gone.files),
                "files_failed": gone.failed,
                "bytes_deleted": sum(f.bytes or 0 for f in gone.files),
                "files_scanned": scan.listed,
                "every_hours": step.every_hours,
                "duration_ms": round(seconds * 1000),
            },
            scan.orphans if step.mode == "report" else gone.files,
            notes=(*scan.notes, *gone.notes),
        )

    def scan(self, catalog: Catalog, base: TableMetadata, step: RemoveOrphans) -> Scan:
        """List, then load the table and take what it reaches, then compare.

        What `base` reaches is read while the listing goes on: if the table is still that one afterwards, it stands.
        """
        files = self.deletion.files
        roots, notes = self.guard.roots(base)
        with closing(Listing(base, step.older_than, files.canonical)) as listing, ThreadPoolExecutor(1) as meanwhile:
            early = meanwhile.submit(self._reached, base, step)
            for root in roots:
                for batch in self._listed(root, step):
                    listing.add(root, batch)
            fresh = _same_table(base, catalog.load(base.ref))
            reached, manifests = early.result() if fresh == base else self._reached(fresh, step)
            no_foreign_table(files, fresh, listing.strange_metadata(reached))
            no_mismatch(
                fresh,
                listing.mismatches(
                    reached, lambda one, other: same_prefix(one, other, step.equal_schemes, step.equal_authorities)
                ),
            )
            kept: list[pl.DataFrame] = [sets.files_frame(()).select("path", "bytes")]
            found = held = 0
            for chunk in listing.orphans(reached):
                orphans = self.guard.allowed(base, chunk)
                found += orphans.height
                kept.append(orphans.head(step.max_files - held))
                held += kept[-1].height
        if listing.files and found / listing.files > step.max_delete_ratio:
            raise Refused(
                f"{base.ref}: remove_orphans calls {found} of {listing.files} files orphans, more than "
                f"max_delete_ratio {step.max_delete_ratio:g}: look at `icewright run {base.ref} --op remove_orphans "
                "--dry-run --json --set remove_orphans.max_delete_ratio=1`, then raise the knob if they really are"
            )
        rows = pl.concat(kept).sort("path").rows()
        notes += [f"{found - held} more orphans wait for the next run"] if found > held else []
        return Scan(listing.files, found, tuple(FileFate(p, b, kind_of(p)) for p, b in rows), tuple(notes), manifests)

    def _reached(self, metadata: TableMetadata, step: RemoveOrphans) -> tuple[Named, pl.DataFrame]:
        """Everything that the table reaches, and the manifests that were read for it."""
        files = self.deletion.files
        manifests = sets.manifests_of(files, metadata.snapshots, totals=step.check_totals)
        return Named.of(sets.reached(files, metadata, manifests), files.canonical), manifests

    def count(self, base: TableMetadata, older_than: datetime) -> int:
        """How many old files lie under the location that the table does not reach, whoever they belong to."""
        files = self.deletion.files
        with closing(Listing(base, older_than, files.canonical)) as listing:
            for batch in files.listing(base.location):
                listing.add(base.location, batch)
            reached = Named.of(sets.reached(files, base), files.canonical)
            return sum(chunk.height for chunk in listing.orphans(reached))

    def _listed(self, root: str, step: RemoveOrphans) -> Iterator[pa.RecordBatch]:
        files = self.deletion.files
        return files.listing(root) if step.inventory is None else files.inventory(step.inventory, root)

    def _chosen(self, base: TableMetadata, orphans: Sequence[FileFate], step: RemoveOrphans) -> tuple[FileFate, ...]:
        match step.mode:
            case "delete":
                return tuple(orphans)
            case "confirm":
                first = self.deletion.ledger.found(base.ref, base.table_uuid)
                never = datetime.max.replace(tzinfo=step.confirm_before.tzinfo)
                return tuple(f for f in orphans if first.get(f.path, never) <= step.confirm_before)
        return ()

    def _remember(self, job_id: str, base: TableMetadata, orphans: Sequence[FileFate]) -> None:
        """Findings wait in the ledger for their confirmation; those that are no orphans any more are dropped."""
        ledger = self.deletion.ledger
        known = ledger.found(base.ref, base.table_uuid)
        now = {f.path for f in orphans}
        ledger.forget(base.ref, [p for p in known if p not in now])
        fresh = [f for f in orphans if f.path not in known]
        ledger.plan(job_id, base.ref, fresh, LedgerState.FOUND, self.deletion.clock.now())


def no_foreign_table(files: Files, base: TableMetadata, strange: Sequence[str]) -> None:
    """Raise `Refused` when a metadata file that the table does not reach is another table's."""
    for path in strange:
        content = files.read(path)
        uuid = table_uuid(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        if uuid != base.table_uuid:
            raise Refused(
                f"{base.ref}: {path} is metadata of another table (uuid {uuid}): two tables share the location, "
                "nothing is deleted"
            )


def same_prefix(one: str, other: str, schemes: Mapping[str, str], authorities: Mapping[str, str]) -> bool:
    """Whether two beginnings of paths mean the same place."""
    return same_place(split(f"{one}/x"), split(f"{other}/x"), schemes, authorities)


def no_mismatch(base: TableMetadata, mismatches: Sequence[tuple[str, str]]) -> None:
    """Raise `Refused` when a listed file and a live one have one path under two schemes or authorities."""
    for one, other in mismatches:
        raise Refused(
            f"{base.ref}: files are listed under {one} and named by the metadata under {other}: if they mean "
            "the same, say so by remove_orphans.equal_schemes or remove_orphans.equal_authorities"
        )


def _same_table(base: TableMetadata, fresh: TableMetadata) -> TableMetadata:
    if fresh.table_uuid != base.table_uuid or fresh.location != base.location:
        raise TableReplaced(f"{base.ref} was replaced while it was scanned: nothing is deleted")
    return fresh


def kind_of(path: str) -> str:
    """What a file is, by its name."""
    name = path.rpartition("/")[2]
    if name.endswith((".metadata.json", ".metadata.json.gz")):
        return "metadata"
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    return "data"


def _summary(found: int, removed: int, step: RemoveOrphans, *, dry_run: bool) -> str:
    if step.mode == "report":
        return f"found {found} orphan file(s), mode report removes none"
    waiting = f", {found - removed} wait for a second scan" if step.mode == "confirm" and found > removed else ""
    return f"{'would remove' if dry_run else 'removed'} {removed} orphan file(s){waiting}"
