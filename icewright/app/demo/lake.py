"""The catalog and warehouse that the demo's tables are created in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog

from icewright.core.table import TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Rot:
    """The name of a table and what is wrong with it."""

    name: str
    story: str


@dataclass(frozen=True, slots=True)
class Lake:
    """A catalog that PyIceberg and Spark share, and the folder that its tables lie in.

    `now` is in UTC and never later than the real time, as Spark commits with its own clock.
    """

    catalog: Catalog
    spark: Callable[[], SparkSession]
    warehouse: Path
    now: datetime
    seed: int = 7

    def identifier(self, name: str) -> tuple[str, ...]:
        """Return the parts of `namespace.table`; the namespace is made when it is new."""
        parts = tuple(name.split("."))
        self.catalog.create_namespace_if_not_exists(parts[:-1])
        return parts

    def folder(self, name: str) -> Path:
        """Return the folder of the table `namespace.table`."""
        return self.warehouse.joinpath(*name.split("."))

    def point(self, name: str, metadata_location: str) -> None:
        """Make the catalog name another metadata file of the table `namespace.table`."""
        identifier = self.identifier(name)
        self.catalog.drop_table(identifier)  # the catalog's row alone
        self.catalog.register_table(identifier, metadata_location)

    def quoted(self, name: str) -> str:
        """Return the full name of `namespace.table` as Spark's SQL takes it."""
        return ".".join("`" + part.replace("`", "``") + "`" for part in (self.catalog.name, *name.split(".")))

    def random(self, name: str) -> random.Random:
        """Return the table's own random generator, so that its rows do not depend on other tables."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 - made-up data

    def rot(self, name: str, story: str) -> Rot:
        """Return the description of what is wrong with `namespace.table`."""
        *namespace, table = name.split(".")
        return Rot(str(TableRef(self.catalog.name, tuple(namespace), table)), story)
