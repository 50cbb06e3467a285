"""The command that says what to change in writers, in partitions and in the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.backend import backend, remote_backend
from icewright.app.cli.base import DryRun, Json, OptionalTable, app, known_table, leave_unless_read, open_application
from icewright.app.output import echo, escape, size
from icewright.core.errors import UsageError
from icewright.core.words import count


@app.command()
def advise(
    table: OptionalTable = None,
    filters: Annotated[
        Path | None,
        typer.Option(
            "--filters",
            metavar="FILE",
            help="Try layouts of the rows for these filters, one a line; # begins a comment.",
        ),
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Try layouts for the filters in scan reports of the last 30 days.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Let Spark try the best of them, on a branch of a sample of the files.")
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Where layout.apply allows it, set the layout that pays; take back the one that does not help.",
        ),
    ] = False,
    runs_per_day: Annotated[
        float | None,
        typer.Option(
            "--runs-per-day", metavar="N", min=0, help="How often all filters run; without it, by pushed scan events."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Say what no maintenance fixes: writers and partitions to change.

    Each line has what was seen, the remedy, and what comes of it. With `--filters`, say in which order of rows the
    queries of a table would read the fewest bytes, by a sample. No setting is changed but by `--apply`.
    """
    if ((dry_run or runs_per_day is not None) and not apply) or (measure and apply):
        raise UsageError("--dry-run and --runs-per-day go with --apply, which measures by itself, without --measure")
    layouts = recorded or filters is not None
    if ((apply or measure) and not layouts) or (layouts and table is None) or (recorded and filters is not None):
        raise UsageError("layouts: name a table, and either --filters FILE of its queries or --recorded")
    if table is None or not layouts:
        documents, errors = backend().explain(table, None)
        advised = [{"table": d["table"], "advice": d["advice"]} for d in documents if not d["error"]]
        output.show(advised, as_json, _show_advice)
        unread = [f"{d['table']}: {d['error']}" for d in documents if d["error"]]
        leave_unless_read(documents, [*errors, *unread])
        return
    texts = () if filters is None else _read_filters(filters)
    if (service := remote_backend()) is None:
        document = _try_here(table, texts, runs_per_day, measure=measure, apply=apply, dry_run=dry_run)
    elif apply:
        raise UsageError("--server: layouts are applied where Icewright is configured: leave out --apply or --server")
    else:
        document = service.layouts(table, texts, measure=measure)
    output.show(document, as_json, partial(_show_tried, dry_run=dry_run))


def _try_here(
    table: str, filters: Sequence[str], runs_per_day: float | None, *, measure: bool, apply: bool, dry_run: bool
) -> dict[str, Any]:
    """Try layouts in this process, for recorded filters where there are no others; return what came of it."""
    from icewright.flow.layout import apply_layout, measure_layouts, predict_layouts, recorded_filters

    with open_application() as opened:
        runtime, ref = opened.runtime, known_table(opened, table).ref
        if not filters:
            filters, known_runs = recorded_filters(runtime, ref)
            runs_per_day = known_runs if runs_per_day is None else runs_per_day
        if apply:
            report, decision = apply_layout(runtime, ref, filters, runs_per_day, dry_run=dry_run)
            return report.document | {"verdict": str(decision.verdict), "reason": decision.reason}
        report = predict_layouts(runtime, ref, filters)
        return (measure_layouts(runtime, report, filters) if measure else report).document


def _read_filters(path: Path) -> Sequence[str]:
    """Return the filters of a file, one a line. Raises `UsageError` where there are none."""
    try:
        lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--filters {path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    texts = [line for line in lines if line and not line.startswith("#")]
    if not texts:
        raise UsageError(f"--filters {path}: it has no filter")
    return texts


def _show_advice(documents: list[dict[str, Any]]) -> None:
    """Print the advice on each table that there is any for."""
    for document in documents:
        for advice in document["advice"]:
            about = f" ({escape(advice['writer'])})" if advice["writer"] else ""
            echo(f"[bold]{escape(document['table'])}[/]{about}: {escape(advice['finding'])}")
            echo(f"  remedy: {escape(advice['remedy'])}")
            echo(f"  effect: {escape(advice['effect'])}")
    if documents and not any(document["advice"] for document in documents):
        echo(f"no advice on {count(len(documents), 'table')}")


def _show_tried(document: dict[str, Any], *, dry_run: bool) -> None:
    """Print what the filters would read in each layout, the best first, the settings of the best, and the verdict."""
    filters, total = document["filters"], document["table_bytes"]
    sample = f"{count(filters, 'filter')} on {size(total)}, {document['sampled_rows']:,} rows sampled"
    echo(f"[bold]{escape(document['table'])}[/]: {sample}")
    lines = [
        (
            trial["layout"] or "as it is",
            size(trial["bytes_read"]),
            f"{trial['bytes_read'] / max(1, filters * total):.0%}",
            *(_measured(trial["measured"]) if document["measuring"] else ()),
        )
        for trial in sorted(document["trials"], key=itemgetter("bytes_read"))
    ]
    columns = (output.Column("rows"), output.Column("read by all filters"), "of reading all")
    measured = (output.Column("Spark read"), "took") if document["measuring"] else ()
    output.rows("Layouts", (*columns, *measured), lines)
    if document["measuring"]:
        echo(f"measured: {document['measuring']}")
    if document["settings"]:
        echo(f"set {escape(', '.join(f'{name}={value}' for name, value in document['settings'].items()))}")
        echo(f"the rewrite pays after {count(document['runs_to_pay'] or 0, 'run')} of all filters")
    else:
        echo("no layout is clearly better than the files as they are")
    if "verdict" in document:
        verb = document["verdict"].replace("_", " ")
        echo(f"[bold]{'would ' if dry_run else ''}{verb}[/]: {escape(document['reason'])}")


def _measured(measurement: dict[str, Any] | None) -> tuple[str, str]:
    return ("", "") if measurement is None else (size(measurement["bytes_read"]), f"{measurement['seconds']:.1f} s")
