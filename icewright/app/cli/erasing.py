"""The command that erases rows from every place, and certifies that they are gone."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.base import (
    DryRun,
    Json,
    Table,
    Yes,
    app,
    confirm,
    known_table,
    leave,
    open_application,
    write_file,
)
from icewright.app.environment import erasure_key
from icewright.core.words import count


@app.command()
def erase(
    table: Table,
    where: Annotated[
        str, typer.Option("--where", metavar="PREDICATE", help="Which rows, such as: email = 'ann@example.org'")
    ],
    by: Annotated[
        datetime | None,
        typer.Option("--by", metavar="DATE", help="When they must be gone (UTC): exit code 0 if they will be."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", metavar="FILE", help="Write the proof that they are gone, signed by ICEWRIGHT_ERASURE_KEY."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove deleted rows from every file that still keeps them.

    Reads every file of the table: those of all snapshots, branches and tags, planned deletions and orphans. Runs the
    operations that remove the rows; what else keeps them is said. Exit code 1 while a file has matching rows.
    """
    from icewright.app.documents import erasure_document
    from icewright.flow.erase import certificate as certify
    from icewright.flow.erase import erase as erase_rows
    from icewright.flow.reconcile import reconcile_interrupted

    key = erasure_key() if certificate is not None else ""
    with open_application() as opened:
        ref = known_table(opened, table).ref
        ask = sys.stdin.isatty() and not (dry_run or yes)
        result = erase_rows(opened.runtime, ref, where, dry_run=True)
        if not dry_run and any(step.operation for step in result.steps):
            if ask:
                _show(erasure_document(result))
                confirm(f"Run these operations on {ref}?", yes=False)
            for line in reconcile_interrupted(opened.runtime):
                output.note(line)
            result = erase_rows(opened.runtime, ref, where)
    document = erasure_document(result)
    if as_json:
        output.print_json(document)
    else:
        _show(document)
    if certificate is not None and result.after.is_clean:
        text = json.dumps(certify(result, key.encode()), indent=1, ensure_ascii=False)
        write_file("--certificate", certificate, text + "\n")
    late = [step for step in result.steps if by is None or step.late(by.replace(tzinfo=by.tzinfo or UTC))]
    leave(1 if late or result.after.unread else 0)


def _show(document: dict[str, Any]) -> None:
    """Print where rows are still kept, what has to happen there, and what was not read."""
    output.echo(f"[bold]{output.escape(document['table'])}[/]  {output.escape(document['summary'])}")
    if document["job"]:
        output.echo(f"  job {document['job_id']}: {output.escape(document['job'])}")
    for step in document["steps"]:
        until = f", possible from {output.moment(step['until'])} UTC on" if step["until"] else ""
        what = f"{count(step['rows'], 'row')} in {count(step['files'], 'file')}"
        output.echo(f"  [bold]{step['place'].replace('_', ' ')}[/]: {what}: {output.escape(step['remedy'])}{until}")
    for path, reason in document["unread"].items():
        output.echo(f"  [red]not read[/] {output.escape(path)}: {output.escape(reason)}")
