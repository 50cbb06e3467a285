"""Apache Polaris itself, with credentials, grants and policies: POLARIS_SERVER names the folder of its quarkus-run.jar.

Its binary distribution has that folder (`server`). The server keeps everything in memory, and tables as local files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog

from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.engines.spark.java import java_home
from icewright.app.bootstrap import application, read_config
from icewright.app.environment import user_cache
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.cycle import run_cycle
from icewright.testing import FixedClock
from tests.rest import CACHE
from tests.servers.loopback import free_port, process

pytestmark = [pytest.mark.spark, pytest.mark.external, pytest.mark.nightly, pytest.mark.usefixtures("own_spark")]

REF = TableRef("lake", ("db",), "t")
POLICIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "expire": ("system.snapshot-expiry", {"config": {"min_snapshot_to_keep": 2, "max_snapshot_age_days": 1}}),
    "compact": ("system.data-compaction", {"config": {"target_file_size_bytes": 134217728}}),
    "orphans": ("system.orphan-file-removal", {"max_orphan_file_age_in_days": 30, "locations": ["s3://b/t"]}),
}
CONFIG = """\
state: sqlite:///state.db
catalogs:
  lake:
    type: rest
    enabled: true
    properties:
      uri: {address}/catalog
      warehouse: analytics
      credential: root:hush
      oauth2-server-uri: {address}/catalog/v1/oauth/tokens
      scope: PRINCIPAL_ROLE:ALL
    allowed_locations: ["{warehouse}/"]
policy: [{{set: {{deletion.delay_hours: 0, compact.hot_partitions: include, value.min_return: 0}}}}]
cache: {{folder: "{cache}"}}
"""


@dataclass(frozen=True)
class Server:
    """The server's APIs, as its root user."""

    address: str
    token: str

    def ask(self, method: str, path: str, body: object) -> None:
        """Send a request and require that it succeeds."""
        response = requests.request(
            method, self.address + path, json=body, headers={"Authorization": f"Bearer {self.token}"}, timeout=60
        )
        assert response.ok, response.text

    def pyiceberg(self) -> Catalog:
        """Its catalog `analytics`."""
        more = {"token": self.token, "header.X-Iceberg-Access-Delegation": ""}
        return load_catalog("analytics", type="rest", uri=f"{self.address}/catalog", warehouse="analytics", **more)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with a catalog of local files."""
    port, management, warehouse = free_port(), free_port(), f"file://{tmp_path}/warehouse"
    options = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "quarkus.log.file.enabled": "false",
        "polaris.bootstrap.credentials": "POLARIS,root,hush",
        'polaris.features."ALLOW_INSECURE_STORAGE_TYPES"': "true",
        'polaris.features."SUPPORTED_CATALOG_STORAGE_TYPES"': '["FILE"]',
        "polaris.readiness.ignore-severe-issues": "true",
    }
    java = java_home(None, CACHE) / "bin" / "java"  # Java 21, which Polaris needs; that of the machine may be older
    jar = Path(os.environ["POLARIS_SERVER"], "quarkus-run.jar")
    command = [str(java), "-Xmx600m", *(f"-D{name}={value}" for name, value in options.items()), "-jar", str(jar)]
    with process(command, port, "/api/catalog/v1/config", tmp_path / "polaris.log"):
        address = f"http://127.0.0.1:{port}/api"
        asked = {"grant_type": "client_credentials", "client_id": "root", "client_secret": "hush"}
        response = requests.post(
            f"{address}/catalog/v1/oauth/tokens", data={**asked, "scope": "PRINCIPAL_ROLE:ALL"}, timeout=60
        )
        made = Server(address, response.json()["access_token"])
        storage = {"storageType": "FILE", "allowedLocations": [warehouse]}
        properties = {"default-base-location": warehouse}
        catalog = {"name": "analytics", "type": "INTERNAL", "storageConfigInfo": storage, "properties": properties}
        made.ask("POST", "/management/v1/catalogs", {"catalog": catalog})
        grant = {"grant": {"type": "catalog", "privilege": "CATALOG_MANAGE_CONTENT"}}
        made.ask("PUT", "/management/v1/catalogs/analytics/catalog-roles/catalog_admin/grants", grant)
        yield made


@pytest.mark.skipif("POLARIS_SERVER" not in os.environ, reason="POLARIS_SERVER names no folder of a Polaris server")
def test_a_cycle_over_a_real_polaris(server: Server, tmp_path: Path) -> None:
    """Polaris' policies become settings, all operations commit through it, and all rows stay."""
    iceberg = server.pyiceberg()
    iceberg.create_namespace("db")
    table = iceberg.create_table("db.t", pa.schema([("id", pa.int64())]))
    for number in range(8):
        table.append(pa.table({"id": [number]}))
    place = "/catalog/polaris/v1/analytics/namespaces/db/policies"
    for name, (kind, fields) in POLICIES.items():
        content = json.dumps({"version": "2025-02-03", "enable": True, **fields})
        server.ask("POST", place, {"name": name, "type": kind, "content": content})
        inherited = {"type": "namespace", "path": ["db"]}
        target = inherited if name == "compact" else {"type": "table-like", "path": ["db", "t"]}
        server.ask("PUT", f"{place}/{name}/mappings", {"target": target, "parameters": {}})
    config = tmp_path / "icewright.yaml"
    warehouse = f"file://{tmp_path}/warehouse"
    config.write_text(CONFIG.format(address=server.address, warehouse=warehouse, cache=user_cache()), encoding="utf-8")
    clock = FixedClock(datetime.now(UTC))  # the server takes no commit that is older than the last
    with application(read_config(config), kind="manual", clock=clock) as app:
        first = run_cycle(app.runtime, ["lake"]).jobs
        clock.advance(days=2)
        jobs = (*first, *run_cycle(app.runtime, ["lake"]).jobs)
        catalog = app.runtime.catalogs["lake"]
        assert isinstance(catalog, RestCatalog)
        settings = dict(pair for _, rule in catalog.policies.of(REF).rules for pair in rule.items())
    sizes = {"compact.target_file_size_mb": 128.0, "remove_orphans.older_than_hours": 720}
    assert settings.items() >= {**sizes, "expire_snapshots.min_snapshots_to_keep": 2}.items()
    assert {job.state for job in jobs} <= {JobState.SUCCEEDED, JobState.SKIPPED}, [job.summary for job in jobs]
    done = {o.operation for job in jobs for o in job.outcomes if o.state is OperationState.COMMITTED}
    assert {"compact", "expire_snapshots", "remove_orphans"} <= done
    table = server.pyiceberg().load_table("db.t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(8)]
    assert len(table.inspect.data_files()) == 1
    assert len(table.snapshots()) == 3  # two of the writer, and the rewrite, which does not count among them
