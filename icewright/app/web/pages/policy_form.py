"""A policy rule as a form: a field for each knob, what was sent in them, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from icewright.app.web.pages.formats import value
from icewright.app.web.pages.forms import Form
from icewright.core.knob import Knob, ValueKind
from icewright.core.policy import KNOBS

PREFIX = "knob."
NOTHING = "null"  # a knob that is told to have no value, which is not the same as a field that is left blank
_GENERAL = "general"


@dataclass(frozen=True, slots=True)
class KnobField:
    """A knob, the text of its field, and what is wrong with that."""

    knob: Knob[Any]
    text: str
    fault: str

    @property
    def name(self) -> str:
        """Return the field's name in the form."""
        return f"{PREFIX}{self.knob.name}"

    @property
    def default(self) -> str:
        """Return what holds where nobody sets it."""
        return value(self.knob.default) if self.knob.default not in (None, {}) else "none"

    @property
    def choices(self) -> tuple[str, ...]:
        """Return what can be chosen; none: anything can be written."""
        return ("true", "false") if self.knob.kind is ValueKind.FLAG else self.knob.choices


@dataclass(frozen=True, slots=True)
class KnobGroup:
    """The knobs of one operation."""

    name: str
    fields: Sequence[KnobField]

    @property
    def count(self) -> int:
        """Return how many of them are set."""
        return sum(bool(field.text) for field in self.fields)

    @property
    def open(self) -> bool:
        """Return whether there is something to see."""
        return any(field.text or field.fault for field in self.fields)


def groups(texts: Mapping[str, str], faults: Mapping[str, str]) -> list[KnobGroup]:
    """Return every knob in the registry's order, by what it is about."""
    found: dict[str, list[KnobField]] = {}
    for name, knob in KNOBS.items():
        about = name.partition(".")[0] if "." in name else _GENERAL
        found.setdefault(about, []).append(KnobField(knob, texts.get(name, ""), faults.get(name, "")))
    return [KnobGroup(about, fields) for about, fields in found.items()]


def texts_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as they stand in the fields."""
    return {name: _written(said) for name, said in settings.items()}


def texts_in(form: Form) -> dict[str, str]:
    """Return what the fields of a form say; blank ones say nothing."""
    texts = {name.removeprefix(PREFIX): form.one(name).strip() for name in form.fields if name.startswith(PREFIX)}
    return {name: text for name, text in texts.items() if text}


def settings_in(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the same as settings that are not checked yet."""
    return {name: None if text == NOTHING and _may_lack(name) else text for name, text in texts.items()}


def by_field(faults: Iterable[str], path: str = "set") -> tuple[dict[str, str], list[str]]:
    """Faults by the knob that they are of, and those of none that has a field."""
    found: dict[str, str] = {}
    others = []
    for fault in faults:
        place, colon, text = fault.partition(": ")
        name = place.removeprefix(f"{path}.")
        if colon and name in KNOBS:
            found[name] = f"{found[name]}; {text}" if name in found else text
        else:
            others.append(fault)
    return found, others


def mark(scope: str, texts: Mapping[str, str], *, taken_back: bool) -> str:
    """Return what tells one rule from another: that which is saved is that which was looked at."""
    said = json.dumps([scope, sorted(texts.items()), taken_back])
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def _written(said: Any) -> str:  # noqa: ANN401 - any knob's value
    if said is None:
        return NOTHING
    if isinstance(said, Mapping):
        return ",".join(f"{name}={one}" for name, one in said.items())
    return value(said)


def _may_lack(name: str) -> bool:
    return name in KNOBS and KNOBS[name].default is None
