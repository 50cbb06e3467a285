"""Moving old history out of the state store, as `icewright archive` does at once and each cycle at its end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from icewright.app import output
from icewright.core.errors import IcewrightError, UsageError
from icewright.flow.archive import archive_batches, archive_due
from icewright.ports.archive import SOURCES

if TYPE_CHECKING:
    from icewright.app.bootstrap import Application


def archive_history(app: Application, *, dry_run: bool) -> dict[str, Any]:
    """Move history that is old enough into the archive, or count it; return the rows by source."""
    archiving, section = app.archiving, app.config.archive
    if archiving is None or section is None:
        raise UsageError("there is no archive: write `archive: {catalog: NAME}` into the configuration")
    before = app.runtime.clock.now() - archiving.after
    rows: Counter[str] = Counter(archiving.history.waiting(before) if dry_run else {})
    for batch in () if dry_run else archive_batches(app.runtime, archiving, before):
        rows[batch.source] += batch.rows
    place = f"{section.catalog}.{section.namespace}"
    moved = {source: rows[source] for source in SOURCES}
    return {"dry_run": dry_run, "archive": place, "before": before, "rows": moved}


def archive_old_days(app: Application) -> bool:
    """Archive all days that are old enough; return False, with a message, when that failed. The next cycle retries."""
    if app.archiving is None:
        return True
    try:
        while archive_due(app.runtime, app.archiving):
            pass
    except IcewrightError as error:
        output.error(error)
        return False
    return True
