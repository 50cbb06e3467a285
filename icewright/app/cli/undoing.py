"""Commands about deletions that wait: undo, deletions, give-up."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from icewright.app import output, undoing
from icewright.app.cli import remote
from icewright.app.cli.base import CatalogOption, Json, app, chosen_catalogs, leave, opened_application
from icewright.app.cli.shown import show_undo, show_waiting
from icewright.core.errors import UsageError
from icewright.core.table import TableRef
from icewright.flow.reconcile import end_interrupted
from icewright.flow.undo import give_up as give_up_deletions
from icewright.flow.undo import undo as undo_job
from icewright.flow.undoable import ended_job
from icewright.ports import WaitingDeletions

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job id, or a unique prefix of one.")]


@app.command()
def undo(
    job: Job,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would come back; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Take a job back: its expired snapshots and refs return, and its planned deletions are dropped."""
    if to := remote.client():
        with to:
            document = to.undo(job, dry_run=dry_run)
    else:
        with opened_application() as opened:
            for line in [] if dry_run else end_interrupted(opened.runtime):
                output.ERR.print(escape(line))
            document = undoing.undo_document(undo_job(opened.runtime, job, dry_run=dry_run))
    if as_json:
        output.print_json(document)
    else:
        show_undo(document)


@app.command()
def deletions(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table, else all.")] = None,
    catalog: CatalogOption = None,
    as_json: Json = False,
) -> None:
    """Files that are still to be deleted: of which job, until when they wait, and why those that failed did."""
    if to := remote.client():
        with to:
            items = list(to.deletions(table=table, catalog=catalog))
    else:
        with opened_application() as opened:
            items = [undoing.waiting_document(waiting) for waiting in _waiting(opened, table, catalog)]
    document = {"deletions": items, "files": sum(i["files"] for i in items), "bytes": sum(i["bytes"] for i in items)}
    if as_json:
        output.print_json(document)
        return
    show_waiting(items)
    if items:
        output.OUT.print(f"{document['files']} file(s) wait, which take {output.size(document['bytes'])}")


def _waiting(opened: Any, table: str | None, catalog: str | None) -> list[WaitingDeletions]:  # noqa: ANN401
    chosen, store = chosen_catalogs(opened, catalog), opened.runtime.store
    ref = None if table is None else TableRef.parse(table)
    if ref is not None and store.tables.get(ref) is None:
        raise UsageError(f"{ref}: the state store knows no such table; `icewright tables` lists them")
    return [waiting for waiting in store.ledger.pending(ref) if catalog is None or waiting.ref.catalog in chosen]


@app.command("give-up")
def give_up(
    job: Job, yes: Annotated[bool, typer.Option("--yes", help="Ask no question.")] = False, as_json: Json = False
) -> None:
    """Leave the files of a job that wait to be deleted where they are, for good."""
    if not yes and not typer.confirm("Nobody deletes these files any more, unless they are orphans; go on?", err=True):
        leave(1)
    if to := remote.client():
        with to:
            document = to.give_up(job)
    else:
        with opened_application() as opened:
            found = ended_job(opened.runtime, job)
            left = give_up_deletions(opened.runtime, found.job_id)
            document = {"job_id": found.job_id, "table": str(found.ref), "files": left}
    if as_json:
        output.print_json(document)
        return
    output.OUT.print(f"{document['files']} file(s) of job {document['job_id']} stay where they are")
