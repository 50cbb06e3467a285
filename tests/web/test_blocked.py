"""A table that a safety rule blocks is shown as blocked, everywhere and before any scan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icewright.app.web.pages.urls import table_url
from icewright.core.alerts import AlertRule, Begin, default_terms
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.flow.alert import judge
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.runtime import Scope
from icewright.ports.views import TableQuery
from tests.web.conftest import Served

pytestmark = [pytest.mark.external, pytest.mark.cases(156)]
SHARED = "s3://lake/sales/orders"


def _evaluate_all(served: Served) -> None:
    """Evaluate the tables that are due for it, with orphan removal on, until none is."""
    served.bench.settings = {}
    store, clock = served.bench.store, served.bench.clock
    store.tables.schedule_evaluation([served.ref], clock.now())
    for _ in range(3):
        for row in store.tables.list():
            if row.evaluate_at is not None and row.evaluate_at <= clock.now():
                evaluate_and_record(served.runtime, row.ref, clock.now())


@pytest.mark.parametrize("location", [SHARED, f"{SHARED}/", f"{SHARED}/inner", "s3://lake/sales"])
def test_tables_that_share_a_place_are_blocked(served: Served, location: str) -> None:
    """List, overview, page and alerts show both tables as blocked, whichever was evaluated first."""
    other = served.bench.table("copy", location=location)
    served.bench.table("apart", location="s3://lake/sales/orders-2020")
    served.bench.store.tables.record_listing("lake", served.bench.catalog.pointers(), served.bench.clock.now())
    _evaluate_all(served)
    client = served.client()
    rows = client.get("/api/v1/tables?state=blocked").json()["items"]
    expected = {str(served.ref), str(other)} | ({"lake.sales.apart"} if location == "s3://lake/sales" else set())
    assert {row["table"] for row in rows} == expected
    assert all(row["blocked"].startswith("remove_orphans: ") and "[shared_location]" in row["blocked"] for row in rows)
    assert "[shared_location]" in client.get("/tables").text
    overview = client.get("/api/v1/overview").json()
    assert overview["states"]["blocked"] == len(expected)
    assert "healthy" not in {r["state"] for r in client.get("/api/v1/tables").json()["items"] if r["table"] in expected}
    assert f"{len(expected)} blocked" in client.get("/").text
    assert "Blocked: remove orphans." in client.get(table_url(served.ref), headers={"accept": "text/html"}).text
    verdicts = client.get(f"/api/v1/tables/{served.ref}").json()["verdicts"]
    (orphans,) = [verdict for verdict in verdicts if verdict["operation"] == Operation.REMOVE_ORPHANS]
    assert orphans["verdict"] == "blocked"
    assert orphans["reason"].endswith("[shared_location]")
    blocked = served.bench.store.alerts.reported(AlertRule.TABLE_BLOCKED, ["lake"])
    assert blocked.keys() == {TableRef.parse(name) for name in expected}


def test_a_blocked_table_raises_an_alert(served: Served) -> None:
    """Its message names the table in the way and ends with the code; a disabled catalog raises none and ends none."""
    served.bench.table("copy", location=SHARED)
    served.bench.store.tables.record_listing("lake", served.bench.catalog.pointers(), served.bench.clock.now())
    _evaluate_all(served)
    now, disabled = served.bench.clock.now(), replace(served.runtime, scopes={"lake": Scope(enabled=False)})
    assert not judge(disabled, default_terms(), now)
    changes = judge(served.runtime, default_terms(), now)
    begun = [change.condition for change in changes if isinstance(change, Begin) and change.raised]
    raised = [condition for condition in begun if condition.rule is AlertRule.TABLE_BLOCKED]
    assert {str(condition.ref) for condition in raised} == {"lake.sales.orders", "lake.sales.copy"}
    assert all(condition.message.endswith("[shared_location]") for condition in raised)
    served.bench.store.alerts.record_changes(changes, [], now)
    assert not judge(disabled, default_terms(), now), "a catalog that is disabled by now has the same tables"


def test_what_is_switched_off_blocks_no_table(served: Served) -> None:
    """A choice needs no attention: `gc.enabled=false` and `X.enabled=false` leave the state as it is."""
    ref = served.bench.table("frozen", properties={"gc.enabled": "false"})
    served.bench.store.tables.record_listing("lake", served.bench.catalog.pointers(), served.bench.clock.now())
    _evaluate_all(served)
    item = served.bench.store.views.table_item(ref)
    assert item is not None
    assert item.state != "blocked"
    assert item.blocked is None
    assert served.bench.store.views.list_tables(TableQuery(states=("blocked",)), None, None, 10).items == []
