"""The verdicts of all operations on one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from icewright.core.branches import Evaluate, after_publication, on_all_branches
from icewright.core.breakers import CLOCK_WENT_BACK, RETRY_UNAVAILABLE, UNAVAILABLE
from icewright.core.cost import Experience, calibrated, learned
from icewright.core.effective import Ignored, Knobs, Origin
from icewright.core.errors import IcewrightError
from icewright.core.health import HealthPart, health_parts, overall
from icewright.core.kernel import written_order
from icewright.core.merging import does_not_pay, pays_from
from icewright.core.operations import (
    check,
    compact,
    compute_statistics,
    expire_rows,
    expire_snapshots,
    recovery_points,
    remove_orphans,
    rewrite_deletes,
    rewrite_manifests,
)
from icewright.core.policy import (
    COOLDOWN,
    ENABLED,
    EVALUATE_COOLDOWN,
    IMPORTANCE,
    MEGABYTE,
    ORDER,
    ROWS_COLUMN,
    WINDOWS,
    Operation,
)
from icewright.core.retention import Expiry
from icewright.core.rewriting import (
    MAX_FILE_SIZE_RATIO,
    MIN_FILE_SIZE_RATIO,
    MIN_RETURN,
    TARGET_FILE_SIZE,
    TARGET_MANIFEST,
)
from icewright.core.runs import History, LastRun
from icewright.core.sortedness import ordering_columns
from icewright.core.steps import SWITCHED_OFF, Blocked, Due, ExpireSnapshots, NotDue, Unsupported, Verdict, Work
from icewright.core.table import TableFacts, Thresholds

LATEST_FORMAT = 3
# `auto`: a partition's target fits its size, so that what nobody writes to never changes its target
AUTO_TARGETS = tuple((gb * 1024 * MEGABYTE, mb * MEGABYTE) for gb, mb in ((0, 128), (1, 256), (4, 512), (16, 1024)))
_UNKNOWN: Mapping[Operation, Experience] = MappingProxyType({})
REVISIT = timedelta(days=1)  # whatever the verdicts say, a quiet table is looked at again after this


EVALUATE: Mapping[Operation, Evaluate] = {
    Operation.EXPIRE_ROWS: expire_rows.evaluate,
    Operation.COMPACT: on_all_branches(compact.evaluate),
    Operation.REWRITE_DELETES: rewrite_deletes.evaluate,
    Operation.REWRITE_MANIFESTS: rewrite_manifests.evaluate,
    Operation.COMPUTE_STATISTICS: compute_statistics.evaluate,
    Operation.RECOVERY_POINTS: recovery_points.evaluate,
    Operation.EXPIRE_SNAPSHOTS: expire_snapshots.evaluate,
    Operation.REMOVE_ORPHANS: remove_orphans.evaluate,
    Operation.CHECK: check.evaluate,
}


@dataclass(frozen=True, slots=True)
class Terms:
    """The table's standing in the queue, by its settings and its history."""

    importance: str
    order: str
    windows: str | None
    rest: timedelta  # before the next evaluation of a table that changed
    cooled: Mapping[Operation, datetime]  # when the cooldown of each operation that ran is over


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one table: verdicts by operation, health and its parts."""

    facts: TableFacts
    verdicts: Mapping[Operation, Verdict]
    parts: Mapping[str, HealthPart]
    health: int | None
    revisit: datetime
    terms: Terms
    ignored: tuple[Ignored, ...] = ()  # table properties that set nothing


def thresholds(knobs: Knobs, table_order: str | None = None) -> Thresholds:
    """Return the sizes that facts are counted by; `table_order` applies where no setting names a sort order."""
    size = knobs[TARGET_FILE_SIZE]
    steps = AUTO_TARGETS if isinstance(size, str) else ()
    target = AUTO_TARGETS[0][1] if isinstance(size, str) else int(size * MEGABYTE)
    order = written_order(knobs, table_order)
    return Thresholds(
        target_bytes=target,
        min_bytes=int(target * knobs[MIN_FILE_SIZE_RATIO]),
        max_bytes=int(target * knobs[MAX_FILE_SIZE_RATIO]),
        manifest_target_bytes=int(knobs[TARGET_MANIFEST] * MEGABYTE),
        steps=steps,
        order=ordering_columns(order) if order else (),
        age=knobs[ROWS_COLUMN],
    )


def evaluate(
    facts: TableFacts, knobs: Knobs, history: History, now: datetime, pool: Mapping[Operation, Experience] = _UNKNOWN
) -> Evaluation:
    """Return every operation's verdict; a fault in one operation does not hide another that is due.

    `pool` is what runs on all tables of the pool have shown (`core.cost.experience`).
    """
    verdicts = {op: verdict(op, facts, knobs, history, now, pool=pool) for op in Operation}
    scan = history.get(Operation.REMOVE_ORPHANS)
    share = None
    if scan is not None and scan.learned.get("files_scanned"):
        orphans = scan.learned.get("orphans_found", 0) - scan.learned.get("orphans_removed", 0)
        share = orphans / scan.learned["files_scanned"]
    parts = health_parts(facts, knobs, _expiry(verdicts[Operation.EXPIRE_SNAPSHOTS], facts, knobs, now), share, now)
    revisits = [v.revisit for v in verdicts.values() if isinstance(v, NotDue) and v.revisit is not None]
    revisit = min([now + REVISIT, *(r for r in revisits if r > now)])
    return Evaluation(facts, verdicts, parts, overall(parts), revisit, _terms(knobs, history, now), knobs.ignored)


def _expiry(verdict: Verdict, facts: TableFacts, knobs: Knobs, now: datetime) -> Expiry:
    """Return the expiry of the verdict, or plan it anew where something blocked the verdict."""
    match verdict:
        case Due(work=Work(steps=(ExpireSnapshots() as step,))):
            return Expiry(step.snapshot_ids, step.remove_refs, step.retained, None)
        case NotDue(reason=expire_snapshots.NOTHING):
            return Expiry((), (), (), None)
    return expire_snapshots.expiry(facts.metadata, facts.holds, knobs, now)


def _terms(knobs: Knobs, history: History, now: datetime) -> Terms:
    return Terms(
        knobs[IMPORTANCE],
        knobs[ORDER],
        knobs[WINDOWS],
        timedelta(minutes=knobs[EVALUATE_COOLDOWN]),
        {
            op: last.finished + _cooldown(op, last, knobs)
            for op, last in history.items()
            if last.finished - now <= CLOCK_WENT_BACK
        },
    )


def _cooldown(operation: Operation, last: LastRun, knobs: Knobs) -> timedelta:
    """Return the time before the next run: short after a deferral for a catalog, storage place or pool."""
    cooldown = timedelta(minutes=knobs[COOLDOWN[operation]])
    return min(cooldown, RETRY_UNAVAILABLE) if last.reason.startswith(UNAVAILABLE) else cooldown


def verdict(
    operation: Operation,
    facts: TableFacts,
    knobs: Knobs,
    history: History,
    now: datetime,
    *,
    manual: bool = False,
    pool: Mapping[Operation, Experience] = _UNKNOWN,
) -> Verdict:
    """Return one operation's verdict, after the checks that all operations share. `manual` overrides `enabled`."""
    metadata = facts.metadata
    if metadata.format_version > LATEST_FORMAT:
        return Unsupported(f"format version {metadata.format_version} is newer than {LATEST_FORMAT}")
    if "encryption.key-id" in metadata.properties:
        return Unsupported("the table is encrypted")
    if not knobs[ENABLED[operation]] and not manual:
        if not knobs.is_set(ENABLED[operation]):
            return NotDue(f"{operation} is off unless a policy asks for it")
        return Blocked(f"{operation}.{SWITCHED_OFF}")
    try:
        last = history.get(operation)
        verdict = EVALUATE[operation](facts, _at_any_cost(knobs) if manual else knobs, last, now)
    except (IcewrightError, ArithmeticError, LookupError, ValueError) as error:
        return Blocked(f"evaluation failed: {type(error).__name__}: {error}")
    if not isinstance(verdict, Due):
        return verdict
    verdict = after_publication(verdict, facts, knobs, now)
    recent = last.recent if last is not None else ()
    predicted = calibrated(verdict, learned(verdict, recent, pool.get(operation, Experience())))
    return predicted if manual else _worth(predicted, knobs, now)


def _at_any_cost(knobs: Knobs) -> Knobs:
    """Return the settings without a floor for what a merge must be worth: a person decides that for themselves."""
    return replace(knobs, origins={**knobs.origins, MIN_RETURN.name: (Origin("command", "manual", 0.0),)})


def _worth(due: Due, knobs: Knobs, now: datetime) -> Due | NotDue:
    """Return the verdict itself, or why it waits: it is postponed, or spares readers less than it costs."""
    if due.postponed is not None:
        return due.postponed
    if due.value is None or due.value >= knobs[MIN_RETURN] * due.cost:
        return due
    pays = pays_from(due.value, due.cost, knobs, due.grows_from, now)
    return NotDue(f"does not pay yet: {does_not_pay(due.value, due.cost, knobs)}; {due.why}", pays)


def due(evaluation: Evaluation) -> dict[Operation, Due]:
    """Return the operations that are worth doing now."""
    return {op: v for op, v in evaluation.verdicts.items() if isinstance(v, Due)}
