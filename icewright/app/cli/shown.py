"""How commands show what expired, what waits to be deleted, and what an undo brought back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.markup import escape

from icewright.app import output

_COLUMNS = ("job", "table", "operation", "files", "size", "until (UTC)", "failed", "why")
_Documents = Sequence[Mapping[str, Any]]


def show_undo(document: Mapping[str, Any]) -> None:
    """What an undo brought back, or would bring back."""
    output.OUT.print(f"[bold]{escape(document['table'])}[/]  {escape(document['summary'])}")
    for text in document["not_restored"]:
        output.OUT.print(f"[yellow]does not return:[/] {escape(text)}")
    for text in document["notes"]:
        output.OUT.print(f"  {escape(text)}")
    if document["snapshots"]:
        lines = [(s["snapshot_id"], _moment(s["at"]), s["operation"]) for s in document["snapshots"]]
        output.rows("Snapshots", ("snapshot", "time (UTC)", "operation"), lines)
    if document["refs"]:
        output.OUT.print(f"Refs: {escape(', '.join(document['refs']))}")
    if document["files"]:
        output.OUT.print(f"Files that are not deleted: {document['files']} ({output.size(document['bytes'])})")


def show_removed(removed: _Documents, waiting: _Documents) -> None:
    """What the expiry of a job removed, and what still waits to be deleted."""
    for removal in removed:
        undone = f", undone at {_moment(removal['undone_at'])}" if removal["undone_at"] else ""
        title = f"Expired at {_moment(removal['at'])}{undone}"
        lines = [
            (s["snapshot_id"], _moment(s["at"]), s["operation"], output.details(s["summary"]))
            for s in removal["snapshots"]
        ]
        output.rows(title, ("snapshot", "time (UTC)", "operation", "summary"), lines)
        for ref in removal["refs"]:
            output.OUT.print(f"  {ref['type']} {escape(ref['name'])} led to snapshot {ref['snapshot_id']}")
    if waiting:
        show_waiting(waiting)


def show_waiting(items: _Documents) -> None:
    """Print the deletions that wait, job by job."""
    lines = [
        (
            i["job_id"],
            i["table"],
            ", ".join(i["operations"]),
            i["files"],
            output.size(i["bytes"]),
            _moment(i["delete_after"]) if i["delete_after"] else "the next settling",
            i["failed"] or None,
            i["reason"] or None,
        )
        for i in items
    ]
    output.rows("Deletions that wait", _COLUMNS, lines)


def _moment(at: datetime | str | None) -> str:
    """Return a time to the second."""
    found = datetime.fromisoformat(at) if isinstance(at, str) else at
    return "-" if found is None else f"{found:%Y-%m-%d %H:%M:%S}"
