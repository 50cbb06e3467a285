"""The code blocks of the documentation: shell and Python run over a small lakehouse, in the order of their page."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from icewright import Icewright
from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.cli import app
from icewright.app.config import SECTIONS
from icewright.app.demo.tables import clicks, ledger, metrics
from tests.cli.test_pins import checkpoint
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RULES = """\
policy:
  - {match: "lake.web.visits", set: {layout.apply: true}}
  - {match: "lake.web.visits", set: {expire_rows.enabled: true, expire_rows.column: ts, expire_rows.days: 20}}
  - {match: "lake.sales.*", set: {deletion.delay_hours: 24}}
  - {match: "lake.sales.orders", set: {recovery_points.hourly: 24, recovery_points.daily: 7}}
"""
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
#: What does not run here, by program, command or page: the test that runs it, or what it needs.
ELSEWHERE: Mapping[str, str] = {
    "how-to/events.md": "tests/web/test_documented.py",
    "how-to/orchestrators.md": "tests/ecosystem/test_orchestrators.py",
    "icewright alerts --test": "tests/cli/test_alerts.py",
    "icewright acknowledge": "tests/cli/test_alerts.py",
    "icewright advise lake.web.visits --recorded": "tests/cli/test_filters.py",
    "icewright advise lake.web.visits --filters filters.yaml --measure": "tests/integration/test_layouts.py",
    "icewright doctor": "tests/integration/test_metastores.py",
    "icewright init": "tests/cli/test_init.py",
    "icewright serve": "tests/web/test_server.py",
    "icewright simulate --tables 2000 --days 7": "tests/cli/test_simulate.py",
    "icewright simulate --compare cron,default,streaming --svg plot.svg": "tests/cli/test_simulate.py",
    "icewright simulate --set compact.cooldown_minutes=240": "tests/cli/test_simulate.py",
    "icewright worker": "tests/chaos",
    "cp": "root",
    "curl": "a server",
    "docker": "Docker",
    "git": "an address",
    "helm": "tests/packaging/test_deploy.py",
    "hdfs": "Hadoop",
    "kubectl": "Kubernetes",
    "make": "Makefile",
    "mutmut": "mutants",
    "pip": "a package index",
    "python": "mutants",
    "python3.11": "a package index",
    "systemctl": "tests/packaging/test_deploy.py",
    "useradd": "root",
    "venv-pack": "an environment of its own",
}


@dataclass(frozen=True)
class Block:
    """A code block with the place where it begins."""

    page: str
    line: int
    language: str
    text: str

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block; of a console, of each line behind the prompt."""
        command = ""
        for line in self.text.splitlines():
            if self.language == "console" and not line.startswith("$ "):
                continue
            command += line.removeprefix("$ ").removesuffix("\\") + "\n"
            with suppress(ValueError):  # an open quotation goes on in the next line
                words = shlex.split(command, comments=True)
                if words and not line.endswith("\\"):
                    yield [words[0].rpartition("/")[2], *words[1:]]
                    command = ""


def blocks() -> Iterator[Block]:
    """Return every code block of the documentation, in order."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT)).removeprefix("docs/")
        for found in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            yield Block(name, text[: found.start()].count("\n") + 1, found[1], found[2])


BLOCKS = list(blocks())
COMMANDS: Any = typer.main.get_command(app)
RUN = [block for block in BLOCKS if block.language in {"bash", "console", "python"}]


def parsed(words: Sequence[str]) -> str:
    """Return the name of a command of ours, after a look whether it has each option that is given."""
    command = COMMANDS
    names, rest = ["icewright"], iter(words[1:])
    for word in rest:
        options = {option: one for one in command.params for option in (*one.opts, *one.secondary_opts)}
        if word.startswith("-") and not word[1:].isdigit():
            option, _, value = word.partition("=")
            assert option in options, f"{' '.join(names)} has no option {option}"
            if not value and not options[option].is_flag:
                next(rest)
        elif hasattr(command, "commands"):
            command = command.commands[word]
            names.append(word)
    return " ".join(names)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> tuple[Path, Mapping[str, str]]:
    """Return the folder of a lakehouse, of which a copy lies beside it, and its own names for those of the pages."""
    home = tmp_path_factory.mktemp("docs") / "house"
    with pytest.MonkeyPatch.context() as patch:
        unused: Any = None
        workspace = Workspace(home, patch, unused)
        shutil.copy(empty_store, home / "state.db")
        workspace.write(RULES)
        small = partial(metrics, commits=20, rows_per_file=2)
        tables = ("sales.orders", "sales.customers", "web.visits", "ops.metrics")
        workspace.make(
            *(partial(small, name=name) for name in tables),
            partial(ledger, commits=5, rows_per_file=2),
            partial(clicks, commits=5, rows_per_file=2),
        )
    with Icewright.open(workspace.path) as opened:
        jobs = [str(opened.table(f"lake.{name}").run("expire_snapshots").job_id) for name in tables[:2]]
        opened.table("lake.sales.orders").run("recovery_points")
    catalog = SqlCatalog("lake", **pyiceberg_catalog_properties(read_config(workspace.path).catalogs["lake"]))
    orders = catalog.load_table("sales.orders").metadata
    catalog.close()
    checkpoint(home / "stream", orders.snapshots[-3].snapshot_id, [orders.snapshots[-2].snapshot_id], done=1)
    names = {
        "20261124-220017-3097b65d": jobs[0],
        "3097b65d": jobs[0].rpartition("-")[2],
        "20261123-093706": jobs[0],
        "4f1c": jobs[0],
        "20261120-101500": jobs[1],
        "8273645123984": str(orders.current_snapshot_id),
        "hourly-2026-11-25T10": max(name for name in orders.refs if "hourly" in name),
        "s3://jobs/orders-to-search": str(home / "stream"),
        "s3://vault/sales/orders": str(home / "vault"),
        "lake.vault.orders": "lake.sales.copied",
    }
    (home / "demo").symlink_to(home)
    (home / ".venv").symlink_to(sys.prefix)
    shutil.copytree(home, home.with_name("copy"), symlinks=True)
    return home, names


def run(block: Block, workspace: Workspace, names: Mapping[str, str]) -> None:
    """Run the commands of a shell block; those that run elsewhere are looked up."""
    if "<<" in block.text:
        done = subprocess.run(["bash", "-e"], input=block.text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    for words in block.commands():
        name = parsed(words) if words[0] == "icewright" else words[0]
        if name == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert all(f"\n{target}:" in MAKEFILE for target in targets), targets
        elif name == "export":
            os.environ |= dict(word.split("=", 1) for word in words[1:])
        elif not {block.page, name, " ".join(words)} & ELSEWHERE.keys():
            assert words[0] == "icewright", f"nothing runs {words[0]}, and ELSEWHERE does not say why"
            result = workspace(*(names.get(word, word) for word in words[1:]), config=False)
            assert result.code == 0, (words, result)


@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in RUN))
def test_the_blocks_of_a_page_run(
    page: str,
    built: tuple[Path, Mapping[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command ends with success, and each Python block without an exception."""
    home, names = built
    shutil.rmtree(home)
    workspace = Workspace(home, monkeypatch, capsys)
    shutil.copytree(home.with_name("copy"), home, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("ICEWRIGHT_CONFIG", "icewright.yaml")
    names = {
        **names,
        "3f9c21aa07be": workspace("token", "create", "--role", "viewer", "--json", config=False).json["id"],
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n" * 9))
    python: dict[str, Any] = {}
    on_page = [block for block in BLOCKS if block.page == page]
    for block in on_page:
        if block.language == "json":
            Path("commits.jsonl").write_text(block.text, encoding="utf-8")
        elif (file := re.match(r"# ([a-z-]+\.yaml)\n", block.text)) and not Path(file[1]).exists():
            Path(file[1]).write_text(block.text, encoding="utf-8")
    for block in on_page:
        if block.language in {"bash", "console"}:
            run(block, workspace, names)
        elif block.language == "python":
            code = compile(block.text, f"{page}:{block.line}", "exec")
            if page not in ELSEWHERE:
                exec(code, python)  # noqa: S102 - our own page
    for name, test in python.items():
        if name.startswith("test_"):
            test()
    assert not workspace.spark_started


CONFIGURATIONS = [
    block
    for block in BLOCKS
    if block.language == "yaml" and set(re.findall(r"^(\w+):", block.text, re.MULTILINE)).intersection(SECTIONS)
]


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=lambda block: f"{block.page}:{block.line}")
def test_configurations_have_no_fault(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is a part of a configuration is taken as one where what it leaves out and its secrets are there."""
    monkeypatch.setenv("SECRET", "json://alerts.example.com/0123456789")  # is a channel, a token and a password
    (tmp_path / "manifest.json").write_text('{"nodes": {}}', encoding="utf-8")
    text = re.sub(r"\$\{(env|file):[^}]*\}", "${env:SECRET}", block.text)
    text = text.replace("/srv/shop/target", str(tmp_path)).replace(
        "{...}", "{uri: 'sqlite:////c.db', warehouse: 'file:///w'}"
    )
    given = yaml.safe_load(text)
    sql = {"type": "sql", "properties": {"uri": "sqlite:////data/catalog.db", "warehouse": "file:///data"}}
    path = tmp_path / "icewright.yaml"
    path.write_text(
        yaml.safe_dump({"state": "sqlite:///state.db", "catalogs": {"lake": sql}, **given}), encoding="utf-8"
    )
    read_config(path)


def test_blocks_name_their_language() -> None:
    """So that no command hides in a block that nothing runs."""
    assert [f"{block.page}:{block.line}" for block in BLOCKS if not block.language] == []


def test_what_runs_elsewhere_is_still_there() -> None:
    """Each entry is in use, and the test that it names exists."""
    used = {block.page for block in RUN}
    for block in RUN:
        if block.language != "python" and "<<" not in block.text:
            for words in block.commands():
                used |= {parsed(words) if words[0] == "icewright" else words[0], " ".join(words)}
    assert ELSEWHERE.keys() <= used
    assert all((ROOT / test).exists() for test in ELSEWHERE.values() if test.startswith("tests/"))
