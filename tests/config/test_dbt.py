"""Rules that stand in dbt: which tables they are for, what wins over them, and what is said of bad ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icewright.app.bootstrap import read_config
from icewright.core.errors import ConfigError
from icewright.core.policy import KNOBS
from icewright.core.table import TableRef
from tests.configuration import CONFIG

MANIFEST = Path(__file__).parent / "dbt" / "manifest.json"
ORDERS = TableRef("lake", ("sales",), "orders")
IMPORTANCE, RETENTION = KNOBS["importance"], KNOBS["expire_snapshots.retention_hours"]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration that reads a manifest, after a change to it."""

    def write(change: Callable[[Any], Any] = lambda manifest: manifest, more: str = "") -> Path:
        (tmp_path / "target").mkdir(exist_ok=True)
        manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
        (tmp_path / "target" / "manifest.json").write_text(json.dumps(change(manifest)), encoding="utf-8")
        text = CONFIG.format(home=tmp_path).replace("enabled: true", "enabled: true\n    aliases: [iceberg]")
        path = tmp_path / "icewright.yaml"
        path.write_text(f"{text}policy_from: {{dbt: target/manifest.json}}\n{more}", encoding="utf-8")
        return path

    return write


def set_meta(node: str, value: object) -> Callable[[Any], Any]:
    """A change: what a node says of us."""

    def change(manifest: Any) -> Any:
        found = manifest["nodes"][node]
        found["config"]["meta"], found["meta"] = {"icewright": value}, {}
        return manifest

    return change


def faults(path: Path) -> tuple[str, ...]:
    """What is wrong with the configuration."""
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    return caught.value.faults


def test_rules_of_a_manifest(written: Callable[..., Path]) -> None:
    """Models, seeds and sources that say so become rules of their tables, by database or alias, schema and alias."""
    policy = read_config(written()).policy
    assert {".".join(rule.match): dict(rule.settings) for rule in policy.rules} == {
        "lake.sales.orders": {"importance": "high", "expire_snapshots.retention_hours": 48.0},
        "lake.sales.eu.customers": {"preset": "compliance"},
        "lake.sales.countries": {"compact.enabled": False},
        "lake.raw.orders_landing": {"compact.strategy": "sort", "compact.sort_order": "id"},
    }
    origin = policy.knobs_for(ORDERS, None).origins[RETENTION.name][0]
    assert (origin.level, origin.rule) == ("table", "lake.sales.orders (dbt model.shop.orders)")


def test_the_file_wins_over_dbt(written: Callable[..., Path]) -> None:
    """Of two rules for one table the one of the configuration holds; what it does not name stays as dbt says."""
    more = "policy: [{match: lake.sales.orders, set: {expire_snapshots.retention_hours: 24}}]\n"
    knobs = read_config(written(more=more)).policy.knobs_for(ORDERS, None)
    assert (knobs[RETENTION], knobs[IMPORTANCE]) == (24, "high")


def test_every_fault_names_its_node(written: Callable[..., Path]) -> None:
    """Bad knobs, guardrails, unknown databases, views and tables said twice: all at once."""

    def spoil(manifest: Any) -> Any:
        nodes = manifest["nodes"]
        for node, value in {"plain": {"compact.strategie": "sort"}, "orders": {RETENTION.name: 1}}.items():
            set_meta(f"model.shop.{node}", value)(manifest)
        nodes["model.shop.customers_v2"]["database"] = "icberg"
        nodes["seed.shop.countries"]["config"]["meta"] = {"icewright": ["compact"]}
        view = nodes["model.shop.orders_view"] = json.loads(json.dumps(nodes["model.shop.orders"]))
        view["config"]["materialized"] = "view"
        source = manifest["sources"]["source.shop.raw.orders"]
        manifest["sources"]["source.shop.raw.again"] = source
        return manifest

    said = faults(written(spoil, "guardrails: ['expire_snapshots.retention_hours >= 24']\n"))
    wanted = [
        "model.shop.plain: meta.icewright.compact.strategie: there is no such knob; did you mean compact.strategy?",
        "model.shop.orders: meta.icewright.expire_snapshots.retention_hours: 1.0 passes the guardrail",
        "model.shop.customers_v2: there is no catalog icberg; did you mean iceberg?",
        "seed.shop.countries: meta.icewright: a list given; write a mapping",
        "model.shop.orders_view: it is materialized as view",
        "source.shop.raw.again: lake.raw.orders_landing is the table of source.shop.raw.orders too",
    ]
    assert all(fault.startswith("policy_from.dbt: ") for fault in said)
    assert [fragment for fragment in wanted if not any(fragment in fault for fault in said)] == []
    assert len(said) == len(wanted)


def test_without_databases(written: Callable[..., Path]) -> None:
    """An adapter that knows no databases means the one catalog that there is."""

    def no_database(manifest: Any) -> Any:
        manifest["nodes"]["model.shop.orders"]["database"] = None
        return manifest

    rules = read_config(written(no_database)).policy.rules
    assert "lake.sales.orders" in {".".join(rule.match) for rule in rules}


@pytest.mark.parametrize("document", [[], {"nodes": None}, {}], ids=["a list", "no nodes", "empty"])
def test_no_manifest(document: object, written: Callable[..., Path]) -> None:
    """A file of another kind says what it should be."""
    (fault,) = faults(written(lambda _: document))
    assert fault.startswith("policy_from.dbt: no manifest of dbt")


def test_no_file(written: Callable[..., Path]) -> None:
    """A manifest that is not there is a fault with its path."""
    path = written()
    shutil.rmtree(path.parent / "target")
    (fault,) = faults(path)
    assert "target/manifest.json" in fault
