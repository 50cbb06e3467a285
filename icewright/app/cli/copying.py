"""The commands that copy tables to other places, and that register tables from their files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.backend import remote_backend
from icewright.app.cli.base import DryRun, Json, Table, Yes, app, confirm, known_table, open_application
from icewright.core.words import count

if TYPE_CHECKING:
    from icewright.flow.runtime import Runtime


@app.command()
def copy(
    table: Table,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="An empty folder, or one with an earlier copy.")],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy a table, with all its snapshots, to another place.

    Copies what the place lacks, and checks the copy. Its metadata file is written last: any catalog can register it.
    """
    from icewright.flow.copy import copy_table

    if (service := remote_backend()) is not None:
        document = service.copy(table, to, dry_run=dry_run)
    else:
        with open_application() as opened:
            document = copy_table(opened.runtime, known_table(opened, table).ref, to, dry_run=dry_run).document
    output.show(document, as_json, show_copied)


@app.command()
def register(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A table's folder, or one of its metadata files.")],
    name: Annotated[str, typer.Option("--as", metavar="TABLE", help="catalog.namespace.table")],
    replace_lost: Annotated[
        bool,
        typer.Option("--replace-lost", help="Let a table whose metadata file is lost go on with the newest one left."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Register a table from its files alone, by its newest metadata file.

    Refuses where it is not certain which file is the newest, a file of the current snapshot is at fault, or a catalog
    names the table already. On a terminal the command asks for confirmation first.
    """
    ask = sys.stdin.isatty() and not (dry_run or yes)
    with ExitStack() as stack:
        if (service := remote_backend()) is not None:
            register_table: Callable[..., dict[str, Any]] = partial(service.register, name)
        else:
            register_table = partial(_register_here, stack.enter_context(open_application()).runtime, name)
        document = register_table(place, dry_run=dry_run or ask, replace_lost=replace_lost)
        if ask:
            if not as_json:
                _show_registered(document)
            confirm(f"Register {name}?", yes=False)
            document = register_table(document["metadata_location"], dry_run=False, replace_lost=replace_lost)
    output.show(document, as_json, _show_registered)


def _register_here(runtime: Runtime, name: str, place: str, *, dry_run: bool, replace_lost: bool) -> dict[str, Any]:
    """Register a table in this process; return the document of what was registered, or would be."""
    from icewright.core.table import TableRef
    from icewright.flow.register import register as register_table

    result = register_table(runtime, TableRef.parse(name), place, dry_run=dry_run, replace_lost=replace_lost)
    return result.document


def _show_registered(document: dict[str, Any]) -> None:
    """Print from which file a table was registered, and what is not in it."""
    verb = "would be registered" if document["dry_run"] else "registered"
    found = f"{count(document['snapshots'], 'snapshot')}, {count(document['files'], 'file')} checked"
    output.echo(f"[bold]{output.escape(document['table'])}[/]  {verb}: {found}")
    output.echo(f"  {output.escape(document['metadata_location'])}")
    if document["replaced"]:
        output.echo(f"  in place of {output.escape(document['replaced'])}, which is lost")
    for note in document["notes"]:
        output.echo(f"  {output.escape(note)}")


def show_copied(document: dict[str, Any]) -> None:
    """Print what was copied, and what a catalog can register."""
    output.echo(f"[bold]{output.escape(document['table'])}[/]  {output.escape(document['summary'])}")
    will = "will be" if document["dry_run"] else "is"
    output.echo(f"  the copy's metadata file {will} {output.escape(document['metadata_location'])}")
