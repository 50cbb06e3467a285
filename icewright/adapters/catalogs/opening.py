"""Factory of the catalog adapters, by type."""

from __future__ import annotations

from typing import assert_never

from icewright.adapters.catalogs.glue import GlueCatalog
from icewright.adapters.catalogs.hive import HiveCatalog
from icewright.adapters.catalogs.nessie import NessieCatalog
from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.catalogs.sql import SqlCatalog
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
from icewright.ports import Clock

AnyCatalog = SqlCatalog | RestCatalog | NessieCatalog | HiveCatalog | GlueCatalog


def open_catalog(
    properties: CatalogProperties, files: MetadataFiles, clock: Clock, environment: Allowlist | None = None
) -> AnyCatalog:
    """Return the catalog that the properties configure; commits outside of the allowlist are refused."""
    match properties:
        case SqlCatalogProperties():
            return SqlCatalog(properties, files, clock, environment)
        case NessieCatalogProperties():
            return NessieCatalog(properties, files, clock, environment)
        case RestCatalogProperties():
            return RestCatalog(properties, files, clock, environment)
        case HiveCatalogProperties():
            return HiveCatalog(properties, files, clock, environment)
        case GlueCatalogProperties():
            return GlueCatalog(properties, files, clock, environment)
        case _:
            assert_never(properties)
