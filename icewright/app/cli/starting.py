"""The command `init`: asks for a catalog, writes a checked configuration, and shows a first verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from icewright.app import output
from icewright.app.cli import reading
from icewright.app.cli.base import OPTIONS, app
from icewright.core.errors import ConfigError, UsageError

FILE = "icewright.yaml"
#: The properties that each type of catalog needs, with an example.
QUESTIONS = {
    "sql": {"uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/warehouse"},
    "rest": {"uri": "https://catalog.example.com", "warehouse": "prod"},
    "nessie": {"uri": "https://nessie.example.com/api/v2", "warehouse": "s3://lake/warehouse"},
    "hive": {"uri": "thrift://metastore:9083", "warehouse": "s3://lake/warehouse"},
    "glue": {"warehouse": "s3://lake/warehouse", "client.region": "eu-central-1"},
}


@app.command()
def init(
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The configuration to write.")] = Path(FILE),
) -> None:
    """Write a configuration for your catalog, step by step.

    The catalog is not enabled, so that nothing runs by itself. The command checks the file and explains all tables.
    """
    from icewright.app.bootstrap import read_config

    if file.exists():
        raise UsageError(f"{file} exists already: edit it, or name another file with --file")
    kind = typer.prompt(f"Type of the catalog ({', '.join(QUESTIONS)})", default="sql")
    if kind not in QUESTIONS:
        raise UsageError(f"there is no catalog type {kind}; there is: {', '.join(QUESTIONS)}")
    name = typer.prompt("Name of the catalog, as your engines know it", default="lake")
    properties = {key: typer.prompt(f"{key}, such as {example}") for key, example in QUESTIONS[kind].items()}
    text = f"""\
state: sqlite:///icewright.db # next to this file; PostgreSQL for several processes
catalogs:
  {json.dumps(name)}:
    type: {kind}
    enabled: false # true: Icewright maintains the tables by itself
    properties: {json.dumps(properties)} # secrets as ${{env:NAME}} or ${{file:PATH}}
"""
    file.write_text(text, encoding="utf-8")
    try:
        read_config(file.resolve())
    except ConfigError:
        file.unlink()  # so that the next try is not refused
        raise
    OPTIONS.config = str(file)
    output.echo(f"[green]wrote[/] {output.escape(file)}")
    reading.explain()
    output.echo("Next: `icewright doctor` checks storage and Spark, `icewright plan` shows what would run.")
