"""Icewright for programs and notebooks: open a configuration, look at tables, and run operations in this process.

Nothing here needs a running service; `icewright.client.Client` talks to one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from icewright.app.bootstrap import Application, application, read_config
from icewright.app.cli.base import known_table, parse_operations
from icewright.app.documents import outcome_state
from icewright.app.environment import find_config
from icewright.core.advice import Advice, advise
from icewright.core.copying import CopyResult
from icewright.core.describe import facts_summary
from icewright.core.errors import CatalogUnavailable, UsageError
from icewright.core.integrity import CheckLevel, IntegrityReport
from icewright.core.layering import parse_settings
from icewright.core.layout import LayoutReport
from icewright.core.steps import VERDICT_NAMES, Due, why
from icewright.core.table import TableRef
from icewright.flow.copy import copy_table
from icewright.flow.detect import detect
from icewright.flow.erase import ErasureResult, erase
from icewright.flow.evaluate import evaluate_now
from icewright.flow.execute import execute
from icewright.flow.layout import measure_layouts, predict_layouts
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.repair import RepairResult, repair
from icewright.flow.restore import RestoreResult, restore
from icewright.flow.runtime import Runtime
from icewright.ports.views import PAGE, JobQuery, TableQuery, every_item
from icewright.result_rows import Rows, as_html

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TableSummary:
    """A table of the catalogs, as its last evaluation left it; sizes are in bytes."""

    table: str
    state: str
    health: int | None  # 0 to 100; None before the first evaluation
    due: tuple[str, ...]  # operations
    files: int | None
    bytes: int | None
    evaluated_at: datetime | None


@dataclass(frozen=True, slots=True)
class HealthComponent:
    """One part of a table's health, with the number behind its score in words."""

    part: str
    score: int | None  # 0 to 100; None when it is not known
    behind: str


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a table, its parts, and the counts of its files, snapshots and manifests."""

    table: str
    score: int | None  # 0 to 100
    parts: Rows[HealthComponent]
    facts: Mapping[str, Any]

    def _repr_html_(self) -> str:
        return f"<p><b>{as_html(self.table)}</b>: health {self.score}</p>{self.parts._repr_html_()}"


@dataclass(frozen=True, slots=True)
class OperationVerdict:
    """Whether an operation is due on a table, and why; a due one has its benefit and its cost."""

    operation: str
    verdict: str
    reason: str
    benefit_mb: float | None = None
    cost_gb_hours: float | None = None


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of one operation of a run; `state` is `planned` where a dry run would have committed."""

    operation: str
    state: str
    summary: str
    metrics: Mapping[str, float]
    files: tuple[str, ...]  # paths of files that it deletes


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of operations that were run on a table."""

    table: str
    job_id: str | None  # None when no job was started, as in a dry run
    state: str
    summary: str
    operations: Rows[OperationResult]

    def _repr_html_(self) -> str:
        return f"<p><b>{as_html(self.table)}</b>: {as_html(self.state)}</p>{self.operations._repr_html_()}"


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job of the history."""

    job_id: str
    table: str
    state: str
    operations: tuple[str, ...]
    trigger: str
    actor: str
    started: datetime | None
    finished: datetime | None
    summary: str


class Icewright:
    """An open configuration: its catalogs, its state store and its Spark pools. Close it, or use a `with` block.

    A closed one, and the tables that it returned, raise `UsageError`, and so do those that a forked process inherits.
    """

    def __init__(self, app: Application, closing: ExitStack) -> None:
        self._opened: Application | None = app
        self._path, self._closing, self._process = app.config.path, closing, os.getpid()

    def __repr__(self) -> str:
        return f"Icewright({str(self._path)!r})"

    @classmethod
    def open(cls, config: str | Path | None = None) -> Icewright:
        """Open a configuration file, that of ICEWRIGHT_CONFIG, or `icewright.yaml` in the working folder.

        Raises `UsageError` when there is no such file, `ConfigError` when the file is at fault.
        """
        closing = ExitStack()
        path = find_config(None if config is None else str(config))
        return cls(closing.enter_context(application(read_config(path), kind="manual")), closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close catalogs, pools and the state store."""
        self._opened = None
        self._closing.close()

    def _application(self) -> Application:
        if self._opened is None:
            raise UsageError(f"{self._path} is closed: open it again by Icewright.open")
        if self._process != os.getpid():  # whose connections and threads a fork does not carry over
            raise UsageError(f"{self._path} was opened before a fork: spawn the process, and open it there")
        return self._opened

    def tables(self, catalog: str | None = None) -> Rows[TableSummary]:
        """List the catalogs, and return the tables of one or of all.

        A catalog that cannot be read is a warning. Raises `CatalogUnavailable` where none can.
        """
        runtime = self._application().runtime
        if catalog is not None and catalog not in runtime.catalogs:
            raise UsageError(f"there is no catalog {catalog}; there is: {', '.join(sorted(runtime.catalogs))}")
        names = [catalog] if catalog is not None else sorted(runtime.catalogs)
        errors = [error for _, error in detect(runtime, names).errors]
        if errors and len(errors) == len(names):
            raise CatalogUnavailable("; ".join(errors))
        for error in errors:
            warnings.warn(error, stacklevel=2)
        query, views = TableQuery(catalog=catalog), runtime.store.views
        return Rows(
            TableSummary,
            [
                TableSummary(
                    str(item.row.ref),
                    str(item.state),
                    item.row.health,
                    tuple(map(str, item.due)),
                    item.files,
                    item.bytes,
                    item.row.evaluated_at,
                )
                for item in every_item(lambda after: views.list_tables(query, None, after, PAGE))
            ],
        )

    def table(self, name: str) -> TableHandle:
        """Return a table by its full name, such as `lake.shop.orders`. Raises `UsageError` when there is none."""
        return TableHandle(known_table(self._application(), name).ref, self._application)


@dataclass(frozen=True)
class TableHandle:
    """A table of a configured catalog."""

    ref: TableRef
    _application: Callable[[], Application] = field(repr=False)

    @property
    def _app(self) -> Application:
        return self._application()

    def health(self) -> Health:
        """Evaluate the table now, and return its health. Raises `MetadataUnreadable` when it cannot be evaluated."""
        evaluation = evaluate_now(self._app.runtime, self.ref)
        parts = [HealthComponent(name, part.score, part.behind) for name, part in evaluation.parts.items()]
        return Health(str(self.ref), evaluation.health, Rows(HealthComponent, parts), facts_summary(evaluation.facts))

    def explain(self) -> Rows[OperationVerdict]:
        """Evaluate the table now, and return for each operation whether it is due, and why.

        Raises `MetadataUnreadable` when the table cannot be evaluated.
        """
        rows = []
        for operation, verdict in evaluate_now(self._app.runtime, self.ref).verdicts.items():
            value = (verdict.benefit, verdict.cost) if isinstance(verdict, Due) else (None, None)
            rows.append(OperationVerdict(str(operation), VERDICT_NAMES[type(verdict)], why(verdict), *value))
        return Rows(OperationVerdict, rows)

    def advise(self) -> Rows[Advice]:
        """Evaluate the table now, and return what to change in its writers and partitions.

        Raises `MetadataUnreadable` when the table cannot be evaluated.
        """
        return Rows(Advice, advise(evaluate_now(self._app.runtime, self.ref).facts))

    def try_layouts(self, filters: Sequence[str], *, measure: bool = False) -> LayoutReport:
        """Return what queries with these filters would read if the rows were laid out in other ways; change no setting.

        With `measure` Spark tries the best of them on a branch of a sample, as `icewright advise --measure` does.
        Raises `UsageError` for a text that is no filter over the table's columns, the errors of loading the table, and
        `Refused` where nothing can be measured.
        """
        runtime = self._runtime(dry_run=not measure)
        report = predict_layouts(runtime, self.ref, filters)
        return measure_layouts(runtime, report, filters) if measure else report

    def check(self, level: str = CheckLevel.EXISTS) -> IntegrityReport:
        """Check that every file of all snapshots exists and, by level, is what its entry says; change nothing.

        The levels are `exists`, `entries`, `footers` and `rows`. Raises `UsageError` for another one, the errors of
        loading the table, and `StorageUnavailable`.
        """
        if level not in set(CheckLevel):
            raise UsageError(f"check: there is no level {level}; there is: {', '.join(CheckLevel)}")
        return self._app.runtime.engine.check(self.ref, CheckLevel(level))

    def copy(self, place: str, *, dry_run: bool = False) -> CopyResult:
        """Copy the table with all its snapshots to another place, as `icewright copy` does.

        Raises `UsageError` for a place that is not absolute, `Refused` when it holds anything but an earlier copy, and
        `UnsupportedTable`.
        """
        return copy_table(self._app.runtime, self.ref, place, dry_run=dry_run)

    def restore(self, to: str, *, dry_run: bool = False) -> RestoreResult:
        """Return the table to a recovery point, a time, a snapshot, a tag or a branch, as `icewright restore` does.

        The state before keeps a tag. Raises `UsageError` when there is no such state, and `Refused` when its files are
        gone, another job works on the table, or a writer commits meanwhile: nothing is changed then.
        """
        (result,) = restore(self._runtime(dry_run=dry_run), [self.ref], to, dry_run=dry_run)
        return result

    def repair(self, *, drop_lost: bool = False, dry_run: bool = False) -> RepairResult:
        """Repair what is provably right of what a check to the footers finds, as `icewright repair` does.

        `drop_lost` lets main go on without files that are lost. The state before keeps a tag. Raises the errors of
        `check`, and `Refused` while another job works on the table.
        """
        return repair(self._runtime(dry_run=dry_run), self.ref, drop_lost=drop_lost, dry_run=dry_run)

    def erase(self, where: str, *, dry_run: bool = False) -> ErasureResult:
        """Remove deleted rows from every file that still keeps them, as `icewright erase` does.

        Raises `UsageError` for a predicate that cannot be understood, `Refused` when other tables share the place, and
        the errors of loading the table.
        """
        return erase(self._runtime(dry_run=dry_run), self.ref, where, dry_run=dry_run)

    def _runtime(self, *, dry_run: bool) -> Runtime:
        """Return the runtime: the store knows the table, and interrupted jobs are reconciled where it will change."""
        known_table(self._app, str(self.ref))
        if not dry_run:
            reconcile_interrupted(self._app.runtime)
        return self._app.runtime

    def run(
        self, *operations: str, dry_run: bool = False, force: bool = False, settings: Mapping[str, object] | None = None
    ) -> RunResult:
        """Run operations that are due, in the policy's order, and return what each came to.

        `settings` change knobs for this run alone; `force` runs on a paused table. An error of the table is part of
        the result. Raises `UsageError` for unknown operations and for a paused table, `ConfigError` for bad settings.
        """
        named = parse_operations("run", operations)
        if not named:
            raise UsageError("run: name at least one operation, such as expire_snapshots")
        runtime = self._app.runtime
        command = parse_settings("settings", settings or {}, runtime.policy().guardrails)
        row = known_table(self._app, str(self.ref))
        if row.paused and not force and not dry_run:
            raise UsageError(f"{self.ref} is paused ({row.paused}): resume it, or run with force=True")
        if not dry_run:
            reconcile_interrupted(runtime)
        request = Request(self.ref, tuple(named), manual=True, force=force, dry_run=dry_run)
        result = execute(runtime.with_settings(command), request)
        rows = [
            OperationResult(
                str(outcome.operation),
                outcome_state(outcome, dry_run=dry_run),
                outcome.summary or outcome.reason,
                dict(outcome.metrics),
                tuple(file.path for file in outcome.files),
            )
            for outcome in result.outcomes
        ]
        return RunResult(str(self.ref), result.job_id, str(result.state), result.summary, Rows(OperationResult, rows))

    def history(self, limit: int = 100) -> Rows[PastJob]:
        """Return the newest jobs of the table, at most `limit`. Raises `UsageError` for a limit below 1."""
        if limit < 1:
            raise UsageError(f"history: a limit of {limit} returns no job; the least is 1")
        page = self._app.runtime.store.views.list_jobs(JobQuery(ref=self.ref), None, None, limit)
        return Rows(
            PastJob,
            [
                PastJob(
                    job.job_id,
                    str(job.ref),
                    str(job.state),
                    tuple(map(str, job.operations)),
                    job.trigger,
                    job.actor,
                    job.started,
                    job.finished,
                    job.summary,
                )
                for job in (item.job for item in page.items)
            ],
        )
