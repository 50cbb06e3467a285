"""Glue, as moto serves it, with what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import requests
from pyiceberg.catalog.glue import GlueCatalog as PyIcebergCatalog

from icewright.adapters.catalogs.glue import GlueCatalog, GlueClient
from icewright.adapters.catalogs.staging import RequestOutcomeUnknown
from icewright.adapters.catalogs.translate import glue_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import CatalogUnavailable
from tests.contracts.bench import Bench

KEYS = {"glue.region": "us-east-1", "glue.access-key-id": "key", "glue.secret-access-key": "hush"}


@cache
def _shared(uri: str) -> Any:
    """Boto3's client, which it takes long to make."""
    said = glue_catalog("lake", {"glue.endpoint": uri, **KEYS}).pyiceberg_properties()
    return PyIcebergCatalog("lake", **said).glue


@dataclass
class LosingGlue(GlueClient):
    """A client whose updates end without an answer, as `Losing` has it."""

    landing: bool = True
    afterwards: Callable[[], None] = lambda: None
    dead: bool = False

    def update(self, *request: Any) -> None:
        """Nobody hears what became of it."""
        self.sent = True
        if self.landing:
            super().update(*request)
        self.afterwards()
        raise RequestOutcomeUnknown("Connection was closed")

    def table(self, database: str, name: str) -> Mapping[str, Any] | None:
        """An answer, as long as somebody gives one."""
        if self.dead and self.sent:
            raise CatalogUnavailable("made up")
        return super().table(database, name)

    sent = False


@dataclass
class GlueBench(Bench):
    """The bench over the server at `uri`."""

    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        said = {"glue.endpoint": self.uri, "warehouse": f"file://{self.warehouse}", **KEYS}
        self.glue = glue_catalog(self.name, said)
        self.client = self.glue.pyiceberg_properties()
        assert requests.post(f"{self.uri}/moto-api/reset", timeout=30).ok  # one server serves all tests
        self.iceberg: Any = PyIcebergCatalog(self.name, _shared(self.uri), **self.client)
        self.catalog = self.open()

    def open(self) -> GlueCatalog:
        """Another client of the same catalog."""
        made = GlueCatalog(self.glue, LocalStorage(), self.clock)
        made._client._clients[True] = _shared(self.uri)
        return made

    def lose(self, **how: Any) -> None:
        """From now on replies to commits are lost; see `Losing`."""
        self.catalog._client = LosingGlue(self.glue, self.clock, **how)

    def close(self) -> None:
        """Let go of the server."""
        self.catalog._client._clients.pop(True, None)  # which other tests have too
        self.catalog.close()

    def entry(self, namespace: str, name: str) -> dict[str, Any]:
        """A table as Glue has it."""
        found: dict[str, Any] = self.iceberg.glue.get_table(DatabaseName=namespace, Name=name)["Table"]
        return found

    def rows(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The pointers in Glue."""
        glue = self.iceberg.glue
        spaces = [d["Name"] for page in glue.get_paginator("get_databases").paginate() for d in page["DatabaseList"]]
        pages = [p for s in spaces for p in glue.get_paginator("get_tables").paginate(DatabaseName=s)]
        found = {(t["DatabaseName"], t["Name"]): t["Parameters"] for page in pages for t in page["TableList"]}
        return {name: (p["metadata_location"], p.get("previous_metadata_location")) for name, p in found.items()}
