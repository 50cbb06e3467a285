"""Alert rules for Prometheus: what an Alertmanager should say of Icewright, its own absence first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """One rule: when, for how long, how bad, and what to do."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    remedy: str


RULES: tuple[AlertingRule, ...] = (
    AlertingRule(
        "IcewrightDown",
        'absent(icewright_processes{kind="service"} > 0)',
        10,
        "critical",
        "No service is alive: nothing is detected, planned or alerted on.",
        "Look at the log of `icewright serve`, and whether Prometheus reaches /metrics.",
    ),
    AlertingRule(
        "IcewrightStoreDown",
        "max(icewright_store_up) == 0",
        5,
        "critical",
        "No replica reaches the state store.",
        "Look at the database behind `state:`; /readyz says what is wrong.",
    ),
    AlertingRule(
        "IcewrightNoWorkers",
        "max(icewright_worker_slots) == 0 and sum(max by (operation) (icewright_queue_jobs)) > 0",
        10,
        "critical",
        "Jobs wait and there is no worker.",
        "Start `icewright worker`, or the service without --no-worker.",
    ),
    AlertingRule(
        "IcewrightCatalogUnreachable",
        "max by (catalog) (icewright_catalog_failures) >= 3",
        5,
        "warning",
        "Catalog {{ $labels.catalog }} could not be read {{ $value }} times in a row.",
        "`icewright doctor` says why and how to mend it.",
    ),
    AlertingRule(
        "IcewrightNoDetection",
        "max by (catalog) (icewright_catalog_detection_age_seconds) > 7200",
        10,
        "warning",
        "Catalog {{ $labels.catalog }} was last read {{ $value | humanizeDuration }} ago.",
        "Raise the bound where its detect_interval_seconds is long; else look at the log for catalog_failed.",
    ),
    AlertingRule(
        "IcewrightTablesOverdue",
        "max by (catalog) (icewright_table_overdue_seconds_gcount)"
        ' - max by (catalog) (icewright_table_overdue_seconds_bucket{le="86400.0"}) > 0',
        60,
        "warning",
        "{{ $value }} table(s) of {{ $labels.catalog }} have something due for a day in which nothing succeeded.",
        "`icewright plan` says what they wait for: limits, budgets, windows, or workers.",
    ),
    AlertingRule(
        "IcewrightTablesPaused",
        'max by (catalog) (icewright_tables{state="paused"}) > 0',
        30,
        "warning",
        "{{ $value }} table(s) of {{ $labels.catalog }} are paused: nothing maintains them.",
        "`icewright tables` says why; `icewright resume TABLE` when it is mended.",
    ),
    AlertingRule(
        "IcewrightTablesUnreadable",
        'max by (catalog) (icewright_tables{state="unreadable"}) > 0',
        60,
        "warning",
        "{{ $value }} table(s) of {{ $labels.catalog }} cannot be read.",
        "`icewright tables` names the file; readers of the table most likely fail on it too.",
    ),
    AlertingRule(
        "IcewrightRunsFailing",
        'sum by (operation) (max by (catalog, operation) (increase(icewright_runs_total{result="failed"}[1h]))) > 3',
        15,
        "warning",
        "{{ $labels.operation }} failed {{ $value | humanize }} times within an hour.",
        "`icewright history` lists the jobs, `icewright show JOB` the error of each.",
    ),
    AlertingRule(
        "IcewrightQueueStuck",
        "max by (operation) (icewright_queue_age_seconds) > 3600",
        15,
        "warning",
        "A job with {{ $labels.operation }} has waited for a worker for {{ $value | humanizeDuration }}.",
        "Add workers or slots, or look whether running jobs are stuck.",
    ),
    AlertingRule(
        "IcewrightLoopLate",
        "max by (loop, instance) (icewright_loop_lag_seconds) > 300",
        10,
        "warning",
        "The loop {{ $labels.loop }} of {{ $labels.instance }} is {{ $value | humanizeDuration }} late.",
        "The process has too much to do or hangs: look at its log and its CPU.",
    ),
    AlertingRule(
        "IcewrightLoopFailing",
        "max by (loop, instance) (increase(icewright_loop_failures_total[15m])) > 5",
        10,
        "warning",
        "The loop {{ $labels.loop }} of {{ $labels.instance }} fails again and again.",
        "The log says why at loop_failed.",
    ),
    AlertingRule(
        "IcewrightAlertsNotTold",
        "max by (channel) (icewright_alert_messages_waiting) > 0",
        30,
        "warning",
        "The channel {{ $labels.channel }} takes no messages; {{ $value }} wait.",
        "`icewright alerts --test` says what is wrong with it.",
    ),
    AlertingRule(
        "IcewrightCriticalAlert",
        'max by (rule) (icewright_alerts{severity="critical"}) > 0',
        0,
        "critical",
        "{{ $value }} critical alert(s) of the rule {{ $labels.rule }} are open.",
        "`icewright alerts` says which tables they are about and what to do.",
    ),
)


def rules() -> dict[str, Any]:
    """Return all rules as a rule file of Prometheus."""
    return {"groups": [{"name": "icewright", "rules": [_rule(rule) for rule in RULES]}]}


def _rule(rule: AlertingRule) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.expression,
        **({"for": f"{rule.minutes}m"} if rule.minutes else {}),
        "labels": {"severity": rule.severity},
        "annotations": {"summary": rule.summary, "description": rule.remedy},
    }
