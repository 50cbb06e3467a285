"""A REST catalog with what stands around it: its server keeps its tables in a SQLite database."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from pyiceberg.catalog.rest import RestCatalog as PyIcebergCatalog

from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.catalogs.translate import rest_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.core.table import TableMetadata, TableRef
from tests.contracts.bench import Bench


class Forgetful(RestCatalog):
    """Asks for the whole table each time: tests change metadata files in place, which no server would."""

    def load(self, ref: TableRef) -> TableMetadata:
        """The current metadata."""
        self._load_cache.clear()
        return super().load(ref)


@dataclass
class RestBench(Bench):
    """The bench over a server at `address`, whose own catalog is named `backend`."""

    address: str = ""
    row_name = "backend"

    def __post_init__(self) -> None:
        self.rest = rest_catalog(self.name, {"uri": self.address, "warehouse": f"file://{self.warehouse}"})
        self.client = self.rest.pyiceberg_properties()
        self.iceberg = PyIcebergCatalog(self.name, **self.client)
        self.database = sa.create_engine(self.uri)
        self.catalog = self.open()

    def open(self) -> RestCatalog:
        """Another client of the same catalog."""
        return Forgetful(self.rest, LocalStorage(), self.clock)

    def close(self) -> None:
        """Let go of the server and its database."""
        self.iceberg.close()
        self.catalog.close()
        self.database.dispose()
