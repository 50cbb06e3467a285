"""The command that copies tables to other places."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.base import DryRun, Json, Table, app, known_table, open_application


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

    with open_application() as opened:
        result = copy_table(opened.runtime, known_table(opened, table).ref, to, dry_run=dry_run)
    document = {**asdict(result), "ref": str(result.ref), "summary": result.summary}
    output.show({"table": document.pop("ref"), **document}, as_json, _show)


def _show(document: dict[str, Any]) -> None:
    """Print what was copied, and what a catalog can register."""
    output.echo(f"[bold]{output.escape(document['table'])}[/]  {output.escape(document['summary'])}")
    will = "will be" if document["dry_run"] else "is"
    output.echo(f"  the copy's metadata file {will} {output.escape(document['metadata_location'])}")
