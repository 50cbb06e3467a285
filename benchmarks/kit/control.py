"""Icewright without an engine, in a process of its own: `python -m benchmarks.kit.control CONFIG`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.kit.child import Answer, measured, serve
from benchmarks.kit.lake import CATALOG, Lake
from benchmarks.kit.ours import profiled
from icewright.app.bootstrap import application, read_config, upgrade_store
from icewright.app.service import freeze_garbage_collector
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.queue import Planning, plan_now

_CONFIG = """\
state: {state}
catalogs:
  {catalog}: {{type: sql, enabled: true, properties: {{uri: "{uri}", warehouse: "{warehouse}"}}}}
cache: {{folder: "{home}/cache"}}
server: {{port: 0}}
"""


def configured(lake: Lake, state: str) -> Path:
    """A configuration of Icewright over the lake, and its store at its newest revision."""
    path = lake.home / "icewright.yaml"
    path.write_text(_CONFIG.format(state=state, catalog=CATALOG, home=lake.home, **lake.properties), encoding="utf-8")
    upgrade_store(read_config(path))
    return path


class Control:
    """Answers the questions of a benchmark."""

    def __init__(self, path: Path) -> None:
        self.opened = application(read_config(path), kind="service")
        self.app = self.opened.__enter__()
        freeze_garbage_collector()

    def detect(self, *, profile: bool = False) -> Answer:
        """Ask the catalog once for its tables."""
        runtime = self.app.runtime
        with profiled(profile), measured() as found:
            result = detect(runtime, [CATALOG])
        if result.errors:
            raise RuntimeError(str(result.errors))
        return found.answer(tables=result.tables, moved=result.changed)

    def fingerprint(self) -> Answer:
        """By what a table is known to have been held against the policy as it is."""
        ref = TableRef(CATALOG, ("any",), "any")
        return {"policy": self.app.runtime.policy().knobs_for(ref, None).fingerprint}

    def plan(self, *, profile: bool = False) -> Answer:
        """What would start, and what waits."""
        with profiled(profile), measured() as found:
            made = plan_now(self.app.runtime, [CATALOG])
        return found.answer(jobs=len(made.jobs), waiting=len({waits.ref for waits in made.deferred}))

    def tick(self, *, profile: bool = False) -> Answer:
        """Plan, queue what is admitted, and write down why all else waits, and at which place."""
        with profiled(profile), measured() as found:
            queued = Planning(self.app.runtime).due()
        return found.answer(queued=queued)

    def pages(self, repeats: int) -> Answer:
        """Seconds of what people and workers ask of the store again and again."""
        store, now = self.app.runtime.store, self.app.runtime.clock.now
        newest = store.jobs.list(limit=1)[0]
        asked: Mapping[str, Callable[[], object]] = {
            "take": lambda: store.jobs.dequeue("benchmark", [CATALOG], now(), 1),
            "jobs": lambda: store.jobs.list(limit=50),
            "jobs of a table": lambda: store.jobs.list(newest.ref),
            "job": lambda: store.jobs.get(newest.job_id),
            "job by its beginning": lambda: store.jobs.get(newest.job_id[:-1]),
            "runs of a job": lambda: store.runs.list(newest.job_id),
            "table": lambda: store.tables.get(newest.ref),
            "history of a table": lambda: store.runs.history(newest.ref, newest.table_uuid),
        }
        return {name: [_seconds(ask) for _ in range(repeats)] for name, ask in asked.items()}


def _seconds(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


if __name__ == "__main__":
    control = Control(Path(sys.argv[1]))
    try:
        asked: Mapping[str, Callable[..., Answer]] = {
            "detect": control.detect,
            "fingerprint": control.fingerprint,
            "plan": control.plan,
            "tick": control.tick,
            "pages": control.pages,
        }
        serve(asked)
    finally:
        control.opened.__exit__(None, None, None)
