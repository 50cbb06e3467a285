"""Commands about configuration: check, explain, set."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.bootstrap import read_config
from icewright.app.cli import remote
from icewright.app.cli.base import (
    OPTIONS,
    Json,
    Table,
    chosen_catalogs,
    config_app,
    given_knobs,
    knob_settings,
    known_table,
    leave,
    opened_application,
    show_knobs,
)
from icewright.app.config import find_config
from icewright.core.describe import ignored_document, knobs_document
from icewright.core.errors import ConfigError
from icewright.core.layering import parse_pattern


@config_app.command("check")
def config_check(as_json: Json = False) -> None:
    """Read the configuration and say every fault."""
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
            output.ERR.print(f"[red]{escape(fault)}[/]", soft_wrap=True)
    else:
        output.OUT.print(
            f"{escape(str(path))}: {len(config.catalogs)} catalog(s), {len(config.policy.rules)} rule(s), no fault"
        )
    leave(2 if faults else 0)


@config_app.command("explain")
def config_explain(table: Table, as_json: Json = False) -> None:
    """Every knob of a table: its value, and the level and rule that set it."""
    if to := remote.client():
        remote.config_explain(to, table, as_json=as_json)
        return
    with opened_application() as opened:
        row = known_table(opened, table)
        metadata = opened.runtime.catalog(row.ref).load(row.ref)
        knobs = opened.runtime.policy().knobs_for(row.ref, metadata)
    ignored = ignored_document(knobs.ignored)
    document = {"table": str(row.ref), "knobs": knobs_document(knobs), "ignored_properties": ignored}
    if as_json:
        output.print_json(document)
    else:
        show_knobs(document)


@config_app.command("set")
def config_set(
    scope: Annotated[
        str, typer.Argument(metavar="SCOPE", help="platform, or a pattern: lake, lake.events-*, lake.sales.orders")
    ],
    settings: Annotated[list[str], typer.Argument(metavar="KNOB=VALUE")],
) -> None:
    """Store a policy rule; it wins over the file's rules of the same level."""
    if to := remote.client():
        remote.config_set(to, scope, given_knobs("config set", settings))
        return
    with opened_application() as opened:
        match = () if scope == "platform" else parse_pattern(scope)
        if match and not any(c in match[0] for c in "*?"):
            chosen_catalogs(opened, match[0])
        guardrails = opened.runtime.policy().guardrails
        new = knob_settings("config set", settings, guardrails)
        store = opened.runtime.store
        old = next((r.settings for r in store.rules.list() if r.match == match), {})
        now = opened.runtime.clock.now()
        store.rules.put(match, {**old, **new}, opened.runtime.trigger.actor, now, expected=None)
    output.OUT.print(f"{escape(scope)}: {escape(', '.join(f'{k} = {v}' for k, v in new.items()))}")
