"""The command for agents: a Model Context Protocol server on standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from icewright.app.cli.base import OPTIONS, app, configuration
from icewright.app.config import find_config
from icewright.core.errors import ConfigError


@app.command()
def mcp(
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Offer to run operations too, not only to look.")
    ] = False,
) -> None:
    """Serve agents by the Model Context Protocol on standard input and output, until it is closed."""
    try:
        from icewright.app.agents import server  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError([f"this command needs more packages: install icewright[mcp] ({error})"]) from error
    configuration()  # its faults are said at once, and not with every question
    server(str(find_config(OPTIONS.config)), allow_changes=allow_changes).run()
