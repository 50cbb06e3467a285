"""Models of the sections of the configuration file, and messages for their faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from icewright.core.alerts import RULES, AlertRule, RuleTerms, Severity, default_terms
from icewright.core.allowlist import Allowlist
from icewright.core.table import split_name
from icewright.core.words import kind, near

_ADDRESSES = {"^sc://.+": "sc://host:15002", "^https?://.+": "https://host:5000"}
_UNION_BRANCHES = ("str", "int", "float", "bool", "[key]")  # in pydantic's paths of faults: the type that was tried
_OperationName = Literal[
    "expire_rows",
    "compact",
    "rewrite_deletes",
    "rewrite_manifests",
    "compute_statistics",
    "recovery_points",
    "check",
    "expire_snapshots",
    "remove_orphans",
]
_Importance = Literal["critical", "high", "normal", "low"]
_Secret = Annotated[str, Field(min_length=16)]  # long enough not to be guessed over the network
_Role = Literal["viewer", "operator", "owner", "admin"]


class Section(BaseModel):
    """Base of all sections: unknown keys are faults, and values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def _joined(value: object) -> object:
    """Return a wildcard list as people write it: one text with commas, or a YAML list."""
    return ", ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value


_Wildcards = Annotated[str, BeforeValidator(_joined)]


class ScopeSection(Section):
    """The tables to maintain; wildcards * and ?, separated by commas; blank means all."""

    namespaces: _Wildcards = ""
    tables: _Wildcards = ""


class EnvironmentSection(Section):
    """The hosts and locations that the catalog may use; a given list refuses all others."""

    hosts: list[str] | None = None
    locations: list[str] | None = None

    def declared(self) -> Allowlist | None:
        """Return the allowlist, or None where nothing is declared."""
        if self.hosts is None and self.locations is None:
            return None
        hosts, locations = (None if listed is None else tuple(listed) for listed in (self.hosts, self.locations))
        return Allowlist(hosts, locations)


class CatalogSection(Section):
    """The configuration of one catalog."""

    type: Literal["sql", "rest", "nessie", "hive", "glue"]
    enabled: bool = False
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)
    scope: ScopeSection = Field(default_factory=ScopeSection)
    allowed_locations: list[str] | None = None
    environment: EnvironmentSection = Field(default_factory=EnvironmentSection)
    pool: str = "default"
    detect_interval_seconds: Annotated[int, Field(ge=1)] | None = None
    vacuum_every_hours: Annotated[int, Field(ge=0)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    gb_hours_per_day: Annotated[float, Field(gt=0, strict=False)] | None = None
    aliases: list[str] = Field(default_factory=list)
    policies: Literal["auto", "polaris", "none"] = "auto"
    commit_reports: str | None = None


class PoolSection(Section):
    """A Spark application: on a master, or behind a Connect server."""

    kind: Literal["spark"] = "spark"
    master: str = "local[*]"
    remote: Annotated[str, Field(pattern="^sc://.+")] | None = None
    max_concurrent: int = Field(2, ge=1)
    gb_hours_per_day: Annotated[float, Field(gt=0, strict=False)] | None = None
    gb_hour_price: Annotated[float, Field(ge=0, strict=False)] | None = None
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)


def default_limits_per_operation() -> dict[_OperationName, int]:
    """Return the default number of concurrent jobs by operation."""
    return {
        "expire_rows": 2,
        "compact": 2,
        "rewrite_deletes": 2,
        "rewrite_manifests": 2,
        "compute_statistics": 1,
        "recovery_points": 4,
        "expire_snapshots": 4,
        "remove_orphans": 1,
        "check": 1,
    }


def _of_namespace(pattern: str) -> str:
    """Return a pattern that names a catalog and a namespace. Raises `ValueError`."""
    if len(split_name(pattern) or ()) < 2:  # noqa: PLR2004 - a catalog alone has limits of its own
        raise ValueError("write catalog.namespace, such as lake.analytics or lake.team-*")
    return pattern


_NamespacePattern = Annotated[str, AfterValidator(_of_namespace)]


class ShareSection(Section):
    """The share of a namespace while others wait: jobs at the same time, and GB-hours a day."""

    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    gb_hours_per_day: Annotated[float, Field(gt=0, strict=False)] | None = None


class LimitsSection(Section):
    """Limits on jobs that run at the same time, and on the wait after which due operations go first."""

    total: int = Field(4, alias="global", ge=1)
    per_operation: dict[_OperationName, Annotated[int, Field(ge=1)]] = Field(
        default_factory=default_limits_per_operation
    )
    per_worker: int = Field(2, ge=1)
    max_jobs_per_detection: int = Field(100, ge=1)
    max_wait_hours: dict[_Importance, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    namespaces: dict[_NamespacePattern, ShareSection] = Field(default_factory=dict)
    gb_hour_price: Annotated[float, Field(ge=0, strict=False)] | None = None
    gb_month_price: Annotated[float, Field(ge=0, strict=False)] | None = None


class DetectSection(Section):
    """The interval at which each catalog is listed, and the time that a listing may take."""

    interval_seconds: int = Field(60, ge=1)
    timeout_seconds: int = Field(300, ge=1)


class CacheSection(Section):
    """Folder and size of the cache of manifests."""

    folder: str | None = None
    max_mb: int = Field(1024, ge=1)


class ReadingSection(Section):
    """Sizes of metadata above which a table is set aside instead of read."""

    max_metadata_mb: int = Field(2048, ge=1)
    max_manifest_mb: int = Field(256, ge=1)
    max_snapshots: int = Field(500_000, ge=1)
    max_listing_mb: int = Field(256, ge=1)
    max_total_mb: int = Field(512, ge=1)


class LedgerSection(Section):
    """Folder of the Parquet file that each job's ledger is written to."""

    folder: str | None = None


class ArchiveSection(Section):
    """The Iceberg tables that old history moves to."""

    catalog: str
    namespace: str = "icewright"
    after_days: int = Field(30, ge=1)


class LogSection(Section):
    """Level and format of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class ServerSection(Section):
    """Address of the service, and limits of its requests."""

    host: str = "127.0.0.1"
    port: int = Field(8765, ge=0, le=65535)
    max_body_mb: int = Field(1, ge=1, le=1024)
    requests_per_second: int = Field(100, ge=1)


class EventsSection(Section):
    """Tokens and signing secrets of senders of events."""

    tokens: list[_Secret] = Field(default_factory=list, repr=False)
    secrets: list[_Secret] = Field(default_factory=list, repr=False)


class GroupSection(Section):
    """Role and scope of a group of the OpenID provider."""

    role: _Role
    scope: list[str] = Field(default_factory=list)


class OidcSection(Section):
    """The OpenID provider that users log in with."""

    issuer: Annotated[str, Field(pattern="^https?://.+")]
    client_id: str
    client_secret: Annotated[str, Field(repr=False)]
    scopes: list[str] = Field(default_factory=lambda: ["openid", "profile", "email"])
    name_claim: str = "email"
    groups_claim: str = "groups"
    groups: dict[str, GroupSection] = Field(default_factory=dict)
    session_minutes: int = Field(60, ge=1, le=60 * 24)
    public_url: Annotated[str, Field(pattern="^https?://.+")] | None = None


class AuthSection(Section):
    """Turns authentication on; without the section only this machine has access."""

    oidc: OidcSection | None = None
    session_hours: int = Field(12, ge=1, le=24 * 31)
    idle_minutes: int = Field(60, ge=1, le=24 * 60)


class PolicyFromSection(Section):
    """Further sources of policy rules beside the file."""

    dbt: str | None = None  # a manifest.json


class OpenLineageSection(Section):
    """The receiver of OpenLineage events: a server or a file."""

    url: Annotated[str, Field(pattern="^https?://.+")] | None = None
    endpoint: str = "api/v1/lineage"
    api_key: str | None = Field(None, repr=False)
    file: str | None = None
    namespace: str = "icewright"


class OpenTelemetrySection(Section):
    """The receiver of OpenTelemetry traces."""

    url: Annotated[str, Field(pattern="^https?://.+")]
    headers: dict[str, str] = Field(default_factory=dict, repr=False)


def _keys(model: type[BaseModel], path: tuple[object, ...]) -> list[str]:
    """Return the keys of the section that a fault's path leads to."""
    for part in path[:-1]:
        inner = next((f.annotation for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        if not isinstance(inner, type) or not issubclass(inner, BaseModel):
            return []
        model = inner
    return [f.alias or name for name, f in model.model_fields.items()]


def fault(path: str, item: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return the message for a fault: the key path, the kind of value there, and what is expected. Never the value."""
    loc = tuple(part for part in item["loc"] if part not in _UNION_BRANCHES)
    where = ".".join([path, *(str(part) for part in loc)])
    context = item.get("ctx", {})
    expected = {
        "bool_type": "true or false",
        "int_type": "a whole number",
        "string_type": "text",
        "string_too_short": f"text of at least {context.get('min_length')} characters",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "greater_than_equal": f"a number of at least {context.get('ge')}",
        "less_than_equal": f"a number of at most {context.get('le')}",
        "greater_than": f"a number above {context.get('gt')}",
        "float_type": "a number",
        "string_pattern_mismatch": f"an address such as {_ADDRESSES.get(str(context.get('pattern')))}",
        "literal_error": str(context.get("expected", "")).replace("'", ""),
    }
    if item["type"] == "missing":
        return f"{where}: missing"
    if item["type"] == "extra_forbidden":
        return f"{where}: there is no such key{near(str(loc[-1]), _keys(model, loc))}"
    if item["type"] == "value_error":
        return f"{where}: {context['error']}"
    right = "text" if len(loc) < len(item["loc"]) and "[key]" not in item["loc"] else expected.get(item["type"])
    return f"{where}: {kind(item.get('input'))} given; write {right or item['msg']}"


@dataclass(frozen=True)
class AlertsConfig:
    """The configuration of alerts. Channel URLs contain secrets: they are never shown or stored."""

    channels: tuple[str, ...] = field(default=(), repr=False)
    rules: Mapping[AlertRule, RuleTerms] = field(default_factory=default_terms)


@cache
def rule_section(rule: AlertRule) -> type[Section]:
    """Return the configuration model of one rule. It is made when a file sets the rule, which few do."""
    kind = RULES[rule]
    fields: dict[str, Any] = {
        "enabled": (bool, True),
        "severity": (Literal["info", "warning", "critical"], str(kind.severity)),
        "delay_minutes": (int, Field(kind.delay_minutes, ge=0)),
        **{p.name: (int, Field(p.default, ge=p.least, le=p.most)) for p in kind.parameters},
    }
    return create_model(f"{rule}_section", __base__=Section, **fields)


class AlertsSection(Section):
    """The `alerts` section: channels are secret Apprise URLs, and each rule has keys of its own."""

    channels: list[str] = Field(default_factory=list)
    rules: dict[str, Any] = Field(default_factory=dict)


def _terms(section: Section) -> RuleTerms:
    """Return the terms that the section of a rule sets."""
    values = section.model_dump()
    return RuleTerms(
        enabled=values.pop("enabled"),
        severity=Severity(values.pop("severity")),
        delay=timedelta(minutes=values.pop("delay_minutes")),
        parameters=values,
    )


def read_alerts(
    raw: Any,  # noqa: ANN401 - YAML
    section: Callable[[str, type[Any], Any], Any],
    faults: list[str],
) -> AlertsConfig:
    """Return the `alerts` section; `section` validates by a model and returns None after adding faults."""
    configured: AlertsSection | None = section("alerts", AlertsSection, raw)
    if configured is None:
        return AlertsConfig()
    rules = dict(default_terms())
    for name, values in configured.rules.items():
        path = f"alerts.rules.{name}"
        if name not in list(AlertRule):
            faults.append(f"{path}: there is no such rule{near(name, list(AlertRule))}")
        elif (read := section(path, rule_section(AlertRule(name)), values)) is not None:
            rules[AlertRule(name)] = _terms(read)
    return AlertsConfig(tuple(configured.channels), rules)
