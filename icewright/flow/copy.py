"""Copy of a table to another place, while writers commit to it and others expire its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from icewright.core.copying import CopyResult, uuid_of_copy
from icewright.core.errors import MetadataUnreadable, Refused, StorageUnavailable, UsageError
from icewright.core.paths import named_place, split
from icewright.core.places import Spelling
from icewright.core.restore import resolve
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.operation import load
from icewright.flow.register import named_tables, register, require_registering
from icewright.flow.runtime import Runtime
from icewright.flow.table_job import TableJob
from icewright.ports import CopyRequest, JobRow, Pointer, Registration, SnapshotPin
from icewright.ports.rows import table_folder

COPY = "copy"  # option of a copy's job: the place
_ATTEMPTS = 5  # against expiries of other systems
_SPELLING = Spelling()
_PINNED = timedelta(days=1)  # a copy that takes longer, or died, holds the snapshots no more


def restore_beside(runtime: Runtime, ref: TableRef, to: str, new: TableRef, *, dry_run: bool = False) -> CopyResult:
    """Copy the state of a table that `to` means (`core.restore.resolve`) beside it, and register it under a new name.

    The table stays as it is. Raises `Refused` when the new name or its place is taken, and what `copy_table` does; a
    restore that was interrupted goes on when it is asked for again.
    """
    require_registering(runtime, new)
    if "/" in new.name:
        raise UsageError(f"{new}: a table beside another has its name as its folder's: name it without a slash")
    metadata, now = runtime.catalog(ref).load(ref), runtime.clock.now()
    place = f"{metadata.location.rpartition('/')[0]}/{new.name}"
    taken = next((pointer for pointer in runtime.catalog(new).pointers() if pointer.ref == new), None)
    if taken is not None:
        remedy = "name another table"
        if (made := runtime.catalog(new).load(new)).table_uuid == uuid_of_copy(metadata.table_uuid, place):
            remedy = (
                f"a restore of {ref} has made it, of snapshot {made.current_snapshot_id}: read it, drop it, or {remedy}"
            )
        raise Refused(f"{new} exists already, at {taken.metadata_location}: {remedy}")
    target = resolve(metadata, runtime.files.history(metadata), to, now)
    if split(metadata.location).path == "/":
        raise Refused(f"{ref} is all of {metadata.location}, and has no place beside it: copy it, and restore the copy")
    result = copy_table(runtime, ref, place, dry_run=dry_run, snapshot_id=target.snapshot_id)
    if not dry_run:
        register(runtime, new, result.metadata_location)
    return result


def copy_table(
    runtime: Runtime,
    ref: TableRef,
    place: str,
    *,
    dry_run: bool = False,
    snapshot_id: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> CopyResult:
    """Copy a table as it is now, or one of its snapshots, to a place, or return what that would copy.

    Icewright expires none of its snapshots meanwhile. When another system does, the copy goes on with those that are
    left. Raises what `Engine.copy` and `check` do; a copy that was interrupted goes on when it is asked for again.
    """
    catalog, place = runtime.catalog(ref), named_place(place)
    if set("?#\t\r\n") & set(place):  # as S3FileIO and PyIceberg do
        raise UsageError(
            f"{ref}: readers of Iceberg end a path at ? and #, and skip tabs, as in {place!r}: name another"
        )
    attempt = 0
    while True:
        base, attempt = catalog.load(ref), attempt + 1
        _require_free(runtime, base, place)
        if snapshot_id is not None and snapshot_id not in base.by_id:
            raise Refused(f"{ref}: snapshot {snapshot_id} has expired meanwhile: restore another state")
        try:
            with _pin_snapshots(runtime, base, dry_run=dry_run):
                result = runtime.engine.copy(CopyRequest(base, place, dry_run, snapshot_id, check))
        except (MetadataUnreadable, StorageUnavailable):
            if attempt == _ATTEMPTS or catalog.load(ref).metadata_location == base.metadata_location:
                raise
            continue
        if not dry_run:
            now, target = runtime.clock.now(), result.metadata_location
            runtime.store.activity.record("copied", now, ref, metadata_location=target, summary=result.summary)
        return result


def carry_out_dequeued(runtime: Runtime, job: JobRow, running: TableJob) -> str:
    """Carry a queued copy out; return what was copied. Where the copy lies is the job's result."""
    load(runtime, job.ref, job.table_uuid)  # raises when the table was replaced

    def check() -> None:
        if (reason := running.lease.end_reason()) is not None:
            raise reason

    result = copy_table(runtime, job.ref, job.options[COPY], check=check)
    running.result = result.document
    return f"{result.summary}; the copy's metadata file is {result.metadata_location}"


def _require_free(runtime: Runtime, base: TableMetadata, place: str) -> None:
    """Raise `Refused` if a catalog names a table whose place meets that of the copy, unless it is an earlier copy.

    A copy that somebody has committed to is none any more: what its commits deleted, the next copy would still name.
    """
    canonical = runtime.files.canonical  # a link may lead into the place of a table
    wanted = _SPELLING.place(canonical(place))

    def meets(pointer: Pointer, known: Iterable[Registration]) -> bool:
        places = (table_folder(pointer.metadata_location), *(folder for r in known for folder in r.places))
        return any(_SPELLING.place(canonical(folder)).may_meet(wanted) for folder in places)

    for pointer, known in named_tables(runtime):
        if not meets(pointer, known):
            continue
        now = runtime.catalogs[pointer.ref.catalog].load(pointer.ref)
        if not meets(pointer, (registration for registration in known if registration.table_uuid == now.table_uuid)):
            continue  # another table had the name
        if now.table_uuid != uuid_of_copy(base.table_uuid, place.rstrip("/")):
            raise Refused(f"{base.ref}: {place} and the place of {pointer.ref} meet: name another place")
        name = now.metadata_location.rpartition("/")[2]
        version = f"{base.metadata_location.rpartition('/')[0]}/{name}"
        if version not in (base.metadata_location, *base.metadata_log) and runtime.files.size(version) is None:
            raise Refused(
                f"{base.ref}: {pointer.ref} is a copy of it at {place}, and has commits of its own, which a further "
                "copy would not have: name another place"
            )


@contextmanager
def _pin_snapshots(runtime: Runtime, base: TableMetadata, *, dry_run: bool) -> Iterator[None]:
    """Keep all snapshots of the table from expiry, unless a job that works on it may be expiring some already."""
    oldest = min(base.snapshots, key=lambda snapshot: snapshot.timestamp, default=None)
    if dry_run or oldest is None:
        yield
        return
    now, pins = runtime.clock.now(), runtime.store.pins
    pin = SnapshotPin("the running copy", oldest.snapshot_id, now, now + _PINNED, runtime.trigger.actor)
    pins.add(base.ref, base.table_uuid, pin)
    try:
        yield
    finally:
        pins.remove(base.ref, pin.reader)
