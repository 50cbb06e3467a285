"""Orphan removal: what lies under the table's location and nothing of the table reaches.

The listing is taken first and the reachable set after it, so that a file committed in between is reached; before any
deletion the table is read once more. Whatever is not certain is kept, and a doubt about the whole stops the run.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl
import pyarrow as pa

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.deletion import delete_unreached
from icewright.adapters.engines.service.guard import Guard, table_uuid
from icewright.core.errors import Refused, TableReplaced
from icewright.core.paths import key, same_place, split
from icewright.core.policy import Operation
from icewright.core.runs import FileFate, Outcome, committed
from icewright.core.steps import RemoveOrphans
from icewright.core.table import TableMetadata, TableRef
from icewright.ports import Assignment, Catalog, Clock, Files, Ledger, LedgerState

_METADATA_FILE = re.compile(r".*\.metadata\.json(\.gz)?$")
# folders that tell of another format's dataset: its files are not ours to judge
_FOREIGN_DATASETS = r"(?:^|/)(?:_delta_log|\.hoodie|_hudi|_versions|[^/]+\.lance)/"
_KEPT_NAMES = ("version-hint.text",)


@dataclass(frozen=True)
class Scan:
    """What a scan saw."""

    listed: int
    orphans: tuple[FileFate, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RemoveOrphansInService:
    """The operation with what it needs."""

    files: Files
    ledger: Ledger
    guard: Guard
    clock: Clock

    def run(self, catalog: Catalog, assignment: Assignment, step: RemoveOrphans) -> Outcome:
        """Scan, and delete as far as the mode allows. Raises `Refused` when anything is doubtful about the whole."""
        base, started = assignment.base, self.clock.now()
        self.guard.in_allowed_place(base)
        self.guard.alone(base)
        scan = self.scan(catalog, base, step)
        chosen = self._chosen(base.ref, scan.orphans, step)
        gone: tuple[FileFate, ...] = chosen
        failures: Mapping[str, str] = {}
        if not assignment.dry_run:
            self._remember(assignment.job_id, base.ref, scan.orphans)
            if chosen:
                self.guard.alone(base)
                self.ledger.plan(assignment.job_id, base.ref, chosen, LedgerState.PLANNED, self.clock.now())
                gone, failures = self.finish(catalog, assignment.job_id, base, chosen, step.max_concurrent_deletes)
        seconds = (self.clock.now() - started).total_seconds()
        notes = [*scan.notes, *(f"{p} could not be deleted: {why}" for p, why in sorted(failures.items())[:20])]
        return committed(
            Operation.REMOVE_ORPHANS,
            _summary(len(scan.orphans), len(gone), step, dry_run=assignment.dry_run),
            {
                "orphans_found": len(scan.orphans),
                "orphans_removed": len(gone),
                "bytes_deleted": sum(f.bytes or 0 for f in gone),
                "files_scanned": scan.listed,
                "duration_ms": round(seconds * 1000),
            },
            scan.orphans if step.mode == "report" else gone,
            notes=tuple(notes),
        )

    def scan(self, catalog: Catalog, base: TableMetadata, step: RemoveOrphans) -> Scan:
        """List, then read what is reachable, then compare."""
        listed = self._listed(base)
        fresh = _same_table(base, catalog.load(base.ref))
        valid = sets.with_key(sets.reachable(self.files, fresh))
        self._no_foreign_data(fresh, listed, valid)
        self._same_prefix(fresh, listed, valid, step)
        orphans = _unreached(fresh, listed, valid, step.older_than)
        inside = [self.guard.allows(base, p) for p in orphans["path"]]
        orphans = orphans.filter(pl.Series(inside, dtype=pl.Boolean))
        if listed.height and orphans.height / listed.height > step.max_delete_ratio:
            raise Refused(
                f"{base.ref}: remove_orphans calls {orphans.height} of {listed.height} files orphans, more than "
                f"max_delete_ratio {step.max_delete_ratio:g}: look at `icewright run {base.ref} --op remove_orphans "
                "--dry-run --json --set remove_orphans.max_delete_ratio=1`, then raise the knob if they really are"
            )
        rows = orphans.select("path", "bytes").sort("path").rows()
        notes = tuple(
            f"{name} {base.properties[name]} lies outside the location and is not scanned"
            for name in ("write.data.path", "write.metadata.path", "write.object-storage.path")
            if name in base.properties and not key(base.properties[name]).startswith(key(base.location))
        )
        return Scan(listed.height, tuple(FileFate(p, b, _kind(p)) for p, b in rows), notes)

    def count(self, base: TableMetadata, older_than: datetime) -> int:
        """How many old files lie under the location that the table does not reach, whoever they belong to."""
        listed = self._listed(base)
        valid = sets.with_key(sets.reachable(self.files, base))
        return _unreached(base, listed, valid, older_than).height

    def _listed(self, base: TableMetadata) -> pl.DataFrame:
        batches = list(self.files.listing(base.location))
        return sets.with_key(pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches))))

    def finish(
        self, catalog: Catalog, job_id: str, base: TableMetadata, planned: Sequence[FileFate], concurrency: int
    ) -> tuple[tuple[FileFate, ...], Mapping[str, str]]:
        """Delete planned files after a fresh proof; also how a crashed run is resumed."""
        fresh = _same_table(base, catalog.load(base.ref))
        proof = sets.reachable(self.files, fresh)
        return delete_unreached(self.files, self.ledger, self.clock, job_id, base, planned, proof, concurrency)

    def _chosen(self, ref: TableRef, orphans: Sequence[FileFate], step: RemoveOrphans) -> tuple[FileFate, ...]:
        match step.mode:
            case "delete":
                return tuple(orphans)
            case "confirm":
                first = self.ledger.found(ref)
                never = datetime.max.replace(tzinfo=step.confirm_before.tzinfo)
                return tuple(f for f in orphans if first.get(f.path, never) <= step.confirm_before)
        return ()

    def _remember(self, job_id: str, ref: TableRef, orphans: Sequence[FileFate]) -> None:
        """Findings wait in the ledger for their confirmation; those that are no orphans any more are dropped."""
        known = self.ledger.found(ref)
        now = {f.path for f in orphans}
        self.ledger.forget(ref, [p for p in known if p not in now])
        fresh = [f for f in orphans if f.path not in known]
        self.ledger.plan(job_id, ref, fresh, LedgerState.FOUND, self.clock.now())

    def _no_foreign_data(self, base: TableMetadata, listed: pl.DataFrame, valid: pl.DataFrame) -> None:
        """Raise `Refused` when another table's metadata, or another format's dataset, lies among the files."""
        relative = _relative(listed["path"], base.location)
        if (other := listed["path"].filter(relative.str.contains(_FOREIGN_DATASETS))).len():
            raise Refused(f"{base.ref}: {other[0]} belongs to a dataset of another format under the table's location")
        strange = listed.join(valid, on="key", how="anti")["path"]
        for path in strange.filter(strange.str.contains(_METADATA_FILE.pattern)):
            content = self.files.read(path)
            uuid = table_uuid(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            if uuid != base.table_uuid:
                raise Refused(
                    f"{base.ref}: {path} is metadata of another table (uuid {uuid}): two tables share the location, "
                    "nothing is deleted"
                )

    @staticmethod
    def _same_prefix(base: TableMetadata, listed: pl.DataFrame, valid: pl.DataFrame, step: RemoveOrphans) -> None:
        """Raise `Refused` when a listed file and a live one have one path under two schemes or authorities."""
        pattern = r"^((?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/]*)?)"
        both = listed.join(valid, on="key", how="inner", suffix="_valid").select(
            one=pl.col("path").str.extract(pattern), other=pl.col("path_valid").str.extract(pattern)
        )
        for one, other in both.unique().rows():
            if not same_place(split(f"{one}/x"), split(f"{other}/x"), step.equal_schemes, step.equal_authorities):
                raise Refused(
                    f"{base.ref}: files are listed under {one} and named by the metadata under {other}: if they mean "
                    "the same, say so by remove_orphans.equal_schemes or remove_orphans.equal_authorities"
                )


def _unreached(
    metadata: TableMetadata, listed: pl.DataFrame, valid: pl.DataFrame, older_than: datetime
) -> pl.DataFrame:
    """Listed files that nothing reaches, of known age and older than the bound, in no hidden place."""
    old = pl.col("modified").is_not_null() & (pl.col("modified") < older_than)
    unreached = listed.join(valid, on="key", how="anti").filter(old)
    return unreached.filter(~_hidden(unreached, metadata))


def _same_table(base: TableMetadata, fresh: TableMetadata) -> TableMetadata:
    if fresh.table_uuid != base.table_uuid or fresh.location != base.location:
        raise TableReplaced(f"{base.ref} was replaced while it was scanned: nothing is deleted")
    return fresh


def _relative(paths: pl.Series, location: str) -> pl.Series:
    return paths.str.strip_prefix(location.rstrip("/") + "/")


def _hidden(frame: pl.DataFrame, metadata: TableMetadata) -> pl.Series:
    """Paths with a part that begins with `_` or `.`, unless the part is a partition whose field is named so."""
    names = {f.name for spec in metadata.specs for f in spec.fields if f.name[:1] in ("_", ".")}
    own = "".join(f"(?!{re.escape(name)}=)" for name in names)
    relative = _relative(frame["path"], metadata.location)
    if not names:
        return relative.str.contains(r"(?:^|/)[_.]") | relative.str.ends_with(_KEPT_NAMES[0])
    pattern = re.compile(rf"(?:^|/){own}[_.]")
    hidden = [pattern.search(p) is not None or p.endswith(_KEPT_NAMES) for p in relative]
    return pl.Series(hidden, dtype=pl.Boolean)


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    if _METADATA_FILE.match(name):
        return "metadata"
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    return "data"


def _summary(found: int, removed: int, step: RemoveOrphans, *, dry_run: bool) -> str:
    if step.mode == "report":
        return f"found {found} orphan file(s), mode report removes none"
    waiting = f", {found - removed} wait for a second scan" if step.mode == "confirm" and found > removed else ""
    return f"{'would remove' if dry_run else 'removed'} {removed} orphan file(s){waiting}"
