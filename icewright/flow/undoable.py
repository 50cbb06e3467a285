"""Computes the snapshots and files that the undo of a job would restore, or why it is impossible; changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

from icewright.core.errors import MetadataUnreadable, Refused, TableNotFound, TableReplaced, UsageError
from icewright.core.paths import key
from icewright.core.policy import Operation
from icewright.core.runs import TRANSITIONS, OperationState
from icewright.core.table import ManifestFile, Snapshot, TableMetadata, TableRef
from icewright.core.verify import snapshot_of
from icewright.core.words import count, no_job, some
from icewright.flow.runtime import Runtime
from icewright.ports import WAITING, JobRow, LedgerState, Removal, RestoreSnapshots

UNDO = "undo"  # option of an undo job: the id of the job that it undoes
_PAGE = 5000
_MAX_CONCURRENT = 16  # files whose existence is checked at the same time
_CLOCK_SKEW = timedelta(hours=1)  # by which the clocks of two processes may differ
_DELETED = (LedgerState.DELETED, LedgerState.DELETING)
_DROPPABLE = (*WAITING, LedgerState.UNDOING)
_REWRITES = (Operation.COMPACT, Operation.REWRITE_DELETES, Operation.REWRITE_MANIFESTS)


@dataclass(frozen=True, slots=True)
class Restorable:
    """The snapshots that an undo would restore, and the planned deletions that it would drop."""

    removals: tuple[Removal, ...] = ()  # whose snapshots and refs are to return
    files: int = 0  # planned deletions that are to be dropped
    bytes: int = 0
    refs: tuple[str, ...] = ()
    not_restored: tuple[str, ...] = ()  # what is not restored, in sentences
    notes: tuple[str, ...] = ()
    already: bool = False  # an earlier undo has restored everything
    present: AbstractSet[int] = frozenset()  # ids in the table: an undo that the store forgot has restored them

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return the snapshots to restore, in the order in which they were removed."""
        removed = (snapshot for removal in self.removals for snapshot in removed_snapshots(removal))
        return tuple(snapshot for snapshot in removed if snapshot.snapshot_id not in self.present)


@dataclass(slots=True)
class LedgerFiles:
    """The state of a job's files in the deletion ledger."""

    states: Counter[str] = field(default_factory=Counter)
    operations: set[Operation] = field(default_factory=set)  # that planned those that wait, or waited before an undo
    bytes: int = 0  # of those that wait
    deleted: list[str] = field(default_factory=list)
    present: dict[str, int | None] = field(default_factory=dict)  # their bytes by path

    @property
    def waiting(self) -> int:
        """Return the number of files whose deletion an undo drops."""
        return sum(self.states[state] for state in _DROPPABLE)


def removed_snapshots(removal: Removal) -> tuple[Snapshot, ...]:
    """Return the snapshots that a commit of an expiry removed."""
    return tuple(map(snapshot_of, RestoreSnapshots.from_json(removal.document).snapshots))


def ended_job(runtime: Runtime, job_id: str) -> JobRow:
    """Return the job that `Jobs.get` finds. Raises `UsageError` when there is none or it has not ended."""
    job = runtime.store.jobs.get(job_id)
    if job is None:
        raise UsageError(no_job(job_id))
    if TRANSITIONS[job.state]:
        raise UsageError(f"job {job.job_id} is {job.state}: let it end, or `icewright cancel {job.job_id}`")
    return job


def current_name(runtime: Runtime, ref: TableRef, table_uuid: str) -> TableRef:
    """Return the name that the table of an ended job has now in its catalog, where it may have been renamed.

    A name is current if its table has the job's uuid. It is looked for among all names under which a table of this uuid
    was ever read; without any, the job's own name is returned.
    """
    if not table_uuid or ref.catalog in runtime.vacuums:  # a vacuum finds its tables by their uuids itself
        return ref
    registrations = runtime.store.registrations.list()
    refs = [r.ref for r in registrations if r.table_uuid == table_uuid and r.ref.catalog == ref.catalog]
    other_refs = [other for other in refs if other != ref]
    for name in (ref, *other_refs) if other_refs else ():
        try:
            if runtime.catalogs[name.catalog].load(name).table_uuid == table_uuid:
                return name
        except TableNotFound:
            continue
    return ref


def under_current_name(runtime: Runtime, job: JobRow) -> JobRow:
    """Return the job with the name that its table has now."""
    runtime.catalog(job.ref)
    return replace(job, ref=current_name(runtime, job.ref, job.table_uuid))


def restorable(runtime: Runtime, job: JobRow) -> Restorable:
    """Return what an undo restores. Raises `UsageError` when there is nothing to undo, `Refused` when it cannot be."""
    removals, files = runtime.store.ledger.removals(job.job_id), ledger_files(runtime, job)
    missing = tuple(removal for removal in removals if removal.undone_at is None)
    if not missing and not files.waiting:
        if removals or files.states[LedgerState.UNDONE]:
            return Restorable(already=True)
        raise _nothing_to_undo(job, files)
    snapshots = [snapshot for removal in missing for snapshot in removed_snapshots(removal)]
    _require_present(runtime, job, files, snapshots)
    notes = tuple(_not_undone(runtime, job, removals))
    if not missing:
        return Restorable((), files.waiting, files.bytes, notes=notes)
    base = table_of(runtime, job)
    needed_by_later_jobs(runtime, job, missing)  # of a file that one of them has deleted it names the job
    if gone := missing_paths(runtime, _formerly_shared_files(runtime, snapshots, base, files.present)):
        raise _files_deleted(job, gone, _unreadable(runtime, snapshots, gone))
    changes = [RestoreSnapshots.from_json(removal.document) for removal in missing]
    current_refs = {ref.name for ref in base.refs}
    names = tuple(name for change in changes for name in change.refs if name not in current_refs)
    obstacles = _obstacles(runtime, job, base, changes)
    return Restorable(missing, files.waiting, files.bytes, names, obstacles, notes, present=base.by_id.keys())


def _require_present(runtime: Runtime, job: JobRow, files: LedgerFiles, snapshots: Sequence[Snapshot]) -> None:
    """Raise `Refused` when a planned file is deleted, or one that the snapshots need does not exist any more."""
    gone = files.deleted or missing_paths(runtime, files.present if snapshots else {})
    unreadable = _unreadable(runtime, snapshots, gone) if gone else []
    if files.deleted or unreadable:
        raise _files_deleted(job, gone, unreadable)


def _obstacles(
    runtime: Runtime, job: JobRow, base: TableMetadata, changes: Iterable[RestoreSnapshots]
) -> tuple[str, ...]:
    """Return what the catalog cannot restore, in sentences. Raises `Refused` when that is everything."""
    catalog = runtime.catalog(job.ref)
    obstacles = tuple(obstacle for change in changes if (obstacle := catalog.unrestorable(base, change)))
    for obstacle in obstacles:
        if obstacle.startswith("nothing:"):
            raise Refused(f"{job.ref}: job {job.job_id} cannot be undone; {obstacle}")
    return obstacles


def table_of(runtime: Runtime, job: JobRow) -> TableMetadata:
    """Return the current metadata of the job's table. Raises `TableReplaced` when its uuid has changed."""
    metadata = runtime.catalog(job.ref).load(job.ref)
    if metadata.table_uuid != job.table_uuid:
        raise TableReplaced(f"{job.ref} is another table than job {job.job_id} worked on: the job cannot be undone")
    return metadata


def needed_by_later_jobs(runtime: Runtime, job: JobRow, removals: Sequence[Removal]) -> Mapping[str, Sequence[str]]:
    """Return the files that the restored snapshots need and that later jobs plan to delete, by job id.

    Raises `Refused` when one of them is deleted.
    """
    if not removals:
        return {}
    since = min(removal.at for removal in removals) - _CLOCK_SKEW
    later = runtime.store.ledger.later_deletions(job.job_id, since)
    keys = {key(path) for files in later.values() for path in files}
    snapshots = [snapshot for removal in removals for snapshot in removed_snapshots(removal)]
    needed = set(_needed_keys(runtime, snapshots, keys)) if keys else set()
    by_job = {}
    for later_job, files in later.items():
        shared = {path: state for path, state in files.items() if key(path) in needed}
        if deleted := sorted(path for path, state in shared.items() if state in _DELETED):
            raise _files_deleted(job, deleted, _unreadable(runtime, snapshots, deleted), f" by job {later_job}")
        if shared:
            by_job[later_job] = list(shared)
    return by_job


def ledger_files(runtime: Runtime, job: JobRow) -> LedgerFiles:
    """Read the ledger's entries of the job's files page by page and return their totals."""
    files, after = LedgerFiles(), None
    while True:
        page = runtime.store.views.list_files(job.job_id, after, _PAGE)
        for file in page.items:
            _count(files, file, job.operations)
        if (after := page.after) is None:
            return files


def _count(files: LedgerFiles, file: Mapping[str, Any], operations: Iterable[Operation]) -> None:
    state, path, operation = file["state"], file["path"], file["operation"]
    files.states[state] += 1
    if state in _DELETED:
        files.deleted.append(path)
    elif state not in (LedgerState.FOUND, LedgerState.LEFT):
        files.present[path] = file["bytes"]
    if state in _DROPPABLE:
        files.bytes += file["bytes"] or 0
    if state in (*_DROPPABLE, LedgerState.UNDONE):
        files.operations |= {Operation(operation)} if operation else set(operations)


def missing_paths(runtime: Runtime, sizes: Mapping[str, int | None]) -> list[str]:
    """Return the paths that do not exist any more, or name a file of other bytes now, where they are known."""
    stats = runtime.files.stat([*sizes], _MAX_CONCURRENT) if sizes else {}
    return [path for path, stat in stats.items() if stat is None or sizes[path] not in (None, stat.bytes)]


def _needed_keys(runtime: Runtime, snapshots: Sequence[Snapshot], keys: set[str]) -> Iterator[str]:
    """Yield the keys out of `keys` whose files the snapshots read."""
    yield from (key(s.manifest_list) for s in snapshots if s.manifest_list and key(s.manifest_list) in keys)
    manifests = _manifests(runtime, snapshots)
    yield from (key(manifest.path) for manifest in manifests if key(manifest.path) in keys)
    for batch in runtime.files.live_files(manifests):
        yield from (path_key for path in batch.column("path").to_pylist() if (path_key := key(path)) in keys)


def _formerly_shared_files(
    runtime: Runtime, snapshots: Sequence[Snapshot], base: TableMetadata, planned: Iterable[str]
) -> Mapping[str, int | None]:
    """Return the files that the expired snapshots shared with snapshots which may be expired too by now.

    Files in manifests of the table's current snapshots are left out: the table still needs them.
    """
    current = {manifest.path for manifest in _manifests(runtime, base.snapshots)}
    manifests = [manifest for manifest in _manifests(runtime, snapshots) if manifest.path not in current]
    paths = {manifest.path for manifest in manifests}
    for batch in runtime.files.live_files(manifests):
        paths.update(batch.column("path").to_pylist())
    return dict.fromkeys(sorted(paths.difference(planned)))


def _manifests(runtime: Runtime, snapshots: Sequence[Snapshot]) -> list[ManifestFile]:
    """Return the manifests that the snapshots list, each once."""
    names = [field.name for field in fields(ManifestFile)]
    rows = runtime.files.manifest_lists(snapshots).select(names).to_pylist()
    return [ManifestFile.of(list(row.values())) for row in rows]


def _unreadable(runtime: Runtime, snapshots: Iterable[Snapshot], paths: Iterable[str]) -> list[int]:
    """Return the ids of the snapshots that cannot be read without the files."""
    keys, ids = {key(path) for path in paths}, []
    for snapshot in snapshots:
        try:
            needs = any(True for _ in _needed_keys(runtime, [snapshot], keys))
        except MetadataUnreadable:
            needs = True
        ids += [snapshot.snapshot_id] if needs else []
    return ids


def _files_deleted(job: JobRow, paths: Sequence[str], unreadable: Sequence[int], by: str = "") -> Refused:
    """Return the refusal for files that are deleted or may be."""
    consequence = f"; without them snapshots {some(unreadable)} cannot be read" if unreadable else ""
    return Refused(
        f"{job.ref}: job {job.job_id} cannot be undone: {count(len(paths), 'file')} deleted already or written "
        f"anew, or the deletion has begun{by}: {some(paths)}{consequence}"
    )


def _nothing_to_undo(job: JobRow, files: LedgerFiles) -> UsageError:
    """Return the error for a job that changed nothing an undo can restore."""
    if job.options.get(UNDO):
        return UsageError(f"job {job.job_id} is itself the undo of job {job.options[UNDO]}: it cannot be undone")
    deleted = files.states[LedgerState.DELETED]
    deleted_note = f"{count(deleted, 'file')} deleted, and " if deleted else ""
    return UsageError(
        f"job {job.job_id} of {job.ref} leaves nothing to undo: {deleted_note}it removed no snapshots that can return "
        "and no deletion of it waits; what it rewrote reads the same rows as before"
    )


def _not_undone(runtime: Runtime, job: JobRow, removals: Sequence[Removal]) -> Iterator[str]:
    """Yield a sentence for each effect of the job that an undo leaves as it is."""
    done = {run["operation"] for run in runtime.store.runs.list(job.job_id) if run["state"] == OperationState.COMMITTED}
    if rewrote := [op for op in _REWRITES if op in done]:
        yield f"what {', '.join(rewrote)} rewrote stays as it is: it reads the same rows"
    if Operation.EXPIRE_SNAPSHOTS in done and not removals:
        yield "the snapshots that expire_snapshots removed do not return: what they were is not recorded"
    if Operation.EXPIRE_ROWS in done:
        yield "rows that expire_rows deleted stay deleted, but can be read again in the snapshots that return"
