"""Icewright without an engine, in a process of its own: `python -m benchmarks.kit.control CONFIG`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.kit.child import Answer, measured, serve
from benchmarks.kit.lake import CATALOG, Lake
from benchmarks.kit.ours import profiled
from icewright.app.bootstrap import application, read_config, upgrade_store
from icewright.app.service import spare_the_collector
from icewright.flow.detect import detect

_CONFIG = """\
state: {state}
catalogs:
  {catalog}: {{type: sql, enabled: true, properties: {{uri: "{uri}", warehouse: "{warehouse}"}}}}
cache: {{folder: "{home}/cache"}}
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
        spare_the_collector()

    def detect(self, *, profile: bool = False) -> Answer:
        """Ask the catalog once for its tables."""
        world = self.app.world
        with profiled(profile), measured() as found:
            result = detect(world, [CATALOG])
        if result.errors:
            raise RuntimeError(str(result.errors))
        return found.answer(tables=result.tables, moved=result.moved)


if __name__ == "__main__":
    control = Control(Path(sys.argv[1]))
    try:
        serve({"detect": control.detect})
    finally:
        control.opened.__exit__(None, None, None)
