"""The command about alerts: list them, or test who is told."""

from __future__ import annotations

from typing import Annotated

import typer

from icewright.app import output
from icewright.app.bootstrap import Application
from icewright.app.cli.base import Json, app, leave, opened_application
from icewright.core.alerts import Severity
from icewright.core.errors import ChannelUnavailable, UsageError


@app.command()
def alerts(
    every: Annotated[bool, typer.Option("--all", help="Those too that are over.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many alerts.")] = 1000,
    test: Annotated[bool, typer.Option("--test", help="Send a test message to each channel.")] = False,
    as_json: Json = False,
) -> None:
    """What is wrong now, newest first, and who was told; with --test, whether each channel takes messages."""
    with opened_application() as opened:
        if test:
            said = _test(opened)
        else:
            found = opened.runtime.store.alerts.list(resolved=every, limit=limit)
    if test:
        if as_json:
            output.print_json({"channels": [{"channel": n, "ok": not error, "error": error} for n, error in said]})
        else:
            output.rows("Channels", ("channel", "result"), [(n, error or "took the message") for n, error in said])
        leave(1 if any(error for _, error in said) else 0)
    elif as_json:
        output.print_json({"alerts": [output.alert_document(alert) for alert in found]})
    else:
        columns = ("severity", "rule", "about", "raised (UTC)", "told", "message")
        lines = []
        for alert in found:
            over = " (over)" if alert.resolved_at else ""
            told = ", ".join(sorted({t.channel for t in alert.tellings if not t.resolved and t.told_at})) or None
            at = f"{alert.raised_at:%Y-%m-%d %H:%M}{over}"
            lines.append((alert.severity, alert.rule, alert.subject, at, told, alert.message))
        output.rows("Alerts", columns, lines)


def _test(opened: Application) -> list[tuple[str, str | None]]:
    """Return each channel with what went wrong, None where nothing did."""
    channels = opened.alerting.channels
    if not channels:
        raise UsageError("no channel is configured: name Apprise URLs under alerts.channels, as ${env:NAME}")
    body = "This channel is told of Icewright's alerts. Nothing is wrong."
    said: list[tuple[str, str | None]] = []
    for name, channel in channels.items():
        try:
            channel.send("[test] Icewright", body, Severity.INFO)
        except ChannelUnavailable as error:
            said.append((name, str(error)))
        else:
            said.append((name, None))
    return said
