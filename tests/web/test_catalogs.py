"""Catalogs set by the API and on the page of settings: who may, what is shown, what is written down."""

from __future__ import annotations

import pytest

from icewright.core.permissions import Role
from tests.web.conftest import ELSEWHERE, Served
from tests.web.test_access import API, REQUIRED, bearer
from tests.web.test_pages import BROWSER, FORM, token_of

pytestmark = pytest.mark.external
URL = f"{API}/catalogs/lake"


@pytest.mark.parametrize("role", Role)
def test_admins_alone_set_catalogs(served: Served, role: Role) -> None:
    """Others are refused, and it is written down; the audit log has what an admin set."""
    client = served.client(served.app(access=REQUIRED), host=ELSEWHERE)
    answer = client.put(
        URL,
        json={"enabled": False, "tables": "o*"},
        headers=bearer(served, role, *(["lake"] if role is Role.OWNER else [])),
    )
    entry = served.bench.store.audit.entries(None, None, 1)[0]
    assert (answer.status_code, entry.refused) == ((200, False) if role is Role.ADMIN else (403, True))
    if role is Role.ADMIN:
        assert (entry.action, entry.target) == ("catalogs.change", "catalog lake")
        assert entry.details.items() >= {"enabled": False, "tables": "o*"}.items()
    assert served.runtime.scopes["lake"].enabled is (role is not Role.ADMIN)


def test_what_is_set_is_shown_beside_the_configuration(served: Served) -> None:
    """The catalog as it is now, and as the configuration says, until all is taken back."""
    client = served.client(served.app())
    (before,) = client.get(f"{API}/catalogs").json()
    assert before["configuration"] is None
    body = {"enabled": False, "namespaces": "sales, hr", "detect_interval_seconds": 600}
    changed = client.put(URL, json=body).json()
    file = {"enabled": True, "namespaces": "", "tables": "", "detect_interval_seconds": 60}
    assert changed == {**before, **body, "configuration": file, **{k: changed[k] for k in ("detected_at",)}}
    assert client.get(f"{API}/catalogs").json() == [changed]
    for wrong in ({"detect_interval_seconds": 0}, {"enabled": "perhaps"}, {"pool": "x"}):
        assert client.put(URL, json=wrong).status_code == 422, wrong
    assert client.put(f"{API}/catalogs/pond", json={}).status_code == 404
    assert client.put(URL, json={}).json()["configuration"] is None


def test_the_page_sets_a_catalog_and_takes_it_back(served: Served) -> None:
    """The form has what holds now; what is wrong is said; the page says what the configuration says."""
    client = served.client(served.app())
    fields = {"csrf": token_of(client, "/settings"), "catalog": "lake", "enabled": "false", "tables": "o*"}

    def send(**more: str) -> str:
        return client.post("/do/catalog", data={**fields, **more}, headers={**BROWSER, **FORM}).text

    assert "Catalog lake is set." in send(detect_interval_seconds="30")
    page = client.get("/settings", headers=BROWSER).text
    assert "set here; the configuration says enabled" in page
    assert 'value="30"' in page
    assert not served.runtime.scopes["lake"].enabled
    assert "detect_interval_seconds" in send(detect_interval_seconds="0")
    send(**{"as": "configured"})
    assert served.runtime.scopes["lake"].enabled
