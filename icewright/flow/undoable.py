"""What the undo of a job would bring back, and why it cannot. Nothing is changed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from icewright.core.errors import MetadataUnreadable, Refused, TableReplaced, UsageError
from icewright.core.paths import key
from icewright.core.policy import Operation
from icewright.core.runs import TRANSITIONS, OperationState
from icewright.core.table import ManifestFile, Snapshot, TableMetadata
from icewright.core.verify import snapshot_of
from icewright.flow.runtime import Runtime
from icewright.ports import WAITING, JobRow, LedgerState, Removal, RestoreSnapshots

UNDO = "undo"  # option of a job that undoes another: whose id it is
_PAGE = 5000
_AT_ONCE = 16  # files that are looked for at the same time
_SHOWN = 3
_CLOCKS_APART = timedelta(hours=1)  # by which the clocks of two processes may differ
_GONE = (LedgerState.DELETED, LedgerState.DELETING)
_TAKEN = (*WAITING, LedgerState.UNDOING)
_REWRITES = (Operation.COMPACT, Operation.REWRITE_DELETES, Operation.REWRITE_MANIFESTS)


@dataclass(frozen=True, slots=True)
class Returning:
    """What an undo would bring back."""

    removals: tuple[Removal, ...] = ()  # whose snapshots and refs are to return
    files: int = 0  # planned deletions that are to be dropped
    bytes: int = 0
    refs: tuple[str, ...] = ()
    not_restored: tuple[str, ...] = ()  # what does not come back, in words
    notes: tuple[str, ...] = ()
    already: bool = False  # an earlier undo brought it all back

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return the snapshots that return, in the order in which they went."""
        return tuple(snapshot for removal in self.removals for snapshot in removed_snapshots(removal))


@dataclass(slots=True)
class LedgerFiles:
    """What the ledger says of a job's files."""

    states: Counter[str] = field(default_factory=Counter)
    operations: set[Operation] = field(default_factory=set)  # that planned those that wait, or waited before an undo
    bytes: int = 0  # of those that wait
    gone: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Return files whose deletion an undo drops."""
        return sum(self.states[state] for state in _TAKEN)


def removed_snapshots(removal: Removal) -> tuple[Snapshot, ...]:
    """Return the snapshots that a commit of an expiry removed."""
    return tuple(map(snapshot_of, RestoreSnapshots.from_json(removal.document).snapshots))


def ended_job(runtime: Runtime, job_id: str) -> JobRow:
    """The job of this id, or of this beginning of it. Raises `UsageError` when there is none or it has not ended."""
    job = runtime.store.jobs.get(job_id)
    if job is None:
        raise UsageError(f"no job, or more than one, begins with {job_id!r}; `icewright history` lists them")
    if TRANSITIONS[job.state]:
        raise UsageError(f"job {job.job_id} is {job.state}: let it end, or `icewright cancel {job.job_id}`")
    return job


def returning(runtime: Runtime, job: JobRow) -> Returning:
    """What comes back. Raises `UsageError` when the job left nothing to undo, `Refused` when it cannot be undone."""
    removals, files = runtime.store.ledger.removals(job.job_id), ledger_files(runtime, job)
    missing = tuple(removal for removal in removals if removal.undone_at is None)
    if not missing and not files.waiting:
        if removals or files.states[LedgerState.UNDONE]:
            return Returning(already=True)
        raise _nothing(job, files)
    snapshots = [snapshot for removal in missing for snapshot in removed_snapshots(removal)]
    lost = files.gone or _not_there(runtime, files.there if missing else ())
    unreadable = _unreadable(runtime, snapshots, lost) if lost else []
    if files.gone or unreadable:
        raise _lost(job, lost, unreadable)
    notes = tuple(_what_stays(runtime, job, removals))
    if not missing:
        return Returning((), files.waiting, files.bytes, notes=notes)
    base = table_of(runtime, job)
    changes = [RestoreSnapshots.from_json(removal.document) for removal in missing]
    there = {ref.name: ref.snapshot_id for ref in base.refs}
    refs = [(name, ref["snapshot-id"]) for change in changes for name, ref in change.refs.items()]
    names = tuple(name for name, snapshot_id in refs if there.get(name, snapshot_id) == snapshot_id)
    words = [said for change in changes if (said := runtime.catalog(job.ref).restorable(base, change))]
    if refused := [said for said in words if said.startswith("nothing:")]:
        raise Refused(f"{job.ref}: job {job.job_id} cannot be undone; {refused[0]}")
    return Returning(missing, files.waiting, files.bytes, names, tuple(words), notes)


def table_of(runtime: Runtime, job: JobRow) -> TableMetadata:
    """Return the table that the job worked on, as it is now. Raises `TableReplaced` when it is another one by now."""
    found = runtime.catalog(job.ref).load(job.ref)
    if found.table_uuid != job.table_uuid:
        raise TableReplaced(f"{job.ref} is another table than job {job.job_id} worked on: the job cannot be undone")
    return found


def needed_by_later_jobs(runtime: Runtime, job: JobRow, removals: Sequence[Removal]) -> Mapping[str, Sequence[str]]:
    """Return files that the returning snapshots need, and that later jobs of the table mean to delete, by the job.

    Raises `Refused` when one of them is deleted.
    """
    if not removals:
        return {}
    since = min(removal.at for removal in removals) - _CLOCKS_APART
    later = runtime.store.ledger.later_deletions(job.job_id, since)
    keys = {key(path) for files in later.values() for path in files}
    snapshots = [snapshot for removal in removals for snapshot in removed_snapshots(removal)]
    needed = set(_needed(runtime, snapshots, keys)) if keys else set()
    found = {}
    for other, files in later.items():
        wanted = {path: state for path, state in files.items() if key(path) in needed}
        if lost := sorted(path for path, state in wanted.items() if state in _GONE):
            raise _lost(job, lost, _unreadable(runtime, snapshots, lost), f" by job {other}")
        if wanted:
            found[other] = list(wanted)
    return found


def ledger_files(runtime: Runtime, job: JobRow) -> LedgerFiles:
    """Return what the ledger says of the job's files, read page by page."""
    found, after = LedgerFiles(), None
    while True:
        page = runtime.store.views.list_files(job.job_id, after, _PAGE)
        for file in page.items:
            _count(found, file, job.operations)
        if (after := page.after) is None:
            return found


def _count(found: LedgerFiles, file: Mapping[str, Any], operations: Iterable[Operation]) -> None:
    state, path, operation = file["state"], file["path"], file["operation"]
    found.states[state] += 1
    if state in _GONE:
        found.gone.append(path)
    elif state not in (LedgerState.FOUND, LedgerState.LEFT):
        found.there.append(path)
    if state in _TAKEN:
        found.bytes += file["bytes"] or 0
    if state in (*_TAKEN, LedgerState.UNDONE):
        found.operations |= {Operation(operation)} if operation else set(operations)


def _not_there(runtime: Runtime, paths: Sequence[str]) -> list[str]:
    """Return those of the files that somebody else deleted."""
    return [path for path, stat in runtime.files.stat(paths, _AT_ONCE).items() if stat is None] if paths else []


def _needed(runtime: Runtime, snapshots: Sequence[Snapshot], keys: set[str]) -> Iterator[str]:
    """Yield those of the files, known by their keys, that the snapshots read."""
    yield from (key(s.manifest_list) for s in snapshots if s.manifest_list and key(s.manifest_list) in keys)
    names = [field.name for field in fields(ManifestFile)]
    rows = runtime.files.manifest_lists(snapshots).select(names).to_pylist()
    manifests = [ManifestFile.of(list(row.values())) for row in rows]
    yield from (key(manifest.path) for manifest in manifests if key(manifest.path) in keys)
    for batch in runtime.files.live_files(manifests):
        yield from (found for path in batch.column("path").to_pylist() if (found := key(path)) in keys)


def _unreadable(runtime: Runtime, snapshots: Iterable[Snapshot], paths: Iterable[str]) -> list[int]:
    """Return those of the snapshots that cannot be read without the files."""
    keys, found = {key(path) for path in paths}, []
    for snapshot in snapshots:
        try:
            needs = any(True for _ in _needed(runtime, [snapshot], keys))
        except MetadataUnreadable:
            needs = True
        found += [snapshot.snapshot_id] if needs else []
    return found


def _lost(job: JobRow, paths: Sequence[str], unreadable: Sequence[int], by: str = "") -> Refused:
    """Return why files that are gone, or may be gone, stand against the undo."""
    shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
    means = f"; without them snapshot(s) {', '.join(map(str, unreadable))} cannot be read" if unreadable else ""
    return Refused(
        f"{job.ref}: job {job.job_id} cannot be undone: {len(paths)} file(s) are deleted already, or the deletion has "
        f"begun{by}: {shown}{means}"
    )


def _nothing(job: JobRow, files: LedgerFiles) -> UsageError:
    """Return why there is nothing to undo."""
    if job.options.get(UNDO):
        return UsageError(f"job {job.job_id} is itself the undo of job {job.options[UNDO]}: it cannot be undone")
    deleted = files.states[LedgerState.DELETED]
    gone = f"its {deleted} file(s) are deleted, and " if deleted else ""
    return UsageError(
        f"job {job.job_id} of {job.ref} leaves nothing to undo: {gone}it removed no snapshots that can return and no "
        "deletion of it waits; what it rewrote reads the same rows as before"
    )


def _what_stays(runtime: Runtime, job: JobRow, removals: Sequence[Removal]) -> Iterator[str]:
    """Yield what else the job did, which an undo leaves as it is."""
    done = {run["operation"] for run in runtime.store.runs.list(job.job_id) if run["state"] == OperationState.COMMITTED}
    if rewrote := [op for op in _REWRITES if op in done]:
        yield f"what {', '.join(rewrote)} rewrote stays as it is: it reads the same rows"
    if Operation.EXPIRE_SNAPSHOTS in done and not removals:
        yield "the snapshots that expire_snapshots removed do not return: what they were is not recorded"
    if Operation.EXPIRE_ROWS in done:
        yield "rows that expire_rows deleted stay deleted, but can be read again in the snapshots that return"
