"""Guardrails: limits that no level of a policy may exceed, their syntax and their effect on values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from icewright.core.errors import ConfigError
from icewright.core.knob import UNSET, Knob, ValueKind, written
from icewright.core.policy import KNOBS, find_knob
from icewright.core.words import kind, near

_FORM = re.compile(r"\s*([a-z_.]+)(?:\s*(>=|<=|=)\s*|\s+(in)\s+)([^\s=<>].*?)\s*", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]+)?(?:e-[0-9]+)?")
_SYNTAX_HINT = "write one as `expire_snapshots.retention_hours >= 24` or `remove_orphans.mode in report, confirm`"


@dataclass(frozen=True, slots=True)
class Bound:
    """A least or greatest number that a knob may have."""

    knob: str
    at_least: bool
    bound: float

    def __str__(self) -> str:
        return f"{self.knob} {'>=' if self.at_least else '<='} {written(self.bound)}"

    def apply(self, value: Any) -> Any:  # noqa: ANN401 - any knob's value
        """Return the value itself, or the bound when the value is beyond it."""
        knob = KNOBS[self.knob]
        if knob.also is not None and value == knob.also:
            return value if self._allows(knob.also_range[0 if self.at_least else 1]) else self.limit
        if isinstance(value, bool) or not isinstance(value, int | float) or self._allows(value):
            return value
        return self.limit

    @property
    def limit(self) -> float:
        """Return the last value within the bound; a whole number stays whole, on the safe side of it."""
        if KNOBS[self.knob].kind is not ValueKind.INTEGER:
            return self.bound
        return math.ceil(self.bound) if self.at_least else math.floor(self.bound)

    def _allows(self, number: float) -> bool:
        return number >= self.bound if self.at_least else number <= self.bound


@dataclass(frozen=True, slots=True)
class Values:
    """The only values that a knob may have; every other value is replaced by the first."""

    knob: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.knob} {'in' if len(self.values) > 1 else '='} {', '.join(written(v) for v in self.values)}"

    def apply(self, value: Any) -> Any:  # noqa: ANN401 - any knob's value
        """Return the value itself if it is allowed, else the first allowed value."""
        return value if value in self.values else self.values[0]


Guardrail = Bound | Values


def parse_guardrails(raw: object) -> tuple[tuple[Guardrail, ...], list[str]]:
    """Read the guardrails of a configuration; return them with every fault."""
    if raw is not None and not isinstance(raw, list):
        return (), [f"guardrails: {kind(raw)} given; write a list of bounds such as 'knob >= 24'"]
    guardrails: list[Guardrail] = []
    faults: list[str] = []
    for i, text in enumerate(raw or []):
        try:
            guardrails.append(parse_guardrail(f"guardrails[{i}]", text))
        except ConfigError as error:
            faults += error.faults
    return tuple(guardrails), faults + _contradictions(guardrails)


def parse_guardrail(path: str, text: object) -> Guardrail:
    """Read `knob >= number`, `knob <= number`, `knob in choice, choice` or `knob = value`. Raises `ConfigError`."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError([f"{path}: {text!r} is no guardrail; {_SYNTAX_HINT}"])
    name, sign, value = match[1], match[2] or match[3], match[4]
    knob = find_knob(name)
    if knob is None:
        raise ConfigError([f"{path}: there is no knob {name}{near(name, list(KNOBS), listed=False)}"])
    try:
        return _values(knob, sign, value) if sign in {"in", "="} else _bound(knob, sign, value)
    except ValueError as error:
        raise ConfigError([f"{path}: {text!r} is no guardrail; {error}"]) from error


def _contradictions(guardrails: Sequence[Guardrail]) -> list[str]:
    """Return the faults of guardrails of one knob that contradict one another."""
    faults = []
    for name in dict.fromkeys(g.knob for g in guardrails):
        same_knob = [g for g in guardrails if g.knob == name]
        bounds = [g for g in same_knob if isinstance(g, Bound)]
        least = max((b.limit for b in bounds if b.at_least), default=-math.inf)
        most = min((b.limit for b in bounds if not b.at_least), default=math.inf)
        if least > most or len(bounds) < len(same_knob) > 1:
            listing = " and ".join(str(g) for g in same_knob)
            faults.append(f"guardrails: {listing} cannot hold together: write what {name} may be as one of them")
    return faults


def _bound(knob: Knob[Any], sign: str, text: str) -> Bound:
    if knob.kind not in {ValueKind.INTEGER, ValueKind.NUMBER}:
        raise ValueError(f"{knob.name} is no number: {_syntax_for(knob)}")
    if not _NUMBER.fullmatch(text):
        raise ValueError(_SYNTAX_HINT)
    bound = Bound(knob.name, sign == ">=", float(text))
    if knob.maximum is not None and bound.at_least and bound.limit > knob.maximum:
        raise ValueError(f"{knob.name} is at most {written(knob.maximum)}")
    if knob.minimum is not None and not bound.at_least and bound.limit < knob.minimum:
        raise ValueError(f"{knob.name} is at least {written(knob.minimum)}")
    return bound


def _values(knob: Knob[Any], sign: str, text: str) -> Values:
    if sign == "in" and knob.kind is not ValueKind.CHOICE:
        raise ValueError(f"{knob.name} is no choice: {_syntax_for(knob)}")
    if text == UNSET and (knob.default is None or knob.kind is ValueKind.MAPPING):
        return Values(knob.name, (knob.default,))
    texts = text.split(",") if sign == "in" else [text]
    return Values(knob.name, tuple(knob.parse(choice.strip()) for choice in texts))


def _syntax_for(knob: Knob[Any]) -> str:
    """Return a hint with the guardrail syntax for a knob of this kind."""
    match knob.kind:
        case ValueKind.CHOICE:
            return f"write `{knob.name} in {', '.join(knob.choices)}` without those that may not be"
        case ValueKind.INTEGER | ValueKind.NUMBER:
            return f"write `{knob.name} >= number` or `{knob.name} <= number`"
        case ValueKind.FLAG:
            return f"write `{knob.name} = true` or `{knob.name} = false`"
    return f"write `{knob.name} = {UNSET}`, or the one value that it may have"
