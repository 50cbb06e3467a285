"""Commands that set up: config check, explain, set and unset; doctor; demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icewright.app import output
from icewright.app.cli import views
from icewright.app.cli.backend import backend
from icewright.app.cli.base import OPTIONS, Json, Table, app, config_app, leave, open_application, split_settings
from icewright.core.errors import ConfigError, requires_extra
from icewright.core.words import count

Scope = Annotated[
    str, typer.Argument(metavar="SCOPE", help="platform, or a pattern: lake, lake.events-*, lake.sales.orders")
]


@config_app.command("check")
def config_check(as_json: Json = False) -> None:
    """Read the configuration and report every fault."""
    from icewright.app.bootstrap import read_config
    from icewright.app.environment import find_config

    path = find_config(OPTIONS.config)
    faults: tuple[str, ...] = ()
    try:
        config = read_config(path)
    except ConfigError as error:
        faults = error.faults
    if as_json:
        output.print_json({"config": str(path), "ok": not faults, "faults": list(faults)})
    elif faults:
        for fault in faults:
            output.error(fault)
    else:
        counts = f"{count(len(config.catalogs), 'catalog')}, {count(len(config.policy.rules), 'rule')}, no fault"
        output.echo(f"{output.escape(path)}: {counts}")
    leave(2 if faults else 0)


@config_app.command("explain")
def config_explain(
    table: Table,
    everything: Annotated[bool, typer.Option("--all", help="List knobs that have their defaults, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show the knobs of a table: value, and the level and rule that set it."""
    document = backend().knobs(table)
    if as_json:
        output.print_json(document)
    else:
        views.show_knobs(document, everything=everything)


@config_app.command("set")
def config_set(
    scope: Scope, settings: Annotated[list[str], typer.Argument(metavar="KNOB=VALUE")], as_json: Json = False
) -> None:
    """Store a policy rule; it wins over the file's rules of the same level."""
    new = backend().set_rule(scope, split_settings("config set", settings))
    if as_json:
        output.print_json({"scope": scope, "set": new})
    else:
        output.echo(output.escape(f"{scope}: {', '.join(f'{k} = {v}' for k, v in new.items())}"))


@config_app.command("unset")
def config_unset(
    scope: Scope,
    knobs: Annotated[list[str] | None, typer.Argument(metavar="[KNOB]", help="Default: the whole rule.")] = None,
    as_json: Json = False,
) -> None:
    """Remove knobs from a stored rule, or the whole rule; the file's rules stay."""
    removed = backend().unset_rule(scope, knobs or [])
    if as_json:
        output.print_json({"scope": scope, "unset": removed})
    else:
        output.echo(output.escape(f"{scope}: unset {', '.join(removed)}"))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check store, catalogs, storage and Spark.

    Each failed check names its remedy.
    """
    from icewright.app.doctor import examine

    checks = []
    with open_application() as opened:
        for check in examine(opened):
            checks.append(check)
            if not as_json:
                result = "[green]ok[/]    " if check.ok else "[red]failed[/]"
                output.echo(f"{result}  {output.escape(check.name)}: {output.escape(check.result)}")
    if as_json:
        output.print_json({"checks": [{"check": c.name, "ok": c.ok, "said": c.result} for c in checks]})
    leave(0 if all(c.ok for c in checks) else 1)


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="The lakehouse's folder; default: icewright-demo.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Maintain until nothing is due, prove it, and exit without serving pages.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a neglected lakehouse, maintain it, prove its rows."""
    with requires_extra("all", "the demo"):
        from icewright.app.demo.show import run_demo

    leave(run_demo(directory, once=once, as_json=as_json))
