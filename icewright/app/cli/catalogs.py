"""The command that sets which tables of a catalog are maintained."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icewright.app import output
from icewright.app.cli.backend import remote_backend
from icewright.app.cli.base import Json, config_app, open_application, select_catalogs
from icewright.app.cli.completing import complete_catalog
from icewright.core.errors import UsageError

if TYPE_CHECKING:
    from icewright.app.cli.remote import RemoteBackend
    from icewright.flow.runtime import Scope

_FIELDS = ("enabled", "namespaces", "tables", "detect_interval_seconds")


class _Switch(enum.StrEnum):
    """Whether a catalog is maintained."""

    YES = "yes"
    NO = "no"


@config_app.command("catalog")
def config_catalog(
    catalog: Annotated[str, typer.Argument(metavar="CATALOG", autocompletion=complete_catalog)],
    enabled: Annotated[_Switch | None, typer.Option("--enabled", help="Maintain its tables automatically.")] = None,
    namespaces: Annotated[
        str | None, typer.Option("--namespaces", metavar="NAMES", help="Names and wildcards with commas; blank: all.")
    ] = None,
    table_names: Annotated[
        str | None, typer.Option("--tables", metavar="NAMES", help="Names and wildcards with commas; blank: all.")
    ] = None,
    interval: Annotated[
        int | None, typer.Option("--interval", metavar="SECONDS", min=1, max=7 * 86_400, help="Between two listings.")
    ] = None,
    as_configured: Annotated[bool, typer.Option("--as-configured", help="Take all of this back.")] = False,
    as_json: Json = False,
) -> None:
    """Show which tables of a catalog are maintained; set it in the place of the file's.

    All processes follow within seconds.
    """
    values = (None if enabled is None else enabled is _Switch.YES, namespaces, table_names, interval)
    given = {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
    if as_configured and given:
        raise UsageError("--as-configured takes everything back: leave out the other options")
    if (service := remote_backend()) is not None:
        document = _by_service(service, catalog, given, as_configured=as_configured)
    else:
        document = _here(catalog, given, as_configured=as_configured)
    output.show(document, as_json, _show)


def _here(catalog: str, given: Mapping[str, Any], *, as_configured: bool) -> dict[str, Any]:
    """Set a catalog in the store, and return what holds then."""
    from dataclasses import asdict

    from icewright.flow.scopes import set_catalog
    from icewright.ports import CatalogSettings

    with open_application() as opened:
        runtime, (name,) = opened.runtime, select_catalogs(opened, catalog)
        stored = runtime.scopes[name].settings or CatalogSettings()
        if given or as_configured:
            renamed = {k.replace("detect_interval", "interval"): value for k, value in given.items()}
            settings = {} if as_configured else {**asdict(stored), **renamed}
            set_catalog(runtime, name, CatalogSettings(**settings))
        scope = runtime.scopes[name]
        file = None if scope.configured is None else _document(scope.configured)
        return {"name": name, **_document(scope), "configuration": file}


def _by_service(
    service: RemoteBackend, catalog: str, given: Mapping[str, Any], *, as_configured: bool
) -> dict[str, Any]:
    """Let the service set a catalog, and return what holds then."""
    known = service.catalogs()
    if (now := next((one for one in known if one["name"] == catalog and one["configured"]), None)) is None:
        raise UsageError(f"there is no catalog {catalog}; there is: {', '.join(one['name'] for one in known)}")
    if given or as_configured:
        file = now["configuration"] or now
        stored = {name: now[name] for name in _FIELDS if now[name] != file[name]}
        now = service.set_catalog(catalog, {} if as_configured else {**stored, **given})
    return {name: now[name] for name in ("name", *_FIELDS, "configuration")}


def _document(scope: Scope) -> dict[str, Any]:
    values = (scope.enabled, scope.namespaces, scope.tables, round(scope.interval.total_seconds()))
    return dict(zip(_FIELDS, values, strict=True))


def _show(document: Mapping[str, Any]) -> None:
    """Print which tables are maintained, and what the configuration says where something else is set."""

    def words(one: Mapping[str, Any]) -> str:
        scope = f"{one['namespaces'] or '*'} / {one['tables'] or '*'}"
        return f"{'enabled' if one['enabled'] else 'disabled'}, {scope}, every {one['detect_interval_seconds']:,} s"

    file = document["configuration"]
    output.echo(output.escape(f"catalog {document['name']}: {words(document)}"))
    if file is not None:
        output.echo(output.escape(f"  in the place of the configuration's: {words(file)}"))
