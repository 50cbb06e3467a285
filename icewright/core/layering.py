"""Which rule says what for which table: levels, patterns, guardrails, and where each value comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from icewright.core.errors import ConfigError, UsageError
from icewright.core.knob import Kind
from icewright.core.policy import KNOBS, PRESET, Knobs, Origin
from icewright.core.presets import PRESETS
from icewright.core.properties import from_properties
from icewright.core.table import TableMetadata, TableRef, split_name
from icewright.core.words import kind

_GUARDRAIL = re.compile(r"\s*([a-z_.]+)\s*(>=|<=)\s*([0-9]+(?:\.[0-9]+)?)\s*")


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings for all tables that `match` names: none = the platform, else catalog[.namespace...][.table]."""

    match: tuple[str, ...]
    settings: Mapping[str, Any]
    source: str = "file"  # "file", or "store" for what API and command line changed

    def __str__(self) -> str:
        return ".".join(self.match) or "platform"


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A bound that no level may pass."""

    knob: str
    at_least: bool
    bound: float

    def __str__(self) -> str:
        return f"{self.knob} {'>=' if self.at_least else '<='} {self.bound:g}"

    def hold(self, value: Any) -> Any:  # noqa: ANN401 - any knob's value
        """The value itself, or the bound when the value passes it."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if isinstance(value, int):  # whole numbers stay whole, on the safe side of the bound
            return max(value, math.ceil(self.bound)) if self.at_least else min(value, math.floor(self.bound))
        return max(value, self.bound) if self.at_least else min(value, self.bound)


@dataclass(frozen=True)
class Policy:
    """All rules and guardrails; `knobs_for` says what holds for one table."""

    rules: tuple[Rule, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()
    command: Mapping[str, Any] = field(default_factory=dict)  # --set: above all, below guardrails

    @cached_property
    def fingerprint(self) -> str:
        """Equal for policies that say the same."""
        said = [(r.match, _said(r.settings), r.source) for r in self.rules]
        return sha256(repr((said, self.guardrails, _said(self.command))).encode()).hexdigest()[:16]

    def knobs_for(self, ref: TableRef, metadata: TableMetadata | None) -> Knobs:
        """The knobs of one table with their origins.

        Raises `ConfigError` when the table's own properties are faulty: such a table is left alone.
        """
        origins: dict[str, list[Origin]] = {}
        for level, rule, settings in self._layers(ref, metadata):
            preset = PRESETS[settings[PRESET.name]] if PRESET.name in settings else {}
            for name, value in settings.items():
                origins.setdefault(name, []).append(self._held(name, Origin(level, rule, value)))
            for name, value in preset.items():
                if name not in settings:
                    origin = Origin(level, f"{rule}, preset {settings[PRESET.name]}", value)
                    origins.setdefault(name, []).append(self._held(name, origin))
        for name in {g.knob for g in self.guardrails} - origins.keys():
            held = self._held(name, Origin("default", "", KNOBS[name].default))
            if held.note:
                origins[name] = [held]
        return Knobs({name: tuple(found) for name, found in origins.items()})

    def _layers(self, ref: TableRef, metadata: TableMetadata | None) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
        """Settings from the strongest level to the weakest."""
        yield "command", "--set", self.command
        matching = sorted(
            (r for r in enumerate(self.rules) if matches(r[1].match, ref.parts[: len(r[1].match)])),
            key=lambda item: (len(item[1].match), item[1].source == "store", _specificity(item[1].match), item[0]),
            reverse=True,
        )
        table_rules = [r for _, r in matching if len(r.match) == len(ref.parts)]
        for rule in table_rules:
            yield "table", f"{rule} ({rule.source})", rule.settings
        if metadata is not None:
            properties, faults = from_properties(metadata)
            if faults:
                raise ConfigError([f"{ref}: {fault}" for fault in faults])
            for name, (prop, value) in properties.items():
                yield "table properties", prop, {name: value}
        for _, rule in matching:
            if rule not in table_rules:
                level = {0: "platform", 1: "catalog"}.get(len(rule.match), "namespace")
                yield level, f"{rule} ({rule.source})", rule.settings

    def _held(self, name: str, origin: Origin) -> Origin:
        held, by = origin.value, []
        for guardrail in self.guardrails:
            if guardrail.knob == name and (bounded := guardrail.hold(held)) != held:
                held = bounded
                by.append(str(guardrail))
        note = f"{origin.value} held by guardrail {' and '.join(by)}" if by else origin.note
        return Origin(origin.level, origin.rule, held, note)


def matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether each part matches its pattern; `*` and `?` are wildcards, everything else stands for itself."""
    return len(pattern) == len(parts) and all(
        _compiled(p).fullmatch(v) is not None for p, v in zip(pattern, parts, strict=True)
    )


def _said(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((name, repr(value)) for name, value in settings.items())


def matches_any(patterns: str, name: str) -> bool:
    """Whether a comma-separated list of wildcards holds the name; a blank list holds every name."""
    wanted = _listed(patterns)
    return not wanted or any(_compiled(p).fullmatch(name) for p in wanted)


@lru_cache(maxsize=4096)
def _listed(patterns: str) -> tuple[str, ...]:
    return tuple(p.strip() for p in patterns.split(",") if p.strip())


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "[[]")))  # fnmatch's sets are not part of our patterns


def _specificity(pattern: Sequence[str]) -> tuple[int, int]:
    wild = sum(p.count("*") + p.count("?") for p in pattern)
    return (-wild, sum(len(p) for p in pattern))


def parse_pattern(text: str) -> tuple[str, ...]:
    """`lake.events-*` into its parts; parts with dots are quoted with backticks. Raises `UsageError`."""
    if parts := split_name(text):
        return parts
    raise UsageError(f"{text!r} names no catalog, namespace or table: write catalog, catalog.namespace or all three")


def parse_settings(path: str, raw: object, guardrails: Sequence[Guardrail] = ()) -> dict[str, Any]:
    """Knob settings as configuration gives them, checked. Raises `ConfigError` with every fault under `path`."""
    if not isinstance(raw, Mapping):
        raise ConfigError([f"{path}: expected knobs and their values, as in {{compact.min_input_files: 5}}"])
    faults: list[str] = []
    settings: dict[str, Any] = {}
    for name, value in raw.items():
        knob = KNOBS.get(str(name))
        if knob is None:
            faults.append(f"{path}.{name}: there is no such knob{_nearest(str(name))}")
            continue
        try:
            settings[knob.name] = knob.parse(value)
        except ValueError as error:
            faults.append(f"{path}.{name}: {error}")
            continue
        faults += [
            f"{path}.{name}: {settings[knob.name]!r} passes the guardrail {g}"
            for g in guardrails
            if g.knob == knob.name and g.hold(settings[knob.name]) != settings[knob.name]
        ]
    if faults:
        raise ConfigError(faults)
    return settings


def parse_rule(path: str, raw: object, guardrails: Sequence[Guardrail] = ()) -> Rule:
    """`{match: lake.events-*, set: {knob: value}}`. Raises `ConfigError` with every fault under `path`."""
    if not isinstance(raw, Mapping) or "set" not in raw or not raw.keys() <= {"match", "set"}:
        raise ConfigError([f"{path}: write a rule as {{match: catalog.namespace.table, set: {{knob: value}}}}"])
    faults: list[str] = []
    match: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    said = raw.get("match")
    if said is not None and not isinstance(said, str):
        faults.append(f"{path}.match: {kind(said)} given; write one pattern, such as lake.events-*")
    elif said is not None:
        try:
            match = parse_pattern(said)
        except UsageError as error:
            faults.append(f"{path}.match: {error}")
    try:
        settings = parse_settings(f"{path}.set", raw["set"], guardrails)
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(faults)
    return Rule(match, settings)


def parse_guardrail(path: str, text: object) -> Guardrail:
    """`remove_orphans.older_than_hours >= 24`. Raises `ConfigError`."""
    found = _GUARDRAIL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError([f"{path}: {text!r} is no guardrail; write one as `expire_snapshots.retention_hours >= 24`"])
    if found[1] not in KNOBS:
        raise ConfigError([f"{path}: there is no knob {found[1]}{_nearest(found[1])}"])
    if KNOBS[found[1]].kind not in (Kind.INTEGER, Kind.NUMBER):
        raise ConfigError([f"{path}: {found[1]} is no number: a guardrail cannot bound it"])
    return Guardrail(found[1], found[2] == ">=", float(found[3]))


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - needed for a typing error alone

    near = get_close_matches(name, KNOBS, 1)
    return f"; did you mean {near[0]}?" if near else ""
