"""Restore of tables to an earlier state: main is set back by compare-and-set, and a tag keeps the state before.

All tables of a set are held, planned and checked before the first is changed. Each is then changed by one commit, which
moves main and makes the tag together: a process that ends in between leaves each table as it was, or restored. The same
restore asked for again goes on, as a table that is there already has nothing to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from icewright.core.ancestry import newer_than
from icewright.core.errors import IcewrightError, InvariantViolated, Refused, TableReplaced
from icewright.core.integrity import CheckLevel
from icewright.core.operations.expire_snapshots import expiry, switched_off
from icewright.core.recovery import PointCosts, points
from icewright.core.restore import RestorePlan, plan_restore, resolve, total_rows
from icewright.core.table import MAIN, TableMetadata, TableRef
from icewright.core.verify import identity_violations, ref_violations
from icewright.core.words import count
from icewright.flow.lease import Lease
from icewright.flow.runtime import Runtime
from icewright.flow.table_job import TableJob, table_job
from icewright.ports import JobRow, SetRefs

RESTORE = "restore"  # option of a restore's job: the snapshot that it returns to
RESTORE_FROM = "restore_from"  # and of a queued one: the snapshot that it returns from


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of the restore of one table, or of its dry run."""

    plan: RestorePlan
    dry_run: bool
    job_id: str | None = None

    @property
    def summary(self) -> str:
        """Return the result in one line."""
        plan = self.plan
        target = f"snapshot {plan.target.snapshot_id} of {plan.target.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        if plan.already:
            return f"{target} is the current one already"
        verb, tagged = ("would return", "would get") if self.dry_run else ("returned", "has")
        rows, leaving = _rows(plan), len(plan.leaving)
        left = f"{count(leaving, 'commit')} {'leaves' if leaving == 1 else 'leave'}"
        returning = len(plan.returning)
        back = f", {returning} {'comes' if returning == 1 else 'come'} back" if returning else ""
        return f"{verb} to {target}: {left} main{back}{rows}; the state before {tagged} tag {plan.tag.name}"


def restore(runtime: Runtime, refs: Sequence[TableRef], to: str, *, dry_run: bool = False) -> list[RestoreResult]:
    """Restore tables to the state that `to` means (`core.restore.resolve`), or return what that would change.

    Raises `UsageError` when a table has no such state, and `Refused` when a file of it is gone, another job works on a
    table, or a writer commits meanwhile: nothing of that table is changed then. Of several tables, those are left out
    to which nobody has committed yet.
    """
    tables = [runtime.catalog(ref).load(ref) for ref in refs]
    plans = [_planned(runtime, table, to) for table in tables if table.snapshots or len(tables) == 1]
    if not dry_run:
        return carry_out(runtime, plans)
    for plan in plans:
        _require_whole(runtime, plan)
    return [RestoreResult(plan, dry_run=True) for plan in plans]


def point_costs(runtime: Runtime, metadata: TableMetadata) -> PointCosts:
    """Return what the table's recovery points cost now: the files of those that would expire without their tags."""
    all_points, now = points(metadata), runtime.clock.now()
    names = {point.name for point in all_points}
    untagged = replace(metadata, refs=tuple(ref for ref in metadata.refs if ref.name not in names))
    holds, knobs = runtime.store.pins.holds(metadata), runtime.policy().knobs_for(metadata.ref, metadata)
    expired = frozenset[int]()
    if switched_off(metadata, knobs) is None:
        expired = frozenset(expiry(untagged, holds, knobs, now).snapshot_ids)
    return runtime.engine.point_costs(metadata, expired & {point.snapshot_id for point in all_points}, expired)


def carry_out(runtime: Runtime, plans: Sequence[RestorePlan], running: TableJob | None = None) -> list[RestoreResult]:
    """Restore tables as planned, and in no other way: what a writer has committed since stops it.

    `running` is the job of the only plan's table, where that has begun; otherwise each table gets one.
    """
    with ExitStack() as stack:
        jobs, holds = {}, {}
        for plan in plans:
            if not plan.already:
                metadata, options = plan.metadata, {RESTORE: str(plan.target.snapshot_id)}
                hold = holds[metadata.ref] = stack.enter_context(ExitStack())
                jobs[metadata.ref] = running or hold.enter_context(
                    table_job(runtime, metadata.ref, metadata.table_uuid, options, "restore")
                )
        for plan in plans:
            _require_whole(runtime, plan)
            _require_as_planned(runtime, plan)
        results = []
        for plan in plans:
            holder = jobs.get(plan.metadata.ref)
            results.append(RestoreResult(plan, dry_run=False, job_id=holder.job_id if holder else None))
            if holder is not None:
                with _names_restored(results[:-1]):
                    _restore(runtime, plan, holder.lease)
                holder.summary = results[-1].summary
                holds[plan.metadata.ref].close()  # its job has ended well, whatever becomes of the tables after it
        return results


@contextmanager
def _names_restored(results: Sequence[RestoreResult]) -> Iterator[None]:
    """Let an error of one table of a set say which tables are restored already."""
    try:
        yield
    except IcewrightError as error:
        if names := [str(result.plan.metadata.ref) for result in results if not result.plan.already]:
            error.args = (f"{error}; restored already: {', '.join(names)}; restore again to go on",)
        raise


def _planned(runtime: Runtime, metadata: TableMetadata, to: str) -> RestorePlan:
    history, now = runtime.files.history(metadata), runtime.clock.now()
    return plan_restore(metadata, history, resolve(metadata, history, to, now), now)


def carry_out_dequeued(runtime: Runtime, job: JobRow, running: TableJob) -> str:
    """Carry a queued restore out, from the head and to the snapshot that its person has seen; return what was done.

    Raises `Refused` when a writer has committed since then.
    """
    metadata, target = runtime.catalog(job.ref).load(job.ref), int(job.options[RESTORE])
    _require_unmoved(metadata, job.table_uuid, int(job.options[RESTORE_FROM]), target)
    plan = plan_restore(metadata, runtime.files.history(metadata), metadata.by_id[target], runtime.clock.now())
    (result,) = carry_out(runtime, [plan], running)
    return result.summary


def _require_whole(runtime: Runtime, plan: RestorePlan) -> None:
    """Raise `Refused` when a file that the target needs is missing or cut."""
    if plan.already:
        return
    faults = runtime.engine.check(plan.metadata.ref, CheckLevel.EXISTS, frozenset({plan.target.snapshot_id})).faults
    if faults:
        raise Refused(
            f"{plan.metadata.ref}: snapshot {plan.target.snapshot_id} cannot be restored: {len(faults)} of its files "
            f"are at fault, such as {faults[0].path} ({faults[0].detail}); nothing was changed: restore another state",
            "files_are_gone",
        )


def _require_as_planned(runtime: Runtime, plan: RestorePlan) -> None:
    before = plan.metadata
    now = runtime.catalog(before.ref).load(before.ref)
    _require_unmoved(now, before.table_uuid, plan.head.snapshot_id, plan.target.snapshot_id)


def _require_unmoved(now: TableMetadata, table_uuid: str, head: int, target: int) -> None:
    """Raise `Refused` when main has moved from the head that was planned on, or the target is gone."""
    if now.table_uuid != table_uuid:
        raise TableReplaced(f"{now.ref} was replaced meanwhile: nothing was changed")
    if now.current_snapshot_id != head:
        raise Refused(
            f"{now.ref}: a writer has committed snapshot {now.current_snapshot_id} since the restore was planned; "
            "nothing was changed: stop the writer, look at what it wrote, and restore again",
            "overtaken",
        )
    if target not in now.by_id:
        raise Refused(f"{now.ref}: snapshot {target} has expired meanwhile; nothing was changed")


def _restore(runtime: Runtime, plan: RestorePlan, lease: Lease) -> None:
    """Commit main's move and the tag, and verify them on the reloaded table. A violation pauses the table."""
    ref, catalog = plan.metadata.ref, runtime.catalog(plan.metadata.ref)
    before = plan.metadata  # and what others have committed since, but to main

    def attempt() -> None:
        nonlocal before
        base = catalog.load(ref)
        if _leads_on(base, plan) and plan.tag in base.refs:
            return  # an attempt whose reply was lost has landed
        _require_as_planned(runtime, plan)
        if any(each.name == plan.tag.name for each in base.refs):
            raise Refused(f"{ref}: there is a tag {plan.tag.name} already; nothing was changed")
        lease.check()
        before = base
        catalog.commit(base, SetRefs(plan.refs))

    runtime.retry_commit(attempt)
    after = catalog.load(ref)
    broken = identity_violations(before, after) + ref_violations(before, after, [MAIN])
    as_set = {MAIN: plan.target.snapshot_id} if _leads_on(after, plan) else {}
    refs = {replace(each, snapshot_id=as_set.get(each.name, each.snapshot_id)) for each in after.refs}
    broken += [f"{each.kind} {each.name} is not as it was set" for each in plan.refs if each not in refs]
    if broken:
        message = f"{ref}: the restore went wrong: {'; '.join(broken)}"
        runtime.pause_broken(ref, message)
        raise InvariantViolated(f"{message}; the table is paused, and tag {plan.tag.name} has the state before")


def _leads_on(now: TableMetadata, plan: RestorePlan) -> bool:
    """Return whether main is at the target or was committed to from there, by a writer that came right after."""
    places, head = {plan.head.snapshot_id, plan.target.snapshot_id}, now.current_snapshot_id
    came_from = None if head is None else newer_than(now, head, places)
    return came_from is not None and came_from[0].snapshot_id == plan.target.snapshot_id


def _rows(plan: RestorePlan) -> str:
    before, after = total_rows(plan.head), total_rows(plan.target)
    return "" if before is None or after is None else f", {count(before, 'row')} before, {after:,} after"
