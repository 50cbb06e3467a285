"""Commands that change tables, jobs or alerts: cycle, run, vacuum, undo, give-up, pin, unpin, adopt, acknowledge."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli import views
from icewright.app.cli.auditing import audit
from icewright.app.cli.backend import RunRequest, backend
from icewright.app.cli.base import (
    CatalogOption,
    DryRun,
    Job,
    Json,
    Sets,
    Table,
    Yes,
    app,
    confirm,
    exit_code,
    known_table,
    leave,
    open_application,
    parse_operations,
    reconcile,
    require_engine,
    select_catalogs,
    split_settings,
)
from icewright.app.cli.completing import complete_catalog, complete_operation
from icewright.app.cli.fleet import AllTables, Tables, WholeCatalog, ask_about, print_document, selection
from icewright.app.output import echo, escape
from icewright.core.errors import UsageError
from icewright.core.paths import split
from icewright.core.permissions import Action, place_of
from icewright.core.runs import REFUSED, JobState
from icewright.core.selection import TableSelection
from icewright.core.words import count, in_shell

if TYPE_CHECKING:
    from icewright.ports import Adoptable

Reader = Annotated[str, typer.Option("--reader", metavar="NAME", help="The reader that goes on from the snapshot.")]


class _Trigger(enum.StrEnum):
    """Triggers of Spark streams that need different snapshots."""

    AVAILABLE_NOW = "available-now"
    PROCESSING_TIME = "processing-time"


@app.command()
def cycle(
    catalog: CatalogOption = None,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Evaluate tables before their cooldown has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Detect, evaluate, plan and run what is due, once.

    For cron, Airflow and Kubernetes jobs.
    """
    from icewright.app.cli.serving import archive_old_days
    from icewright.app.documents import cycle_document
    from icewright.flow.alert import alert_due
    from icewright.flow.cycle import run_cycle

    require_engine("a cycle")
    with output.progress() as listener, open_application("cycle", listener=listener) as opened:
        if not dry_run:
            reconcile(opened)
        catalogs = select_catalogs(opened, catalog)
        result = run_cycle(opened.runtime, catalogs, dry_run=dry_run, force=force, asking=output.waiting_for(catalogs))
        if not dry_run:
            alert_due(opened.runtime, opened.alerting)
        archived = dry_run or archive_old_days(opened)
    document = cycle_document(result)
    output.show(document, as_json, views.show_cycle)
    code = exit_code([job.state for job in result.jobs])
    if result.errors:
        code = 3 if result.tables else 1
    leave(code or (0 if archived else 3))


@app.command()
def run(  # noqa: PLR0913, PLR0917 - an option each
    tables: Tables = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            metavar="OP[,OP]",
            help="May be given several times; default: all due ones but expire_rows.",
            autocompletion=complete_operation,
        ),
    ] = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Run although the table is paused.")] = False,
    files: Annotated[bool, typer.Option("--files", help="List every file that is rewritten or deleted.")] = False,
    catalog: WholeCatalog = None,
    every_table: AllTables = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run operations on one or many tables now.

    A manual run ignores cooldowns and windows, never guardrails or leases. Exit code 1, or 3 where other work was done,
    also when no job can begin, or a safety rule refuses what `--op` names.
    """
    from icewright.core.policy import Operation

    if stray := [name for name in tables or [] if name in list(Operation)]:
        raise UsageError(f"{stray[0]} is an operation, not a table: name it as --op {stray[0]}")
    operations = parse_operations("--op", op) or [o for o in Operation if o is not Operation.EXPIRE_ROWS]
    chosen = selection(tables, catalog, every_table)
    request = RunRequest("", operations, split_settings("--set", sets), dry_run, force, files)
    if chosen.is_one_table:
        documents = [backend().run(replace(request, table=chosen.names[0]))]
    else:
        counted = backend().bulk("run", chosen, operations=operations)
        ask_about("run", counted, yes=yes or dry_run)
        documents = backend().run_many(chosen, request, counted)
    if as_json:
        output.print_json(documents[0] if chosen.is_one_table else {"jobs": documents})
    else:
        for document in documents:
            views.show_job(document, files=files)
    leave(exit_code([_state(document, asked=op is not None) for document in documents]))


def _state(document: Mapping[str, Any], *, asked: bool) -> str:
    """Return the state that decides on the exit code: what could not begin, or a safety rule refused, is not done."""
    operations = document.get("operations", ())
    state: str = document["state"]
    if state == JobState.SKIPPED and not operations:  # everything is paused, or another job holds the table
        return JobState.FAILED
    if not asked or not any(operation.get("reason", "").startswith(REFUSED) for operation in operations):
        return state
    return {JobState.SKIPPED: JobState.FAILED, JobState.SUCCEEDED: JobState.PARTIAL}.get(JobState(state), state)


@app.command()
def vacuum(
    catalog: Annotated[str, typer.Argument(metavar="CATALOG", autocompletion=complete_catalog)],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Expire and delete what no table of a catalog needs.

    Old snapshots of all tables expire, and files that nothing reaches are deleted. The command asks for
    confirmation first.
    """
    from icewright.core.policy import Operation

    if not (dry_run or yes):
        removing = (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS)
        known = backend().bulk("run", TableSelection(catalog=catalog), operations=removing)["count"]
        confirm(f"Expire snapshots and delete files of all tables of {catalog} ({known:,} are known)?", yes=False)
    document = backend().vacuum(catalog, dry_run=dry_run)
    output.show(document, as_json, views.show_vacuum)
    leave({"failed": 1, "partial": 3}.get(document["state"], 0))


@app.command()
def undo(job: Job, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Undo a job: restore snapshots, drop planned deletions.

    The snapshots and refs that the job expired return to the table.
    """
    document = backend().undo(job, dry_run=dry_run)
    output.show(document, as_json, views.show_undo)


@app.command("give-up")
def give_up(job: Job, yes: Yes = False, as_json: Json = False) -> None:
    """Drop the planned deletions of a job; its files stay.

    Only the removal of orphans can delete them afterwards.
    """
    confirm("Only the removal of orphans can delete these files afterwards; go on?", yes=yes)
    document = backend().give_up(job)
    kept = f"{count(document['files'], 'file')} of job {document['job_id']} kept where they are"
    print_document(document, as_json, kept if document["files"] else f"no file of job {document['job_id']} waits")


@app.command()
def pin(
    table: Table,
    reader: Reader,
    snapshot: Annotated[
        int | None, typer.Argument(metavar="SNAPSHOT", help="Id of the snapshot that was read last.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="PATH", help="Pin what the Spark stream of this checkpoint needs to go on."
        ),
    ] = None,
    trigger: Annotated[
        _Trigger, typer.Option("--trigger", help="That of the stream; available-now needs its first snapshot too.")
    ] = _Trigger.AVAILABLE_NOW,
    hours: Annotated[
        int | None,
        typer.Option("--hours", metavar="N", min=1, help="For how long; default: expire_snapshots.max_pin_age_hours."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Keep a snapshot and all later ones for a streaming reader.

    A later pin of the same reader replaces it.
    """
    from icewright.core.policy import MAX_PIN_AGE
    from icewright.flow.checkpoint import checkpoint_snapshot
    from icewright.ports import SnapshotPin

    if (snapshot is None) == (checkpoint is None):
        raise UsageError("pin either a snapshot by its id, or what a Spark stream needs by --checkpoint PATH")
    with open_application() as opened:
        runtime, row = opened.runtime, known_table(opened, table)
        metadata = runtime.catalog(row.ref).load(row.ref)
        if checkpoint is not None:
            folder = checkpoint if split(checkpoint).scheme else str(Path(checkpoint).resolve())
            available_now = trigger is _Trigger.AVAILABLE_NOW
            snapshot = checkpoint_snapshot(runtime.files, folder, metadata, available_now=available_now)
        if snapshot is None or snapshot not in metadata.by_id:
            raise UsageError(f"{row.ref} has no snapshot {snapshot}; it may have been expired already")
        now = runtime.clock.now()
        longest = runtime.policy().knobs_for(row.ref, metadata)[MAX_PIN_AGE]
        until = now + timedelta(hours=min(hours or longest, longest))
        new_pin = SnapshotPin(_reader_name(reader), snapshot, now, until, runtime.trigger.actor)
        if not runtime.store.pins.add(row.ref, metadata.table_uuid, new_pin):
            raise UsageError(f"a job works on {row.ref} and may be expiring the snapshot: pin it when the job is done")
    text = f"{new_pin.reader} holds snapshot {snapshot} of {row.ref} until {output.moment(until)} UTC"
    print_document({"table": str(row.ref), **asdict(new_pin)}, as_json, text)


@app.command()
def unpin(table: Table, reader: Reader, as_json: Json = False) -> None:
    """Release the pin of a reader."""
    with open_application() as opened:
        row, name = known_table(opened, table), _reader_name(reader)
        if not opened.runtime.store.pins.remove(row.ref, name):
            raise UsageError(
                f"{reader} holds no snapshot of {row.ref}; `icewright pins {in_shell(row.ref)}` lists who does"
            )
    print_document(
        {"table": str(row.ref), "reader": name}, as_json, f"{reader} holds no snapshot of {row.ref} any more"
    )


@app.command()
def acknowledge(
    alert: Annotated[
        int,
        typer.Argument(metavar="ALERT", max=2**63 - 1, help="The id of an open alert; `icewright alerts` lists them."),
    ],
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Shown wherever the alert is shown.")] = "",
    silence: Annotated[
        int | None,
        typer.Option("--silence", metavar="HOURS", min=1, max=720, help="Tell no channel about it for so long."),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="End the acknowledgement and its silence.")] = False,
    as_json: Json = False,
) -> None:
    """Acknowledge an alert, and silence it for a time.

    A silence also holds when the alert ends and begins again.
    """
    from icewright.app.documents import alert_document
    from icewright.core.alerts import Acknowledgement
    from icewright.ports import AlertQuery

    with open_application(without_catalogs=True) as opened:
        runtime = opened.runtime
        now, alerts = runtime.clock.now(), runtime.store.alerts
        row = next(iter(alerts.list(AlertQuery(alert_id=alert))), None)
        until = now + timedelta(hours=silence) if silence else None
        ends = until.isoformat() if until else None
        given = None if withdraw else Acknowledgement(runtime.trigger.actor, now, note.strip(), until)
        if row is None or not alerts.acknowledge(alert, given):
            raise UsageError(f"there is no open alert {alert}; `icewright alerts` lists them")
        details = {"withdrawn": True} if given is None else {"note": given.note, "silent_until": ends}
        place = place_of(row.ref) if row.ref else None
        audit(runtime, Action.ALERTS_ACKNOWLEDGE, f"alert {row.key}", place, **details)
    silent = f", and silent until {output.moment(until)} UTC" if until else ""
    text = f"{row.rule} of {row.subject} is {'not acknowledged any more' if withdraw else f'acknowledged{silent}'}"
    print_document(alert_document(replace(row, acknowledgement=given)), as_json, text)


def _reader_name(reader: str) -> str:
    if not reader.strip():
        raise UsageError("--reader: give the reader a name, such as the job's")
    return f"reader {reader.strip()}"


@app.command()
def adopt(table: Table, dry_run: DryRun = False, yes: Yes = False, as_json: Json = False) -> None:
    """Declare that files in a table's locations belong to it.

    Files of earlier tables and dead versions may then be deleted.
    """
    from icewright.flow.adopt import adopt as adopt_files

    with open_application() as opened:
        ref = known_table(opened, table).ref
        adoptable = adopt_files(opened.runtime, ref, dry_run=True)
        if not as_json:
            _show_adoptable(str(ref), adoptable)
        if adoptable.everything and not dry_run:
            confirm("Does no other table, in any catalog, need any of this?", yes=yes)
        if not dry_run:
            adoptable = adopt_files(opened.runtime, ref, shown=adoptable)
    if as_json:
        parts = {"tables": adoptable.tables, "files": adoptable.files, "places": adoptable.places}
        lists = {name: list(values) for name, values in parts.items()}
        output.print_json({"table": str(ref), "dry_run": dry_run, **lists})


def _show_adoptable(table: str, adoptable: Adoptable) -> None:
    if not adoptable.everything:
        echo(f"nothing stands in the way of {escape(table)}")
        return
    kinds = {"table": adoptable.tables, "file": adoptable.files, "location": adoptable.places}
    lines = [(kind, value) for kind, values in kinds.items() for value in values]
    output.rows(f"What {table} takes over", (output.Column("kind"), "uuid, file or folder"), lines)
