"""The keys of JSON that commands print are recorded, as scripts of users read them."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest

from icewright.app.demo.tables import metrics, uploads
from tests.cli.workspace import Workspace
from tests.recorded import keys

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

RECORD = Path(__file__).with_name("json_keys.txt")
#: In this order: each finds what the ones before it left. NAME is a table, JOB the last job that ran.
COMMANDS = (
    "tables", "health NAME", "explain NAME", "advise NAME", "check NAME", "plan", "pins NAME", "cycle --dry-run",
    "run NAME --op expire_snapshots --dry-run", "run NAME --op expire_snapshots", "history", "show JOB", "deletions",
    "pause NAME --reason audit", "status", "resume NAME", "alerts", "config check", "config explain NAME",
    "config set lake compact.enabled=false", "config unset lake compact.enabled",
    "token create --name ci --role viewer", "token list",
)  # fmt: skip


def test_commands_print_the_recorded_keys(workspace: Workspace) -> None:
    """A key that comes, goes or is renamed is a change for users: the record has it, and the changelog says it."""
    name, _ = workspace.make(partial(metrics, commits=20, rows_per_file=2), uploads)
    job = ""
    printed: list[str] = []
    for command in COMMANDS:
        filled = [{"NAME": name, "JOB": job}.get(word, word) for word in shlex.split(command)]
        answer = workspace(*filled, "--json")
        assert answer.out, (command, answer.err)
        document = answer.json
        if isinstance(document, dict):
            job = document.get("job_id") or job
        printed += sorted({f"{command}: {path}" for path in keys(document)})
    assert printed == RECORD.read_text(encoding="utf-8").splitlines()
