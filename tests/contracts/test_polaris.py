"""Policies of a Polaris server, over real HTTP: read page by page, kept for bad weather, and no action without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from icewright.adapters.catalogs.rest import RestCatalog
from icewright.adapters.catalogs.translate import rest_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.app.bootstrap import application, read_config
from icewright.core.errors import CatalogUnavailable, ConfigError
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from tests.contracts.bench import FixedClock
from tests.contracts.rest_bench import RestBench
from tests.faulty_proxy import Fault, faulty_proxy
from tests.polaris import ENDPOINT, Polaris, polaris
from tests.servers.rest_server import RestHost

REF = TableRef("lake", ("sales", "eu"), "orders")
COMPACT, EXPIRE = "system.data-compaction", "system.snapshot-expiry"


@pytest.fixture
def server() -> Iterator[Polaris]:
    """A server with two policies for one table."""
    with polaris() as made:
        made.set("sales\x1feu", "orders", (COMPACT, {"enable": False}), (EXPIRE, "not JSON"))
        yield made


@pytest.fixture
def catalog(server: Polaris) -> Iterator[RestCatalog]:
    """Icewright's client, whose waiting takes no time."""
    made = RestCatalog(rest_catalog("lake", {"uri": server.address}), LocalStorage(), FixedClock())
    yield made
    made.close()


def test_policies_are_read_page_by_page_and_not_for_every_question(server: Polaris, catalog: RestCatalog) -> None:
    """By namespace and name as the API has them; asked again after a minute."""
    assert catalog.policies.are_offered()
    settings = dict(pair for _, rule in catalog.policies.of(REF).rules for pair in rule.items())
    assert settings == {"compact.enabled": False, "rewrite_deletes.enabled": False, "expire_snapshots.enabled": False}
    asked = [line for line in server.seen if "policies" in line]
    assert len(asked) == 2
    assert "namespace=sales%1Feu&target-name=orders" in asked[0]
    catalog.policies.of(REF)
    assert len(server.seen) == 3
    catalog.clock.sleep(61)
    catalog.policies.of(REF)
    assert len(server.seen) == 5


def test_policies_that_go_in_a_circle(server: Polaris, catalog: RestCatalog) -> None:
    """The server is asked for no page twice, but for the first, which had no token; nothing is concluded."""
    server.circle = True
    with pytest.raises(CatalogUnavailable, match="lists policies in a circle: page 1 came twice"):
        catalog.policies.of(REF)
    assert sum("policies" in line for line in server.seen) == 3


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_server_that_does_not_tell(server: Polaris, catalog: RestCatalog, status: int) -> None:
    """The last that was known holds and says so; where nothing was known nothing is concluded."""
    server.status = status
    with pytest.raises(CatalogUnavailable, match=r"lake\.sales\.eu\.orders: its policies cannot be read .* nothing is"):
        catalog.policies.of(REF)
    server.status = 200
    known = catalog.policies.of(REF)
    server.status = status
    catalog.clock.sleep(timedelta(days=1).total_seconds())
    last = catalog.policies.of(REF)
    assert [settings for _, settings in last.rules] == [settings for _, settings in known.rules]
    assert all("the server does not answer" in rule for rule, _ in last.rules)


def test_a_server_without_policies_offers_none(server: Polaris, catalog: RestCatalog) -> None:
    """By what its configuration lists."""
    server.offers = False
    assert not catalog.policies.are_offered()


CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake:
    type: {kind}
    enabled: true
    policies: {policies}
    properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse"}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1}}
"""


@pytest.mark.external
def test_a_whole_cycle_heeds_them(rest_fixture: RestHost, tmp_path: Path) -> None:
    """What a policy switches off is not done; without an answer the table is left alone, and it is said."""
    (tmp_path / "warehouse").mkdir()
    address = rest_fixture.serve(tmp_path / "catalog.db", f"file://{tmp_path}/warehouse")
    bench = RestBench(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse", address=address)
    ref = bench.craft("sales.orders").ref
    offered = {"defaults": {}, "overrides": {}, "endpoints": ["GET /v1/{prefix}/namespaces", ENDPOINT]}
    policies = {"applicable-policies": [
        {"policy-type": EXPIRE, "inheritable": True, "name": "keep", "version": 0, "content": '{"enable": false}',
         "inherited": False, "namespace": ["sales"]}
    ]}  # fmt: skip
    with faulty_proxy(address) as proxy:
        proxy.faults.append(Fault("GET /v1/config", times=999, status=200, body=json.dumps(offered).encode()))
        told = Fault("GET /polaris/", times=999, status=403)
        proxy.faults.append(told)
        file = tmp_path / "icewright.yaml"
        said = {"home": tmp_path, "uri": proxy.address, "kind": "rest", "policies": "auto"}
        file.write_text(CONFIG.format(**said))
        with application(read_config(file), kind="manual") as app:
            result = run_cycle(app.runtime, ["lake"])
            assert (result.changed, result.run) == (1, 0)
            assert "policies cannot be read" in dict(result.errors)[str(ref)]
            manual = execute(app.runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
            assert (manual.state, manual.job_id) == (JobState.FAILED, None)
            proxy.faults.remove(told)
            proxy.faults.append(Fault("GET /polaris/", times=999, status=200, body=json.dumps(policies).encode()))
            result = run_cycle(app.runtime, ["lake"], force=True)
            assert [o.operation for job in result.jobs for o in job.outcomes if o.operation == "expire_snapshots"] == []
            verdicts = {v["operation"]: v for v in (app.runtime.store.tables.evaluation(ref) or {})["verdicts"]}
            assert verdicts["expire_snapshots"]["verdict"] != "due"
        file.write_text(CONFIG.format(**{**said, "policies": "none"}))
        with application(read_config(file), kind="manual") as app:
            done = execute(app.runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
            assert done.outcomes[0].state is OperationState.COMMITTED, done.summary
        file.write_text(CONFIG.format(**{**said, "kind": "sql", "policies": "polaris", "uri": "sqlite:///x.db"}))
        with pytest.raises(ConfigError, match=r"catalogs\.lake\.policies: a catalog of type sql has none"):
            read_config(file)
    bench.close()
    rest_fixture.end(address)
