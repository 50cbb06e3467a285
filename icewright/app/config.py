"""The only reader of files and environment: one YAML file into frozen values, all faults at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from icewright.core.errors import ConfigError, UsageError
from icewright.core.layering import Guardrail, Policy, Rule, parse_guardrail, parse_pattern, parse_settings
from icewright.core.plan import Limits
from icewright.core.policy import Operation
from icewright.flow.world import Scope

DEFAULT_FILE = "icewright.yaml"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_SECTIONS = ("state", "catalogs", "pools", "limits", "policy", "guardrails", "cache")


class _Section(BaseModel):
    """A part of the file: unknown keys are faults, values are not bent into shape."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _joined(value: object) -> object:
    """A wildcard list as people write it: one text with commas, or a YAML list."""
    return ", ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value


_Wildcards = Annotated[str, BeforeValidator(_joined)]


class ScopeSection(_Section):
    """Which tables are maintained; wildcards * and ?, separated by commas; blank means all."""

    namespaces: _Wildcards = ""
    tables: _Wildcards = ""


class CatalogSection(_Section):
    """One catalog."""

    type: Literal["sql"]
    enabled: bool = False
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)
    scope: ScopeSection = Field(default_factory=ScopeSection)
    allowed_locations: list[str] | None = None
    pool: str = "default"


class PoolSection(_Section):
    """A Spark application."""

    kind: Literal["spark"] = "spark"
    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)


_OperationName = Literal["compact", "rewrite_deletes", "rewrite_manifests", "expire_snapshots", "remove_orphans"]


def _default_limits_per_operation() -> dict[_OperationName, int]:
    return {
        "compact": 2,
        "rewrite_deletes": 2,
        "rewrite_manifests": 2,
        "expire_snapshots": 4,
        "remove_orphans": 1,
    }


class LimitsSection(_Section):
    """How much may run at the same time."""

    total: int = Field(4, alias="global", ge=1)
    per_operation: dict[_OperationName, Annotated[int, Field(ge=1)]] = Field(
        default_factory=_default_limits_per_operation
    )
    max_jobs_per_detection: int = Field(100, ge=1)


class CacheSection(_Section):
    """Where manifests are cached, and how much of them."""

    folder: str | None = None
    max_mb: int = Field(1024, ge=1)


@dataclass(frozen=True)
class CatalogConfig:
    """A catalog as configured. `properties` may hold secrets: never shown, never stored."""

    name: str
    type: str
    properties: Mapping[str, str] = field(repr=False)
    scope: Scope
    allowed_locations: tuple[str, ...]
    pool: str


@dataclass(frozen=True)
class PoolConfig:
    """A Spark pool as configured."""

    name: str
    master: str
    conf: Mapping[str, str] = field(repr=False)


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
    java_home: str | None


def find_config(given: str | None) -> Path:
    """`--config`, else ICEWRIGHT_CONFIG, else icewright.yaml here. Raises `UsageError` when there is none."""
    path = Path(given or os.environ.get("ICEWRIGHT_CONFIG") or DEFAULT_FILE).expanduser()
    if not path.is_file():
        raise UsageError(
            f"there is no configuration {path}: name one with --config or ICEWRIGHT_CONFIG, or make an example with "
            "`icewright demo --dir demo`"
        )
    return path.resolve()


def load_config(path: Path, check: Callable[[CatalogConfig], None]) -> Config:
    """Read and check the file. `check` tells the faults of a catalog's properties.

    Raises `ConfigError` with every fault, each with its key path.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError([f"{path}: not YAML{where}: {getattr(error, 'problem', None) or error}"]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    if not isinstance(raw, dict):
        raise ConfigError([f"{path}: expected a mapping with the keys {', '.join(_SECTIONS)}"])
    return _Reader(path, check).config(raw)


class _Reader:
    """Collects faults section by section, so that one does not hide another."""

    def __init__(self, path: Path, check: Callable[[CatalogConfig], None]) -> None:
        self.path, self.check = path, check
        self.faults: list[str] = []

    def config(self, raw: dict[str, Any]) -> Config:
        raw = self._resolved("", raw)
        for key in raw:
            if key not in _SECTIONS:
                self.faults.append(f"{key}: there is no such key{_near(str(key), _SECTIONS)}")
        pools = self._pools(raw.get("pools"))
        catalogs = self._catalogs(raw.get("catalogs"), pools)
        limits = self._section("limits", LimitsSection, raw.get("limits") or {}) or LimitsSection.model_validate({})
        cache = self._section("cache", CacheSection, raw.get("cache") or {}) or CacheSection.model_validate({})
        names = tuple(str(name) for name in raw["catalogs"]) if isinstance(raw.get("catalogs"), dict) else ()
        policy = self._policy(raw.get("policy"), raw.get("guardrails"), names)
        state = raw.get("state", "sqlite:///icewright.db")
        if not isinstance(state, str):
            self.faults.append(f"state: {_kind(state)} given; write a database URL such as sqlite:///icewright.db")
        if self.faults:
            raise ConfigError(self.faults)
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Config(
            path=self.path,
            state=self._beside(str(state)),
            catalogs=catalogs,
            pools=pools,
            limits=Limits(
                limits.total,
                {Operation(op): n for op, n in {**_default_limits_per_operation(), **limits.per_operation}.items()},
                limits.max_jobs_per_detection,
            ),
            policy=policy,
            cache_folder=Path(cache.folder).expanduser() if cache.folder else Path(home) / "icewright",
            cache_bytes=cache.max_mb * 1024 * 1024,
            java_home=os.environ.get("JAVA_HOME"),
        )

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
                return os.environ.get(name, "")
            try:
                return (self.path.parent / Path(name).expanduser()).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                self.faults.append(f"{path}: the file {name} cannot be read ({getattr(error, 'strerror', error)})")
                return ""

        return _REFERENCE.sub(look_up, value)

    def _beside(self, state: str) -> str:
        """A relative SQLite file lies beside the configuration, wherever the command is called."""
        prefix = "sqlite:///"
        if not state.startswith(prefix) or state.startswith(f"{prefix}/") or ":memory:" in state:
            return state
        return f"{prefix}{self.path.parent / state.removeprefix(prefix)}"

    _Model = TypeVar("_Model", bound=_Section)

    def _section(self, path: str, model: type[_Model], raw: Any) -> _Model | None:  # noqa: ANN401 - YAML
        if not isinstance(raw, dict):
            keys = ", ".join(f.alias or name for name, f in model.model_fields.items())
            self.faults.append(f"{path}: {_kind(raw)} given; write a mapping with the keys {keys}")
            return None
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            names = [f.alias or name for name, f in model.model_fields.items()]
            self.faults += [_fault(path, item, names) for item in error.errors(include_url=False)]
            return None

    def _pools(self, raw: Any) -> dict[str, PoolConfig]:  # noqa: ANN401 - YAML
        pools = {"default": PoolConfig("default", "local[*]", {})}
        for name, section in self._named("pools", raw).items():
            if found := self._section(f"pools.{name}", PoolSection, section):
                pools[name] = PoolConfig(name, found.master, {k: _text(v) for k, v in found.conf.items()})
        return pools

    def _named(self, path: str, raw: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            self.faults.append(f"{path}: {_kind(raw)} given; write a mapping from names to settings")
            return {}
        return {str(name): section if section is not None else {} for name, section in raw.items()}

    def _catalogs(self, raw: Any, pools: Mapping[str, PoolConfig]) -> dict[str, CatalogConfig]:  # noqa: ANN401
        if not raw:
            self.faults.append("catalogs: missing; name at least one catalog")
        catalogs: dict[str, CatalogConfig] = {}
        for name, section in self._named("catalogs", raw).items():
            path = f"catalogs.{name}"
            if "." in name or "`" in name:
                self.faults.append(f"{path}: a catalog's name may hold no dot or backtick")
            found = self._section(path, CatalogSection, section)
            pool = section.get("pool", "default") if isinstance(section, dict) else "default"
            if isinstance(pool, str) and pool not in pools:
                self.faults.append(f"{path}.pool: there is no pool {pool}{_near(pool, tuple(pools))}")
            if found is None:
                continue
            properties = {k: _text(v) for k, v in found.properties.items()}
            allowed = found.allowed_locations
            catalog = CatalogConfig(
                name=name,
                type=found.type,
                properties=properties,
                scope=Scope(found.enabled, found.scope.namespaces, found.scope.tables),
                allowed_locations=tuple(allowed if allowed is not None else [properties.get("warehouse", "")]),
                pool=found.pool,
            )
            try:
                self.check(catalog)
            except ConfigError as error:
                self.faults += error.faults
            catalogs[name] = catalog
        return catalogs

    def _policy(self, raw: Any, guardrails: Any, catalogs: tuple[str, ...]) -> Policy:  # noqa: ANN401
        bounds: list[Guardrail] = []
        for i, text in enumerate(guardrails if isinstance(guardrails, list) else []):
            try:
                bounds.append(parse_guardrail(f"guardrails[{i}]", text))
            except ConfigError as error:
                self.faults += error.faults
        if guardrails is not None and not isinstance(guardrails, list):
            self.faults.append(f"guardrails: {_kind(guardrails)} given; write a list of bounds such as 'knob >= 24'")
        if raw is not None and not isinstance(raw, list):
            self.faults.append(f"policy: {_kind(raw)} given; write a list of rules, each with `match` and `set`")
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
        if raw.get("match") is not None:
            try:
                match = parse_pattern(str(raw["match"]))
            except UsageError as error:
                self.faults.append(f"{path}.match: {error}")
        if match and not any(c in match[0] for c in "*?") and match[0] not in catalogs:
            self.faults.append(f"{path}.match: there is no catalog {match[0]}{_near(match[0], catalogs)}")
        try:
            return Rule(match, parse_settings(f"{path}.set", raw["set"], bounds))
        except ConfigError as error:
            self.faults += error.faults
            return None


def _fault(path: str, item: Mapping[str, Any], names: list[str]) -> str:
    """A fault in our words: where, what kind of value stands there, and what would be right. Never the value."""
    where = ".".join(
        [path, *(str(part) for part in item["loc"] if part not in ("str", "int", "float", "bool", "[key]"))]
    )
    context = item.get("ctx", {})
    expected = {
        "bool_type": "true or false",
        "int_type": "a whole number",
        "string_type": "text",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "greater_than_equal": f"a number of at least {context.get('ge')}",
        "literal_error": str(context.get("expected", "")).replace("'", ""),
    }
    if item["type"] == "missing":
        return f"{where}: missing"
    if item["type"] == "extra_forbidden":
        return f"{where}: there is no such key{_near(str(item['loc'][-1]), names)}"
    return f"{where}: {_kind(item.get('input'))} given; write {expected.get(item['type'], item['msg'])}"


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return type(value).__name__


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _near(name: str, known: tuple[str, ...] | list[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}" if known else ""
