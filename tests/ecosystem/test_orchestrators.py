"""Airflow and Dagster: tasks end as the command does. AIRFLOW_PYTHON and DAGSTER_PYTHON name Pythons that have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FAKE = f"""#!{sys.executable}
import json, os, sys
document, code = os.environ["DOCUMENT"], int(os.environ["CODE"])
echo = document == "no JSON" and code == 0
print(json.dumps({{"state": "skipped", "arguments": sys.argv[1:]}}) if echo else document)
sys.exit(code)
"""


def played(python: str, script: str, workspace: Workspace, *paths: Path) -> Any:
    """What a script prints at its end, run by that Python with a lakehouse that has something to expire."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    wrapper, fake = workspace.home / "icewright", workspace.home / "fake"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m icewright "$@"\n', encoding="utf-8")
    fake.write_text(FAKE, encoding="utf-8")
    for program in (wrapper, fake):
        program.chmod(0o755)
    package = workspace.home / "package"  # Icewright without anything that it needs itself
    package.mkdir()
    (package / "icewright").symlink_to(ROOT / "icewright")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(workspace.home),
        "AIRFLOW_HOME": str(workspace.home / "airflow"),
        "DAGSTER_HOME": "",
        "FAKE": str(fake),
        "PYTHONPATH": os.pathsep.join(map(str, (package, *paths))),
    }
    command: list[str | Path] = [python, HERE / script, wrapper, workspace.path, "lake.ops.metrics"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.external
@pytest.mark.parametrize("python", ["stub", "real"])
def test_airflow(python: str, workspace: Workspace) -> None:
    """The exit code decides: success with its XCom, failure with the reason, no retry of what is wrong, or skipped."""
    real = os.environ.get("AIRFLOW_PYTHON")
    if python == "real" and not real:
        pytest.skip("AIRFLOW_PYTHON names no Python with Airflow 3")
    paths = () if python == "real" else (HERE / "stubs",)
    out = played(str(real) if python == "real" else sys.executable, "in_airflow.py", workspace, *paths)
    assert out["succeeded"]["state"] == "succeeded"
    wanted = ["--config", "c.yaml", "run", "--dry-run", "--op", "compact", "--set", "importance=high", "--json"]
    assert out["arguments"]["arguments"] == [*wanted, "--", "lake.a.b"]
    assert out["partial"] == {
        "raised": "AirflowException",
        "said": "icewright cycle ended with 3: lake.a.c: compact: no room",
    }
    assert len(out["partial wanted"]["jobs"]) == 2
    assert out["failed"]["raised"] == "AirflowException"
    assert (out["wrong"]["raised"], out["missing"]["raised"]) == ("AirflowFailException", "AirflowFailException")
    assert out["idle"]["jobs"] == []
    assert out["idle skipped"]["raised"] == "AirflowSkipException"
    assert out["real"]["operations"][0]["state"] == "committed"
    assert out["health 1"][0] is True
    assert out["health 1"][1] == out["health 101"][1]
    assert out["health 101"][0] is False


@pytest.mark.external
@pytest.mark.skipif(not os.environ.get("DAGSTER_PYTHON"), reason="DAGSTER_PYTHON names no Python with Dagster")
def test_dagster(workspace: Workspace) -> None:
    """The asset follows what it is built from, maintains the table, and fails where the configuration is wrong."""
    out = played(os.environ["DAGSTER_PYTHON"], "in_dagster.py", workspace)
    assert (out["success"], out["state"], out["after"]) == (True, "succeeded", ["metrics"])
    assert out["wrong"] is False
    assert out["health"] is not None
