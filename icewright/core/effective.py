"""The settings that hold for one table, and where each of them comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeVar, cast

from icewright.core.knob import Knob

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a setting's value."""

    level: str  # default, platform, catalog, namespace, catalog's policies, table properties, table, command
    rule: str  # the pattern (and preset) or the property that set it
    value: Any
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A table property whose setting is not allowed, with the reason."""

    property: str
    value: str
    knob: str
    reason: str  # with the remedy


@dataclass(frozen=True)
class Knobs:
    """The settings of one table: `knobs[RETENTION]`. A knob that nothing sets has its default."""

    origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)  # strongest first
    ignored: tuple[Ignored, ...] = ()

    def __getitem__(self, knob: Knob[T]) -> T:
        origins = self.origins.get(knob.name)
        return cast(T, origins[0].value) if origins else knob.default

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest of the values, by which an evaluation sees whether the policy changed since the last one."""
        values = repr(sorted((name, repr(origins[0].value)) for name, origins in self.origins.items()))
        return sha256(values.encode()).hexdigest()[:16]

    def is_set(self, knob: Knob[Any]) -> bool:
        """Return whether anything but the built-in default sets the value."""
        return knob.name in self.origins
