"""Erasure: find what keeps rows, run what removes them by itself, search again, and certify that nothing is left."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from icewright.core.erasure import (
    NOT_SEARCHED,
    ORPHAN_AGE,
    SETTINGS,
    ErasureStep,
    FoundRows,
    RowPlace,
    RowSearchReport,
    erasure_steps,
)
from icewright.core.errors import Refused, UsageError
from icewright.core.layering import parse_settings
from icewright.core.operation import in_order
from icewright.core.operations.expire_snapshots import snapshot_expirations
from icewright.core.policy import Operation
from icewright.core.retention import uncommitted_files, writer_state_rule
from icewright.core.table import TableRef
from icewright.core.vacuum import gc_enabled
from icewright.core.words import count
from icewright.flow.execute import JobResult, execute, execute_within
from icewright.flow.operation import Request, load
from icewright.flow.runtime import Runtime
from icewright.flow.table_job import TableJob
from icewright.ports import JobRow

ERASE = "erase"  # option of an erasure's job: the predicate
SEARCH_ONLY = "search_only"  # and whether it only finds the rows


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The result of an erasure: the rows found before, the operations run, and the rows found after."""

    before: RowSearchReport
    after: RowSearchReport
    searched_at: datetime
    job: JobResult | None = None

    @property
    def steps(self) -> tuple[ErasureStep, ...]:
        """Return what still has to happen."""
        return erasure_steps(self.after)

    @property
    def summary(self) -> str:
        """Return the result in one line."""
        if self.after.is_clean:
            return f"no matching row in any of {count(len(self.after.searched), 'file')}"
        unread = f"; {count(len(self.after.unread), 'file')} not read" if self.after.unread else ""
        return f"matching rows in {count(len(self.after.found), 'file')}{unread}"

    @property
    def document(self) -> dict[str, Any]:
        """Return what was found, what ran, and what is left, as JSON."""
        report = self.after
        return {
            "table": str(report.ref),
            "predicate": report.predicate,
            "job_id": self.job.job_id if self.job else None,
            "job": self.job.summary if self.job else None,
            "searched_files": len(report.searched),
            "found": [asdict(file) for file in report.found],
            "unread": dict(report.unread),
            "steps": [asdict(step) for step in self.steps],
            "summary": self.summary,
        }


def erase(
    runtime: Runtime, ref: TableRef, predicate: str, *, dry_run: bool = False, running: TableJob | None = None
) -> ErasureResult:
    """Find matching rows wherever they are kept, and run the operations that remove them, or only find them.

    `running` is the job that holds the table; without it the operations get one of their own. Rows that main shows are
    not deleted: while there are any, nothing runs. Raises the errors of the search, `Refused` when the table is paused,
    and `ConfigError` when a guardrail forbids the settings of an erasure.
    """
    row = runtime.store.tables.get(ref)
    if row is not None and row.paused and not dry_run:
        raise Refused(f"{ref} is paused ({row.paused}): resume the table before rows are erased")
    before = _search(runtime, ref, predicate)
    steps = erasure_steps(before)
    operations = {step.operation for step in steps if step.operation is not None}
    if Operation.COMPACT in operations:
        operations.add(Operation.REWRITE_MANIFESTS)  # compaction leaves entries of the files that it took out
    now = runtime.clock.now()
    if dry_run or not operations or any(step.place is RowPlace.LIVE for step in steps):
        return ErasureResult(before, before, now)
    with_settings = runtime.with_settings(_settings(runtime))
    request = Request(ref, in_order(operations), before.table_uuid, manual=True)
    if running is None:
        job = execute(with_settings, request)
    else:
        job = execute_within(with_settings, request, running.job_id, running.lease)
    now = runtime.clock.now()
    return ErasureResult(before, _search(runtime, ref, predicate), now, job)


def _search(runtime: Runtime, ref: TableRef, predicate: str) -> RowSearchReport:
    """Return the matching rows, each file with what keeps it beyond its age even when an erasure runs.

    A file that is old enough already has no time from which it may go.
    """
    report, now = runtime.engine.find_rows(ref, predicate), runtime.clock.now()
    metadata = runtime.catalog(ref).load(ref)
    policy = runtime.with_settings(parse_settings("erase", SETTINGS)).policy()
    knobs, holds = policy.knobs_for(ref, metadata), runtime.store.pins.holds(metadata)
    expirations = snapshot_expirations(metadata, holds, knobs, now)
    kept = {f"snapshot {number}": why for number, why in expirations.items() if isinstance(why, str)}
    since, writers = uncommitted_files([metadata], writer_state_rule(knobs), now, now)

    def retained_by(file: FoundRows) -> str:
        if RowPlace.ORPHAN not in file.places:
            return "; ".join(sorted({kept[name] for name in file.keepers if name in kept}))
        if not gc_enabled(metadata.properties):
            return "gc.enabled is false on the table"
        return "; ".join(writers) if file.until is None or file.until - ORPHAN_AGE >= since else ""

    def until(file: FoundRows) -> datetime | None:
        return None if file.until is None or file.until <= now else file.until

    found = (replace(file, until=until(file), retained_by=retained_by(file)) for file in report.found)
    return replace(report, found=tuple(found))


def job_options(runtime: Runtime, predicate: str, *, dry_run: bool) -> Mapping[str, Any]:
    """Return the options of the job of an erasure, or of its search. Raises `ConfigError` as `erase` does."""
    settings = {} if dry_run else {"set": _settings(runtime)}  # by which a process that takes it up finishes it
    return {ERASE: predicate, SEARCH_ONLY: dry_run, **settings}


def _settings(runtime: Runtime) -> dict[str, Any]:
    return parse_settings("erase", SETTINGS, runtime.policy().guardrails)


def carry_out_dequeued(runtime: Runtime, job: JobRow, running: TableJob) -> str:
    """Carry a queued erasure out, or its search; return what is left. What was found is the job's result."""
    load(runtime, job.ref, job.table_uuid)  # raises when the table was replaced
    predicate, dry_run = job.options[ERASE], bool(job.options[SEARCH_ONLY])
    try:
        result = erase(runtime, job.ref, predicate, dry_run=dry_run, running=running)
    except UsageError as error:  # whoever sees the job need not see the predicate, which may name a person
        reason = str(error).removeprefix(f"--where {predicate}: ").partition(";")[0]
        known = reason.startswith(("the table has no column", "it names no column"))
        raise UsageError(f"{job.ref}: the predicate is wrong: {reason if known else 'it cannot be read'}") from error
    content = certified(result) if result.after.is_clean else None
    running.result = {**result.document, "dry_run": dry_run, "certificate": content}
    return f"{result.job.summary}; {result.summary}" if result.job else result.summary


def certified(result: ErasureResult) -> dict[str, Any]:
    """Return the content of the certificate that no file holds a matching row.

    Raises `Refused` when a file holds one or was not read.
    """
    report = result.after
    if not report.is_clean:
        raise Refused(f"{report.ref}: {result.summary}; there is no certificate before that is done")
    return {
        "table": str(report.ref),
        "table_uuid": report.table_uuid,
        "metadata_location": report.metadata_location,
        "predicate": report.predicate,
        "columns": dict(report.columns),
        "earlier_columns": [dict(columns) for columns in report.earlier_columns],
        "searched_at": f"{result.searched_at:%Y-%m-%dT%H:%M:%SZ}",
        "folders": list(report.roots),
        "files": [asdict(file) for file in report.searched],
        "matching_rows": 0,
        "not_searched": list(NOT_SEARCHED),
        "removed": [
            {"path": file.path, "rows": file.rows, "places": list(file.places)} for file in result.before.found
        ],
        "job_id": result.job.job_id if result.job else None,
    }


def certificate(content: dict[str, Any], signing_key: bytes) -> dict[str, Any]:
    """Return the content of a certificate with its HMAC-SHA256 over the JSON with sorted keys."""
    return {**content, "signature": signature(content, signing_key)}


def signature(content: dict[str, Any], signing_key: bytes) -> str:
    """Return the HMAC-SHA256 in hexadecimal digits of a certificate's content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(signing_key, text.encode(), sha256).hexdigest()
