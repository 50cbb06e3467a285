"""Read the configuration: one YAML file, with references to the environment, into frozen values; all faults at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from icewright.app.addresses import beside
from icewright.app.dbt import with_dbt
from icewright.app.entries import (
    CatalogConfig,
    PoolConfig,
    ambiguous_aliases,
    archive_faults,
    default_pools,
    limits_of,
    open_to_others,
    unclear_lineage,
    wrong_groups,
)
from icewright.app.environment import user_cache
from icewright.app.redaction import without
from icewright.app.sections import (
    AlertsConfig,
    ArchiveSection,
    AuthSection,
    CacheSection,
    CatalogSection,
    DetectSection,
    EventsSection,
    LedgerSection,
    LimitsSection,
    LogSection,
    OpenLineageSection,
    OpenTelemetrySection,
    PolicyFromSection,
    PoolSection,
    ReadingSection,
    Section,
    ServerSection,
    fault,
    read_alerts,
)
from icewright.app.strict_yaml import read_yaml
from icewright.core.capacity import CatalogLimits, Limits
from icewright.core.errors import ConfigError
from icewright.core.guardrails import Guardrail, parse_guardrails
from icewright.core.layering import Policy, PolicyRule, parse_rule
from icewright.core.paths import is_location
from icewright.core.table import split_name
from icewright.core.words import kind, near
from icewright.flow.runtime import Scope

_VACUUM_HOURS = 24  # between two vacuums of a Nessie catalog, by default
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
SECTIONS = (
    *("state", "catalogs", "pools", "detect", "limits", "policy", "guardrails", "cache", "reading", "ledger"),
    *("archive", "alerts", "log", "server", "events", "auth"),
    *("policy_from", "openlineage", "opentelemetry"),
)
_OF_STATE = ("state", "cache", "ledger", "log")


@dataclass(frozen=True)
class Config:
    """The whole configuration, from the file and the environment."""

    path: Path
    state: str = field(repr=False)
    catalogs: Mapping[str, CatalogConfig]
    pools: Mapping[str, PoolConfig]
    limits: Limits
    policy: Policy
    cache_folder: Path
    cache_bytes: int
    reading: ReadingSection
    ledger_folder: Path
    archive: ArchiveSection | None
    java_home: str | None
    alerts: AlertsConfig
    log: LogSection
    secrets: frozenset[str] = field(repr=False)  # what logs must not repeat
    server: ServerSection
    events: EventsSection = field(repr=False)
    auth: AuthSection | None = field(default=None, repr=False)  # None: only this machine has access
    openlineage: OpenLineageSection | None = None
    opentelemetry: OpenTelemetrySection | None = None


@dataclass(frozen=True)
class Checks:
    """Checks that only adapters can make; each raises `ConfigError` with the faults."""

    catalog: Callable[[CatalogConfig], None]
    state: Callable[[str], None]
    channels: Callable[[Sequence[str]], None]


def load_config(path: Path, checks: Checks, *, without_catalogs: bool = False) -> Config:
    """Read and check the file; without catalogs only the sections about the state store, whose secrets suffice.

    Raises `ConfigError` with every fault, each with its key path.
    """
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise ConfigError([f"{path}: expected a mapping with the keys {', '.join(SECTIONS)}"])
    if without_catalogs:
        raw = {key: value for key, value in raw.items() if key in _OF_STATE}
    return _Reader(path, checks, without_catalogs=without_catalogs).config(raw)


class _Reader:
    """Reads the sections one by one and collects the faults of all."""

    def __init__(self, path: Path, checks: Checks, *, without_catalogs: bool) -> None:
        self.path, self.checks, self.without_catalogs = path, checks, without_catalogs
        self.faults: list[str] = []
        self.secrets: set[str] = set()

    def config(self, raw: dict[str, Any]) -> Config:
        raw = self._resolved("", raw)
        for key in raw:
            if key not in SECTIONS:
                self.faults.append(f"{key}: there is no such key{near(str(key), SECTIONS)}")
        pools = self._pools(raw.get("pools"))
        detect = self._or_defaults(raw, "detect", DetectSection)
        catalogs = self._catalogs(raw.get("catalogs"), pools, detect)
        limits = self._or_defaults(raw, "limits", LimitsSection)
        cache = self._or_defaults(raw, "cache", CacheSection)
        reading = self._or_defaults(raw, "reading", ReadingSection)
        ledger = self._or_defaults(raw, "ledger", LedgerSection)
        server = self._or_defaults(raw, "server", ServerSection)
        events = self._section("events", EventsSection, raw.get("events") or {})
        auth = self._section("auth", AuthSection, raw["auth"] or {}) if "auth" in raw else None
        self.faults += open_to_others(server, events, auth) if events is not None else ()
        self.faults += wrong_groups(auth)
        names = tuple(str(name) for name in raw["catalogs"]) if isinstance(raw.get("catalogs"), dict) else ()
        policy = self._policy(raw.get("policy"), raw.get("guardrails"), names)
        policy_from = self._section("policy_from", PolicyFromSection, raw.get("policy_from") or {})
        aliases = {name: catalog.aliases for name, catalog in catalogs.items()}
        policy = with_dbt(policy, policy_from.dbt if policy_from else None, self._read_text, aliases, self.faults)
        lineage = self._section("openlineage", OpenLineageSection, raw["openlineage"]) if "openlineage" in raw else None
        self.faults += unclear_lineage(lineage) if lineage is not None else ()
        opentelemetry = raw.get("opentelemetry")
        traces = self._section("opentelemetry", OpenTelemetrySection, opentelemetry) if opentelemetry else None
        archive = self._archive(raw.get("archive"), catalogs, names)
        alerts, log = self._alerts(raw.get("alerts") or {}), self._log(raw.get("log") or {})
        state = raw.get("state", "sqlite:///icewright.db")
        if not isinstance(state, str):
            self.faults.append(f"state: {kind(state)} given; write a database URL such as sqlite:///icewright.db")
        else:
            self._checked(self.checks.state, beside(self.path, state))
        if self.faults:
            raise ConfigError([without(self.secrets, fault) for fault in self.faults])
        cache_folder = Path(cache.folder).expanduser() if cache.folder else user_cache()
        return Config(
            path=self.path,
            state=beside(self.path, str(state)),
            catalogs=catalogs,
            pools=pools,
            limits=limits_of(limits, pools, catalogs),
            policy=policy,
            cache_folder=cache_folder,
            cache_bytes=cache.max_mb * 1024 * 1024,
            reading=reading,
            ledger_folder=Path(ledger.folder).expanduser() if ledger.folder else cache_folder / "ledger",
            archive=archive,
            java_home=os.environ.get("JAVA_HOME"),
            alerts=alerts,
            log=log,
            secrets=frozenset(self.secrets),
            server=server,
            events=events or EventsSection(),
            auth=auth,
            openlineage=lineage,
            opentelemetry=traces,
        )

    _Checked = TypeVar("_Checked")

    def _checked(self, check: Callable[[_Checked], None], value: _Checked) -> None:
        try:
            check(value)
        except ConfigError as error:
            self.faults += error.faults

    def _resolved(self, path: str, value: Any) -> Any:  # noqa: ANN401 - YAML
        """Return the value with `${env:NAME}` and `${file:PATH}` replaced by their contents."""
        if isinstance(value, dict):
            return {k: self._resolved(f"{path}.{k}".lstrip("."), v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._resolved(f"{path}[{i}]", v) for i, v in enumerate(value)]
        if not isinstance(value, str):
            return value

        def look_up(reference: re.Match[str]) -> str:
            kind, name = reference[1], reference[2]
            if kind == "env":
                if name not in os.environ:
                    self.faults.append(f"{path}: the environment has no variable {name}; set it, or correct the name")
                content = os.environ.get(name, "").strip()  # a header with its newline is refused, and quoted in errors
                self.secrets.add(content or "***")
                return content
            try:
                content = self._read_text(name).strip()
                self.secrets.add(content or "***")
            except (OSError, UnicodeDecodeError) as error:
                self.faults.append(f"{path}: the file {name} cannot be read ({getattr(error, 'strerror', error)})")
                return ""
            return content

        return _REFERENCE.sub(look_up, value)

    def _read_text(self, name: str) -> str:
        return (self.path.parent / Path(name).expanduser()).read_text(encoding="utf-8")

    _Model = TypeVar("_Model", bound=Section)

    def _section(self, path: str, model: type[_Model], raw: Any) -> _Model | None:  # noqa: ANN401 - YAML
        if not isinstance(raw, dict):
            keys = ", ".join(f.alias or name for name, f in model.model_fields.items())
            self.faults.append(f"{path}: {kind(raw)} given; write a mapping with the keys {keys}")
            return None
        if not raw and not any(f.is_required() for f in model.model_fields.values()):
            return model.model_construct()  # defaults need no validator; making one takes a millisecond
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            faults = [fault(path, item, model) for item in error.errors(include_url=False)]
            self.faults += dict.fromkeys(faults)
            return None

    def _or_defaults(self, raw: Mapping[str, Any], name: str, model: type[_Model]) -> _Model:
        """Return a section; one of defaults where the file has none, or a faulty one."""
        return self._section(name, model, raw.get(name) or {}) or model.model_construct()

    def _pools(self, raw: Any) -> dict[str, PoolConfig]:  # noqa: ANN401 - YAML
        pools = default_pools()
        for name, section in self._named("pools", raw).items():
            if parsed := self._section(f"pools.{name}", PoolSection, section):
                if parsed.remote is not None and "master" in parsed.model_fields_set:
                    self.faults.append(f"pools.{name}: both master and remote given; a pool has one of them")
                conf = {k: _text(v) for k, v in parsed.conf.items()}
                spending = parsed.gb_hours_per_day, parsed.gb_hour_price
                pools[name] = PoolConfig(name, parsed.master, parsed.max_concurrent, conf, parsed.remote, *spending)
        return pools

    def _named(self, path: str, raw: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            self.faults.append(f"{path}: {kind(raw)} given; write a mapping from names to settings")
            return {}
        return {str(name): section if section is not None else {} for name, section in raw.items()}

    def _catalogs(
        self,
        raw: Any,  # noqa: ANN401 - YAML
        pools: Mapping[str, PoolConfig],
        detect: DetectSection,
    ) -> dict[str, CatalogConfig]:
        if not raw and not self.without_catalogs:
            self.faults.append("catalogs: missing; name at least one catalog")
        catalogs: dict[str, CatalogConfig] = {}
        for name, section in self._named("catalogs", raw).items():
            path = f"catalogs.{name}"
            if "." in name or "`" in name or not name.strip():
                self.faults.append(f"{path}: a catalog's name may not be blank, nor hold a dot or backtick")
            parsed = self._section(path, CatalogSection, section)
            pool = section.get("pool", "default") if isinstance(section, dict) else "default"
            if isinstance(pool, str) and pool not in pools:
                self.faults.append(f"{path}.pool: there is no pool {pool}{near(pool, tuple(pools))}")
            if parsed is None:
                continue
            properties = {k: _text(v) for k, v in parsed.properties.items()}
            allowed = parsed.allowed_locations
            if allowed is not None and any(not place.strip().strip("/") for place in allowed):
                self.faults.append(f"{path}.allowed_locations: a blank entry would allow every place; name each one")
            catalog = CatalogConfig(
                name=name,
                type=parsed.type,
                properties=properties,
                scope=Scope(
                    parsed.enabled,
                    parsed.scope.namespaces,
                    parsed.scope.tables,
                    parsed.pool,
                    timedelta(seconds=parsed.detect_interval_seconds or detect.interval_seconds),
                    timedelta(seconds=detect.timeout_seconds),
                    _vacuum_every(parsed),
                ),
                allowed_locations=tuple(allowed if allowed is not None else _warehouse(parsed.type, properties)),
                pool=parsed.pool,
                limits=CatalogLimits(parsed.max_concurrent, parsed.gb_hours_per_day),
                aliases=tuple(parsed.aliases),
                commit_reports=None if parsed.commit_reports is None else split_name(parsed.commit_reports),
                environment=parsed.environment.declared(),
                policies=parsed.policies,
            )
            self._checked(self.checks.catalog, catalog)
            catalogs[name] = catalog
            self.faults += ambiguous_aliases(name, catalog.aliases, raw)
            if catalog.commit_reports is not None and len(catalog.commit_reports) < 2:  # noqa: PLR2004
                self.faults.append(f"{path}.commit_reports: no name of a table; write namespace.table")
        return catalogs

    def _archive(self, raw: Any, catalogs: dict[str, CatalogConfig], names: Sequence[str]) -> ArchiveSection | None:  # noqa: ANN401
        """Return the section; the archive's tables are always in the scope of their catalog."""
        parsed = None if raw is None else self._section("archive", ArchiveSection, raw)
        if parsed is not None:
            self.faults += archive_faults(parsed, names)
            if home := catalogs.get(parsed.catalog):
                catalogs[home.name] = replace(home, scope=replace(home.scope, archive=parsed.namespace))
        return parsed

    def _alerts(self, raw: Any) -> AlertsConfig:  # noqa: ANN401 - YAML
        alerts = read_alerts(raw, self._section, self.faults)
        self.secrets.update(channel for channel in alerts.channels if channel)
        self._checked(self.checks.channels, alerts.channels)
        return alerts

    def _log(self, raw: Any) -> LogSection:  # noqa: ANN401 - YAML
        """Return the section; ICEWRIGHT_LOG wins over its level."""
        section = self._section("log", LogSection, raw) or LogSection()
        level = os.environ.get("ICEWRIGHT_LOG")
        if not level:
            return section
        override = {"format": section.format, "level": level.lower()}
        return self._section("ICEWRIGHT_LOG", LogSection, override) or section

    def _policy(self, raw: Any, guardrails: Any, catalogs: tuple[str, ...]) -> Policy:  # noqa: ANN401
        bounds, faults = parse_guardrails(guardrails)
        self.faults += faults
        if raw is not None and not isinstance(raw, list):
            self.faults.append(f"policy: {kind(raw)} given; write a list of rules, each with `match` and `set`")
            raw = None
        rules = [self._rule(f"policy[{i}]", item, bounds, catalogs) for i, item in enumerate(raw or [])]
        return Policy(tuple(r for r in rules if r is not None), bounds)

    def _rule(
        self,
        path: str,
        raw: Any,  # noqa: ANN401 - YAML
        bounds: Sequence[Guardrail],
        catalogs: tuple[str, ...],
    ) -> PolicyRule | None:
        match = raw.get("match") if isinstance(raw, dict) else None
        catalog = next(iter(split_name(match)), "") if isinstance(match, str) else ""
        if catalog and not any(c in catalog for c in "*?") and catalog not in catalogs:
            self.faults.append(f"{path}.match: there is no catalog {catalog}{near(catalog, catalogs)}")
        try:
            return parse_rule(path, raw, bounds)
        except ConfigError as error:
            self.faults += error.faults
            return None


def _vacuum_every(catalog: CatalogSection) -> timedelta | None:
    """Return the time between two vacuums of a catalog with branches; None: by command alone."""
    hours = _VACUUM_HOURS if catalog.vacuum_every_hours is None else catalog.vacuum_every_hours
    return timedelta(hours=hours) if hours and catalog.type == "nessie" else None


def _warehouse(kind: str, properties: Mapping[str, str]) -> list[str]:
    """Return the warehouse if it is a location; the name of a REST server's warehouse allows no location."""
    place = properties.get("warehouse", "")
    return [place] if kind == "sql" or is_location(place) else []


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
