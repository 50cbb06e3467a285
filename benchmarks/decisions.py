"""What decisions cost: every named fleet under the default policy and under nightly cron, by simulation.

Prints one JSON line; with `--table` the table of `docs/explanation/cost.md`. A side's cost is the GB-hours of its work
and of its readers: each table is read `PRIOR_READS` times a day, and each file that a read opens counts as 4 MB
of scan work and two requests. What every reader pays whatever the maintenance, the bytes themselves, is not in it.
`ratio` is cron's cost over ours, of all fleets together; `worst` is that of the worst fleet. `of_oracle` is ours over
the least that any schedule costs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from icewright.app.simulating import BEGIN
from icewright.core.capacity import Limits
from icewright.core.layering import Policy
from icewright.core.simulation.fleet import SCENARIOS, fleet
from icewright.core.simulation.oracle import least_gb_hours
from icewright.core.simulation.run import Slots, Span, simulate

QUICK_DAYS: Mapping[str, int] = {"monthly-trickle": 15, "hourly-200mb": 15, "daily-stream": 2, "minute-stream": 4}
DAYS, OTHER_QUICK_DAYS = 25, 6
QUICK_TABLES = 50  # at most
STREAMS = "streams"  # has the tables of other fleets


def compared(name: str, *, quick: bool) -> dict[str, Any]:
    """Return both sides' figures over one fleet."""
    days = QUICK_DAYS.get(name, OTHER_QUICK_DAYS) if quick else DAYS
    sources = fleet(name, min(SCENARIOS[name].tables, QUICK_TABLES) if quick else None, 0, BEGIN)
    span = Span(BEGIN, BEGIN + timedelta(days=days))
    cron, ours = (simulate(sources, policy, span, Slots(Limits())) for policy in (None, Policy()))
    ours_cost, cron_cost, least = ours.total_gb_hours, cron.total_gb_hours, least_gb_hours(sources, span)
    return {
        "fleet": name,
        "ratio": round(cron_cost / ours_cost, 2),
        "of_oracle": round(ours_cost / least, 2),
        "oracle_cost": round(least, 4),
        "ours_cost": round(ours_cost, 4),
        "cron_cost": round(cron_cost, 4),
        "ours_gb_hours": round(ours.gb_hours, 4),
        "cron_gb_hours": round(cron.gb_hours, 4),
        "ours_query_mb": round(ours.query_mb, 1),
        "cron_query_mb": round(cron.query_mb, 1),
    }


def print_table(rows: Sequence[Mapping[str, Any]], total: Mapping[str, float]) -> None:
    """Print the costs of each fleet and of all as a table in Markdown."""
    print("| fleet | oracle | default | cron | default / oracle | cron / default |\n|---|---|---|---|---|---|")
    everything = {"fleet": "all", **{f"{name}_cost": cost for name, cost in total.items()}}
    for row in (*rows, everything):
        least, ours, cron = (row[f"{name}_cost"] for name in ("oracle", "ours", "cron"))
        print(f"| {row['fleet']} | {least:.2f} | {ours:.2f} | {cron:.2f} | {ours / least:.2f} | {cron / ours:.1f} |")


def main() -> None:
    """Compare all fleets and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer days and tables")
    parser.add_argument("--table", action="store_true", help="print a table in Markdown")
    options = parser.parse_args()
    quick = options.quick
    begun = time.perf_counter()
    rows = [compared(name, quick=quick) for name in SCENARIOS if name != STREAMS]
    total = {name: sum(row[f"{name}_cost"] for row in rows) for name in ("cron", "ours", "oracle")}
    if options.table:
        print_table(rows, total)
        return
    cheaper = [row["ours_gb_hours"] <= row["cron_gb_hours"] for row in rows]
    faster = [row["ours_query_mb"] <= row["cron_query_mb"] for row in rows]
    worst = min(rows, key=lambda row: row["ratio"])
    line = {
        "benchmark": "decisions",
        "peer": "nightly cron of Spark's procedures, simulated",
        "ratio": round(total["cron"] / total["ours"], 2),
        "of_oracle": round(total["ours"] / total["oracle"], 2),
        "worst": worst["ratio"],
        "worst_fleet": worst["fleet"],
        "geometric_mean": round(math.exp(sum(math.log(r["ratio"]) for r in rows) / len(rows)), 2),
        "ours_s": round(time.perf_counter() - begun, 1),
        "peer_s": None,
        "ours_peak_mib": None,
        "peer_peak_mib": None,
        "same_result": (all(cheaper) and all(faster)) or "a fleet is dearer or slower than by cron: see others",
        "others": rows,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
