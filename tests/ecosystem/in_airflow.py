"""Runs operator and sensor as a worker of Airflow does; arguments: a program, a configuration, a table. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from icewright.integrations.airflow import IcewrightHealthSensor, IcewrightOperator

program, config, table = sys.argv[1:]


def ended(task: Callable[[Any], Any]) -> Any:
    """The result, or the kind of exception with its message."""
    try:
        return task({})
    except Exception as error:  # noqa: BLE001 - what Airflow would see
        return {"raised": type(error).__name__, "said": str(error)}


def play(code: int, document: object = None, **settings: Any) -> Any:
    """One task, with a program that prints the document and ends with the code."""
    env = {"CODE": str(code), "DOCUMENT": json.dumps(document) if document is not None else "no JSON"}
    return ended(IcewrightOperator(task_id="task", executable=os.environ["FAKE"], env=env, **settings).execute)


succeeded = {"table": "lake.a.b", "state": "succeeded", "summary": "compact: compacted 15 files into 3"}
failed = {"table": "lake.a.c", "state": "failed", "summary": "compact: no room"}
nothing = {"funnel": {"tables": 3}, "jobs": [], "deferred": [], "errors": []}
real: dict[str, Any] = {"executable": program, "config": config}
out = {
    "succeeded": play(0, succeeded, table="lake.a.b"),
    "arguments": play(
        0,
        None,
        table="lake.a.b",
        operations=["compact"],
        settings={"importance": "high"},
        dry_run=True,
        config="c.yaml",
    ),
    "partial": play(3, nothing | {"jobs": [succeeded, failed]}),
    "partial wanted": play(3, nothing | {"jobs": [succeeded, failed]}, partial_fails=False),
    "failed": play(1, failed, table="lake.a.c"),
    "wrong": play(2),
    "idle": play(0, nothing),
    "idle skipped": play(0, nothing, skip_when_idle=True),
    "missing": ended(IcewrightOperator(task_id="task", executable="/no/such/program").execute),
    "real": ended(IcewrightOperator(task_id="task", table=table, operations=["expire_snapshots"], **real).execute),
}
for least in (1, 101):
    answer = ended(IcewrightHealthSensor(task_id="sensor", table=table, at_least=least, **real).poke)
    out[f"health {least}"] = [bool(answer.is_done), answer.xcom_value]
sys.stdout.write("\n" + json.dumps(out) + "\n")
