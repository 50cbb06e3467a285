"""What a command imports before it works: users wait for that, and so does each press of the tab key."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
print("\\n" + " ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["tables", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_no_library_but_typer(arguments: list[str]) -> None:
    """Neither adapters nor Rich are loaded to print the help."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    loaded = HEAVY & set(done.stdout.splitlines()[-1].split())
    assert loaded <= ({"pydantic"} if "tables" in arguments else set())  # by Typer, which checks parameters with it


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
