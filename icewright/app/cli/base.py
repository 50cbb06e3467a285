"""What the commands share: the Typer applications, common options, opening the application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from icewright import __version__
from icewright.app import logs, output
from icewright.app.bootstrap import Application, application, read_config
from icewright.app.config import Config, find_config
from icewright.core.errors import UsageError
from icewright.core.guardrails import Guardrail
from icewright.core.layering import parse_settings
from icewright.core.table import TableRef
from icewright.ports import TableRow

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Keeps Apache Iceberg tables healthy by itself.",
)
config_app = typer.Typer(no_args_is_help=True, help="Check the configuration, explain or set knobs.")
db_app = typer.Typer(no_args_is_help=True, help="The state store.")
app.add_typer(config_app, name="config")
app.add_typer(db_app, name="db")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="catalog.namespace.table; quote a part with dots by backticks.")
]
CatalogOption = Annotated[str | None, typer.Option("--catalog", help="This catalog alone.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="A knob for this run alone.")]


@dataclass
class _Options:
    config: str | None = None
    server: str | None = None


OPTIONS = _Options()


def _version(wanted: bool) -> None:
    if wanted:
        output.OUT.print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    config: Annotated[str | None, typer.Option("--config", help="Configuration file (or ICEWRIGHT_CONFIG).")] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", envvar="ICEWRIGHT_SERVER", help="Ask this service (ICEWRIGHT_TOKEN)."),
    ] = None,
    version: Annotated[  # noqa: ARG001 - the callback acts on it
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    OPTIONS.config, OPTIONS.server = config, server
    logs.configure()


def configuration() -> Config:
    """Return the configuration that --config or the environment names."""
    config = read_config(find_config(OPTIONS.config))
    logs.configure_by(config)
    return config


@contextmanager
def opened_application(kind: str = "manual", **more: Any) -> Iterator[Application]:  # noqa: ANN401 - see `application`
    """The application over the configuration."""
    with application(configuration(), kind=kind, **more) as opened:
        yield opened


def chosen_catalogs(opened: Application, catalog: str | None) -> list[str]:
    """Return the named catalog, or all of them."""
    if catalog is None:
        return sorted(opened.runtime.catalogs)
    if catalog not in opened.runtime.catalogs:
        raise UsageError(f"there is no catalog {catalog}; there is: {', '.join(sorted(opened.runtime.catalogs))}")
    return [catalog]


def given_knobs(said: str, sets: list[str] | None) -> dict[str, Any]:
    """Knobs as the command line gives them; `said` is how messages call the place."""
    pairs = [text.partition("=") for text in sets or []]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise UsageError(f"{said} {bad[0]}: write knob=value, such as compact.min_input_files=2")
    return {name.strip(): value.strip() for name, _, value in pairs}


def knob_settings(said: str, sets: list[str] | None, guardrails: Sequence[Guardrail] = ()) -> dict[str, Any]:
    """Parse `--set` options and check them against the guardrails."""
    return parse_settings(said, given_knobs(said, sets), guardrails)


def known_table(opened: Application, text: str) -> TableRow:
    """Return what the store knows of a table, looked up in the catalog first."""
    ref = TableRef.parse(text)
    opened.runtime.catalog(ref)
    runtime = opened.runtime
    if not any(row.ref == ref and not row.dropped for row in runtime.store.tables.list()):
        runtime.store.tables.record_listing(ref.catalog, runtime.catalogs[ref.catalog].pointers(), runtime.clock.now())
    row = next((row for row in runtime.store.tables.list() if row.ref == ref and not row.dropped), None)
    if row is None:
        raise UsageError(f"{ref}: the catalog has no such table; `icewright tables` lists what it has")
    return row


def show_ignored(found: Sequence[Mapping[str, str]]) -> None:
    """Say which properties of a table set nothing, and what would open them."""
    if found:
        lines = [(f"{one['property']} = {one['value']!r}", one["reason"]) for one in found]
        output.rows("Ignored table properties", ("property", "why"), lines)


def show_knobs(document: Mapping[str, Any]) -> None:
    """Every knob of a table with who set or bounded it, and the properties that set nothing."""
    lines = [
        (k["knob"], k["value"], k["unit"], k["level"], "; ".join(t for t in (k["rule"], k["note"]) if t))
        for k in document["knobs"]
    ]
    output.rows(f"Knobs of {document['table']}", ("knob", "value", "unit", "level", "set by"), lines)
    show_ignored(document["ignored_properties"])


def leave(code: int) -> None:
    """End with an exit code other than 0."""
    if code:
        raise typer.Exit(code)
