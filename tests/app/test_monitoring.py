"""Dashboard and alert rules: every metric has a panel, every expression a metric, and Prometheus's tool takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from icewright.app.catalogue import AGES, CATALOGUE, MetricKind
from icewright.core.runs import OperationState
from icewright.ports.views import STATES

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "monitoring"
RULES = FOLDER / "prometheus-rules.yaml"
DASHBOARD: Any = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
ALERTS: Any = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
EXPRESSIONS = [*PANELS, *(rule["expr"] for rule in ALERTS)]
ENDS = {MetricKind.HISTOGRAM: ("_bucket", "_count", "_sum"), MetricKind.SPREAD: ("_bucket", "_gcount", "_gsum")}
SERIES = {name + end: metric for name, metric in CATALOGUE.items() for end in ENDS.get(metric.kind, ("",))}
VALUES = {
    "state": set(STATES),
    "kind": {"service", "worker"},
    "result": {str(state) for state in OperationState},
    "severity": {"info", "warning", "critical"},
    "le": {str(float(age)) for age in AGES},
}
TOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(TOOL is None, reason="promtool is not installed (Debian: prometheus)")


def test_expressions_name_known_series_labels_and_values() -> None:
    """Every expression of a panel or an alert is about series, labels and values that the metrics catalogue has."""
    for expression in EXPRESSIONS:
        found = re.findall(r"(icewright_\w+)(?:\{([^}]*)\})?", expression)
        assert found, expression
        for series, selection in found:
            labels = {*SERIES[series].labels, "le"} if series.endswith("_bucket") else set(SERIES[series].labels)
            for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selection):
                assert label in labels, expression
                assert value == f"${label}" if operator == "=~" else value in VALUES[label], expression
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        assert grouped <= {"le", "instance"}.union(*(SERIES[series].labels for series, _ in found)), expression


def test_dashboard_shows_every_metric_once() -> None:
    """Each metric of the catalogue has one panel with its help; panels do not overlap, and ids are unique."""
    descriptions = [panel["description"] for panel in DASHBOARD["panels"] if panel.get("targets")]
    assert sorted(descriptions) == sorted(f"{metric.name}: {metric.help}" for metric in CATALOGUE.values())
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(places) == len(set(places))


@needs_promtool
def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    """Prometheus's own tool finds no fault in the rule file, nor in what the panels ask."""
    asked = [e.replace("$__rate_interval", "5m") for e in EXPRESSIONS]
    panels = tmp_path / "panels.yaml"
    recorded = [{"record": f"panel:{i}", "expr": expression} for i, expression in enumerate(asked)]
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}), encoding="utf-8")
    for path in (RULES, panels):
        result = subprocess.run([str(TOOL), "check", "rules", path], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


CASES = {
    "IcewrightDown": ({}, {"severity": "critical"}),
    "IcewrightCatalogUnreachable": (
        {'icewright_catalog_failures{catalog="lake", instance="a"}': 3},
        {"severity": "warning", "catalog": "lake"},
    ),
    "IcewrightTablesOverdue": (
        {
            'icewright_table_overdue_seconds_gcount{catalog="lake", instance="a"}': 9,
            'icewright_table_overdue_seconds_gcount{catalog="lake", instance="b"}': 9,
            'icewright_table_overdue_seconds_bucket{catalog="lake", instance="a", le="86400.0"}': 7,
            'icewright_table_overdue_seconds_bucket{catalog="lake", instance="b", le="86400.0"}': 7,
        },
        {"severity": "warning", "catalog": "lake"},
    ),
}


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_rule_fires(alert: str, tmp_path: Path) -> None:
    """Two replicas that say the same raise one alert, and none where a service lives and nothing is wrong."""
    series, labels = CASES[alert]
    (rule,) = [rule for rule in ALERTS if rule["alert"] == alert]
    bare = tmp_path / "rules.yaml"
    bare.write_text(
        yaml.safe_dump({"groups": [{"name": "icewright", "rules": [{**rule, "annotations": {}}]}]}), encoding="utf-8"
    )
    well = dict.fromkeys(series, 0) | {'icewright_processes{kind="service", instance="a"}': 1}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": f"{value}x120"} for name, value in given.items()],
            "alert_rule_test": [{"eval_time": "100m", "alertname": alert, "exp_alerts": expected}],
        }
        for given, expected in ((series, [{"exp_labels": labels}]), (well, []))
    ]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(bare)], "tests": tests}), encoding="utf-8")
    result = subprocess.run([str(TOOL), "test", "rules", path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
