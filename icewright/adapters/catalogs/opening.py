"""Factory of the catalog adapters, by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icewright.adapters.catalogs.staging import MetadataFiles
from icewright.adapters.catalogs.translate import (
    CatalogProperties,
    GlueCatalogProperties,
    HiveCatalogProperties,
    NessieCatalogProperties,
    RestCatalogProperties,
    SqlCatalogProperties,
)
from icewright.core.allowlist import Allowlist
from icewright.core.errors import requires_extra
from icewright.ports import Clock

if TYPE_CHECKING:  # a client is loaded with the first catalog of its type: they take up to a second
    from icewright.adapters.catalogs.glue import GlueCatalog
    from icewright.adapters.catalogs.hive import HiveCatalog
    from icewright.adapters.catalogs.nessie import NessieCatalog
    from icewright.adapters.catalogs.rest import RestCatalog
    from icewright.adapters.catalogs.sql import SqlCatalog

    AnyCatalog = SqlCatalog | RestCatalog | NessieCatalog | HiveCatalog | GlueCatalog


def open_catalog(
    properties: CatalogProperties, files: MetadataFiles, clock: Clock, allowlist: Allowlist | None = None
) -> AnyCatalog:
    """Return the catalog that the properties configure; commits outside of the allowlist are refused."""
    match properties:
        case SqlCatalogProperties():
            from icewright.adapters.catalogs.sql import SqlCatalog

            return SqlCatalog(properties, files, clock, allowlist)
        case NessieCatalogProperties():
            from icewright.adapters.catalogs.nessie import NessieCatalog

            return NessieCatalog(properties, files, clock, allowlist)
        case RestCatalogProperties():
            from icewright.adapters.catalogs.rest import RestCatalog

            return RestCatalog(properties, files, clock, allowlist)
        case HiveCatalogProperties():
            with requires_extra("hive", f"catalog {properties.name}"):
                from icewright.adapters.catalogs.hive import HiveCatalog

            return HiveCatalog(properties, files, clock, allowlist)
        case GlueCatalogProperties():
            with requires_extra("glue", f"catalog {properties.name}"):
                from icewright.adapters.catalogs.glue import GlueCatalog

            return GlueCatalog(properties, files, clock, allowlist)
    raise TypeError(f"no catalog is opened by {type(properties).__name__}")
