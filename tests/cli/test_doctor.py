"""What is said of a catalog that does not answer, or that has another name in its database."""

from __future__ import annotations

import socket
from datetime import timedelta
from functools import partial

import pytest

from icewright.adapters.engines.spark.pool import first_line
from icewright.adapters.files.local import LocalStorage
from icewright.app.bootstrap import application, read_config
from icewright.app.demo.tables import metrics
from icewright.app.doctor import examine
from icewright.ports import DeleteReport
from tests.cli.workspace import Workspace
from tests.servers.loopback import free_port


class Mute(Exception):
    """An error whose text cannot be had, as that of a Java exception whose JVM does not answer."""

    def __str__(self) -> str:
        """Fail."""
        raise ConnectionError


@pytest.mark.external
def test_a_catalog_that_does_not_answer(workspace: Workspace) -> None:
    """It is named as that, once, and Spark, which would wait for it for a minute, is not started to ask it again."""
    text = f"state: sqlite:///x.db\ncatalogs: {{r: {{type: rest, properties: {{uri: 'http://127.0.0.1:{free_port()}'}}}}}}\n"
    workspace.path.write_text(text, encoding="utf-8")
    with application(read_config(workspace.path), kind="test") as app:
        checks = {check.name: check for check in examine(app)}
    assert [name for name, check in checks.items() if "does not answer" in check.result] == ["catalog r"]
    pool = checks["pool default"]
    assert (pool.ok, pool.result) == (False, "not tried, as nothing can be read of r")


@pytest.mark.external
def test_a_catalog_that_hangs(workspace: Workspace) -> None:
    """It is given up when its time is over, is not asked for more, and what comes after it is checked."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = f"state: sqlite:///x.db\ncatalogs: {{r: {{type: rest, properties: {{uri: '{uri}'}}}}}}\n"
        workspace.path.write_text(text, encoding="utf-8")
        with application(read_config(workspace.path), kind="test") as app:
            checks = {check.name: check for check in examine(app, timedelta(seconds=0.5))}
    assert [name for name, check in checks.items() if "no answer within 0.5 s" in check.result] == ["catalog r"]
    assert checks["pool default"].result == "not tried, as nothing can be read of r"


@pytest.mark.external
def test_a_catalog_that_is_called_otherwise(workspace: Workspace) -> None:
    """Its tables are not missing: their catalog is named, by the list of tables and by the checks."""
    workspace.make(partial(metrics, commits=1, rows_per_file=2))
    text = workspace.path.read_text(encoding="utf-8").replace("  lake:", "  prod:")
    workspace.path.write_text(text, encoding="utf-8")
    result = workspace("tables")
    assert (result.code, result.out) == (0, "Tables: none\n")
    assert "no table is in catalog prod, but its database has some in lake" in result.err
    workspace("config", "set", "prod.ops", "importance=high")
    with application(read_config(workspace.path), kind="test") as app:
        app.runtime.store.tables.record_listing(
            "lake", app.runtime.catalogs["prod"].neighbours(), app.runtime.clock.now()
        )
        policy, check = (c for c in examine(app) if c.name in ("policy", "catalog prod"))
    assert policy.result.endswith("no known table is in prod.ops")
    assert (check.ok, "has some in lake" in check.result) == (False, True)


@pytest.mark.external
def test_a_place_from_which_nothing_can_be_deleted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is at fault, as nothing could be cleaned up there, and so it is when the doctor looks again."""
    monkeypatch.setattr(
        LocalStorage, "delete", lambda _self, paths, _limit: DeleteReport((), dict.fromkeys(paths, "no"))
    )
    with application(read_config(workspace.path), kind="test") as app:
        for _ in range(2):
            (check,) = (check for check in examine(app) if check.name.startswith("storage "))
            assert (check.ok, "could not be deleted again: no" in check.result) == (False, True)


def test_an_error_without_a_text() -> None:
    """What Spark's errors say is their first line; one that cannot say anything is named by its kind."""
    assert first_line(ValueError("a\nb")) == "a"
    assert first_line(Mute()).startswith("Mute without a message")


@pytest.mark.external
def test_a_wrong_path(workspace: Workspace) -> None:
    """A catalog's file and a warehouse that are not there are named once, and not made; nothing is called not due."""
    text = workspace.path.read_text(encoding="utf-8").replace("catalog.db", "c.db").replace("/warehouse", "/wh")
    workspace.path.write_text(text, encoding="utf-8")
    with application(read_config(workspace.path), kind="test") as app:
        results = {check.name: check.result for check in examine(app)}
    assert results["catalog lake"].startswith("there is no file")
    assert results[f"storage file://{workspace.home}/wh"].startswith("there is no such folder")
    assert not (workspace.home / "wh").exists()
    explained = workspace("explain")
    assert (explained.code, explained.out) == (1, "")
    assert explained.err.count("there is no file") == 1
    assert workspace("tables").err.startswith("lake: there is no file")
