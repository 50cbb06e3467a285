"""Grafana's dashboard, made from the catalogue of metrics. `make monitoring` writes it, and the alert rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from icewright.app.catalogue import CATALOGUE, Declared, MetricKind
from icewright.app.prometheus_rules import rules

DASHBOARD, RULES = "grafana-dashboard.json", "prometheus-rules.yaml"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_CHOSEN = ("catalog", "operation")  # what a reader of the dashboard chooses
_WIDTH, _HEIGHT, _ROOM = 8, 8, 24
_UNITS = {"_seconds": "s", "_bytes": "bytes"}

LAYOUT: Mapping[str, tuple[str, ...]] = {
    "Tables": (
        "icewright_tables",
        "icewright_table_health",
        "icewright_verdicts",
        "icewright_deferred",
        "icewright_table_overdue_seconds",
        "icewright_table_success_age_seconds",
    ),
    "Queue and jobs": (
        "icewright_queue_jobs",
        "icewright_queue_age_seconds",
        "icewright_jobs_running",
        "icewright_jobs_total",
        "icewright_runs_total",
        "icewright_run_duration_seconds",
    ),
    "Work and cost": (
        "icewright_gb_hours_total",
        "icewright_files_rewritten_total",
        "icewright_bytes_rewritten_total",
        "icewright_files_deleted_total",
        "icewright_bytes_deleted_total",
        "icewright_snapshots_expired_total",
    ),
    "Catalogs": (
        "icewright_catalog_detection_age_seconds",
        "icewright_catalog_failures",
        "icewright_catalog_errors_total",
    ),
    "Alerts": ("icewright_alerts", "icewright_alert_messages_waiting"),
    "Processes": (
        "icewright_processes",
        "icewright_worker_slots",
        "icewright_store_up",
        "icewright_build_info",
        "icewright_loop_lag_seconds",
        "icewright_loop_duration_seconds",
        "icewright_loop_failures_total",
    ),
}


def expression(metric: Declared) -> str:
    """What a panel asks for. Every replica tells the same of the fleet: `max by` takes one of them, a sum all."""
    labels = metric.labels if metric.source or not metric.labels else (*metric.labels, "instance")
    chosen = ", ".join(f'{label}=~"${label}"' for label in metric.labels if label in _CHOSEN)
    where = f"{{{chosen}}}" if chosen else ""

    def one(of: tuple[str, ...], what: str) -> str:
        return f"max by ({', '.join(of)}) ({what})" if of else f"max({what})"

    match metric.kind:
        case MetricKind.GAUGE:
            return one(labels, f"{metric.name}{where}")
        case MetricKind.COUNTER:
            return one(labels, f"increase({metric.name}{where}[$__rate_interval])")
        case MetricKind.HISTOGRAM:
            rate = one((*labels, "le"), f"rate({metric.name}_bucket{where}[$__rate_interval])")
            return f"histogram_quantile(0.95, {rate})"
        case MetricKind.SPREAD:
            return f"sum by (le) ({one((*labels, 'le'), f'{metric.name}_bucket{where}')})"


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "icewright",
        "title": "Icewright",
        "tags": ["icewright", "iceberg"],
        "schemaVersion": 39,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "graphTooltip": 1,
        "templating": {"list": [_source(), *(_variable(label) for label in _CHOSEN)]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> dict[str, Any]:
    """Return a choice of label values, all at first."""
    query = f"label_values(icewright_verdicts, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, names in LAYOUT.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": _ROOM, "h": 1},
            "panels": [],
        }
        top += 1
        for place, name in enumerate(names):
            number += 1
            row, column = divmod(place * _WIDTH, _ROOM)
            at = {"x": column, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "gridPos": at, **_panel(CATALOGUE[name])}
        top += -(-len(names) * _WIDTH // _ROOM) * _HEIGHT


def _panel(metric: Declared) -> dict[str, Any]:
    spread = metric.kind is MetricKind.SPREAD
    legend = "{{le}}" if spread else " ".join(f"{{{{{label}}}}}" for label in metric.labels) or metric.name
    target = {
        "refId": "A",
        "datasource": _SOURCE,
        "expr": expression(metric),
        "legendFormat": legend,
        "format": "heatmap" if spread else "time_series",
    }
    unit = next((unit for end, unit in _UNITS.items() if metric.name.removesuffix("_total").endswith(end)), "short")
    if metric.name.startswith("icewright_bytes_"):
        unit = "bytes"
    return {
        "type": "heatmap" if spread else "timeseries",
        "title": _title(metric),
        "description": f"{metric.name}: {metric.help}",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        **({"options": {"calculate": False, "yAxis": {"unit": unit}}} if spread else {}),
        "targets": [target],
    }


def _title(metric: Declared) -> str:
    words = metric.name.removeprefix("icewright_").removesuffix("_total").removesuffix("_seconds").replace("_", " ")
    what = {MetricKind.HISTOGRAM: ", 95th percentile", MetricKind.COUNTER: ", in each step"}.get(metric.kind, "")
    return f"{words.capitalize()}{what}"


def files() -> dict[str, str]:
    """Return each file's text by its name."""
    made = "# made by `make monitoring` from the code: change it there\n"
    return {
        DASHBOARD: json.dumps(dashboard(), indent=2) + "\n",
        RULES: made + yaml.safe_dump(rules(), sort_keys=False, width=120),
    }


if __name__ == "__main__":
    for file_name, text in files().items():
        (Path(sys.argv[1]) / file_name).write_text(text, encoding="utf-8")
