"""A Model Context Protocol server: each tool runs a command of the command line in a process of its own."""

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
_READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_DESTRUCTIVE = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)

TableName = Annotated[str, Field(description="catalog.namespace.table; a part with dots in backticks")]
Operations = Annotated[list[Operation], Field(description="which operations; empty: all that are due")]
Limit = Annotated[int, Field(ge=1, le=1000, description="how many at the most")]


class Commands:
    """Runs `icewright` commands with one configuration, each in its own process."""

    def __init__(self, config: str) -> None:
        self._prefix = (sys.executable, "-m", "icewright", "--config", config)

    async def __call__(self, *arguments: str, names: Sequence[str] = ()) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON document that the command prints. `names` are never parsed as options."""
        command = [*self._prefix, *arguments, "--json", *(("--", *names) if names else ())]
        done = await anyio.run_process(command, check=False)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise ToolError("\n".join(lines[-5:]) or f"the command ended with {done.returncode}") from None
        if isinstance(document, dict) and document.keys() == {"error"}:
            raise ToolError(document["error"])
        return document


def server(config: str, *, allow_changes: bool) -> MCPServer:
    """Return the server over a configuration; `allow_changes` adds the tool that runs operations."""
    mcp = MCPServer("icewright", title="Icewright", version=__version__, instructions=_INSTRUCTIONS)
    commands = Commands(config)
    _add_reading_tools(mcp, commands)
    if allow_changes:
        _add_run_tool(mcp, commands)
    return mcp


def _add_reading_tools(mcp: MCPServer, commands: Commands) -> None:
    @mcp.tool(annotations=_READ_ONLY)
    async def tables(catalog: str | None = None, health_below: int | None = None, limit: Limit = 100) -> dict[str, Any]:
        """List tables with health (0-100) and state, the worst first; `total` counts all matches."""
        document = await commands("tables")
        tables = [row for row in document["tables"] if catalog is None or row["table"].startswith(f"{catalog}.")]
        if health_below is not None:
            tables = [row for row in tables if row["health"] is not None and row["health"] < health_below]
        tables.sort(key=lambda row: (row["health"] is None, row["health"] or 0))
        return {"total": len(tables), "tables": tables[:limit], "errors": document["errors"]}

    @mcp.tool(annotations=_READ_ONLY)
    async def health(table: TableName) -> dict[str, Any]:
        """Evaluate one table now: health with its parts and the numbers behind them, facts, verdicts."""
        return dict(await commands("health", names=[table]))

    @mcp.tool(annotations=_READ_ONLY)
    async def explain(table: TableName) -> dict[str, Any]:
        """Explain for each operation whether it is due on one table, and why."""
        return dict(await commands("explain", names=[table]))

    @mcp.tool(annotations=_READ_ONLY)
    async def plan(catalog: str | None = None) -> dict[str, Any]:
        """List the jobs that would start now, in order, and the operations that wait, with the reason."""
        return dict(await commands("plan", *(("--catalog", catalog) if catalog else ())))

    @mcp.tool(annotations=_READ_ONLY)
    async def history(table: TableName | None = None, limit: Limit = 20) -> dict[str, Any]:
        """List jobs, newest first, of one table or of all."""
        return dict(await commands("history", "--limit", str(limit), names=[table] if table else []))

    @mcp.tool(annotations=_READ_ONLY)
    async def job(job_id: str) -> dict[str, Any]:
        """Return one job: operations with metrics, statements, the table before and after, and each deleted file."""
        return dict(await commands("show", names=[job_id]))

    @mcp.tool(annotations=_READ_ONLY)
    async def dry_run(table: TableName, operations: Operations) -> dict[str, Any]:
        """Return what operations would do to a table, with each file that they would delete. Changes nothing."""
        return dict(await commands("run", "--dry-run", *_operation_options(operations), names=[table]))


def _add_run_tool(mcp: MCPServer, commands: Commands) -> None:
    @mcp.tool(annotations=_DESTRUCTIVE)
    async def run(table: TableName, operations: Operations) -> dict[str, Any]:
        """Run operations on a table now and wait for the result. Guardrails and leases hold; do a dry run first."""
        return dict(await commands("run", *_operation_options(operations), names=[table]))


def _operation_options(operations: Sequence[Operation]) -> tuple[str, ...]:
    return ("--op", ",".join(operations)) if operations else ()
