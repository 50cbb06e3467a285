"""The command line. Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 partial."""

from __future__ import annotations

import sys
from functools import cache

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.cli import (
    acting,
    adopting,
    agents,
    alerting,
    archiving,
    pinning,
    reading,
    serving,
    settings,
    simulating,
    tokens,
    vacuuming,
)
from icewright.app.cli.base import app
from icewright.core.errors import ConfigError, IcewrightError, UsageError

__all__ = [
    "acting",
    "adopting",
    "agents",
    "alerting",
    "app",
    "archiving",
    "main",
    "pinning",
    "reading",
    "serving",
    "settings",
    "simulating",
    "tokens",
    "vacuuming",
]


# Working out the parameters of every command takes as long as a short command does; a process needs it once.
_command = cache(typer.main.get_command)


def main() -> None:
    """Entry point: errors of ours become one readable message and an exit code."""
    try:
        _command(app)(standalone_mode=True)
    except ConfigError as error:
        for fault in error.faults:
            output.ERR.print(f"[red]{escape(fault)}[/]", soft_wrap=True)
        sys.exit(2)
    except UsageError as error:
        output.ERR.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        sys.exit(2)
    except IcewrightError as error:
        output.ERR.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        sys.exit(1)
