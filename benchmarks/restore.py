"""Restore of tables to a moment: each alone, then all as one set, then with the process killed at random.

Prints one JSON line. PyIceberg reads what main and the tag of the state before hold; `equal` says that every row is as
it was, and `lost` counts tables that a kill left neither as they were nor restored, or that a second restore did not
bring to the moment.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.kit.bench import options
from benchmarks.kit.lake import CATALOG, NAMESPACE, Lake
from benchmarks.kit.ours import Ours
from icewright.app.bootstrap import application
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.restore import restore

TABLES, COMMITS, SET = 60, 3, 5
BEFORE_RESTORE = "icewright-before-restore-"
CONTEXT = multiprocessing.get_context("forkserver")


def restored(home: Path, names: Sequence[str], to: str, *, together: bool) -> list[float]:
    """Restore tables as the command does, as one set or each alone; the seconds of each restore."""
    refs = [TableRef(CATALOG, (NAMESPACE,), name) for name in names]
    seconds = []
    with application(Ours(home).config, kind="manual") as app:
        reconcile_interrupted(app.runtime)
        for tables in [refs] if together else [[ref] for ref in refs]:
            start = time.perf_counter()
            restore(app.runtime, tables, to)
            seconds.append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True)
class Tables:
    """Tables with a past, as PyIceberg reads them."""

    home: Path
    catalog: SqlCatalog

    @cached_property
    def names(self) -> list[str]:
        """All tables."""
        return [f"t{number:02d}" for number in range(TABLES)]

    def write(self, draw: random.Random) -> None:
        """Let each table grow by some commits, and lose rows by another."""
        for name in self.names:
            table = self.catalog.create_table_if_not_exists((NAMESPACE, name), self._rows(draw).schema)
            for _ in range(COMMITS):
                table.append(self._rows(draw))
            table.delete(f"id < {draw.randrange(400)}")

    @staticmethod
    def _rows(draw: random.Random) -> pa.Table:
        ids = draw.sample(range(1000), 100)
        return pa.table({"id": pa.array(ids, pa.int64()), "text": [str(draw.random()) for _ in ids]})

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """What main of each table holds."""
        return {name: self._digest(name) for name in names}

    def _digest(self, name: str, snapshot_id: int | None = None) -> str:
        table = self.catalog.load_table((NAMESPACE, name))
        rows = table.scan(snapshot_id=snapshot_id).to_arrow().sort_by([("id", "ascending"), ("text", "ascending")])
        return hashlib.sha256(json.dumps(rows.to_pylist()).encode()).hexdigest()

    def tagged(self, name: str) -> set[str]:
        """What the states before restores hold, which tags keep."""
        refs = self.catalog.load_table((NAMESPACE, name)).refs()
        ids = {ref.snapshot_id for tag, ref in refs.items() if tag.startswith(BEFORE_RESTORE)}
        return {self._digest(name, snapshot_id) for snapshot_id in ids}

    def kills(self, count: int, to: str, back: str, seconds: float) -> int:
        """Kill a restore of a set of tables at a random moment, again and again; how many tables were lost."""
        draw, lost = random.Random(7), 0
        for _ in range(count):
            names = draw.sample(self.names, SET)
            before = self.digests(names)
            process = CONTEXT.Process(target=restored, args=(self.home, names, to), kwargs={"together": True})
            process.start()
            process.join(draw.uniform(0, seconds))
            process.kill()
            process.join()
            now = self.digests(names)
            wrong = {
                name
                for name in names
                if now[name] not in (before[name], self.target[name])
                or (now[name] != before[name] and before[name] not in self.tagged(name))
            }
            restored(self.home, names, to, together=True)
            lost += len(wrong | {name for name, digest in self.digests(names).items() if digest != self.target[name]})
            restored(self.home, names, back, together=True)
        return lost

    @cached_property
    def target(self) -> Mapping[str, str]:
        """What each table holds at the moment to which all return; asked for first at that moment."""
        return self.digests(self.names)


def main() -> None:
    """Write, restore, kill, print."""
    chosen = options(__doc__, "30 kills instead of 300").parse_args()
    draw = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        lake = Lake(home)
        lake.create()
        with closing(SqlCatalog(CATALOG, **lake.catalog.pyiceberg_properties())) as catalog:
            tables = Tables(home, catalog)
            tables.write(draw)
            target, to = tables.target, datetime.now(UTC).isoformat()
            tables.write(draw)
            before, back = tables.digests(tables.names), datetime.now(UTC).isoformat()
            with application(Ours(home).config, kind="manual") as app:
                detect(app.runtime, [CATALOG])
            alone = restored(home, tables.names, to, together=False)
            equal = tables.digests(tables.names) == target
            equal = equal and all(tables.tagged(name) == {before[name]} for name in tables.names)
            (together,) = restored(home, tables.names, back, together=True)
            equal = equal and tables.digests(tables.names) == before
            kills = 30 if chosen.quick else 300
            start = time.perf_counter()
            restored(home, tables.names[:SET], to, together=True)
            seconds = time.perf_counter() - start
            restored(home, tables.names[:SET], back, together=True)
            lost = tables.kills(kills, to, back, seconds)
    line = {"benchmark": "restore", "tables": TABLES, "equal": equal, "median_s": round(statistics.median(alone), 4)}
    line |= {"max_s": round(max(alone), 4), "set_s": round(together, 3), "kills": kills, "lost": lost}
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    CONTEXT.set_forkserver_preload([restored.__module__, "benchmarks.kit.ours"])
    main()
