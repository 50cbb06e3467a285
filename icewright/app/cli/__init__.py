"""The command line. Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 partial, 130 Ctrl-C."""

from __future__ import annotations

import sys
from functools import cache, partial

import typer

from icewright.app import output
from icewright.app.cli import (
    acting,
    advising,
    copying,
    erasing,
    fleet,
    reading,
    restoring,
    serving,
    settings,
    simulating,
)
from icewright.app.cli.base import app, collect_seldom
from icewright.app.interrupts import INTERRUPTED, interruptible
from icewright.core.errors import ConfigError, IcewrightError, UsageError

# Building the parameters of all commands takes as long as a short command; a process builds them once.
_command = cache(typer.main.get_command)
_tell_interrupted = partial(
    output.error, "interrupted: `icewright history` lists what had begun; the next command settles it"
)


def main() -> None:
    """Run the command line; an error of Icewright becomes one message and an exit code."""
    collect_seldom()
    with interruptible(_tell_interrupted):
        _run()


def _run() -> None:
    try:
        _command(app)(standalone_mode=True)
    except ConfigError as error:
        for fault in error.faults:
            output.error(fault)
        sys.exit(2)
    except IcewrightError as error:
        output.error(error)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _tell_interrupted()
        raise
