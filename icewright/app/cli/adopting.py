"""The command `adopt`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.cli.base import Json, Table, app, known_table, leave, opened_application
from icewright.flow.adopt import adopt as adopt_place
from icewright.ports import Adoptable


@app.command()
def adopt(
    table: Table,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be adopted; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask no question.")] = False,
    as_json: Json = False,
) -> None:
    """Declare that what earlier tables and dead versions left in a table's places is its own, and may be deleted."""
    with opened_application() as opened:
        ref = known_table(opened, table).ref
        found = adopt_place(opened.runtime, ref, dry_run=True)
        if not as_json:
            _show(str(ref), found)
        asked = not dry_run and found.what and not yes
        if asked and not typer.confirm("Nobody else needs any of this, in any catalog?", err=True):
            leave(1)
        if not dry_run:
            adopt_place(opened.runtime, ref)
    if as_json:
        said = {"tables": found.tables, "files": found.files, "places": found.places}
        output.print_json({"table": str(ref), "dry_run": dry_run, **{name: list(what) for name, what in said.items()}})


def _show(table: str, found: Adoptable) -> None:
    if not found.what:
        output.OUT.print(f"nothing stands in the way of {escape(table)}")
        return
    kinds = {"an earlier table": found.tables, "a dead version": found.files, "a place": found.places}
    lines = [(kind, one) for kind, several in kinds.items() for one in several]
    output.rows(f"what {table} takes over", ("what", "uuid, file or folder"), lines)
