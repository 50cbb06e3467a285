"""Tables in a real Nessie, written as its REST side and as its native client write them, and Icewright over them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import requests
from obstore.store import S3Store
from pyiceberg.catalog import Catalog as Iceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icewright.adapters.catalogs.nessie_client import NessieClient
from icewright.app.bootstrap import Application, application, read_config
from icewright.core.vacuum import Content
from icewright.flow.vacuum import VacuumResult, vacuum
from icewright.testing import FixedClock
from tests.nessie import NessieServer
from tests.s3 import store

CONFIG = """\
state: sqlite:///state.db
catalogs:
  lake:
    type: nessie
    enabled: true
    properties:
      uri: {api}
      ref: {ref}
      warehouse: {warehouse}
      s3.endpoint: {endpoint}
      s3.access-key-id: key
      s3.secret-access-key: hush
      s3.region: us-east-1
    allowed_locations: ["s3://lake/"]
cache: {{folder: "{home}/cache"}}
"""


@dataclass
class NessieWorkspace:
    """One repository with its tables; every test has its own branch names, namespaces and state."""

    server: NessieServer
    home: Path
    space: str  # the namespace of this test
    ref: str = "main"
    clock: FixedClock = field(default_factory=lambda: FixedClock(datetime.now(UTC) + timedelta(days=2)))
    _native: SqlCatalog | None = None

    @property
    def client(self) -> NessieClient:
        """Nessie's API."""
        return NessieClient("lake", self.server.api)

    @property
    def bucket(self) -> S3Store:
        """Where files are."""
        return store(self.server.s3)

    def rest(self, ref: str | None = None) -> Iceberg:
        """Nessie's REST side, on a branch."""
        return load_catalog("rest", type="rest", uri=f"{self.server.iceberg}/{ref or self.ref}", **self.server.s3)

    def branch(self, name: str, *, of: str | None = None, tag: bool = False, at: str | None = None) -> None:
        """Make a branch or tag."""
        source = self.client.reference(of or self.ref)
        body = {"type": "BRANCH", "name": source.name, "hash": at or source.hash}
        response = requests.post(
            f"{self.server.api}/trees", params={"name": name, "type": "TAG" if tag else "BRANCH"}, json=body, timeout=30
        )
        assert response.ok, response.text

    def reset(self) -> None:
        """An empty repository."""
        api = self.server.api
        for reference in self.client.references():
            if reference.name != "main":
                self.drop_reference(reference.name)
        root = requests.get(f"{api}/config", timeout=30).json()["noAncestorHash"]
        main = self.client.reference("main")
        body = {"type": "DETACHED", "hash": root}
        response = requests.put(f"{api}/trees/main@{main.hash}", json=body, params={"type": "BRANCH"}, timeout=30)
        assert response.ok, response.text

    def drop_reference(self, name: str) -> None:
        """Delete a branch or tag."""
        hash_ = self.client.reference(name).hash
        assert requests.delete(f"{self.server.api}/trees/{name}@{hash_}", timeout=30).ok

    def rest_table(self, name: str, appends: int = 0, ref: str | None = None, **properties: str) -> str:
        """A table of the REST side; its full name."""
        catalog = self.rest(ref)
        catalog.create_namespace_if_not_exists(self.space)
        made = catalog.create_table(f"{self.space}.{name}", pa.schema([("id", pa.int64())]), properties=properties)
        for number in range(appends):
            made.append(pa.table({"id": [number]}))
        return f"{self.space}.{name}"

    def rest_append(self, name: str, value: int, ref: str | None = None) -> None:
        """One commit of one row."""
        self.rest(ref).load_table(f"{self.space}.{name}").append(pa.table({"id": [value]}))

    def rest_rows(self, name: str, at: str) -> list[int]:
        """The rows at a branch, tag or `branch@hash`, read through the REST side."""
        catalog = load_catalog("rest", type="rest", uri=f"{self.server.iceberg}/{at}", **self.server.s3)
        found = catalog.load_table(f"{self.space}.{name}").scan().to_arrow()
        return sorted(found["id"].to_pylist())

    def native(self) -> SqlCatalog:
        """What writes metadata with its whole history, as the native client does."""
        if self._native is None:
            self._native = SqlCatalog(
                f"native-{self.space}", uri="sqlite:///:memory:", warehouse="s3://lake/nessie/native", **self.server.s3
            )
            self._native.create_namespace(self.space)
        return self._native

    def native_table(self, name: str, **properties: str) -> Table:
        """A table as the native client makes it, not yet committed to Nessie."""
        said = {"gc.enabled": "false", "write.metadata.delete-after-commit.enabled": "false", **properties}
        made = self.native().create_table(f"{self.space}.{name}", pa.schema([("id", pa.int64())]), properties=said)
        self.rest().create_namespace_if_not_exists(self.space)
        return made

    def put(self, table: Table, ref: str | None = None) -> str:
        """Commit the table's metadata file to a branch; the commit's hash."""
        name = table.name()[-1]
        known, hash_ = self.client.contents(ref or self.ref, [(self.space, name)])
        if not hash_:
            hash_ = self.client.reference(ref or self.ref).hash
        described = {
            "type": "ICEBERG_TABLE",
            "metadataLocation": table.metadata_location,
            "snapshotId": table.metadata.current_snapshot_id or -1,
            "schemaId": 0,
            "specId": 0,
            "sortOrderId": 0,
            **({"id": known[0].content_id} if known else {}),
        }
        body: Any = {
            "commitMeta": {"message": f"append to {name}"},
            "operations": [{"type": "PUT", "key": {"elements": [self.space, name]}, "content": described}],
        }
        response = requests.post(
            f"{self.server.api}/trees/{ref or self.ref}@{hash_}/history/commit", json=body, timeout=30
        )
        assert response.ok, response.text
        return str(response.json()["targetBranch"]["hash"])

    def native_append(self, table: Table, value: int, ref: str | None = None) -> str:
        """One commit of one row by the native way."""
        table.append(pa.table({"id": [value]}))
        return self.put(table, ref)

    def drop(self, name: str, ref: str | None = None) -> None:
        """Drop a table from a branch; its files stay."""
        self.rest(ref).drop_table(f"{self.space}.{name}")

    def content(self, name: str, ref: str | None = None) -> Content:
        """The table as a branch has it."""
        return self.client.contents(ref or self.ref, [(self.space, name)])[0][0]

    def metadata(self, name: str, ref: str | None = None) -> dict[str, Any]:
        """The metadata file as it is stored."""
        found: dict[str, Any] = json.loads(self.bytes(self.content(name, ref).metadata_location))
        return found

    def bytes(self, path: str) -> bytes:
        """A file."""
        return bytes(obstore.get(self.bucket, path.removeprefix("s3://lake/")).bytes())

    def times(self, ref: str | None = None) -> list[datetime]:
        """When the commits were made, newest first."""
        return [c.time for c in self.client.log(self.client.reference(ref or self.ref).hash)]

    def now(self) -> datetime:
        """The time by which Nessie stamps commits."""
        return datetime.now(UTC)

    def files(self) -> set[str]:
        """All files of this test's tables."""
        listed = [m["path"] for page in obstore.list(self.bucket, "nessie/") for m in page]
        return {path for path in listed if f"/{self.space}" in path}

    def cutoff(self, policy: str | datetime | None, grace: str | None = "PT24H") -> None:
        """Store Nessie's own policy."""
        said = policy.isoformat() if isinstance(policy, datetime) else policy
        config = {"type": "GARBAGE_COLLECTOR", "defaultCutoffPolicy": said, "newFilesGracePeriod": grace}
        body = {"config": {name: value for name, value in config.items() if value is not None}}
        self.client._answer("POST", "config/repository", json=body)

    @contextmanager
    def opened(self, *, extra: str = "", ref: str | None = None, kind: str = "manual") -> Iterator[Application]:
        """Icewright over the repository."""
        s3: Mapping[str, str] = self.server.s3
        path = self.home / "icewright.yaml"
        text = CONFIG.format(
            api=self.server.api,
            ref=ref or self.ref,
            warehouse=self.server.warehouse,
            endpoint=s3["s3.endpoint"],
            home=self.home,
        )
        at_once = "" if "policy:" in extra else "policy: [{set: {deletion.delay_hours: 0}}]\n"
        path.write_text(text + at_once + extra, encoding="utf-8")
        with application(read_config(path), kind=kind, clock=self.clock) as opened:
            yield opened

    def vacuum(self, *, dry_run: bool = False, extra: str = "") -> VacuumResult:
        """Vacuum the whole repository."""
        with self.opened(extra=extra) as app:
            return vacuum(app.runtime, "lake", dry_run=dry_run)

    def mine(self, result: VacuumResult) -> VacuumResult:
        """The part of a result that is about this test's tables."""
        return replace(result, jobs=tuple(j for j in result.jobs if j.ref.namespace == (self.space,)))


def summaries(result: VacuumResult) -> Sequence[str]:
    """What became of each table."""
    return [f"{job.ref}: {job.state}: {job.summary}" for job in result.jobs]
