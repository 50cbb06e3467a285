"""Convert a policy rule to form fields and back, and assign faults to fields."""

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
NULL = "null"  # sets a knob to no value, unlike a blank field
_GENERAL, _COMMON = "general", "common"
_OFTEN = (  # what most rules set; listed first, in this order
    "preset", "importance", "windows", "compact.enabled", "compact.target_file_size_mb", "compact.cooldown_minutes",
    "expire_snapshots.retention_hours", "expire_snapshots.min_snapshots_to_keep", "remove_orphans.mode",
    "deletion.delay_hours",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnobField:
    """The form field of a knob, with its text and fault."""

    knob: Knob[Any]
    text: str
    fault: str

    @property
    def name(self) -> str:
        """Return the field's name in the form."""
        return f"{PREFIX}{self.knob.name}"

    @property
    def default(self) -> str:
        """Return the default value as text."""
        return value(self.knob.default) if self.knob.default not in (None, {}) else "none"

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the choices of the field; empty for free text."""
        return ("true", "false") if self.knob.kind is ValueKind.FLAG else self.knob.choices


@dataclass(frozen=True, slots=True)
class KnobGroup:
    """The knobs of one operation."""

    name: str
    fields: Sequence[KnobField]

    @property
    def count(self) -> int:
        """Return the number of fields with a value."""
        return sum(bool(field.text) for field in self.fields)

    @property
    def open(self) -> bool:
        """Return whether the group is the first one, or a field has a value or a fault."""
        return self.name == _COMMON or any(field.text or field.fault for field in self.fields)


def groups(texts: Mapping[str, str], faults: Mapping[str, str]) -> list[KnobGroup]:
    """Return the common knobs, then the others in registry order, grouped by prefix."""

    def field(name: str) -> KnobField:
        return KnobField(KNOBS[name], texts.get(name, ""), faults.get(name, ""))

    grouped = {_COMMON: [field(name) for name in _OFTEN]}
    for name in KNOBS:
        others = grouped.setdefault(name.partition(".")[0] if "." in name else _GENERAL, [])
        if name not in _OFTEN:
            others.append(field(name))
    return [KnobGroup(name, fields) for name, fields in grouped.items() if fields]


def texts_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the field texts of settings."""
    return {name: _field_text(setting) for name, setting in settings.items()}


def texts_in(form: Form) -> dict[str, str]:
    """Return the non-blank field texts of a form by knob or limit."""
    texts = {name.removeprefix(PREFIX): form.one(name).strip() for name in form.fields if name.startswith(PREFIX)}
    return {name: text for name, text in texts.items() if text}


def settings_in(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return field texts as settings, not validated yet."""
    return {name: None if text == NULL and _is_nullable(name) else text for name, text in texts.items()}


def by_field(faults: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Split faults into those of a knob's field and others."""
    by_knob: dict[str, str] = {}
    form_faults = []
    for fault in faults:
        place, colon, text = fault.partition(": ")
        name = place.removeprefix("set.")
        if colon and name in KNOBS:
            by_knob[name] = f"{by_knob[name]}; {text}" if name in by_knob else text
        else:
            form_faults.append(fault)
    return by_knob, form_faults


def mark(scope: str, texts: Mapping[str, str], *, taken_back: bool) -> str:
    """Return a digest of a rule, which ties a save to its preview."""
    document = json.dumps([scope, sorted(texts.items()), taken_back])
    return sha256(document.encode("utf-8", "surrogatepass")).hexdigest()


def _field_text(setting: Any) -> str:  # noqa: ANN401 - any knob's value
    if setting is None:
        return NULL
    if isinstance(setting, Mapping):
        return ",".join(f"{name}={item}" for name, item in setting.items())
    return value(setting)


def _is_nullable(name: str) -> bool:
    return name in KNOBS and KNOBS[name].default is None
