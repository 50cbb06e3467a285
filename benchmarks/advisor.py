"""The advised layout against every other: ten recorded workloads, and a rewrite in each order of the columns and size.

Prints one JSON line. Each layout is written by Icewright's compaction on Spark, and PyIceberg plans the filters over
the files. `ratio` is the geometric mean of what the best layout costs readers to what the advised one does: the bytes
of the planned files, and as much for opening each as an eighth of the larger of the two sizes of files. A prediction is
the cost of the sample's trial.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta
from itertools import combinations, permutations
from statistics import geometric_mean, median
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.kit.bench import bench, options
from benchmarks.kit.lake import CATALOG, NAMESPACE
from benchmarks.kit.ours import Ours
from icewright.app.bootstrap import application
from icewright.core.layout import FileSizes, RowLayout
from icewright.core.table import TableRef

TABLE, FILES = "advised", 80
LARGE, SMALLER, OPENS = 8, 4, 8  # files in one of the target size, smaller files in one, opens that read one
COLUMNS = ("customer", "product", "day", "amount")
DAYS = 365


def rows(count: int) -> pa.Table:
    """Sales at random; products depend on customers a little, and days come late now and then."""
    draw = random.Random(11)
    customers = [int(draw.triangular(0, 5000, 0)) for _ in range(count)]
    days = sorted(draw.randrange(DAYS) for _ in range(count))
    return pa.table(
        {
            "customer": pa.array(customers, pa.int64()),
            "product": [f"p{(customer % 7) * 100 + draw.randrange(300):04d}" for customer in customers],
            "day": [date(2026, 1, 1) + timedelta(days=day + draw.choice((0, 0, 0, 30))) for day in days],
            "amount": [draw.expovariate(0.01) for _ in range(count)],
        }
    )


def workloads() -> Sequence[Sequence[str]]:
    """The filters of each: points and ranges of one column, of two at a time, and mixtures."""
    draw = random.Random(5)

    def point() -> str:
        return f"customer = {draw.randrange(5000)}"

    def product() -> str:
        return f"product = 'p{draw.randrange(900):04d}'"

    def days(length: int) -> str:
        begin = date(2026, 1, 1) + timedelta(days=draw.randrange(DAYS - length))
        return f"day >= '{begin}' and day < '{begin + timedelta(days=length)}'"

    def dear() -> str:
        return f"amount > {draw.randrange(300, 900)}.5"

    kinds = [
        [point],
        [product],
        [lambda: days(7)],
        [dear],
        [point, product],
        [lambda: f"{product()} and {days(30)}"],
        [lambda: f"{point()} and {days(90)}", product],
        [lambda: f"customer < {draw.randrange(50, 400)} and {dear()}"],
        [point, lambda: days(3), product],
        [lambda: f"product in ('p0017', 'p0420') and {dear()}", point, point, point],
    ]
    return [[kind() for _ in range(12) for kind in some] for some in kinds]


def every_layout(small: float) -> list[RowLayout]:
    """Sorts by one and two columns, and curves over two and three, in files of the target size and in small ones."""
    curves = [*combinations(COLUMNS, 2), *combinations(COLUMNS, 3)]
    sorts = [*((name,) for name in COLUMNS), *permutations(COLUMNS, 2)]
    orders = [*map(RowLayout, sorts), *(RowLayout(columns, zorder=True) for columns in curves)]
    return [*orders, *(replace(order, target=small) for order in orders)]


def main() -> None:
    """Write, advise, rewrite in each layout, print."""
    chosen = options(__doc__, "100,000 rows instead of 2,000,000").parse_args()
    count = 100_000 if chosen.quick else 2_000_000
    recorded = workloads()
    with bench(chosen) as sides:
        sides.ours.begin("spark")
        with closing(SqlCatalog(CATALOG, **sides.lake.catalog.pyiceberg_properties())) as catalog:
            content = rows(count)
            table = catalog.create_table((NAMESPACE, TABLE), content.schema)
            for number in range(FILES):
                table.append(content.slice(number * count // FILES, count // FILES))
            size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
            target = LARGE * size / FILES
            sizes = FileSizes(target, opening=target / OPENS, others=(target / SMALLER,))
            saved = sides.lake.save(TABLE)
            with application(Ours(sides.lake.home).config, kind="manual") as app:
                ref = TableRef("lake", (NAMESPACE,), TABLE)
                advised = [app.runtime.engine.try_layouts(ref, filters, sizes) for filters in recorded]
            sides.ours.wait()

            def measured(opening: float) -> list[float]:
                fresh = catalog.load_table((NAMESPACE, TABLE))
                return [
                    sum(t.file.file_size_in_bytes + opening for text in filters for t in fresh.scan(text).plan_files())
                    for filters in recorded
                ]

            read: dict[RowLayout | None, list[float]] = {
                None: measured(sizes.opening / LARGE)
            }  # merged they were fewer
            for layout in every_layout(*sizes.others):
                knobs = {"compact.strategy": layout.strategy, "compact.sort_order": ", ".join(layout.columns)}
                mib = (layout.target or target) / (1 << 20)
                more = {
                    "compact.target_file_size_mb": f"{mib:.6f}",
                    "compact.hot_partitions": "include",
                    "compact.max_overlap": "0",
                }
                sides.ours.ask("run", table=TABLE, operation="compact", knobs=knobs | more)
                read[layout] = measured(sizes.opening)
                saved.restore()
    lines: list[dict[str, Any]] = []
    for number, report in enumerate(advised):
        advice = report.best.layout
        if advice is not None and advice.zorder:  # a curve is written once for all orders of its columns
            advice = replace(advice, columns=tuple(name for name in COLUMNS if name in advice.columns))
        got = read[advice][number]
        best = min(read, key=lambda layout: read[layout][number])
        lines.append(
            {
                "filters": recorded[number][: len(recorded[number]) // 12],
                "as_it_is": round(read[None][number]),
                "advised": str(report.best.layout or "as it is"),
                "predicted": round(report.best.cost),
                "measured": round(got),
                "best": str(best or "as it is"),
                "of_best": round(read[best][number]),
            }
        )
    ratios = [line["of_best"] / line["measured"] for line in lines]
    saved_bytes = [
        (line["as_it_is"] - line["predicted"]) / (line["as_it_is"] - line["measured"])
        for line in lines
        if line["as_it_is"] != line["measured"]
    ]
    found = {
        "benchmark": "advisor",
        "peer": f"the best of {len(read)} layouts",
        "shape": f"{count} rows in {FILES} files",
        "ratio": round(geometric_mean(ratios), 3),
        "worst": round(min(ratios), 3),
        "predicted_to_measured_saving": round(median(saved_bytes), 3) if saved_bytes else None,
        "workloads": lines,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
