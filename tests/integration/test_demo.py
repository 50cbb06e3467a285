"""The demo as a newcomer runs it: in a process of its own, from nothing to a fixed point."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest

from icewright.app.demo.rot import Lake, customers
from icewright.app.demo.serving import place
from tests.cli.workspace import no_spark
from tests.s3 import store

COUNTS = {"files", "manifests", "snapshots", "orphans", "bytes"}


def _icewright(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", "from icewright.app.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _proven(report: dict[str, Any]) -> None:
    """Every table, tag and branch reads the rows that it read before."""
    assert report["ok"]
    for table in report["tables"]:
        assert table["rows_before"] == table["rows_after"], table["name"]
        assert table["checksum_before"] == table["checksum_after"], table["name"]
        assert table["before"].keys() >= COUNTS
        assert table["after"].keys() >= COUNTS
    assert all(ref["checksum_before"] == ref["checksum_after"] for ref in report["refs"])


def _said(path: Path) -> str:
    """A metadata file, manifest list or manifest as text."""
    if path.suffix == ".json":
        return path.read_text(encoding="utf-8")
    with path.open("rb") as content:
        reader = fastavro.reader(content)
        return str((reader.metadata, list(reader)))


@pytest.mark.external
def test_tables_are_made_beside_the_s3_server(tmp_path: Path) -> None:
    """What is laid into its folder and what PyIceberg writes through it is one table, and as old as its commits."""
    here = place(tmp_path, "sql", "s3")
    now = datetime.now(UTC)
    with here.served():
        lake = Lake(here.catalog(), no_spark, here.warehouse, now, served=here.uri)
        customers(lake, commits=4, rows_per_file=5)
        assert lake.catalog.load_table("shop.customers").scan().to_arrow().num_rows == 30
        listed = [each for batch in store(here.config.catalogs["lake"].properties).list() for each in batch]
        lake.catalog.close()
    assert {"data", "metadata"} == {each["path"].split("/")[3] for each in listed}
    assert max(each["last_modified"] for each in listed) <= now - timedelta(hours=6)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.parametrize("kind", ["rest", "nessie"])
def test_demo_on_s3_behind_a_server(tmp_path: Path, kind: str) -> None:
    """All is maintained and proved by its objects alone; on Nessie a vacuum expires and sweeps."""
    home = tmp_path / "lakehouse"
    report = _icewright("demo", "--once", "--catalog", kind, "--storage", "s3", "--dir", str(home), "--json")
    _proven(report)
    assert report["cycles"][-1]["due"] == 0
    assert (report.get("vacuum", {"metrics": {}})["metrics"].get("num_expired_snapshots", 0) > 0) is (kind == "nessie")
    improved = {t["name"].removeprefix("lake."): (t["before"], t["after"]) for t in report["tables"]}
    assert improved["web.clicks"][1]["files"] < improved["web.clicks"][0]["files"] / 5
    assert improved["ops.metrics"][1]["snapshots"] < improved["ops.metrics"][0]["snapshots"] / 2
    assert (report["undo"] is None) is (kind == "nessie")
    assert improved["ops.uploads"][1]["orphans"] == 0 < improved["ops.uploads"][0]["orphans"]
    assert improved["ops.ledger"][1]["snapshots"] == improved["ops.ledger"][0]["snapshots"]
    assert improved["ops.shared"][1]["orphans"] >= improved["ops.shared"][0]["orphans"] > 0
    objects = home / "s3" / "objects" / "lake"
    said = {path: _said(path) for path in home.rglob("*/metadata/*") if path.suffix in (".avro", ".json")}
    assert not [path for path, text in said.items() if re.search(f"file:/|{home}", text) or objects not in path.parents]
    locations = {json.loads(text)["location"] for path, text in said.items() if path.suffix == ".json"}
    assert locations == {f"s3://lake/warehouse/{name.replace('.', '/')}" for name in improved}


@pytest.mark.spark
def test_demo_maintains_its_lakehouse_and_proves_it(tmp_path: Path) -> None:
    """Every table reads the same rows after maintenance, and the next cycle finds nothing due."""
    report = _icewright("demo", "--once", "--dir", str(tmp_path / "lakehouse"), "--json")
    _proven(report)
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
