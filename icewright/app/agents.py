"""A Model Context Protocol server: what agents may ask of Icewright, each by the command that people use."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from icewright import __version__
from icewright.core.policy import Operation

_INSTRUCTIONS = """\
Icewright maintains Apache Iceberg tables: compaction, delete files, manifests, snapshot expiry, orphan files.
Tables are named catalog.namespace.table. Begin with `tables`; `explain` says for each operation whether it is due and
why; `plan` says what would be started now and what waits. Only `run`, where it is offered, changes a table."""
_LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ACTS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)

TableName = Annotated[str, Field(description="catalog.namespace.table; a part with dots in backticks")]
Operations = Annotated[list[Operation], Field(description="which operations; empty: all that are due")]
Limit = Annotated[int, Field(ge=1, le=1000, description="how many at the most")]


class Commands:
    """Runs commands of ours with one configuration, each in a process of its own."""

    def __init__(self, config: str) -> None:
        self._begin = (sys.executable, "-m", "icewright", "--config", config)

    async def __call__(self, *arguments: str, about: Sequence[str] = ()) -> Any:  # noqa: ANN401 - JSON
        """Return what the command prints as JSON. `about` are names, never taken for options."""
        command = [*self._begin, *arguments, "--json", *(("--", *about) if about else ())]
        done = await anyio.run_process(command, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ToolError("\n".join(said[-5:]) or f"the command ended with {done.returncode}") from None


def server(config: str, *, allow_changes: bool) -> MCPServer:
    """Return the server over a configuration; only where changes are allowed it offers to make them."""
    made = MCPServer("icewright", title="Icewright", version=__version__, instructions=_INSTRUCTIONS)
    commands = Commands(config)
    _looking(made, commands)
    if allow_changes:
        _acting(made, commands)
    return made


def _looking(made: MCPServer, commands: Commands) -> None:
    @made.tool(annotations=_LOOKS)
    async def tables(catalog: str | None = None, health_below: int | None = None, limit: Limit = 100) -> dict[str, Any]:
        """All tables with health (0-100) and state, the worst first; `total` says how many there are."""
        document = await commands("tables")
        found = [row for row in document["tables"] if catalog is None or row["table"].startswith(f"{catalog}.")]
        if health_below is not None:
            found = [row for row in found if row["health"] is not None and row["health"] < health_below]
        found.sort(key=lambda row: (row["health"] is None, row["health"] or 0))
        return {"total": len(found), "tables": found[:limit], "errors": document["errors"]}

    @made.tool(annotations=_LOOKS)
    async def health(table: TableName) -> dict[str, Any]:
        """Evaluate one table now: health with its parts and the numbers behind them, facts, verdicts."""
        return dict(await commands("health", about=[table]))

    @made.tool(annotations=_LOOKS)
    async def explain(table: TableName) -> dict[str, Any]:
        """Why each operation is due or not on one table."""
        return dict(await commands("explain", about=[table]))

    @made.tool(annotations=_LOOKS)
    async def plan(catalog: str | None = None) -> dict[str, Any]:
        """What would be started now, in which order, and what waits for what."""
        return dict(await commands("plan", *(("--catalog", catalog) if catalog else ())))

    @made.tool(annotations=_LOOKS)
    async def history(table: TableName | None = None, limit: Limit = 20) -> dict[str, Any]:
        """Jobs that ran, newest first, of one table or of all."""
        return dict(await commands("history", "--limit", str(limit), about=[table] if table else []))

    @made.tool(annotations=_LOOKS)
    async def job(job_id: str) -> dict[str, Any]:
        """One job: its operations with metrics, statements, before and after, and each deleted file."""
        return dict(await commands("show", about=[job_id]))

    @made.tool(annotations=_LOOKS)
    async def dry_run(table: TableName, operations: Operations) -> dict[str, Any]:
        """What operations would do to a table, with each file that would go; nothing is changed."""
        return dict(await commands("run", "--dry-run", *_named(operations), about=[table]))


def _acting(made: MCPServer, commands: Commands) -> None:
    @made.tool(annotations=_ACTS)
    async def run(table: TableName, operations: Operations) -> dict[str, Any]:
        """Run operations on a table now and wait for the result. Guardrails and leases hold; do a dry run first."""
        return dict(await commands("run", *_named(operations), about=[table]))


def _named(operations: Sequence[Operation]) -> tuple[str, ...]:
    return ("--op", ",".join(operations)) if operations else ()
