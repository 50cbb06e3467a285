"""Adoption: a person confirms that what lies in a table's location belongs to the table, or to no table."""

from __future__ import annotations

from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import Adoptable


def adopt(runtime: Runtime, ref: TableRef, *, dry_run: bool = False, shown: Adoptable | None = None) -> Adoptable:
    """Record as the table's own everything that blocks deletions in its places; return what that is.

    A dry run records nothing. `shown` is what a person has looked at: what came since is not recorded. Raises `Refused`
    when a part belongs to a table that a catalog names, and the errors of reading the table.
    """
    runtime.catalog(ref)
    adoptable = runtime.engine.adoptable(ref)
    if shown is not None:
        adoptable = adoptable.among(shown)
    if not dry_run:
        runtime.store.registrations.adopt(
            adoptable.table_uuid, adoptable.everything, runtime.trigger.actor, runtime.clock.now()
        )
        runtime.store.activity.record("adopted", runtime.clock.now(), ref, what=list(adoptable.everything))
    return adoptable
