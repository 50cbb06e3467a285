"""A branch of a Nessie server with what stands around it: PyIceberg writes by Nessie's own API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import requests
from pyiceberg.catalog import Catalog as PyIcebergClient
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.typedef import Identifier

from icewright.adapters.catalogs.nessie import NessieCatalog
from icewright.adapters.catalogs.nessie_client import NessieClient
from icewright.adapters.catalogs.translate import nessie_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import CommitConflict
from icewright.core.vacuum import Content
from tests.contracts.bench import Bench

MAIN = "main"


class NativeClient(SqlCatalog):
    """PyIceberg over a branch: a SQL catalog in memory holds namespaces, and Nessie which metadata file is current."""

    def __init__(self, name: str, nessie: NessieClient, **properties: str) -> None:
        super().__init__(name, uri="sqlite:///:memory:", **properties)
        self.nessie = nessie

    def content(self, key: Identifier) -> Content | None:
        """The table as Nessie has it."""
        found, _ = self.nessie.contents(MAIN, [key])
        return found[0] if found else None

    def post(self, *operations: dict[str, Any], at: str | None = None) -> None:
        """One commit to the branch, on top of `at`."""
        at = at or self.nessie.reference(MAIN).hash
        body: Any = {"commitMeta": {"message": "by PyIceberg"}, "operations": list(operations)}
        response = requests.post(f"{self.nessie.api}/trees/{MAIN}@{at}/history/commit", json=body, timeout=30)
        assert response.ok, response.text

    def put(self, key: Identifier, location: str) -> None:
        """A new table."""
        for depth in range(1, len(key)):
            levels = list(key[:depth])
            body = {"type": "NAMESPACE", "elements": levels}
            known = requests.post(
                f"{self.nessie.api}/trees/{MAIN}/contents", json={"requestedKeys": [{"elements": levels}]}, timeout=30
            ).json()["contents"]
            if not known:
                self.post({"type": "PUT", "key": {"elements": levels}, "content": body})
        self.post({"type": "PUT", "key": {"elements": list(key)}, "content": described(location)})

    def create_table(self, identifier: str | Identifier, *args: Any, **how: Any) -> Table:
        """Create a table by the SQL catalog, then in Nessie."""
        made = super().create_table(identifier, *args, **how)
        self.put(made.name(), made.metadata_location)
        return made

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Register a table by the SQL catalog, then in Nessie."""
        made = super().register_table(identifier, metadata_location, overwrite)
        self.put(made.name(), metadata_location)
        return made

    def drop_table(self, identifier: str | Identifier) -> None:
        """Drop a table by the SQL catalog, then in Nessie."""
        super().drop_table(identifier)
        self.post({"type": "DELETE", "key": {"elements": list(self.identifier_to_tuple(identifier))}})

    def load_table(self, identifier: str | Identifier) -> Table:
        """What Nessie names."""
        key = self.identifier_to_tuple(identifier)
        content = self.content(key)
        if content is None:
            return super().load_table(identifier)  # while it is made
        io = load_file_io(self.properties, content.metadata_location)
        metadata = FromInputFile.table_metadata(io.new_input(content.metadata_location))
        return Table(key, metadata, content.metadata_location, io, self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """One commit to the branch, if nobody else changed the table."""
        current = self.load_table(table.name())
        branch, content = self.nessie.reference(MAIN), self.content(table.name())
        assert content is not None
        new = self._update_and_stage_table(current, table.name(), requirements, updates)
        self._write_metadata(new.metadata, new.io, new.metadata_location)
        try:
            self.nessie.commit(branch, content, described(new.metadata_location), "by PyIceberg")
        except CommitConflict as error:
            raise CommitFailedException(str(error)) from error
        made: dict[str, Any] = {"metadata": new.metadata, "metadata-location": new.metadata_location}
        return CommitTableResponse(**made)


def described(location: str) -> dict[str, Any]:
    """A table as Nessie stores it."""
    ids = {"snapshotId": -1, "schemaId": 0, "specId": 0, "sortOrderId": 0}
    return {"type": "ICEBERG_TABLE", "metadataLocation": location, **ids}


@dataclass
class NessieBench(Bench):
    """The bench over the server whose API is at `uri`."""

    overlaid: ClassVar[dict[str, str]] = {"gc.enabled": "false", "nessie.vacuum": "true"}

    def __post_init__(self) -> None:
        self.nessie = nessie_catalog(self.name, {"uri": self.uri, "warehouse": f"file://{self.warehouse}"})
        self.native = NessieClient(self.name, self.uri)
        self._reset()
        self.iceberg: PyIcebergClient = NativeClient(self.name, self.native, warehouse=f"file://{self.warehouse}")
        self.catalog = self.open()

    def _reset(self) -> None:
        """An empty branch: one server serves all tests."""
        root = requests.get(f"{self.uri}/config", timeout=30).json()["noAncestorHash"]
        where = f"{self.uri}/trees/{MAIN}@{self.native.reference(MAIN).hash}"
        response = requests.put(where, json={"type": "DETACHED", "hash": root}, params={"type": "BRANCH"}, timeout=30)
        assert response.ok, response.text

    def open(self) -> NessieCatalog:
        """Another client of the same catalog."""
        return NessieCatalog(self.nessie, LocalStorage(), self.clock)

    def close(self) -> None:
        """Let go of what PyIceberg remembers."""
        self.iceberg.close()

    def drop_reference(self, name: str) -> None:
        """Delete a branch or tag."""
        where = f"{self.uri}/trees/{quote(name, safe='')}@{self.native.reference(name).hash}"
        assert requests.delete(where, timeout=30).ok

    def content_location(self, *key: str) -> str:
        """The metadata file that the branch names."""
        (content,), _ = self.native.contents(MAIN, [key])
        return content.metadata_location

    def rows(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The pointers of the branch, and those before them by its commits."""
        found: dict[tuple[str, ...], list[str]] = {}
        gone = set()
        for commit in self.native.log(self.native.reference(MAIN).hash):
            for change in commit.changes:
                if change.content is None and change.key not in found:
                    gone.add(change.key)
                elif change.content is not None and change.key not in gone:
                    found.setdefault(change.key, []).append(change.content.metadata_location)
        return {
            (".".join(key[:-1]), key[-1]): (seen[0], seen[1] if len(seen) > 1 else None) for key, seen in found.items()
        }
