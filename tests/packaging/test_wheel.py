"""What people install: the wheel and the source distribution, in an environment that has nothing else of ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import partial
from pathlib import Path

import pytest

from icewright import __version__
from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

ROOT = Path(__file__).parent.parent.parent
DATA = {path.relative_to(ROOT).as_posix() for path in (ROOT / "icewright").rglob("*") if path.is_file()}


def run(*command: str | Path, **more: str) -> str:
    """Standard output of a command that has to succeed."""
    done = subprocess.run(command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def uv() -> Path:
    """The machine's uv, or the one that the Makefile brings."""
    found = shutil.which("uv") or str(Path(sys.prefix).parent / ".venv-uv" / "bin" / "uv")
    return Path(found)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment: the versions of uv.lock, and the wheel, with the engine for tables."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    asked = ["sync", "--frozen", "--no-dev", "--no-install-project", "--extra=engine", "--quiet"]
    asked += ["--python", sys.executable]
    try:
        run(uv(), *asked, "--offline", UV_PROJECT_ENVIRONMENT=str(home))
    except AssertionError:  # the cache does not have all of it
        run(uv(), *asked, UV_PROJECT_ENVIRONMENT=str(home))
    (wheel,) = built.glob("*.whl")
    run(uv(), "pip", "install", "--quiet", "--offline", "--no-deps", "--python", home / "bin" / "python", wheel)
    return home / "bin"


def of_python(path: str) -> bool:
    """Whether Python made the file while it ran."""
    return "__pycache__" in path


@pytest.mark.external
def test_distributions_are_complete(built: Path) -> None:
    """The wheel has every file of the package and no other; the source distribution has what builds and tests it."""
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {name for name in DATA if not of_python(name)}
    assert "icewright/py.typed" in packed  # else no type checker of a user reads our annotations
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "docs/index.md"} <= names
    assert not {name for name in names if name.startswith((".venv", "build/", "demo/")) or of_python(name)}


@pytest.mark.external
def test_a_release_lists_its_packages() -> None:
    """With versions and hashes, those of all extras too, by the command of `make release`."""
    (command,) = re.findall(r"\$\(UV\) export (.*) --output-file", (ROOT / "Makefile").read_text(encoding="utf-8"))
    listed = json.loads(run(uv(), "export", *command.split()))
    assert listed["bomFormat"] == "CycloneDX"
    packages = {one["name"]: one for one in listed["components"]}
    assert {"polars", "pyspark", "fastapi", "boto3", "mcp"} <= packages.keys()
    assert "pytest" not in packages
    assert packages["polars"]["version"] in packages["polars"]["purl"]


@pytest.mark.external
def test_versions_agree() -> None:
    """Package, chart and containers are of one version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = (ROOT / "deploy" / "helm" / "icewright" / "Chart.yaml").read_text(encoding="utf-8")
    compose = (ROOT / "deploy" / "docker" / "compose.yaml").read_text(encoding="utf-8")
    assert project == __version__
    assert f'appVersion: "{project}"' in chart
    assert f"image: icewright:{project}" in compose


@pytest.mark.nightly
@pytest.mark.external
def test_installed_wheel_works(installed: Path, workspace: Workspace) -> None:
    """Outside of the checkout it says its version, checks a configuration, and maintains a lakehouse."""
    workspace.make(partial(metrics, commits=8, rows_per_file=2))
    icewright, config = installed / "icewright", ("--config", str(workspace.path))
    alone = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    where = run(installed / "python", "-c", "import icewright; print(icewright.__file__)", **alone)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert run(icewright, "--version", **alone).strip() == __version__
    assert "no fault" in run(icewright, *config, "config", "check", **alone)
    report = json.loads(run(icewright, *config, "cycle", "--json", **alone))
    assert report["funnel"]["tables"] == 1
    assert report["errors"] == []
    assert [job["state"] for job in report["jobs"]] == ["succeeded"]
