"""Commands that do: cycle, run, cancel, pause, resume, demo, db upgrade."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.bootstrap import upgrade_store
from icewright.app.cli import remote
from icewright.app.cli.archiving import archive_days
from icewright.app.cli.base import (
    CatalogOption,
    Json,
    Sets,
    Table,
    app,
    chosen_catalogs,
    configuration,
    db_app,
    given_knobs,
    knob_settings,
    known_table,
    leave,
    opened_application,
)
from icewright.core.errors import UsageError
from icewright.core.policy import Operation
from icewright.flow.alert import alert_due
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted


@app.command()
def cycle(
    catalog: CatalogOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change no table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Look past the evaluation cooldown.")] = False,
    as_json: Json = False,
) -> None:
    """One pass: detect, evaluate, plan, execute, record. For cron, Airflow, Kubernetes jobs."""
    with output.progress() as tell, opened_application("cycle", tell=tell) as opened:
        for line in [] if dry_run else reconcile_interrupted(opened.runtime):
            output.ERR.print(escape(line))
        result = run_cycle(opened.runtime, chosen_catalogs(opened, catalog), dry_run=dry_run, force=force)
        if not dry_run:
            alert_due(opened.runtime, opened.alerting)
        kept_up = dry_run or archive_days(opened)
    if as_json:
        output.print_json(output.cycle_document(result))
    else:
        output.show_cycle(result)
    code = output.exit_code([job.state for job in result.jobs])
    if result.errors:
        code = 3 if result.tables else 1
    leave(code or (0 if kept_up else 3))


@app.command()
def run(
    table: Table,
    op: Annotated[
        str | None,
        typer.Option("--op", metavar="OP[,OP]", help="Operations; default: all that are due, but expire_rows."),
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be done; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run though the table is paused.")] = False,
    files: Annotated[bool, typer.Option("--files", help="List the files that were rewritten or deleted.")] = False,
    as_json: Json = False,
) -> None:
    """Run operations on one table now, past cooldowns and cadence, never past guardrails or leases."""
    operations = _operations(op)
    if to := remote.client():
        given = given_knobs("--set", sets)
        remote.run(to, table, operations, given, dry_run=dry_run, force=force, as_json=as_json)
        return
    with output.progress() as tell, opened_application(command=knob_settings("--set", sets), tell=tell) as opened:
        knob_settings("--set", sets, opened.runtime.policy().guardrails)  # refuses what a guardrail would replace
        if not dry_run:
            reconcile_interrupted(opened.runtime)
        row = known_table(opened, table)
        if row.paused and not force and not dry_run:
            raise UsageError(f"{row.ref} is paused ({row.paused}): `icewright resume {row.ref}`, or run with --force")
        request = Request(row.ref, operations, manual=True, force=force, dry_run=dry_run)
        result = execute(opened.runtime, request)
    if as_json:
        output.print_json(output.job_document(result, files=files))
    else:
        output.show_job(result, files=files or dry_run)
    leave(output.exit_code([result.state]))


def _operations(text: str | None) -> tuple[Operation, ...]:
    """Return the named operations in the canonical order. When none is named, all but the one that deletes rows."""
    harmless = [op for op in Operation if op is not Operation.EXPIRE_ROWS]
    asked = [_operation(name.strip()) for name in text.split(",")] if text else harmless
    return tuple(op for op in Operation if op in asked)


def _operation(name: str) -> Operation:
    try:
        return Operation(name)
    except ValueError:
        raise UsageError(f"--op {name}: there is no such operation; there is: {', '.join(Operation)}") from None


@app.command()
def cancel(job: Annotated[str, typer.Argument(metavar="JOB")]) -> None:
    """Ask a running job to stop before its next step."""
    if to := remote.client():
        remote.cancel(to, job)
        return
    with opened_application() as opened:
        found = opened.runtime.store.jobs.get(job)
        if found is None:
            raise UsageError(f"no job, or more than one, begins with {job!r}; `icewright history` lists them")
        if not opened.runtime.store.jobs.request_cancel(found.job_id, opened.runtime.clock.now()):
            raise UsageError(f"job {found.job_id} does not run: it is {found.state}")
    output.OUT.print(f"job {found.job_id} was asked to stop")


@app.command()
def pause(
    table: Table, reason: Annotated[str, typer.Option("--reason", help="Shown wherever the table is.")] = "by hand"
) -> None:
    """Keep a table from being maintained by itself."""
    if to := remote.client():
        remote.pause(to, table, reason)
        return
    with opened_application() as opened:
        row = known_table(opened, table)
        opened.runtime.store.tables.pause(row.ref, reason)
    output.OUT.print(f"{escape(str(row.ref))} is paused: {escape(reason)}")


@app.command()
def resume(table: Table) -> None:
    """Let a paused table be maintained again."""
    if to := remote.client():
        remote.pause(to, table, None)
        return
    with opened_application() as opened:
        row = known_table(opened, table)
        opened.runtime.store.tables.pause(row.ref, None)
    output.OUT.print(f"{escape(str(row.ref))} is {'maintained again' if row.paused else 'not paused'}")


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the lakehouse is made; default: a new folder.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Maintain until nothing is due, prove it, and end, without serving pages.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a neglected lakehouse, maintain it and prove that every row is still there."""
    from icewright.app.demo.show import run_demo  # noqa: PLC0415 - brings PyIceberg's writers, needed here alone

    leave(run_demo(directory, once=once, as_json=as_json))


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Bring the state store to the newest revision."""
    upgrade_store(configuration())
    output.OUT.print("the state store has the newest revision")
