"""The command `vacuum`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.cli.base import Json, app, chosen_catalogs, leave, opened_application
from icewright.core.runs import JobState
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.vacuum import VacuumResult
from icewright.flow.vacuum import vacuum as vacuum_catalog


@app.command()
def vacuum(
    catalog: Annotated[str, typer.Argument(metavar="CATALOG")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Expire old snapshots of all tables of a catalog, and delete the files that nothing needs any more."""
    with output.progress() as tell, opened_application(tell=tell) as opened:
        chosen_catalogs(opened, catalog)
        for line in [] if dry_run else reconcile_interrupted(opened.runtime):
            output.ERR.print(escape(line))
        result = vacuum_catalog(opened.runtime, catalog, dry_run=dry_run)
    if as_json:
        output.print_json(output.vacuum_document(result))
    else:
        _show(result)
    leave(1 if result.state is JobState.FAILED else 3 if result.state is JobState.PARTIAL else 0)


def _show(result: VacuumResult) -> None:
    said = {"deleted_files_count": result.files, "deleted_files_total_size_mb": result.megabytes}
    output.rows(f"vacuum {escape(result.catalog)}", list(said), [list(said.values())])
    output.rows("metrics", ["metric", "value"], list(asdict(result.counts).items()))
    output.rows("tables", ["table", "state", "summary"], [[j.ref, j.state, j.summary] for j in result.jobs])
    for line in [result.reason, *(f"{subject}: {error}" for subject, error in result.errors)]:
        if line:
            output.OUT.print(escape(line))
