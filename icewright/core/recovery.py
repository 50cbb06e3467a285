"""Recovery points: tags on the states of a table at full hours, days, weeks and months, made and retired by rule.

A tag proves that Icewright made it: its `max-ref-age-ms` is a hash of its name and its snapshot. A tag of such a name
that somebody else made, moved or replaced has another age, and is left alone. The ages are longer than history, so that
no expiry removes a point before its rule retires it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from icewright.core.ancestry import ancestors
from icewright.core.cadence import Cadence
from icewright.core.table import MAIN, RefKind, Snapshot, SnapshotRef, TableMetadata

PREFIX = "icewright"
LATE_COMMITS = timedelta(minutes=2)  # a commit may land this long after the timestamp of its snapshot
_LONGEST_RUN = timedelta(minutes=15)  # the last run may have missed points that became due while it ended
# ages of 142,000 years and more, which JSON readers that know no integers still read exactly
_LEAST_AGE_MS = 2**52


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The state of a table at a time, which a tag keeps."""

    cadence: Cadence
    time: datetime
    snapshot_id: int

    @property
    def name(self) -> str:
        """Return the name of the tag."""
        return f"{PREFIX}-{self.cadence}-{self.cadence.label(self.time)}"

    @property
    def tag(self) -> SnapshotRef:
        """Return the tag, whose age says that it is Icewright's."""
        return SnapshotRef(self.name, RefKind.TAG, self.snapshot_id, max_ref_age=_age(self.name, self.snapshot_id))


@dataclass(frozen=True, slots=True)
class PointCosts:
    """The bytes of the files that only recovery points keep."""

    bytes: int
    alone: Mapping[int, int]  # by snapshot of a point: the bytes that no other of these snapshots needs

    def of(self, point: RecoveryPoint) -> int:
        """Return the bytes that are freed when all points on the snapshot of this one are retired."""
        return self.alone.get(point.snapshot_id, 0)


@dataclass(frozen=True, slots=True)
class PointPlan:
    """The points to make and those to retire in one commit."""

    make: tuple[RecoveryPoint, ...] = ()
    retire: tuple[RecoveryPoint, ...] = ()
    taken: tuple[str, ...] = ()  # names under which others made tags, which stay as they are


def point_of(ref: SnapshotRef) -> RecoveryPoint | None:
    """Return the recovery point that a ref is; None when it is not Icewright's, or not any more."""
    _, cadence, label = (*ref.name.split("-", 2), "", "")[:3]
    if cadence not in set(Cadence):
        return None
    time = Cadence(cadence).parse(label)
    point = None if time is None else RecoveryPoint(Cadence(cadence), time, ref.snapshot_id)
    return point if point is not None and point.tag == ref else None


def points(metadata: TableMetadata) -> list[RecoveryPoint]:
    """Return the table's recovery points, the oldest first."""
    found = (point_of(ref) for ref in metadata.refs)
    return sorted((p for p in found if p is not None), key=lambda p: (p.time, list(Cadence).index(p.cadence)))


def plan_points(
    metadata: TableMetadata, counts: Mapping[Cadence, int], now: datetime, since: datetime | None
) -> PointPlan:
    """Return the points to make and to retire, so that the states of the newest `counts` times have a tag each.

    A state that lasts over several times has one tag, named by the first of them: a table that nobody writes to gets
    no commits. Points are made for the times since the newest one; when there is none, for those since the last run,
    which ended at `since`, or for all that the history of main still knows. So points that somebody dropped do not
    return. After main was set back, as by a restore, points are made again for times since then. Points of future
    times, which a clock that ran ahead has made, are retired: the table may differ by then.
    """
    make: list[RecoveryPoint] = []
    tagged = points(metadata)
    present, retire = [p for p in tagged if p.time <= now], [p for p in tagged if p.time > now]
    names = {ref.name for ref in metadata.refs}
    taken: list[str] = []
    head = next((ref.snapshot_id for ref in metadata.refs if ref.name == MAIN), None)
    history = [] if head is None else list(ancestors(metadata, head))
    for cadence in Cadence:
        known = [p for p in present if p.cadence is cadence]
        if not (count := counts.get(cadence)):
            retire += known
            continue
        times = cadence.newest(count, now - LATE_COMMITS)
        decided = known[-1].time if known else since and min(since, now) - _LONGEST_RUN
        for time in times:
            if decided is not None and time <= decided:
                continue
            state = _state(history, time)
            if state is None or (known and known[-1].snapshot_id == state.snapshot_id):
                continue
            if known and state.timestamp <= known[-1].time and time < metadata.last_updated:
                continue  # main was set back since the last point, perhaps after this time
            point = RecoveryPoint(cadence, time, state.snapshot_id)
            if point.name in names:
                taken.append(point.name)
                continue
            make.append(point)
            known.append(point)
        covering = max((p.time for p in known if p.time <= times[0]), default=times[0])
        retire += [p for p in known if p.time < covering]
    return PointPlan(tuple(make), tuple(retire), tuple(taken))


def next_time(counts: Mapping[Cadence, int], now: datetime) -> datetime | None:
    """Return when the next point may be made; None when there are to be none."""
    settled = now - LATE_COMMITS
    return min((c.following(c.start(settled)) + LATE_COMMITS for c, n in counts.items() if n), default=None)


def _state(history: Sequence[Snapshot], time: datetime) -> Snapshot | None:
    """Return the newest snapshot that is no younger than the time."""
    return next((snapshot for snapshot in history if snapshot.timestamp <= time), None)


def _age(name: str, snapshot_id: int) -> timedelta:
    digest = hashlib.sha256(f"{PREFIX} {name} {snapshot_id}".encode()).digest()
    return timedelta(milliseconds=_LEAST_AGE_MS + int.from_bytes(digest[:8], "big") % _LEAST_AGE_MS)
