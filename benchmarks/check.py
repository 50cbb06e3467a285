"""The check that every file of a table exists, against a bare listing of its location; and what a check finds.

Prints one JSON line: on a disk, which lists in half a second of the processor, and with the delays of an object store.
Some files are taken away before; the check must name exactly these. At its deepest level it then
must name each kind of planted fault, and none in random histories of healthy tables.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.kit.bench import options
from benchmarks.kit.child import Child
from benchmarks.kit.faults import KNOBS, History, named_faults
from benchmarks.kit.lake import CATALOG, NAMESPACE, Lake
from benchmarks.kit.ours import Ours
from benchmarks.kit.report import Comparison, Run, in_turn, show
from benchmarks.kit.tables import Seed
from icewright.app.bootstrap import application

TABLE, PARTITIONS, IN_MANIFEST, LOST = "checked", 200, 500, 20
DELAY = 0.03  # seconds of an object store


def compared(count: int) -> tuple[Comparison, Comparison]:
    """Both in turn on a table of so many data files, of which some are lost: on a disk, and as far as a store."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        lake.create()
        seed = Seed(lake, TABLE, partitioned=True)
        for start in range(0, count, IN_MANIFEST):
            files = [seed.file(number % PARTITIONS) for number in range(start, min(start + IN_MANIFEST, count))]
            seed.commit(files, listed=start + IN_MANIFEST >= count)
        seed.publish()
        written = sorted((lake.folder(TABLE) / "data").rglob("*.parquet"))
        lost = random.Random(7).sample(written, LOST)
        for path in lost:
            path.unlink()
        names = frozenset(path.name for path in lost)

        def found(run: Run) -> frozenset[str]:
            return frozenset(Path(path).name for path in run["rows"]) if "rows" in run else names

        with Child("benchmarks.kit.ours", folder) as child:
            turns, far = (
                in_turn(
                    partial(child.ask, "check", table=TABLE, delay=delay),
                    partial(child.ask, "listing", table=TABLE, delay=delay),
                    found,
                    expected=names,
                )
                for delay in (0, DELAY)
            )
    shape = f"{count} data files, {LOST} of them lost"
    return (
        Comparison("check", "a bare listing", shape, turns),
        Comparison("check", "a bare listing", f"{shape}; {DELAY * 1000:g} ms for each page and file", far),
    )


def judged(histories: int) -> Mapping[str, Any]:
    """Which planted faults are named, and how many alarms there are in healthy histories."""
    draw, alarms, done = random.Random(7), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        lake.create()
        with (
            closing(SqlCatalog(CATALOG, **lake.catalog.pyiceberg_properties())) as catalog,
            application(Ours(lake.home).config, kind="manual", command=KNOBS) as app,
        ):
            named = named_faults(app, catalog, lake.warehouse)
            for number in range(histories):
                history = History(app, catalog, f"history{number}", draw, done)
                alarms += history.play()
                catalog.drop_table((NAMESPACE, history.name))
                shutil.rmtree(lake.folder(history.name))
    unnamed = [fault for fault, is_named in named.items() if not is_named]
    return {"planted": len(named), "unnamed": unnamed, "histories": histories, "alarms": alarms, "done": done}


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "200 histories instead of 10,000").parse_args()
    on_disk, far = compared(100_000)
    show(replace(on_disk, more=judged(200 if chosen.quick else 10_000)), far)


if __name__ == "__main__":
    main()
