"""An agent's session over standard input and output, with the protocol's own client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client

from icewright.app.demo.tables import metrics
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # of the module: `make test-fast` does not import the protocol's library
LOOKING = {"tables", "health", "explain", "plan", "history", "job", "dry_run"}
METRICS = "lake.ops.metrics"


def session(workspace: Workspace, talk: Callable[[ClientSession], Awaitable[None]], *options: str) -> None:
    """Start the server as an agent's host does, and talk to it."""
    arguments = ["-m", "icewright", "--config", str(workspace.path), "mcp", *options]

    async def whole() -> None:
        started = StdioServerParameters(command=sys.executable, args=arguments)
        async with stdio_client(started) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            await asyncio.wait_for(talk(client), 120)

    asyncio.run(whole())


async def asked(client: ClientSession, tool: str, **arguments: Any) -> Any:
    """A tool's answer, which is no error."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


def test_an_agent_looks(workspace: Workspace) -> None:
    """Tables, health, verdicts, plan, dry run and history come as the commands say them; there is no tool that acts."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2))

    async def talk(client: ClientSession) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == LOOKING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        found = await asked(client, "tables")
        assert (found["total"], found["tables"][0]["table"]) == (1, METRICS)
        assert (await asked(client, "health", table=METRICS))["health"] is not None
        verdicts = {v["operation"]: v["verdict"] for v in (await asked(client, "explain", table=METRICS))["verdicts"]}
        assert verdicts["expire_snapshots"] == "due"
        assert (await asked(client, "plan"))["jobs"][0]["table"] == METRICS
        before = workspace.files()
        dry = await asked(client, "dry_run", table=METRICS, operations=["expire_snapshots"])
        assert dry["dry_run"]
        assert dry["operations"][0]["files"]
        assert workspace.files() == before
        assert (await asked(client, "history"))["jobs"] == []
        for tool, arguments in (
            ("run", {"table": METRICS, "operations": []}),
            ("health", {"table": "lake.ops.nothing"}),
            ("health", {"table": "--help"}),
            ("dry_run", {"table": METRICS, "operations": ["drop"]}),
        ):
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error, tool

    session(workspace, talk)


def test_an_agent_acts_where_it_may(workspace: Workspace) -> None:
    """With --allow-changes it may run an operation, and the history tells of it."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2))

    async def talk(client: ClientSession) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == LOOKING | {"run"}
        done = await asked(client, "run", table=METRICS, operations=["expire_snapshots"])
        assert done["state"] == "succeeded"
        shown = await asked(client, "job", job_id=done["job_id"])
        assert shown["state"] == "succeeded"
        assert [file for file in shown["files"] if file["state"] == "deleted"]

    session(workspace, talk, "--allow-changes")
