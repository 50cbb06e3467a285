"""JSON documents of jobs, cycles, undos, waiting deletions and alerts: for `--json`, the API and the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icewright.core.capacity import Limits
from icewright.core.limit_settings import limit_knob, limit_values
from icewright.core.recovery import PointCosts, points
from icewright.core.restore import total_rows
from icewright.flow.limits import CurrentLimits
from icewright.flow.undoable import removed_snapshots
from icewright.ports import RestoreSnapshots

if TYPE_CHECKING:
    from icewright.core.alerts import Alert
    from icewright.core.plan import Deferred, MaintenancePlan
    from icewright.core.runs import Outcome
    from icewright.core.table import Snapshot, TableMetadata
    from icewright.flow.cycle import CycleResult
    from icewright.flow.detect import Detected
    from icewright.flow.execute import JobResult
    from icewright.flow.restore import RestoreResult
    from icewright.flow.undo import UndoResult
    from icewright.flow.vacuum import VacuumResult
    from icewright.ports import JobRow, Removal, WaitingDeletions
    from icewright.ports.views import JobItem


def job_document(job: JobResult, *, files: bool = False) -> dict[str, Any]:
    """Return a job that has just run; dry runs always list their files."""
    return {
        "table": str(job.ref),
        "job_id": job.job_id,
        "state": str(job.state),
        "dry_run": job.dry_run,
        "operations": [_outcome_document(o, files=files, dry_run=job.dry_run) for o in job.outcomes],
        "summary": job.summary,
    }


def outcome_state(outcome: Outcome, *, dry_run: bool) -> str:
    """Return the state of an operation's outcome; a dry run plans what a run would commit."""
    return "planned" if dry_run and outcome.state == "committed" else str(outcome.state)


def _outcome_document(outcome: Outcome, *, files: bool, dry_run: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operation": str(outcome.operation),
        "state": outcome_state(outcome, dry_run=dry_run),
        "reason": outcome.reason,
        "summary": outcome.summary,
        "metrics": dict(outcome.metrics),
        "notes": list(outcome.notes),
    }
    if outcome.statements:
        document["statements"] = list(outcome.statements)
    if outcome.partitions:
        document["partitions"] = [asdict(change) for change in outcome.partitions]
    if outcome.retained:
        document["kept"] = [{"snapshot_id": retained.snapshot_id, "by": retained.by} for retained in outcome.retained]
    if files or dry_run:
        document["files"] = [{"path": f.path, "bytes": f.bytes, "kind": f.kind} for f in outcome.files]
    return document


def cost_in_money(limits: Limits, gb_hours: float, pool: str | None) -> dict[str, float]:
    """Return the cost as money; nothing where no price is configured."""
    money = limits.money(gb_hours, pool)
    return {} if money is None else {"cost_money": round(money, 6)}


def job_row_document(job: JobRow) -> dict[str, Any]:
    """Return a job of the history."""
    return {
        "job_id": job.job_id,
        "table": str(job.ref),
        "state": str(job.state),
        "operations": [str(op) for op in job.operations],
        "trigger": job.trigger,
        "actor": job.actor,
        "started": job.started,
        "finished": job.finished,
        "summary": job.summary,
    }


def job_item_document(item: JobItem) -> dict[str, Any]:
    """Return a job of the history with what it cost."""
    costs = {name: getattr(item, name) for name in ("gb_hours", "gb_hours_driver", "money")}
    return {**job_row_document(item.job), **costs}


def plan_document(detected: Detected, plan: MaintenancePlan, limits: Limits) -> dict[str, Any]:
    """Return a plan: the jobs to start, best first, the operations that wait, and the catalogs that cannot be read."""
    return {
        "tables": detected.tables,
        "jobs": [
            {
                "table": str(job.ref),
                "operations": [str(op) for op in job.operations],
                "score": round(job.score, 3),
                "benefit_mb": round(job.benefit, 3),
                "cost_gb_hours": round(job.cost, 6),
                **cost_in_money(limits, job.cost, job.pool if job.on_pool else None),
                "why": job.why,
            }
            for job in plan.jobs
        ],
        "deferred": deferred_documents(plan.deferred),
        "errors": error_documents(detected.errors),
    }


def error_documents(errors: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Return what could not be read, each with the error."""
    return [{"source": source, "error": error} for source, error in errors]


def deferred_documents(deferred: Sequence[Deferred]) -> list[dict[str, Any]]:
    """Return the operations that a plan left waiting, each with the reason and its place."""
    return [
        {"table": str(d.ref), "operation": str(d.operation), "reason": d.reason, "position": d.position}
        for d in deferred
    ]


def cycle_document(result: CycleResult) -> dict[str, Any]:
    """Return the funnel of a cycle, its jobs, the operations that wait, and the errors."""
    return {
        "funnel": {"tables": result.tables, "changed": result.changed, "due": result.due, "run": result.run},
        "jobs": [job_document(job) for job in result.jobs],
        "deferred": deferred_documents(result.deferred),
        "errors": error_documents(result.errors),
    }


def vacuum_document(result: VacuumResult) -> dict[str, Any]:
    """Return the answer of a vacuum of a catalog, with its jobs."""
    jobs = [job_document(job) for job in result.jobs]
    return {**result.answer(), "dry_run": result.dry_run, "jobs": jobs}


def alert_document(alert: Alert) -> dict[str, Any]:
    """Return an alert with its deliveries to channels."""
    return {
        "id": alert.id,
        "rule": str(alert.rule),
        "severity": str(alert.severity),
        "subject": alert.subject,
        "table": str(alert.ref) if alert.ref else None,
        "message": alert.message,
        "since": alert.since,
        "raised_at": alert.raised_at,
        "resolved_at": alert.resolved_at,
        "tellings": [asdict(delivery) for delivery in alert.deliveries],
        "acknowledgement": asdict(alert.acknowledgement) if alert.acknowledgement else None,
    }


def undo_document(done: UndoResult) -> dict[str, Any]:
    """Return the result of an undo or of its dry run as a JSON document."""
    back = done.back
    return {
        "job_id": done.job.job_id,
        "table": str(done.job.ref),
        "dry_run": done.dry_run,
        "already": back.already,
        "undone_by": done.undone_by,
        "snapshots": [snapshot_document(snapshot) for snapshot in back.snapshots],
        "refs": list(back.refs),
        "files": back.files,
        "bytes": back.bytes,
        "not_restored": list(back.not_restored),
        "notes": list(back.notes),
        "summary": done.summary,
    }


def removal_document(removal: Removal, reads: Mapping[int, datetime]) -> dict[str, Any]:
    """Return the snapshots and refs that one commit of an expiry removed; `reads` has the last reads of snapshots."""
    restore = RestoreSnapshots.from_json(removal.document)
    return {
        "at": removal.at,
        "undone_at": removal.undone_at,
        "metadata_location": removal.metadata_location,
        "snapshots": [
            {**snapshot_document(snapshot), "read_at": reads.get(snapshot.snapshot_id)}
            for snapshot in removed_snapshots(removal)
        ],
        "refs": [
            {"name": name, "type": ref.get("type"), "snapshot_id": ref["snapshot-id"]}
            for name, ref in restore.refs.items()
        ],
    }


def restore_document(result: RestoreResult) -> dict[str, Any]:
    """Return the restore of one table, or its dry run, as a JSON document."""
    plan = result.plan
    return {
        "table": str(plan.metadata.ref),
        "dry_run": result.dry_run,
        "already": plan.already,
        "job_id": result.job_id,
        "from_snapshot_id": plan.head.snapshot_id,
        "to_snapshot_id": plan.target.snapshot_id,
        "rows_before": total_rows(plan.head),
        "rows_after": total_rows(plan.target),
        "leaving": [snapshot_document(snapshot) for snapshot in plan.leaving],
        "returning": [snapshot_document(snapshot) for snapshot in plan.returning],
        "tag": None if plan.already else plan.tag.name,
        "notes": list(plan.notes),
        "summary": result.summary,
    }


def points_document(metadata: TableMetadata, limits: Limits, costs: PointCosts | None = None) -> dict[str, Any]:
    """Return the recovery points of a table, the newest first, and what they cost where that was asked for."""
    items = []
    for point in reversed(points(metadata)):
        snapshot = metadata.by_id.get(point.snapshot_id)
        items.append(
            {
                "name": point.name,
                "cadence": str(point.cadence),
                "time": point.time,
                "snapshot_id": str(point.snapshot_id),
                "committed": snapshot and snapshot.timestamp,
                "rows": snapshot and total_rows(snapshot),
                "bytes": costs and costs.of(point),
            }
        )
    priced = {"bytes": costs and costs.bytes, "money_per_month": costs and limits.storage_money(costs.bytes)}
    return {"table": str(metadata.ref), "items": items, **priced}


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as a JSON document."""
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_id,
        "at": snapshot.timestamp,
        "operation": snapshot.operation,
        "summary": {name: value for name, value in snapshot.summary.items() if name != "operation"},
    }


def waiting_document(waiting: WaitingDeletions) -> dict[str, Any]:
    """Return the files of a job that wait to be deleted: number, size, and until when."""
    fields = ("job_id", "files", "bytes", "failed", "planned_at", "delete_after", "reason")
    document = {name: getattr(waiting, name) for name in fields}
    return document | {"table": str(waiting.ref), "operations": [str(op) for op in waiting.operations]}


def limits_document(limits: CurrentLimits) -> dict[str, Any]:
    """Return all limits that may be set without a restart, what the configuration says, and who set them when."""
    stored, configured = limits.stored(), limit_values(limits.configured)
    settings = {} if stored is None else stored.settings
    items = []
    for name, value in limit_values(limits()).items():
        knob = limit_knob(name)
        expects = f"{knob.expects}, or null for none" if knob.default is None else knob.expects
        of_file = {"configured": configured.get(name), "stored": name in settings}
        items.append({"name": name, "value": value, **of_file, "help": knob.help, "expects": expects})
    version, author, at = (0, None, None) if stored is None else (stored.version, stored.author, stored.at)
    return {"items": items, "version": version, "author": author, "at": at}
