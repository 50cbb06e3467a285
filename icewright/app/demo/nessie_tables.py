"""Tables of a Nessie branch for PyIceberg's writers, committed as Nessie's native client does.

PyIceberg itself knows Nessie's REST side alone, which serves no tables on local disks.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, cast

import requests
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier, Properties

_SECONDS = 60


class NessieTables(NoopCatalog, MetastoreCatalog):
    """One branch. `api` is `http://host:port/api/v2`; `properties` open the files, in PyIceberg's words."""

    def __init__(self, name: str, api: str, branch: str = "main", **properties: str) -> None:
        super().__init__(name, **properties)
        self._api, self._branch = api, branch
        self._session = requests.Session()

    def create_namespace_if_not_exists(self, namespace: str | Identifier, properties: Properties | None = None) -> None:
        """Make a namespace, and those that it lies in."""
        parts = Catalog.identifier_to_tuple(namespace)
        for depth in range(1, len(parts) + 1):
            if self._content(parts[:depth])[0] is None:
                said = {"type": "NAMESPACE", "elements": list(parts[:depth]), "properties": properties or {}}
                self._put(parts[:depth], said, f"create {'.'.join(parts[:depth])}")

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the table as the branch's head has it."""
        parts = Catalog.identifier_to_tuple(identifier)
        content, _ = self._content(parts)
        if content is None:
            raise NoSuchTableError(f"{self.name}: no table {'.'.join(parts)} on {self._branch}")
        location = str(content["metadataLocation"])
        io = load_file_io(self.properties, location)
        return Table(parts, FromInputFile.table_metadata(io.new_input(location)), location, io, self)

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Name a metadata file; a table that is there keeps its place in the branch's history."""
        parts = Catalog.identifier_to_tuple(identifier)
        known, _ = self._content(parts)
        if known is not None and not overwrite:
            raise CommitFailedException(f"{self.name}: there is a table {'.'.join(parts)} already")
        self._point(parts, metadata_location, known)
        return self.load_table(parts)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next metadata file and name it."""
        parts = table.name()
        known, _ = self._content(parts)
        current = self.load_table(parts)
        staged = self._update_and_stage_table(current, parts, requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._point(parts, staged.metadata_location, known)
        said = {"metadata": staged.metadata, "metadata-location": staged.metadata_location}
        return CommitTableResponse.model_validate(said)

    def _point(self, parts: Identifier, location: str, known: dict[str, Any] | None) -> None:
        io = load_file_io(self.properties, location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        said = {
            "type": "ICEBERG_TABLE",
            "metadataLocation": location,
            "snapshotId": -1 if metadata.current_snapshot_id is None else metadata.current_snapshot_id,
            "schemaId": metadata.current_schema_id,
            "specId": metadata.default_spec_id,
            "sortOrderId": metadata.default_sort_order_id,
        }
        self._put(parts, said | ({"id": known["id"]} if known else {}), f"write {'.'.join(parts)}")

    def _content(self, parts: Identifier) -> tuple[dict[str, Any] | None, str]:
        """Return what the branch has under a name, and the hash of its head."""
        body = {"requestedKeys": [{"elements": list(parts)}]}
        answer = self._asked("POST", f"trees/{self._branch}/contents", body)
        found = answer["contents"]
        hash_ = cast("str", answer["effectiveReference"]["hash"])
        return (found[0]["content"] if found else None), hash_

    def _put(self, parts: Identifier, content: dict[str, Any], message: str) -> None:
        _, head = self._content(parts)
        operation = {"type": "PUT", "key": {"elements": list(parts)}, "content": content}
        body = {"commitMeta": {"message": message}, "operations": [operation]}
        self._asked("POST", f"trees/{self._branch}@{head}/history/commit", body)

    def _asked(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._session.request(method, f"{self._api}/{path}", json=body, timeout=_SECONDS)
        if answer.status_code == HTTPStatus.CONFLICT:
            raise CommitFailedException(f"{self.name}: {answer.text}")
        answer.raise_for_status()
        return cast("dict[str, Any]", answer.json())
