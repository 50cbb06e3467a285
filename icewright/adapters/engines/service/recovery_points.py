"""Recovery points: tags made and retired in one commit. No file is written or deleted but the table's metadata."""

from __future__ import annotations

from dataclasses import dataclass

from icewright.core.errors import InvariantViolated
from icewright.core.policy import Operation
from icewright.core.recovery import points
from icewright.core.runs import Outcome, committed
from icewright.core.steps import TagRecoveryPoints
from icewright.core.verify import identity_violations, ref_violations
from icewright.core.words import count
from icewright.ports import Catalog, Clock, SetRefs, StepRequest


@dataclass(frozen=True)
class RecoveryPointsInService:
    """Makes and retires recovery points."""

    clock: Clock

    def run(self, catalog: Catalog, request: StepRequest, step: TagRecoveryPoints) -> Outcome:
        """Set the tags, or list those to set. Raises `CommitConflict` when the table changed meanwhile."""
        base, started = request.base, self.clock.now()
        if not request.dry_run:
            request.check()
            retired = frozenset(point.name for point in step.retire)
            after = catalog.commit(base, SetRefs(tuple(point.tag for point in step.make), retired))
            broken = identity_violations(base, after) + ref_violations(base, after, retired)
            broken += [f"point {p.name} was not made" for p in set(step.make) - set(points(after))]
            if broken:
                raise InvariantViolated(f"{base.ref}: recovery_points broke the table: {'; '.join(sorted(broken))}")
        seconds = (self.clock.now() - started).total_seconds()
        made, gone = ("would make", "retire") if request.dry_run else ("made", "retired")
        return committed(
            Operation.RECOVERY_POINTS,
            f"{made} {count(len(step.make), 'recovery point')}, {gone} {len(step.retire)}",
            {"points_made": len(step.make), "points_retired": len(step.retire), "duration_ms": round(seconds * 1000)},
            notes=(
                *(f"{made} {point.name} of snapshot {point.snapshot_id}" for point in step.make),
                *(f"{gone} {point.name} of snapshot {point.snapshot_id}" for point in step.retire),
            ),
        )
