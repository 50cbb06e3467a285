"""Catalogs of type nessie: detection by the commit log, loading with history, commits by compare-and-set."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests

from icewright.adapters.catalogs.nessie import NessieCatalog
from icewright.adapters.catalogs.nessie_client import NessieClient, NessieNotFound
from icewright.core.errors import AccessDenied, CatalogUnavailable, CommitConflict, Refused, TableNotFound
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.table import TableRef
from icewright.flow.copy import copy_table
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.register import register
from icewright.ports import RemoveSnapshots
from tests.vacuuming import NessieWorkspace

pytestmark = pytest.mark.external


@contextmanager
def _catalog(workspace: NessieWorkspace, ref: str = "main") -> Iterator[NessieCatalog]:
    with workspace.opened(ref=ref) as app:
        found = app.runtime.catalogs["lake"]
        assert isinstance(found, NessieCatalog)
        yield found


def test_detection_follows_the_log(workspace: NessieWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """New, moved and dropped tables; all are listed anew only when the last commit is gone from the branch."""
    workspace.rest_table("a", 1)
    workspace.rest_table("b", 1)
    listed: list[str] = []
    real = NessieClient.entries

    def entries(client: NessieClient, hash_: str) -> Mapping[Any, Any]:
        listed.append(hash_)
        return real(client, hash_)

    monkeypatch.setattr(NessieClient, "entries", entries)

    def names(catalog: NessieCatalog) -> dict[str, str]:
        return {p.ref.name: p.metadata_location for p in catalog.pointers()}

    with _catalog(workspace) as catalog:
        first = names(catalog)
        assert set(first) == {"a", "b"}
        assert names(catalog) == first
        workspace.rest_append("a", 2)
        workspace.drop("b")
        workspace.rest_table("c")
        second = names(catalog)
        assert set(second) == {"a", "c"}
        assert second["a"] == workspace.content("a").metadata_location != first["a"]
        assert len(listed) == 1
        workspace.reset()
        assert names(catalog) == {}
        assert len(listed) == 2


def test_a_table_is_copied_and_registered(workspace: NessieWorkspace) -> None:
    """From a branch to its own bucket; names that are taken and namespaces that are not there are refused."""
    workspace.rest_table("t", 2)
    with workspace.opened() as app:
        runtime = app.runtime
        detect(runtime, ["lake"])
        (pointer,) = runtime.catalogs["lake"].pointers()
        place = f"s3://lake/copies/{workspace.space}"
        copied = copy_table(runtime, pointer.ref, place)
        new = replace(pointer.ref, name="copy")
        for wrong, words in (
            (pointer.ref, "exists already"),
            (replace(new, namespace=("nowhere",)), "no such namespace"),
        ):
            with pytest.raises(Refused, match=words):
                register(runtime, wrong, place)
        register(runtime, new, place)
        ours, theirs = (runtime.catalogs["lake"].load(ref) for ref in (new, pointer.ref))
        assert (ours.location, ours.table_uuid) == (place, copied.table_uuid)
        assert [one.snapshot_id for one in ours.snapshots] == [one.snapshot_id for one in theirs.snapshots]
    assert workspace.rest_rows("copy", "main") == workspace.rest_rows("t", "main") == [0, 1]


def test_a_branch_is_a_catalog(workspace: NessieWorkspace) -> None:
    """Each sees its own tables."""
    workspace.rest_table("t", 1)
    workspace.branch("dev")
    workspace.rest_append("t", 5, "dev")
    ref = TableRef("lake", (workspace.space,), "t")
    with _catalog(workspace) as main, _catalog(workspace, "dev") as dev:
        assert main.load(ref).metadata_location != dev.load(ref).metadata_location
        with pytest.raises(TableNotFound, match="branch main has no such table"):
            main.load(TableRef("lake", (workspace.space,), "no"))
    with _catalog(workspace, "nowhere") as catalog, pytest.raises(CatalogUnavailable, match="has no branch nowhere"):
        catalog.pointers()


def test_expiry_and_orphan_removal_are_left_to_vacuum(workspace: NessieWorkspace) -> None:
    """They see one branch alone, whatever the table's properties say."""
    table = workspace.native_table("t", **{"gc.enabled": "true"})
    for number in range(3):
        workspace.native_append(table, number)
    ref = TableRef("lake", (workspace.space,), "t")
    before = workspace.files()
    with workspace.opened() as app:
        detect(app.runtime, ["lake"])
        job = execute(
            app.runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS), manual=True, force=True)
        )
        assert {o.state for o in job.outcomes} == {OperationState.SKIPPED}
        catalog = app.runtime.catalogs["lake"]
        with pytest.raises(Refused, match="icewright vacuum lake"):
            catalog.commit(catalog.load(ref), RemoveSnapshots(frozenset({1}), frozenset()))
    assert workspace.files() == before


@pytest.mark.parametrize("native", [False, True])
def test_manifests_are_rewritten(workspace: NessieWorkspace, *, native: bool) -> None:
    """In the service, by one commit to the branch; rows and history stay, and both sides read the table."""
    if native:
        table = workspace.native_table("t")
        for number in range(6):
            workspace.native_append(table, number)
    else:
        workspace.rest_table("t", 6)
    ref = TableRef("lake", (workspace.space,), "t")
    commits = len(workspace.times())
    with workspace.opened() as app:
        detect(app.runtime, ["lake"])
        job = execute(app.runtime, Request(ref, (Operation.REWRITE_MANIFESTS,), manual=True))
    (outcome,) = job.outcomes
    assert outcome.state is OperationState.COMMITTED, job
    assert len(workspace.times()) == commits + 1
    assert workspace.rest_rows("t", "main") == list(range(6))
    assert len(workspace.metadata("t")["snapshots"]) == (7 if native else 2)


def test_a_commit_on_what_is_not_current_is_a_conflict(workspace: NessieWorkspace) -> None:
    """Nessie itself compares; no file is left behind."""
    table = workspace.native_table("t")
    workspace.native_append(table, 1)
    workspace.native_append(table, 2)
    with workspace.opened() as app:
        catalog = app.runtime.catalogs["lake"]
        assert isinstance(catalog, NessieCatalog)
        (reference,) = catalog.references()
        content = workspace.content("t")
        base = catalog.read(content)
        old = RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset())
        workspace.native_append(table, 3)
        before = workspace.files()
        with pytest.raises(CommitConflict):
            catalog.expire(reference, content, base, old)
        assert workspace.files() == before


@pytest.mark.parametrize(
    ("code", "error", "details"),
    [
        (401, CatalogUnavailable, ""),
        (403, AccessDenied, ""),
        (404, NessieNotFound, ', "errorCode": "REFERENCE_NOT_FOUND"'),
        (404, CatalogUnavailable, ""),
        (500, CatalogUnavailable, ""),
        (200, CatalogUnavailable, ', "references": []'),
        (200, CatalogUnavailable, ', "references": [], "hasMore": true'),
    ],
)
def test_what_the_server_denies_is_told_from_what_is_not_there(code: int, error: type[Exception], details: str) -> None:
    """What the server denies, lacks or fails at are different errors; a gateway's 404 and half a list say nothing."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b'{"message": "said so"%s}' % details.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client = NessieClient("lake", f"http://127.0.0.1:{server.server_port}/api/v2", token="hush")
        said = f"{code} said so" if code >= 400 else "missing required field `hasMore`|how trees goes on"
        with pytest.raises(error, match=said) as caught:
            client.references()
        server.shutdown()
        thread.join()
    assert "hush" not in f"{caught.value} {client}"


def test_a_branch_is_merged_before_main_gets_a_commit(workspace: NessieWorkspace) -> None:
    """Nessie refuses to merge a table that both have changed: maintenance waits, as long as a setting says."""
    table, main = workspace.native_table("t"), TableRef("lake", (workspace.space,), "t")
    for number in range(3):
        workspace.native_append(table, number)
    workspace.branch("stale")
    workspace.native_append(table, 3)
    workspace.branch("etl")
    workspace.rest_append("t", 4, "stale")
    for number in (5, 6):
        workspace.native_append(table, number, "etl")
    workspace.clock.time = now = workspace.now()
    first = workspace.times("etl")[1]

    def merged() -> bool:
        source, target = (workspace.client.reference(name) for name in ("etl", "main"))
        body = {"fromRefName": "etl", "fromHash": source.hash, "isDryRun": True}
        path = f"{workspace.server.api}/trees/main@{target.hash}/history/merge"
        return requests.post(path, json=body, timeout=30).ok

    for hours in (24, 0):
        said = f"policy: [{{set: {{rewrite_manifests.min_manifests: 2, execute.publish_hours: {hours}}}}}]\n"
        with workspace.opened(extra=said) as app:
            catalog = app.runtime.catalogs["lake"]
            assert isinstance(catalog, NessieCatalog)
            base = catalog.load(main)
            assert catalog.unmerged(base, now - timedelta(hours=1)) == [(first, "branch etl of the catalog")]
            assert catalog.unmerged(base, first + timedelta(microseconds=1)) == []
            detect(app.runtime, ["lake"])
            (done,) = execute(app.runtime, Request(main, (Operation.REWRITE_MANIFESTS,))).outcomes
            assert done.state is (OperationState.SKIPPED if hours else OperationState.COMMITTED), done
            assert merged() is bool(hours)
