"""Commands for one or many tables, the whole fleet and its processes: pause, resume, cancel, status, drain."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.backend import backend
from icewright.app.cli.base import Json, Yes, app, confirm
from icewright.app.cli.completing import complete_catalog, complete_table
from icewright.app.output import echo, escape
from icewright.core.errors import UsageError
from icewright.core.selection import TableSelection
from icewright.core.words import count, some

_LISTED = 10  # tables that a question names
Tables = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE", help="Names, and patterns such as 'lake.sales.*'.", autocompletion=complete_table),
]
WholeCatalog = Annotated[
    str | None,
    typer.Option("--catalog", metavar="NAME", help="All tables of this catalog.", autocompletion=complete_catalog),
]
AllTables = Annotated[bool, typer.Option("--all", help="All tables.")]
Everything = Annotated[bool, typer.Option("--everything", help="The whole fleet, by one switch: no job begins at all.")]
_REASON = "manually"


@app.command()
def pause(
    tables: Tables = None,
    catalog: WholeCatalog = None,
    every_table: AllTables = False,
    everything: Everything = False,
    cancel_running: Annotated[
        bool, typer.Option("--cancel-running", help="With --everything: ask running jobs to stop.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Shown wherever the table is shown.")] = _REASON,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Stop the automatic maintenance of tables, or of everything.

    With --everything no job begins, asked for or not, until `icewright resume --everything`, also after restarts.
    """
    if everything:
        _require_alone(tables, catalog, every_table)
        document = backend().pause_fleet(reason, cancel_running=cancel_running)
        text = f"everything is paused: {reason}; {_stopping(document['cancelled'])}"
        print_document(document, as_json, text)
        return
    if cancel_running:
        raise UsageError("--cancel-running goes with --everything; `icewright cancel` ends the jobs of tables")
    _change("pause", selection(tables, catalog, every_table), reason, yes=yes, as_json=as_json)


@app.command()
def resume(
    tables: Tables = None,
    catalog: WholeCatalog = None,
    every_table: AllTables = False,
    everything: Everything = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Maintain paused tables, or everything, again."""
    if everything:
        _require_alone(tables, catalog, every_table)
        text = "jobs begin again; tables that are paused one by one stay so"
        print_document(backend().resume_fleet(), as_json, text)
        return
    _change("resume", selection(tables, catalog, every_table), None, yes=yes, as_json=as_json)


@app.command()
def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB|TABLE",
            help="Job ids or unique prefixes of them; or tables and patterns such as 'lake.sales.*'.",
        ),
    ] = None,
    catalog: WholeCatalog = None,
    every_table: AllTables = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel queued jobs, and ask running ones to stop before their next step."""
    named = jobs or []
    if not named or any("." in name or "*" in name for name in named):
        chosen = selection(named, catalog, every_table)
        document = _confirm_and_change("cancel", chosen, None, yes=yes)
        print_document(document, as_json, _stopping(document["jobs"]))
        return
    if catalog is not None or every_table:
        raise UsageError("name jobs, or select their tables, not both")
    documents = [backend().cancel(job) for job in named]
    lines = (f"job {document['job_id']} was asked to stop" for document in documents)
    print_document(documents[0] if len(documents) == 1 else {"jobs": documents}, as_json, *lines)


@app.command()
def status(as_json: Json = False) -> None:
    """Show whether everything is paused, and which processes run."""
    document = backend().fleet()
    if as_json:
        output.print_json(document)
        return
    pause = document["paused"]
    if pause is None:
        echo("the fleet is not paused")
    else:
        echo(f"[yellow]everything is paused[/] by {escape(pause['author'])}: {escape(pause['reason'])}")
    lines = [
        (p["holder"], p["kind"], _state(p), output.moment(p["heartbeat"]), p["slots"], p["details"].get("busy", 0))
        for p in document["processes"]
    ]
    columns = (
        output.Column("process"),
        output.Column("kind"),
        "state",
        output.Column("heartbeat (UTC)", rank=1),
        output.Column("slots", right=True),
        output.Column("jobs", right=True),
    )
    output.rows("Processes", columns, lines)


def _state(process: dict[str, Any]) -> str:
    if faults := process["details"].get("faults"):
        return f"takes no work: {faults[0]}"
    return "draining" if process["drain_since"] else "working"


@app.command()
def drain(
    process: Annotated[str, typer.Argument(metavar="PROCESS", help="An id of `icewright status`, or a unique prefix.")],
    as_json: Json = False,
) -> None:
    """Let a service or worker take no more jobs, and end after its own."""
    document = backend().drain(process)
    print_document(document, as_json, f"{document['process']} takes no more jobs, and ends when its jobs have")


def selection(tables: list[str] | None, catalog: str | None, every_table: bool) -> TableSelection:
    """Return the tables that a command line selects. Raises `UsageError` unless in exactly one way."""
    return TableSelection(tuple(tables or ()), catalog, every_table)


def ask_about(action: str, document: dict[str, Any], *, yes: bool) -> None:
    """Ask whether the action is meant for so many tables, unless `yes` is set."""
    confirm(
        f"{action.capitalize()} {count(document['count'], 'table')} ({some(document['tables'], _LISTED)})?", yes=yes
    )


def print_document(document: Any, as_json: bool, *lines: str) -> None:  # noqa: ANN401 - JSON
    """Print a document as JSON, or the lines that say the same."""
    if as_json:
        output.print_json(document)
        return
    for line in lines:
        echo(escape(line))


def _stopping(jobs: list[str]) -> str:
    return f"asked {count(len(jobs), 'job')} to stop"


def _require_alone(tables: list[str] | None, catalog: str | None, every_table: bool) -> None:
    if tables or catalog is not None or every_table:
        raise UsageError("--everything is about the whole fleet: leave out tables, --catalog and --all")


def _confirm_and_change(action: str, chosen: TableSelection, reason: str | None, *, yes: bool) -> dict[str, Any]:
    """Count the selected tables, ask, and do the action on exactly so many."""
    counted = backend().bulk(action, chosen, reason=reason)
    if counted["count"] == 0:
        return counted
    ask_about(action, counted, yes=yes)
    return backend().bulk(action, chosen, counted["count"], reason)


def _change(action: str, chosen: TableSelection, reason: str | None, *, yes: bool, as_json: bool) -> None:
    """Pause tables with a reason, or resume them; a single table is not asked about."""
    if not chosen.is_one_table:
        document = _confirm_and_change(action, chosen, reason, yes=yes)
        print_document(document, as_json, f"{action}d {count(document['count'], 'table')}")
        return
    document = backend().pause(chosen.names[0], reason)
    resumed = "is maintained again" if document["was_paused"] else "is not paused"
    text = f"{document['table']} {f'is paused: {reason}' if reason is not None else resumed}"
    print_document(document, as_json, text)
