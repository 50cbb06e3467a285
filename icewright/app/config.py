"""The only reader of files and environment: one YAML file into frozen values, all faults at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from icewright.app.alerting import AlertsConfig, read_alerts
from icewright.app.faults import ambiguous_aliases, open_to_others
from icewright.app.sections import (
    CacheSection,
    CatalogSection,
    DetectSection,
    EventsSection,
    LedgerSection,
    LimitsSection,
    LogSection,
    PoolSection,
    Section,
    ServerSection,
    default_limits_per_operation,
    fault,
)
from icewright.app.strict_yaml import StrictLoader
from icewright.core.environment import Environment
from icewright.core.errors import ConfigError, UsageError
from icewright.core.layering import Guardrail, Policy, Rule, parse_guardrail, parse_pattern, parse_settings
from icewright.core.paths import is_location
from icewright.core.plan import CatalogLimits, Limits, PoolLimits
from icewright.core.policy import Operation
from icewright.core.table import split_name
from icewright.core.words import kind, near
from icewright.flow.world import Scope

DEFAULT_FILE = "icewright.yaml"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_SECTIONS = (
    *("state", "catalogs", "pools", "detect", "limits", "policy", "guardrails", "cache", "ledger"),
    *("alerts", "log"),
    *("server", "events"),
)


@dataclass(frozen=True)
class CatalogConfig:
    """A catalog as configured. `properties` may hold secrets: never shown, never stored."""

    name: str
    type: str
    properties: Mapping[str, str] = field(repr=False)
    scope: Scope
    allowed_locations: tuple[str, ...]
    pool: str
    limits: CatalogLimits = field(default_factory=CatalogLimits)
    aliases: tuple[str, ...] = ()  # its names elsewhere, as events say them
    commit_reports: tuple[str, ...] | None = None  # a table in it that names tables that were committed to
    environment: Environment | None = None
    policies: str = "auto"  # whose policies beside ours: polaris, none, or auto: Polaris's where the server has them


@dataclass(frozen=True)
class PoolConfig:
    """A Spark pool as configured."""

    name: str
    master: str
    max_concurrent: int
    conf: Mapping[str, str] = field(repr=False)
    remote: str | None = None
    gb_hours_per_day: float | None = None


@dataclass(frozen=True)
class Config:
    """Everything that the file and the environment say."""

    path: Path
    state: str = field(repr=False)
    catalogs: Mapping[str, CatalogConfig]
    pools: Mapping[str, PoolConfig]
    limits: Limits
    policy: Policy
    cache_folder: Path
    cache_bytes: int
    ledger_folder: Path
    java_home: str | None
    alerts: AlertsConfig
    log: LogSection
    secrets: frozenset[str] = field(repr=False)  # what logs must not repeat
    server: ServerSection
    events: EventsSection = field(repr=False)


def find_config(given: str | None) -> Path:
    """`--config`, else ICEWRIGHT_CONFIG, else icewright.yaml here. Raises `UsageError` when there is none."""
    path = Path(given or os.environ.get("ICEWRIGHT_CONFIG") or DEFAULT_FILE).expanduser()
    if not path.is_file():
        raise UsageError(
            f"there is no configuration {path}: name one with --config or ICEWRIGHT_CONFIG, or make an example with "
            "`icewright demo --dir demo`"
        )
    return path.resolve()


def user_cache() -> Path:
    """Where this user's caches lie, whatever a configuration says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icewright"


@dataclass(frozen=True)
class Checks:
    """What only adapters know; each raises `ConfigError` with the faults."""

    catalog: Callable[[CatalogConfig], None]
    state: Callable[[str], None]
    channels: Callable[[Sequence[str]], None]


def load_config(path: Path, checks: Checks) -> Config:
    """Read and check the file.

    Raises `ConfigError` with every fault, each with its key path.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), StrictLoader)  # noqa: S506 - a safe loader, made stricter
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError([f"{path}: not YAML{where}: {getattr(error, 'problem', None) or error}"]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    if not isinstance(raw, dict):
        raise ConfigError([f"{path}: expected a mapping with the keys {', '.join(_SECTIONS)}"])
    return _Reader(path, checks).config(raw)


class _Reader:
    """Collects faults section by section, so that one does not hide another."""

    def __init__(self, path: Path, checks: Checks) -> None:
        self.path, self.checks = path, checks
        self.faults: list[str] = []
        self.secrets: set[str] = set()

    def config(self, raw: dict[str, Any]) -> Config:
        raw = self._resolved("", raw)
        for key in raw:
            if key not in _SECTIONS:
                self.faults.append(f"{key}: there is no such key{near(str(key), _SECTIONS)}")
        pools = self._pools(raw.get("pools"))
        detect = self._section("detect", DetectSection, raw.get("detect") or {}) or DetectSection.model_validate({})
        catalogs = self._catalogs(raw.get("catalogs"), pools, detect)
        limits = self._section("limits", LimitsSection, raw.get("limits") or {}) or LimitsSection.model_validate({})
        cache = self._section("cache", CacheSection, raw.get("cache") or {}) or CacheSection.model_validate({})
        ledger = self._section("ledger", LedgerSection, raw.get("ledger") or {}) or LedgerSection.model_validate({})
        server = self._section("server", ServerSection, raw.get("server") or {}) or ServerSection.model_validate({})
        events = self._section("events", EventsSection, raw.get("events") or {})
        self.faults += open_to_others(server, events) if events is not None else ()
        names = tuple(str(name) for name in raw["catalogs"]) if isinstance(raw.get("catalogs"), dict) else ()
        policy = self._policy(raw.get("policy"), raw.get("guardrails"), names)
        alerts, log = self._alerts(raw.get("alerts") or {}), self._log(raw.get("log") or {})
        state = raw.get("state", "sqlite:///icewright.db")
        if not isinstance(state, str):
            self.faults.append(f"state: {kind(state)} given; write a database URL such as sqlite:///icewright.db")
        else:
            self._checked(self.checks.state, self._beside(state))
        if self.faults:
            raise ConfigError([self._redacted(fault) for fault in self.faults])
        cache_folder = Path(cache.folder).expanduser() if cache.folder else user_cache()
        return Config(
            path=self.path,
            state=self._beside(str(state)),
            catalogs=catalogs,
            pools=pools,
            limits=Limits(
                limits.total,
                {Operation(op): n for op, n in {**default_limits_per_operation(), **limits.per_operation}.items()},
                limits.max_jobs_per_detection,
                limits.per_worker,
                {name: PoolLimits(pool.max_concurrent, pool.gb_hours_per_day) for name, pool in pools.items()},
                {name: catalog.limits for name, catalog in catalogs.items()},
            ),
            policy=policy,
            cache_folder=cache_folder,
            cache_bytes=cache.max_mb * 1024 * 1024,
            ledger_folder=Path(ledger.folder).expanduser() if ledger.folder else cache_folder / "ledger",
            java_home=os.environ.get("JAVA_HOME"),
            alerts=alerts,
            log=log,
            secrets=frozenset(self.secrets),
            server=server,
            events=events or EventsSection.model_validate({}),
        )

    _Checked = TypeVar("_Checked")

    def _checked(self, check: Callable[[_Checked], None], value: _Checked) -> None:
        try:
            check(value)
        except ConfigError as error:
            self.faults += error.faults

    def _redacted(self, fault: str) -> str:
        """The fault without what environment and files brought in, however it is quoted."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            for said in (secret, repr(secret)[1:-1]):
                fault = fault.replace(said, "***")
        return fault

    def _resolved(self, path: str, value: Any) -> Any:  # noqa: ANN401 - YAML
        """`${env:NAME}` and `${file:PATH}` replaced by what they name."""
        if isinstance(value, dict):
            return {k: self._resolved(f"{path}.{k}".lstrip("."), v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._resolved(f"{path}[{i}]", v) for i, v in enumerate(value)]
        if not isinstance(value, str):
            return value

        def look_up(found: re.Match[str]) -> str:
            kind, name = found[1], found[2]
            if kind == "env":
                if name not in os.environ:
                    self.faults.append(f"{path}: the environment has no variable {name}; set it, or correct the name")
                self.secrets.add(os.environ.get(name) or "***")
                return os.environ.get(name, "")
            try:
                content = (self.path.parent / Path(name).expanduser()).read_text(encoding="utf-8").strip()
                self.secrets.add(content or "***")
            except (OSError, UnicodeDecodeError) as error:
                self.faults.append(f"{path}: the file {name} cannot be read ({getattr(error, 'strerror', error)})")
                return ""
            return content

        return _REFERENCE.sub(look_up, value)

    def _beside(self, state: str) -> str:
        """A relative SQLite file lies beside the configuration, wherever the command is called."""
        prefix = "sqlite:///"
        if not state.startswith(prefix) or state.startswith(f"{prefix}/") or ":memory:" in state:
            return state
        return f"{prefix}{self.path.parent / state.removeprefix(prefix)}"

    _Model = TypeVar("_Model", bound=Section)

    def _section(self, path: str, model: type[_Model], raw: Any) -> _Model | None:  # noqa: ANN401 - YAML
        if not isinstance(raw, dict):
            keys = ", ".join(f.alias or name for name, f in model.model_fields.items())
            self.faults.append(f"{path}: {kind(raw)} given; write a mapping with the keys {keys}")
            return None
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            faults = [fault(path, item, model) for item in error.errors(include_url=False)]
            self.faults += dict.fromkeys(faults)
            return None

    def _pools(self, raw: Any) -> dict[str, PoolConfig]:  # noqa: ANN401 - YAML
        pools = {"default": PoolConfig("default", "local[*]", 2, {})}
        for name, section in self._named("pools", raw).items():
            if found := self._section(f"pools.{name}", PoolSection, section):
                if found.remote is not None and "master" in found.model_fields_set:
                    self.faults.append(f"pools.{name}: both master and remote given; a pool has one of them")
                conf = {k: _text(v) for k, v in found.conf.items()}
                budget = found.gb_hours_per_day
                pools[name] = PoolConfig(name, found.master, found.max_concurrent, conf, found.remote, budget)
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
        if not raw:
            self.faults.append("catalogs: missing; name at least one catalog")
        catalogs: dict[str, CatalogConfig] = {}
        for name, section in self._named("catalogs", raw).items():
            path = f"catalogs.{name}"
            if "." in name or "`" in name or not name.strip():
                self.faults.append(f"{path}: a catalog's name may not be blank, nor hold a dot or backtick")
            found = self._section(path, CatalogSection, section)
            pool = section.get("pool", "default") if isinstance(section, dict) else "default"
            if isinstance(pool, str) and pool not in pools:
                self.faults.append(f"{path}.pool: there is no pool {pool}{near(pool, tuple(pools))}")
            if found is None:
                continue
            properties = {k: _text(v) for k, v in found.properties.items()}
            allowed = found.allowed_locations
            if allowed is not None and any(not place.strip().strip("/") for place in allowed):
                self.faults.append(f"{path}.allowed_locations: a blank entry would allow every place; name each one")
            catalog = CatalogConfig(
                name=name,
                type=found.type,
                properties=properties,
                scope=Scope(
                    found.enabled,
                    found.scope.namespaces,
                    found.scope.tables,
                    found.pool,
                    timedelta(seconds=found.detect_interval_seconds or detect.interval_seconds),
                    timedelta(seconds=detect.timeout_seconds),
                ),
                allowed_locations=tuple(allowed if allowed is not None else _warehouse(found.type, properties)),
                pool=found.pool,
                limits=CatalogLimits(found.max_concurrent, found.gb_hours_per_day),
                aliases=tuple(found.aliases),
                commit_reports=None if found.commit_reports is None else split_name(found.commit_reports),
                environment=found.environment.declared(),
                policies=found.policies,
            )
            self._checked(self.checks.catalog, catalog)
            catalogs[name] = catalog
            self.faults += ambiguous_aliases(name, catalog.aliases, raw)
            if catalog.commit_reports is not None and len(catalog.commit_reports) < 2:  # noqa: PLR2004
                self.faults.append(f"{path}.commit_reports: no name of a table; write namespace.table")
        return catalogs

    def _alerts(self, raw: Any) -> AlertsConfig:  # noqa: ANN401 - YAML
        alerts = read_alerts(raw, self._section, self.faults)
        self.secrets.update(channel for channel in alerts.channels if channel)
        self._checked(self.checks.channels, alerts.channels)
        return alerts

    def _log(self, raw: Any) -> LogSection:  # noqa: ANN401 - YAML
        """The section; ICEWRIGHT_LOG wins over its level."""
        found = self._section("log", LogSection, raw) or LogSection()
        wanted = os.environ.get("ICEWRIGHT_LOG")
        if not wanted:
            return found
        return self._section("ICEWRIGHT_LOG", LogSection, {"format": found.format, "level": wanted.lower()}) or found

    def _policy(self, raw: Any, guardrails: Any, catalogs: tuple[str, ...]) -> Policy:  # noqa: ANN401
        bounds: list[Guardrail] = []
        for i, text in enumerate(guardrails if isinstance(guardrails, list) else []):
            try:
                bounds.append(parse_guardrail(f"guardrails[{i}]", text))
            except ConfigError as error:
                self.faults += error.faults
        if guardrails is not None and not isinstance(guardrails, list):
            self.faults.append(f"guardrails: {kind(guardrails)} given; write a list of bounds such as 'knob >= 24'")
        if raw is not None and not isinstance(raw, list):
            self.faults.append(f"policy: {kind(raw)} given; write a list of rules, each with `match` and `set`")
            raw = None
        rules = [self._rule(f"policy[{i}]", item, bounds, catalogs) for i, item in enumerate(raw or [])]
        return Policy(tuple(r for r in rules if r is not None), tuple(bounds))

    def _rule(
        self,
        path: str,
        raw: Any,  # noqa: ANN401 - YAML
        bounds: list[Guardrail],
        catalogs: tuple[str, ...],
    ) -> Rule | None:
        if not isinstance(raw, dict) or "set" not in raw or not raw.keys() <= {"match", "set"}:
            self.faults.append(f"{path}: write a rule as {{match: catalog.namespace.table, set: {{knob: value}}}}")
            return None
        match: tuple[str, ...] = ()
        if raw.get("match") is not None and not isinstance(raw["match"], str):
            self.faults.append(f"{path}.match: {kind(raw['match'])} given; write one pattern, such as lake.events-*")
        elif raw.get("match") is not None:
            try:
                match = parse_pattern(raw["match"])
            except UsageError as error:
                self.faults.append(f"{path}.match: {error}")
        if match and not any(c in match[0] for c in "*?") and match[0] not in catalogs:
            self.faults.append(f"{path}.match: there is no catalog {match[0]}{near(match[0], catalogs)}")
        try:
            return Rule(match, parse_settings(f"{path}.set", raw["set"], bounds))
        except ConfigError as error:
            self.faults += error.faults
            return None


def _warehouse(kind: str, properties: Mapping[str, str]) -> list[str]:
    """The warehouse where it is a place: a REST server may know it by a name, which allows nothing."""
    place = properties.get("warehouse", "")
    return [place] if kind not in ("rest", "nessie") or is_location(place) else []


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
