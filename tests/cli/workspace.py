"""A small lakehouse with its configuration, and the command line called as a shell would call it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icewright.adapters.store.database import open_database
from icewright.adapters.store.sql import SqlStore
from icewright.app.bootstrap import pyiceberg_catalog_properties, read_config
from icewright.app.cli import main
from icewright.app.demo.lake import Lake, Rot
from tests.configuration import CONFIG


@dataclass(frozen=True)
class Said:
    """What a command left: its exit code, what it printed, and what it said on standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)


@dataclass
class Workspace:
    """A folder with `icewright.yaml`, a catalog `lake` and its warehouse."""

    home: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __post_init__(self) -> None:
        (self.home / "warehouse").mkdir(parents=True)
        self.write("")

    @property
    def path(self) -> Path:
        """The configuration."""
        return self.home / "icewright.yaml"

    def write(self, more: str, enabled: str = "true") -> None:
        """Write the configuration; `more` comes at its end."""
        text = CONFIG.format(home=self.home).replace("enabled: true", f"enabled: {enabled}")
        at_once = "" if "policy:" in more else "policy: [{set: {deletion.delay_hours: 0}}]\n"
        self.path.write_text(text + at_once + more, encoding="utf-8")

    def make(self, *makers: Callable[[Lake], Rot]) -> list[str]:
        """Make tables, of which none needs Spark; their full names."""
        catalog = SqlCatalog("lake", **pyiceberg_catalog_properties(read_config(self.path).catalogs["lake"]))
        lake = Lake(catalog, no_spark, self.home / "warehouse", datetime.now(UTC))
        made = [make(lake).name for make in makers]
        catalog.close()
        return made

    def __call__(self, *arguments: str, config: bool = True) -> Said:
        """Run the command line in this process."""
        named = ["--config", str(self.path)] if config else []
        self.monkeypatch.setattr(sys, "argv", ["icewright", *named, *arguments])
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        captured = self.capsys.readouterr()
        return Said(code, captured.out, captured.err)

    def store(self) -> SqlStore:
        """The state store; dispose of its engine."""
        return SqlStore(open_database(f"sqlite:///{self.home}/state.db"))

    def files(self) -> set[str]:
        """Every file of the warehouse, as metadata names them."""
        return {f"file://{path}" for path in (self.home / "warehouse").rglob("*") if path.is_file()}

    @property
    def spark_started(self) -> bool:
        """Whether a pool wrote its log."""
        return (self.home / "cache" / "logs").exists()


def no_spark() -> NoReturn:
    """Spark is not wanted here."""
    raise AssertionError
