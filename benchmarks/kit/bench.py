"""What the benchmarks against Spark share: a lake, both sides in processes of their own, and the options."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kit.child import Child
from benchmarks.kit.lake import Lake, Saved
from benchmarks.kit.layouts import LAYOUTS
from benchmarks.kit.procedures import rewrite_data_files
from benchmarks.kit.report import Comparison, Run, Turns, in_turn, show
from benchmarks.kit.tables import Seed

QUICK_SECONDS = 40
BESIDE = 10_000  # tables that the guard of deletions knows when it is asked
_WARM = "warm_ours", "warm_peer"
_WARM_FILES, _WARM_ROWS, _WARM_TARGET = 20, 1000, 1.0  # MiB


def options(description: str | None, quick: str) -> argparse.ArgumentParser:
    """The options that all have; `quick` says what is smaller."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--layout", choices=LAYOUTS, default=LAYOUTS[0], help="whose files the table is made of")
    parser.add_argument("--profile", action="store_true", help="where ours spends its time, on standard error")
    return parser


@dataclass
class Bench:
    """A lake in a temporary folder, and both sides on it."""

    lake: Lake
    ours: Child
    spark: Child
    quick: bool
    profile: bool
    warm: bool = False
    found: list[Comparison] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def discard(self) -> int:
        """How many first runs do not count: a quick run's sides are warm by now."""
        return 0 if self.quick and (self.warm or self.found) else 1

    @contextmanager
    def starting(self, *, warmed: bool = False) -> Iterator[None]:
        """Start ours a Spark too while the block runs, which measures nothing; both sides' is there at its end.

        To be `warmed` for a quick run, each side then compacts a table of its own, both at once, which the catalog
        forgets.
        """
        self.ours.begin("spark")
        self.warm = warmed and self.quick
        if self.warm:
            self._seed(*_WARM)
        yield
        self.ours.wait()
        self.spark.ask("sql", statement="SELECT 1")
        if self.warm:
            self._compact(*_WARM)

    def _seed(self, *tables: str) -> None:
        for table in tables:
            seed = Seed(self.lake, table, LAYOUTS[0])
            seed.commits(_WARM_FILES, _WARM_ROWS)
            seed.publish()

    def _compact(self, ours: str, peer: str) -> None:
        knobs = {"compact.target_file_size_mb": str(_WARM_TARGET)}
        self.ours.begin("run", table=ours, operation="compact", knobs=knobs)
        self.spark.ask("sql", statement=rewrite_data_files(peer, _WARM_TARGET))
        self.ours.wait()
        for table in (ours, peer):
            self.lake.forget(table)

    def add(self, compare: Callable[[], Comparison]) -> None:
        """Measure one more shape or peer, if there is time: a quick run ends within a minute."""
        if not self.found or not self.quick or time.perf_counter() - self.started < QUICK_SECONDS:
            self.found.append(compare())

    def operation(
        self,
        saved: Saved,
        operation: str,
        knobs: Mapping[str, str],
        statement: str,
        left: Callable[[Run], Hashable],
        *,
        expected: Hashable | None = None,
        dry_run: bool = False,
    ) -> Turns:
        """An operation of ours against a statement of Spark's, in turn; the table is put back after each run."""

        def ours(*, profile: bool = False) -> Run:
            return self.ours.ask(
                "run", table=saved.table, operation=operation, knobs=knobs, dry_run=dry_run, profile=profile
            )

        def looked_at(run: Run) -> Hashable:
            found = left(run)
            saved.restore()
            return found

        def spark() -> Run:
            return self.spark.ask("sql", statement=statement)

        turns = in_turn(ours, spark, looked_at, expected=expected, discard=self.discard)
        if self.profile:
            ours(profile=True)
            saved.restore()
        return turns

    def guard(self, table: str) -> dict[str, Any]:
        """Measure one question to the guard of deletions about a table, beside many others, as results print it."""
        seconds = self.ours.ask("guard", table=table, beside=BESIDE)["s"]
        return {"guard_s": round(seconds, 3), "tables_beside": BESIDE}


@contextmanager
def bench(
    chosen: argparse.Namespace,
    *,
    java_options: str = "",
    store: Callable[[Path], AbstractContextManager[Mapping[str, str]]] | None = None,
) -> Iterator[Bench]:
    """Both sides started, and ended with the block; Spark may still be starting when the block begins.

    The JVMs of both take `java_options`. What was added is printed at the end. Tables lie in an object store where
    `store` serves one from the folder.
    """
    child = partial(Child, java_options=java_options)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lake = Lake(Path(folder))
        if store is not None:
            lake.serve(stack.enter_context(store(Path(folder))))
        lake.create()
        with child("benchmarks.kit.spark", folder) as spark, child("benchmarks.kit.ours", folder) as ours:
            sides = Bench(lake, ours, spark, chosen.quick, chosen.profile)
            yield sides
            for side in (spark, ours):
                side.leave()  # both end at the same time
    if sides.found:
        show(*sides.found)


def hours_ago(hours: float) -> str:
    """A time as Spark's SQL takes it."""
    return f"TIMESTAMP '{datetime.now(UTC) - timedelta(hours=hours):%Y-%m-%d %H:%M:%S}'"
