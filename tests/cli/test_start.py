"""What a command imports before it works: users wait for that, and so does each press of the tab key."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from typer.main import get_group

from icewright.app.cli import app
from icewright.app.cli.base import SECTIONS
from icewright.app.demo.tables import sessions
from tests.cli.workspace import Workspace

HEAVY = {
    *(
        "alembic",
        "apprise",
        "fastapi",
        "fastavro",
        "httpx2",
        "jinja2",
        "obstore",
        "polars",
        "prometheus_client",
        "py4j",
    ),
    "sqlalchemy.dialects.postgresql",
    *("pyarrow", "pydantic", "pyiceberg", "pyspark", "rich", "sqlalchemy", "sqlglot", "starlette", "structlog", "yaml"),
}
PROGRAM = """
import sys
from icewright.app.cli import main
sys.argv = ["icewright", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print("\\n" + " ".join(sys.modules))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["tables", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_no_library_but_typer(arguments: list[str]) -> None:
    """Neither adapters nor Rich are loaded to print the help."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    loaded = HEAVY & set(done.stdout.splitlines()[-1].split())
    assert loaded <= ({"pydantic"} if "tables" in arguments else set())  # by Typer, which checks parameters with it


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("> /dev/full", 1, "the output or a file cannot be written: No space left on device\n"),
        ("| true", 1, ""),
        (">&-", 0, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(end: str, code: int, message: str) -> None:
    """A full disk has a message, a pipe without a reader ends the command, and a closed output is none."""
    command = f"{sys.executable} -m icewright --version {end}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.external
def test_a_port_on_the_command_line_wins(workspace: Workspace) -> None:
    """`serve --port` listens there, whatever the configuration says; where it cannot, the error names the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = workspace("serve", "--no-worker", "--port", str(port))
    assert refused.code == 2
    assert f"server: 127.0.0.1:{port} cannot be listened on: Address already in use" in refused.err


def test_help_lists_each_command() -> None:
    """Each command has its place in the help, also the newest."""
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(get_group(app).commands)


def test_help_of_groups_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """No sentence on a command is cut, also on one of a group."""
    for group in ("config", "token", "db"):
        get_group(app)([group, "--help"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert ("Commands:" in printed, "..." in printed.replace("[ARGS]...", "")) == (True, False)


def test_collections_are_as_ever_once_the_application_is_open(workspace: Workspace) -> None:
    """A command collects garbage seldom only while it loads: services run for months."""
    code = """
import gc
from icewright.app.cli.base import OPTIONS, collect_seldom, open_application
usual = gc.get_threshold()
collect_seldom()
assert gc.get_threshold() != usual
OPTIONS.config = __import__("sys").argv[1]
with open_application():
    assert gc.get_threshold() == usual
"""
    subprocess.run([sys.executable, "-c", code, str(workspace.path)], check=True)


@pytest.mark.external
def test_tables_loads_no_client_and_no_engine(workspace: Workspace) -> None:
    """Listing the tables of a SQL catalog imports neither Arrow nor Polars, PyIceberg, Alembic or a web framework."""
    workspace.make(sessions)
    assert workspace("tables").code == 0  # the store is migrated
    command = [sys.executable, "-c", PROGRAM, "--config", str(workspace.path), "tables"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "lake.web.sessions" in done.stdout
    needed = {"pydantic", "rich", "sqlalchemy", "yaml"}
    assert HEAVY & set(done.stdout.splitlines()[-1].split()) == needed
