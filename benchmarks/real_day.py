"""A real day against its simulation: real commits and real jobs on a virtual clock, and the same commits simulated.

Prints one JSON line. A writer commits a file every five minutes into a table without partitions; the default policy
looks once an hour, and Spark rewrites. What is compared: data files on average, bytes that were written, and seconds of
compaction; how many files there are at a moment depends on whether the last merge was an hour before or after it.
`worst` is how far the worst is off. Seconds are those of processors, of this process and all that it started, so that
a busy machine measures as an idle one. Predictions count from an operation's sixth run. `slowness` is how many such
seconds the day's own runs took for one of the simulation's, which reckons with it, as what costs more is done less.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, NestedField, TimestamptzType

from benchmarks.kit.bench import options
from benchmarks.kit.child import ProcessorTime
from icewright.app.bootstrap import Application, application, pyiceberg_catalog_properties, read_config
from icewright.app.demo.files import millis
from icewright.app.demo.lake import Lake
from icewright.core.cost import REWRITES, SPARK_MEMORY_GB, RewriteSpeed
from icewright.core.policy import Operation
from icewright.core.runs import Outcome
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.trace import writes_of
from icewright.core.simulation.writes import Source
from icewright.core.steps import Kernel
from icewright.core.table import TableRef
from icewright.core.tally import closeness
from icewright.flow.cycle import run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request

HOURS, QUICK_HOURS = 24, 10
EVERY = timedelta(minutes=5)
ROWS, ROW_BYTES = 256, 4096  # of a file, which nothing compresses
ALLOWED = 0.25
NAME = "bench.day"
_CONFIG = """\
state: sqlite:///{home}/state.db
catalogs:
  lake:
    type: sql
    enabled: true
    properties: {{uri: "sqlite:///{home}/catalog.db", warehouse: "file://{home}/warehouse"}}
cache: {{folder: "{home}/cache"}}
"""
_SCHEMA = Schema(NestedField(1, "ts", TimestamptzType()), NestedField(2, "payload", BinaryType()))
_LEARNED = 5  # runs of an operation, after which its predictions count


@dataclass
class VirtualClock:
    """A clock that goes as processors work for this benchmark, from a time that was set."""

    processors: ProcessorTime = field(default_factory=ProcessorTime)
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    def now(self) -> datetime:
        """Return the virtual time."""
        return self.since + timedelta(seconds=self.processors.seconds())

    def sleep(self, seconds: float) -> None:
        """Wait in real time."""
        time.sleep(seconds)

    def set(self, at: datetime) -> None:
        """Continue from another time."""
        self.since = at - timedelta(seconds=self.processors.seconds())


@dataclass
class Day:
    """A table whose commits and jobs are real, and their times virtual."""

    app: Application
    lake: Lake
    clock: VirtualClock
    name: str
    seen: set[int] = field(default_factory=set)
    outcomes: list[Outcome] = field(default_factory=list)

    def create(self) -> None:
        """Make the table."""
        identifier = self.lake.identifier(self.name)
        self.lake.catalog.create_table(identifier, _SCHEMA)

    @property
    def table(self) -> Table:
        """Return the table as the catalog has it."""
        return self.lake.catalog.load_table(self.lake.identifier(self.name))

    @property
    def ref(self) -> TableRef:
        """Return the table's full name."""
        namespace, name = self.name.split(".")
        return TableRef("lake", (namespace,), name)

    def write(self, times: Sequence[datetime]) -> None:
        """Commit a file at each of the times."""
        table = self.table
        for at in times:
            rows = {"ts": [at] * ROWS, "payload": [os.urandom(ROW_BYTES) for _ in range(ROWS)]}
            table.append(pa.table(rows, schema=table.schema().as_arrow()))
        self._dated(times[0], EVERY)

    def maintain(self, at: datetime) -> None:
        """Let a cycle of the service run."""
        self.clock.set(at)
        result = run_cycle(self.app.runtime, ["lake"])
        assert not result.errors, result.errors
        self.outcomes += [outcome for job in result.jobs for outcome in job.outcomes]
        self._dated(at, timedelta(seconds=1))

    def _dated(self, first: datetime, step: timedelta) -> None:
        """Give the new snapshots virtual times, by a metadata file without a log of earlier ones."""
        location = Path(self.table.metadata_location.removeprefix("file://"))
        document = json.loads(location.read_text(encoding="utf-8"))
        fresh = [s["snapshot-id"] for s in document["snapshots"] if s["snapshot-id"] not in self.seen]
        self.seen |= set(fresh)
        times = {snapshot: millis(first + step * number) for number, snapshot in enumerate(fresh)}
        for entry in (*document["snapshots"], *document["snapshot-log"]):
            entry["timestamp-ms"] = times.get(entry["snapshot-id"], entry["timestamp-ms"])
        if times:
            document |= {"metadata-log": [], "last-updated-ms": max(times.values())}
            number = int(location.name.partition("-")[0]) + 1
            path = location.with_name(f"{number:05d}-{uuid.uuid4()}.metadata.json")
            path.write_text(json.dumps(document), encoding="utf-8")
            self.lake.point(self.name, f"file://{path}")

    def measured(self, end: datetime) -> dict[str, float]:
        """Return what the snapshots say of files and bytes, and the runs of seconds."""
        snapshots = sorted(self.table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
        said = [(s.timestamp_ms / 1000, s.summary.additional_properties if s.summary else {}) for s in snapshots]
        ends = [*(at for at, _ in said[1:]), end.timestamp()]
        held = sum(int(s["total-data-files"]) * (until - at) for (at, s), until in zip(said, ends, strict=True))
        compactions = [o for o in self.outcomes if o.operation is Operation.COMPACT]
        return {
            "average_files": held / (end.timestamp() - said[0][0]),
            "bytes": float(sum(int(s.get("added-files-size", 0)) for _, s in said)),
            "seconds": sum(o.metrics.get("gb_hours", 0.0) for o in compactions) * 3600 / SPARK_MEMORY_GB,
        }

    def slowness(self) -> float:
        """Return how many times the seconds of the simulation compactions took."""
        ran = [o.metrics for o in self.outcomes if o.operation is Operation.COMPACT and "files_merged" in o.metrics]
        expected = sum(REWRITES[Kernel.ARROW].seconds(int(m["files_merged"]), int(m["bytes_rewritten"])) for m in ran)
        return sum(m["gb_hours"] for m in ran) * 3600 / SPARK_MEMORY_GB / expected if ran else 1.0

    def simulated(self, begin: datetime, end: datetime, slowness: float) -> dict[str, float]:
        """Return the same of the simulation of the table's own history, by the default policy.

        A merge that costs more than the model says may not pay any more; one that costs less is due by the model.
        """
        writes = writes_of(self.app.runtime.catalogs["lake"].load(self.ref))
        limits, dearer = Slots(self.app.config.limits), max(1.0, slowness)
        with machine(dearer):
            found = simulate(
                [Source(self.ref, partial(iter, writes))], self.app.config.policy, Span(begin, end), limits
            )
        seconds = found.gb_hours_by_operation.get(Operation.COMPACT, 0.0) * 3600 / SPARK_MEMORY_GB
        return {
            "average_files": found.average_files,
            "bytes": float(found.series[-1].stored_bytes),
            "seconds": seconds * slowness / dearer,
        }

    def predictions(self) -> tuple[int, int]:
        """Return how many predictions were within twice or half of what runs took, and how many runs were not small."""
        near = all_ = 0
        for operation in Operation:
            taken = [o.metrics for o in self.outcomes if o.operation is operation and "gb_hours_predicted" in o.metrics]
            for metrics in taken[_LEARNED:]:
                found = closeness(metrics)
                all_, near = all_ + (found in ("near", "far")), near + (found == "near")
        return near, all_


@contextmanager
def opened(home: Path, clock: VirtualClock) -> Iterator[tuple[Application, Lake]]:
    """Open a lakehouse in a folder, with Spark of its own."""
    (home / "warehouse").mkdir()
    (home / "icewright.yaml").write_text(_CONFIG.format(home=home), encoding="utf-8")
    config = read_config(home / "icewright.yaml")
    catalog: Catalog = load_catalog("lake", **pyiceberg_catalog_properties(config.catalogs["lake"]))
    with application(config, kind="manual", clock=clock) as app:
        app.pools["default"].reserved.clock = clock.processors.seconds
        yield app, Lake(catalog, app.pools["default"].session, home / "warehouse", clock.now())
    catalog.close()


def warm(app: Application, lake: Lake, clock: VirtualClock) -> None:
    """Compact a table of its own, so that the day finds Spark warm, as the simulation takes it to be."""
    other = Day(app, lake, clock, "bench.warm")
    other.create()
    for round_ in range(3):
        other.write([clock.now() - timedelta(days=3) + timedelta(minutes=5 * n + 60 * round_) for n in range(6)])
        run_cycle(app.runtime, ["lake"], dry_run=True)
        execute(app.runtime, Request(other.ref, (Operation.COMPACT,), manual=True))
    lake.catalog.drop_table(lake.identifier(other.name))


@contextmanager
def machine(slowness: float) -> Iterator[None]:
    """Let the simulation reckon with a machine that takes so many times as long: costs decide what is done."""
    idle = dict(REWRITES)
    REWRITES.update(
        {k: RewriteSpeed(s.call * slowness, s.file * slowness, s.mb_per_second / slowness) for k, s in idle.items()}
    )
    yield
    REWRITES.update(idle)


def compared(measured: Mapping[str, float], simulated: Mapping[str, float]) -> dict[str, Any]:
    """Return simulated over measured, and how far the worst is off."""
    ratios = {name: simulated[name] / taken for name, taken in measured.items()}
    worst = max(max(ratio, 1 / ratio) - 1 for ratio in ratios.values())
    return {
        "measured": {name: round(value, 2) for name, value in measured.items()},
        "simulated": {name: round(value, 2) for name, value in simulated.items()},
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "worst": round(worst, 3),
        "same_result": worst <= ALLOWED or f"a simulated figure is further off than {ALLOWED:.0%}: see ratios",
    }


def main() -> None:
    """Let the day pass, simulate it, print."""
    chosen = options(__doc__, f"{QUICK_HOURS} hours instead of {HOURS}").parse_args()
    hours, began = QUICK_HOURS if chosen.quick else HOURS, time.perf_counter()
    begin = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    clock = VirtualClock()
    with tempfile.TemporaryDirectory() as home, opened(Path(home), clock) as (app, lake):
        warm(app, lake, clock)
        day = Day(app, lake, clock, NAME)
        clock.set(begin)
        day.create()
        for hour in range(hours):
            start = begin + timedelta(hours=hour)
            day.write([start + EVERY * n for n in range(timedelta(hours=1) // EVERY)])
            day.maintain(start + timedelta(hours=1))
        end = begin + timedelta(hours=hours, minutes=5)  # the last hour's jobs are in it
        slowness, measured = day.slowness(), day.measured(end)
        found, (near, predicted) = compared(measured, day.simulated(begin, end, slowness)), day.predictions()
    line = {"benchmark": "real_day", "peer": "the simulation of the same commits", "hours": hours, **found}
    line |= {
        "slowness": round(slowness, 2),
        "predictions_near": near,
        "predictions": predicted,
        "ours_s": round(time.perf_counter() - began, 1),
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
