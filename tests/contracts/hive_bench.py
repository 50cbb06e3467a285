"""A Hive metastore with what stands around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog.hive import HiveCatalog as PyIcebergCatalog

from icewright.adapters.catalogs.hive import HiveCatalog
from icewright.adapters.catalogs.translate import hive_catalog, pyiceberg_properties
from icewright.adapters.files.local import LocalStorage
from tests.contracts.bench import Bench


@dataclass
class HiveBench(Bench):
    """The bench over the metastore at `uri`."""

    def __post_init__(self) -> None:
        self.hive = hive_catalog(self.name, {"uri": self.uri, "warehouse": f"file://{self.warehouse}"})
        self.client = pyiceberg_properties(self.hive)
        self.iceberg: Any = PyIcebergCatalog(self.name, **self.client)
        with self.iceberg._client as hive:  # one metastore serves all tests
            for database in set(hive.get_all_databases()) - {"default"}:
                hive.drop_database(database, False, True)
        self.catalog = self.open()

    def open(self) -> HiveCatalog:
        """Another client of the same catalog."""
        return HiveCatalog(self.hive, LocalStorage(), self.clock)

    def close(self) -> None:
        """Nothing is held."""

    def parameters(self, namespace: str, name: str) -> dict[str, str]:
        """What the metastore says of a table."""
        with self.iceberg._client as hive:
            found: dict[str, str] = hive.get_table(namespace, name).parameters
        return found

    def rows(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The pointers in the metastore."""
        with self.iceberg._client as hive:
            names = [(space, name) for space in hive.get_all_databases() for name in hive.get_all_tables(space)]
        found = {name: self.parameters(*name) for name in names}
        return {name: (p["metadata_location"], p.get("previous_metadata_location")) for name, p in found.items()}
