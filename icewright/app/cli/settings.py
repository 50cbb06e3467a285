"""Commands that set up: init; config check, explain, set and unset; doctor; demo; token create, list, revoke."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli import reading, views
from icewright.app.cli.auditing import audit
from icewright.app.cli.backend import backend
from icewright.app.cli.base import (
    OPTIONS,
    Json,
    Table,
    app,
    config_app,
    leave,
    open_application,
    split_settings,
    token_app,
    write_file,
)
from icewright.app.cli.completing import complete_knob, complete_limit, complete_scope
from icewright.core.errors import ConfigError, UsageError, requires_extra
from icewright.core.permissions import Action, Role
from icewright.core.words import count

if TYPE_CHECKING:
    from icewright.app.doctor import Check
    from icewright.core.permissions import Grant
    from icewright.ports.access import TokenRow

Scope = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE",
        help="platform, or a pattern: lake, lake.events-*, lake.sales.orders",
        autocompletion=complete_scope,
    ),
]
FILE = "icewright.yaml"
OPTIONAL = {"rest": ("warehouse", "credential")}  # which its server may not ask for
#: The properties that each type of catalog needs, with an example.
QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "sql": {"uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/warehouse"},
    "rest": {"uri": "https://catalog.example.com", "warehouse": "prod", "credential": "${env:CATALOG_CREDENTIAL}"},
    "nessie": {"uri": "https://nessie.example.com/api/v2", "warehouse": "s3://lake/warehouse"},
    "hive": {"uri": "thrift://metastore:9083", "warehouse": "s3://lake/warehouse"},
    "glue": {"warehouse": "s3://lake/warehouse", "client.region": "eu-central-1"},
}


@config_app.command("check")
def config_check(as_json: Json = False) -> None:
    """Read the configuration and report every fault.

    Rules below a catalog that match no table of the state store are named; they are no fault.
    """
    from icewright.app.bootstrap import known_tables, read_config
    from icewright.app.environment import find_config

    path = find_config(OPTIONS.config)
    faults: tuple[str, ...] = ()
    unmatched: list[str] = []
    try:
        config = read_config(path)
        if known := known_tables(config):
            unmatched = config.policy.without_match(known)
    except ConfigError as error:
        faults = error.faults
    if as_json:
        output.print_json(
            {"config": str(path), "ok": not faults, "faults": list(faults), "rules_without_tables": unmatched}
        )
    elif faults:
        for fault in faults:
            output.error(fault)
    else:
        counts = f"{count(len(config.catalogs), 'catalog')}, {count(len(config.policy.rules), 'rule')}, no fault"
        output.echo(f"{output.escape(path)}: {counts}")
        if unmatched:
            output.note(f"no known table is in {', '.join(unmatched)}")
    leave(2 if faults else 0)


@config_app.command("explain")
def config_explain(
    table: Table,
    everything: Annotated[bool, typer.Option("--all", help="List knobs that have their defaults, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show the knobs of a table: value, and the level and rule that set it."""
    document = backend().knobs(table)
    output.show(document, as_json, views.show_knobs, everything=everything)


@config_app.command("set")
def config_set(
    scope: Scope,
    settings: Annotated[list[str], typer.Argument(metavar="KNOB=VALUE", autocompletion=complete_knob)],
    as_json: Json = False,
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
    knobs: Annotated[
        list[str] | None, typer.Argument(metavar="KNOB", help="Default: the whole rule.", autocompletion=complete_knob)
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove knobs from a stored rule, or the whole rule; the file's rules stay."""
    removed = backend().unset_rule(scope, knobs or [])
    if as_json:
        output.print_json({"scope": scope, "unset": removed})
    else:
        output.echo(output.escape(f"{scope}: unset {', '.join(removed)}"))


@config_app.command("limits")
def config_limits(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LIMIT=VALUE", help="Such as limits.global=8; null: none.", autocompletion=complete_limit
        ),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="LIMIT", help="Take a limit back: the file's holds again.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show limits, budgets and prices; set them in the place of the file's.

    All processes follow at once, and running jobs continue. What a process takes when it starts, such as
    limits.per_worker, catalogs and pools themselves, is changed in the configuration file alone.
    """
    if settings or unset:
        document = backend().set_limits(split_settings("config limits", settings), unset or [])
    else:
        document = backend().limits()
    output.show(document, as_json, _show_limits)


def _show_limits(document: Mapping[str, Any]) -> None:
    """Print the limits, and of those that are set what the configuration says."""

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:g}"

    lines = [
        (i["name"], number(i["value"]), number(i["configured"]) if i["stored"] else "", f"{i['help']}: {i['expects']}")
        for i in document["items"]
    ]
    columns = (
        output.Column("limit"),
        output.Column("value", right=True),
        output.Column("of the file", right=True, rank=1),
        output.Column("what it is", rank=2),
    )
    output.rows("Limits", columns, lines)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check store, catalogs, storage and Spark.

    Each failed check names its remedy.
    """
    checks = _checks(shown=not as_json)
    if as_json:
        output.print_json({"checks": [{"check": c.name, "ok": c.ok, "said": c.result} for c in checks]})
    leave(0 if all(c.ok for c in checks) else 1)


def _checks(*, shown: bool) -> list[Check]:
    """Return the checks of the installation; each is shown as it ends."""
    from icewright.app.doctor import examine

    checks = []
    with open_application() as opened:
        for check in examine(opened):
            checks.append(check)
            if shown:
                result = "[green]ok[/]    " if check.ok else "[red]failed[/]"
                output.echo(f"{result}  {output.escape(check.name)}: {output.escape(check.result)}")
    return checks


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


@app.command()
def init(
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The configuration to write.")] = Path(FILE),
) -> None:
    """Write a configuration for your catalog, step by step.

    The catalog is not enabled, so that nothing runs by itself. The command checks the file, catalog, storage and Spark
    as `icewright doctor` does, and explains all tables.
    """
    from icewright.app.bootstrap import read_config

    if file.exists():
        raise UsageError(f"{file} exists already: edit it, or name another file with --file")
    try:
        types = ", ".join(QUESTIONS)
        kind = typer.prompt(f"Type of the catalog ({types})", default="sql", value_proc=_catalog_type)
        name = typer.prompt("Name of the catalog, as your engines know it", default="lake")
        properties = {key: answer for key in QUESTIONS[kind] if (answer := _property(kind, key))}
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError(
            f"no answers came, and {file} is not written: run `icewright init` on a terminal, or write the file by hand"
        ) from None
    text = f"""\
state: sqlite:///icewright.db # next to this file; PostgreSQL for several processes
catalogs:
  {json.dumps(name)}:
    type: {kind}
    enabled: false # true: Icewright maintains the tables by itself
    properties: {json.dumps(properties)} # secrets as ${{env:NAME}} or ${{file:PATH}}
"""
    write_file("--file", file, text)
    try:
        read_config(file.resolve())
    except ConfigError:
        file.unlink()  # so that the next try is not refused
        raise
    OPTIONS.config = str(file)
    output.echo(f"[green]wrote[/] {output.escape(file)}")
    failed = [check.name for check in _checks(shown=True) if not check.ok]
    if f"catalog {name}" not in failed:
        reading.explain()
    if failed:
        output.note("Mend what failed, then `icewright doctor` checks it again.")
        leave(1)
    output.echo(
        f"Next: set `enabled: true` in {output.escape(file)} when you are ready. Then `icewright plan` shows what "
        "would run, and `icewright cycle` runs it."
    )


def _catalog_type(text: str) -> str:
    if text not in QUESTIONS:
        raise typer.BadParameter(f"there is no catalog type {text}")
    return text


def _property(kind: str, key: str) -> str:
    """Ask for a property of a catalog; one that not all catalogs of the type need may be left empty."""
    may_be_empty = key in OPTIONAL.get(kind, ())
    question = f"{key}, such as {QUESTIONS[kind][key]}{', or empty' if may_be_empty else ''}"
    answer: str = typer.prompt(question, default="" if may_be_empty else None, show_default=False)
    return answer


@token_app.command("create")
def token_create(
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help=f"{', '.join(Role)}.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="PATTERN", help="A catalog or namespace, such as lake.sales; default: all."),
    ] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=3660, help="Until the token expires.")] = 90,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The owner, as the audit log names it.")] = "",
    as_json: Json = False,
) -> None:
    """Create a token and print it; it is stored hashed and cannot be shown again."""
    from icewright.app.tokens import new_token
    from icewright.core.permissions import grant, place_of

    with open_application(without_catalogs=True) as opened:
        runtime, new_grant = opened.runtime, grant(role, scope or ())
        places = [place_of(ref) for ref in runtime.store.tables.known()]
        actor = runtime.trigger.actor
        text, row = new_token([new_grant], name.strip() or f"{role} by {actor}", actor, runtime.clock.now(), days)
        runtime.store.access.add_token(row)
        audit(
            runtime,
            Action.TOKENS_MANAGE,
            f"token {row.id}",
            None,
            name=row.name,
            role=str(new_grant.role),
            scope=scope or [],
        )
    if as_json:
        output.print_json(_document(row) | {"token": text})
    else:
        typer.echo(text)
        output.note(f"{row.name}: {_grants(row.grants)}, until {output.moment(row.expires)} UTC")
    for empty in (pattern for pattern in scope or () if not any(map(grant(role, [pattern]).covers, places))):
        output.note(f"--scope {empty}: no table is known there")


@token_app.command("list")
def token_list(as_json: Json = False) -> None:
    """List API tokens, without their secrets."""
    with open_application(without_catalogs=True) as opened:
        tokens, now = opened.runtime.store.access.tokens(), opened.runtime.clock.now()
    if as_json:
        output.print_json({"tokens": [_document(row) for row in tokens]})
        return
    lines = [
        (
            row.id,
            row.name,
            _grants(row.grants),
            row.expires or "never",
            row.used,
            "" if row.is_valid(now) else "revoked" if row.revoked else "expired",
        )
        for row in tokens
    ]
    columns = (
        output.Column("id"),
        "name",
        "grants",
        output.Column("expires (UTC)"),
        output.Column("used (UTC)", rank=1),
        output.Column("state", rank=2),
    )
    output.rows("Tokens", columns, lines)


@token_app.command("revoke")
def token_revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")], as_json: Json = False
) -> None:
    """Revoke a token; requests with it are refused from now on."""
    with open_application(without_catalogs=True) as opened:
        runtime = opened.runtime
        now = runtime.clock.now()
        if not runtime.store.access.revoke_token(token, now):
            raise UsageError(f"there is no valid token {token}; `icewright token list` shows their ids")
        audit(runtime, Action.TOKENS_MANAGE, f"token {token}", None, revoked=True)
    if as_json:
        output.print_json({"id": token, "revoked": now})
    else:
        output.echo(f"token {output.escape(token)} is revoked")


def _grants(grants: tuple[Grant, ...]) -> str:
    return "; ".join(f"{g.role} of {', '.join('.'.join(s) for s in g.scopes) or 'everything'}" for g in grants)


def _document(row: TokenRow) -> dict[str, object]:
    fields = ("id", "name", "author", "created", "expires", "revoked", "used")
    grants = [{"role": str(g.role), "scope": [".".join(s) for s in g.scopes]} for g in row.grants]
    return {**{name: getattr(row, name) for name in fields}, "grants": grants}
