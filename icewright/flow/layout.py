"""Layouts of rows applied by rule: where a policy allows it, what the filters of queries show is set and watched.

A layout is some settings of the table's stored rule: those by which compaction writes, and what filters read before.
One version of the rule has them all, so that no crash parts a layout from its record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile
from typing import Any

from icewright.core.ancestry import ancestors
from icewright.core.effective import Knobs
from icewright.core.errors import CommitConflict, Refused, UsageError
from icewright.core.filters import filter_columns
from icewright.core.layering import Policy, parse_settings
from icewright.core.layout import (
    MEASURED_ON,
    AppliedLayout,
    FileSizes,
    LayoutDecision,
    LayoutReport,
    LayoutRule,
    LayoutVerdict,
)
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.rewriting import (
    BLOOM_FILTERS,
    DICTIONARIES,
    LAYOUT_APPLY,
    LAYOUT_GB_HOURS,
    LAYOUT_MEASURE,
    LAYOUT_PAYS,
    LAYOUT_READ,
    LAYOUT_SAMPLE,
    LAYOUT_WATCH,
    SORT_ORDER,
    STRATEGY,
    TARGET_FILE_SIZE,
)
from icewright.core.runs import JOB_ID
from icewright.core.sortedness import unknown_columns
from icewright.core.table import TableMetadata, TableRef
from icewright.core.verdicts import AUTO_TARGETS
from icewright.core.words import count
from icewright.flow.budgets import spending
from icewright.flow.operation import load
from icewright.flow.runtime import COMMIT_ATTEMPTS, Runtime
from icewright.flow.table_job import TableJob, table_job
from icewright.ports import JobRow, MeasureRequest, SetRefs
from icewright.ports.views import RuleVersion

LAYOUTS = "layouts"  # option of a job that tries layouts: the branch on which it measures
FILTERS = "filters"  # the filters of queries; none: those of scan reports
PREDICT_ONLY = "predict_only"  # and whether nothing is measured
LAYOUT_CHANGED = "layout_changed"  # kind of the event that tells people of a change
_KNOBS = tuple(knob.name for knob in (STRATEGY, SORT_ORDER, BLOOM_FILTERS, DICTIONARIES))
_TARGET = TARGET_FILE_SIZE.name  # set by a layout only where nobody else does
LAYOUT_MEASURED = "layout_measured"  # and of a measuring that changes nothing
_EVENTS = 100
_BY = ", by icewright advise"  # end of the author of versions that are ours


def apply_layout(
    runtime: Runtime, ref: TableRef, filters: Sequence[str], runs_per_day: float | None, *, dry_run: bool = False
) -> tuple[LayoutReport, LayoutDecision]:
    """Try layouts for the filters of a table's queries, and apply, keep or take back one.

    `runs_per_day`: how often all filters run; None: by the queries that were pushed. Raises `Refused` where the policy
    does not allow it, `ConfigError` where a guardrail does not, `UsageError` for what is no filter, and
    `CommitConflict` when somebody changes the rule meanwhile.
    """
    versions = runtime.store.rules.versions(ref.parts)  # before the policy, so that a later change is a conflict
    metadata, policy = runtime.catalog(ref).load(ref), runtime.policy()
    knobs = policy.knobs_for(ref, metadata)
    if not knobs[LAYOUT_APPLY]:
        raise Refused(f"{ref}: no layout is applied, as {LAYOUT_APPLY.name} is false: set it in a policy of the table")
    parts = _LayoutKnobs.of(ref, knobs, versions)
    report = runtime.engine.try_layouts(ref, filters, parts.sizes(policy, tried=not parts.others_set_target))
    runs = _runs_per_day(runtime, ref, filters) if runs_per_day is None else runs_per_day
    decide = _decider(runtime, metadata, parts, versions, runs)
    decision = decide(report)
    if decision.verdict is LayoutVerdict.APPLY and knobs[LAYOUT_MEASURE]:
        parse_settings(str(ref), report.settings, policy.guardrails)  # before a measurement that would be useless
        pause = timedelta(days=knobs[LAYOUT_WATCH])
        report, decision = _decide_by_measuring(runtime, report, filters, decide, pause, dry_run=dry_run)
    newest, version = (versions[0].settings, versions[0].version) if versions else ({}, 0)
    settings = {name: value for name, value in newest.items() if name not in {*parts.ours, LAYOUT_READ.name}}
    if decision.verdict is LayoutVerdict.APPLY:
        layout = {**(report.measured or report).settings, LAYOUT_READ.name: round(report.share, 4)}
        settings |= parse_settings(str(ref), layout, policy.guardrails)
    if dry_run or decision.verdict is LayoutVerdict.KEEP:
        return report, decision
    author, now = f"{runtime.trigger.actor}{_BY}", runtime.clock.now()
    if runtime.store.rules.put(ref.parts, settings, author, now, version) is None:
        raise CommitConflict(
            f"{ref}: the rule of the table was changed meanwhile, and no layout was changed: try again"
        )
    runtime.record_event(LAYOUT_CHANGED, ref, {"summary": decision.reason, **parts.of_layout(settings)})
    return report, decision


def _runs_per_day(runtime: Runtime, ref: TableRef, filters: Sequence[str]) -> float:
    """Return how often a day all filters run, by the queries that were pushed."""
    item = runtime.store.views.table_item(ref)
    return item.queries_per_day / max(1, len(filters)) if item is not None else 0.0


def _decider(
    runtime: Runtime, metadata: TableMetadata, parts: _LayoutKnobs, versions: Sequence[RuleVersion], runs_per_day: float
) -> Callable[[LayoutReport], LayoutDecision]:
    """Return what decides on reports: by the layout that is applied, those that were tried, and what a person chose."""
    knobs, now = parts.knobs, runtime.clock.now()
    applied = _applied(runtime, metadata, versions, parts)
    tried = [parts.of_layout(version.settings) for version in versions if version.author.endswith(_BY)]
    own_rule = f"{'.'.join(metadata.ref.parts)} (store)" if applied is not None else ""
    chosen = _chosen(metadata, knobs, parts.ours, own_rule)
    rule = LayoutRule(runs_per_day, knobs[LAYOUT_PAYS], timedelta(days=knobs[LAYOUT_WATCH]))
    return lambda report: rule.decide(report, applied, tried, chosen, now)


def predict_layouts(runtime: Runtime, ref: TableRef, filters: Sequence[str]) -> LayoutReport:
    """Return what the filters of a table's queries would read in other layouts; change nothing.

    Raises what `Engine.try_layouts` does.
    """
    policy = runtime.policy()
    knobs = policy.knobs_for(ref, runtime.catalog(ref).load(ref))
    parts = _LayoutKnobs.of(ref, knobs, runtime.store.rules.versions(ref.parts))
    return runtime.engine.try_layouts(ref, filters, parts.sizes(policy, tried=True))


def _decide_by_measuring(
    runtime: Runtime,
    report: LayoutReport,
    filters: Sequence[str],
    decide: Callable[[LayoutReport], LayoutDecision],
    pause: timedelta,
    *,
    dry_run: bool,
) -> tuple[LayoutReport, LayoutDecision]:
    """Let Spark try what the report predicts to be worth it; return the report with what Spark read, and the decision.

    Nothing is tried in a dry run, and for a time after a try that found no better layout.
    """
    ref, predicted, since = report.ref, decide(report).reason, runtime.clock.now() - pause
    page = runtime.store.views.list_activity(LAYOUT_MEASURED, None, None, _EVENTS, search=ref.name, since=since).items
    if (last := next((event["at"] for event in page if event["ref"] == ref), None)) is not None:
        waiting = f"Spark read no less on {last:%Y-%m-%d}, and tries again from {last + pause:%Y-%m-%d} on"
        return report, LayoutDecision(LayoutVerdict.KEEP, f"{predicted}; {waiting}")
    if dry_run:
        first = f"{predicted}; Spark would try it first, on a branch of a sample"
        return report, LayoutDecision(LayoutVerdict.MEASURE, first)
    report = measure_layouts(runtime, report, filters)
    decision = decide(report)
    if decision.verdict is not LayoutVerdict.APPLY:
        runtime.record_event(LAYOUT_MEASURED, ref, {"summary": decision.reason})
    return report, decision


def carry_out_dequeued(runtime: Runtime, job: JobRow, running: TableJob) -> str:
    """Try layouts for a queued job, and measure them unless only predictions were asked for; return what was tried."""
    load(runtime, job.ref, job.table_uuid)  # raises when the table was replaced
    filters = job.options[FILTERS] or recorded_filters(runtime, job.ref)[0]
    try:
        report = predict_layouts(runtime, job.ref, filters)
    except UsageError as error:  # whoever sees the job need not see the filters, which may name a person
        raise UsageError(f"{job.ref}: a filter cannot be read, or names no column of the table") from error
    predict_only = job.options[PREDICT_ONLY]
    if not predict_only:
        report = measure_layouts(runtime, report, filters, running)
    running.result = report.document
    tried = f"{count(len(report.trials) - 1, 'layout')} for {count(report.filters, 'filter')}"
    return f"predicted {tried}" if predict_only else f"predicted {tried}; measured {report.measuring}"


def measure_layouts(
    runtime: Runtime, report: LayoutReport, filters: Sequence[str], running: TableJob | None = None
) -> LayoutReport:
    """Let Spark write the promising layouts on a branch of a sample, and run the filters over each.

    `running` is the job that holds the table; without it the measuring is a job of its own. The branch goes at the end;
    one that a crash left goes before, with the next expiry after a day at the latest. Raises what
    `Engine.measure_layouts` does, and `Refused` where another job works on the table, a budget of the day is used up,
    or the branch is not Icewright's.
    """
    ref = report.ref
    if not report.promising:
        return replace(report, measuring="nothing, as no layout promises to be clearly better")
    metadata = runtime.catalog(ref).load(ref)
    knobs = runtime.policy().knobs_for(ref, metadata)
    pool = runtime.scopes[ref.catalog].pool
    own = table_job(runtime, ref, metadata.table_uuid, {LAYOUTS: MEASURED_ON}, "measuring of layouts", pool)
    with own if running is None else nullcontext(running) as job:
        most = min(knobs[LAYOUT_GB_HOURS], _left_today(runtime, ref, pool))

        def charge(gb_hours: float) -> None:
            runtime.retry_idempotent(lambda: runtime.store.jobs.charge(job.job_id, gb_hours))

        size = knobs[LAYOUT_SAMPLE] * MEGABYTE
        request = MeasureRequest(report, filters, job.job_id, size, most, charge, job.lease.check)

        def attempt() -> LayoutReport:
            _drop_branch(runtime, ref)
            return runtime.engine.measure_layouts(request)

        try:
            measured = runtime.retry(attempt, CommitConflict, attempts=COMMIT_ATTEMPTS)
        finally:
            job.lease.require_held()  # who has the table now settles what is left
            runtime.retry_commit(lambda: _drop_branch(runtime, ref))
        job.summary, job.result = f"measured {measured.measuring}", measured.document
        return measured


def _left_today(runtime: Runtime, ref: TableRef, pool: str) -> float:
    """Return the GB-hours that the budgets of the pool and the catalog leave today. Raises `Refused` for none."""
    left = math.inf
    for account in spending(runtime, runtime.clock.now()):
        if account.subject in {f"pool {pool}", f"catalog {ref.catalog}"}:
            left = min(left, account.budget - account.spent)
            if left <= 0:
                used = f"{account.subject} has used up its {account.budget:g} GB-hours today"
                raise Refused(f"{ref}: no layout is measured: {used}")
    return left


def _drop_branch(runtime: Runtime, ref: TableRef) -> None:
    """Drop the branch on which layouts are measured, if there is one. Raises `Refused` for another one of its name."""
    base = runtime.catalog(ref).load(ref)
    branch = next((ref for ref in base.refs if ref.name == MEASURED_ON), None)
    if branch is None:
        return
    head, main = base.by_id[branch.snapshot_id], ancestors(base, base.current_snapshot_id or 0)
    if JOB_ID not in head.summary and head not in main:
        raise Refused(f"{ref}: layouts are measured on the branch {MEASURED_ON}, and this one is not Icewright's")
    runtime.catalog(ref).commit(base, SetRefs((), frozenset({MEASURED_ON})))


def recorded_filters(runtime: Runtime, ref: TableRef) -> tuple[Sequence[str], float]:
    """Return filters as scans of the last 30 days had them, and how often a day all of them run.

    Raises `UsageError` where no scan report told of a filter over the table's columns.
    """
    now = runtime.clock.now()
    columns = {field["name"] for field in runtime.catalog(ref).load(ref).schema["fields"]}
    recorded = runtime.store.inbox.filters(ref, now)
    templates = {template: rate for template, rate in recorded.items() if filter_columns(template) <= columns}
    filters = runtime.engine.draw_filters(ref, templates, now) if templates else ()
    if not filters:
        raise UsageError(
            f"{ref}: no scan report of the last 30 days has a filter over its columns: let engines report their scans, "
            "or name filters by --filters FILE"
        )
    return filters, sum(templates.values()) / len(filters)


def _first_with(names: Collection[str], versions: Sequence[RuleVersion]) -> RuleVersion | None:
    """Return the version that first had what the newest says of these settings, if we wrote it."""

    def chosen(version: RuleVersion) -> Mapping[str, Any]:
        return {name: value for name, value in version.settings.items() if name in names}

    if not versions or not chosen(versions[0]):
        return None
    *_, first = takewhile(lambda version: chosen(version) == chosen(versions[0]), versions)
    return first if first.author.endswith(_BY) else None


@dataclass(frozen=True)
class _LayoutKnobs:
    """The settings that a layout of one table may have."""

    knobs: Knobs
    sets_target: bool  # whether the target in the table's rule is ours
    others_set_target: bool

    @classmethod
    def of(cls, ref: TableRef, knobs: Knobs, versions: Sequence[RuleVersion]) -> _LayoutKnobs:
        rule = f"{'.'.join(ref.parts)} (store)"
        sets = _first_with({_TARGET}, versions) is not None
        origins = knobs.origins.get(_TARGET, ())
        return cls(knobs, sets, any(not (sets and origin.rule == rule) for origin in origins))

    @property
    def ours(self) -> frozenset[str]:
        """Return the settings of the table's rule that are the layout's, and nobody else's."""
        return frozenset((*_KNOBS, _TARGET) if self.sets_target else _KNOBS)

    def of_layout(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the settings that are of a layout; its target only where nobody else sets one."""
        names = _KNOBS if self.others_set_target else (*_KNOBS, _TARGET)
        return {name: settings[name] for name in names if name in settings}

    def sizes(self, policy: Policy, *, tried: bool) -> FileSizes:
        """Return the size of files without a layout, and, if they are tried, those that guardrails let a layout set."""
        aimed = TARGET_FILE_SIZE.default if self.sets_target else self.knobs[TARGET_FILE_SIZE]
        if isinstance(aimed, str):
            return FileSizes(AUTO_TARGETS[0][1], AUTO_TARGETS)
        sizes = FileSizes(aimed * MEGABYTE)
        bounds = [guardrail for guardrail in policy.guardrails if guardrail.knob == _TARGET]
        others = (t for t in sizes.smaller if tried and all(b.apply(t / MEGABYTE) == t / MEGABYTE for b in bounds))
        return replace(sizes, others=tuple(others))


def _applied(
    runtime: Runtime, metadata: TableMetadata, versions: Sequence[RuleVersion], parts: _LayoutKnobs
) -> AppliedLayout | None:
    """Return the layout of the newest version of the rule if the first version that has it is ours."""
    first = _first_with(parts.ours, versions)
    if first is None:
        return None
    compacted = runtime.store.runs.history(metadata.ref, metadata.table_uuid).get(Operation.COMPACT)
    written = compacted is not None and compacted.worked is not None and compacted.worked > first.at
    unknown = unknown_columns(metadata.schema, first.settings.get(SORT_ORDER.name, ""))
    return AppliedLayout(first.at, parts.of_layout(first.settings), first.settings[LAYOUT_READ.name], written, unknown)


def _chosen(metadata: TableMetadata, knobs: Knobs, names: Collection[str], ours: str) -> str:
    """Return what a person says of the order of the table's rows: the table itself, or anything but our own rule."""
    if metadata.sort_order is not None:
        return f"the table has the sort order {metadata.sort_order}"
    for name in sorted(names):
        for origin in knobs.origins.get(name, ()):
            if origin.rule != ours:
                return f"{origin.level} {origin.rule} sets {name}"
    return ""
