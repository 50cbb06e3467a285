"""The demo as a newcomer runs it: in a process of its own, from nothing to a fixed point."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.recorded import keys

RECORD = Path(__file__).with_name("demo_report.txt")
COUNTS = {"files", "manifests", "snapshots", "orphans", "bytes"}


def _icewright(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", "from icewright.app.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _recorded(report: dict[str, Any]) -> list[str]:
    """What is the same in every demo: keys, tables with what is wrong, and counts that no clock changes."""
    lines = sorted({re.sub(r"(\.metrics)\..*", r"\1.*", path) for path in keys(report)})  # of what ran at this hour
    for table in report["tables"]:
        counts = [f"{name} {table['before'][name]}" for name in ("files", "delete_files", "manifests", "snapshots")]
        lines += [f"{table['name']}: {table['story']}", f"  {table['rows_before']} rows, {', '.join(counts)}"]
    return lines


def _proven(report: dict[str, Any]) -> None:
    """Every table, tag and branch reads the rows that it read before."""
    assert report["ok"]
    for table in report["tables"]:
        assert table["rows_before"] == table["rows_after"], table["name"]
        assert table["checksum_before"] == table["checksum_after"], table["name"]
        assert table["before"].keys() >= COUNTS
        assert table["after"].keys() >= COUNTS
    assert all(ref["checksum_before"] == ref["checksum_after"] for ref in report["refs"])


@pytest.mark.spark
def test_demo_maintains_its_lakehouse_and_proves_it(tmp_path: Path) -> None:
    """Every table reads the same rows after maintenance, and the next cycle finds nothing due."""
    report = _icewright("demo", "--once", "--dir", str(tmp_path / "lakehouse"), "--json")
    _proven(report)
    assert _recorded(report) == RECORD.read_text(encoding="utf-8").splitlines()
    funnel = report["funnel"]
    assert funnel["tables"] > funnel["changed"] >= funnel["due"] >= funnel["run"] > 0
    config = str(tmp_path / "lakehouse" / "icewright.yaml")
    assert _icewright("--config", config, "cycle", "--json")["funnel"]["due"] == 0
    assert report["undo"].items() >= {"table": "lake.ops.metrics", "same": True, "expired_again": True}.items()
    assert report["undo"]["snapshots"] > 100
    improved = {t["name"]: (t["before"], t["after"]) for t in report["tables"]}
    # today's partition is hot and left to the writer: at midnight it has one file, a day later thirty
    assert improved["lake.web.clicks"][1]["files"] < improved["lake.web.clicks"][0]["files"] / 5
    assert improved["lake.web.events"][1]["manifests"] == 1
    assert improved["lake.shop.payments"][1]["delete_files"] == 0
    assert improved["lake.ops.uploads"][1]["orphans"] == 0
    assert improved["lake.ops.shared"][1]["orphans"] == improved["lake.ops.shared"][0]["orphans"] > 0
    assert improved["lake.ops.ledger"][1]["snapshots"] == improved["lake.ops.ledger"][0]["snapshots"]
