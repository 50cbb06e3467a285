"""Checks across several values of the configuration, each of which is valid alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icewright.app.addresses import is_loopback
from icewright.app.sections import ArchiveSection, AuthSection, EventsSection, OpenLineageSection, ServerSection
from icewright.core.errors import UsageError
from icewright.core.permissions import grant
from icewright.core.words import near


def open_to_others(server: ServerSection, events: EventsSection, auth: AuthSection | None) -> Iterator[str]:
    """Yield a fault when the server is reachable from other hosts without authentication."""
    if auth is None and not events.tokens and not events.secrets and not is_loopback(server.host):
        yield (
            f"server.host: others reach {server.host}, and nobody could tell who they are; set auth, give "
            "events.tokens or events.secrets for those who push events alone, or write 127.0.0.1"
        )


def wrong_groups(auth: AuthSection | None) -> Iterator[str]:
    """Yield a fault for each OIDC group with a role or scope that does not exist."""
    for name, group in auth.oidc.groups.items() if auth is not None and auth.oidc is not None else ():
        try:
            grant(group.role, group.scope)
        except UsageError as error:
            yield f"auth.oidc.groups.{name}: {error}"


def unclear_lineage(lineage: OpenLineageSection) -> Iterator[str]:
    """Yield a fault unless lineage events have exactly one destination."""
    if (lineage.url is None) == (lineage.file is None):
        yield "openlineage: give either url or file"


def ambiguous_aliases(name: str, aliases: Sequence[str], catalogs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a fault for each alias that also names another catalog; `catalogs` holds the raw sections."""
    for i, alias in enumerate(aliases):
        path = f"catalogs.{name}.aliases[{i}]"
        owner = next((o for o, section in catalogs.items() if str(o) != name and _answers_to(o, section, alias)), None)
        if owner is not None:
            yield f"{path}: {alias} is a name of catalog {owner} too; an alias means one catalog"
        elif not alias.strip():
            yield f"{path}: an alias may not be blank"


def archive_faults(archive: ArchiveSection, catalogs: Sequence[str]) -> Iterator[str]:
    """Yield a fault when the archive's catalog does not exist or its namespace is blank."""
    if archive.catalog not in catalogs:
        yield f"archive.catalog: there is no catalog {archive.catalog}{near(archive.catalog, tuple(catalogs))}"
    if not all(part.strip() for part in archive.namespace.split(".")):
        yield "archive.namespace: a part of it is blank; write a name such as icewright or ops.history"


def _answers_to(name: object, section: Any, alias: str) -> bool:  # noqa: ANN401 - YAML
    aliases = section.get("aliases") if isinstance(section, dict) else None
    return str(name) == alias or (isinstance(aliases, list) and alias in aliases)
