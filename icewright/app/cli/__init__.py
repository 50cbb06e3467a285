"""The command line. Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 partial."""

from __future__ import annotations

import sys

from rich.markup import escape

from icewright.app import output
from icewright.app.cli import (
    acting,
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


def main() -> None:
    """Entry point: errors of ours become one readable message and an exit code."""
    try:
        app(standalone_mode=True)
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
