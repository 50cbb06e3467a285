"""Icewright in a process of its own, wired as `icewright` wires itself: `python -m benchmarks.kit.ours HOME`."""

from __future__ import annotations

import cProfile
import json
import pstats
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from benchmarks.kit.child import Answer, Measured, measured, serve
from benchmarks.kit.guarding import seconds_of_the_guard
from benchmarks.kit.jvm import Jvm
from benchmarks.kit.known import scanned
from benchmarks.kit.lake import Lake
from benchmarks.kit.listing import Listing
from icewright.adapters.engines.service.remove_orphans import RemoveOrphansInService
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.store.database import open_database
from icewright.app.bootstrap import Application, application, read_config
from icewright.app.service import freeze_garbage_collector
from icewright.core.integrity import CheckLevel
from icewright.core.layering import parse_settings
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import TableRef
from icewright.flow.cycle import detect_and_evaluate, run_cycle
from icewright.flow.detect import detect
from icewright.flow.evaluate import evaluate_and_record, measure
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.queue import plan_now

_CONFIG = """\
state: sqlite:///{home}/ours/state.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {properties}
cache: {{folder: "{home}/ours/cache"}}
pools:
  default:
    max_concurrent: {at_a_time}
    conf: {{spark.driver.memory: 6g, spark.sql.warehouse.dir: "{home}/ours/spark-warehouse"}}
limits: {{global: 1000, per_worker: {at_a_time}, max_jobs_per_detection: 1000, per_operation: {{compact: 1000}}}}
"""
_PROFILE_LINES = 25
_PAGE = 1000  # files that an object store lists at a time
_AT_A_TIME = 3  # jobs on Spark: one more than cores of the machine that this was measured on, as each waits at times


class Ours:
    """Answers the questions of a benchmark."""

    def __init__(self, home: Path) -> None:
        self.home = home / "ours"
        self.home.mkdir(exist_ok=True)
        file = self.home / "icewright.yaml"
        file.write_text(
            _CONFIG.format(home=home, at_a_time=_AT_A_TIME, properties=json.dumps(dict(Lake(home).properties))),
            encoding="utf-8",
        )
        self.config = read_config(file)
        self.jvm: Jvm | None = None
        self.pools: Mapping[str, SparkPool] = {}

    def spark(self) -> Answer:
        """Start Spark, which then stays: what is asked later finds it warm."""
        lasting = replace(self.config, cache_folder=self.home / "spark")
        with application(lasting, kind="manual") as app:
            self.pools = {name: app.pools[entry.pool] for name, entry in self.config.catalogs.items()}
        self.jvm = Jvm(self.pools["lake"].session())
        return {}

    def run(
        self,
        table: str,
        operation: str,
        knobs: Mapping[str, str],
        *,
        dry_run: bool = False,
        listing: Mapping[str, int] | None = None,
        profile: bool = False,
    ) -> Answer:
        """One operation by hand, as `icewright run` with --set, on a table that was evaluated: else nobody ran it."""
        ref = TableRef("lake", ("bench",), table)
        with self._application(parse_settings("--set", knobs), fresh=True) as app:
            runtime = app.runtime
            if listing is not None:
                orphans = _listing_other_files(app, listing)
                runtime = replace(runtime, engine=replace(app.engines, orphans=orphans))
            detect(runtime, ["lake"])  # a table that the store does not know cannot be claimed
            for row in runtime.store.tables.list(
                "lake"
            ):  # a service has evaluated every table before it deletes beside it
                evaluate_and_record(runtime, row.ref, runtime.clock.now())
            request = Request(ref, (Operation(operation),), manual=True, dry_run=dry_run)
            with profiled(profile), self._measured() as found:
                result = execute(runtime, request)
        if [outcome.state for outcome in result.outcomes] != [OperationState.COMMITTED]:
            raise RuntimeError(f"{result.state}: {result.summary}")
        return found.answer(summary=result.summary, rows=[[f.path] for f in result.outcomes[0].files])

    def guard(self, table: str, beside: int) -> Answer:
        """How long one question to the guard of deletions takes beside so many other tables."""
        with self._application({}, fresh=True) as app:
            return {"s": seconds_of_the_guard(app, Lake(self.home.parent), table, beside)}

    def check(self, table: str, delay: float = 0) -> Answer:
        """The check of all files of a table, with a cache that has nothing of it yet, on a disk that is so `far`."""
        with self._application({}, fresh=True) as app, far(delay), self._measured() as found:
            report = app.runtime.engine.check(TableRef("lake", ("bench",), table), CheckLevel.EXISTS)
        return found.answer(rows=[fault.path for fault in report.faults], files=report.files)

    def listing(self, table: str, delay: float = 0) -> Answer:
        """A bare listing of the location of a table, on a disk that is so `far`."""
        with self._application({}, fresh=True) as app:
            location = app.runtime.catalogs["lake"].load(TableRef("lake", ("bench",), table)).location
            with far(delay), self._measured() as found:
                files = sum(batch.num_rows for batch in app.runtime.files.listing(location))
        return found.answer(files=files)

    def cycle(self, knobs: Mapping[str, str], *, fresh: bool, kept: bool = False, profile: bool = False) -> Answer:
        """One pass over all tables, as they are known, or were when it was `kept`, or `fresh`: none was seen yet."""
        if kept:
            self._copy(self.kept, self.home)
        command = parse_settings("--set", knobs)
        with self._application(command, fresh=fresh) as app, profiled(profile), self._measured() as found:
            result = run_cycle(app.runtime, ["lake"])
        faults = [
            f"{job.ref}: {job.state}: {job.summary}" for job in result.jobs if job.state is not JobState.SUCCEEDED
        ]
        if faults or result.errors:
            raise RuntimeError(f"{faults} {result.errors}")
        funnel = [result.tables, result.changed, result.due, result.run]
        return found.answer(rows=[[str(job.ref), job.summary] for job in result.jobs], funnel=funnel)

    def known(self, uuids: Mapping[str, str]) -> Answer:
        """Let an Icewright that has seen no table know these, and have looked for their orphans."""
        with self._application({}, fresh=True) as app:
            detect(app.runtime, ["lake"])
            engine = open_database(self.config.state)
            scanned(engine, uuids, app.runtime.clock.now())
            engine.dispose()
        return {}

    def look(self, knobs: Mapping[str, str]) -> Answer:
        """What a pass does before its jobs: detect, evaluate, plan; from what was kept."""
        self._copy(self.kept, self.home)
        with self._application(parse_settings("--set", knobs), fresh=False) as app, self._measured() as found:
            detect_and_evaluate(app.runtime, ["lake"])
            plan = plan_now(app.runtime, ["lake"])
        return found.answer(rows=[str(job.ref) for job in plan.jobs])

    def keep(self) -> Answer:
        """Put the store and the cache aside as they are."""
        self._copy(self.home, self.kept)
        return {}

    @property
    def kept(self) -> Path:
        """Where the store and the cache are kept."""
        return self.home.with_name("ours-kept")

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        shutil.copy(source / "state.db", target)
        shutil.rmtree(target / "cache", ignore_errors=True)
        shutil.copytree(source / "cache", target / "cache")

    def facts(self, table: str, *, fresh: bool, profile: bool = False) -> Answer:
        """Load the metadata and read the facts, with an empty manifest cache or as the last question left it."""
        ref = TableRef("lake", ("bench",), table)
        with self._application({}, fresh=fresh) as app, profiled(profile), measured() as found:
            facts, _ = measure(app.runtime, app.runtime.policy(), app.runtime.catalog(ref).load(ref))
        return found.answer(rows=sorted((p.values[0], p.data_files, p.data_bytes) for p in facts.partitions))

    @contextmanager
    def _application(self, command: Mapping[str, Any], *, fresh: bool) -> Iterator[Application]:
        """Icewright as it starts; the process is warm, and Spark if it was started; connections and caches are new."""
        if fresh:
            shutil.rmtree(self.config.cache_folder, ignore_errors=True)
            for file in self.home.glob("state.db*"):
                file.unlink()
        with application(self.config, kind="manual", command=command) as app:
            freeze_garbage_collector()  # as commands and the service do
            if not self.pools:
                yield app
                return
            engines = replace(app.engines, spark=replace(app.engines.spark, pools=self.pools))
            yield replace(app, built_engines=lambda: engines, runtime=replace(app.runtime, engine=engines))

    def _measured(self) -> AbstractContextManager[Measured]:
        return self.jvm.measured() if self.jvm else measured()


def _listing_other_files(app: Application, listing: Mapping[str, int]) -> RemoveOrphansInService:
    orphans = app.engines.orphans
    return replace(orphans, deletion=replace(orphans.deletion, files=Listing(app.runtime.files, **listing)))


@contextmanager
def far(delay: float) -> Iterator[None]:
    """Let the disk take as many seconds as an object store for each page of a listing and each file."""
    listing, read = LocalStorage.listing, LocalStorage.read

    def slow_listing(storage: LocalStorage, *where: Any) -> Iterator[pa.RecordBatch]:
        for batch in listing(storage, *where):
            time.sleep(delay * batch.num_rows / _PAGE)
            yield batch

    def slow_read(storage: LocalStorage, *what: Any) -> bytes:
        time.sleep(delay)
        return read(storage, *what)

    slow = patch.multiple(LocalStorage, listing=slow_listing, read=slow_read)
    with slow if delay else nullcontext():
        yield


@contextmanager
def profiled(wanted: bool) -> Iterator[None]:
    """Say on standard error where the block spends its time."""
    if not wanted:
        yield
        return
    with cProfile.Profile() as profile:
        yield
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(_PROFILE_LINES)


if __name__ == "__main__":
    ours = Ours(Path(sys.argv[1]))
    try:
        asked: Mapping[str, Callable[..., Answer]] = {
            "spark": ours.spark,
            "run": ours.run,
            "guard": ours.guard,
            "cycle": ours.cycle,
            "facts": ours.facts,
            "known": ours.known,
            "look": ours.look,
            "keep": ours.keep,
            "check": ours.check,
            "listing": ours.listing,
        }
        serve(asked)
    finally:
        for pool in ours.pools.values():
            pool.stop()
