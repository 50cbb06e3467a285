"""The memory of one task of the Arrow kernel on shapes that take much of it, against `compact.task_memory_mb`.

Each task runs in a new process, whose whole peak of resident memory counts, the interpreter's too. What a task leaves
to Spark it must leave before its peak is above the limit. Spark's procedure does the same beside, where it takes less
than a minute. Prints one line of JSON; `worst` is the highest peak by its limit.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.kit.bench import options
from benchmarks.kit.child import Child
from benchmarks.kit.lake import NAMESPACE, Lake
from benchmarks.kit.procedures import MEBIBYTE, rewrite_data_files
from benchmarks.kit.wide_rows import SHAPES, Shape, Written
from icewright.core.rewriting import TASK_MEMORY

_SQL = {"long": "BIGINT", "string": "STRING", "double": "DOUBLE"}
_TARGET_MIB = 10_000  # one file


def _task(shape: Shape, written: Written, folder: Path) -> dict[str, Any]:
    """Let a task rewrite the files, in a process of its own."""
    fields = [
        {"id": number, "name": name, "required": False, "type": kind}
        for number, (name, kind) in enumerate(written.columns, 1)
    ]
    asked = {"fields": fields, "commits": written.commits, "order": shape.order, "out": str(folder / "out")}
    os.environ["MIMALLOC_PURGE_DELAY"] = "60000"  # as pools have it
    with Child("benchmarks.kit.task") as task:
        run = task.ask("run", **asked, memory=TASK_MEMORY.default * MEBIBYTE)
    reason = run.get("left_to_spark")
    if reason is None and run["rows"] != written.rows:
        raise RuntimeError(f"{shape.name}: {run['rows']} rows of {written.rows}")
    return {
        "peak_mib": round(run["mib"]),
        "limit_mib": TASK_MEMORY.default,
        "s": round(run["s"], 1),
        "cpu_s": round(run["cpu"], 1),
        "left_to_spark": reason,
    }


def _spark(shape: Shape, written: Written, table: str, spark: Child) -> Mapping[str, Any]:
    """Let Spark's procedure rewrite a table of the same files."""
    columns = ", ".join(f"{name} {_SQL[kind]}" for name, kind in written.columns)
    create = f"CREATE TABLE lake.{NAMESPACE}.{table} ({columns}) USING iceberg"
    spark.ask("sql", statement=create)
    spark.ask("append", table=table, paths=[path for path, *_ in written.commits])
    order = ", ".join(written.columns[number - 1][0] for number in shape.order)
    more = {"rewrite_all": "true", "max_file_group_size_bytes": str(_TARGET_MIB * MEBIBYTE)}
    run = spark.ask("sql", statement=rewrite_data_files(table, _TARGET_MIB, order or None, **more))
    return {"s": round(run["s"], 1), "cpu_s": round(run["cpu"], 1), "peak_mib": round(run["mib"])}


def main() -> None:
    """Write, measure, print."""
    parser = options(__doc__, "fewer rows of long texts, a row group of 256 MB")
    parser.add_argument("shapes", nargs="*", help="words in the names of those to measure; all when there are none")
    parser.add_argument("--alone", action="store_true", help="without Spark")
    chosen = parser.parse_args()
    shapes = [shape for shape in SHAPES if not chosen.shapes or any(word in shape.name for word in chosen.shapes)]
    found = []
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        lake = Lake(Path(home))
        lake.create()
        spark = None if chosen.alone else stack.enter_context(Child("benchmarks.kit.spark", home))
        for number, shape in enumerate(shapes):
            with tempfile.TemporaryDirectory(dir=home) as folder:
                written = shape.write(Path(folder), chosen.quick)
                answer: dict[str, Any] = {"shape": shape.name, **_task(shape, written, Path(folder))}
                if spark is not None and not shape.slow:
                    answer["spark"] = _spark(shape, written, f"shape{number}", spark)
            found.append(answer)
    worst = max(answer["peak_mib"] / answer["limit_mib"] for answer in found)
    line = {"benchmark": "memory", "worst": round(worst, 2), "load": os.getloadavg()[0], "shapes": found}
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
