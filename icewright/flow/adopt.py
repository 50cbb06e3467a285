"""A person's word that a table's place is its own: what earlier tables and dead versions left there is nobody's."""

from __future__ import annotations

from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import Adoptable


def adopt(runtime: Runtime, ref: TableRef, *, dry_run: bool = False) -> Adoptable:
    """Write down that everything that stops deletions in the table's places is its own, and say what that is.

    Raises `Refused` when some of it belongs to a table that a catalog names, and what reading the table raises.
    """
    runtime.catalog(ref)
    found = runtime.engine.adoptable(ref)
    if not dry_run:
        runtime.store.registrations.adopt(found.table_uuid, found.what, runtime.trigger.actor, runtime.clock.now())
        runtime.store.activity.record("adopted", runtime.clock.now(), ref, what=list(found.what))
    return found
