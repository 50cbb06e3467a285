"""The documents of `icewright.client`, as the API describes them; made by `make docs`."""

# fmt: off
from typing import Any, Literal, NotRequired, TypedDict

Operation = Literal["expire_rows", "compact", "rewrite_deletes", "rewrite_manifests", "compute_statistics",
    "recovery_points", "expire_snapshots", "remove_orphans", "check"]
Spent = TypedDict("Spent", {"day": str, "catalog": str, "pool": str, "gb_hours": float, "runs": int})
Saved = TypedDict("Saved", {"runs": int, "gb_hours": float, "money": float, "data_files": int, "manifests": int,
    "snapshots": int, "deleted_files": int, "deleted_bytes": int})
Overview = TypedDict("Overview", {"funnel": dict[str, int], "states": dict[str, int], "health": list[int],
    "health_unknown": int, "verdicts": dict[str, dict[str, int]], "jobs": dict[str, int], "spend": list[Spent],
    "saved": Saved, "alerts": dict[str, int]})
TrendStep = Literal["minute", "hour", "day"]
TrendStepSums = TypedDict("TrendStepSums", {"at": str, "pool": str, "saved": Saved})
HealthDay = TypedDict("HealthDay", {"day": str, "tables": int, "health": float, "files": int, "bytes": int})
Trend = TypedDict("Trend", {"since": str, "step": TrendStep, "points": list[TrendStepSums], "health": list[HealthDay]})
Bulk = TypedDict("Bulk", {"count": int, "changed": bool, "tables": list[str], "jobs": list[str],
    "refused": dict[str, str]})
FleetPauseModel = TypedDict("FleetPauseModel", {"reason": str, "author": str, "since": str})
Fleet = TypedDict("Fleet", {"paused": FleetPauseModel | None, "cancelled": list[str]})
Table = TypedDict("Table", {"table": str, "catalog": str, "namespace": list[str], "name": str,
    "state": Literal["healthy", "due", "blocked", "changed", "new", "busy", "paused", "unreadable", "dropped"],
    "health": int | None, "files": int | None, "bytes": int | None, "importance": str, "queries_per_day": float,
    "due": list[Operation], "due_since": str | None, "evaluated_at": str | None, "evaluate_at": str | None,
    "succeeded_at": str | None, "job": str | None, "paused": str | None, "error": str | None, "blocked": str | None})
Tables = TypedDict("Tables", {"items": list[Table], "total": int, "next": str | None})
Verdict = TypedDict("Verdict", {"operation": Operation, "verdict": Literal["due", "not_due", "blocked", "unsupported"],
    "reason": str})
IgnoredProperty = TypedDict("IgnoredProperty", {"property": str, "value": str, "knob": str, "reason": str})
OperationState = Literal["committed", "skipped", "failed", "deferred"]
Maintenance = TypedDict("Maintenance", {"status": Literal["Disabled", "Not_Yet_Run", "Successful", "Failed"],
    "last_run": str | None, "message": str, "state": OperationState | None})
Pin = TypedDict("Pin", {"reader": str, "snapshot_id": str, "pinned_at": str, "until": str, "author": str})
TableDetail = TypedDict("TableDetail", {"table": str, "catalog": str, "namespace": list[str], "name": str,
    "state": Literal["healthy", "due", "blocked", "changed", "new", "busy", "paused", "unreadable", "dropped"],
    "health": int | None, "files": int | None, "bytes": int | None, "importance": str, "queries_per_day": float,
    "due": list[Operation], "due_since": str | None, "evaluated_at": str | None, "evaluate_at": str | None,
    "succeeded_at": str | None, "job": str | None, "paused": str | None, "error": str | None, "blocked": str | None,
    "goes_first_from": str | None, "table_uuid": str | None, "location": str | None, "metadata_location": str,
    "snapshot_id": str | None, "parts": dict[str, Any], "facts": dict[str, Any], "verdicts": list[Verdict],
    "ignored_properties": list[IgnoredProperty], "maintenance": dict[str, Maintenance], "pins": list[Pin]})
Knob = TypedDict("Knob", {"knob": str, "value": Any, "unit": str, "level": str, "rule": str, "note": str,
    "overrides": list[dict[str, Any]]})
Knobs = TypedDict("Knobs", {"table": str, "knobs": list[Knob], "ignored_properties": list[IgnoredProperty]})
Snapshot = TypedDict("Snapshot", {"snapshot_id": str, "parent_id": str | None, "timestamp": str,
    "operation": str | None, "summary": dict[str, str], "expires": str | None, "kept_by": str | None})
Ref = TypedDict("Ref", {"name": str, "kind": Literal["branch", "tag"], "snapshot_id": str})
WriterState = TypedDict("WriterState", {"snapshot_id": str, "writer": str})
UnpinnedRead = TypedDict("UnpinnedRead", {"snapshot_id": str, "read_at": str})
Snapshots = TypedDict("Snapshots", {"table": str, "current_snapshot_id": str | None, "total": int,
    "items": list[Snapshot], "refs": list[Ref], "pins": list[Pin], "writers": list[WriterState],
    "unpinned_reads": list[UnpinnedRead], "next": str | None})
Started = TypedDict("Started", {"table": str, "job_id": str | None, "state": str, "dry_run": bool,
    "operations": list[dict[str, Any]], "summary": str})
Point = TypedDict("Point", {"name": str, "cadence": str, "time": str, "snapshot_id": str, "committed": str | None,
    "rows": int | None, "bytes": int | None})
Points = TypedDict("Points", {"table": str, "items": list[Point], "bytes": int | None,
    "money_per_month": float | None})
RemovedSnapshot = TypedDict("RemovedSnapshot", {"snapshot_id": int, "parent_id": int | None, "at": str,
    "operation": str | None, "summary": dict[str, str]})
Restore = TypedDict("Restore", {"table": str, "dry_run": bool, "already": bool, "job_id": str | None,
    "from_snapshot_id": str, "to_snapshot_id": str, "rows_before": int | None, "rows_after": int | None,
    "leaving": list[RemovedSnapshot], "returning": list[RemovedSnapshot], "tag": str | None, "notes": list[str],
    "summary": str})
Repair = TypedDict("Repair", {"table": str, "dry_run": bool, "faults": int, "actions": list[dict[str, Any]],
    "unrepaired": list[dict[str, Any]], "lost_rows": int, "summary": str})
Copy = TypedDict("Copy", {"table": str, "dry_run": bool, "place": str, "metadata_location": str, "table_uuid": str,
    "snapshots": int, "files": int, "bytes": int, "present": int, "summary": str})
JobState = Literal["queued", "running", "succeeded", "partial", "failed", "skipped", "cancelled", "interrupted"]
Job = TypedDict("Job", {"job_id": str, "table": str, "state": JobState, "operations": list[Operation],
    "work": str | None, "trigger": str, "actor": str, "created": str, "started": str | None, "finished": str | None,
    "summary": str, "cancel_requested": bool, "pool": str, "on_pool": bool, "score": float, "cost": float,
    "gb_hours": float, "gb_hours_driver": float, "money": float | None})
Jobs = TypedDict("Jobs", {"items": list[Job], "next": str | None})
Run = TypedDict("Run", {"id": int, "job_id": str, "table": str, "operation": Operation, "state": str, "reason": str,
    "summary": str, "metrics": dict[str, Any], "statements": list[str], "notes": list[str], "started": str,
    "finished": str, "before": dict[str, Any], "after": dict[str, Any], "partitions": list[dict[str, Any]] | None,
    "gb_hours": float, "metadata_location": str, "undone": NotRequired[bool]})
ExpiredSnapshot = TypedDict("ExpiredSnapshot", {"snapshot_id": int, "parent_id": int | None, "at": str,
    "operation": str | None, "summary": dict[str, str], "read_at": str | None})
RemovedRef = TypedDict("RemovedRef", {"name": str, "type": str | None, "snapshot_id": int})
Removed = TypedDict("Removed", {"at": str, "undone_at": str | None, "metadata_location": str,
    "snapshots": list[ExpiredSnapshot], "refs": list[RemovedRef]})
WaitingFiles = TypedDict("WaitingFiles", {"job_id": str, "table": str, "operations": list[Operation], "files": int,
    "bytes": int, "failed": int, "planned_at": str, "delete_after": str | None, "reason": str})
JobDetail = TypedDict("JobDetail", {"job_id": str, "table": str, "state": JobState, "operations": list[Operation],
    "work": str | None, "trigger": str, "actor": str, "created": str, "started": str | None, "finished": str | None,
    "summary": str, "cancel_requested": bool, "pool": str, "on_pool": bool, "score": float, "cost": float,
    "gb_hours": float, "gb_hours_driver": float, "money": float | None, "options": dict[str, Any], "has_result": bool,
    "runs": list[Run], "removed": list[Removed], "waiting": list[WaitingFiles]})
File = TypedDict("File", {"path": str, "bytes": int | None, "kind": str, "state": str, "planned_at": str,
    "settled_at": str | None, "delete_after": str | None, "reason": str | None})
Files = TypedDict("Files", {"items": list[File], "next": str | None})
Event = TypedDict("Event", {"id": int, "at": str, "kind": str, "details": dict[str, Any]})
Events = TypedDict("Events", {"items": list[Event], "next": str | None})
Runs = TypedDict("Runs", {"items": list[Run], "next": str | None})
Waiting = TypedDict("Waiting", {"table": str, "operation": Operation, "why": str, "reason": str | None,
    "position": int | None, "score": float | None, "benefit_mb": float, "cost_gb_hours": float,
    "due_since": str | None})
Queue = TypedDict("Queue", {"jobs": list[Job], "waiting": list[Waiting], "total": int, "next": str | None})
Planned = TypedDict("Planned", {"table": str, "operations": list[Operation], "score": float, "benefit_mb": float,
    "cost_gb_hours": float, "why": str, "pool": str})
Plan = TypedDict("Plan", {"jobs": list[Planned], "deferred": list[dict[str, Any]], "deferred_total": int})
Deletions = TypedDict("Deletions", {"items": list[WaitingFiles], "next": str | None})
Undone = TypedDict("Undone", {"job_id": str, "table": str, "dry_run": bool, "already": bool, "undone_by": str | None,
    "snapshots": list[RemovedSnapshot], "refs": list[str], "files": int, "bytes": int, "not_restored": list[str],
    "notes": list[str], "summary": str})
GivenUp = TypedDict("GivenUp", {"job_id": str, "table": str, "files": int})
Rule = TypedDict("Rule", {"scope": str, "source": str, "settings": dict[str, Any], "author": str | None,
    "at": str | None, "version": int | None})
Policies = TypedDict("Policies", {"rules": list[Rule], "guardrails": list[str]})
Versions = TypedDict("Versions", {"items": list[Rule]})
KnobChange = TypedDict("KnobChange", {"knob": str, "before": Any, "after": Any})
VerdictChange = TypedDict("VerdictChange", {"operation": Operation, "before": str, "after": str, "reason": str})
TableChange = TypedDict("TableChange", {"table": str, "knobs": list[KnobChange],
    "verdicts": list[VerdictChange] | None, "error": str | None})
Preview = TypedDict("Preview", {"matched": int, "changed": int, "evaluated": int, "items": list[TableChange]})
PoolModel = TypedDict("PoolModel", {"name": str, "max_concurrent": int, "now": int, "gb_hours_per_day": float | None,
    "gb_hour_price": float | None, "spent_today": float})
ProcessModel = TypedDict("ProcessModel", {"holder": str, "kind": str, "started": str, "heartbeat": str, "slots": int,
    "drain_since": str | None, "details": dict[str, Any]})
Severity = Literal["info", "warning", "critical"]
AcknowledgementModel = TypedDict("AcknowledgementModel", {"author": str, "at": str, "note": str,
    "silent_until": str | None})
AlertModel = TypedDict("AlertModel", {"id": int, "rule": str, "severity": Severity, "subject": str,
    "table": str | None, "message": str, "since": str, "raised_at": str | None, "resolved_at": str | None,
    "told": list[str], "acknowledgement": AcknowledgementModel | None})
Tested = TypedDict("Tested", {"channel": str, "ok": bool, "error": str | None})
LimitModel = TypedDict("LimitModel", {"name": str, "value": int | float | None, "configured": int | float | None,
    "stored": bool, "help": str, "expects": str})
LimitsModel = TypedDict("LimitsModel", {"total": int, "per_worker": int, "per_operation": dict[str, int],
    "max_jobs_per_detection": int, "max_wait_hours": dict[str, int], "catalogs": dict[str, dict[str, Any]],
    "items": list[LimitModel], "version": int, "author": str | None, "at": str | None})
LimitChange = TypedDict("LimitChange", {"name": str, "before": int | float | None, "after": int | float | None})
LimitsPreview = TypedDict("LimitsPreview", {"changed": list[LimitChange], "starts": int, "starts_after": int})
ScopeModel = TypedDict("ScopeModel", {"enabled": bool, "namespaces": str, "tables": str,
    "detect_interval_seconds": int})
CatalogModel = TypedDict("CatalogModel", {"enabled": bool, "namespaces": str, "tables": str,
    "detect_interval_seconds": int, "name": str, "configured": bool, "pool": str | None,
    "configuration": ScopeModel | None, "detected_at": str | None, "failures": int, "error": str | None})
VacuumAnswer = TypedDict("VacuumAnswer", {"catalog": str, "state": str, "dry_run": NotRequired[bool],
    "reason": NotRequired[str], "cutoff": NotRequired[str], "deleted_files_count": NotRequired[int],
    "deleted_files_total_size_mb": NotRequired[int], "deleted_bytes": NotRequired[int],
    "metrics": NotRequired[dict[str, float]], "jobs": NotRequired[list[dict[str, Any]]],
    "errors": NotRequired[list[dict[str, str]]]})
Role = Literal["viewer", "operator", "owner", "admin"]
Granted = TypedDict("Granted", {"role": Role, "scope": list[str]})
Me = TypedDict("Me", {"name": str, "via": Literal["token", "session", "local"], "grants": list[Granted],
    "actions": list[str], "csrf": str | None})
Token = TypedDict("Token", {"id": str, "name": str, "grants": list[Granted], "author": str, "created": str,
    "expires": str | None, "revoked": str | None, "used": str | None})
Tokens = TypedDict("Tokens", {"items": list[Token]})
NewToken = TypedDict("NewToken", {"id": str, "name": str, "grants": list[Granted], "author": str, "created": str,
    "expires": str | None, "revoked": str | None, "used": str | None, "token": str})
AuditEntry = TypedDict("AuditEntry", {"id": int, "at": str, "actor": str, "via": str, "action": str, "target": str,
    "refused": bool, "source": str, "details": dict[str, Any]})
Audit = TypedDict("Audit", {"items": list[AuditEntry], "next": str | None})
Registered = TypedDict("Registered", {"table": str, "dry_run": bool, "metadata_location": str, "table_uuid": str,
    "snapshots": int, "files": int, "replaced": str | None, "notes": list[str]})
Result = TypedDict("Result", {"job_id": str, "work": str, "document": dict[str, Any], "certified": bool})
