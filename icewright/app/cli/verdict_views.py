"""Verdicts as people read them: of one table, or of many in one list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icewright.app.output import Column, cost, echo, escape, moment, rows

Documents = Sequence[Mapping[str, Any]]


def show_explained(document: Mapping[str, Any]) -> None:
    """Print the verdicts of a table, or why it cannot be read."""
    paused = f"  [yellow]paused: {escape(document['paused'])}[/]" if document["paused"] else ""
    echo(f"[bold]{escape(document['table'])}[/]{paused}")
    if document["error"]:
        echo(f"[red]{escape(document['error'])}[/]")
        return
    show_verdicts(document["verdicts"])
    if document.get("goes_first_from") is not None:
        due, first = moment(document["due_since"]), moment(document["goes_first_from"])
        echo(f"due since {due}; goes before all others from {first} (limits.max_wait_hours)")
    show_ignored(document.get("ignored_properties", []))


def show_fleet(documents: Documents, *, everything: bool) -> None:
    """Print the verdicts of many tables in one list, of those that are not due only on demand."""
    columns = (
        Column("table"),
        Column("operation"),
        Column("verdict"),
        Column("GB-hours", right=True, rank=1),
        "reason",
    )
    rows("Verdicts", columns, [line for document in documents for line in _of_fleet(document, everything=everything)])


def _of_fleet(document: Mapping[str, Any], *, everything: bool) -> Iterator[tuple[object, ...]]:
    """Yield the lines of one table, the first with its name."""
    name: object = document["table"]
    ignored = [f"{e['property']} = {e['value']!r}: {e['reason']}" for e in document.get("ignored_properties", [])]
    states = {"unreadable": [document["error"]], "paused": [document["paused"]], "ignored": ignored}
    lines = [("", state, "", text) for state, texts in states.items() for text in texts if text]
    lines += [_verdict_line(v) for v in document["verdicts"] if everything or v["verdict"] != "not_due"]
    for line in lines:
        yield (name, *line)
        name = ""


def show_verdicts(verdicts: Documents) -> None:
    """Print the verdict of each operation with its reason and notes."""
    columns = (Column("operation"), Column("verdict"), Column("GB-hours", right=True), "reason")
    rows("Verdicts", columns, [_verdict_line(verdict) for verdict in verdicts])


def _verdict_line(verdict: Mapping[str, Any]) -> tuple[str, str, str, str]:
    reason = "; ".join([verdict["reason"], *verdict.get("notes", [])])
    return verdict["operation"], verdict["verdict"], cost(verdict), reason


def show_ignored(properties: Documents) -> None:
    """Print the ignored properties of a table, and the policy that would allow each."""
    if properties:
        lines = [(f"{entry['property']} = {entry['value']!r}", entry["reason"]) for entry in properties]
        rows("Ignored table properties", ("property", "why"), lines)
