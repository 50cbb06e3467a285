"""`icewright init`: from an empty folder to a first verdict, asked on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from functools import partial

import pytest

from icewright.app.bootstrap import read_config
from icewright.app.demo.lake import create_location
from icewright.app.demo.tables import metrics
from icewright.core.errors import UsageError
from tests.cli.workspace import Workspace
from tests.servers.loopback import free_port

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test


def test_init_leads_to_a_first_verdict(workspace: Workspace) -> None:
    """Answers typed on a pseudo-terminal give a valid file whose catalog is not enabled, checks, and verdicts.

    A type of catalog that there is not is asked for again. Where Spark is not installed, that is one failed check.
    """
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    folder = workspace.home / "new"
    folder.mkdir()
    answers = ("sqlite", "sql", "lake", f"sqlite:///{workspace.home}/catalog.db", f"file://{workspace.home}/warehouse")
    terminal, program = pty.openpty()
    command = [sys.executable, "-m", "icewright", "init"]
    (folder / "pyspark.py").write_text("raise ModuleNotFoundError(name='pyspark')\n", encoding="utf-8")
    paths = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        command, cwd=folder, env=paths, stdin=program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    os.write(terminal, "".join(f"{answer}\n" for answer in answers).encode())
    printed, _ = process.communicate(timeout=60)
    os.close(terminal)
    os.close(program)
    text = printed.decode()
    assert process.returncode == 1, text
    assert "wrote icewright.yaml" in text
    assert re.search(r"ok +catalog lake: 1 table listed", text)
    assert re.search(r"failed +pool default .*pip install", text)
    assert "Mend what failed" in text
    assert "lake.ops.metrics" in text
    assert "expire_snapshots" in text
    written = folder / "icewright.yaml"
    assert "enabled: false" in written.read_text(encoding="utf-8")
    assert written.stat().st_mode & 0o777 == 0o600, "it may hold a password"


def test_init_overwrites_nothing_and_leaves_no_faulty_file(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file stays as it is; a file with faults is not left behind."""
    monkeypatch.chdir(workspace.home)
    before = workspace.path.read_text(encoding="utf-8")
    result = workspace("init", config=False)
    assert (result.code, "exists already" in result.err) == (2, True)
    assert workspace.path.read_text(encoding="utf-8") == before
    answers = iter(["sql", "lake", "no-url", "file:///w"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    result = workspace("init", "--file", "other.yaml", config=False)
    assert (result.code, "catalogs.lake.properties.uri" in result.err) == (2, True)
    assert not (workspace.home / "other.yaml").exists()


def test_init_with_a_catalog_that_does_not_answer(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is left with what was answered, and the next step is named."""
    monkeypatch.chdir(workspace.home)
    answers = iter(["rest", "prod", f"http://127.0.0.1:{free_port()}", "", ""])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    result = workspace("init", "--file", "rest.yaml", config=False)
    assert (result.code, "`icewright doctor` checks it again" in result.err) == (1, True)
    assert list(read_config(workspace.home / "rest.yaml").catalogs["prod"].properties) == ["uri"]


def test_init_without_a_terminal(workspace: Workspace) -> None:
    """Without answers it says what to do, and writes nothing."""
    command = [sys.executable, "-m", "icewright", "init", "--file", "new.yaml"]
    ended = subprocess.run(command, cwd=workspace.home, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (ended.returncode, b"on a terminal" in ended.stderr) == (2, True)
    assert not (workspace.home / "new.yaml").exists()


def test_a_place_that_cannot_be_written(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that `init` cannot write, and a folder that the demo cannot make, are named in one sentence."""
    answers = iter(["sql", "lake", f"sqlite:///{workspace.home}/catalog.db", "file:///w"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    result = workspace("init", "--file", f"{workspace.home}/none/x.yaml", config=False)
    assert (result.code, "none/x.yaml: cannot be written: No such file" in result.err) == (2, True)
    with pytest.raises(UsageError, match="Not a directory; name another folder"):
        create_location(workspace.path / "demo")
