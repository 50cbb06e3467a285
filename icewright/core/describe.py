"""Describe evaluations and facts as plain JSON for commands, the state store and web pages."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from icewright.core.advice import advise
from icewright.core.effective import Ignored, Knobs
from icewright.core.partitions import partition_name
from icewright.core.policy import KNOBS, Operation
from icewright.core.runs import REFUSED, History, LastRun, OperationState
from icewright.core.sizes import FileHistogram
from icewright.core.steps import VERDICT_NAMES, Due, NotDue, Verdict, why
from icewright.core.table import TableFacts
from icewright.core.verdicts import Evaluation

SHOWN_PARTITIONS = 20


def facts_summary(facts: TableFacts) -> dict[str, Any]:
    """Return the counts of one table, as run records keep them before and after."""
    metadata = facts.metadata
    return {
        "snapshot_id": metadata.current_snapshot_id,
        "files": facts.data_files,
        "bytes": facts.data_bytes,
        "records": facts.records,
        "delete_files": facts.delete_files,
        "deleted_rows": facts.deleted_rows,
        "partitions": len(facts.partitions),
        "manifests": facts.manifest_count,
        "manifest_bytes": sum(m.bytes for m in facts.manifests),
        "snapshots": len(metadata.snapshots),
        "refs": {r.name: str(r.kind) for r in metadata.refs},
        "metadata_bytes": metadata.metadata_length,
        "format_version": metadata.format_version,
        "last_updated": metadata.last_updated.isoformat(),
    }


def file_sizes(histogram: FileHistogram) -> dict[str, int]:
    """Return files by size class, without the classes that have none."""
    limits = [f"<{limit}MB" for limit in FileHistogram.LIMITS_MB] + [f">={FileHistogram.LIMITS_MB[-1]}MB"]
    return {name: count for name, count in zip(limits, histogram.counts, strict=True) if count}


def facts_document(facts: TableFacts) -> dict[str, Any]:
    """Return the summary, with the file sizes and the partitions that have most to gain."""
    histogram = sum((p.histogram for p in facts.partitions), FileHistogram.empty())
    worst = heapq.nlargest(SHOWN_PARTITIONS, facts.partitions, key=lambda p: p.candidate_files + p.delete_files)
    return {
        **facts_summary(facts),
        "target_file_size_bytes": None if facts.thresholds.steps else facts.thresholds.target_bytes,
        "file_sizes": file_sizes(histogram),
        "advice": [asdict(advice) for advice in advise(facts)],
        "worst_partitions": [
            {
                "partition": partition_name(facts.metadata, p.key),
                "spec_id": p.spec_id,
                "files": p.data_files,
                "bytes": p.data_bytes,
                "target_file_size_bytes": facts.thresholds.of(p.data_bytes).target_bytes,
                "candidate_files": p.candidate_files,
                "delete_files": p.delete_files,
                "dangling_delete_files": p.dangling_delete_files,
                "deleted_ratio": round(p.deleted_ratio, 4),
                "overlap": None if p.overlap is None else round(p.overlap, 4),
                "file_sizes": file_sizes(p.histogram),
                "last_write": p.last_write.isoformat() if p.last_write else None,
            }
            for p in worst
        ],
    }


def verdict_document(operation: str, verdict: Verdict) -> dict[str, Any]:
    """Return one verdict; a due verdict has its benefit, its cost and the number of its steps."""
    document: dict[str, Any] = {"operation": operation, "verdict": VERDICT_NAMES[type(verdict)], "reason": why(verdict)}
    if isinstance(verdict, Due):
        document |= {
            "benefit_mb": round(verdict.benefit, 3),
            "cost_gb_hours": round(verdict.cost, 6),
            "steps": len(verdict.work.steps),
            "notes": [note for note in verdict.work.notes if note not in verdict.why],  # `why` has some
        }
    elif isinstance(verdict, NotDue):
        document |= {"revisit": verdict.revisit.isoformat()} if verdict.revisit is not None else {}
        document |= {"notes": list(verdict.notes)} if verdict.notes else {}
    return document


def evaluation_document(evaluation: Evaluation) -> Mapping[str, Any]:
    """Return an evaluation as the JSON that `icewright health` prints."""
    return {
        "table": str(evaluation.facts.ref),
        "table_uuid": evaluation.facts.metadata.table_uuid,
        "metadata_location": evaluation.facts.metadata.metadata_location,
        "snapshot_id": evaluation.facts.metadata.current_snapshot_id,
        "health": evaluation.health,
        "parts": {name: {"score": p.score, "behind": p.behind} for name, p in evaluation.parts.items()},
        "facts": facts_document(evaluation.facts),
        "verdicts": [verdict_document(op, verdict) for op, verdict in evaluation.verdicts.items()],
        "ignored_properties": ignored_document(evaluation.ignored),
    }


def ignored_document(ignored: Iterable[Ignored]) -> list[dict[str, str]]:
    """Return table properties that set nothing, each with the reason and the remedy."""
    return [{"property": i.property, "value": i.value, "knob": i.knob, "reason": i.reason} for i in ignored]


def knobs_document(knobs: Knobs) -> list[dict[str, Any]]:
    """Return every knob: its value, the level and rule that set it, and what that overrides."""
    listed = []
    for name, knob in KNOBS.items():
        origins = knobs.origins.get(name, ())
        first = origins[0] if origins else None
        listed.append(
            {
                "knob": name,
                "value": knobs[knob],
                "unit": knob.unit,
                "level": first.level if first else "default",
                "rule": first.rule if first else "",
                "note": first.note if first else "",
                "overrides": [{"level": o.level, "rule": o.rule, "value": o.value} for o in origins[1:]],
            }
        )
    return listed


class JobStatus(enum.StrEnum):
    """How the last run of an operation ended, in the terms of Amazon S3 Tables, for its clients."""

    DISABLED = "Disabled"
    NOT_YET_RUN = "Not_Yet_Run"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """The status of one operation on one table."""

    status: JobStatus
    last_run: datetime | None = None
    message: str = ""  # why the last run failed
    state: OperationState | None = None  # of the last run, as its job has it


def maintenance_status(last: LastRun | None, *, enabled: bool) -> MaintenanceStatus:
    """Return the status of one operation; the status of a disabled operation still has the time of its last run.

    A run that found nothing to do was successful; one that was deferred, or refused by a safety rule, was not.
    """
    when = last.finished if last is not None else None
    if not enabled:
        return MaintenanceStatus(JobStatus.DISABLED, when, state=last.state if last is not None else None)
    if last is None:
        return MaintenanceStatus(JobStatus.NOT_YET_RUN)
    match last.state:
        case OperationState.SKIPPED if last.reason.startswith(REFUSED):
            return MaintenanceStatus(JobStatus.FAILED, when, last.reason, last.state)
        case OperationState.COMMITTED | OperationState.SKIPPED:
            return MaintenanceStatus(JobStatus.SUCCESSFUL, when, state=last.state)
        case OperationState.FAILED | OperationState.DEFERRED:
            return MaintenanceStatus(JobStatus.FAILED, when, last.reason or str(last.state), last.state)


def table_status(history: History, enabled: Mapping[Operation, bool]) -> dict[Operation, MaintenanceStatus]:
    """Return the status of every operation of a table."""
    return {op: maintenance_status(history.get(op), enabled=enabled[op]) for op in Operation}
