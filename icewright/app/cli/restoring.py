"""The commands that return tables to an earlier state, and that repair them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from icewright.app import output
from icewright.app.cli import views
from icewright.app.cli.base import (
    DryRun,
    Json,
    Table,
    Yes,
    app,
    complete_table,
    confirm,
    known_table,
    leave,
    open_application,
    select_catalogs,
)
from icewright.app.cli.copying import show_copied
from icewright.core.errors import UsageError
from icewright.core.table import TableRef, split_name
from icewright.core.words import count

if TYPE_CHECKING:  # it loads every library
    from icewright.app.bootstrap import Application


@app.command()
def restore(
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="STATE", help="A recovery point, a time (in UTC), a snapshot id, a tag or a branch."
        ),
    ],
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="catalog.namespace.table", autocompletion=complete_table)
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
    from icewright.app.documents import copy_document, restore_document
    from icewright.flow.copy import restore_beside
    from icewright.flow.reconcile import reconcile_interrupted
    from icewright.flow.restore import carry_out
    from icewright.flow.restore import restore as restore_tables

    if (table is None) == (namespace is None) or (name is not None and table is None):
        raise UsageError("restore either one table, or all tables of a namespace by --namespace CATALOG.NAMESPACE")
    if name is not None and table is not None:
        with open_application() as opened:
            ref = known_table(opened, table).ref
            result = restore_beside(opened.runtime, ref, to, TableRef.parse(name), dry_run=dry_run)
        output.show(copy_document(result), as_json, show_copied)
        return
    with open_application() as opened:
        refs = [known_table(opened, table).ref] if table is not None else _tables_of(opened, namespace or "")
        if not dry_run:
            for line in reconcile_interrupted(opened.runtime):
                output.note(line)
        ask = sys.stdin.isatty() and not (dry_run or yes)
        results = restore_tables(opened.runtime, refs, to, dry_run=dry_run or ask)
        if ask:
            views.show_restored([restore_document(result) for result in results])
            confirm(f"Return {count(len(refs), 'table')} to {to}?", yes=False)
            results = carry_out(opened.runtime, [result.plan for result in results])
    documents = [restore_document(result) for result in results]
    output.show(documents, as_json, views.show_restored)


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
    terminal the command asks for confirmation first. Exit code 1 when faults stay.
    """
    from icewright.app.documents import repair_document
    from icewright.flow.reconcile import reconcile_interrupted
    from icewright.flow.repair import repair as repair_table

    with open_application() as opened:
        ref = known_table(opened, table).ref
        if not dry_run:
            for line in reconcile_interrupted(opened.runtime):
                output.note(line)
        ask = sys.stdin.isatty() and not (dry_run or yes)
        result = repair_table(opened.runtime, ref, drop_lost=drop_lost, dry_run=dry_run or ask)
        if ask and result.plan.actions:
            views.show_repaired(repair_document(result))
            confirm(f"Repair {ref}?", yes=False)
            approved = result.plan.lost_rows
            result = repair_table(opened.runtime, ref, drop_lost=drop_lost, approved_rows=approved)
    document = repair_document(result)
    output.show(document, as_json, views.show_repaired)
    leave(1 if result.plan.unrepaired else 0)


def _tables_of(opened: Application, namespace: str) -> list[TableRef]:
    """Return the tables of a namespace and of those below it. Raises `UsageError` when there is none."""
    catalog, *names = split_name(namespace) or ("",)
    (name,) = select_catalogs(opened, catalog)
    listed = (pointer.ref for pointer in opened.runtime.catalogs[name].pointers())
    refs = sorted(ref for ref in listed if ref.namespace[: len(names)] == tuple(names))
    if not names or not refs:
        raise UsageError(f"--namespace {namespace}: there are no tables; write it as CATALOG.NAMESPACE")
    return [known_table(opened, str(ref)).ref for ref in refs]
