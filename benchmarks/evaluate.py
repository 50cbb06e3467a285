"""Reading the facts of a table with many manifests, cold, against PyIceberg's `inspect.files()`.

Prints one JSON line. Each side runs in a process of its own, three times; times are medians, peaks are of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from icewright.adapters.catalogs.sql import SqlCatalog as OurCatalog
from icewright.adapters.catalogs.translate import pyiceberg_properties, sql_catalog
from icewright.adapters.clock import SystemClock
from icewright.adapters.files.cache import Cache
from icewright.adapters.files.local import LocalFiles
from icewright.adapters.files.manifests import ENTRY, ManifestReader
from icewright.app.demo.rot import Lake, events
from icewright.core.policy import Knobs
from icewright.core.table import TableRef
from icewright.core.verdicts import thresholds

NAME = "web.events"
REPEATS = 3


def _ours(home: Path) -> Callable[[], int]:
    """Facts through a cache that is empty each time."""
    caches = iter(range(100))

    def read() -> int:
        reader = ManifestReader(Cache(Path(tempfile.mkdtemp(dir=home)) / str(next(caches)), 1 << 30, ENTRY))
        files = LocalFiles(reader)
        metadata = OurCatalog(_properties(home), files, SystemClock()).load(TableRef("lake", ("web",), "events"))
        return files.facts(metadata, thresholds(Knobs())).data_files

    return read


def _peer(home: Path) -> Callable[[], int]:
    """The same counts need every row of `inspect.files()`."""
    catalog = SqlCatalog("lake", **pyiceberg_properties(_properties(home)))
    return lambda: int(catalog.load_table(NAME).inspect.files().num_rows)


def _properties(home: Path):  # noqa: ANN202 - what `sql_catalog` returns
    return sql_catalog("lake", {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"})


def _measure(home: Path, side: str) -> None:
    read = {"ours": _ours, "peer": _peer}[side](home)
    seconds, found = [], 0
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = read()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"s": statistics.median(seconds), "mib": peak, "found": found}))


def main() -> None:
    """Seed, measure both, print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="300 manifests instead of 1,000")
    options.add_argument("--measure", nargs=2, metavar=("HOME", "SIDE"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        _measure(Path(chosen.measure[0]), chosen.measure[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "warehouse").mkdir()
        catalog = SqlCatalog("lake", **pyiceberg_properties(_properties(home)))

        def no_spark() -> None:
            raise RuntimeError("this table needs no Spark")

        lake = Lake(catalog, no_spark, home / "warehouse", datetime.now(UTC))  # type: ignore[arg-type]
        events(lake, manifests=300 if chosen.quick else 1000, rows_per_file=5)
        said = {}
        for side in ("ours", "peer"):
            command = [sys.executable, __file__, "--measure", folder, side]
            said[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ours, peer = said["ours"], said["peer"]
    line = {
        "benchmark": "evaluate",
        "peer": "PyIceberg inspect.files()",
        "ratio": round(peer["s"] / ours["s"], 2),
        "ours_s": round(ours["s"], 4),
        "peer_s": round(peer["s"], 4),
        "ours_peak_mib": round(ours["mib"]),
        "peer_peak_mib": round(peer["mib"]),
        "same_result": ours["found"] == peer["found"],
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
