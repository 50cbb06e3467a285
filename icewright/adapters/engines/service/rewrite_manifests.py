"""Manifest rewriting for format v1 and v2: data manifests merged per spec, clustered by partition.

Entries are copied with everything that they hold. Each becomes EXISTING with the snapshot id and sequence numbers that
it had, or had inherited (spec, Sequence Number Inheritance), stated; delete manifests are carried over as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from icewright.adapters.engines.service import manifest_list_files as lists
from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.manifest_files import ManifestWriter, WrittenManifest, read_manifest
from icewright.core.errors import CommitStateUnknown, InvariantViolated, MetadataUnreadable
from icewright.core.policy import Operation
from icewright.core.runs import JOB_ID, FileFate, Outcome, committed, skipped
from icewright.core.steps import RewriteManifests
from icewright.core.table import MAIN, ManifestContent, ManifestFile, Snapshot, TableMetadata, metadata_folder
from icewright.core.verify import identity_kept, refs_kept, totals_kept
from icewright.ports import AddSnapshot, Assignment, Catalog, Clock, Files

_READERS = 4


@dataclass(frozen=True)
class RewriteManifestsInService:
    """The operation with what it needs."""

    files: Files
    clock: Clock

    def run(self, catalog: Catalog, assignment: Assignment, step: RewriteManifests) -> Outcome:
        """Rewrite, or list the manifests that would be. Raises `CommitConflict` when the table changed meanwhile."""
        base, started = assignment.base, self.clock.now()
        current = base.current_snapshot
        if current is None or current.manifest_list is None:
            return skipped(Operation.REWRITE_MANIFESTS, "no current snapshot")
        rows = lists.read_list(self.files, current.manifest_list, base.format_version)
        manifests = sets.manifests_of(self.files, [current], totals=step.check_totals)
        listed = sets.listed(manifests)
        if [m.path for m in listed] != [rows.value(row, lists.PATH) for row in rows.records]:
            raise MetadataUnreadable(f"{current.manifest_list} was read twice, and said another thing each time")
        chosen = [m for m in listed if m.content is ManifestContent.DATA and m.spec_id in step.spec_ids]
        fates = tuple(FileFate(m.path, m.length, "manifest") for m in chosen)
        if assignment.dry_run:
            count = sum(m.live_files for m in chosen)
            summary = f"would rewrite {len(chosen)} manifests ({count} entries)"
            return committed(Operation.REWRITE_MANIFESTS, summary, _metrics(len(chosen), 0, count, 0.0), fates)
        written: list[WrittenManifest] = []
        try:
            for spec_id in step.spec_ids:
                written += self._rewrite_spec(base, [m for m in chosen if m.spec_id == spec_id], step.target_bytes)
            entries = _checked(base, chosen, written)
            assignment.check()
            after = self._commit(catalog, assignment, current, rows, chosen, written)
        except CommitStateUnknown:
            raise  # the table may refer to the new files
        except Exception:
            self.files.delete([w.path for w in written], 1)  # the commit did not land: nothing refers to them
            raise
        broken = identity_kept(base, after) + refs_kept(base, after, [MAIN])
        if after.current_snapshot is not None:
            broken += totals_kept(current, after.current_snapshot)
        if broken:
            raise InvariantViolated(f"{base.ref}: rewrite_manifests broke the table: {'; '.join(broken)}")
        return committed(
            Operation.REWRITE_MANIFESTS,
            f"rewrote {len(chosen)} manifests into {len(written)} ({entries} entries)",
            _metrics(len(chosen), len(written), entries, (self.clock.now() - started).total_seconds()),
            fates,
        )

    def _rewrite_spec(
        self, base: TableMetadata, manifests: Sequence[ManifestFile], target_bytes: int
    ) -> list[WrittenManifest]:
        with ThreadPoolExecutor(_READERS) as pool:
            sources = list(pool.map(lambda m: read_manifest(self.files, m), manifests))
        writer = ManifestWriter(sources[0], base, manifests[0].spec_id)
        read = [e for m, source in zip(manifests, sources, strict=True) for e in writer.entries(m, source)]
        entries = writer.clustered(read)
        size = sum(m.length for m in manifests) / max(1, len(entries))
        per_file = max(1, int(target_bytes / max(1.0, size)))
        count = -(-len(entries) // per_file)
        per_file = max(1, -(-len(entries) // max(1, count)))  # files of equal length, no rest of a few entries
        folder = metadata_folder(base.location, base.properties)
        return [
            writer.write(self.files, f"{folder}/{uuid4()}-m{i}.avro", entries[start : start + per_file])
            for i, start in enumerate(range(0, len(entries), per_file))
        ]

    def _commit(
        self,
        catalog: Catalog,
        assignment: Assignment,
        current: Snapshot,
        rows: lists.Records,
        chosen: Sequence[ManifestFile],
        written: Sequence[WrittenManifest],
    ) -> TableMetadata:
        base = assignment.base
        replaced = {m.path for m in chosen}
        snapshot_id = lists.new_snapshot_id(base)
        sequence = base.last_sequence_number + 1 if base.format_version > 1 else 0
        kept = [row for row in rows.records if rows.value(row, lists.PATH) not in replaced]
        path = f"{metadata_folder(base.location, base.properties)}/snap-{snapshot_id}-1-{uuid4()}.avro"
        content = lists.manifest_list(rows, kept, written, base, snapshot_id, current.snapshot_id, sequence)
        summary = _summary(current, assignment.job_id, len(kept), len(chosen), written)
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": current.snapshot_id,
            "timestamp-ms": max(
                int(self.clock.now().timestamp() * 1000), int(current.timestamp.timestamp() * 1000) + 1
            ),
            "manifest-list": path,
            "summary": summary,
            "schema-id": base.schema.get("schema-id", 0),
        }
        if base.format_version > 1:
            snapshot["sequence-number"] = sequence
        self.files.write(path, content)
        try:
            return catalog.commit(base, AddSnapshot(snapshot, MAIN))
        except CommitStateUnknown:
            raise
        except Exception:
            self.files.delete([path], 1)
            raise


def _checked(base: TableMetadata, chosen: Sequence[ManifestFile], written: Sequence[WrittenManifest]) -> int:
    """The number of entries written. Raises `MetadataUnreadable` when it is not what the manifest list promised."""
    read, promised = sum(w.entries for w in written), sum(m.live_files for m in chosen)
    if read != promised:
        raise MetadataUnreadable(
            f"{base.ref}: rewrite_manifests read {read} entries where the manifest list says {promised}; "
            "nothing was committed"
        )
    return read


def _summary(
    current: Snapshot, job_id: str, kept: int, replaced: int, written: Sequence[WrittenManifest]
) -> Mapping[str, str]:
    totals = {k: v for k, v in current.summary.items() if k.startswith("total-")}
    return {
        "operation": "replace",
        "manifests-created": str(len(written)),
        "manifests-kept": str(kept),
        "manifests-replaced": str(replaced),
        "entries-processed": str(sum(w.entries for w in written)),
        **totals,
        JOB_ID: job_id,
    }


def _metrics(rewritten: int, written: int, entries: int, seconds: float) -> dict[str, float]:
    return {
        "manifests_rewritten": rewritten,
        "manifests_written": written,
        "entries_total": entries,
        "duration_ms": round(seconds * 1000),
    }
