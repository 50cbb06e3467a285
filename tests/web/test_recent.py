"""What is kept of the store: until it changes, whoever changes it, and never longer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from icewright.app.tokens import token_id
from icewright.app.web.app_state import MAX_ENTRIES, ResponseCache
from icewright.core.permissions import Action
from tests.web.conftest import Served
from tests.web.test_access import API, REQUIRED, bearer


class Store:
    """What has a stamp."""

    def __init__(self) -> None:
        self.stamp: Hashable | None = 1
        self.time = 1.0
        self.cache = ResponseCache(lambda: self.stamp, lambda: self.time)


def numbers() -> Callable[[], int]:
    """Another number each time."""
    return count(1).__next__


def test_kept_until_the_store_changes() -> None:
    """However long that is; each key is worked out for itself."""
    store, work = Store(), numbers()
    assert [store.cache.get("a", work), store.cache.get("a", work), store.cache.get("b", work)] == [1, 1, 2]
    store.time += 3600
    assert store.cache.get("a", work) == 1
    store.stamp = 2
    assert [store.cache.get("a", work), store.cache.get("a", work), store.cache.get("b", work)] == [3, 3, 4]


def test_lately() -> None:
    """A second, whatever the store does; as long as it rests, longer."""
    store, work = Store(), numbers()
    assert store.cache.get("a", work, allow_stale=True) == 1
    store.stamp = 2
    store.time += 0.9
    assert store.cache.get("a", work, allow_stale=True) == 1
    store.time += 0.2
    assert store.cache.get("a", work, allow_stale=True) == 2
    store.time += 5
    assert store.cache.get("a", work, allow_stale=True) == 2
    store.stamp = 3
    store.time += 0.5
    assert store.cache.get("a", work, allow_stale=True) == 3


@pytest.mark.parametrize(("took", "young", "old"), [(0.5, 4.9, 5.1), (60, 29, 31)])
def test_what_takes_long_is_kept_longer(took: float, young: float, old: float) -> None:
    """Ten times as long as it took, half a minute at most, where something older will do."""
    store, number = Store(), numbers()

    def work() -> int:
        store.time += took
        return number()

    assert store.cache.get("a", work, allow_stale=True) == 1
    store.stamp, began = 2, store.time
    store.time = began + young
    assert store.cache.get("a", work, allow_stale=True) == 1
    store.time = began + old
    assert store.cache.get("a", work, allow_stale=True) == 2


def test_without_stamps() -> None:
    """Nothing is kept but for a second where that will do."""
    store, work = Store(), numbers()
    store.stamp = None
    assert [store.cache.get("a", work), store.cache.get("a", work)] == [1, 2]
    assert [store.cache.get("a", work, allow_stale=True), store.cache.get("a", work, allow_stale=True)] == [3, 3]
    store.time += 2
    assert store.cache.get("a", work, allow_stale=True) == 4


def test_changed_meanwhile() -> None:
    """What was read before somebody changed the store is given to nobody who asks after."""
    store, began, changed = Store(), threading.Event(), threading.Event()

    def slow() -> str:
        began.set()
        assert changed.wait(30)
        return "before"

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(store.cache.get, "a", slow)
        assert began.wait(30)
        store.stamp = 2
        changed.set()
        assert store.cache.get("a", lambda: "after") == "after"
        assert first.result() == "before"
    assert store.cache.get("a", lambda: "never") == "after"


def test_nothing_is_kept_of_a_failure() -> None:
    """The next one tries again."""
    store = Store()
    with pytest.raises(ZeroDivisionError):
        store.cache.get("a", lambda: 1 // 0)
    assert store.cache.get("a", lambda: 1) == 1


def test_not_too_much_is_kept() -> None:
    """The cache stays within its size, whatever is asked for."""
    store, work = Store(), numbers()
    for key in range(3 * MAX_ENTRIES):
        store.cache.get(key, work)
    assert len(store.cache._entries) <= MAX_ENTRIES
    store.stamp, store.time = 2, store.time + 2
    store.cache.get("a", work)
    assert len(store.cache._entries) == 1


def test_changes_are_seen_at_once(served: Served) -> None:
    """A change of a table, and the end of a token, by whatever means."""
    client = served.client(served.app(access=REQUIRED))
    headers = bearer(served, "operator")
    at = f"{API}/tables/{served.ref}"
    for reason in ("one", None, "two"):
        assert served.bench.store.tables.pause(served.ref, reason)
        assert client.get(at, headers=headers).json()["paused"] == reason
        assert [one["paused"] for one in client.get(f"{API}/tables", headers=headers).json()["items"]] == [reason]
    found = token_id(headers["authorization"].removeprefix("Bearer "))
    assert found is not None
    assert served.bench.store.access.revoke_token(found, served.bench.clock.now())
    assert client.get(at, headers=headers).status_code == 401


def test_sights_are_kept_apart(served: Served) -> None:
    """What one sees, another is not shown."""
    client = served.client(served.app(access=REQUIRED))
    everywhere, elsewhere = bearer(served, "viewer"), bearer(served, "viewer", "lake.other")
    for _ in range(2):
        assert client.get(f"{API}/tables", headers=everywhere).json()["total"] == 1
        assert client.get(f"{API}/tables", headers=elsewhere).json()["total"] == 0
        assert client.get(f"{API}/tables/{served.ref}", headers=everywhere).status_code == 200
        assert client.get(f"{API}/tables/{served.ref}", headers=elsewhere).status_code == 404
    refused = served.bench.store.audit.entries(None, None, 10, refused=True, action=str(Action.TABLES_READ))
    assert len(refused) == 2
