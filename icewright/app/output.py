"""What commands print: one JSON object, or readable tables; progress on terminals, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from icewright.app import logs
from icewright.core.alerts import Alert
from icewright.core.runs import JobState, OperationState, Outcome
from icewright.flow.cycle import CycleResult
from icewright.flow.execute import JobResult
from icewright.flow.runtime import Listener
from icewright.flow.vacuum import VacuumResult
from icewright.ports import JobRow

_PLAIN_WIDTH = 160  # of what is piped or logged: a file has no edge


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)


OUT = _console(stderr=False)
ERR = _console(stderr=True)

_COLOURS = {
    "due": "yellow",
    "not_due": "green",
    "blocked": "magenta",
    "unsupported": "magenta",
    "succeeded": "green",
    "committed": "green",
    "skipped": "dim",
    "partial": "yellow",
    "deferred": "yellow",
    "failed": "red",
    "interrupted": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "critical": "red",
    "warning": "yellow",
}


def print_json(document: object) -> None:
    """One JSON document on standard output, and nothing else."""
    sys.stdout.write(json.dumps(document, indent=2, default=_plain, ensure_ascii=False) + "\n")


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def rows(title: str, columns: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """A table; an empty one says so."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(*(coloured(cell) for cell in line))
    OUT.print(table if lines else f"{title}: none")


def details(said: Mapping[str, Any]) -> str:
    """Return what an event says, as `name=value`."""
    return " ".join(f"{name}={value}" for name, value in said.items() if value not in (None, ""))


def coloured(cell: object) -> str:
    """Return a cell as text; words that name a state in their colour."""
    text = "-" if cell is None else str(cell)
    colour = _COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else escape(text)


def size(count: float | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1024:  # noqa: PLR2004
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def job_document(job: JobResult, *, files: bool = False) -> dict[str, Any]:
    """Return a job as `run --json` prints it."""
    return {
        "table": str(job.ref),
        "job_id": job.job_id,
        "state": str(job.state),
        "dry_run": job.dry_run,
        "operations": [_outcome_document(o, files=files or job.dry_run) for o in job.outcomes],
        "summary": job.summary,
    }


def _outcome_document(outcome: Outcome, *, files: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operation": str(outcome.operation),
        "state": str(outcome.state),
        "reason": outcome.reason,
        "summary": outcome.summary,
        "metrics": dict(outcome.metrics),
        "notes": list(outcome.notes),
    }
    if outcome.statements:
        document["statements"] = list(outcome.statements)
    if outcome.partitions:
        document["partitions"] = [asdict(change) for change in outcome.partitions]
    if outcome.kept:
        document["kept"] = [{"snapshot_id": pin.snapshot_id, "by": pin.by} for pin in outcome.kept]
    if files:
        document["files"] = [{"path": f.path, "bytes": f.bytes, "kind": f.kind} for f in outcome.files]
    return document


def cycle_document(result: CycleResult) -> dict[str, Any]:
    """Return a cycle as `cycle --json` prints it."""
    return {
        "funnel": {"tables": result.tables, "changed": result.changed, "due": result.due, "run": result.run},
        "jobs": [job_document(job) for job in result.jobs],
        "deferred": [
            {"table": str(d.ref), "operation": str(d.operation), "reason": d.reason, "position": d.position}
            for d in result.deferred
        ],
        "errors": [{"source": source, "error": error} for source, error in result.errors],
    }


def vacuum_document(result: VacuumResult) -> dict[str, Any]:
    """Return a vacuum as `--json` prints it."""
    return {
        "catalog": result.catalog,
        "state": str(result.state),
        "dry_run": result.dry_run,
        "reason": result.reason,
        "cutoff": result.cutoff,
        "deleted_files_count": result.files,
        "deleted_files_total_size_mb": result.megabytes,
        "deleted_bytes": result.bytes,
        "metrics": asdict(result.counts),
        "jobs": [job_document(job) for job in result.jobs],
        "errors": [{"subject": subject, "error": error} for subject, error in result.errors],
    }


def show_cycle(result: CycleResult) -> None:
    """The funnel, what ran, what waits."""
    OUT.print(
        f"[bold]{result.tables}[/] tables > [bold]{result.changed}[/] changed > [bold]{result.due}[/] due > "
        f"[bold]{result.run}[/] run"
    )
    if result.jobs:
        rows("Jobs", ("table", "state", "summary"), [(j.ref, j.state, j.summary) for j in result.jobs])
    if result.deferred:
        rows("Waiting", ("table", "operation", "reason"), [(d.ref, d.operation, d.reason) for d in result.deferred])
    if result.errors:
        rows("Errors", ("source", "error"), result.errors)


def show_job(job: JobResult, *, files: bool) -> None:
    """A job's operations with what they came to."""
    title = f"{job.ref}: " + (
        "dry run, nothing was changed" if job.dry_run else f"{job.state}  job {job.job_id or '-'}"
    )
    if not job.outcomes:
        OUT.print(f"{escape(title)}: {escape(job.reason)}")
        return
    shown = {OperationState.COMMITTED: "planned"} if job.dry_run else {}
    lines = [(o.operation, shown.get(o.state, o.state), o.summary) for o in job.outcomes]
    rows(title, ("operation", "state", "summary"), lines)
    for outcome in job.outcomes:
        for note in outcome.notes:
            OUT.print(f"  {outcome.operation}: {escape(note)}")
        if job.dry_run and outcome.kept:
            kept = [(pin.snapshot_id, pin.by) for pin in outcome.kept]
            rows(f"{outcome.operation}: old snapshots that stay", ("snapshot", "kept as or by"), kept)
        if files and outcome.files:
            listed = [(f.kind, size(f.bytes), f.path) for f in outcome.files]
            rows(f"{outcome.operation}: files", ("kind", "size", "path"), listed)


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


def alert_document(alert: Alert) -> dict[str, Any]:
    """Return an alert with what became of telling it."""
    return {
        "rule": str(alert.rule),
        "severity": str(alert.severity),
        "subject": alert.subject,
        "table": str(alert.ref) if alert.ref else None,
        "message": alert.message,
        "since": alert.since,
        "raised_at": alert.raised_at,
        "resolved_at": alert.resolved_at,
        "tellings": [asdict(telling) for telling in alert.tellings],
    }


def exit_code(states: Sequence[JobState]) -> int:
    """0 done or nothing to do, 1 failed, 3 partial."""
    bad = {JobState.FAILED, JobState.INTERRUPTED}
    if states and all(s in bad for s in states):
        return 1
    partial = any(s in bad or s in (JobState.PARTIAL, JobState.CANCELLED) for s in states)
    return 3 if partial else 0


@contextmanager
def progress() -> Iterator[Listener]:
    """Progress of a pass: bars on a terminal, the log's lines elsewhere, always on standard error."""
    if not ERR.is_terminal:
        yield logs.listener()
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        console=ERR,
        transient=True,
    ) as bars:
        tasks: dict[str, Any] = {}

        def tell(kind: str, details: Mapping[str, Any]) -> None:
            match kind:
                case "job_started":
                    name = escape(str(details["table"]))
                    tasks[details["job_id"]] = bars.add_task(name, total=len(details["operations"]))
                case "operation_started":
                    task = tasks.get(details["job_id"])
                    if task is not None:
                        bars.update(task, description=f"{escape(str(details['table']))} {details['operation']}")
                case "operation_finished":
                    task = tasks.get(details["job_id"])
                    if task is not None:
                        bars.advance(task)
                    if details["state"] is not OperationState.SKIPPED:
                        bars.console.print(f"  {escape(details['table'])}: {escape(details['summary'])}")
                case "job_finished":
                    task = tasks.pop(details["job_id"], None)
                    if task is not None:
                        bars.remove_task(task)
                case "catalog_failed" | "unreadable":
                    bars.console.print(f"[red]{escape(details['error'])}[/]")

        yield tell
