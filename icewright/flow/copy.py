"""Copy of a table to another place, while writers commit to it and others expire its snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from icewright.core.copying import CopyResult
from icewright.core.errors import MetadataUnreadable, StorageUnavailable
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import CopyRequest, SnapshotPin

_ATTEMPTS = 5  # against expiries of other systems
_PINNED = timedelta(days=1)  # a copy that takes longer, or died, holds the snapshots no more


def copy_table(runtime: Runtime, ref: TableRef, place: str, *, dry_run: bool = False) -> CopyResult:
    """Copy a table as it is now to a place, or return what that would copy.

    Icewright expires none of its snapshots meanwhile. When another system does, the copy goes on with those that are
    left. Raises what `Engine.copy` does; a copy that was interrupted goes on when it is asked for again.
    """
    catalog = runtime.catalog(ref)
    attempt = 0
    while True:
        base, attempt = catalog.load(ref), attempt + 1
        try:
            with _pinned(runtime, base, dry_run=dry_run):
                result = runtime.engine.copy(CopyRequest(base, place, dry_run))
        except (MetadataUnreadable, StorageUnavailable):
            if attempt == _ATTEMPTS or catalog.load(ref).metadata_location == base.metadata_location:
                raise
            continue
        if not dry_run:
            now, target = runtime.clock.now(), result.metadata_location
            runtime.store.activity.record("copied", now, ref, metadata_location=target, summary=result.summary)
        return result


@contextmanager
def _pinned(runtime: Runtime, base: TableMetadata, *, dry_run: bool) -> Iterator[None]:
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
