"""Repair of what a check found: lost manifest lists are written again, and main gets a snapshot without the faults.

The state before is tagged first, so that a repair of main can be taken back; a process that ends in between leaves the
table as it was, or repaired. The same repair asked for again goes on, as what is repaired has no fault any more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from icewright.core.errors import InvariantViolated, Refused, TableReplaced
from icewright.core.integrity import CheckLevel, FileFault, FileFaultKind, IntegrityReport
from icewright.core.repair import LISTS, MANIFESTS, RepairKind, RepairPlan, ordered
from icewright.core.restore import tag_before
from icewright.core.table import SnapshotRef, TableMetadata, TableRef
from icewright.core.words import count
from icewright.flow.runtime import Runtime
from icewright.flow.table_job import TableJob, table_job
from icewright.ports import JobRow, RepairRequest, SetRefs

REPAIR = "repair"  # option of a repair's job: whether lost files are dropped
APPROVED_ROWS = "approved_rows"  # and of a queued one: how many rows main may lose
PLAN_ONLY = "plan_only"  # and whether it only finds out what would be repaired


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The outcome of a repair of a table, or of its dry run."""

    report: IntegrityReport
    plan: RepairPlan
    dry_run: bool
    tag: str | None = None  # of the state before, when main was changed
    job_id: str | None = None

    @property
    def summary(self) -> str:
        """Return the result in one line."""
        if not self.report.faults:
            return "no fault"
        verb = "would be repaired" if self.dry_run else "repaired"
        repaired = f"{len(self.report.faults) - len(self.plan.unrepaired)} of {count(len(self.report.faults), 'fault')}"
        lost = f"; main {'would lose' if self.dry_run else 'lost'} {count(self.plan.lost_rows, 'row')}"
        tagged = f"; the state before has tag {self.tag}" if self.tag else ""
        return f"{repaired} {verb}{lost if self.plan.lost_rows else ''}{tagged}"

    @property
    def document(self) -> dict[str, Any]:
        """Return the repair, or its dry run, as JSON."""
        report, plan = self.report, self.plan
        return {
            "table": str(report.ref),
            "dry_run": self.dry_run,
            "job_id": self.job_id,
            "faults": len(report.faults),
            "actions": [asdict(action) for action in plan.actions],
            "unrepaired": [{**asdict(unrepaired.fault), "reason": unrepaired.reason} for unrepaired in plan.unrepaired],
            "lost_rows": plan.lost_rows,
            "tag": self.tag,
            "summary": self.summary,
        }


def repair(
    runtime: Runtime, ref: TableRef, *, drop_lost: bool = False, dry_run: bool = False, approved_rows: int | None = None
) -> RepairResult:
    """Check a table to its footers and repair what is provably right, or return what that would be.

    `drop_lost`: main goes on without data files and manifests that are lost. Raises `Refused` while another job works
    on the table, and when main would lose more rows than `approved_rows`; and the errors of the check and the commit.
    """
    if not dry_run:
        metadata = runtime.catalog(ref).load(ref)
        with table_job(runtime, ref, metadata.table_uuid, {REPAIR: str(drop_lost).lower()}, "repair") as job:
            return _carry_out(runtime, metadata, job, drop_lost=drop_lost, approved_rows=approved_rows)
    report = runtime.engine.check(ref, CheckLevel.FOOTERS)
    base = runtime.catalog(ref).load(ref)
    request = RepairRequest(base, report.faults, drop_lost, dry_run=True, main_is_known=_main_is_known(base, report))
    return RepairResult(report, runtime.engine.repair(request), True)


def carry_out_dequeued(runtime: Runtime, job: JobRow, running: TableJob) -> str:
    """Carry a queued repair out, and let main lose no more rows than its person approved; return what was done."""
    metadata = runtime.catalog(job.ref).load(job.ref)
    if metadata.table_uuid != job.table_uuid:
        raise TableReplaced(f"{job.ref} was replaced meanwhile: nothing was changed")
    drop_lost = job.options[REPAIR] == "true"
    if job.options.get(PLAN_ONLY):
        result = repair(runtime, job.ref, drop_lost=drop_lost, dry_run=True)
    else:
        approved = int(job.options[APPROVED_ROWS])
        result = _carry_out(runtime, metadata, running, drop_lost=drop_lost, approved_rows=approved)
    running.result = result.document
    return result.summary


def _carry_out(
    runtime: Runtime, metadata: TableMetadata, job: TableJob, *, drop_lost: bool, approved_rows: int | None
) -> RepairResult:
    report = runtime.engine.check(metadata.ref, CheckLevel.FOOTERS)
    known = _main_is_known(metadata, report)
    request = RepairRequest(
        metadata, report.faults, drop_lost, job_id=job.job_id, check=job.lease.check, main_is_known=known
    )
    again = [fault for fault in report.faults if fault.file == LISTS or _is_lost_manifest(fault)]
    rebuilt = runtime.engine.repair(replace(request, faults=again, drop_lost=False))
    written = replace(rebuilt, unrepaired=tuple(o for o in rebuilt.unrepaired if o.fault.file == LISTS))
    done = {action.path for action in written.actions}
    others = [fault for fault in report.faults if fault.file != LISTS and fault.path not in done]
    main, tag = _repair_main(runtime, replace(request, faults=others), approved_rows)
    plan = ordered(written.actions + main.actions, written.unrepaired + main.unrepaired)
    result = RepairResult(report, plan, False, tag, job.job_id)
    _verify(runtime, result)
    job.summary = result.summary
    return result


def _main_is_known(base: TableMetadata, report: IntegrityReport) -> bool:
    """Return whether the check could read what main names: no fault is of main's manifest list."""
    return all(base.current_snapshot_id not in fault.snapshot_ids for fault in report.faults if fault.file == LISTS)


def _is_lost_manifest(fault: FileFault) -> bool:
    return fault.file == MANIFESTS and fault.kind is FileFaultKind.MISSING


def _repair_main(runtime: Runtime, request: RepairRequest, approved_rows: int | None) -> tuple[RepairPlan, str | None]:
    """Tag main and repair it, on whatever head it has; return what was done, and the name of the tag."""
    ref, catalog = request.base.ref, runtime.catalog(request.base.ref)
    tag: SnapshotRef | None = None
    done = RepairPlan((), ())

    def attempt() -> None:
        nonlocal tag, done
        base = catalog.load(ref)
        planned = runtime.engine.repair(replace(request, base=base, dry_run=True))
        head = base.current_snapshot
        if not planned.actions or head is None:
            done = done if done.actions else planned  # an attempt whose reply was lost has landed, or nothing is to do
            return
        if approved_rows is not None and planned.lost_rows > approved_rows:
            raise Refused(
                f"{ref}: main would lose {count(planned.lost_rows, 'row')}, more than the {approved_rows} that were "
                "approved; main was not changed: repair again"
            )
        tag = replace(tag or tag_before("repair", base, head, runtime.clock.now()), snapshot_id=head.snapshot_id)
        request.check()
        base = catalog.commit(base, SetRefs((tag,)))
        done = planned
        runtime.engine.repair(replace(request, base=base))

    runtime.retry_commit(attempt)
    return done, tag.name if tag else None


def _verify(runtime: Runtime, result: RepairResult) -> None:
    """Check again what was repaired. A fault that is still there pauses the table.

    What is right in main may stay wrong in a snapshot whose list was written again: such a list alone is looked at.
    """
    ref = result.report.ref
    if not result.plan.actions:
        return
    stay = {unrepaired.fault for unrepaired in result.plan.unrepaired}
    repaired = {(fault.path, fault.kind): fault for fault in result.report.faults if fault not in stay}
    rebuilt = {action.path for action in result.plan.actions if action.kind is RepairKind.REBUILD}
    snapshots = {n for fault in repaired.values() if fault.path in rebuilt for n in fault.snapshot_ids}
    if (head := runtime.catalog(ref).load(ref).current_snapshot_id) is not None:
        snapshots.add(head)
    after = runtime.engine.check(ref, CheckLevel.FOOTERS, frozenset(snapshots))
    concerned = (fault for fault in after.faults if fault.path in rebuilt or head in fault.snapshot_ids)
    broken = [fault for fault in concerned if (fault.path, fault.kind) in repaired]
    if broken:
        message = f"{ref}: after the repair {broken[0].path} is still at fault ({broken[0].detail})"
        runtime.pause_broken(ref, message)
        kept = f", and tag {result.tag} has the state before" if result.tag else ""
        raise InvariantViolated(f"{message}; the table is paused{kept}")
