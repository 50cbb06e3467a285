"""Heavy steps on Spark: one statement per step, its effect read back from the table's metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from icewright.adapters.engines.arrow.executors import run_tasks
from icewright.adapters.engines.arrow.iceberg import IcebergTable
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.rewriting import GROUPS_LEFT, ArrowRewrite
from icewright.adapters.engines.arrow.small_table import small_table
from icewright.adapters.engines.arrow.table import RewriteTable
from icewright.adapters.engines.arrow.theta import RewrittenSketches
from icewright.adapters.engines.failures import ProcedureFailed, statement_failure
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.row_faults import Answer, RowCheck, answers_of
from icewright.adapters.engines.spark import procedures
from icewright.adapters.engines.spark.effect import Effect, effect, left_behind
from icewright.adapters.engines.spark.misread import of_true_values, require_true_ages, require_true_values
from icewright.adapters.engines.spark.pool import SparkPool, StatementFailed, StepResult, Work, statements
from icewright.core import cost
from icewright.core.branches import on_branch
from icewright.core.errors import CommitConflict, EngineUnavailable, IcewrightError, Refused
from icewright.core.operations import compact
from icewright.core.partitions import partition_name
from icewright.core.paths import local_path
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, Outcome, committed, skipped
from icewright.core.steps import (
    ExpireRows,
    ExpireSnapshots,
    Kernel,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeletes,
    Step,
)
from icewright.core.table import TableMetadata
from icewright.core.words import count, some
from icewright.ports import Catalog, Clock, DeletionLedger, LedgerState, Probe, StepRequest, TableFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SparkStep = ExpireRows | RewriteDataFiles | RewritePositionDeletes | RewriteManifests | ExpireSnapshots
_SHOWN = 3
_REMOTE = "through Spark Connect Arrow rewrites only tables that the service plans and commits itself"


@dataclass(frozen=True)
class SparkEngine:
    """Run steps on the Spark pool of the table's catalog."""

    pools: Mapping[str, SparkPool]  # by catalog
    files: TableFiles
    ledger: DeletionLedger
    clock: Clock
    rewritten: RewrittenSketches  # gets what compaction counts on its way

    def run(self, catalog: Catalog, request: StepRequest, step: SparkStep) -> Outcome:
        """Run the step, or list the files that it would rewrite."""
        base = request.base
        if isinstance(step, ExpireRows):
            require_true_ages(self.files, base, step, request.check)
        if request.dry_run:
            return self._preview(request, step)
        texts = _statements(base, step)
        pool = self.pools[base.ref.catalog]
        app_id = pool.application().app_id  # the start of Spark is not part of the step's cost
        work, started = self._work(catalog, request, step), self.clock.now()
        began: list[datetime] = []  # nor is the wait for a slot

        def begun(session: SparkSession) -> StepResult:
            began.append(self.clock.now())
            return work(session)

        try:
            answer = pool.run(begun, f"icewright-{request.job_id}", request.check)
        except (StatementFailed, IcewrightError) as error:
            times = self._times(began[0]) if began else {}
            self._report_partial_result(catalog, request, step, app_id, started, times)
            raise _translated_error(base, error) from error
        after = catalog.load(base.ref)
        done = effect(self.files, base, after, app_id, _operations(step))
        times = self._times(began[0], answer)
        if failure := _nothing_done(base, answer, done):
            self._report_partial_result(catalog, request, step, app_id, started, times)
            raise failure
        outcome = _outcome(step, answer.rows, done, base, after)
        metrics = {**outcome.metrics, **times} if outcome.metrics else {}
        return replace(outcome, statements=texts, metrics=metrics, notes=(*outcome.notes, *answer.notes))

    def probe(self, probe: Probe) -> Sequence[float]:
        """Return the query's seconds on each of the snapshots."""
        from icewright.adapters.engines.spark.probe import timed  # noqa: PLC0415 - its parser takes long to load

        return timed(self.pools[probe.table.ref.catalog], self.clock, probe)

    def read_rows(
        self,
        base: TableMetadata,
        tag: str,
        require_held: Callable[[], None],
        check: RowCheck,
        bins: Sequence[Sequence[tuple[int, ContentFile]]],
    ) -> tuple[list[Answer], float]:
        """Check the rows of files in tasks on the executors, one for each bin; return what they find, and GB-hours.

        Raises `EngineUnavailable` where the executors lack Icewright's environment, and the errors of Spark.
        """
        pool, answers = self.pools[base.ref.catalog], list[Answer]()

        def read(session: SparkSession) -> StepResult:
            if (against := pool.no_arrow()) is not None:
                raise EngineUnavailable(f"{against}; or set check.engine to service")
            opener = Opener({} if local_path(base.location) is not None else _storage(pool, base, session))
            answers.extend(run_tasks(session, partial(answers_of, opener, check), bins, json.dumps, json.loads))
            return StepResult(())

        try:
            done = pool.run(read, tag, require_held)
        except (StatementFailed, IcewrightError) as error:
            raise _translated_error(base, error) from error
        return answers, done.charge.gb_hours if done.charge else 0.0

    def _work(self, catalog: Catalog, request: StepRequest, step: SparkStep) -> Work:
        """Return the step's work: SQL statements, or Arrow with statements for what Arrow refuses."""
        base, pool = request.base, self.pools[request.base.ref.catalog]
        by_spark = statements(_statements(base, step))
        if isinstance(step, ExpireRows):
            any_row = procedures.one_row(base.ref, step)
            return lambda session: by_spark(session) if session.sql(any_row).collect() else StepResult(({},))
        if not isinstance(step, RewriteDataFiles):
            return by_spark
        by_spark = of_true_values(by_spark, self.files, catalog, request, step)
        if step.kernel is Kernel.SPARK:
            return by_spark

        def by_arrow(session: SparkSession) -> StepResult:
            if (against := pool.no_arrow()) is not None:
                return _fall_back_to_spark(step, [against], StepResult(()), by_spark, session)
            table = self._table(catalog, base, step, session)
            if table is None:
                return _fall_back_to_spark(step, [_REMOTE], StepResult(()), by_spark, session)
            rewrite = ArrowRewrite(
                session, table, step, request.job_id, request.check, request.on_progress, self.rewritten
            )
            done = rewrite.run()
            answer = StepResult((done.row,), failure_reason="; ".join(done.failures[:_SHOWN]) or None, notes=done.notes)
            if done.unsupported:
                return _fall_back_to_spark(step, done.unsupported, answer, by_spark, session)
            return answer

        return by_arrow

    def _table(
        self, catalog: Catalog, base: TableMetadata, step: RewriteDataFiles, session: SparkSession
    ) -> RewriteTable | None:
        """Return the table opened without Spark where possible, else by Iceberg's own reader; None where it is away."""
        pool = self.pools[base.ref.catalog]

        stores = partial(_storage, pool, base, session)
        app_id, has_jvm = pool.application().app_id, pool.remote is None
        small = small_table(self.files, self.clock, catalog, base, step, app_id, stores, has_jvm=has_jvm)
        if small is not None or not has_jvm:
            return small
        return IcebergTable(session, base.ref, _where(base, step), step.branch)

    def _report_partial_result(
        self,
        catalog: Catalog,
        request: StepRequest,
        step: SparkStep,
        app_id: str,
        started: datetime,
        times: Mapping[str, float],
    ) -> None:
        """Report committed groups of a failed step as a partial result, and record uncommitted files in the ledger."""
        base, notes, statements = request.base, list[str](), _statements(request.base, step)
        try:
            now = catalog.load(base.ref)
            if now.table_uuid != base.table_uuid:
                return
            done = effect(self.files, base, now, app_id, _operations(step))
            uncommitted = left_behind(self.files, now, started)
            self.ledger.plan(request.job_id, base.ref, uncommitted, LedgerState.LEFT, self.clock.now())
        except IcewrightError as error:  # the caller reports the first failure
            reason = f"what it left could not be read: {error}"
            request.on_partial_result(skipped(request.operation, reason, statements=statements, metrics=times))
            return
        if uncommitted:
            notes = [f"{count(len(uncommitted), 'uncommitted file')} in the ledger: orphan removal takes them in time"]
        if not done.snapshots:
            outcome = skipped(request.operation, "nothing was committed", notes=tuple(notes), metrics=times)
            request.on_partial_result(replace(outcome, statements=statements))
            return
        if isinstance(step, RewriteDataFiles):
            outcome = _compaction_outcome(step, done, files_left=0)
        else:
            summary = f"committed {count(len(done.snapshots), 'snapshot')} before it failed"
            outcome = committed(request.operation, summary, {}, done.removed)
        metrics = {**outcome.metrics, **times}
        request.on_partial_result(replace(outcome, metrics=metrics, notes=tuple(notes), statements=statements))

    def _times(self, started: datetime, answer: StepResult | None = None) -> dict[str, float]:
        """Return the step's duration and GB-hours: by wall time where Spark does not report what it reserves."""
        seconds = (self.clock.now() - started).total_seconds()
        charge = answer.charge if answer is not None else None
        hours = cost.gb_hours(seconds, cost.SPARK_MEMORY_GB) if charge is None else charge.gb_hours
        times = {"duration_ms": round(seconds * 1000), "gb_hours": round(hours, 9)}
        if charge is not None:
            times["gb_hours_driver"] = round(charge.driver, 9)
        if answer is not None and answer.used_gb_hours is not None:
            times["gb_hours_used"] = round(answer.used_gb_hours, 9)
        return times

    def _preview(self, request: StepRequest, step: SparkStep) -> Outcome:
        actions: tuple[FileAction, ...] = ()
        notes: tuple[str, ...] = ()
        match step:
            case ExpireRows():
                actions = self.files.aged(request.base, step)
            case RewriteDataFiles():
                if step.kernel is Kernel.SPARK:
                    require_true_values(self.files, request.base, step, request.check)
                actions = self.files.candidates(on_branch(request.base, step.branch), step)
                if step.user_where is not None:
                    notes = ("compact.where narrows these to files that may hold such rows",)
            case RewritePositionDeletes():
                actions = self.files.candidates(request.base, step)
            case RewriteManifests():
                snapshot = request.base.current_snapshot
                listed = self.files.manifests(snapshot) if snapshot else ()
                actions = tuple(FileAction(m.path, m.length, "manifest") for m in listed if step.takes(m))
            case ExpireSnapshots():
                raise ProcedureFailed("Spark's expire_snapshots has no dry run: set expire_snapshots.engine to service")
        summary = f"would rewrite {count(len(actions), 'file')}"
        if isinstance(step, ExpireRows):
            whole = sum(action.kind == "data" for action in actions)
            summary = f"would drop {count(whole, 'file')} and delete rows of {len(actions) - whole} more"
        statements = _statements(request.base, step)
        return committed(request.operation, summary, {}, actions, statements=statements, notes=notes)


def _storage(pool: SparkPool, base: TableMetadata, session: SparkSession) -> Mapping[str, str]:
    """Return the FileIO properties by which executors read the table's files."""
    if pool.remote is not None:
        return pool.catalog_properties(base.ref.catalog)
    return IcebergTable(session, base.ref, None).storage()


def _operations(step: Step) -> tuple[str, ...]:
    """Return the snapshot operations that the step's commits have."""
    return ("delete", "overwrite") if isinstance(step, ExpireRows) else ("replace",)


def _statements(base: TableMetadata, step: SparkStep) -> tuple[str, ...]:
    match step:
        case ExpireRows():
            return (procedures.delete_rows(base.ref, step),)
        case RewriteDataFiles():
            return (procedures.rewrite_data_files(base.ref, step, _where(base, step)),)
        case RewritePositionDeletes():
            return (procedures.rewrite_position_delete_files(base.ref, step),)
        case RewriteManifests():
            return tuple(procedures.rewrite_manifests(base.ref, step, base.spec(spec_id)) for spec_id in step.spec_ids)
        case ExpireSnapshots():
            return (procedures.expire_snapshots(base.ref, step),)
    assert_never(step)


def _where(base: TableMetadata, step: RewriteDataFiles) -> str | None:
    user = None
    if step.user_where is not None:
        from icewright.adapters.engines.spark.predicate import checked  # noqa: PLC0415 - its parser takes long to load

        user = checked(base, step.user_where)
    both = [f"({text})" for text in (user, step.where) if text is not None]
    return " and ".join(both) or None


def _fall_back_to_spark(
    step: RewriteDataFiles, reasons: Sequence[str], done: StepResult, by_spark: Work, session: SparkSession
) -> StepResult:
    """Rewrite with Spark's procedure what Arrow refused. Raises `Refused` if the policy insists on Arrow."""
    if not step.may_fall_back:
        raise Refused(f"compact.engine is arrow, but {reasons[0]}: set it to auto or spark")
    rest = by_spark(session)
    notes = (*done.notes, *(f"left to Spark's own path: {why}" for why in reasons))
    return replace(done, rows=(*done.rows, *rest.rows), notes=notes)


def _nothing_done(base: TableMetadata, answer: StepResult, done: Effect) -> IcewrightError | None:
    """Return why every file group failed: with partial progress the procedure succeeds all the same."""
    failed = sum(int(row.get("failed_data_files_count") or 0) for row in answer.rows)
    if not failed or done.removed:
        return None
    if answer.failure_reason is None:
        return CommitConflict(f"{base.ref}: writers committed in between: none of {failed} data files was rewritten")
    return statement_failure(f"{base.ref}: none of {failed} data files could be rewritten", answer.failure_reason)


def _translated_error(base: TableMetadata, error: Exception) -> Exception:
    """Return the error of the error tree for a failed step, naming the table."""
    match error:
        case StatementFailed():
            return statement_failure(str(base.ref), str(error))
        case EngineUnavailable():
            return EngineUnavailable(f"{base.ref}: {error}")
    return error


def _outcome(
    step: SparkStep, rows: Sequence[Mapping[str, Any]], done: Effect, base: TableMetadata, after: TableMetadata
) -> Outcome:
    row = {name: sum(int(r.get(name) or 0) for r in rows) for name in rows[0]}
    match step:
        case ExpireRows():
            return _row_expiry_outcome(step, done)
        case RewriteDataFiles():
            if not row["rewritten_data_files_count"] and not done.removed:
                return skipped(Operation.COMPACT, compact.NOTHING)
            left = max(0, step.files - row["rewritten_data_files_count"])
            outcome = _compaction_outcome(step, done, files_left=left)
            notes = _unplanned_partitions(after, step, done)
            if failed := row["failed_data_files_count"]:
                notes.append(f"{count(failed, 'data file')} could not be rewritten")
            fallbacks = {"bins_by_spark": row[GROUPS_LEFT]} if row.get(GROUPS_LEFT) else {}
            return replace(outcome, notes=tuple(notes), metrics={**outcome.metrics, **fallbacks})
        case RewritePositionDeletes():
            merged, written = row["rewritten_delete_files_count"], row["added_delete_files_count"]
            if not merged:
                return skipped(Operation.REWRITE_DELETES, "no delete files eligible for rewriting")
            summary = f"rewrote {count(merged, 'position delete file')} into {written}"
            metrics = {"files_rewritten": merged, "files_written": written}
            return committed(Operation.REWRITE_DELETES, summary, metrics, done.removed)
        case RewriteManifests():
            merged, written = row["rewritten_manifests_count"], row["added_manifests_count"]
            if not merged:
                return skipped(Operation.REWRITE_MANIFESTS, "no manifests to rewrite")
            entries = done.live_entries
            summary = f"rewrote {count(merged, 'manifest')} into {written} ({count(entries, 'entry')})"
            metrics = {"manifests_rewritten": merged, "manifests_written": written, "entries_total": entries}
            return committed(Operation.REWRITE_MANIFESTS, summary, metrics)
        case ExpireSnapshots():
            snapshots, files = len(set(base.by_id) - set(after.by_id)), sum(row.values())
            summary = f"expired {count(snapshots, 'snapshot')}, deleted {count(files, 'unreferenced file')}"
            metrics = {"snapshots_expired": snapshots, "files_deleted": files, "bytes_deleted": 0}
            return committed(Operation.EXPIRE_SNAPSHOTS, summary, metrics)
    assert_never(step)


def _row_expiry_outcome(step: ExpireRows, done: Effect) -> Outcome:
    if not done.snapshots:
        return skipped(Operation.EXPIRE_ROWS, f"no rows with {step.column} before {step.before}")
    deleted = done.count("deleted-records") - done.count("added-records") + done.count("added-position-deletes")
    rewritten = done.data_files_in if done.data_files_out else 0
    dropped = done.data_files_in - rewritten
    how = f"{count(dropped, 'file')} went whole" if not rewritten else f"{count(rewritten, 'file')} rewritten"
    metrics = {"rows_deleted": deleted, "files_deleted": dropped, "files_rewritten": rewritten}
    summary = f"deleted {count(deleted, 'row')} with {step.column} before {step.before} ({how})"
    return committed(Operation.EXPIRE_ROWS, summary, metrics, done.removed, partitions=done.changes)


def _compaction_outcome(step: RewriteDataFiles, done: Effect, *, files_left: int) -> Outcome:
    metrics = {
        "files_merged": done.data_files_in,
        "files_written": done.data_files_out,
        "bins": done.bins,
        "files_left": files_left,
        "bytes_rewritten": done.data_bytes_in,
        "delete_files_removed": sum(f.kind != "data" for f in done.removed),
    }
    summary = f"compacted {done.data_files_in} files into {done.data_files_out} in {count(done.bins, 'group')}"
    place = "" if step.branch is None else f"branch {step.branch}: "
    changes = tuple(
        replace(change, partition=f"{place}{change.partition}", by_deletes=step.by_deletes, branch=step.branch)
        for change in done.changes
    )
    return committed(Operation.COMPACT, summary, metrics, done.removed, partitions=changes)


def _unplanned_partitions(after: TableMetadata, step: RewriteDataFiles, done: Effect) -> list[str]:
    """Return a note on rewritten partitions that the step did not choose, by the commits' entries."""
    beyond = sorted(partition_name(after, key) for key in done.touched - set(step.partitions))
    if step.where is None or not beyond:
        return []
    return [f"rewrote files of partitions that were not chosen: {some(beyond)}"]
