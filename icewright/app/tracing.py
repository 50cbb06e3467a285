"""OpenTelemetry: each ended job becomes a trace of its waiting and its operations, made from the store's record.

The trace's id is the job's: its digits, after zeros. So the id in logs, in the summaries of snapshots and in the
descriptions of Spark's jobs leads to the trace.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from icewright import __version__
from icewright.app.sections import OpenTelemetrySection
from icewright.core.errors import IcewrightError, requires_extra
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.runtime import Listener, Runtime
from icewright.ports import JobRow

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

_FAILED = frozenset({JobState.FAILED, JobState.PARTIAL, JobState.INTERRUPTED, OperationState.FAILED})
_SECONDS = 5.0  # that one delivery may take; a process that ends waits as long


def trace_id(job_id: str) -> str:
    """Return the 32 hexadecimal digits of a job's trace: `20261126-001234-0a1b2c3d` ends with the job's 22."""
    return job_id.replace("-", "").rjust(32, "0")


@contextmanager
def with_tracing(section: OpenTelemetrySection | None, runtime: Runtime, emit: Listener) -> Iterator[Listener]:
    """Yield a listener that forwards events and, if the configuration names a receiver, sends the traces of jobs.

    A slow, absent or faulty receiver affects no job: spans wait in a bounded queue, and its thread logs what it cannot
    send. Raises `UsageError` where the extra is missing.
    """
    if section is None:
        yield emit
        return
    with requires_extra("otel", "opentelemetry"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    exporter = OTLPSpanExporter(f"{section.url.rstrip('/')}/v1/traces", headers=section.headers, timeout=_SECONDS)
    processor = BatchSpanProcessor(exporter)
    resource = Resource.create({"service.name": "icewright", "service.version": __version__})
    due_since: dict[str, datetime] = {}  # of the jobs that run here

    def listen(kind: str, details: Mapping[str, Any]) -> None:
        emit(kind, details)
        if kind not in ("job_started", "job_finished"):
            return
        job_id = str(details["job_id"])
        with suppress(IcewrightError):  # a store that is away ends no job, and costs its trace
            if kind == "job_started":
                row = runtime.store.tables.get(TableRef.parse(str(details["table"])))
                if row is not None and row.due_since is not None:
                    due_since[job_id] = row.due_since
            elif (job := runtime.store.jobs.get(job_id)) is not None:
                begin = min(job.created, due_since.pop(job_id, job.created))
                for span in job_spans(job, begin, runtime.store.runs.list(job_id), resource):
                    processor.on_end(span)

    try:
        yield listen
    finally:
        # a receiver that never ends its answer holds it for half a minute
        ending = threading.Thread(target=processor.shutdown, name="tracing", daemon=True)
        ending.start()
        ending.join(_SECONDS)


def job_spans(
    job: JobRow, due_since: datetime, runs: Sequence[Mapping[str, Any]], resource: Resource
) -> Iterator[ReadableSpan]:
    """Yield the spans of an ended job: the job since its table became due, its waiting, and each of its operations."""
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags  # noqa: PLC0415

    def context(part: str) -> SpanContext:
        number = int.from_bytes(sha256(f"{job.job_id}/{part}".encode()).digest()[:8])
        return SpanContext(int(trace_id(job.job_id), 16), number, is_remote=False, trace_flags=TraceFlags(1))

    whole = context("")

    def span(
        part: str, begin: datetime, end: datetime, state: str, summary: str, attributes: Mapping[str, Any]
    ) -> ReadableSpan:
        failed = state in _FAILED
        return ReadableSpan(
            part or f"maintain {job.ref}",
            context(part) if part else whole,
            parent=whole if part else None,
            resource=resource,
            attributes={f"icewright.{key}": value for key, value in attributes.items() if value not in (None, "")},
            status=Status(StatusCode.ERROR, summary) if failed else Status(StatusCode.OK),
            start_time=_nanoseconds(begin),
            end_time=_nanoseconds(end),
        )

    started, finished = job.started or job.created, job.finished or job.created
    facts = {"job_id": job.job_id, "table": str(job.ref), "trigger": job.trigger, "process": job.holder}
    yield span("", due_since, finished, job.state, job.summary, {**facts, "state": job.state, "summary": job.summary})
    yield span("wait", due_since, started, "", "", {})
    for run in runs:
        attributes = {key: run[key] for key in ("state", "summary", "reason", "gb_hours")} | {
            "snapshot_before": run["before"].get("snapshot_id"),
            "snapshot_after": run["after"].get("snapshot_id"),
        }
        why = run["reason"] or run["summary"]
        yield span(run["operation"], run["started"], run["finished"], run["state"], why, attributes)


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1e6) * 1000
