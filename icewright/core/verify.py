"""Invariants that a commit must keep. Each function returns the violations; an empty result is a proof."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from icewright.core.ancestry import ancestors
from icewright.core.branches import on_branch
from icewright.core.table import RefKind, Snapshot, SnapshotRef, TableFacts, TableMetadata
from icewright.core.writer_state import stated_number, summary_number

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TOTALS = (
    "total-records",
    "total-data-files",
    "total-delete-files",
    "total-position-deletes",
    "total-equality-deletes",
)


def identity_violations(
    before: TableMetadata, after: TableMetadata, unused_specs: Collection[int] = frozenset()
) -> list[str]:
    """Return violations of what no maintenance may change: identity, schema, and specs that are in use."""
    broken = []
    if before.table_uuid != after.table_uuid:
        broken.append(f"table uuid changed from {before.table_uuid} to {after.table_uuid}")
    if before.location != after.location:
        broken.append(f"location changed from {before.location} to {after.location}")
    if before.schema != after.schema:
        broken.append("the current schema changed")
    if not {s for s in before.specs if s.spec_id not in unused_specs} <= set(after.specs):
        broken.append("a partition spec is gone")
    return broken


def expiry_violations(
    before: TableMetadata,
    after: TableMetadata,
    snapshot_ids: Collection[int],
    refs: Collection[str] = (),
    unused_specs: Collection[int] = frozenset(),
) -> list[str]:
    """Return violations of an expiry: all but the planned snapshots and refs, and unused specs, is unchanged."""
    broken = identity_violations(before, after, unused_specs)
    if before.metadata_location not in after.metadata_log:  # what came in between the catalog has compared
        replaced = after.metadata_log[-1] if after.metadata_log else "nothing known"
        broken.append(f"the commit replaced {replaced}, not {before.metadata_location}")
    if before.current_snapshot_id != after.current_snapshot_id:
        broken.append("the current snapshot changed")
    kept_refs = {r for r in before.refs if r.name not in refs}
    broken += [f"ref {r.name} changed" for r in sorted(kept_refs - set(after.refs), key=lambda r: r.name)]
    removed_ids = set(before.by_id) - set(after.by_id) - set(snapshot_ids)
    broken += [f"snapshot {s} is gone though not planned" for s in sorted(removed_ids)]
    remaining_ids = set(snapshot_ids) & set(after.by_id)
    broken += [f"snapshot {s} is still there" for s in sorted(remaining_ids)]
    return broken


def restored_as_it_was(after: TableMetadata, snapshots: Iterable[Snapshot], refs: Mapping[str, int]) -> list[str]:
    """Return violations of an undo: each snapshot and each ref that it restores is as it was.

    A branch may lead on from there: its writer came right after.
    """
    broken = []
    for before in snapshots:
        now = after.by_id.get(before.snapshot_id)
        if now is None:
            broken.append(f"snapshot {before.snapshot_id} is not there")
            continue
        names = ("parent_id", "timestamp", "manifest_list", "manifests", "operation", "schema_id")
        changed = [name.replace("_", " ") for name in names if getattr(before, name) != getattr(now, name)]
        if any(before.summary.get(key) != value for key, value in now.summary.items()):
            changed.append("summary")
        broken += [f"the {name} of snapshot {before.snapshot_id} is another one" for name in changed]
    returned = {ref.name for ref in after.refs if ref.name in refs and _leads_on_from(after, ref, refs[ref.name])}
    lost = (f"ref {name} does not lead to snapshot {led}" for name, led in refs.items() if name not in returned)
    return [*broken, *lost]


def _leads_on_from(metadata: TableMetadata, ref: SnapshotRef, snapshot_id: int) -> bool:
    line = (ancestor.snapshot_id for ancestor in ancestors(metadata, ref.snapshot_id))
    return ref.snapshot_id == snapshot_id or (ref.kind is RefKind.BRANCH and snapshot_id in line)


def ref_violations(before: TableMetadata, after: TableMetadata, moved: Iterable[str]) -> list[str]:
    """Return violations: a rewrite moves the branch it commits to and no other ref."""
    names = set(moved)
    had = {r for r in before.refs if r.name not in names}
    return [f"ref {r.name} changed" for r in sorted(had - set(after.refs), key=lambda r: r.name)]


def total_violations(before: Snapshot, after: Snapshot) -> list[str]:
    """Return violations of a manifest rewrite: no total that both snapshots state has changed."""
    return [
        f"{name} changed from {before.summary[name]} to {after.summary[name]}"
        for name in _TOTALS
        if name in before.summary and name in after.summary and before.summary[name] != after.summary[name]
    ]


def rewrite_violations(before: TableFacts, after: TableMetadata, branch: str | None = None) -> list[str]:
    """Return violations of `replace` snapshots: each adds the records that it removes, less deleted rows.

    Deleted rows are known exactly for deletion vectors alone, else from above; so a table without delete files must
    keep every record, and any other may lose at most as many as its delete files name. Facts of a branch say nothing of
    the rewrites of others.
    """
    earlier_snapshots, head = before.metadata.by_id, on_branch(after, branch).current_snapshot_id
    of_branch = after.snapshots if branch is None or head is None else ancestors(after, head)
    exact = not _inexact(before) and not _deletes_since(before, after)
    broken: list[str] = []
    total = 0
    for snapshot in of_branch:
        if snapshot.snapshot_id in earlier_snapshots or snapshot.operation != "replace":
            continue
        added, removed = (summary_number(snapshot, f"{what}-records") for what in ("added", "deleted"))
        total += removed - added
        if removed < added:
            broken.append(f"snapshot {snapshot.snapshot_id} wrote {added} records for {removed}")
        elif exact and removed > added and not before.delete_files:
            broken.append(f"snapshot {snapshot.snapshot_id} lost {removed - added} of {removed} records")
    if exact and before.delete_files and total > before.deleted_rows:
        broken.append(f"rewrites lost {total} records, deletes name {before.deleted_rows}")
    return broken


def _inexact(facts: TableFacts) -> bool:
    """Return whether counts are inexact: an equality delete may name any number of rows."""
    return any(p.equality_delete_files or p.dangling_equality_deletes for p in facts.partitions)


def _deletes_since(before: TableFacts, after: TableMetadata) -> bool:
    """Return whether a writer may have committed deletes meanwhile, which the rewrite may have applied."""
    name = "added-delete-files"
    return any(
        name in s.summary and stated_number(s, name) != 0
        for s in after.snapshots
        if s.snapshot_id not in before.metadata.by_id and s.operation != "replace"
    )


def snapshot_of(raw: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot from the JSON of the spec."""
    summary = {key: str(value) for key, value in (raw.get("summary") or {}).items()}
    return Snapshot(
        snapshot_id=raw["snapshot-id"],
        parent_id=raw.get("parent-snapshot-id"),
        sequence_number=raw.get("sequence-number") or 0,
        timestamp=_EPOCH + timedelta(milliseconds=raw["timestamp-ms"]),
        manifest_list=raw.get("manifest-list"),
        manifests=tuple(raw.get("manifests") or ()),
        operation=summary.get("operation"),
        summary=summary,
        schema_id=raw.get("schema-id"),
    )
