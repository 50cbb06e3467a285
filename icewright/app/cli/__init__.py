"""The command line. Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 partial, 130 Ctrl-C."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from copy import copy
from functools import cache, partial
from itertools import pairwise
from typing import Any

import typer

from icewright.app import environment, output
from icewright.app.cli import (
    acting,
    advising,
    catalogs,
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

_HELP, _VALUED = {"-h", "--help"}, {"--config", "--server"}  # options before a command; the latter take a value
_tell_interrupted = partial(
    output.error, "interrupted: `icewright history` lists what had begun; the next command settles it"
)


def main() -> None:
    """Run the command line; an error of Icewright becomes one message and an exit code."""
    output.open_closed_streams()
    collect_seldom()
    environment.without_pydantic_plugins()
    with interruptible(_tell_interrupted):
        _run()


@cache
def _command(name: str | None) -> Any:  # noqa: ANN401 - Typer's command
    """Return the command line with one of its commands, or with all: to build the parameters of all takes long."""
    narrowed = copy(app)
    narrowed.registered_commands = [
        command
        for command in app.registered_commands
        if name == (command.name or getattr(command.callback, "__name__", None))
    ]
    narrowed.registered_groups = [group for group in app.registered_groups if name == group.name]
    is_command = narrowed.registered_commands or narrowed.registered_groups
    return typer.main.get_command(narrowed if is_command else app)


def _named(arguments: Sequence[str]) -> str | None:
    """Return the command among the arguments of the command line: its first word, unless help is wanted of several."""
    words = [word for before, word in pairwise(arguments) if before not in _VALUED and not word.startswith("-")]
    return words[0] if words and not _HELP & set(arguments) else None


def _run() -> None:
    try:
        try:
            _command(_named(sys.argv))(standalone_mode=True)
        finally:
            sys.stdout.flush()  # here, where a fault has a message
    except IcewrightError as error:
        for fault in error.faults if isinstance(error, ConfigError) else (error,):
            output.error(fault)
        if "--json" in sys.argv:
            output.print_json({"error": str(error)})
        sys.exit(2 if isinstance(error, UsageError | ConfigError) else 1)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        if error.errno == errno.ENOSPC:
            output.error(f"{error.filename or 'the output or a file'} cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left of it when Python ends
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _tell_interrupted()
        raise
