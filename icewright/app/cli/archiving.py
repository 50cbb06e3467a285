"""The command that moves old history out of the store."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.bootstrap import Application
from icewright.app.cli.base import Json, app, opened_application
from icewright.core.errors import IcewrightError, UsageError
from icewright.flow.archive import archive_batches, archive_due
from icewright.ports.archive import SOURCES


@app.command()
def archive(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go; move nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Move history that is old enough into the archive's Iceberg tables, and out of the store."""
    with output.progress() as tell, opened_application(tell=tell) as opened:
        archiving, said = opened.archiving, opened.config.archive
        if archiving is None or said is None:
            raise UsageError("there is no archive: write `archive: {catalog: NAME}` into the configuration")
        before = opened.runtime.clock.now() - archiving.after
        rows: Counter[str] = Counter(archiving.history.waiting(before) if dry_run else {})
        for batch in () if dry_run else archive_batches(opened.runtime, archiving, before):
            rows[batch.source] += batch.rows
    place = f"{said.catalog}.{said.namespace}"
    moved = {source: rows[source] for source in SOURCES}
    if as_json:
        output.print_json({"dry_run": dry_run, "archive": place, "before": before, "rows": moved})
        return
    would = "would go" if dry_run else "went"
    output.rows(
        f"History before {before:%Y-%m-%d %H:%M} UTC",
        ("table", f"rows that {would}"),
        [(f"{place}.{source}", count) for source, count in moved.items()],
    )


def archive_days(opened: Application) -> bool:
    """At the end of a pass: all days that are old enough. What goes wrong is told, and tried again by the next pass."""
    if opened.archiving is None:
        return True
    try:
        while archive_due(opened.runtime, opened.archiving):
            pass
    except IcewrightError as error:
        output.ERR.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        return False
    return True
