"""The command that erases rows from every place, and certifies that they are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.backend import remote_backend
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
    reconcile,
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
    operations that remove the rows, once this is confirmed; what else keeps them is listed. Exit code 1 while a file
    has matching rows.
    """
    from icewright.core.erasure import ErasureStep

    ask = not (dry_run or yes)
    certify: Callable[[], Any]
    if (service := remote_backend()) is not None:
        document = service.erase(table, where, dry_run=True)
        if not dry_run and _is_confirmed(document, ask=ask, shown=not as_json):
            document = service.erase(table, where, dry_run=False)
        certify = partial(service.certificate, document["job_id"])
    else:
        document, certify = _erase_here(
            table, where, dry_run=dry_run, ask=ask, shown=not as_json, signed=certificate is not None
        )
    if not as_json:
        _show(document)
    if certificate is not None and (document["steps"] or document["unread"]):
        output.note(f"--certificate {certificate}: not written, as files have such rows or could not be read")
    elif certificate is not None:
        write_file("--certificate", certificate, json.dumps(certify(), indent=1, ensure_ascii=False) + "\n")
    if as_json:
        output.print_json(document)
    steps = map(ErasureStep.of, document["steps"])
    late = [step for step in steps if by is None or step.is_late(by.replace(tzinfo=by.tzinfo or UTC))]
    leave(1 if late or document["unread"] else 0)


def _erase_here(
    table: str, where: str, *, dry_run: bool, ask: bool, shown: bool, signed: bool
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Erase rows in this process; return what was found, ran and is left, and what makes the certificate."""
    from icewright.flow.erase import certificate, certified, erase

    key = erasure_key() if signed else ""
    with open_application() as opened:
        ref = known_table(opened, table).ref
        result = erase(opened.runtime, ref, where, dry_run=True)
        if not dry_run and _is_confirmed(result.document, ask=ask, shown=shown):
            reconcile(opened)
            result = erase(opened.runtime, ref, where)
    return result.document, lambda: certificate(certified(result), key.encode())


def _is_confirmed(document: dict[str, Any], *, ask: bool, shown: bool) -> bool:
    """Return whether there are operations to run, once a person has agreed to them, to whom they are shown."""
    if not any(step["operation"] for step in document["steps"]):
        return False
    if ask:
        if shown:
            _show(document)
        confirm(f"Run these operations on {document['table']}?", yes=False)
    return True


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
