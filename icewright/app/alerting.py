"""The configuration of alerts: each rule's keys come from its declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, create_model

from icewright.app.sections import Section
from icewright.core.alerts import RULES, AlertRule, RuleKind, RuleTerms, Severity, default_terms
from icewright.core.words import near


@dataclass(frozen=True)
class AlertsConfig:
    """The configuration of alerts. Channel URLs contain secrets: they are never shown or stored."""

    channels: tuple[str, ...] = field(default=(), repr=False)
    rules: Mapping[AlertRule, RuleTerms] = field(default_factory=default_terms)


def _rule_section(rule: AlertRule, kind: RuleKind) -> type[Section]:
    """Return the configuration model of one rule."""
    fields: dict[str, Any] = {
        "enabled": (bool, True),
        "severity": (Literal["info", "warning", "critical"], str(kind.severity)),
        "delay_minutes": (int, Field(kind.delay_minutes, ge=0)),
        **{p.name: (int, Field(p.default, ge=p.least, le=p.most)) for p in kind.parameters},
    }
    return create_model(f"{rule}_section", __base__=Section, **fields)


RULE_SECTIONS: Mapping[AlertRule, type[Section]] = {rule: _rule_section(rule, kind) for rule, kind in RULES.items()}


class AlertsSection(Section):
    """The `alerts` section: channels are secret Apprise URLs, and each rule has keys of its own."""

    channels: list[str] = Field(default_factory=list)
    rules: dict[str, Any] = Field(default_factory=dict)


def rule_terms(sections: Mapping[AlertRule, Section]) -> Mapping[AlertRule, RuleTerms]:
    """Return the terms of every rule, with defaults where the file sets none."""
    terms = {}
    for rule, model in RULE_SECTIONS.items():
        values = (sections.get(rule) or model.model_validate({})).model_dump()
        terms[rule] = RuleTerms(
            enabled=values.pop("enabled"),
            severity=Severity(values.pop("severity")),
            delay=timedelta(minutes=values.pop("delay_minutes")),
            parameters=values,
        )
    return terms


def read_alerts(
    raw: Any,  # noqa: ANN401 - YAML
    section: Callable[[str, type[Any], Any], Any],
    faults: list[str],
) -> AlertsConfig:
    """Return the `alerts` section; `section` validates by a model and returns None after adding faults."""
    configured: AlertsSection | None = section("alerts", AlertsSection, raw)
    if configured is None:
        return AlertsConfig()
    rules: dict[AlertRule, Section] = {}
    for name, values in configured.rules.items():
        path = f"alerts.rules.{name}"
        if name not in list(AlertRule):
            faults.append(f"{path}: there is no such rule{near(name, list(AlertRule))}")
        elif (terms := section(path, RULE_SECTIONS[AlertRule(name)], values)) is not None:
            rules[AlertRule(name)] = terms
    return AlertsConfig(tuple(configured.channels), rule_terms(rules))
