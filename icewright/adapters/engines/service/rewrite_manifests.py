"""Manifest rewriting for format v1 and v2: manifests merged or split per spec and content, clustered by partition.

Entries are copied with all of their fields. Each becomes EXISTING, with its own or inherited snapshot id and sequence
numbers written out (spec, Sequence Number Inheritance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icewright.adapters.engines.service import reachable as sets
from icewright.adapters.engines.service.manifest_bytes import ManifestBytes, read_manifests
from icewright.adapters.engines.service.manifest_files import ManifestWriter, WrittenManifest
from icewright.adapters.engines.service.partition_types import partition_bytes
from icewright.adapters.engines.service.replacing import Replacing
from icewright.core.errors import InvariantViolated, MetadataUnreadable
from icewright.core.policy import Operation
from icewright.core.runs import JOB_ID, FileAction, Outcome, committed, skipped
from icewright.core.steps import RewriteManifests
from icewright.core.table import ManifestFile, Snapshot, TableMetadata
from icewright.core.verify import total_violations
from icewright.core.words import count
from icewright.ports import Catalog, Clock, StepRequest, TableFiles


@dataclass(frozen=True)
class RewriteManifestsInService:
    """Runs manifest rewriting without Spark."""

    files: TableFiles
    clock: Clock

    def run(self, catalog: Catalog, request: StepRequest, step: RewriteManifests) -> Outcome:
        """Rewrite manifests, or list those to rewrite. Raises `CommitConflict` when the table changed meanwhile."""
        base, current = request.base, request.base.current_snapshot
        if current is None or current.manifest_list is None:
            return skipped(Operation.REWRITE_MANIFESTS, "no current snapshot")
        listed = sets.listed(sets.manifests_of(self.files, [current], totals=step.check_totals))
        chosen = [m for m in listed if step.takes(m)]
        actions = tuple(FileAction(m.path, m.length, "manifest") for m in chosen)
        if request.dry_run:
            entries = sum(m.live_files for m in chosen)
            summary = f"would rewrite {count(len(chosen), 'manifest')} ({count(entries, 'entry')})"
            return committed(Operation.REWRITE_MANIFESTS, summary, _metrics(len(chosen), 0, entries), actions)
        replacing = Replacing(self.files, self.clock, catalog, base, current, listed)
        with replacing.undone_unless_committed():
            for key in step.chosen:
                self._rewrite_group(replacing, [m for m in chosen if (m.spec_id, m.content) == key], step)
            entries = _count_entries(base, chosen, replacing.written)
            request.check()
            after = replacing.commit({m.path for m in chosen}, _summary(current, request.job_id, entries))
        if after.current_snapshot is not None and (violations := total_violations(current, after.current_snapshot)):
            raise InvariantViolated(f"{base.ref}: rewrite_manifests broke the table: {'; '.join(violations)}")
        return committed(
            Operation.REWRITE_MANIFESTS,
            f"rewrote {count(len(chosen), 'manifest')} into {len(replacing.written)} ({count(entries, 'entry')})",
            _metrics(len(chosen), len(replacing.written), entries),
            actions,
        )

    def _rewrite_group(self, replacing: Replacing, manifests: Sequence[ManifestFile], step: RewriteManifests) -> None:
        sources = list(read_manifests(self.files, [manifest.path for manifest in manifests]))
        spec = replacing.base.spec(manifests[0].spec_id)
        writer = ManifestWriter(widest(sources), replacing.base, spec.spec_id, manifests[0].content)
        read = [e for m, source in zip(manifests, sources, strict=True) for e in writer.entries(m, source)]
        names = [field.name for field in spec.fields]
        first = [names.index(name) for name in step.fields_of(spec)]
        size = sum(m.length for m in manifests) / max(1, len(read))
        replacing.write(writer, writer.clustered(read, first), step.target_bytes, size)


def widest(manifests: Sequence[ManifestBytes]) -> ManifestBytes:
    """Return the first manifest of a spec whose partition tuples hold the values of all, of dropped columns too."""
    return max(manifests, key=lambda manifest: partition_bytes(manifest.shape.data_file))


def _count_entries(base: TableMetadata, chosen: Sequence[ManifestFile], written: Sequence[WrittenManifest]) -> int:
    """Return the number of entries written. Raises `MetadataUnreadable` if the manifest list has another number."""
    entries, expected = sum(w.entries for w in written), sum(m.live_files for m in chosen)
    if entries != expected:
        raise MetadataUnreadable(
            f"{base.ref}: rewrite_manifests read {entries} entries where the manifest list says {expected}; "
            "nothing was committed"
        )
    return entries


def _summary(current: Snapshot, job_id: str, entries: int) -> Mapping[str, str]:
    totals = {k: v for k, v in current.summary.items() if k.startswith("total-")}
    return {"entries-processed": str(entries), **totals, JOB_ID: job_id}


def _metrics(rewritten: int, written: int, entries: int) -> dict[str, float]:
    return {"manifests_rewritten": rewritten, "manifests_written": written, "entries_total": entries}
