"""Resolve the settings of a table from policy rules: levels, patterns, guardrails and the origin of each value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from icewright.core.effective import Ignored, Knobs, Origin
from icewright.core.errors import ConfigError, UsageError
from icewright.core.guardrails import Guardrail
from icewright.core.knob import written
from icewright.core.polaris import Served
from icewright.core.policy import KNOBS, PRESET, find_knob
from icewright.core.presets import PRESETS
from icewright.core.properties import Allowance, from_properties
from icewright.core.table import TableMetadata, TableRef, split_name
from icewright.core.words import kind, near, wildcard

_SHOWN_FAULTS = 20  # of a table's own properties, of which it may have a million


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Settings for all tables that `match` names: none = the platform, else catalog[.namespace...][.table]."""

    match: tuple[str, ...]
    settings: Mapping[str, Any]
    source: str = "file"  # "file", or "store" for what API and command line changed

    def __str__(self) -> str:
        return ".".join(self.match) or "platform"


@dataclass(frozen=True)
class Policy:
    """All rules and guardrails; `knobs_for` returns the settings of one table."""

    rules: tuple[PolicyRule, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()
    command: Mapping[str, Any] = field(default_factory=dict)  # --set: above all, below guardrails
    served: Callable[[TableRef], Served] | None = None  # returns the policies that the table's own catalog serves

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest that is equal for policies with the same rules, guardrails and overrides."""
        rules = [(r.match, _sorted_items(r.settings), r.source) for r in self.rules]
        return sha256(repr((rules, self.guardrails, _sorted_items(self.command))).encode()).hexdigest()[:16]

    def knobs_of_catalog(self, catalog: str) -> Knobs:
        """Return the knobs of a catalog as a whole: those that the rules of the platform and the catalog set."""
        return self.knobs_for(TableRef(catalog, (), ""), None)

    def knobs_for(self, ref: TableRef, metadata: TableMetadata | None) -> Knobs:
        """Return the knobs of one table with their origins; without metadata, only those set by the rules.

        Raises `ConfigError` when the table's own properties are faulty, and `CatalogUnavailable` when its catalog has
        policies that were never read and cannot be read now: such a table is not maintained.
        """
        matching = sorted(
            (r for r in enumerate(self.rules) if matches(r[1].match, ref.parts[: len(r[1].match)])),
            key=lambda item: (len(item[1].match), item[1].source == "store", specificity(item[1].match), item[0]),
            reverse=True,
        )
        stronger = [*self._expanded("command", "--set", self.command)]
        weaker: list[tuple[str, Origin]] = []
        if metadata is not None and self.served is not None:
            for name, settings in self.served(ref).rules:
                weaker += self._expanded("catalog's policies", name, settings)
        for _, rule in matching:
            if len(rule.match) == len(ref.parts):
                stronger += self._expanded("table", f"{rule} ({rule.source})", rule.settings)
            else:
                level = {0: "platform", 1: "catalog"}.get(len(rule.match), "namespace")
                weaker += self._expanded(level, f"{rule} ({rule.source})", rule.settings)
        rules = self._knobs([*stronger, *weaker])
        if metadata is None:
            return rules
        properties, ignored = self._by_properties(ref, metadata, Allowance(rules))
        knobs = self._knobs([*stronger, *properties, *weaker]) if properties else rules
        return replace(knobs, ignored=ignored)

    def without_match(self, refs: Iterable[TableRef]) -> list[str]:
        """Return the scopes below a catalog that hold none of the tables, which may be misspelt."""
        scopes = {str(rule): rule.match for rule in self.rules if rule.match[1:]}
        tables = [ref.parts for ref in refs]
        return [
            scope for scope, match in scopes.items() if not any(matches(match, parts[: len(match)]) for parts in tables)
        ]

    def _knobs(self, settings: Sequence[tuple[str, Origin]]) -> Knobs:
        """Return the knobs of settings from the strongest to the weakest, with the defaults that guardrails replace."""
        origins: dict[str, list[Origin]] = {}
        for name, origin in settings:
            origins.setdefault(name, []).append(self._apply_guardrails(name, origin))
        bounded = {g.knob for g in self.guardrails} - origins.keys()
        # the preset first, as its values replace defaults
        for default in sorted(bounded, key=lambda name: name != PRESET.name):
            for name, origin in self._expanded("default", "", {default: KNOBS[default].default}):
                value = self._apply_guardrails(name, origin)
                if value.note or name != default:
                    origins.setdefault(name, []).append(value)
        return Knobs({name: tuple(strongest_first) for name, strongest_first in origins.items()})

    def _expanded(self, level: str, rule: str, settings: Mapping[str, Any]) -> Iterable[tuple[str, Origin]]:
        """Yield the settings of one rule, and behind them those of the preset that it names."""
        for name, value in settings.items():
            yield name, Origin(level, rule, value)
        if PRESET.name in settings:
            preset = self._apply_guardrails(PRESET.name, Origin(level, rule, settings[PRESET.name])).value
            for name, value in PRESETS[preset].items():
                if name not in settings:
                    yield name, Origin(level, f"{rule}, preset {preset}".lstrip(", "), value)

    def _by_properties(
        self, ref: TableRef, metadata: TableMetadata, allowance: Allowance
    ) -> tuple[list[tuple[str, Origin]], tuple[Ignored, ...]]:
        properties = from_properties(metadata, allowance)
        if properties.faults:
            named, rest = properties.faults[:_SHOWN_FAULTS], len(properties.faults) - _SHOWN_FAULTS
            raise ConfigError([f"{ref}: {fault}" for fault in (*named, *([f"and {rest} more"] if rest > 0 else []))])
        settings: list[tuple[str, Origin]] = []
        ignored = [*properties.ignored]
        for name, (prop, value) in properties.settings.items():
            for knob, origin in self._expanded("table properties", prop, {name: value}):
                if knob != name and (reason := allowance.refusal(KNOBS[knob], origin.value)):
                    ignored.append(Ignored(prop, value, knob, reason))
                else:
                    settings.append((knob, origin))
        return settings, tuple(ignored)

    def _apply_guardrails(self, name: str, origin: Origin) -> Origin:
        value, by = origin.value, []
        for guardrail in self.guardrails:
            if guardrail.knob == name and (bounded := guardrail.apply(value)) != value:
                value = bounded
                by.append(str(guardrail))
        note = f"{written(origin.value)} held by guardrail {' and '.join(by)}" if by else origin.note
        return Origin(origin.level, origin.rule, value, note)


def matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether each part matches its pattern; `*` and `?` are wildcards, everything else stands for itself."""
    return len(pattern) == len(parts) and all(
        wildcard(p).fullmatch(v) is not None for p, v in zip(pattern, parts, strict=True)
    )


def _sorted_items(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((name, repr(value)) for name, value in settings.items())


def matches_any(patterns: str, name: str) -> bool:
    """Return whether a comma-separated list of wildcards holds the name; a blank list holds every name."""
    entries = _split_patterns(patterns)
    return not entries or any(wildcard(p).fullmatch(name) for p in entries)


@lru_cache(maxsize=4096)
def _split_patterns(patterns: str) -> tuple[str, ...]:
    return tuple(p.strip() for p in patterns.split(",") if p.strip())


def specificity(pattern: Sequence[str]) -> tuple[int, int, int]:
    """Return the rank of a pattern among those that match: more parts, fewer wildcards, more characters."""
    wild = sum(p.count("*") + p.count("?") for p in pattern)
    return (len(pattern), -wild, sum(len(p) for p in pattern))


def parse_pattern(text: str) -> tuple[str, ...]:
    """Return the parts of a pattern such as `lake.events-*`; backticks quote dots. Raises `UsageError`."""
    if parts := split_name(text):
        return parts
    raise UsageError(f"{text!r} names no catalog, namespace or table: write catalog, catalog.namespace or all three")


def parse_settings(
    path: str, raw: object, guardrails: Sequence[Guardrail] = (), separator: str = "."
) -> dict[str, Any]:
    """Return the knob settings of a configuration, checked. Raises `ConfigError` with every fault under `path`."""
    if not isinstance(raw, Mapping):
        raise ConfigError([f"{path}: expected knobs and their values, as in {{compact.min_input_files: 5}}"])
    faults: list[str] = []
    settings: dict[str, Any] = {}
    for name, value in raw.items():
        knob = find_knob(str(name))
        if knob is None:
            faults.append(f"{path}{separator}{name}: there is no such knob{near(str(name), list(KNOBS), listed=False)}")
            continue
        try:
            settings[knob.name] = knob.parse(value)
        except ValueError as error:
            faults.append(f"{path}{separator}{name}: {error}")
            continue
        faults += [
            f"{path}{separator}{name}: {settings[knob.name]!r} passes the guardrail {g}"
            for g in guardrails
            if g.knob == knob.name and g.apply(settings[knob.name]) != settings[knob.name]
        ]
    if faults:
        raise ConfigError(faults)
    return settings


def parse_rule(path: str, raw: object, guardrails: Sequence[Guardrail] = ()) -> PolicyRule:
    """Return the rule `{match: pattern, set: {knob: value}}`. Raises `ConfigError` with every fault under `path`."""
    if not isinstance(raw, Mapping) or "set" not in raw or not raw.keys() <= {"match", "set"}:
        raise ConfigError([f"{path}: write a rule as {{match: catalog.namespace.table, set: {{knob: value}}}}"])
    faults: list[str] = []
    match: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    try:
        match = parse_pattern(raw["match"]) if isinstance(raw.get("match"), str) else ()
    except UsageError as error:
        faults.append(f"{path}.match: {error}")
    if not isinstance(raw.get("match", ""), str):  # one that is left blank would be a rule for all tables
        faults.append(f"{path}.match: {kind(raw['match'])} given; write one pattern, such as lake.events-*")
    try:
        settings = parse_settings(f"{path}.set", raw["set"], guardrails)
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(faults)
    return PolicyRule(match, settings)
