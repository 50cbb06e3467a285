"""Commands that look: tables, health, explain, plan, history, show, alerts, deletions, pins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli import verdict_views, views
from icewright.app.cli.backend import JobFilter, TableFilter, backend
from icewright.app.cli.base import (
    CatalogOption,
    Job,
    Json,
    OptionalTable,
    Table,
    app,
    known_table,
    leave,
    leave_unless_read,
    open_application,
    parse_operations,
    select_catalogs,
)
from icewright.app.cli.completing import complete_operation, complete_table
from icewright.core.errors import CatalogUnavailable, IcewrightError, PackagesMissing, UsageError
from icewright.core.integrity import CheckLevel
from icewright.core.selection import is_pattern
from icewright.core.words import count

if TYPE_CHECKING:
    from icewright.app.bootstrap import Application
    from icewright.core.policy import Operation
    from icewright.core.table import TableRef
    from icewright.flow.runtime import Runtime


def _not_blank(namespace: str | None) -> str | None:
    """Return the namespace. Raises `UsageError` for a blank one, as of a variable that is not set."""
    if namespace is not None and not namespace.strip():
        raise UsageError("--namespace: name a namespace, or leave the option out for all of them")
    return namespace


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAMESPACE",
        help="Only tables of this namespace, such as sales.",
        callback=_not_blank,
    ),
]
States = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help="Only this state; may be given several times.")
]
OneOperation = Annotated[
    str | None,
    typer.Option(
        "--operation",
        "--op",
        metavar="OP",
        help="Only this operation, such as compact.",
        autocompletion=complete_operation,
    ),
]


def _operation(name: str | None) -> Operation | None:
    operations = parse_operations("--operation", None if name is None else [name])
    return operations[0] if operations else None


@app.command()
def tables(
    catalog: CatalogOption = None,
    namespace: Namespace = None,
    state: States = None,
    operation: OneOperation = None,
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="COLUMN", help="name, health (worst first), files, bytes, succeeded_at, ..."),
    ] = "name",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many tables.")] = None,
    as_json: Json = False,
) -> None:
    """List tables with health, state and due operations.

    Exit code 3 when a catalog cannot be read, or 1 when none can.
    """
    criteria = TableFilter(catalog, namespace, state or (), _operation(operation), sort, limit)
    document, listed = backend().tables(criteria)
    if as_json:
        output.print_json(document)
    else:
        views.show_tables(document["tables"])
        for failure in document["errors"]:
            source, error = failure["source"], failure["error"]
            output.error(f"{source}: {error.removeprefix(f'catalog {source}: ')}")
    if document["errors"]:
        leave(3 if listed else 1)


@app.command()
def health(table: Table, as_json: Json = False) -> None:
    """Evaluate one table now: health, facts and verdicts."""
    from icewright.core.describe import evaluation_document
    from icewright.flow.evaluate import evaluate_now
    from icewright.flow.scopes import maintained

    with open_application() as opened:
        row = known_table(opened, table)
        evaluation = evaluate_now(opened.runtime, row.ref)
        maintenance = maintained(opened.runtime, row, evaluation.facts.metadata)
    states = {operation: asdict(state) for operation, state in maintenance.items()}
    document = {**evaluation_document(evaluation), "maintenance": states}
    output.show(document, as_json, views.show_health)


@app.command()
def explain(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="A table, or a pattern such as 'lake.sales.*'. Default: all tables.",
            autocompletion=complete_table,
        ),
    ] = None,
    namespace: Namespace = None,
    everything: Annotated[bool, typer.Option("--all", help="Of many tables, also what is not due.")] = False,
    as_json: Json = False,
) -> None:
    """Explain for each operation whether it is due, and why.

    Without the name of one table, tables and operations that are not due are only counted. Exit code 1 when the table
    cannot be read, or 3 when one of several tables or catalogs cannot.
    """
    documents, errors = backend().explain(table, namespace)
    names_a_table = table is not None and not is_pattern(table)
    whole = everything or names_a_table
    listed = [document for document in documents if whole or _stands_out(document)]
    if as_json:
        output.print_json(documents[0] if names_a_table and documents else documents)
    else:
        if names_a_table:
            for document in listed:
                verdict_views.show_explained(document)
        elif listed:
            verdict_views.show_fleet(listed, everything=everything)
        if hidden := len(documents) - len(listed):
            output.echo(f"Nothing is due on {hidden} of {count(len(documents), 'table')}; --all lists every verdict")
    leave_unless_read(documents, errors)


def _stands_out(document: Mapping[str, Any]) -> bool:
    """Return whether a table is paused or unreadable, ignores a property, or has a verdict other than not due."""
    notes = (document["paused"], document["error"], document.get("ignored_properties"))
    return any(notes) or any(verdict["verdict"] != "not_due" for verdict in document["verdicts"])


@app.command()
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE|CATALOG", help="Default: all tables of all catalogs.", autocompletion=complete_table
        ),
    ] = None,
    level: Annotated[
        CheckLevel,
        typer.Option(
            help="exists: files and their lengths; entries: manifests too; footers: those of content files too; "
            "rows: all rows, on Spark where there are more than 10 GB."
        ),
    ] = CheckLevel.EXISTS,
    as_json: Json = False,
) -> None:
    """Check that every file of all snapshots exists and is what its entry says.

    Nothing is changed. Exit code 1 when a file is at fault, or a table or catalog cannot be read.
    """
    errors: list[str] = []
    with open_application() as opened:
        runtime = opened.runtime
        if name is not None and "." in name:
            refs = [known_table(opened, name).ref]
        else:
            refs = []
            for catalog in select_catalogs(opened, name):
                try:
                    with output.waiting_for([catalog]):
                        refs += [pointer.ref for pointer in runtime.catalogs[catalog].pointers()]
                except CatalogUnavailable as error:  # hides no fault in another
                    errors.append(str(error))
        documents = [_check_table(runtime, ref, level) for ref in sorted(refs)]
    output.show(documents, as_json, views.show_integrity)
    if not documents and not errors:
        output.note("no table was found to check")
    for fault in errors:
        output.error(fault)
    leave(1 if errors or any(document["faults"] or document["error"] for document in documents) else 0)


def _check_table(runtime: Runtime, ref: TableRef, level: CheckLevel) -> dict[str, Any]:
    """Return what a check finds; a table that cannot be read hides no fault of another."""
    try:
        found = {**asdict(runtime.engine.check(ref, level)), "error": None}
    except PackagesMissing:
        raise
    except IcewrightError as error:
        return {
            "table": str(ref),
            "level": level,
            "snapshots": 0,
            "files": 0,
            "faults": [],
            "unread": {},
            "error": str(error),
        }
    del found["ref"]
    return {"table": str(ref), **found}


@app.command()
def plan(
    catalog: CatalogOption = None,
    namespace: Namespace = None,
    operation: OneOperation = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many lines of each list.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which jobs would start now, and what would wait.

    Changed tables are evaluated; no table is changed. Exit code 3 when a catalog cannot be read, or 1 when none can.
    """
    only = _operation(operation)
    document = backend().plan(catalog)
    if namespace is not None:
        for part in ("jobs", "deferred"):
            document[part] = [d for d in document[part] if _namespace(d["table"]) == namespace]
        if not document["jobs"] and not document["deferred"]:
            backend().tables(TableFilter(catalog, namespace, limit=1))  # raises where no table is in the namespace
    if only is not None:
        document["jobs"] = [job for job in document["jobs"] if only in job["operations"]]
        document["deferred"] = [d for d in document["deferred"] if d["operation"] == only]
    document |= {part: document[part][:limit] for part in ("jobs", "deferred")}
    output.show(document, as_json, views.show_plan)
    if document.get("errors"):  # a service has its own alert for them
        leave(3 if document["tables"] else 1)


def _namespace(table: str) -> str:
    from icewright.core.table import TableRef

    return ".".join(TableRef.parse(table).namespace)


@app.command()
def history(
    table: OptionalTable = None,
    state: States = None,
    operation: OneOperation = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE|TIME", help="Such as 24h, 7d or 2026-11-24 (UTC).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most this many jobs.")] = 50,
    as_json: Json = False,
) -> None:
    """List past and running jobs, newest first."""
    from icewright.core.runs import JobState

    if unknown := [name for name in state or () if name not in list(JobState)]:
        raise UsageError(f"--state {unknown[0]}: there is no such state; there is: {', '.join(JobState)}")
    jobs = backend().history(JobFilter(table, state or (), _operation(operation), since, limit))
    if as_json:
        output.print_json({"jobs": jobs})
    else:
        views.show_jobs(jobs)
        if len(jobs) == limit:
            output.note(f"the newest {count(limit, 'job')}; --limit shows more")


@app.command()
def show(
    job: Job,
    files: Annotated[bool, typer.Option("--files", help="List every file and expired snapshot, however many.")] = False,
    as_json: Json = False,
) -> None:
    """Show one job: operations, metrics, changes, log and files."""
    document = backend().show(job)
    output.show(document, as_json, views.show_job_detail, files=files)


@app.command()
def alerts(
    resolved: Annotated[bool, typer.Option("--all", help="List resolved alerts too.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000_000, help="At most this many alerts.")
    ] = 1000,
    test: Annotated[bool, typer.Option("--test", help="Send a test message to each channel.")] = False,
    as_json: Json = False,
) -> None:
    """List open alerts, newest first, or test the channels."""
    from icewright.app.documents import alert_document
    from icewright.ports import AlertQuery

    with open_application() as opened:
        if test:
            results = _test_channels(opened)
        else:
            query = AlertQuery(resolved=None if resolved else False)
            alerts = [alert_document(a) for a in opened.runtime.store.alerts.list(query, limit)]
    if not test:
        if as_json:
            output.print_json({"alerts": alerts})
        else:
            views.show_alerts(alerts)
            if len(alerts) == limit:
                output.note(f"the newest {count(limit, 'alert')}; --limit shows more")
        return
    if as_json:
        output.print_json({"channels": [{"channel": n, "ok": not error, "error": error} for n, error in results]})
    else:
        lines = [(name, error or "took the message") for name, error in results]
        output.rows("Channels", (output.Column("channel"), "result"), lines)
    leave(1 if any(error for _, error in results) else 0)


def _test_channels(opened: Application) -> list[tuple[str, str | None]]:
    """Send a test message to each channel; return the error by channel, None where delivery succeeded."""
    from icewright.core.alerts import Severity
    from icewright.core.errors import ChannelUnavailable

    channels = opened.alerting.channels
    if not channels:
        raise UsageError("no channel is configured: name Apprise URLs under alerts.channels, as ${env:NAME}")
    results: list[tuple[str, str | None]] = []
    for name, channel in channels.items():
        try:
            channel.send(
                "[test] Icewright", "This channel receives Icewright's alerts. Nothing is wrong.", Severity.INFO
            )
        except ChannelUnavailable as error:
            results.append((name, str(error)))
        else:
            results.append((name, None))
    return results


@app.command()
def deletions(table: OptionalTable = None, catalog: CatalogOption = None, as_json: Json = False) -> None:
    """List files that wait to be deleted, by job.

    Each line says until when they wait, and why a deletion failed.
    """
    items = backend().deletions(table, catalog)
    document: dict[str, Any] = {
        "deletions": items,
        "files": sum(item["files"] for item in items),
        "bytes": sum(item["bytes"] for item in items),
    }
    if as_json:
        output.print_json(document)
        return
    views.show_waiting(items)
    if items:
        output.echo(f"{count(document['files'], 'file')} waiting, {output.size(document['bytes'])}")


@app.command()
def pins(table: Table, as_json: Json = False) -> None:
    """List the readers that keep snapshots of a table."""
    with open_application() as opened:
        row = known_table(opened, table)
        metadata = opened.runtime.catalog(row.ref).load(row.ref)
        pins = opened.runtime.store.pins.list(row.ref, metadata.table_uuid)
        now = opened.runtime.clock.now()
    if as_json:
        fields = ("reader", "snapshot_id", "pinned_at", "until", "author")
        output.print_json([{f: getattr(pin, f) for f in fields} | {"aged_out": pin.until <= now} for pin in pins])
        return
    lines = [(p.reader, p.snapshot_id, p.until, p.author, "aged out" if p.until <= now else "") for p in pins]
    columns = ("reader", output.Column("snapshot"), output.Column("until (UTC)"), output.Column("author", rank=1), "")
    output.rows(f"Pins of {row.ref}", columns, lines)
