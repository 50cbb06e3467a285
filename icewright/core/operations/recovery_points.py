"""Recovery points: the states of a table at full hours, days, weeks and months get tags. Off unless a policy asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from icewright.core.cost import service_cost
from icewright.core.effective import Knobs
from icewright.core.policy import POINTS, Operation
from icewright.core.recovery import RecoveryPoint, next_time, plan_points, points
from icewright.core.runs import LastRun
from icewright.core.steps import Due, NotDue, TagRecoveryPoints, Verdict, Work
from icewright.core.table import TableFacts
from icewright.core.words import count

_BENEFIT_MB = 100.0  # of a commit in time: a state that has no tag may expire


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Return Due when a state of the table lacks its tag, or a tag is past its time."""
    metadata = facts.metadata
    counts = {cadence: knobs[knob] for cadence, knob in POINTS.items()}
    if not any(counts.values()):
        return NotDue(f"recovery_points is off unless a policy sets {', '.join(knob.name for knob in POINTS.values())}")
    if metadata.current_snapshot is None:
        return NotDue("no current snapshot")
    since = None if last is None else last.worked or (last.finished if last.learned else None)
    plan = plan_points(metadata, counts, now, since)
    notes = tuple(f"tag {name} is not Icewright's, and stays as it is" for name in plan.taken)
    if not plan.make and not plan.retire:
        covering = len(points(metadata))
        return NotDue(
            f"the times that are asked for are covered by {count(covering, 'recovery point')}",
            next_time(counts, now),
            notes,
        )
    return Due(
        Work(Operation.RECOVERY_POINTS, (TagRecoveryPoints(plan.make, plan.retire),), notes),
        benefit=_BENEFIT_MB,
        cost=service_cost(1),
        why="; ".join(
            f"{words}: {_by_cadence(points)}"
            for points, words in (
                (plan.make, "states without a tag"),
                (plan.retire, "tags past their time, or before it"),
            )
            if points
        ),
    )


def _by_cadence(points: Sequence[RecoveryPoint]) -> str:
    return ", ".join(f"{number} {cadence}" for cadence, number in Counter(p.cadence for p in points).items())
