"""The commands over the local configuration: the application is opened here, and closed when the command ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from icewright.app import output
from icewright.app.bootstrap import Application
from icewright.app.cli.backend import Document, JobFilter, RunRequest, TableFilter, changed_limits, removed_settings
from icewright.app.cli.base import (
    known_table,
    open_application,
    parse_knobs,
    parse_since,
    reconcile,
    require_engine,
    select_catalogs,
)
from icewright.app.doctor import other_names
from icewright.app.documents import (
    cost_in_money,
    error_documents,
    job_document,
    job_item_document,
    job_row_document,
    limits_document,
    plan_document,
    removal_document,
    undo_document,
    vacuum_document,
    waiting_document,
)
from icewright.core.describe import evaluation_document, ignored_document, knobs_document
from icewright.core.errors import CatalogUnavailable, IcewrightError, UsageError
from icewright.core.layering import Policy, PolicyRule, parse_pattern
from icewright.core.limit_settings import parse_limits
from icewright.core.policy import Operation
from icewright.core.selection import TableSelection, is_pattern, matching_tables, tables_of_namespace
from icewright.core.steps import Due, on_pool
from icewright.core.table import TableRef, split_name
from icewright.core.words import in_shell, no_job
from icewright.flow.bulk import cancel_jobs, drain_process, pause_fleet, pause_tables, selected_tables
from icewright.flow.cycle import detect_and_evaluate
from icewright.flow.detect import Detected, detect
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.execute import execute
from icewright.flow.limits import change_limits
from icewright.flow.operation import Request
from icewright.flow.queue import plan_now
from icewright.flow.reconcile import end_interrupted, reconcile_interrupted
from icewright.flow.rules import change_rule
from icewright.flow.undo import give_up, undo
from icewright.flow.undoable import ended_job
from icewright.flow.vacuum import vacuum
from icewright.ports import JobRow
from icewright.ports.views import PAGE, STATES, JobQuery, TableItem, TableQuery, TableSort, every_item


class LocalBackend:
    """Runs commands in this process. Each method returns the JSON document of its command."""

    def tables(self, criteria: TableFilter) -> tuple[Document, int]:
        """Detect all tables; return those that pass the filter as `{"tables": [...], "errors": [...]}`, and how many.

        The number is of all tables in the catalogs that could be read.
        """
        query = _table_query(criteria)
        with open_application() as app:
            detected = _detect(app, select_catalogs(app, criteria.catalog))
            views = app.runtime.store.views
            items = every_item(lambda after: views.list_tables(query, None, after, PAGE), criteria.limit)
            documents = [_table_document(item) for item in items]
            if not documents and criteria.namespace and not detected.errors:
                tables_of_namespace(criteria.namespace, app.runtime.store.tables.known(criteria.catalog))
            if not documents and not detected.errors:
                _note_empty_catalogs(app, criteria.catalog)
        return {"tables": documents, "errors": error_documents(detected.errors)}, detected.tables

    def explain(self, table: str | None, namespace: str | None) -> tuple[list[Document], list[str]]:
        """Evaluate one table, or all; return each one's health, verdicts, ... and the errors of unread catalogs."""
        away: dict[str, str] = {}
        with open_application() as app:
            runtime = app.runtime
            if table is not None and not is_pattern(table):
                refs = [known_table(app, table).ref]
            else:
                away = dict(_detect(app, select_catalogs(app, None)).errors)
                refs = list(runtime.store.tables.known())
                if not refs and not away:
                    _note_empty_catalogs(app, None)
                if refs or not away:
                    refs = matching_tables(table, refs)
            if namespace is not None:
                refs = tables_of_namespace(namespace, refs)
            errors = list(away.values())
            refs = [ref for ref in refs if ref.catalog not in away]  # each would wait in turn, and count as unreadable
            if errors and not refs:
                raise CatalogUnavailable("; ".join(errors))
            return [_explained(app, ref) for ref in refs], errors

    def plan(self, catalog: str | None) -> Document:
        """Detect and evaluate changed tables; return what would start now and what would wait."""
        require_engine("a plan")
        with open_application() as app:
            catalogs = select_catalogs(app, catalog)
            with output.waiting_for(catalogs):
                detected, _ = detect_and_evaluate(app.runtime, catalogs)
            return plan_document(detected, plan_now(app.runtime, catalogs), app.runtime.limits())

    def run(self, request: RunRequest) -> Document:
        """Reconcile interrupted jobs, run the operations, and return the finished job, or what a dry run found."""
        command = parse_knobs("--set", request.settings)
        with output.progress() as listener, open_application(command=command, listener=listener) as app:
            guardrails = app.runtime.policy().guardrails
            parse_knobs("--set", request.settings, guardrails)  # refuses values that a guardrail would replace
            if not request.dry_run:
                reconcile_interrupted(app.runtime)
            row = known_table(app, request.table)
            if row.paused and not request.force and not request.dry_run:
                remedy = f"`icewright resume {in_shell(row.ref)}`, or run with --force"
                raise UsageError(f"{row.ref} is paused ({row.paused}): {remedy}")
            job_request = Request(
                row.ref, tuple(request.operations), manual=True, force=request.force, dry_run=request.dry_run
            )
            return job_document(execute(app.runtime, job_request), files=request.files)

    def history(self, criteria: JobFilter) -> list[Document]:
        """Return the jobs of the state store that pass the filter, newest first."""
        with open_application() as app:
            since = None if criteria.since is None else parse_since(criteria.since, app.runtime.clock.now())
            ref = known_table(app, criteria.table).ref if criteria.table is not None else None
            query = JobQuery(ref=ref, states=tuple(criteria.states), operation=criteria.operation)
            views = app.runtime.store.views
            items = every_item(lambda after: views.list_jobs(query, None, after, PAGE), criteria.limit)
        return [
            job_item_document(item)
            for item in items
            if since is None or (item.job.started or item.job.created) >= since
        ]

    def show(self, job: str) -> Document:
        """Return a job with its runs, removed snapshots, waiting deletions, log and files."""
        with open_application() as app:
            store, row = app.runtime.store, _job(app, job)
            (item,) = store.views.list_jobs(JobQuery(job_id=row.job_id), None, None, 1).items
            reads = store.pins.reads(row.ref)
            return job_item_document(item) | {
                "runs": [dict(run) for run in store.runs.list(row.job_id)],
                "removed": [removal_document(removal, reads) for removal in store.ledger.removals(row.job_id)],
                "waiting": [waiting_document(w) for w in store.ledger.pending(row.ref) if w.job_id == row.job_id],
                "files": list(store.ledger.files(row.job_id)),
                "log": list(store.activity.list(row.job_id)),
            }

    def cancel(self, job: str) -> Document:
        """Ask a job of the state store to stop before its next step; return at least its `job_id`."""
        with open_application() as app:
            row = _job(app, job)
            if not app.runtime.store.jobs.request_cancel(row.job_id, app.runtime.clock.now()):
                raise UsageError(f"job {row.job_id} does not run: it is {row.state}")
        return job_row_document(row)

    def pause(self, table: str, reason: str | None) -> Document:
        """Pause a table, or resume it where there is no reason; return `table`, `paused` and `was_paused`."""
        with open_application() as app:
            row = known_table(app, table)
            app.runtime.store.tables.pause(row.ref, reason)
        return {"table": str(row.ref), "paused": reason, "was_paused": row.paused}

    def bulk(
        self,
        action: str,
        selection: TableSelection,
        expected: int | None = None,
        reason: str | None = None,
        operations: Sequence[Operation] = (),  # noqa: ARG002 - the service checks permissions by them
    ) -> Document:
        """Pause, resume or cancel the selected tables; without `expected` only return `count` and `tables`."""
        with open_application() as app:
            if selection.catalog is not None:
                select_catalogs(app, selection.catalog)
            rows = selected_tables(app.runtime, selection)
            rows = [row for row in rows if row.job_id is not None or action != "cancel"]
            jobs: list[str] = []
            if expected is not None and action == "cancel":
                jobs = cancel_jobs(app.runtime, rows)
            elif expected is not None:
                pause_tables(app.runtime, rows, reason)
        names = sorted(str(row.ref) for row in rows)
        return {"count": len(rows), "changed": expected is not None, "tables": names, "jobs": jobs, "refused": {}}

    def run_many(self, selection: TableSelection, request: RunRequest, counted: Document) -> list[Document]:  # noqa: ARG002
        """Run the operations on the counted tables, one after another; a refusal stops no other table."""
        documents = []
        for table in counted["tables"]:
            try:
                documents.append(self.run(replace(request, table=table)))
            except IcewrightError as error:
                documents.append(
                    {"table": table, "job_id": None, "state": "failed", "dry_run": request.dry_run}
                    | {"operations": [], "summary": str(error), "reason": str(error)}
                )
        return documents

    def fleet(self) -> Document:
        """Return the pause of the whole fleet and the processes, as `{"paused": ..., "processes": [...]}`."""
        with open_application() as app:
            processes = [asdict(row) for row in app.runtime.store.processes.list()]
            return {"paused": _fleet_pause(app), "processes": processes}

    def pause_fleet(self, reason: str, *, cancel_running: bool) -> Document:
        """Pause everything; return `paused`, and the ids of the running jobs that were `cancelled`."""
        with open_application() as app:
            cancelled = pause_fleet(app.runtime, reason, cancel_running=cancel_running)
            return {"paused": _fleet_pause(app), "cancelled": cancelled}

    def resume_fleet(self) -> Document:
        """End the pause of everything."""
        with open_application() as app:
            app.runtime.store.fleet.end()
            return {"paused": _fleet_pause(app), "cancelled": []}

    def drain(self, process: str) -> Document:
        """Ask a process, which reads it with its next heartbeat, to take no more jobs; return its id as `process`."""
        with open_application() as app:
            return {"process": drain_process(app.runtime, process).holder}

    def knobs(self, table: str) -> Document:
        """Read the table's properties; return every knob with the level and rule that set it."""
        with open_application() as app:
            row = known_table(app, table)
            metadata = app.runtime.catalog(row.ref).load(row.ref)
            knobs = app.runtime.policy().knobs_for(row.ref, metadata)
        ignored = ignored_document(knobs.ignored)
        return {"table": str(row.ref), "knobs": knobs_document(knobs), "ignored_properties": ignored}

    def set_rule(self, scope: str, settings: Mapping[str, str]) -> Mapping[str, Any]:
        """Add knobs to the stored rule of a scope, within the guardrails, and return them parsed."""
        with open_application() as app:
            match = _rule_pattern(app, scope)
            new = parse_knobs("config set", settings, app.runtime.policy().guardrails)
            change_rule(app.runtime, match, app.runtime.trigger.actor, lambda old: {**old, **new})
            known = app.runtime.store.tables.known()
            if Policy((PolicyRule(match, new),)).without_match(known):
                output.note(f"{scope}: no table is known there")
        return new

    def unset_rule(self, scope: str, knobs: Sequence[str]) -> Mapping[str, Any]:
        """Remove knobs, or all where none is named, from the stored rule of a scope; return the removed ones."""
        with open_application() as app:
            match = _rule_pattern(app, scope)

            def remaining(old: Mapping[str, Any]) -> Mapping[str, Any]:
                removed = removed_settings(scope, old, knobs)
                return {name: value for name, value in old.items() if name not in removed}

            old = change_rule(app.runtime, match, app.runtime.trigger.actor, remaining)
        return removed_settings(scope, old, knobs)

    def limits(self) -> Document:
        """Return the limits, those of the configuration too."""
        with open_application() as app:
            return limits_document(app.runtime.limits)

    def set_limits(self, settings: Mapping[str, str], unset: Sequence[str]) -> Document:
        """Set limits in the place of the configuration's, take others back, and return all as they are then."""
        with open_application() as app:
            runtime = app.runtime
            new = parse_limits("config limits", settings, runtime.limits.configured)
            change = partial(changed_limits, new=new, unset=unset)
            change_limits(runtime.store.limits, runtime.trigger.actor, runtime.clock.now(), change)
            return limits_document(runtime.limits)

    def undo(self, job: str, *, dry_run: bool) -> Document:
        """End interrupted jobs, then restore what a job expired and drop its planned deletions."""
        with open_application() as app:
            for line in [] if dry_run else end_interrupted(app.runtime):
                output.note(line)
            return undo_document(undo(app.runtime, job, dry_run=dry_run))

    def vacuum(self, catalog: str, *, dry_run: bool) -> Document:
        """Vacuum the catalog after the work of interrupted jobs has been finished."""
        with output.progress() as listener, open_application(listener=listener) as app:
            select_catalogs(app, catalog)
            if not dry_run:
                reconcile(app)
            asking = output.waiting_for([catalog])
            return vacuum_document(vacuum(app.runtime, catalog, dry_run=dry_run, asking=asking))

    def deletions(self, table: str | None, catalog: str | None) -> list[Document]:
        """Return the files that wait to be deleted, by job."""
        with open_application() as app:
            catalogs, store = select_catalogs(app, catalog), app.runtime.store
            ref = None if table is None else TableRef.parse(table)
            if ref is not None and store.tables.get(ref) is None:
                raise UsageError(f"{ref}: the state store knows no such table; `icewright tables` lists them")
            waiting = store.ledger.pending(ref)
        return [waiting_document(w) for w in waiting if catalog is None or w.ref.catalog in catalogs]

    def give_up(self, job: str) -> Document:
        """Drop the planned deletions of an ended job; return `job_id`, `table` and the number of `files`."""
        with open_application() as app:
            row = ended_job(app.runtime, job)
            return {"job_id": row.job_id, "table": str(row.ref), "files": give_up(app.runtime, row.job_id)}


def _detect(app: Application, catalogs: Sequence[str]) -> Detected:
    with output.waiting_for(catalogs):
        return detect(app.runtime, catalogs)


def _note_empty_catalogs(app: Application, catalog: str | None) -> None:
    """Name the catalogs without tables, and under which name their database has some."""
    known = {row.ref.catalog for row in app.runtime.store.tables.list()}
    for name in set(select_catalogs(app, catalog)) - known:
        output.note(other_names(name, app.runtime.catalogs[name]) or f"no table is in catalog {name}")


def _table_query(criteria: TableFilter) -> TableQuery:
    if unknown := [state for state in criteria.states if state not in STATES]:
        raise UsageError(f"--state {unknown[0]}: there is no such state; there is: {', '.join(STATES)}")
    if criteria.sort not in list(TableSort):
        raise UsageError(f"--sort {criteria.sort}: there is no such column; there is: {', '.join(TableSort)}")
    sort = TableSort(criteria.sort)
    return TableQuery(
        catalog=criteria.catalog,
        namespace=split_name(criteria.namespace) if criteria.namespace else None,
        states=tuple(criteria.states),
        due=criteria.operation,
        sort=sort,
        descending=sort not in (TableSort.NAME, TableSort.HEALTH),
    )


def _table_document(item: TableItem) -> Document:
    row = item.row
    return {
        "table": str(row.ref),
        "health": row.health,
        "state": item.state,
        "evaluated_at": row.evaluated_at,
        "evaluate_at": row.evaluate_at,
        "paused": row.paused,
        "error": row.error,
        "blocked": item.blocked,
        "due": [str(operation) for operation in item.due],
        "files": item.files,
        "bytes": item.bytes,
        "succeeded_at": item.succeeded_at,
        "job": row.job_id,
    }


def _explained(app: Application, ref: TableRef) -> Document:
    evaluation = evaluate_and_record(app.runtime, ref, app.runtime.clock.now())
    row = app.runtime.store.tables.get(ref)
    paused, error = (row.paused, row.error) if row is not None else (None, None)
    document: Document = {"table": str(ref), "paused": paused, "error": error, "verdicts": []}
    if evaluation is not None:
        full = evaluation_document(evaluation)
        document |= {name: full[name] for name in ("health", "verdicts", "ignored_properties")}
        document["advice"] = full["facts"]["advice"]
        since = row.due_since if row is not None else None
        first_from = app.runtime.limits().goes_first_from(since, evaluation.terms.importance)
        document |= {"due_since": since, "goes_first_from": first_from}
        scope = app.runtime.scopes[ref.catalog]
        for found in document["verdicts"]:
            if isinstance(due := evaluation.verdicts[Operation(found["operation"])], Due):
                pool = scope.pool if any(map(on_pool, due.work.steps)) else None
                found.update(cost_in_money(app.runtime.limits(), due.cost, pool))
    return document


def _fleet_pause(app: Application) -> Document | None:
    pause = app.runtime.store.fleet.get()
    return None if pause is None else asdict(pause)


def _job(app: Application, prefix: str) -> JobRow:
    row = app.runtime.store.jobs.get(prefix)
    if row is None:
        raise UsageError(no_job(prefix))
    return row


def _rule_pattern(app: Application, scope: str) -> tuple[str, ...]:
    match = () if scope == "platform" else parse_pattern(scope)
    if match and not any(character in match[0] for character in "*?"):
        select_catalogs(app, match[0])
    return match
