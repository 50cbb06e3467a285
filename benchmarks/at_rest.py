"""The service at rest: 10,000 known tables of which none changes, with the intervals that it has by default.

Prints one JSON line. There is no peer: the line holds the limits, and whether they were kept.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import sqlalchemy as sa

from benchmarks.kit.bench import options
from benchmarks.kit.child import Child
from benchmarks.kit.control import configured
from benchmarks.kit.databases import SQLITE, databases
from benchmarks.kit.fleet import ROWS, table_names
from benchmarks.kit.known import fill
from benchmarks.kit.lake import CATALOG, Lake
from icewright.adapters.store.schema import RUNS, TABLES

COUNT, HISTORY = 10_000, 100_000  # tables, and ended jobs
AILING = 100  # every so many tables something is wrong, and an alert open
MOST_MIB, MOST_CPU = 300, 0.02
MEBIBYTE = 1024 * 1024
SETTLE_SECONDS = 15
OFTEN = 0.5  # seconds between two looks at its memory


@dataclass(frozen=True)
class Seen:
    """What the service took over a while."""

    cpu: float  # of one core
    mib: float  # resident, the median
    peak_mib: float  # since it started


def known(lake: Lake, state: str) -> Path:
    """A store that knows all tables as the catalog lists them; the configuration."""
    config = configured(lake, state)
    with Child("benchmarks.kit.control", str(config)) as control:
        policy = control.ask("fingerprint")["policy"]
    store, catalog = sa.create_engine(state), sa.create_engine(lake.catalog.url)
    fill(store, table_names(COUNT), HISTORY, datetime.now(UTC))
    listed = sa.select(TABLES.c.name, TABLES.c.namespace, TABLES.c.metadata_location)
    with store.begin() as connection:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        connection.execute(sa.update(TABLES).values(policy=policy, health=100, evaluate_at=tomorrow))
        connection.execute(sa.update(TABLES).where(TABLES.c.id % AILING == 0).values(health=0))
        connection.execute(sa.update(RUNS).where(RUNS.c.table_id % AILING != 1).values(state="committed"))
        rows = connection.execute(listed).all()
    names = ("catalog_name", "table_namespace", "table_name", "metadata_location")
    with catalog.begin() as connection:
        connection.execute(
            sa.insert(ROWS), [dict(zip(names, (CATALOG, json.loads(n)[0], t, m), strict=True)) for t, n, m in rows]
        )
    store.dispose()
    catalog.dispose()
    return config


@contextmanager
def served(config: Path, log: Path) -> Iterator[psutil.Process]:
    """`icewright serve` in a process of its own; what it tells goes to the log."""
    command = [sys.executable, "-m", "icewright", "--config", str(config), "serve"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def watched(process: psutil.Process, seconds: float) -> Seen:
    """Leave it alone for so long."""
    began, before = time.perf_counter(), sum(process.cpu_times()[:4])
    resident = []
    while time.perf_counter() - began < seconds:
        time.sleep(OFTEN)
        resident.append(process.memory_info().rss / MEBIBYTE)
    cpu = (sum(process.cpu_times()[:4]) - before) / (time.perf_counter() - began)
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return Seen(round(cpu, 4), round(statistics.median(resident)), round(peak / 1024))


def untouched(state: str) -> bool:
    """Whether the catalog was asked and nothing was evaluated again."""
    store = sa.create_engine(state)
    with store.connect() as connection:
        asked = connection.exec_driver_sql("select count(*) from catalogs where detected_at is not null").scalar_one()
        soon = TABLES.c.evaluate_at < datetime.now(UTC) + timedelta(hours=12)
        due = connection.execute(sa.select(sa.func.count()).where(soon)).scalar_one()
        errors = connection.execute(sa.select(sa.func.count()).where(TABLES.c.error.is_not(None))).scalar_one()
    store.dispose()
    return bool(asked) and not due and not errors


def main() -> None:
    """Fill, watch, print."""
    chosen = options(__doc__, "30 seconds instead of 5 minutes").parse_args()
    seconds = 30 if chosen.quick else 300
    with tempfile.TemporaryDirectory() as folder, databases(SQLITE, Path(folder)) as database:
        lake = Lake(Path(folder), database("catalog"))
        lake.create()
        state = database("state")
        config = known(lake, state)
        with served(config, Path(folder) / "log") as process:
            time.sleep(SETTLE_SECONDS)
            seen = watched(process, seconds)
        assert untouched(state), (Path(folder) / "log").read_text(encoding="utf-8")[-2000:]
    line = {
        "benchmark": "at_rest",
        "shape": f"{COUNT} tables in a SQL catalog on SQLite, {HISTORY} ended jobs; nothing changes for {seconds} s",
        "cpu_of_a_core": seen.cpu,
        "rss_mib": seen.mib,
        "peak_mib": seen.peak_mib,
        "limit_cpu": MOST_CPU,
        "limit_mib": MOST_MIB,
        "ok": seen.cpu < MOST_CPU and seen.peak_mib < MOST_MIB,
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
