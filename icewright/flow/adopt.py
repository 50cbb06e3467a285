"""A person's word that a table's place is its own: what earlier tables and dead versions left there is nobody's."""

from __future__ import annotations

from icewright.core.table import TableRef
from icewright.flow.world import World
from icewright.ports import Adoptable


def adopt(world: World, ref: TableRef, *, dry_run: bool = False) -> Adoptable:
    """Write down that everything that stops deletions in the table's places is its own, and say what that is.

    Raises `Refused` when some of it belongs to a table that a catalog names, and what reading the table raises.
    """
    world.catalog(ref)
    found = world.engine.adoptable(ref)
    if not dry_run:
        world.store.adopt(found.table_uuid, found.what, world.trigger.actor, world.clock.now())
        world.store.event("adopted", world.clock.now(), ref, what=list(found.what))
    return found
