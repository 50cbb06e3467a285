"""The commands that return tables to an earlier state, and that repair them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli import views
from icewright.app.cli.backend import remote_backend
from icewright.app.cli.base import (
    DryRun,
    Json,
    Table,
    Yes,
    app,
    confirm,
    exit_code,
    known_table,
    leave,
    open_application,
    reconcile,
    select_catalogs,
)
from icewright.app.cli.completing import complete_table
from icewright.app.cli.copying import show_copied
from icewright.app.output import Column, echo, escape, moment, size
from icewright.core.errors import UsageError
from icewright.core.table import TableRef, split_name
from icewright.core.words import count, decimal

if TYPE_CHECKING:  # it loads every library
    from icewright.app.bootstrap import Application
    from icewright.app.cli.remote import RemoteBackend


@app.command()
def restore(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="STATE",
            help="A recovery point, a time (in UTC), a snapshot id, a tag or a branch; without it, list the points.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="catalog.namespace.table", autocompletion=complete_table)
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="CATALOG.NAMESPACE", help="Restore all tables of a namespace.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="TABLE", help="Leave the table, and copy the state beside it under this name."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Return a table, or all of a namespace, to an earlier state.

    The table reads as it did then; a tag keeps the state before, so that the restore can be taken back. On a terminal
    the command asks for confirmation first.
    """
    from icewright.flow.copy import restore_beside

    if (table is None) == (namespace is None) or (name is not None and table is None):
        raise UsageError("restore either one table, or all tables of a namespace by --namespace CATALOG.NAMESPACE")
    if to is None:
        if table is None or name is not None:
            raise UsageError("--to: name the state, as in --to 2026-11-25T10:30")
        _list_points(table, as_json=as_json)
        return
    ask = sys.stdin.isatty() and not (dry_run or yes)
    if (service := remote_backend()) is not None:
        if table is None or name is not None:
            raise UsageError("--server restores one table in its place: leave out --namespace and --as")
        _restore_by_service(service, table, to, dry_run=dry_run, ask=ask, as_json=as_json)
        return
    if name is not None and table is not None:
        with open_application() as opened:
            ref = known_table(opened, table).ref
            result = restore_beside(opened.runtime, ref, to, TableRef.parse(name), dry_run=dry_run)
        output.show(result.document, as_json, show_copied)
        if not (dry_run or as_json):
            output.echo(f"  registered as {output.escape(name)}")
        return
    _restore_in_place(table, namespace, to, dry_run=dry_run, ask=ask, as_json=as_json)


@app.command()
def repair(
    table: Table,
    drop_lost: Annotated[
        bool,
        typer.Option("--drop-lost", help="Let main go on without data files and manifests that are lost; rows go."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Repair what `check --level footers` finds, where that is provably right.

    Lost manifest lists are written again, and main gets right counts and bounds; a tag keeps the state before. On a
    terminal, and always before rows are dropped, the command asks for confirmation. Exit code 1 when faults stay.
    """
    from icewright.flow.repair import repair as repair_table

    ask = (drop_lost or sys.stdin.isatty()) and not (dry_run or yes)
    if (service := remote_backend()) is not None:
        _repair_by_service(service, table, drop_lost=drop_lost, dry_run=dry_run, ask=ask, as_json=as_json)
        return
    with open_application() as opened:
        ref = known_table(opened, table).ref
        if not dry_run:
            reconcile(opened)
        result = repair_table(opened.runtime, ref, drop_lost=drop_lost, dry_run=dry_run or ask)
        if ask and result.plan.actions:
            if not as_json:
                _show_repaired(result.document)
            confirm(f"Repair {ref}?", yes=False)
            approved = result.plan.lost_rows
            result = repair_table(opened.runtime, ref, drop_lost=drop_lost, approved_rows=approved)
    document = result.document
    output.show(document, as_json, _show_repaired)
    leave(1 if result.plan.unrepaired else 0)


def _restore_in_place(
    table: str | None, namespace: str | None, to: str, *, dry_run: bool, ask: bool, as_json: bool
) -> None:
    """Restore tables in this process, once their plans were seen."""
    from icewright.app.documents import restore_document
    from icewright.flow.restore import carry_out
    from icewright.flow.restore import restore as restore_tables

    with open_application() as opened:
        refs = [known_table(opened, table).ref] if table is not None else _tables_of(opened, namespace or "")
        if not dry_run:
            reconcile(opened)
        results = restore_tables(opened.runtime, refs, to, dry_run=dry_run or ask)
        if ask:
            if not as_json:
                views.show_restored([restore_document(result) for result in results])
            confirm(f"Return {count(len(refs), 'table')} to {to}?", yes=False)
            results = carry_out(opened.runtime, [result.plan for result in results])
    documents = [restore_document(result) for result in results]
    output.show(documents, as_json, views.show_restored)


def _list_points(table: str, *, as_json: bool) -> None:
    """Print the recovery points of a table, and what they cost."""
    if (service := remote_backend()) is not None:
        document = service.points(table)
    else:
        from icewright.app.documents import points_document
        from icewright.flow.restore import point_costs

        with open_application() as opened:
            runtime, ref = opened.runtime, known_table(opened, table).ref
            metadata = runtime.catalog(ref).load(ref)
            document = points_document(metadata, runtime.limits(), point_costs(runtime, metadata))
    output.show(document, as_json, _show_points)


def _restore_by_service(
    service: RemoteBackend, table: str, to: str, *, dry_run: bool, ask: bool, as_json: bool
) -> None:
    """Let a worker of the service restore a table, once its plan was seen."""
    document = service.restore(table, to, dry_run=True)
    if not dry_run and not document["already"]:
        if ask:
            if not as_json:
                views.show_restored([document])
            confirm(f"Return {table} to {to}?", yes=False)
        document = service.restore(table, to, dry_run=False, expected=document["from_snapshot_id"])
    output.show([document], as_json, views.show_restored)
    leave(exit_code([document.get("state", "succeeded")]))


def _repair_by_service(
    service: RemoteBackend, table: str, *, drop_lost: bool, dry_run: bool, ask: bool, as_json: bool
) -> None:
    """Let a worker of the service repair a table, once its plan was seen."""
    planned = document = service.repair(table, drop_lost=drop_lost, dry_run=True)
    if not dry_run and planned["actions"]:
        if ask:
            if not as_json:
                _show_repaired(planned)
            confirm(f"Repair {table}?", yes=False)
        job = service.repair(table, drop_lost=drop_lost, dry_run=False, approved_rows=planned["lost_rows"])
        document = planned | {name: job[name] for name in ("dry_run", "job_id", "state", "summary")}
    output.show(document, as_json, _show_repaired)
    leave(1 if document["unrepaired"] or document.get("state", "succeeded") != "succeeded" else 0)


def _tables_of(opened: Application, namespace: str) -> list[TableRef]:
    """Return the tables of a namespace and of those below it. Raises `UsageError` when there is none."""
    catalog, *names = split_name(namespace) or ("",)
    (name,) = select_catalogs(opened, catalog)
    with output.waiting_for([name]):
        listed = [pointer.ref for pointer in opened.runtime.catalogs[name].pointers()]
    refs = sorted(ref for ref in listed if ref.namespace[: len(names)] == tuple(names))
    if not names or not refs:
        raise UsageError(f"--namespace {namespace}: there are no tables; write it as CATALOG.NAMESPACE")
    return [known_table(opened, str(ref)).ref for ref in refs]


def _show_points(document: Mapping[str, Any]) -> None:
    """Print the recovery points of a table, the newest first, and what stays in storage for them."""
    lines = [
        (point["name"], moment(point["time"]), point["snapshot_id"], point["rows"], size(point["bytes"]))
        for point in document["items"]
    ]
    if not lines:
        echo(f"{escape(document['table'])} has no recovery points")
        return
    columns = (Column("point"), Column("time (UTC)", rank=1), Column("snapshot"), Column("rows", right=True, rank=2))
    output.rows(f"Recovery points of {document['table']}", (*columns, Column("for it alone", right=True)), lines)
    money = document["money_per_month"]
    echo(
        f"{size(document['bytes'])} stay for all of them"
        + ("" if money is None else f": {decimal(money)} in money a month")
    )


def _show_repaired(document: Mapping[str, Any]) -> None:
    """Print what a repair does about each fault, and which faults stay and why."""
    echo(f"[bold]{escape(document['table'])}[/]  {escape(document['summary'])}")
    for action in document["actions"]:
        lost = f", {count(action['rows'], 'row')} of main" if action["kind"] == "drop" else ""
        echo(f"  [green]{action['kind']}[/] {escape(action['path'])}: {escape(action['detail'])}{lost}")
    for fault in document["unrepaired"]:
        echo(f"  [red]{fault['kind']}[/] {escape(fault['file'])} {escape(fault['path'])}: {escape(fault['reason'])}")
