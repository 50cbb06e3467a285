"""A process that dies at any moment of an expiry or an orphan removal, on real files: nothing readable is lost.

Between any two calls of a port the process "dies": from then on every call fails. Another process then starts, settles
what is left and makes its own pass. Whatever the moment, in the end the table reads as before, nobody holds it, the
ledger has no open plan, and the second process gets the table to where the first would have got it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog

from icewright.adapters.engines.service.deletion import Deletion
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.adapters.engines.service.rewrite_manifests import RewriteManifestsInService
from icewright.app.bootstrap import Application, application, pyiceberg_catalog_properties, read_config
from icewright.app.demo.rot import Lake, metrics, uploads
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.execute import execute, settle_interrupted
from icewright.flow.operation import Request
from icewright.flow.world import World
from icewright.testing import NOW, FixedClock

CONFIG = """\
state: sqlite:///state.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "file://{home}/warehouse"}}
cache: {{folder: "{home}/cache"}}
policy: [{{set: {{remove_orphans.mode: delete}}}}]
"""
WRITES = {"claim", "finish", "run_recorded", "evaluated", "plan", "settle", "forget", "commit", "delete", "tidy"}
READS = {"tables", "history", "found", "cancel_requested", "pointers", "load", "facts", "read", "listing"}


class Dead(BaseException):
    """The process is gone: no handler of its own runs any more."""


@dataclass
class Life:
    """How many calls of the ports the process lives for."""

    left: int
    calls: list[str] = field(default_factory=list)

    def call(self, name: str) -> None:
        """One more call, or the end."""
        if self.left <= 0:
            raise Dead
        self.left -= 1
        self.calls.append(name)


class Mortal:
    """A port of a process that may die: before any call, and halfway through a deletion."""

    def __init__(self, port: Any, life: Life) -> None:
        self._port, self._life = port, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in WRITES | READS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._life.call(name)
            if name == "delete" and self._life.left == 0:
                found(args[0][: len(args[0]) // 2], args[1])
                raise Dead
            return found(*args, **kwargs)

        return call


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small tables, one with old snapshots and one with orphans, known to the store; tests restore it."""
    home = tmp_path_factory.mktemp("crash") / "home"
    (home / "warehouse").mkdir(parents=True)
    (home / "icewright.yaml").write_text(CONFIG.format(home=home), encoding="utf-8")
    config = read_config(home / "icewright.yaml")
    catalog = PyIcebergCatalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
    lake = Lake(catalog, no_spark, home / "warehouse", NOW)
    metrics(lake, commits=20, rows_per_file=2)
    uploads(lake, old=3, young=1)
    catalog.close()
    with opened(home) as app:
        app.world.store.detected("lake", app.world.catalogs["lake"].pointers(), NOW)
    shutil.copytree(home, home.with_name("backup"))
    return home


def restore(lakehouse: Path) -> None:
    """The lakehouse as it was made, in the place that its metadata names."""
    shutil.rmtree(lakehouse)
    shutil.copytree(lakehouse.with_name("backup"), lakehouse)


def no_spark() -> NoReturn:
    """Spark is not wanted here."""
    raise AssertionError


def opened(home: Path) -> Any:
    """The application with a clock of its own."""
    return application(read_config(home / "icewright.yaml"), kind="cycle", clock=FixedClock(NOW))


def mortal(app: Application, life: Life) -> World:
    """The same world, whose every port is mortal, the engines' too."""
    world = app.world
    files, store = Mortal(world.files, life), Mortal(world.store, life)
    catalogs = {name: Mortal(catalog, life) for name, catalog in world.catalogs.items()}
    guard = replace(app.engines.orphans.guard, catalogs=catalogs)
    engine = replace(
        app.engines,
        catalogs=catalogs,
        expire=replace(app.engines.expire, deletion=Deletion(files, store, world.clock), guard=guard),
        orphans=RemoveOrphansInService(Deletion(files, store, world.clock), guard),
        manifests=RewriteManifestsInService(files, world.clock),
    )
    return replace(world, catalogs=catalogs, files=files, store=store, engine=engine)


def run(world: World, name: str, operation: Operation) -> JobState:
    """One job by hand."""
    return execute(world, Request(TableRef.parse(name), (operation,), by_hand=True)).state


def files_of(home: Path) -> set[Path]:
    """Every file of the warehouse."""
    return {path for path in (home / "warehouse").rglob("*") if path.is_file()}


def live(app: Application, name: str) -> set[Path]:
    """Every file that the table reaches now."""
    metadata = app.world.catalogs["lake"].load(TableRef.parse(name))
    found = {s.manifest_list for s in metadata.snapshots}
    listed = [m for s in metadata.snapshots for m in app.world.files.manifests(s)]
    found |= {m.path for m in listed}
    entries = app.world.files.entries(list({m.path: m for m in listed}.values())).to_pylist()
    found |= {e["path"] for e in entries if e["status"] != 2}
    return {Path(str(path).removeprefix("file://")) for path in found if path}


CASES = {
    "expiry": ("lake.ops.metrics", Operation.EXPIRE_SNAPSHOTS),
    "orphans": ("lake.ops.uploads", Operation.REMOVE_ORPHANS),
}


def left_of(home: Path) -> set[str]:
    """Every file of the warehouse but metadata files: a commit that was lost leaves its own, to be found as orphan."""
    return {path.name for path in files_of(home) if not path.name.endswith(".metadata.json")}


def second_life(home: Path, name: str, operation: Operation) -> Iterator[str]:
    """What another process finds and does after the first one died; gives what is wrong with that."""
    with opened(home) as app:
        store = app.world.store
        if not live(app, name) <= files_of(home):
            yield "a live file is gone after the crash"
        settle_interrupted(app.world, lambda _: True)
        if any(row.held_by for row in store.tables()):
            yield "a table stays held"
        if store.unfinished():
            yield "planned deletions stay open"
        if not live(app, name) <= files_of(home):
            yield "settling deleted a live file"
        if run(app.world, name, operation) not in (JobState.SUCCEEDED, JobState.SKIPPED):
            yield "the second run failed"
        if not live(app, name) <= files_of(home) or store.unfinished():
            yield "the second run left damage"


@pytest.mark.cases(13, 19)
@pytest.mark.parametrize("case", CASES)
def test_death_at_any_moment(lakehouse: Path, case: str) -> None:
    """The next process finishes the work or does it anew; no live file is gone, and no table stays held."""
    name, operation = CASES[case]
    whole = Life(10_000)
    restore(lakehouse)
    with opened(lakehouse) as app:
        assert run(mortal(app, whole), name, operation) is JobState.SUCCEEDED
    left = left_of(lakehouse)
    wrong: list[str] = []
    for moment, call in enumerate(whole.calls):
        if moment and not WRITES & set(whole.calls[max(0, moment - 2) : moment]):
            continue  # nothing was written since the last moment
        restore(lakehouse)
        with opened(lakehouse) as app, pytest.raises(Dead):
            run(mortal(app, Life(moment)), name, operation)
        found = list(second_life(lakehouse, name, operation))
        if left_of(lakehouse) != left:
            found.append(f"other files are left: {sorted(left_of(lakehouse) ^ left)}")
        wrong += [f"died before call {moment}, {call}: {text}" for text in found]
    assert not wrong


def test_a_lease_that_ran_out_is_enough(lakehouse: Path) -> None:
    """Without knowing that the process is dead, another one takes over after two minutes."""
    name, operation = CASES["expiry"]
    restore(lakehouse)
    with opened(lakehouse) as app, pytest.raises(Dead):
        run(mortal(app, Life(8)), name, operation)
    with opened(lakehouse) as app:
        assert settle_interrupted(app.world, lambda _: False) == []
        assert run(app.world, name, operation) is JobState.SKIPPED
        app.world.clock.sleep(timedelta(seconds=121).total_seconds())
        settle_interrupted(app.world, lambda _: False)
        assert run(app.world, name, operation) is JobState.SUCCEEDED
