"""Which tables moved since the last look. A catalog that fails, fails whole; the others go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from icewright.core.errors import IcewrightError
from icewright.core.layering import Policy
from icewright.core.policy import EVALUATE_COOLDOWN
from icewright.flow.world import World
from icewright.ports import TableRow


@dataclass(frozen=True, slots=True)
class Detected:
    """What a pass of detection found. `changed` are in scope and moved, or time alone may have made them due."""

    tables: int
    changed: tuple[TableRow, ...]
    pending: tuple[TableRow, ...]  # unchanged, but found due before and not done yet
    errors: tuple[tuple[str, str], ...]  # catalog, error


def detect(world: World, catalogs: Sequence[str], now: datetime, *, force: bool = False) -> Detected:
    """Ask each catalog for its tables and write down what moved; `force` looks past the evaluation cooldown."""
    errors: list[tuple[str, str]] = []
    read: list[str] = []
    for name in catalogs:
        try:
            pointers = world.catalogs[name].pointers()
            world.store.detected(name, pointers, now)
            read.append(name)
        except IcewrightError as error:
            errors.append((name, str(error)))
            world.store.event("catalog_failed", now, catalog=name, error=str(error))
            world.tell("catalog_failed", {"catalog": name, "error": str(error)})
    rows = [row for row in world.store.tables() if row.ref.catalog in read and not row.dropped]
    rows = [row for row in rows if world.scopes[row.ref.catalog].holds(row.ref)]
    policy = world.policy()
    changed = tuple(row for row in rows if _changed(row, policy, now) and (force or not _cooling(row, policy, now)))
    pending = tuple(row for row in rows if row.due_since is not None and row not in changed)
    return Detected(len(rows), changed, pending, tuple(errors))


def _cooling(row: TableRow, policy: Policy, now: datetime) -> bool:
    """Evaluated so shortly ago that the next look waits."""
    wait = timedelta(minutes=policy.knobs_for(row.ref, None)[EVALUATE_COOLDOWN])
    return row.evaluated_at is not None and now - row.evaluated_at < wait


def _changed(row: TableRow, policy: Policy, now: datetime) -> bool:
    """The catalog names another metadata file than the last evaluation read, the policy is another, or it is time."""
    moved = row.metadata_location != row.evaluated_location
    if row.error is not None and row.evaluated_at is not None and not moved:
        return row.revisit_at is None or now >= row.revisit_at
    if row.policy is not None and row.policy != policy.knobs_for(row.ref, None).fingerprint:
        return True
    return moved or (row.revisit_at is not None and now >= row.revisit_at)
